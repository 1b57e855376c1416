"""The batching policy: who is admitted, and what runs next.

A pure state machine: it is handed the time and returns decisions; the batcher acts on them, the
planner and the tests simulate with the very same object. In force:

- *Late binding.* A batch is formed only when a worker is free for it. An idle worker and a
  waiting request: run now (unless `max_wait` says otherwise).
- *A queue bounded in rows*, from the latency model and the SLO (`worst_response`). What cannot
  be answered in time is refused at the door, with the time after which to come back.
- *Cancelled requests leave* at once and are never computed.

Batches are formed first in, first out, from all that waits.
"""

import math
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

from tailproof.core.latency_model import LatencyModel

SHORT_BATCH = 0.005
"""Seconds. Below this the way to the worker and back is worth hiding behind another batch."""

MARGIN = 0.97
"""Share of the SLO's threshold that waiting and computing may fill; the rest is for reading,
validating and sending. It can be this large because the bound counts two batches at their
quantile, and both being so slow is rarer than one."""

DEFAULT_QUEUE_ROWS = 1024
DEFAULT_QUEUE_BATCHES = 4
"""The queue's bound while there is nothing to compute it from: the larger of the two."""

MOST_QUEUE_ROWS = 1 << 16
"""The computed bound ends here, however quick the model: the queue is memory too."""

UNKNOWN_RETRY = 1.0
"""Retry-After in seconds while nothing is known of the drain rate."""


@dataclass(slots=True, eq=False)
class Queued:
    """One request as the policy sees it. `arrived` is in seconds, on the clock of `now`."""

    rows: int
    arrived: float
    payload: Any = None
    """The batcher's own; the policy never looks."""
    taken: int = 0
    """Rows already handed out in batches."""
    left: bool = False
    """Cancelled or failed: its remaining rows are never dispatched."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the policy must keep to. Raises ValueError when a limit admits nothing."""

    max_batch_rows: int = 256
    max_queue_rows: int | None = None
    """None: computed from the latency model and `threshold`."""
    max_wait: float = 0.0
    """Seconds that an idle worker may hold a batch for company."""
    threshold: float | None = None
    """Seconds of the tightest end-to-end latency SLO; None: there is none."""
    max_in_flight: int = 2
    """Batches that one worker may have at a time."""

    def __post_init__(self) -> None:
        for name in ("max_batch_rows", "max_queue_rows", "max_in_flight"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1; got {value}")
        if not 0.0 <= self.max_wait < math.inf:
            raise ValueError(f"max_wait must be a finite number from 0; got {self.max_wait}")
        if self.threshold is not None and not 0.0 < self.threshold < math.inf:
            raise ValueError(f"threshold must be positive and finite; got {self.threshold}")


@dataclass(frozen=True, slots=True)
class Admit:
    """The request waits in the queue now."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """The request never entered. `retry_after` is in seconds, above 0, already jittered."""

    reason: Literal["queue_full", "hopeless"]
    retry_after: float


class Part(NamedTuple):
    """Rows [start, stop) of one request."""

    request: Queued
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Run these `rows` rows as one batch, on the worker that has the fewest."""

    parts: tuple[Part, ...]
    rows: int
    predicted: float | None
    """Seconds, at the latency model's quantile; None while it knows nothing."""
    dropped: tuple[Queued, ...] = ()
    """Requests that left the queue unanswered to keep the others in time (none as yet)."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to run before `until` (inf: before something happens)."""

    until: float


_ADMIT = Admit()
_WAIT = Wait(math.inf)


def worst_response(
    rows: int, batch_seconds: Callable[[int], float], workers: int, limits: Limits
) -> float:
    """Seconds until the answer, for one that became the last of `rows` queued rows just after a
    batch had been formed. Rises with `rows`.

        q = rows, w = workers, m = max_batch_rows, l(n) = seconds of a batch of n rows
        b = min(q, m)             rows of a batch while q rows wait: all of them, or full
        k = floor((q - 1) / m)    full batches that are formed before the one it is in
        p = min(l(b), SHORT_BATCH), or 0 when max_in_flight is 1
                                  the longest batch that may stand behind another in a worker

        R(q) = max(l(b) / w, p (1 + 1/w)) + k l(m) / w + l(b)

    First term: the batches in flight, until a worker is free for the next one. With w busy
    workers out of step one ends every l(b) / w; where batches are short, each worker may have a
    second one to do first. Second term: the full batches ahead, w at a time. Third: its own
    batch, which late binding may have filled up to b.

    For q <= m and batches that are not short this is (1 + 1/w) l(q): two batches for one worker
    (the one just missed, and its own), as in Nexus (SOSP '19), and less for a shared queue in
    front of w.
    """
    longest = batch_seconds(min(rows, limits.max_batch_rows))
    short = min(longest, SHORT_BATCH) if limits.max_in_flight > 1 else 0.0
    in_flight = max(longest / workers, short * (1.0 + 1.0 / workers))
    num_ahead = (rows - 1) // limits.max_batch_rows
    ahead = num_ahead * batch_seconds(limits.max_batch_rows) / workers if num_ahead else 0.0
    return in_flight + ahead + longest


@dataclass(frozen=True, slots=True)
class _Bounds:
    """What follows from limits, latency model and number of workers; None: not known."""

    queue_rows: int
    batch_rows: int
    batch_seconds: float | None
    """Typical, of the largest batch that the bounded queue can give."""
    full_seconds: float | None
    """Of `batch_rows` rows (only a request above the queue's bound can give them)."""


def _bounds(limits: Limits, tail: LatencyModel, typical: LatencyModel, workers: int) -> _Bounds:
    """`queue_rows`: as many as `worst_response` lets in within MARGIN of the threshold, but one.

    Judged by the tail of the batch time; though never below half of what the typical batch time
    allows, for two tails in a row are rarer than each, and a few stalls of the machine must not
    close the door to requests that would nearly all be in time.

    `batch_rows`: the most that fits into MARGIN of the threshold by itself. Late binding takes
    all that waits, and the queue's bound keeps that far below; it matters for the parts of a
    request above the bound. Where not even one row fits the SLO is lost anyway, and batches
    are full, for throughput.
    """
    largest = limits.max_batch_rows
    default = max(DEFAULT_QUEUE_ROWS, DEFAULT_QUEUE_BATCHES * largest)
    queue_rows, batch_rows = limits.max_queue_rows or default, largest
    if tail.quantile_of(1) is None:
        return _Bounds(queue_rows, batch_rows, None, None)
    if limits.threshold is not None:
        time = limits.threshold * MARGIN
        fits = partial(_seconds_of, tail)
        batch_rows = bisect_right(range(1, largest + 1), time, key=fits) or largest
        if limits.max_queue_rows is None:
            careful, hopeful = (_most_rows(limits, model, workers) for model in (tail, typical))
            queue_rows = max(careful, hopeful // 2, 1)
    usual = _seconds_of(typical, min(queue_rows, batch_rows))
    return _Bounds(queue_rows, batch_rows, usual, _seconds_of(typical, batch_rows))


def _most_rows(limits: Limits, model: LatencyModel, workers: int) -> int:
    """The most queued rows whose `worst_response` is within MARGIN of the threshold; 0: none."""
    assert limits.threshold is not None

    def response(rows: int) -> float:
        return worst_response(rows, partial(_seconds_of, model), max(workers, 1), limits)

    time = limits.threshold * MARGIN
    return bisect_right(range(1, MOST_QUEUE_ROWS + 1), time, key=response)


def _seconds_of(model: LatencyModel, rows: int) -> float:
    seconds = model.quantile_of(rows)
    assert seconds is not None
    return seconds


class _Running(NamedTuple):
    """A batch in flight."""

    rows: int
    end: float
    """When it is predicted to end; -inf: unknown."""
    is_short: bool


class Policy:
    """The queue of one model version, and the decisions about it.

    Each call costs O(1) a request (O(workers) a batch). The bounds are computed anew only when
    the latency model or the number of workers has changed.
    """

    def __init__(
        self,
        limits: Limits,
        model: LatencyModel,
        jitter: Callable[[], float],
        typical: LatencyModel | None = None,
    ) -> None:
        """`jitter` returns uniform numbers from [0, 1). There is no worker until `set_workers`.

        `model` predicts the tail of the batch time and bounds the queue. `typical` predicts its
        middle: what is hopeless even by that is refused. Left out, `model` stands for both.
        """
        self._limits = limits
        self._model = model
        self._typical = typical or model
        self._jitter = jitter
        self._workers = 0
        self._queue: OrderedDict[Queued, None] = OrderedDict()  # leaves in O(1) from anywhere
        self._queued_rows = 0
        self._running: list[_Running] = []
        self._free_at: list[float] = []  # by worker, soonest first; -inf: idle
        self._fit()

    @property
    def queued_requests(self) -> int:
        """Requests with rows that wait."""
        return len(self._queue)

    @property
    def queued_rows(self) -> int:
        """Rows that wait."""
        return self._queued_rows

    @property
    def capacity_rows(self) -> int:
        """The queue's bound at this moment, in rows."""
        self._keep_fit()
        return self._bounds.queue_rows

    @property
    def in_flight(self) -> int:
        """Batches dispatched and not finished."""
        return len(self._running)

    def set_workers(self, workers: int) -> None:
        """So many workers are ready now. With none nothing is dispatched, and requests wait."""
        assert workers >= 0, workers
        self._workers = workers
        self._fit()
        self._note_running()

    def set_limits(self, limits: Limits) -> None:
        """The limits are others: what the model allows is known only once it is loaded."""
        self._limits = limits
        self._fit()

    def arrive(self, request: Queued, now: float) -> Admit | Refuse:
        """Let `request` wait, or refuse it whole.

        `queue_full`: its rows do not fit. A request above the bound is let in when nobody waits,
        since it would never fit. `hopeless`: it fits, but is predicted to miss the threshold,
        because what is in flight takes long. Never said while nobody waits and a worker is idle.
        """
        assert request.rows >= 1, request.rows
        self._keep_fit()
        rows = self._queued_rows + request.rows
        excess = rows - self._bounds.queue_rows
        if excess > 0:
            if self._queue:
                return self._refuse_full(min(excess, self._queued_rows), now)
        elif (late := self._lateness(rows, now)) > 0.0:
            return Refuse("hopeless", self._retry_after(late, now))
        self._queue[request] = None
        self._queued_rows = rows
        return _ADMIT

    def next_batch(self, now: float) -> Dispatch | Wait:
        """Form a batch if a worker has room for it. Call again until it says Wait.

        Takes the oldest first, all that waits up to the batch's bound; of the last request
        perhaps only a part.
        """
        self._keep_fit()
        if not self._queue or not self._has_slot():
            return _WAIT
        if self._limits.max_wait > 0.0 and (until := self._hold_until()) > now:
            return Wait(until)
        # Dropping at dispatch what would make everybody late belongs here.
        rows, parts = self._take(self._bounds.batch_rows)
        self._start(rows, self._typical.quantile_of(rows), now)
        return Dispatch(parts, rows, self._model.quantile_of(rows))

    def finished(self, rows: int, seconds: float | None, now: float) -> None:
        """A batch of `rows` rows ended at `now`, after `seconds` on its worker.

        `seconds` do not count the time behind another batch in the same worker. None: it failed,
        or its worker died; nothing is learned from it.
        """
        index = [batch.rows for batch in self._running].index(rows)
        del self._running[index]
        self._note_running()
        if seconds is not None:
            self.observe(rows, seconds)

    def observe(self, rows: int, seconds: float) -> None:
        """Learn from a batch that was not dispatched here: the warm-up's."""
        self._model.observe(rows, seconds)
        if self._typical is not self._model:
            self._typical.observe(rows, seconds)

    def cancel(self, request: Queued) -> int:
        """`request` was cancelled, or a part of it failed: it leaves. Safe to say at any time.

        Returns how many of its rows were still waiting, and now never run.
        """
        request.left = True
        if request not in self._queue:
            return 0
        del self._queue[request]
        rows = request.rows - request.taken
        self._queued_rows -= rows
        return rows

    def _keep_fit(self) -> None:
        if self._model.version != self._fitted:
            self._fit()

    def _fit(self) -> None:
        self._fitted = self._model.version
        self._bounds = _bounds(self._limits, self._model, self._typical, self._workers)

    def _has_slot(self) -> bool:
        """One batch a worker; two where those in flight and the next one are all short."""
        num_running = len(self._running)
        if num_running < self._workers:
            return True
        if num_running >= self._workers * min(self._limits.max_in_flight, 2):
            return False
        seconds = self._model.quantile_of(min(self._queued_rows, self._bounds.batch_rows))
        is_short = seconds is not None and seconds < SHORT_BATCH
        return is_short and all(batch.is_short for batch in self._running)

    def _hold_until(self) -> float:
        """Until when a batch may be held for company; -inf: it is full already."""
        if self._queued_rows >= min(self._bounds.batch_rows, self._bounds.queue_rows):
            return -math.inf
        return next(iter(self._queue)).arrived + self._limits.max_wait

    def _take(self, most: int) -> tuple[int, tuple[Part, ...]]:
        """Move up to `most` rows out of the queue, oldest first."""
        queue, parts, rows = self._queue, [], 0
        while queue and rows < most:
            request = next(iter(queue))
            start = request.taken
            request.taken = stop = min(request.rows, start + most - rows)
            rows += stop - start
            parts.append(Part(request, start, stop))
            if stop == request.rows:
                del queue[request]
        self._queued_rows -= rows
        return rows, tuple(parts)

    def _start(self, rows: int, predicted: float | None, now: float) -> None:
        if predicted is None:
            self._running.append(_Running(rows, -math.inf, False))
        else:
            start = max(self._free_at[0], now)
            self._running.append(_Running(rows, start + predicted, predicted < SHORT_BATCH))
        self._note_running()

    def _note_running(self) -> None:
        """When each worker is predicted to be free. Of two batches in a worker the later counts."""
        ends = sorted([batch.end for batch in self._running])
        idle = [-math.inf] * (self._workers - len(ends))
        self._free_at = idle + ends[max(len(ends) - self._workers, 0) :]
        self._next_end = ends[0] if ends else -math.inf

    def _lateness(self, rows: int, now: float) -> float:
        """Seconds by which one who makes `rows` rows wait is predicted to miss the threshold.

        At most 0: in time, or unknown. The batches before its own go to the workers in the order
        in which those become free, over and over.
        """
        threshold, bounds = self._limits.threshold, self._bounds
        if threshold is None or bounds.full_seconds is None or bounds.batch_seconds is None:
            return 0.0
        if not self._workers or (not self._queue and len(self._running) < self._workers):
            return 0.0
        num_ahead = (rows - 1) // bounds.batch_rows
        rounds, worker = divmod(num_ahead, self._workers)
        wait = self._waits(now)[worker] + rounds * bounds.full_seconds
        if wait + bounds.batch_seconds <= threshold:
            return 0.0
        own = _seconds_of(self._typical, min(rows, bounds.batch_rows))
        return wait + own - threshold

    def _waits(self, now: float) -> list[float]:
        """Seconds until each worker is free, soonest first.

        A batch that is overdue is expected to take as long again as it is late: what has stalled
        for a second rarely ends in the next millisecond.
        """
        return sorted(0.0 if end == -math.inf else abs(end - now) for end in self._free_at)

    def _refuse_full(self, excess: int, now: float) -> Refuse:
        """`excess`: rows that must leave the queue first."""
        seconds, workers = self._bounds.batch_seconds, self._workers
        if seconds is None or not workers:
            return Refuse("queue_full", self._retry_after(UNKNOWN_RETRY, now))
        rows = min(self._bounds.queue_rows, self._bounds.batch_rows)
        return Refuse("queue_full", self._retry_after(excess * seconds / (rows * workers), now))

    def _retry_after(self, seconds: float, now: float) -> float:
        """At least until the next batch ends; spread, so that the refused do not return at once."""
        seconds = max(seconds, self._next_end - now, 0.001)
        return seconds * (0.8 + 0.4 * self._jitter())
