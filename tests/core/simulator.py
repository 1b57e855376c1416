"""A batcher and its workers in simulated time, around the real `Policy`: a heap of events, a loop,
and a handler for each kind of event."""

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from tailproof.core.policy import Admit, Dispatch, Policy, Queued, Refuse


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
    def dispatched(self, dispatch: Dispatch, now: float) -> None: ...
    def finished(self, batch: Batch, succeeded: bool, now: float) -> None: ...
    def cancelled(self, request: Queued, rows: int, now: float) -> None: ...
    def settled(self, now: float) -> None: ...


class Simulation:
    """`service(rows)` is the seconds that a batch takes; `observer` sees what happens."""

    def __init__(
        self,
        policy: Policy,
        service: Callable[[int], float],
        workers: int = 1,
        observer: Observer | None = None,
    ) -> None:
        self.policy, self.service, self.observer = policy, service, observer or Observer()
        self.now = 0.0
        self.workers = [Worker() for _ in range(workers)]
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = count()
        policy.set_workers(workers)

    def at(self, time: float, handler: Callable[..., None], *args: Any) -> None:
        heapq.heappush(self._events, (time, next(self._order), handler, args))

    def step(self) -> bool:
        """Let the next event happen; False when there is none."""
        if not self._events:
            return False
        self.now, _, handler, args = heapq.heappop(self._events)
        handler(*args)
        self._dispatch()
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

    def arrive(self, request: Queued) -> None:
        decision = self.policy.arrive(request, self.now)
        self.observer.arrived(request, decision, self.now)

    def cancel(self, request: Queued) -> None:
        self.observer.cancelled(request, self.policy.cancel(request), self.now)

    def birth(self) -> None:
        self.workers.append(Worker())
        self.policy.set_workers(len(self.workers))

    def death(self, which: int) -> None:
        """Its batches are lost, and every request that had a part in one of them fails."""
        if not self.workers:
            return
        worker = self.workers.pop(which % len(self.workers))
        worker.alive = False
        self.policy.set_workers(len(self.workers))
        for batch in worker.batches:
            self._end(batch, None)

    def _finish(self, batch: Batch) -> None:
        if batch.worker.alive:
            batch.worker.batches.remove(batch)
            self._end(batch, batch.seconds)

    def _end(self, batch: Batch, seconds: float | None) -> None:
        self.policy.finished(batch.dispatch.rows, seconds, self.now)
        self.observer.finished(batch, seconds is not None, self.now)
        if seconds is None:
            for part in batch.dispatch.parts:
                self.cancel(part.request)

    def _dispatch(self) -> None:
        while isinstance(decision := self.policy.next_batch(self.now), Dispatch):
            self.observer.dispatched(decision, self.now)
            worker = min(self.workers, key=lambda worker: len(worker.batches))
            batch = Batch(decision, worker, self.service(decision.rows))
            worker.batches.append(batch)
            worker.free_at = max(worker.free_at, self.now) + batch.seconds
            self.at(worker.free_at, self._finish, batch)
        if decision.until < math.inf:
            self.at(decision.until, lambda: None)
