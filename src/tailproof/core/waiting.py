"""What waits for a worker: first in, first out within a class, classes by weight, shapes apart."""

import math
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from itertools import islice
from typing import Any, NamedTuple


class Priority(IntEnum):
    """How much a request matters; the lower the number, the more."""

    CRITICAL = 0
    NORMAL = 1
    BATCH = 2

    @property
    def word(self) -> str:
        """As callers, metrics and the log write it."""
        return self.name.lower()


CLASSES = tuple(Priority)
"""The same, most important first; a tuple is quicker to walk than an enum."""

WEIGHTS = (16, 4, 1)
"""Rows that each class gets of a contended worker, relative to each other (weighted fair queueing):
critical requests hardly wait for others, and batch requests are never starved wholly."""


@dataclass(slots=True, eq=False)
class Queued:
    """One request as the policy sees it. Times are in seconds, on the clock of `now`."""

    rows: int
    arrived: float
    deadline: float = math.inf
    """When its client stops waiting; nothing of it is begun after that."""
    priority: Priority = Priority.NORMAL
    bucket: Hashable = None
    """Requests of different buckets (shapes) never share a batch."""
    length: int = 1
    """Units of input a row, of which the longest in a batch decides (for the padding waste)."""
    payload: Any = None
    """The batcher's own; the policy never looks."""
    taken: int = 0
    """Rows already handed out in batches."""
    left: bool = False
    """Cancelled or failed: its remaining rows are never dispatched."""
    expected_late: bool = False
    """It was dispatched although it would break the SLO."""


class Part(NamedTuple):
    """Rows [start, stop) of one request."""

    request: Queued
    start: int
    stop: int


class Lane:
    """The requests of one bucket. Each operation costs O(1), but for what it returns."""

    __slots__ = ("_queues", "_rows", "_served", "num_deadlines")

    def __init__(self) -> None:
        self.num_deadlines = 0
        """Requests whose clients have a deadline of their own."""
        self._queues: tuple[OrderedDict[Queued, None], ...] = tuple(OrderedDict() for _ in CLASSES)
        self._rows = [0] * len(CLASSES)
        self._served = [0.0] * len(CLASSES)  # rows taken over weight: the virtual time

    def __len__(self) -> int:
        return sum(map(len, self._queues))

    @property
    def rows(self) -> int:
        """Rows that wait."""
        return sum(self._rows)

    def rows_before(self, priority: Priority, rows: int) -> int:
        """About how many waiting rows are computed before the last of `rows` new ones: all of the
        same and of more important classes, and of the others what their weight gives them."""
        own = self._rows[priority] + rows
        ahead = sum(self._rows[:priority]) + self._rows[priority]
        for lower in range(priority + 1, len(CLASSES)):
            ahead += min(self._rows[lower], own * WEIGHTS[lower] // WEIGHTS[priority])
        return ahead

    def heads(self) -> Iterator[Queued]:
        """The oldest request of each class that has any, the most important class first."""
        for queue in self._queues:
            if queue:
                yield next(iter(queue))

    def oldest(self, priority: Priority, most: int) -> Iterator[Queued]:
        """Up to `most` requests of a class, oldest first."""
        return islice(self._queues[priority], most)

    def exceeds_share(self, priority: Priority) -> bool:
        """Whether a class can lose its oldest request: it is whole, and the class would keep the
        share of the rows that its weight gives it."""
        if len(self._queues[priority]) < 2:
            return False
        oldest = next(iter(self._queues[priority]))
        present = sum(WEIGHTS[one] for one in CLASSES if self._queues[one])
        kept = self._rows[priority] - oldest.rows
        return not oldest.taken and kept * present >= self.rows * WEIGHTS[priority]

    def put(self, request: Queued) -> None:
        """Let `request` wait, behind those of its class."""
        mine = request.priority
        if not self._queues[mine]:  # a class that was absent has no claim on what it missed
            busy = [self._served[one] for one in CLASSES if self._queues[one]]
            self._served[mine] = max(self._served[mine], min(busy, default=0.0))
        self._queues[mine][request] = None
        self._rows[mine] += request.rows - request.taken
        self.num_deadlines += request.deadline != math.inf

    def remove(self, request: Queued) -> int:
        """Take `request` out; returns how many of its rows were waiting, 0 if it was not here."""
        queue = self._queues[request.priority]
        if request not in queue:
            return 0
        del queue[request]
        rows = request.rows - request.taken
        self._rows[request.priority] -= rows
        self.num_deadlines -= request.deadline != math.inf
        return rows

    def take(self, most: int) -> tuple[int, tuple[Part, ...]]:
        """Move up to `most` rows out, each time from the class that has had least for its weight;
        of the last request perhaps only a part."""
        parts: list[Part] = []
        rows = 0
        while rows < most and (present := [one for one in CLASSES if self._queues[one]]):
            if len(present) == 1:
                rows += self._take_from(present[0], most - rows, most, parts)
            else:
                mine = min(present, key=self._served.__getitem__)
                rows += self._take_from(mine, most - rows, 1, parts)
        return rows, tuple(parts)

    def _take_from(
        self, mine: Priority, most_rows: int, most_requests: int, parts: list[Part]
    ) -> int:
        queue, rows, num = self._queues[mine], 0, 0
        while queue and rows < most_rows and num < most_requests:
            request = next(iter(queue))
            start = request.taken
            request.taken = stop = min(request.rows, start + most_rows - rows)
            rows += stop - start
            num += 1
            parts.append(Part(request, start, stop))
            if stop == request.rows:
                del queue[request]
                self.num_deadlines -= request.deadline != math.inf
        self._rows[mine] -= rows
        self._served[mine] += rows / WEIGHTS[mine]
        return rows
