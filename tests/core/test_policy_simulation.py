"""The policy through many seeded schedules: its laws, and the figures that it reaches."""

import math
import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tailproof.core.arrivals import Schedule, on_off, poisson
from tailproof.core.latency_model import LatencyModel
from tailproof.core.policy import (
    Admit,
    Dispatch,
    Limits,
    Part,
    Policy,
    Queued,
    Refuse,
    Wait,
)
from tests.core.simulator import Batch, Observer, Simulation

# --- The laws -------------------------------------------------------------------------------


class Broken(AssertionError):
    """A law does not hold. `law` is its name."""

    def __init__(self, law: str, detail: str = "") -> None:
        super().__init__(f"{law}: {detail}")
        self.law = law


def require(holds: bool, law: str, detail: object = "") -> None:
    if not holds:
        raise Broken(law, str(detail))


@dataclass(slots=True)
class Fate:
    """What became of one request, kept apart from what the policy believes."""

    rows: int
    state: str = "waiting"  # waiting, in flight, answered, refused, cancelled, failed
    dispatched: int = 0
    computed: int = 0


@dataclass
class Laws(Observer):
    """Keeps its own books about a simulation and raises `Broken` when they disagree."""

    limits: Limits
    simulation: Simulation = field(init=False)
    fates: dict[Queued, Fate] = field(default_factory=dict)
    line: list[Queued] = field(default_factory=list)  # admitted, rows left to dispatch, in order
    in_flight: list[Dispatch] = field(default_factory=list)
    trace: list[tuple[object, ...]] = field(default_factory=list)
    free_since: float | None = None
    """Since when a worker has had nothing to do; None: all are busy."""

    @property
    def policy(self) -> Policy:
        return self.simulation.policy

    def waiting_rows(self) -> int:
        return sum(
            self.fates[request].rows - self.fates[request].dispatched for request in self.line
        )

    def arrived(self, request: Queued, decision: Admit | Refuse, now: float) -> None:
        self.trace.append(("arrived", now, request.rows, decision))
        idle = not self.line and len(self.in_flight) < len(self.simulation.workers)
        fate = self.fates[request] = Fate(request.rows)
        if isinstance(decision, Refuse):
            fate.state = "refused"
            require(0.0 < decision.retry_after < 60.0, "retry after", decision)
            require(not idle, "an idle system refuses nobody", decision)
            full = self.waiting_rows() + request.rows > self.policy.capacity_rows
            require(decision.reason == "hopeless" or full, "full means full", decision)
            return
        capacity = self.policy.capacity_rows
        fits = self.waiting_rows() + request.rows <= capacity
        require(fits or request.rows > capacity, "queue bound", f"bound {capacity}")
        require(fits or not self.line, "a giant enters an empty queue", f"bound {capacity}")
        self.line.append(request)

    def dispatched(self, dispatch: Dispatch, now: float) -> None:
        self.trace.append(("dispatched", now, dispatch.rows, dispatch.predicted))
        slots = len(self.simulation.workers) * min(2, self.limits.max_in_flight)
        require(len(self.in_flight) < slots, "slots", f"{len(self.in_flight)} of {slots}")
        if self.line and self.free_since is not None:
            due = max(self.line[0].arrived + self.limits.max_wait, self.free_since)
            require(now <= due, "nobody is held while a worker is free", f"until {now}, not {due}")
        self.in_flight.append(dispatch)
        rows = sum(part.stop - part.start for part in dispatch.parts)
        require(rows == dispatch.rows >= 1, "rows add up", dispatch.rows)
        require(rows <= self.limits.max_batch_rows, "batch bound", rows)
        for part in dispatch.parts:
            self.dispatched_part(part)

    def dispatched_part(self, part: Part) -> None:
        fate = self.fates[part.request]
        gone = fate.state in ("cancelled", "failed", "refused")
        require(not gone, "who left is never computed", fate.state)
        require(part.start == fate.dispatched, "each row once", part[1:])
        require(part.start < part.stop <= fate.rows, "each row once", part[1:])
        require(bool(self.line) and self.line[0] is part.request, "first in, first out")
        fate.dispatched = part.stop
        if fate.dispatched == fate.rows:
            fate.state = "in flight"
            del self.line[0]

    def finished(self, batch: Batch, succeeded: bool, now: float) -> None:
        self.trace.append(("finished", now, batch.dispatch.rows, succeeded))
        self.in_flight.remove(batch.dispatch)
        for part in batch.dispatch.parts:
            fate = self.fates[part.request]
            if not succeeded:
                self.leave(part.request, "failed")
                continue
            fate.computed += part.stop - part.start
            if fate.computed == fate.rows and fate.state == "in flight":
                fate.state = "answered"

    def cancelled(self, request: Queued, rows: int, now: float) -> None:
        self.trace.append(("cancelled", now, rows))
        self.leave(request, "cancelled")

    def leave(self, request: Queued, state: str) -> None:
        fate = self.fates[request]
        if fate.state in ("waiting", "in flight"):
            fate.state = state
            if request in self.line:
                self.line.remove(request)

    def settled(self, now: float) -> None:
        """After every event, once the policy has nothing to dispatch."""
        policy, workers = self.policy, len(self.simulation.workers)
        require(policy.queued_requests == len(self.line), "books agree", policy.queued_requests)
        require(policy.queued_rows == self.waiting_rows(), "books agree", policy.queued_rows)
        require(policy.in_flight == len(self.in_flight), "books agree", policy.in_flight)
        if len(self.in_flight) >= workers:
            self.free_since = None
            return
        self.free_since = now if self.free_since is None else self.free_since
        if self.line:
            age = now - self.line[0].arrived
            held = "nobody is held while a worker is free"
            require(self.limits.max_wait > 0.0 and age < self.limits.max_wait, held, age)

    def ended(self) -> None:
        """When no event is left and there is a worker: nobody waits, every row ran once."""
        require(not self.line, "nobody is held while a worker is free", len(self.line))
        require(not self.in_flight, "books agree", len(self.in_flight))
        for fate in self.fates.values():
            ended = fate.state in ("answered", "refused", "cancelled", "failed")
            require(ended, "each row once", fate)
            require(fate.state != "answered" or fate.computed == fate.rows, "each row once", fate)


# --- Schedules ------------------------------------------------------------------------------


def warmed(model: LatencyModel, service: Callable[[int], float], largest: int) -> LatencyModel:
    size = 1
    while size <= largest:
        for _ in range(5):
            model.observe(size, service(size))
        size *= 2
    return model


def linear(
    rng: random.Random, fixed: float, per_row: float, noise: float
) -> Callable[[int], float]:
    """Seconds of a batch: fixed + per_row * rows, with so much relative noise."""
    return lambda rows: (fixed + per_row * rows) * max(0.2, rng.gauss(1.0, noise))


def play(seed: int, policy_class: type[Policy] = Policy) -> Laws:
    """One small schedule: about ten requests with cancellations, deaths and births of workers."""
    rng = random.Random(seed)
    limits = Limits(
        max_batch_rows=rng.choice((1, 2, 4, 8)),
        max_queue_rows=rng.choice((None, None, 3, 8)),
        max_wait=rng.choice((0.0, 0.0, 0.005)),
        threshold=rng.choice((None, 0.02, 0.05, 0.2)),
        max_in_flight=rng.choice((1, 2)),
    )
    service = linear(rng, rng.choice((0.001, 0.01)), rng.choice((0.0001, 0.001)), 0.2)
    model = LatencyModel()
    if rng.random() < 0.8:
        warmed(model, service, limits.max_batch_rows)
    laws = Laws(limits)
    policy = policy_class(limits, model, rng.random)
    simulation = laws.simulation = Simulation(policy, service, rng.randrange(4), laws)
    span = rng.choice((0.02, 0.1))
    for _ in range(rng.randrange(5, 11)):
        arrival = rng.uniform(0.0, span)
        request = Queued(rng.choice((1, 1, 1, 2, 5, 20)), arrival)
        simulation.at(arrival, simulation.arrive, request)
        if rng.random() < 0.25:
            simulation.at(arrival + rng.uniform(0.0, 0.03), simulation.cancel, request)
    for _ in range(rng.randrange(3)):
        simulation.at(rng.uniform(0.0, span), simulation.death, rng.randrange(4))
        simulation.at(rng.uniform(0.0, span), simulation.birth)
    simulation.at(span, simulation.birth)
    simulation.run()
    laws.ended()
    return laws


def broken_laws(policy_class: type[Policy], seeds: Iterable[int]) -> set[str]:
    """The law that broke first in each schedule where one did."""
    laws = set()
    for seed in seeds:
        try:
            play(seed, policy_class)
        except Broken as broken:
            laws.add(broken.law)
    return laws


SCHEDULES, CHUNKS = 100_000, 10


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_laws_hold_in_every_schedule(chunk: int) -> None:
    states: Counter[str] = Counter()
    for seed in range(chunk, SCHEDULES, CHUNKS):
        try:
            laws = play(seed)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error!r}") from error
        states.update(fate.state for fate in laws.fates.values())
    every = {"answered", "refused", "cancelled", "failed"}
    assert min(states[state] for state in every) > SCHEDULES // CHUNKS // 10, states


def test_a_seed_always_plays_the_same_schedule() -> None:
    for seed in range(50):
        first, second = play(seed), play(seed)
        assert first.trace
        assert first.trace == second.trace


# --- Negative controls: each policy breaks one law, and is caught ------------------------------


class NewestFirst(Policy):
    def next_batch(self, now: float) -> Dispatch | Wait:
        if self._queue:
            self._queue.move_to_end(next(reversed(self._queue)), last=False)
        return super().next_batch(now)


class OneRowTooMany(Policy):
    def __init__(self, limits: Limits, model: LatencyModel, jitter: Callable[[], float]) -> None:
        super().__init__(replace(limits, max_batch_rows=limits.max_batch_rows + 1), model, jitter)


class OpenDoor(Policy):
    def arrive(self, request: Queued, now: float) -> Admit | Refuse:
        self._queue[request] = None
        self._queued_rows += request.rows
        return Admit()


class GiantsQueueUp(Policy):
    def arrive(self, request: Queued, now: float) -> Admit | Refuse:
        decision = super().arrive(request, now)
        if isinstance(decision, Refuse) and request.rows > self.capacity_rows:
            self._queue[request] = None
            self._queued_rows += request.rows
            return Admit()
        return decision


class WaitsForCompany(Policy):
    def next_batch(self, now: float) -> Dispatch | Wait:
        return super().next_batch(now) if len(self._queue) != 1 else Wait(now + 0.001)


class ForgetsOne(Policy):
    def arrive(self, request: Queued, now: float) -> Admit | Refuse:
        return Admit() if request.rows == 2 else super().arrive(request, now)


class RunsARowTwice(Policy):
    def next_batch(self, now: float) -> Dispatch | Wait:
        decision = super().next_batch(now)
        if isinstance(decision, Dispatch) and decision.parts[-1].request in self._queue:
            decision.parts[-1].request.taken -= 1
            self._queued_rows += 1
        return decision


class SkipsARow(Policy):
    def next_batch(self, now: float) -> Dispatch | Wait:
        decision = super().next_batch(now)
        if isinstance(decision, Dispatch) and decision.rows > 1:
            *others, last = decision.parts
            if last.stop - last.start > 1:
                short = Part(last.request, last.start, last.stop - 1)
                return Dispatch((*others, short), decision.rows - 1, decision.predicted)
        return decision


class ComputesTheCancelled(Policy):
    gone: Queued | None = None

    def cancel(self, request: Queued) -> int:
        self.gone = request if request in self._queue else self.gone
        return super().cancel(request)

    def next_batch(self, now: float) -> Dispatch | Wait:
        decision = super().next_batch(now)
        if isinstance(decision, Dispatch) and self.gone:
            ghost = Part(self.gone, self.gone.taken, self.gone.taken + 1)
            return Dispatch((ghost, *decision.parts), decision.rows + 1, decision.predicted)
        return decision


class Miscounts(Policy):
    def cancel(self, request: Queued) -> int:
        rows = super().cancel(request)
        self._queued_rows += rows
        return rows


class Overcommits(Policy):
    def set_workers(self, workers: int) -> None:
        super().set_workers(workers + 1)


class RefusesTheFirst(Policy):
    def arrive(self, request: Queued, now: float) -> Admit | Refuse:
        return super().arrive(request, now) if self._running else Refuse("hopeless", 1.0)


class ComeBackNow(Policy):
    def _retry_after(self, seconds: float, now: float) -> float:
        return 0.0


class CriesFull(Policy):
    def arrive(self, request: Queued, now: float) -> Admit | Refuse:
        return super().arrive(request, now) if not self._queue else Refuse("queue_full", 1.0)


class Oversleeps(Policy):
    def next_batch(self, now: float) -> Dispatch | Wait:
        decision = super().next_batch(now)
        return Wait(math.inf) if isinstance(decision, Wait) else decision


class CountsWrong(Policy):
    def next_batch(self, now: float) -> Dispatch | Wait:
        decision = super().next_batch(now)
        if isinstance(decision, Dispatch) and decision.rows == 2:
            return Dispatch(decision.parts, 3, decision.predicted)
        return decision


@pytest.mark.parametrize(
    ("policy_class", "law"),
    [
        (NewestFirst, "first in, first out"),
        (OneRowTooMany, "batch bound"),
        (OpenDoor, "queue bound"),
        (GiantsQueueUp, "a giant enters an empty queue"),
        (WaitsForCompany, "nobody is held while a worker is free"),
        (ForgetsOne, "books agree"),
        (RunsARowTwice, "each row once"),
        (SkipsARow, "each row once"),
        (ComputesTheCancelled, "who left is never computed"),
        (Miscounts, "books agree"),
        (Overcommits, "slots"),
        (RefusesTheFirst, "an idle system refuses nobody"),
        (ComeBackNow, "retry after"),
        (CriesFull, "full means full"),
        (Oversleeps, "nobody is held while a worker is free"),
        (CountsWrong, "rows add up"),
    ],
)
def test_each_law_catches_the_policy_that_breaks_it(policy_class: type[Policy], law: str) -> None:
    assert law in broken_laws(policy_class, range(300))


# --- The same laws, searched by hypothesis, which shrinks what it finds -------------------------


class PolicyMachine(RuleBasedStateMachine):
    @initialize(
        max_batch_rows=st.integers(1, 8),
        max_queue_rows=st.none() | st.integers(1, 10),
        max_wait=st.sampled_from((0.0, 0.005)),
        threshold=st.none() | st.sampled_from((0.01, 0.05, 1.0)),
        max_in_flight=st.integers(1, 3),
        fixed=st.sampled_from((0.0005, 0.01)),
        warm=st.booleans(),
        seed=st.integers(0, 9),
    )
    def start(self, fixed: float, warm: bool, seed: int, **limits: Any) -> None:
        rng = random.Random(seed)
        service = linear(rng, fixed, 0.0005, 0.2)
        model = LatencyModel()
        self.limits = Limits(**limits)
        if warm:
            warmed(model, service, self.limits.max_batch_rows)
        self.laws = Laws(self.limits)
        policy = Policy(self.limits, model, rng.random)
        self.simulation = self.laws.simulation = Simulation(policy, service, 1, self.laws)

    def now(self, handler: Callable[..., None], *args: object) -> None:
        self.simulation.at(self.simulation.now, handler, *args)
        self.simulation.run_until(self.simulation.now)

    @rule(rows=st.integers(1, 30))
    def arrive(self, rows: int) -> None:
        self.now(self.simulation.arrive, Queued(rows, self.simulation.now))

    @precondition(lambda self: self.laws.fates)
    @rule(which=st.integers(0, 99))
    def cancel(self, which: int) -> None:
        requests = list(self.laws.fates)
        self.now(self.simulation.cancel, requests[which % len(requests)])

    @rule(milliseconds=st.integers(1, 30))
    def pass_time(self, milliseconds: int) -> None:
        self.simulation.run_until(self.simulation.now + milliseconds / 1000.0)

    @rule(which=st.integers(0, 3))
    def lose_a_worker(self, which: int) -> None:
        self.now(self.simulation.death, which)

    @precondition(lambda self: len(self.simulation.workers) < 4)
    @rule()
    def gain_a_worker(self) -> None:
        self.now(self.simulation.birth)

    @invariant()
    def every_request_is_somewhere(self) -> None:
        states = Counter(fate.state for fate in self.laws.fates.values())
        assert sum(states.values()) == len(self.laws.fates)
        assert states["waiting"] == self.laws.policy.queued_requests

    def teardown(self) -> None:
        if hasattr(self, "simulation"):
            self.now(self.simulation.birth)
            self.simulation.run()
            self.laws.ended()


PolicyMachine.TestCase.settings = settings(
    max_examples=150, stateful_step_count=25, deadline=None, derandomize=True
)
test_laws_hold_whatever_hypothesis_tries = PolicyMachine.TestCase


# --- Figures --------------------------------------------------------------------------------


@dataclass
class Answers(Observer):
    """(arrival, response) of every answered request, in seconds, and the refused."""

    responses: list[tuple[float, float]] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)

    def arrived(self, request: Queued, decision: Admit | Refuse, now: float) -> None:
        if isinstance(decision, Refuse):
            self.refused[decision.reason] += 1

    def finished(self, batch: Batch, succeeded: bool, now: float) -> None:
        for part in batch.dispatch.parts:
            self.responses.append((part.request.arrived, now - part.request.arrived))

    def late_share(self, threshold: float) -> float:
        return sum(response > threshold for _, response in self.responses) / len(self.responses)

    def goodput(self, threshold: float, start: float, end: float) -> float:
        """Answers within `threshold` to requests that arrived in [start, end), per second."""
        good = (start <= at < end and took <= threshold for at, took in self.responses)
        return sum(good) / (end - start)


def serve(
    times: Schedule, workers: int = 1, noise: float = 0.05, slow: range = range(0)
) -> Answers:
    """One-row requests; a batch takes 10 ms + 1 ms a row (twice that in the seconds of `slow`)
    with Gaussian noise; at most 32 rows; p < 50 ms."""
    rng = random.Random(1)
    usual = linear(rng, 0.010, 0.001, noise)

    def service(rows: int) -> float:
        return usual(rows) * (2.0 if int(simulation.now) in slow else 1.0)

    model = warmed(LatencyModel(), usual, 32)
    answers = Answers()
    policy = Policy(Limits(max_batch_rows=32, threshold=0.05), model, rng.random)
    simulation = Simulation(policy, service, workers, answers)
    for time in times.tolist():
        simulation.at(time, simulation.arrive, Queued(1, time))
    simulation.run()
    return answers


@pytest.mark.parametrize(
    ("rate", "expected"),
    [(300, 301), (500, 483), (600, 532), (700, 554), (900, 565), (1200, 566)],
)
def test_goodput_reaches_that_of_the_best_fixed_bound(rate: int, expected: int) -> None:
    """Against a queue bounded at 13 rows, tuned by hand for just this batch time."""
    seconds = 20_000 / rate
    answers = serve(poisson(rate, seconds, seed=rate))
    assert answers.goodput(0.05, 0.0, seconds) >= 0.85 * expected
    assert answers.late_share(0.05) <= 0.001


def test_a_burst_leaves_no_debt_behind() -> None:
    """900/s and 100/s in turn, 500 ms each; about 350/s of it can be met at all."""
    answers = serve(on_off(900.0, 100.0, 0.5, 40.0, seed=3))
    assert answers.goodput(0.05, 0.0, 40.0) >= 0.85 * 335
    assert answers.late_share(0.05) <= 0.001


def test_noisy_batches_make_the_bound_smaller_not_the_answers_late() -> None:
    answers = serve(poisson(900, 20.0, seed=4), noise=0.2)
    assert answers.late_share(0.05) <= 0.01


def test_workers_behind_one_queue_serve_more_than_as_many_alone() -> None:
    """(1 + 1/w) l(q) <= D lets four workers take larger batches than one."""
    alone = serve(poisson(1200, 10.0, seed=5)).goodput(0.05, 0.0, 10.0)
    together = serve(poisson(4800, 10.0, seed=5), workers=4)
    assert together.goodput(0.05, 0.0, 10.0) > 1.1 * 4 * alone
    assert together.late_share(0.05) <= 0.05


def test_the_bound_follows_a_machine_that_slows_down_and_recovers() -> None:
    """Twice as slow from 10 s to 20 s."""
    answers = serve(poisson(900, 40.0, seed=6), slow=range(10, 20))
    before = answers.goodput(0.05, 5.0, 10.0)
    after = answers.goodput(0.05, 35.0, 40.0)
    late = [at for at, took in answers.responses if took > 0.05]
    assert any(at > 9.9 for at in late)  # it was noticed because somebody was late
    assert not any(1.0 < at < 9.9 or at > 10.6 for at in late)
    assert after > 0.95 * before
