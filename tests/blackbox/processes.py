"""What Linux says about processes: children, zombies, ends."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/<pid>/stat after the command's name: state, parent, ...; None when there
    is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text.rpartition(")")[2].split()


def children(pid: int) -> dict[int, str]:
    """Child process ids of `pid`, each with its state letter (`Z`: a zombie)."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (stat := _stat(int(entry.name))) and int(stat[1]) == pid:
            found[int(entry.name)] = stat[0]
    return found


def started(pid: int) -> str | None:
    """When the process started, in ticks since boot: tells two users of one id apart. None when
    there is no such process, or only its zombie."""
    stat = _stat(pid)
    return None if stat is None or stat[0] in "ZX" else stat[19]


def kill(pid: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Send a signal; a process that has ended already is no error."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


@contextmanager
def frozen(*pids: int) -> Iterator[None]:
    """Stop the processes for the length of the block: nothing they were given gets computed."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            kill(pid, signal.SIGCONT)
