"""How long Python's garbage collector stopped this process."""

import gc
from collections.abc import Callable
from typing import Any

from tailproof.core.clock import monotonic


class GcPauses:
    """Adds up the pauses of the collector between `attach` and `detach`, in seconds."""

    def __init__(self, report: Callable[[float], None] | None = None) -> None:
        self.total_seconds = 0.0
        self._report = report
        self._began = 0.0

    def attach(self) -> None:
        """Begin to measure."""
        gc.callbacks.append(self._on_phase)

    def detach(self) -> None:
        """Stop measuring."""
        gc.callbacks.remove(self._on_phase)

    def _on_phase(self, phase: str, _info: dict[str, Any]) -> None:
        if phase == "start":
            self._began = monotonic()
            return
        seconds = monotonic() - self._began
        self.total_seconds += seconds
        if self._report is not None:
            self._report(seconds)
