"""A batcher and its workers in simulated time, around the real `Policy`: a heap of events, a loop,
and a handler for each kind of event. It does what `serving.batcher` does, in the same order."""

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from tailproof.core.policy import Admit, Dispatch, Drop, Limits, Policy, Queued, Refuse


@dataclass(slots=True, eq=False)
class Worker:
    """Runs its batches one after the other."""

    batches: list["Batch"] = field(default_factory=list)
    free_at: float = -math.inf
    alive: bool = True


@dataclass(slots=True, eq=False)
class Batch:
    dispatch: Dispatch
    worker: Worker
    seconds: float


class Observer:
    """Told about everything that happens, after the policy has been told. Ignores it all."""

    def arrived(self, request: Queued, decision: Admit | Refuse, now: float) -> None: ...
    def dropped(self, drops: tuple[Drop, ...], now: float) -> None: ...
    def dispatched(self, dispatch: Dispatch, now: float) -> None: ...
    def finished(self, batch: Batch, now: float) -> None: ...
    def answered(self, request: Queued, now: float) -> None: ...
    def raised(self, batch: Batch, guilty: tuple[Queued, ...], now: float) -> None: ...
    def lost(self, batch: Batch, now: float) -> None: ...
    def cancelled(self, request: Queued, now: float) -> None: ...
    def workers_changed(self, workers: int) -> None: ...
    def settled(self, now: float) -> None: ...


class Simulation:
    """`service(rows)` is the seconds that a batch takes; `observer` sees what happens.

    A batch with the row `poison[request]` of a request raises. A request's payload is the number of
    its rows that are missing yet.
    """

    def __init__(
        self,
        policy: Policy,
        service: Callable[[int], float],
        workers: int = 1,
        observer: Observer | None = None,
    ) -> None:
        self.policy, self.service, self.observer = policy, service, observer or Observer()
        self.now = 0.0
        self.slowness = 1.0
        """Batches that start now take so many times as long."""
        self.poison: dict[Queued, int] = {}
        self.workers = [Worker() for _ in range(workers)]
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = count()
        self._wakes: set[float] = set()
        policy.set_workers(workers)
        self.observer.workers_changed(workers)

    def at(self, time: float, handler: Callable[..., None], *args: Any) -> None:
        heapq.heappush(self._events, (time, next(self._order), handler, args))

    def step(self) -> bool:
        """Let the next event happen; False when there is none."""
        if not self._events:
            return False
        self.now, _, handler, args = heapq.heappop(self._events)
        handler(*args)
        self._turn()
        self.observer.settled(self.now)
        return True

    def run(self) -> None:
        while self.step():
            pass

    def run_until(self, time: float) -> None:
        """Let everything happen that is due by `time`, and stop the clock there."""
        while self._events and self._events[0][0] <= time:
            self.step()
        self.now = time

    # What may happen

    def arrive(self, *requests: Queued) -> None:
        """They come at one moment; each leaves at its client's deadline."""
        for request in requests:
            request.payload = request.rows
            decision = self.policy.arrive(request, self.now)
            self.observer.arrived(request, decision, self.now)
            if request.deadline != math.inf and isinstance(decision, Admit):
                self.at(max(request.deadline, self.now), self.cancel, request)

    def cancel(self, request: Queued) -> None:
        self.policy.cancel(request)
        self.observer.cancelled(request, self.now)

    def birth(self) -> None:
        self.workers.append(Worker())
        self._workers_changed()

    def death(self, which: int) -> None:
        """Its batches are lost, and every request that had a part in one of them fails."""
        if not self.workers:
            return
        worker = self.workers.pop(which % len(self.workers))
        worker.alive = False
        self._workers_changed()
        for batch in worker.batches:
            self.policy.finished(batch.dispatch, None, self.now)
            self.observer.lost(batch, self.now)
            for part in batch.dispatch.parts:
                self.policy.cancel(part.request)

    def slow_down(self, slowness: float) -> None:
        self.slowness = slowness

    def set_limits(self, limits: Limits) -> None:
        self.policy.set_limits(limits)

    # What follows

    def _workers_changed(self) -> None:
        self.policy.set_workers(len(self.workers))
        self.observer.workers_changed(len(self.workers))

    def _turn(self) -> None:
        while True:
            decision = self.policy.next_batch(self.now)
            if decision.dropped:
                self.observer.dropped(decision.dropped, self.now)
            if isinstance(decision, Dispatch):
                self._start(decision)
            elif decision.until > self.now:
                break
        if decision.until != math.inf and decision.until not in self._wakes:
            self._wakes.add(decision.until)
            self.at(decision.until, self._wakes.discard, decision.until)

    def _start(self, dispatch: Dispatch) -> None:
        self.observer.dispatched(dispatch, self.now)
        worker = min(self.workers, key=lambda worker: len(worker.batches))
        batch = Batch(dispatch, worker, self.service(dispatch.rows) * self.slowness)
        worker.batches.append(batch)
        worker.free_at = max(worker.free_at, self.now) + batch.seconds
        self.at(worker.free_at, self._end, batch)

    def _end(self, batch: Batch) -> None:
        if not batch.worker.alive:
            return
        batch.worker.batches.remove(batch)
        if self.poison and any(map(self._is_poisoned, batch.dispatch.parts)):
            self._raise(batch)
            return
        self.policy.finished(batch.dispatch, batch.seconds, self.now)
        self.observer.finished(batch, self.now)
        self._turn()
        for part in batch.dispatch.parts:
            request = part.request
            request.payload -= part.stop - part.start
            if request.payload == 0 and not request.left:
                self.policy.answered(request, self.now)
                self.observer.answered(request, self.now)

    def _is_poisoned(self, part: tuple[Queued, int, int]) -> bool:
        request, start, stop = part
        return start <= self.poison.get(request, -1) < stop

    def _raise(self, batch: Batch) -> None:
        self.policy.finished(batch.dispatch, None, self.now)
        guilty = self.policy.failed(batch.dispatch)
        self.observer.raised(batch, guilty, self.now)
        for request in guilty:
            self.policy.cancel(request)
