"""Carries out what `core.policy` decides: requests in, batches to the workers, answers back."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from tailproof.core.errors import (
    DeadlineExceeded,
    ModelFailed,
    RequestError,
    Shed,
    Unavailable,
)
from tailproof.core.policy import Dispatch, Drop, Part, Policy, Priority, Queued, Refuse
from tailproof.core.timeline import Timeline
from tailproof.models.runtimes.base import Columns
from tailproof.workers import frames
from tailproof.workers.pool import Pool, Worker

Row = dict[str, Any]


class Ticket(Protocol):
    """A request that waits for its rows: implemented by the route that submitted it."""

    rows: list[Row]
    arrived: float
    deadline: float
    """When its caller stops waiting (inf: never)."""
    priority: Priority
    timeline: Timeline

    @property
    def request_id(self) -> str:
        """As in its answer and its log record."""

    def completed(self, answer: "Answer") -> None:
        """All rows are computed."""

    def failed(self, error: RequestError) -> None:
        """They will never be."""


@dataclass(slots=True)
class Answer:
    """What a request's rows gave: per output one value a row, in the order of the rows."""

    outputs: dict[str, list[Any]]
    batch_rows: int
    """Rows of the (last) batch that it was computed in."""
    worker: int
    """Number of the worker that computed that batch."""
    cold: bool
    """It rode in the first batch of a worker process."""


class Withdrawn(NamedTuple):
    """How far a request had come when it was withdrawn."""

    stage: str
    """`queue` or `execute`; `door`: it was not here."""
    computed_rows: int
    """Rows of it that had been handed to a worker."""


@dataclass(slots=True, eq=False)
class Waiting:
    """A submitted request with the values that have come back so far."""

    ticket: Ticket
    queued: Queued
    missing: int
    outputs: dict[str, list[Any]] = field(default_factory=dict)

    def take(self, start: int, outputs: dict[str, list[Any]]) -> None:
        """Keep the values of the rows from `start`; batches may end in any order."""
        num_rows = self.queued.rows
        for name, values in outputs.items():
            if len(values) == num_rows:
                self.outputs[name] = values
            else:
                whole = self.outputs.setdefault(name, [None] * num_rows)
                whole[start : start + len(values)] = values


@dataclass(slots=True)
class Flight:
    """A batch on its way."""

    decision: Dispatch
    dispatched: float
    worker: Worker


class Batcher:
    """The queue of one model version, its policy, and the batches in flight."""

    def __init__(
        self,
        policy: Policy,
        pool: Pool,
        columns: Callable[[list[Row]], Columns],
        observe: "Observer",
        clock: Callable[[], float],
    ) -> None:
        self.policy = policy
        self._pool = pool
        self._columns = columns
        self._observe = observe
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._flights: dict[int, Flight] = {}
        self._waiting: dict[Ticket, Waiting] = {}
        self._next_id = 0
        self._turn_scheduled = False
        self._timer: asyncio.TimerHandle | None = None

    def submit(self, ticket: Ticket) -> None:
        """Queue a request; `ticket` is told later.

        Raises Shed when the policy refuses it, DeadlineExceeded when its caller's time is too
        short.
        """
        now = self._clock()
        queued = Queued(len(ticket.rows), ticket.arrived, ticket.deadline, ticket.priority)
        decision = self.policy.arrive(queued, now)
        if isinstance(decision, Refuse):
            raise self._refusal(decision)
        waiting = queued.payload = Waiting(ticket, queued, len(ticket.rows))
        ticket.timeline.admitted = now - ticket.arrived
        self._waiting[ticket] = waiting
        self._schedule_turn()

    def withdraw(self, ticket: Ticket) -> Withdrawn:
        """The request is over (client left, deadline passed): its waiting rows never run."""
        waiting = self._waiting.pop(ticket, None)
        if waiting is None:
            return Withdrawn("door", 0)
        computed = waiting.queued.taken
        self.policy.cancel(waiting.queued)
        return Withdrawn("execute" if computed else "queue", computed)

    def stalled(self, seconds: float) -> set[Worker]:
        """The workers that have had a batch for longer than `seconds`."""
        now = self._clock()
        flights = self._flights.values()
        return {flight.worker for flight in flights if now - flight.dispatched > seconds}

    def workers_changed(self) -> None:
        """The number of ready workers is another one: with none left, nothing can wait."""
        self.policy.set_workers(self._pool.num_ready)
        if self._pool.num_ready == 0:
            for ticket in list(self._waiting):
                self._fail(ticket, Unavailable("no worker is ready", reason="worker_lost"))
        else:
            self._schedule_turn()

    def lost(self, batch_ids: set[int]) -> None:
        """These batches died with their worker: their requests are told at once."""
        now = self._clock()
        for flight in [self._flights.pop(batch_id) for batch_id in batch_ids]:
            self.policy.finished(flight.decision, None, now)
            error = Unavailable("the worker was lost while it computed", reason="worker_lost")
            self._fail_all(flight.decision, error)

    def done(self, worker: Worker, frame: frames.Result | frames.Failed, body: memoryview) -> None:
        """A batch came back: start the next one, then hand out the answers."""
        flight = self._flights.pop(frame.batch_id)
        now = self._clock()
        for part in flight.decision.parts:
            _stamp(part, flight, worker.last_finished, frame)
        if isinstance(frame, frames.Failed):
            self.policy.finished(flight.decision, None, now)
            self._find_guilty(worker, frame, flight.decision)
            self._turn()
            return
        occupied = now - max(flight.dispatched, worker.last_finished)
        self.policy.finished(flight.decision, occupied, now, frame.cpu_seconds)
        self._turn()
        cold, worker.is_cold = worker.is_cold, False
        self._observe.batch(worker, frame, flight.decision)
        try:
            self._hand_out(flight, frame, body, now, cold=cold)
        except Exception as error:  # noqa: BLE001  nobody of this batch may be left waiting
            self._observe.bug(error)
            self._fail_all(flight.decision, ModelFailed("the answer cannot be written"))

    def _schedule_turn(self) -> None:
        """Decide at the end of this turn of the loop: what arrived together goes together."""
        if not self._turn_scheduled:
            self._turn_scheduled = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._turn_scheduled = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._pool.num_ready:  # a worker may have died since the policy was told
            now = self._clock()
            decision = self.policy.next_batch(now)
            if isinstance(decision, Dispatch):
                self._dispatch(decision, now)
            self._drop(decision.dropped)
            if isinstance(decision, Dispatch) or decision.until <= now:
                continue
            if decision.until != float("inf"):
                self._timer = self._loop.call_later(decision.until - now, self._turn)
            return

    def _dispatch(self, decision: Dispatch, now: float) -> None:
        rows = [row for part in decision.parts for row in _rows(part)]
        buffers, body = frames.pack(self._columns(rows))
        self._next_id += 1
        batch = frames.Batch(self._next_id, decision.rows, buffers)
        worker = self._pool.submit(batch, body)
        self._flights[self._next_id] = Flight(decision, now, worker)

    def _hand_out(
        self, flight: Flight, frame: frames.Result, body: memoryview, now: float, *, cold: bool
    ) -> None:
        decision, worker = flight.decision, flight.worker.number
        outputs = {name: a.tolist() for name, a in frames.unpack(frame.outputs, body).items()}
        for part, offset in _offsets(decision):
            waiting: Waiting = part.request.payload
            count = part.stop - part.start
            waiting.take(part.start, {k: v[offset : offset + count] for k, v in outputs.items()})
            waiting.missing -= count
            if waiting.missing == 0 and waiting.ticket in self._waiting:
                self.policy.answered(waiting.queued, now)
                waiting.ticket.completed(Answer(waiting.outputs, decision.rows, worker, cold))
                del self._waiting[waiting.ticket]

    def _find_guilty(self, worker: Worker, frame: frames.Failed, decision: Dispatch) -> None:
        """The model raised: fail who made it raise; the others are computed again."""
        guilty = [one.payload.ticket for one in self.policy.failed(decision)]
        self._observe.batch_failed(worker, frame, guilty)
        for ticket in guilty:
            self._fail(ticket, ModelFailed("the model raised", reason=frame.error))

    def _refusal(self, decision: Refuse) -> RequestError:
        if decision.reason == "deadline":
            return DeadlineExceeded(
                "it could not be answered in the time that its caller gave it",
                stage="door",
                retry_after=decision.retry_after,
            )
        return self._shed(decision.reason, decision.retry_after)

    def _drop(self, dropped: tuple[Drop, ...]) -> None:
        for request, reason, retry_after in dropped:
            if reason == "deadline":
                error: RequestError = DeadlineExceeded(
                    "it could no longer be answered in the time that its caller gave it",
                    stage="queue",
                    retry_after=retry_after,
                )
            else:
                error = self._shed(reason, retry_after)
            self._fail(request.payload.ticket, error)

    def _shed(self, reason: str, retry_after: float) -> Shed:
        error = Shed(_SENTENCES[reason], reason=reason, retry_after=retry_after)
        error.budget_left = self.policy.attainment.budget_left
        error.margin = self.policy.attainment.margin
        return error

    def _fail_all(self, decision: Dispatch, error: RequestError) -> None:
        for part in decision.parts:
            self._fail(part.request.payload.ticket, error)

    def _fail(self, ticket: Ticket, error: RequestError) -> None:
        waiting = self._waiting.pop(ticket, None)
        if waiting is not None:
            self.policy.cancel(waiting.queued)
            ticket.failed(error)


class Observer(Protocol):
    """Told about batches, for metrics and the log."""

    def batch(self, worker: Worker, frame: frames.Result, decision: Dispatch) -> None:
        """A batch was computed."""

    def batch_failed(self, worker: Worker, frame: frames.Failed, guilty: list[Ticket]) -> None:
        """The model raised; `guilty` is empty while it is not known for whom."""

    def bug(self, error: Exception) -> None:
        """The answers of a batch could not be written."""


_SENTENCES = {
    "queue_full": "the queue is full",
    "hopeless": "it could not be answered in time",
    "dropped": "it could no longer be answered in time",
}


def _rows(part: Part) -> list[Row]:
    rows: list[Row] = part.request.payload.ticket.rows
    return rows if part.stop - part.start == len(rows) else rows[part.start : part.stop]


def _offsets(decision: Dispatch) -> Iterator[tuple[Part, int]]:
    offset = 0
    for part in decision.parts:
        yield part, offset
        offset += part.stop - part.start


def _stamp(
    part: Part, flight: Flight, worker_free: float, frame: frames.Result | frames.Failed
) -> None:
    """Write the batch's stamps into a request; of a split request the last batch's stay."""
    ticket: Ticket = part.request.payload.ticket
    arrived, timeline = ticket.arrived, ticket.timeline
    timeline.worker_free = worker_free - arrived
    timeline.dispatched = flight.dispatched - arrived
    timeline.started = frame.started - arrived
    timeline.finished = frame.finished - arrived
