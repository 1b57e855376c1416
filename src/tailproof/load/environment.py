"""Where and with what the figures were taken: printed in every report, compared by `compare`."""

import os
import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tailproof.core import host
from tailproof.core.clock import wall
from tailproof.load.server_view import is_local
from tailproof.load.target import Target
from tailproof.reporting.document import Environment

LIBRARIES = ("tailproof", "numpy", "uvloop", "msgspec")
"""The tester and what it is made of."""


def environment(
    *,
    target: Target,
    processes: int,
    seeds: Mapping[str, int],
    payload: Mapping[str, Any],
    root: Path = Path("/"),
) -> Environment:
    """This machine, now. What cannot be read is None.

    Args:
        target: what was tested; does it run here too?
        processes: how many senders.
        payload: where bodies came from, how many, their sizes.
        root: where `proc` and `sys` are.
    """
    return Environment(
        date=datetime.fromtimestamp(wall(), UTC).isoformat(timespec="seconds"),
        cores=os.cpu_count() or 1,
        allowed_cores=allowed_cores(root),
        cpu=cpu_model(root),
        governor=_read(root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        memory_bytes=_memory_bytes(),
        kernel=platform.release(),
        python=platform.python_version(),
        versions={name: found for name in LIBRARIES if (found := _installed(name))},
        same_host=is_local(target.host),
        processes=processes,
        seeds=dict(seeds),
        payload=dict(payload),
    )


def allowed_cores(root: Path = Path("/")) -> int:
    """How many cores this process may use."""
    return host.usable_cores(len(os.sched_getaffinity(0)), lambda path: _read(root / path))


def cpu_model(root: Path = Path("/")) -> str | None:
    """What the processor is called, where the kernel says it."""
    return host.cpu_model(lambda path: _read(root / path))


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        return None


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None
