"""Which request of a failed batch made it fail? Found by bisection."""

from collections import deque
from dataclasses import dataclass

from tailproof.core.waiting import Part, Queued

MOST_RUNS = 64
"""Batches that one failed batch may cost. Enough to find five guilty requests among 256, wherever
they are (each costs two batches a halving); with more of them it is the model that fails, and the
rest fails with it instead of keeping the worker from everybody else."""


@dataclass(slots=True, eq=False)
class Case:
    """One failed batch and everything that is computed again because of it."""

    runs_left: int = MOST_RUNS


@dataclass(frozen=True, slots=True)
class Suspects:
    """A part of a failed batch that is to be computed again, by itself."""

    case: Case
    parts: tuple[Part, ...]


class Isolation:
    """The suspects that wait. Halves of a failed batch go before everything else, so that the
    innocent lose little time."""

    def __init__(self) -> None:
        self._waiting: deque[Suspects] = deque()
        self.num_runs = 0
        """Batches of suspects that were handed out."""

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def rows(self) -> int:
        """Rows of the suspects that wait."""
        return sum(part.stop - part.start for one in self._waiting for part in one.parts)

    def failed(self, parts: tuple[Part, ...], case: Case | None) -> tuple[Queued, ...]:
        """The model raised for a batch of `parts`; `case` when it held suspects already.

        Returns the requests that are guilty, none while that is still to be found out.
        """
        case = case or Case()
        if len(parts) == 1 or case.runs_left < 2:
            return tuple(part.request for part in parts)
        case.runs_left -= 2
        half = len(parts) // 2
        self._waiting.extendleft((Suspects(case, parts[half:]), Suspects(case, parts[:half])))
        return ()

    def next(self) -> Suspects | None:
        """The suspects to compute now, without those who have left meanwhile."""
        while self._waiting:
            suspects = self._waiting.popleft()
            parts = tuple(part for part in suspects.parts if not part.request.left)
            if parts:
                self.num_runs += 1
                return Suspects(suspects.case, parts)
        return None
