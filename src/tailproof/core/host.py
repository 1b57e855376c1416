"""What the kernel's files say of this machine: its processor, and how many cores a process may use.

Whoever asks reads the files: `read` takes a path without its leading slash and returns the stripped
text, None where there is none.
"""

from collections.abc import Callable, Iterator

Read = Callable[[str], str | None]

DEFAULT_PERIOD = "100000"
"""Microseconds: the kernel's own, where none can be read."""


def usable_cores(affinity: int, read: Read) -> int:
    """How many cores a process can keep busy, at least 1.

    Its affinity, or the smallest CPU quota of the control groups above it where that is less: 1.5
    cores count as 1, for a second process or thread would not have a core.
    """
    return max(1, int(min([float(affinity), *_quotas(read)])))


def cpu_model(read: Read) -> str | None:
    """The model name in /proc/cpuinfo; Arm machines give none."""
    for line in (read("proc/cpuinfo") or "").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return None


def _quotas(read: Read) -> Iterator[float]:
    """Cores that each control group from this process up to the top may use (cgroup v2 or v1).

    Inside a container the path may name a group of the host: then only the top one can be read,
    and that is the container's own.
    """
    for line in (read("proc/self/cgroup") or "").splitlines():
        match line.split(":", 2):
            case ["0", "", group]:
                for folder in _upward("sys/fs/cgroup", group):
                    quota, _, period = (read(f"{folder}/cpu.max") or "").partition(" ")
                    yield from _cores(quota, period or DEFAULT_PERIOD)
            case [_, controllers, group] if "cpu" in controllers.split(","):
                for folder in _upward("sys/fs/cgroup/cpu", group):
                    period = read(f"{folder}/cpu.cfs_period_us") or DEFAULT_PERIOD
                    yield from _cores(read(f"{folder}/cpu.cfs_quota_us") or "", period)


def _upward(mount: str, group: str) -> Iterator[str]:
    parts = [part for part in group.split("/") if part not in ("", "..")]
    for depth in range(len(parts), -1, -1):
        yield "/".join([mount, *parts[:depth]])


def _cores(quota: str, period: str) -> Iterator[float]:
    """Nothing when there is no limit (`max`, `-1`) or no number."""
    if quota.isdecimal() and period.isdecimal() and int(period) > 0:
        yield int(quota) / int(period)
