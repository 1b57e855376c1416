"""The laws of the policy, and books of our own about a simulation that tell when one is broken."""

import math
from collections import Counter, OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field

from tailproof.core.policy import (
    DOOR,
    SHORT_BATCH,
    TRY_AGAIN,
    Admit,
    Dispatch,
    Drop,
    Limits,
    Part,
    Policy,
    Priority,
    Queued,
    Refuse,
)
from tests.core.simulator import Batch, Observer, Simulation

HAIR = 1e-9
"""Seconds: sums of floats differ by less."""


class Broken(AssertionError):
    """A law does not hold. `law` is its name."""

    def __init__(self, law: str, detail: object = "") -> None:
        super().__init__(f"{law}: {detail}")
        self.law = law


def require(holds: bool, law: str, detail: object = "") -> None:
    if not holds:
        raise Broken(law, detail)


@dataclass(slots=True)
class Fate:
    """What became of one request, kept apart from what the policy believes."""

    rows: int
    state: str = "waiting"
    """waiting (some rows do), started (none does), answered, refused, dropped, cancelled, failed
    or lost (with its worker)."""
    started: int = 0
    """Rows that were handed to a worker, once or more often."""
    computed: int = 0

    @property
    def is_open(self) -> bool:
        return self.state in ("waiting", "started")


class Line:
    """What waits in one bucket, by class in order of arrival."""

    __slots__ = ("classes", "rows")

    def __init__(self) -> None:
        self.classes: tuple[OrderedDict[Queued, Fate], ...] = tuple(OrderedDict() for _ in Priority)
        self.rows = 0

    def __len__(self) -> int:
        return sum(map(len, self.classes))

    def late(self, latest: float) -> int:
        """Requests, none of them begun, that came before `latest`."""
        num = 0
        for line in self.classes:
            for request, fate in line.items():
                if request.arrived >= latest:
                    break
                num += fate.started == 0
        return num


@dataclass
class Flight:
    """A batch with a worker."""

    is_short: bool
    num_late: int


@dataclass
class Laws(Observer):
    """Keeps its own books about a simulation and raises `Broken` when they disagree.

    It reads the bounds, predictions and budget of the policy, whose formulas have tests of their
    own, and nothing else of it.
    """

    limits: Limits
    keeps_trace: bool = False
    simulation: Simulation = field(init=False)
    workers: int = 0
    fates: dict[Queued, Fate] = field(default_factory=dict)
    lines: dict[Hashable, Line] = field(default_factory=dict)
    waiting_rows: int = 0
    num_waiting: int = 0
    flights: dict[Dispatch, Flight] = field(default_factory=dict)
    suspects: set[Part] = field(default_factory=set)
    """To be computed again, since their batch failed."""
    last_end: float = -math.inf
    due: float = math.inf
    """Until when those who wait may be held, while a worker is idle."""
    trace: list[tuple[object, ...]] = field(default_factory=list)

    @property
    def policy(self) -> Policy:
        return self.simulation.policy

    def states(self) -> Counter[str]:
        return Counter(fate.state for fate in self.fates.values())

    # The door

    def arrived(self, request: Queued, decision: Admit | Refuse, now: float) -> None:
        self._note("arrived", now, request.rows, decision)
        assert request not in self.fates
        fate = self.fates[request] = Fate(request.rows)
        bound = self.policy._bounds_of(request.bucket).queue_rows
        rows = self.waiting_rows + request.rows
        if isinstance(decision, Refuse):
            fate.state = "refused"
            self._refused(request, decision, rows, bound, now)
            return
        if self.waiting_rows:
            require(request.rows <= bound, "a giant enters an empty queue", (rows, bound))
            require(rows <= bound, "queue bound", (rows, bound))
            share = math.ceil(bound * DOOR[request.priority])
            require(rows <= share, "a class keeps to its share", (rows, share))
        line = self.lines.get(request.bucket)
        if line is None:
            line = self.lines[request.bucket] = Line()
        line.classes[request.priority][request] = fate
        line.rows += request.rows
        self.waiting_rows += request.rows
        self.num_waiting += 1

    def _refused(self, request: Queued, refusal: Refuse, rows: int, bound: int, now: float) -> None:
        require(0.0 < refusal.retry_after < 60.0, "retry after", refusal)
        idle = not self.waiting_rows and len(self.flights) < self.workers
        match refusal.reason:
            case "queue_full":
                full = self.waiting_rows > 0 and rows > math.ceil(bound * DOOR[request.priority])
                require(full, "full means full", (rows, bound))
            case "hopeless":
                require(not idle, "an idle system takes what comes", refusal)
                budget = "nobody is shed while the budget covers it"
                require(not self._covers(self.num_late + 1), budget, refusal)
            case "deadline":
                has_one = request.deadline < math.inf
                require(has_one, "a deadline is a client's own", refusal)
                tries = idle and self._is_rested(now) and request.deadline > now
                require(not tries, "an idle system tries again", refusal)

    # Dispatch

    def dropped(self, drops: tuple[Drop, ...], now: float) -> None:
        line_rows: dict[Hashable, int] = {}
        for request, reason, retry_after in drops:
            self._note("dropped", now, request.rows, reason)
            require(0.0 < retry_after < 60.0, "retry after", retry_after)
            fate = self.fates[request]
            require(fate.state == "waiting", "who left leaves once", fate)
            require(fate.started == 0, "who is dropped is never computed", fate)
            line = self.lines[request.bucket]
            before = line_rows.setdefault(request.bucket, line.rows)
            if reason == "dropped":
                self._shed(request, line, now)
            else:
                self._expired(request, before, now)
            self._leave(request, "dropped")

    def _shed(self, request: Queued, line: Line, now: float) -> None:
        """Of the batch as it would have been, more would have been late than is allowed."""
        require(len(line) > 1, "the last one is not dropped")
        if len(self.flights) >= self.workers:
            return  # when it would begin is the policy's own guess
        seconds = self._tail(request.bucket, line.rows)
        law = "nobody is dropped while the budget covers it"
        require(seconds is not None, law, "nothing is known")
        assert seconds is not None
        require(self._breaks_slo(line, now + seconds), law, seconds)

    def _expired(self, request: Queued, rows: int, now: float) -> None:
        law = "who would meet its deadline is not dropped for it"
        if len(self.flights) < self.workers:
            finish = now + self._typical(request.bucket, rows, now)
            require(request.deadline < finish + HAIR, law, (request.deadline, finish))

    def dispatched(self, dispatch: Dispatch, now: float) -> None:
        self._note("dispatched", now, dispatch.rows, dispatch.predicted)
        require(now <= self.due + HAIR, "nobody is held while a worker is free", self.due)
        is_short = self._takes_slot(dispatch)
        rows = sum([part.stop - part.start for part in dispatch.parts])
        require(rows == dispatch.rows >= 1, "rows add up", dispatch.rows)
        require(rows <= self.limits.max_batch_rows, "batch bound", rows)
        buckets = {part.request.bucket for part in dispatch.parts}
        require(buckets == {dispatch.bucket}, "buckets are never mixed", buckets)
        if dispatch.case is None:
            self._fresh(dispatch, now)
        else:
            self._again(dispatch)
        num_late = sum([part.request.expected_late for part in dispatch.parts])
        self.flights[dispatch] = Flight(is_short, num_late)

    def _takes_slot(self, dispatch: Dispatch) -> bool:
        """Whether the batch is short: two are allowed in a worker only if all in flight are."""
        typical = self.policy.model_of(dispatch.bucket).typical_of(dispatch.rows)
        is_short = typical is not None and typical < SHORT_BATCH
        num = len(self.flights)
        if num >= self.workers:
            slots = self.workers * min(2, self.limits.max_in_flight)
            require(num < slots, "slots", f"{num} of {slots}")
            all_short = is_short and all(flight.is_short for flight in self.flights.values())
            require(all_short, "a second batch only behind a short one", typical)
        return is_short

    def _fresh(self, dispatch: Dispatch, now: float) -> None:
        require(not self._live_suspects(), "suspects go first")
        line = self.lines[dispatch.bucket]
        bound = self.policy._bounds_of(dispatch.bucket).batch_rows
        whole = min(line.rows, bound)
        require(dispatch.rows == whole, "all that waits goes, up to the bound", whole)
        finish = -math.inf
        if len(self.flights) < self.workers:
            finish = now + self._typical(dispatch.bucket, dispatch.rows, now)
            if dispatch.predicted is not None and len(line) > 1:
                late = self._breaks_slo(line, now + dispatch.predicted)
                require(not late, "beyond the budget nothing late is begun", dispatch.predicted)
        for part in dispatch.parts:
            self._begin(part, line, now, finish)

    def _begin(self, part: Part, line: Line, now: float, finish: float) -> None:
        request, start, stop = part
        fate = self.fates[request]
        require(fate.state == "waiting", "who left is never computed", fate.state)
        require(start == fate.started, "each row once", (start, stop, fate))
        require(start < stop <= fate.rows, "each row once", (start, stop, fate))
        mates = line.classes[request.priority]
        require(next(iter(mates)) is request, "first in, first out within a class")
        require(now <= request.deadline, "nothing is begun after its deadline", request)
        if start == 0:
            in_time = finish <= request.deadline + HAIR
            require(in_time, "nothing is begun that will miss its deadline", request)
        fate.started = stop
        line.rows -= stop - start
        self.waiting_rows -= stop - start
        if stop == fate.rows:
            fate.state = "started"
            del mates[request]
            self.num_waiting -= 1

    def _again(self, dispatch: Dispatch) -> None:
        for part in dispatch.parts:
            require(part in self.suspects, "each row once", part[1:])
            self.suspects.remove(part)
            fate = self.fates[part.request]
            require(fate.is_open, "who left is never computed", fate.state)

    # What comes back

    def finished(self, batch: Batch, now: float) -> None:
        self._note("finished", now, batch.dispatch.rows)
        del self.flights[batch.dispatch]
        self.last_end = now
        for request, start, stop in batch.dispatch.parts:
            self.fates[request].computed += stop - start

    def answered(self, request: Queued, now: float) -> None:
        self._note("answered", now, request.rows)
        fate = self.fates[request]
        assert fate.state == "started", fate
        assert fate.computed == fate.rows, fate
        assert request not in self.simulation.poison
        fate.state = "answered"

    def raised(self, batch: Batch, guilty: tuple[Queued, ...], now: float) -> None:
        self._note("raised", now, batch.dispatch.rows, len(guilty))
        del self.flights[batch.dispatch]
        self.last_end = now
        parts = batch.dispatch.parts
        require(len(parts) > 1 or len(guilty) == 1, "the guilty fails")
        for request in guilty:
            require(request in self.simulation.poison, "no innocent fails")
            self._leave(request, "failed")
        self.suspects |= {part for part in parts if self.fates[part.request].is_open}

    def lost(self, batch: Batch, now: float) -> None:
        self._note("lost", now, batch.dispatch.rows)
        del self.flights[batch.dispatch]
        self.last_end = now
        for part in batch.dispatch.parts:
            self._leave(part.request, "lost")

    def cancelled(self, request: Queued, now: float) -> None:
        self._note("cancelled", now, request.rows)
        self._leave(request, "cancelled")

    def workers_changed(self, workers: int) -> None:
        self.workers = workers
        self.due = math.inf

    def settled(self, now: float) -> None:
        """After every event, once the policy has nothing to dispatch."""
        policy, held = self.policy, "nobody is held while a worker is free"
        require(policy.queued_requests == self.num_waiting, "books agree", "waiting requests")
        require(policy.queued_rows == self.waiting_rows, "books agree", "waiting rows")
        require(policy.in_flight == len(self.flights), "books agree", "batches in flight")
        require(now <= self.due + HAIR, held, self.due)
        self.due = math.inf
        if len(self.flights) < self.workers:
            require(not self._live_suspects(), held, "suspects")
            if self.waiting_rows:
                self.due = self._held_until()
                require(now < self.due, held, self.due)

    def ended(self) -> None:
        """When no event is left and there is a worker: every request has met one end."""
        assert not self.flights
        assert not any(fate.is_open for fate in self.fates.values())

    # Books

    def _leave(self, request: Queued, state: str) -> None:
        fate = self.fates[request]
        if not fate.is_open:
            return
        if fate.state == "waiting":
            line = self.lines[request.bucket]
            del line.classes[request.priority][request]
            line.rows -= fate.rows - fate.started
            self.waiting_rows -= fate.rows - fate.started
            self.num_waiting -= 1
        fate.state = state

    def _live_suspects(self) -> bool:
        return bool(self.suspects) and any(
            self.fates[part.request].is_open for part in self.suspects
        )

    def _held_until(self) -> float:
        """The moment at which the first who waits has been held for `max_wait`, -inf when some
        batch is full already."""
        if not self.limits.max_wait:
            return -math.inf
        until = math.inf
        for bucket, line in self.lines.items():
            bounds = self.policy._bounds_of(bucket)
            if line.rows >= min(bounds.batch_rows, bounds.queue_rows):
                return -math.inf
            for mates in line.classes:
                if mates:
                    until = min(until, next(iter(mates)).arrived + self.limits.max_wait)
        return until

    @property
    def num_late(self) -> int:
        """Requests in flight that are expected to be late."""
        return sum(flight.num_late for flight in self.flights.values())

    def _covers(self, num_late: int) -> bool:
        attainment = self.policy.attainment
        return all(attainment.allows(i, num_late) for i in range(len(attainment.thresholds)))

    def _breaks_slo(self, line: Line, finish: float) -> bool:
        """Whether a batch that ends at `finish` makes more late than the budget covers."""
        attainment = self.policy.attainment
        for index, threshold in enumerate(attainment.thresholds):
            late = line.late(finish - threshold)
            if late and not attainment.allows(index, self.num_late + late):
                return True
        return False

    def _tail(self, bucket: Hashable, rows: int) -> float | None:
        bound = self.policy._bounds_of(bucket).batch_rows
        seconds = self.policy.model_of(bucket).tail_of(min(rows, bound))
        return None if seconds is None else seconds * self.policy.attainment.margin

    def _typical(self, bucket: Hashable, rows: int, now: float) -> float:
        """What deadlines are held against; nothing after a rest, when predictions may be wrong."""
        if self._is_rested(now):
            return 0.0
        bound = self.policy._bounds_of(bucket).batch_rows
        return self.policy.model_of(bucket).typical_of(min(rows, bound)) or 0.0

    def _is_rested(self, now: float) -> bool:
        return not self.flights and now - self.last_end > TRY_AGAIN

    def _note(self, *event: object) -> None:
        if self.keeps_trace:
            self.trace.append(event)
