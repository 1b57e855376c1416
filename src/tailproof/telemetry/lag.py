"""An event loop that comes too late: the saturation signal that only an asyncio server has."""

import asyncio
from collections.abc import Callable

from tailproof.core.clock import monotonic


class LoopLag:
    """Asks an event loop for a timer every `interval` seconds and reports how late it came.

    Late timers mean that a callback held the loop, or that the process got no CPU; answers were
    late by as much. One timer is pending at a time.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        report: Callable[[float], None],
        *,
        interval: float = 0.1,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._loop = loop
        self._report = report
        self._interval = interval
        self._clock = clock  # not loop.time(): uvloop's stands still within a turn
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin; a second call changes nothing."""
        if self._timer is None:
            self._schedule()

    def stop(self) -> None:
        """Cancel the pending timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _schedule(self) -> None:
        self._due = self._clock() + self._interval
        self._timer = self._loop.call_later(self._interval, self._tick)

    def _tick(self) -> None:
        lateness = max(0.0, self._clock() - self._due)
        self._schedule()
        self._report(lateness)
