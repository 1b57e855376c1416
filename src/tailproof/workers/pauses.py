"""How long Python's garbage collector stopped this process: the front's and the worker's alike."""

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
