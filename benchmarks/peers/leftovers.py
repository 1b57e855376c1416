"""Ends what a server leaves behind: workers whose parent is gone, daemons in their own session."""

import ctypes
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tailproof.load.server_view import tree

PR_SET_CHILD_SUBREAPER = 36
PATIENCE = 10.0
"""Seconds until killed processes must be gone."""


def adopt_orphans() -> None:
    """Let descendants whose parent ends become children of this process, so that none gets out of
    its sight. See prctl(2)."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")


@contextmanager
def nothing_left() -> Iterator[None]:
    """Kill and await, at the end of the block, every descendant that began inside it.

    One that cannot be killed is left after PATIENCE.
    """
    known = _descendants()
    try:
        yield
    finally:
        deadline = time.perf_counter() + PATIENCE
        while (left := _descendants() - known) and time.perf_counter() < deadline:
            for pid in left:
                _end(pid)
            time.sleep(0.01)


def _descendants() -> set[int]:
    return {process.pid for process in tree(os.getpid())[1:]}


def _end(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
