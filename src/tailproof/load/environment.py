"""Where and with what the figures were taken: printed in every report, compared by `compare`."""

import os
import platform
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

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
    """How many cores this process may use: its affinity, or the quota of its control group where
    that is less. 1.5 cores count as 1: a second sender would not have a core."""
    cores = float(len(os.sched_getaffinity(0)))
    return max(1, int(min([cores, *_quotas(root)])))


def cpu_model(root: Path = Path("/")) -> str | None:
    """The model name in /proc/cpuinfo; Arm machines give none."""
    for line in (_read(root / "proc/cpuinfo") or "").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return None


def _quotas(root: Path) -> Iterator[float]:
    """The cores that each control group above this process may use, version 2 or 1. Inside a
    container the path may name a group of the host: then only the top one can be read."""
    for line in (_read(root / "proc/self/cgroup") or "").splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers == "":
            for folder in _upward(root / "sys/fs/cgroup", group):
                quota, _, period = (_read(folder / "cpu.max") or "max").partition(" ")
                yield from _quota(quota, period)
        elif "cpu" in controllers.split(","):
            for folder in _upward(root / "sys/fs/cgroup/cpu", group):
                period = _read(folder / "cpu.cfs_period_us") or "100000"
                yield from _quota(_read(folder / "cpu.cfs_quota_us") or "-1", period)


def _upward(mount: Path, group: str) -> Iterator[Path]:
    parts = [part for part in group.split("/") if part not in ("", "..")]
    for depth in range(len(parts), -1, -1):
        yield mount.joinpath(*parts[:depth])


def _quota(quota: str, period: str) -> Iterator[float]:
    if quota.isdecimal() and period.isdecimal() and int(period) > 0:
        yield int(quota) / int(period)


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
