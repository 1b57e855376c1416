"""Wakes an event loop at an instant, to some ten microseconds, without keeping the core busy.

Timers of event loops count whole milliseconds. Linux has a timer that is a file descriptor, which
a loop can watch like a socket; Python offers it from 3.13 on, so here it is called directly.
"""

import asyncio
import ctypes
import os
from collections.abc import Callable

_CLOCK_MONOTONIC = 1  # the clock of core.clock.monotonic on Linux
_ABSOLUTE = 1


class _TimeSpec(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


class _TimerSpec(ctypes.Structure):
    _fields_ = [("interval", _TimeSpec), ("first", _TimeSpec)]


class Alarm:
    """Calls `ring` in the loop at the instant last set. Close it when done."""

    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> None:
        self._loop, self._ring = loop, ring
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._spec = _TimerSpec()
        self._pointer = ctypes.byref(self._spec)
        flags = os.O_NONBLOCK | os.O_CLOEXEC
        self._descriptor = self._libc.timerfd_create(_CLOCK_MONOTONIC, flags)
        if self._descriptor < 0:
            raise OSError(ctypes.get_errno(), "no timer")
        loop.add_reader(self._descriptor, self._rung)

    def set(self, instant: float) -> None:
        """Ring at `instant` on `core.clock.monotonic`, seconds; one that has passed rings now."""
        seconds = int(instant)
        first = self._spec.first
        first.seconds = max(seconds, 0)
        # All zero would switch the timer off.
        first.nanoseconds = max(1, int((instant - seconds) * 1e9))
        if self._libc.timerfd_settime(self._descriptor, _ABSOLUTE, self._pointer, None):
            raise OSError(ctypes.get_errno(), "the timer was not set")

    def close(self) -> None:
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)

    def _rung(self) -> None:
        try:
            os.read(self._descriptor, 8)
        except BlockingIOError:  # set again in the same turn of the loop
            return
        self._ring()
