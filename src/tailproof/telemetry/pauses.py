"""What stops this process: Python's garbage collector, and an event loop that comes too late."""

import asyncio
import gc
from collections.abc import Callable
from typing import Any

from tailproof.core.clock import monotonic


class GcPauses:
    """Measures the pauses of Python's garbage collector, in seconds.

    `report` is told each one, in the thread that it stopped: it must be quick and never raise.
    """

    def __init__(
        self,
        report: Callable[[float], None] | None = None,
        *,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.total_seconds = 0.0
        self.num_pauses = 0
        self._report = report
        self._clock = clock
        self._began: float | None = None

    def attach(self) -> None:
        """Begin to measure; a second call changes nothing."""
        if self._on_phase not in gc.callbacks:
            gc.callbacks.append(self._on_phase)

    def detach(self) -> None:
        """Stop measuring; totals stay."""
        if self._on_phase in gc.callbacks:
            gc.callbacks.remove(self._on_phase)
        self._began = None

    def _on_phase(self, phase: str, _info: dict[str, Any]) -> None:
        if phase == "start":
            self._began = self._clock()
        elif self._began is not None:  # attached in the middle of a collection: no start
            seconds = self._clock() - self._began
            self._began = None
            self.total_seconds += seconds
            self.num_pauses += 1
            if self._report is not None:
                self._report(seconds)


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
