"""The batching policy: who is admitted, what runs next, and who is given up.

A pure state machine: it is handed the time and returns decisions; the batcher acts on them, the
planner and the tests simulate with the very same object. The rules, in the order in which a
request meets them:

- *The door.* A queue bounded in rows, from the latency model and the SLO. What cannot be answered
  in time, by the SLO or by its client's own deadline, is refused with the time after which to come
  back. Classes may fill unequal shares of the queue (`DOOR`).
- *Late binding.* A batch is formed only when a worker is free for it, out of all that waits. An
  idle worker and a waiting request: run now (unless `max_wait` says otherwise).
- *Attainment.* At dispatch, what would be late is still computed while the SLO's budget of misses
  lasts (`core.attainment`). After that the request with the least slack is dropped, again and
  again, until the others make it. A batch is never made smaller to please its oldest request.
- *Isolation.* A failed batch is halved until only the guilty request fails (`core.isolation`).
- *Who has left* is never computed.

Within a class requests are served first in, first out; `core.waiting` says how classes and shapes
share a worker.
"""

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

from tailproof.core.attainment import Attainment
from tailproof.core.isolation import Case, Isolation
from tailproof.core.latency_model import LatencyModel
from tailproof.core.slo import Latency
from tailproof.core.waiting import CLASSES, Lane, Part, Priority, Queued

__all__ = ["Admit", "Dispatch", "Drop", "Limits", "Part", "Policy", "Priority", "Queued", "Refuse"]

SHORT_BATCH = 0.005
"""Seconds. Below this the way to the worker and back is worth hiding behind another batch."""

DOOR = (1.0, 1.0, 0.4)
"""Share of the queue's bound up to which each class is let in, most important first."""

URGENCY = (0.5, 1.0, 2.0)
"""Between shapes the oldest goes first, with this as the weight of its SLO's threshold."""

DEFAULT_QUEUE_ROWS = 1024
DEFAULT_QUEUE_BATCHES = 4
"""The queue's bound while there is nothing to compute it from: the larger of the two."""

MOST_QUEUE_ROWS = 1 << 16
"""The computed bound ends here, however quick the model: the queue is memory too."""

UNKNOWN_RETRY = 1.0
"""Retry-After in seconds while nothing is known of the drain rate."""

TRY_AGAIN = 1.0
"""Seconds. A worker that has been idle so long tries what is predicted to be hopeless: else a wrong
prediction would never be corrected."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the policy must keep to. Raises ValueError when a limit admits nothing."""

    max_batch_rows: int = 256
    max_queue_rows: int | None = None
    """None: computed from the latency model and the objectives."""
    max_wait: float = 0.0
    """Seconds that an idle worker may hold a batch for company."""
    objectives: tuple[Latency, ...] = ()
    """The end-to-end latency SLOs; none: nothing is shed for being late."""
    max_in_flight: int = 2
    """Batches that one worker may have at a time."""

    def __post_init__(self) -> None:
        for name in ("max_batch_rows", "max_queue_rows", "max_in_flight"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1; got {value}")
        if not 0.0 <= self.max_wait < math.inf:
            raise ValueError(f"max_wait must be a finite number from 0; got {self.max_wait}")


@dataclass(frozen=True, slots=True)
class Admit:
    """The request waits in the queue now."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """The request never entered. `retry_after` is in seconds, above 0, already jittered.

    `queue_full`: its rows do not fit. `hopeless`: it is predicted to break the SLO, and no late
    answer is allowed at present. `deadline`: it is predicted to miss its client's own deadline.
    """

    reason: Literal["queue_full", "hopeless", "deadline"]
    retry_after: float


class Drop(NamedTuple):
    """A request that left the queue unanswered, at dispatch, and was never computed.

    `dropped`: to keep the others within the SLO. `deadline`: it would miss its client's deadline.
    """

    request: Queued
    reason: Literal["dropped", "deadline"]
    retry_after: float


@dataclass(frozen=True, slots=True, eq=False)
class Dispatch:
    """Run these `rows` rows as one batch, on the worker that has the fewest."""

    parts: tuple[Part, ...]
    rows: int
    predicted: float | None
    """Seconds that it will hardly exceed; None while nothing is known."""
    dropped: tuple[Drop, ...] = ()
    case: Case | None = None
    """It holds suspects: a part of a batch that has failed."""
    bucket: Hashable = None

    @property
    def padding(self) -> float:
        """Share of the batch that is padding: every row is as long as the longest one."""
        longest = max(part.request.length for part in self.parts)
        used = sum(part.request.length * (part.stop - part.start) for part in self.parts)
        return 1.0 - used / (longest * self.rows)


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to run before `until` (inf: before something happens)."""

    until: float
    dropped: tuple[Drop, ...] = ()


_ADMIT = Admit()
_WAIT = Wait(math.inf)


def spread(seconds: float, uniform: float) -> float:
    """`seconds`, 20% either way by a uniform number from [0, 1): those who are told at once when to
    come back must not come together."""
    return seconds * (0.8 + 0.4 * uniform)


@dataclass(frozen=True, slots=True)
class _Bounds:
    """What follows from limits, latency model and number of workers; None: not known."""

    queue_rows: int
    batch_rows: int
    batch_seconds: float | None
    """Typical, of the largest batch that the bounded queue can give."""


class _Running(NamedTuple):
    """A batch in flight."""

    dispatch: Dispatch
    end: float
    """When it is predicted to end; -inf: unknown."""
    is_short: bool
    num_late: int
    """Of its requests, those that are expected to be late."""


class Policy:
    """The queue of one model version, and the decisions about it.

    Each call costs O(1) a request (O(workers) a batch). The bounds are computed anew only when a
    latency model, the limits or the number of workers has changed.
    """

    def __init__(
        self,
        limits: Limits,
        model: LatencyModel,
        jitter: Callable[[], float],
        new_model: Callable[[], LatencyModel] = LatencyModel,
    ) -> None:
        """`jitter` returns uniform numbers from [0, 1). There is no worker until `set_workers`.

        `model` predicts the batch time of the bucket None; `new_model` makes that of another one
        when its first request comes. The tail decides what is dropped, the typical time what is
        refused at the door: what is hopeless even by that.
        """
        self._limits = limits
        self._models: dict[Hashable, LatencyModel] = {None: model}
        self._new_model = new_model
        self._jitter = jitter
        self._workers = 0
        self.attainment = Attainment(limits.objectives)
        self._lanes: dict[Hashable, Lane] = {}
        self._queued_rows = 0
        self._queued_requests = 0
        self._isolation = Isolation()
        self._running: list[_Running] = []
        self._num_late = 0
        self._free_at: list[float] = []  # by worker, soonest first; -inf: idle
        self._next_end = -math.inf
        self._last_end = -math.inf
        self._bounds: dict[Hashable, tuple[int, _Bounds]] = {}

    # What is seen from outside

    @property
    def queued_requests(self) -> int:
        """Requests with rows that wait."""
        return self._queued_requests

    @property
    def queued_rows(self) -> int:
        """Rows that wait."""
        return self._queued_rows

    @property
    def capacity_rows(self) -> int:
        """The queue's bound at this moment, in rows."""
        return self._bounds_of(None).queue_rows

    @property
    def isolated_batches(self) -> int:
        """Parts of failed batches that were dispatched again, in all."""
        return self._isolation.num_runs

    @property
    def in_flight(self) -> int:
        """Batches dispatched and not finished."""
        return len(self._running)

    def model_of(self, bucket: Hashable) -> LatencyModel:
        """What predicts the batch time of this bucket."""
        model = self._models.get(bucket)
        if model is None:
            model = self._models[bucket] = self._new_model()
        return model

    # What happens

    def set_workers(self, workers: int) -> None:
        """So many workers are ready now. With none nothing is dispatched, and requests wait."""
        assert workers >= 0, workers
        self._workers = workers
        self._bounds.clear()
        self._note_running()

    def set_limits(self, limits: Limits) -> None:
        """The limits are others: what the model allows is known only once it is loaded."""
        if limits.objectives != self._limits.objectives:
            self.attainment = Attainment(limits.objectives)
        self._limits = limits
        self._bounds.clear()

    def arrive(self, request: Queued, now: float) -> Admit | Refuse:
        """Let `request` wait, or refuse it whole.

        A request above its class's share of the bound is let in when nobody waits, since it would
        never fit. Nothing is refused as hopeless while nobody waits and a worker is idle.
        """
        assert request.rows >= 1, request.rows
        bounds = self._bounds_of(request.bucket)
        most = math.ceil(bounds.queue_rows * DOOR[request.priority])
        excess = self._queued_rows + request.rows - most
        if excess > 0 and self._queued_rows:
            self.attainment.shed()
            return self._refuse_full(min(excess, self._queued_rows), bounds, now)
        if (refusal := self._hopeless(request, bounds, now)) is not None:
            return refusal
        lane = self._lanes.get(request.bucket)
        if lane is None:
            lane = self._lanes[request.bucket] = Lane()
        lane.put(request)
        self._queued_rows += request.rows
        self._queued_requests += 1
        return _ADMIT

    def next_batch(self, now: float) -> Dispatch | Wait:
        """Form a batch if a worker has room for it. Call again until it says Wait.

        Takes all that waits in one bucket, up to the batch's bound; of the last request perhaps
        only a part. Both decisions may carry requests that were dropped.
        """
        if not self._has_slot():
            return _WAIT
        if len(self._isolation) and (suspects := self._isolation.next()) is not None:
            return self._start(suspects.parts, now, case=suspects.case)
        if not self._queued_rows:
            return _WAIT
        lanes = self._lanes
        if self._limits.max_wait > 0.0:
            holds = {bucket: self._hold_until(bucket, lane) for bucket, lane in lanes.items()}
            if (until := min(holds.values())) > now:
                return Wait(until)
            lanes = {bucket: lane for bucket, lane in lanes.items() if holds[bucket] <= now}
        return self._form(*self._next_lane(lanes), now)

    def finished(
        self, dispatch: Dispatch, seconds: float | None, now: float, cpu: float | None = None
    ) -> None:
        """A batch ended at `now`, after `seconds` on its worker and `cpu` seconds of computing.

        `seconds` do not count the time behind another batch in the same worker. None: it failed,
        or its worker died; nothing is learned from it.
        """
        index = next(i for i, one in enumerate(self._running) if one.dispatch is dispatch)
        self._num_late -= self._running.pop(index).num_late
        self._last_end = now
        self._note_running()
        if seconds is not None:
            self.model_of(dispatch.bucket).observe(dispatch.rows, seconds, cpu)

    def failed(self, dispatch: Dispatch) -> tuple[Queued, ...]:
        """The model raised for this batch, which has `finished`.

        Returns the guilty requests; the others are computed again in smaller batches.
        """
        return self._isolation.failed(dispatch.parts, dispatch.case)

    def answered(self, request: Queued, now: float) -> None:
        """All rows of `request` are computed, and its answer goes out at `now`."""
        self.attainment.answered(now - request.arrived, expected_late=request.expected_late)

    def cancel(self, request: Queued) -> int:
        """`request` was cancelled, or a part of it failed: it leaves. Safe to say at any time.

        Returns how many of its rows were still waiting, and now never run.
        """
        request.left = True
        lane = self._lanes.get(request.bucket)
        rows = lane.remove(request) if lane is not None else 0
        if rows:
            self._left_queue(request.bucket, rows, 1)
        return rows

    # The door

    def _hopeless(self, request: Queued, bounds: _Bounds, now: float) -> Refuse | None:
        """The refusal of a request that is predicted to be too late."""
        if request.deadline <= now:
            return Refuse("deadline", self._retry_after(0.0, now))
        if bounds.batch_seconds is None or not self._workers:
            return None
        is_idle = not self._queued_rows and len(self._running) < self._workers
        if is_idle and (request.deadline == math.inf or self._is_rested(now)):
            return None
        finish = now + self._predicted_wait(request, bounds, now)
        if finish > request.deadline:
            return Refuse("deadline", self._retry_after(finish - request.deadline, now))
        return None if is_idle else self._breaks_slo(finish - request.arrived, now)

    def _breaks_slo(self, seconds: float, now: float) -> Refuse | None:
        """The refusal of a request that would be answered after `seconds`."""
        for index, threshold in enumerate(self.attainment.thresholds):
            if seconds > threshold and not self.attainment.allows(index, self._num_late + 1):
                self.attainment.shed()
                return Refuse("hopeless", self._retry_after(seconds - threshold, now))
        return None

    def _is_rested(self, now: float) -> bool:
        return not self._running and now - self._last_end > TRY_AGAIN

    def _predicted_wait(self, request: Queued, bounds: _Bounds, now: float) -> float:
        """Seconds until the answer of a request that comes now, by the typical batch time.

        The batches before its own go to the workers in the order in which those become free, over
        and over; other buckets get one batch each in between. Of less important classes no more
        counts than their weight gives them: the others would be dropped for its sake.
        """
        model, most = self.model_of(request.bucket), bounds.batch_rows
        lane = self._lanes.get(request.bucket)
        rows = request.rows + (lane.rows_before(request.priority, request.rows) if lane else 0)
        num_ahead = (rows - 1) // most
        rounds, worker = divmod(num_ahead, self._workers)
        own = most if num_ahead else rows
        wait = self._waits(now)[worker] + _typical(model, own)
        if rounds:
            wait += rounds * _typical(model, most)
        if len(self._lanes) > 1:
            wait += self._other_lanes(request.bucket) / self._workers
        return wait

    def _other_lanes(self, bucket: Hashable) -> float:
        """Seconds of one batch of each other bucket that waits."""
        seconds = 0.0
        for other, lane in self._lanes.items():
            if other != bucket:
                rows = min(lane.rows, self._bounds_of(other).batch_rows)
                seconds += self.model_of(other).typical_of(rows) or 0.0
        return seconds

    def _waits(self, now: float) -> list[float]:
        """Seconds until each worker is free, soonest first.

        A batch that is overdue is expected to take as long again as it is late: what has stalled
        for a second rarely ends in the next millisecond.
        """
        return sorted(0.0 if end == -math.inf else abs(end - now) for end in self._free_at)

    def _refuse_full(self, excess: int, bounds: _Bounds, now: float) -> Refuse:
        """`excess`: rows that must leave the queue first."""
        seconds, workers = bounds.batch_seconds, self._workers
        if seconds is None or not workers:
            return Refuse("queue_full", self._retry_after(UNKNOWN_RETRY, now))
        rows = min(bounds.queue_rows, bounds.batch_rows)
        return Refuse("queue_full", self._retry_after(excess * seconds / (rows * workers), now))

    def _retry_after(self, seconds: float, now: float) -> float:
        """At least until the next batch ends."""
        seconds = max(seconds, self._next_end - now, 0.001)
        return spread(seconds, self._jitter())

    # Dispatch

    def _has_slot(self) -> bool:
        """One batch a worker; two where those in flight are all short, and the next one is, too."""
        num_running = len(self._running)
        if num_running < self._workers:
            return True
        if num_running >= self._workers * min(self._limits.max_in_flight, 2):
            return False
        if not self._queued_rows or len(self._isolation):  # suspects may be long
            return False
        return all(one.is_short for one in self._running)

    def _is_short(self, bucket: Hashable, lane: Lane) -> bool:
        """Whether the batch that this lane would give is worth a second place in a worker."""
        rows = min(lane.rows, self._bounds_of(bucket).batch_rows)
        seconds = self.model_of(bucket).tail_of(rows)
        return seconds is not None and seconds < SHORT_BATCH

    def _form(self, bucket: Hashable, lane: Lane, now: float) -> Dispatch | Wait:
        """A batch of what waits in this lane, without what must be dropped for it."""
        if len(self._running) >= self._workers and not self._is_short(bucket, lane):
            return _WAIT
        begin = max(self._free_at[0], now)
        dropped = self._drop_expired(bucket, lane, begin, now)
        dropped += self._drop_late(bucket, lane, begin, now)
        dropped += self._drop_expired(bucket, lane, begin, now)  # who has moved up meanwhile
        if not lane:  # another bucket may have something
            return Wait(now if self._queued_rows else math.inf, tuple(dropped))
        return self._start(self._take(bucket, lane), now, dropped=tuple(dropped))

    def _next_lane(self, lanes: dict[Hashable, Lane]) -> tuple[Hashable, Lane]:
        """The bucket whose oldest request is most urgent."""
        if len(lanes) == 1:
            return next(iter(lanes.items()))
        return min(lanes.items(), key=lambda item: self._urgency(item[1]))

    def _urgency(self, lane: Lane) -> float:
        """When the lane's most urgent request is due; the smaller, the sooner it goes."""
        time = next(iter(self.attainment.thresholds), 1.0)
        return min(
            min(head.arrived + time * URGENCY[head.priority], head.deadline)
            for head in lane.heads()
        )

    def _hold_until(self, bucket: Hashable, lane: Lane) -> float:
        """Until when a batch may be held for company; -inf: it is full already."""
        bounds = self._bounds_of(bucket)
        if lane.rows >= min(bounds.batch_rows, bounds.queue_rows):
            return -math.inf
        return min(head.arrived for head in lane.heads()) + self._limits.max_wait

    def _drop_expired(self, bucket: Hashable, lane: Lane, begin: float, now: float) -> list[Drop]:
        """Give up, of what may be taken now, what would miss its client's deadline."""
        dropped: list[Drop] = []
        model, most = self.model_of(bucket), self._bounds_of(bucket).batch_rows
        while lane.num_deadlines:
            seconds = 0.0
            if not self._is_rested(now):
                seconds = model.typical_of(min(lane.rows, most)) or 0.0
            expired = [
                request
                for priority in CLASSES
                for request in lane.oldest(priority, most)
                if begin + seconds > request.deadline and not request.taken
            ]
            if not expired:
                break
            dropped += [self._drop(lane, one, "deadline", seconds, now) for one in expired]
        return dropped

    def _drop_late(self, bucket: Hashable, lane: Lane, begin: float, now: float) -> list[Drop]:
        """Drop what has the least slack until no more are late than the budget allows.

        Less important classes go first, even in time, down to their share. One request is always
        left: when nothing else waits, a late answer keeps nobody from being in time.
        """
        dropped: list[Drop] = []
        model, most = self.model_of(bucket), self._bounds_of(bucket).batch_rows
        seconds = model.tail_of(min(lane.rows, most)) if lane else None
        if seconds is None:
            return dropped
        late = _Late(lane, self.attainment.thresholds, begin + seconds * self.attainment.margin)
        while len(lane) > 1 and (classes := self._beyond_budget(late)) is not None:
            victim = _victim(lane, classes)
            dropped.append(self._drop(lane, victim, "dropped", seconds, now))
            seconds = model.tail_of(min(lane.rows, most)) or 0.0
            late.dropped(victim, begin + seconds * self.attainment.margin)
        late.mark()
        if dropped:
            self.attainment.shed()
        return dropped

    def _beyond_budget(self, late: "_Late") -> "_Classes | None":
        """Those that are late by the first objective that does not allow so many; None: all do."""
        for index, classes in enumerate(late.by_objective):
            num = sum(map(len, classes))
            if num and not self.attainment.allows(index, self._num_late + num):
                return classes
        return None

    def _drop(
        self,
        lane: Lane,
        request: Queued,
        reason: Literal["dropped", "deadline"],
        seconds: float,
        now: float,
    ) -> Drop:
        request.left = True
        self._left_queue(request.bucket, lane.remove(request), 1)
        return Drop(request, reason, self._retry_after(seconds, now))

    def _take(self, bucket: Hashable, lane: Lane) -> tuple[Part, ...]:
        rows, parts = lane.take(self._bounds_of(bucket).batch_rows)
        num_whole = sum(part.stop == part.request.rows for part in parts)
        self._left_queue(bucket, rows, num_whole)
        return parts

    def _left_queue(self, bucket: Hashable, rows: int, num_requests: int) -> None:
        self._queued_rows -= rows
        self._queued_requests -= num_requests
        lane = self._lanes.get(bucket)
        if lane is not None and not lane:
            del self._lanes[bucket]

    def _start(
        self,
        parts: tuple[Part, ...],
        now: float,
        *,
        dropped: tuple[Drop, ...] = (),
        case: Case | None = None,
    ) -> Dispatch:
        rows = sum([part.stop - part.start for part in parts])
        bucket = parts[0].request.bucket
        model = self.model_of(bucket)
        typical, tail = model.typical_of(rows), model.tail_of(rows)
        predicted = None if tail is None else tail * self.attainment.margin
        dispatch = Dispatch(parts, rows, predicted, dropped, case, bucket)
        end = -math.inf if typical is None else max(self._free_at[0], now) + typical
        is_short = typical is not None and typical < SHORT_BATCH
        num_late = sum([part.request.expected_late for part in parts])
        self._num_late += num_late
        self._running.append(_Running(dispatch, end, is_short, num_late))
        self._note_running()
        return dispatch

    def _note_running(self) -> None:
        """When each worker is predicted to be free. Of two batches in a worker the later counts."""
        ends = sorted([batch.end for batch in self._running])
        idle = [-math.inf] * (self._workers - len(ends))
        self._free_at = idle + ends[max(len(ends) - self._workers, 0) :]
        self._next_end = ends[0] if ends else -math.inf

    # Bounds

    def _bounds_of(self, bucket: Hashable) -> _Bounds:
        model = self.model_of(bucket)
        known = self._bounds.get(bucket)
        if known is None or known[0] != model.version:
            known = self._bounds[bucket] = (model.version, self._fit(model))
        return known[1]

    def _fit(self, model: LatencyModel) -> _Bounds:
        """`queue_rows`: as many as drain within the loosest threshold, by the typical batch time.
        Whoever would be late all the same is dropped at dispatch, where the batch is known.

        `batch_rows`: the most that fits into the loosest threshold by itself. Where not even one
        row fits the SLO is lost anyway, and batches are full, for throughput.
        """
        limits, largest = self._limits, self._limits.max_batch_rows
        default = max(DEFAULT_QUEUE_ROWS, DEFAULT_QUEUE_BATCHES * largest)
        queue_rows, batch_rows = limits.max_queue_rows or default, largest
        if model.typical_of(1) is None:
            return _Bounds(queue_rows, batch_rows, None)
        thresholds = self.attainment.thresholds
        if thresholds:
            time = max(thresholds)
            sizes = range(1, largest + 1)
            batch_rows = bisect_right(sizes, time, key=partial(_typical, model)) or largest
            if limits.max_queue_rows is None:
                queue_rows = max(self._most_rows(model, batch_rows, time), 1)
        return _Bounds(queue_rows, batch_rows, _typical(model, min(queue_rows, batch_rows)))

    def _most_rows(self, model: LatencyModel, batch_rows: int, time: float) -> int:
        """The most waiting rows that idle workers compute within `time` seconds; 0: none.

        m = batch_rows, w = workers, l(n) = seconds of a batch of n rows

        k = floor(time / l(m))                          rounds of full batches
        k w m + max {n: k l(m) + l(n) <= time}          and what one more batch can take
        """
        seconds = _typical(model, batch_rows)
        if seconds * MOST_QUEUE_ROWS <= time:
            return MOST_QUEUE_ROWS
        rounds = int(time // seconds)
        left = time - rounds * seconds
        rest = bisect_right(range(1, batch_rows + 1), left, key=partial(_typical, model))
        return min(rounds * max(self._workers, 1) * batch_rows + rest, MOST_QUEUE_ROWS)


_Classes = tuple[deque[Queued], ...]
"""Requests by class, the oldest first."""


class _Late:
    """The requests of a lane that a batch would make late, by objective.

    Found once. As the lane shrinks the batch ends sooner, and they only become fewer: O(1) each.
    """

    __slots__ = ("_thresholds", "by_objective")

    def __init__(self, lane: Lane, thresholds: tuple[float, ...], finish: float) -> None:
        self._thresholds = thresholds
        self.by_objective: list[_Classes] = [
            tuple(deque(_late_ones(lane, priority, finish - threshold)) for priority in CLASSES)
            for threshold in thresholds
        ]

    def dropped(self, request: Queued, finish: float) -> None:
        """`request`, the oldest of its class, has left, and the batch would end at `finish`."""
        for threshold, classes in zip(self._thresholds, self.by_objective, strict=True):
            mates = classes[request.priority]
            if mates and mates[0] is request:
                mates.popleft()
            for late in classes:
                while late and late[-1].arrived >= finish - threshold:
                    late.pop()

    def mark(self) -> None:
        """They are expected to be late."""
        for classes in self.by_objective:
            for late in classes:
                for request in late:
                    request.expected_late = True


def _victim(lane: Lane, late: _Classes) -> Queued:
    """Who is dropped so that others are in time: the oldest of the least important class that has
    more than its share of the rows, though not for the sake of a class below it."""
    with_late = [priority for priority in CLASSES if late[priority]]
    for priority in reversed(CLASSES):
        if priority > with_late[0] and lane.exceeds_share(priority):
            return next(lane.oldest(priority, 1))
    return late[with_late[-1]][0]


def _late_ones(lane: Lane, priority: Priority, latest: float) -> Iterator[Queued]:
    """The requests of a class that came before `latest`, without one that is half computed."""
    for request in lane.oldest(priority, len(lane)):
        if request.arrived >= latest:
            break
        if request.taken:
            request.expected_late = True
        else:
            yield request


def _typical(model: LatencyModel, rows: int) -> float:
    seconds = model.typical_of(rows)
    assert seconds is not None
    return seconds
