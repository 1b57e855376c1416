"""How many cores there are for us, and how many threads a worker may start on them.

Numeric libraries start a thread for each core of the machine, also in a container that may use two
of its 64: more threads than cores make a batch of 5 ms take a second.
"""

import os
from pathlib import Path

from tailproof.core import host

THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "RAYON_NUM_THREADS",
)


def usable_cores(root: Path = Path("/")) -> int:
    """How many cores this process can keep busy, at least 1. `root` holds `proc` and `sys`."""
    return host.usable_cores(_affinity(), reader(root))


def thread_environment(num_workers: int, root: Path = Path("/")) -> dict[str, str]:
    """Environment variables for a worker process: its share of the cores, one left to the front."""
    threads = max(1, (usable_cores(root) - 1) // num_workers)
    return dict.fromkeys(THREAD_VARIABLES, str(threads))


def reader(root: Path) -> host.Read:
    """Reads the files below `root`; None for what cannot be read."""

    def read(path: str) -> str | None:
        try:
            return (root / path).read_text().strip()
        except (OSError, UnicodeDecodeError):
            return None

    return read


def _affinity() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
