"""How many cores there are for us, and how many threads a worker may start on them.

Numeric libraries start a thread for each core of the machine, also in a container that may use two
of its 64: more threads than cores make a batch of 5 ms take a second.
"""

import os
from collections.abc import Iterator
from pathlib import Path

THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "RAYON_NUM_THREADS",
)
DEFAULT_PERIOD = "100000"
"""Microseconds: the kernel's own, where none can be read."""


def usable_cores(root: Path = Path("/")) -> int:
    """How many cores this process can keep busy, at least 1.

    Its affinity, or the smallest CPU quota of the control groups above it where that is less: 1.5
    cores count as 1. `root` is where `proc` and `sys` are.
    """
    return max(1, int(min([float(_affinity()), *_quotas(root)])))


def thread_environment(num_workers: int, root: Path = Path("/")) -> dict[str, str]:
    """Environment variables for a worker process: its share of the cores, one left to the front."""
    threads = max(1, (usable_cores(root) - 1) // num_workers)
    return dict.fromkeys(THREAD_VARIABLES, str(threads))


def _affinity() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _quotas(root: Path) -> Iterator[float]:
    """Cores that each control group from this process up to the top may use (cgroup v2 or v1).

    Inside a container the path may name a group of the host: then only the top one can be read,
    and that is the container's own.
    """
    for line in (_read(root / "proc/self/cgroup") or "").splitlines():
        match line.split(":", 2):
            case ["0", "", group]:
                for folder in _upward(root / "sys/fs/cgroup", group):
                    quota, _, period = (_read(folder / "cpu.max") or "").partition(" ")
                    yield from _cores(quota, period or DEFAULT_PERIOD)
            case [_, controllers, group] if "cpu" in controllers.split(","):
                for folder in _upward(root / "sys/fs/cgroup/cpu", group):
                    period = _read(folder / "cpu.cfs_period_us") or DEFAULT_PERIOD
                    yield from _cores(_read(folder / "cpu.cfs_quota_us") or "", period)


def _upward(mount: Path, group: str) -> Iterator[Path]:
    parts = [part for part in group.split("/") if part not in ("", "..")]
    for depth in range(len(parts), -1, -1):
        yield mount.joinpath(*parts[:depth])


def _cores(quota: str, period: str) -> Iterator[float]:
    """Nothing when there is no limit (`max`, `-1`) or no number."""
    if quota.isdecimal() and period.isdecimal() and int(period) > 0:
        yield int(quota) / int(period)


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None
