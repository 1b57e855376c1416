"""Small random schedules: everything that may happen to a queue, in every order."""

import math
import random
from collections.abc import Callable
from typing import NamedTuple

from tailproof.core.latency_model import LatencyModel
from tailproof.core.policy import Limits, Policy, Priority, Queued
from tailproof.core.slo import Latency
from tests.core.laws import Laws
from tests.core.simulator import Simulation

OBJECTIVES: tuple[tuple[Latency, ...], ...] = (
    (),
    (Latency(90.0, 0.02),),
    (Latency(99.0, 0.05),),
    (Latency(99.9, 0.03),),
    (Latency(95.0, 0.02), Latency(99.0, 0.1)),
)


class Quick(LatencyModel):
    """`fixed + per_row * n` seconds, times how the last batch compared to that. Costs little, and
    is as wrong as a real model can be."""

    version = 0

    def __init__(self, fixed: float, per_row: float, *, is_warm: bool = True) -> None:
        self._fixed, self._per_row = fixed, per_row
        self._times: float | None = 1.0 if is_warm else None

    def observe(self, rows: int, seconds: float, cpu_seconds: float | None = None) -> None:
        times = seconds / (self._fixed + self._per_row * rows)
        if self._times is None or not 0.7 < times / self._times < 1.4:
            self._times = times
            self.version += 1

    def tail_of(self, rows: int) -> float | None:
        typical = self.typical_of(rows)
        return None if typical is None else 1.3 * typical

    def typical_of(self, rows: int) -> float | None:
        if self._times is None:
            return None
        return (self._fixed + self._per_row * rows) * self._times


def warmed(model: LatencyModel, service: Callable[[int], float], largest: int) -> LatencyModel:
    """`model` after a warm-up: five batches of 1, 2, 4, ... rows."""
    size = 1
    while size <= largest:
        for _ in range(5):
            model.calibrate(size, service(size))
        size *= 2
    return model


def linear(
    rng: random.Random, fixed: float, per_row: float, noise: float
) -> Callable[[int], float]:
    """Seconds of a batch: fixed + per_row * rows, with so much relative noise."""
    gauss = rng.gauss
    return lambda rows: (fixed + per_row * rows) * max(0.2, gauss(1.0, noise))


def play(seed: int, policy_class: type[Policy] = Policy, *, keeps_trace: bool = False) -> Laws:
    """One small schedule under the laws. Raises `Broken`.

    About five requests of several classes, shapes and sizes come, one by one or at a moment; some
    raise, some have a deadline, some are cancelled; workers are lost and come, batches end, get
    slower or quicker, are held; there may be a rest, and the objectives may become others.
    """
    rng = random.Random(seed)
    random_ = rng.random
    limits = Limits(
        max_batch_rows=rng.choice((1, 2, 4, 8)),
        max_queue_rows=rng.choice((None, None, 3, 8)),
        max_wait=0.0 if random_() < 0.7 else 0.005,
        objectives=rng.choice(OBJECTIVES),
        max_in_flight=rng.choice((1, 2)),
    )
    laws = Laws(limits, keeps_trace)
    simulation = _simulation(rng, limits, policy_class, laws)
    span = rng.choice((0.0, 0.02, 0.1))
    buckets = (None,) if random_() < 0.6 else (None, "short", "long")
    mix = Mix(
        buckets, rng.choice((0.0, 0.0, 0.6)), rng.choice((0.0, 0.0, 0.3)), rng.choice((0.0, 0.4))
    )
    for _ in range(rng.randrange(2, 7)):
        _add_arrivals(rng, simulation, span, mix)
    for _ in range(rng.randrange(3)):
        simulation.at(span * random_(), simulation.death, rng.randrange(4))
        simulation.at(span * random_(), simulation.birth)
    if random_() < 0.2:
        simulation.at(span * random_(), simulation.slow_down, rng.choice((0.5, 3.0)))
    if random_() < 0.1:
        simulation.at(span * random_(), _change, simulation, rng.choice(OBJECTIVES))
    simulation.at(span, simulation.birth)
    simulation.run()
    laws.ended()
    return laws


def _simulation(
    rng: random.Random, limits: Limits, policy_class: type[Policy], laws: Laws
) -> Simulation:
    """With a model that learns as the real one in one of eight, and a budget in every state."""
    fixed, per_row = rng.choice(((0.001, 0.0001), (0.001, 0.001), (0.01, 0.001)))
    service = linear(rng, fixed, per_row, 0.2)
    is_warm = rng.random() < 0.8
    if rng.random() < 0.125:
        model = LatencyModel()
        if is_warm:
            warmed(model, service, limits.max_batch_rows)
        policy = policy_class(limits, model, rng.random)
    else:
        policy = policy_class(
            limits,
            Quick(fixed, per_row, is_warm=is_warm),
            rng.random,
            lambda: Quick(fixed, per_row, is_warm=is_warm),
        )
    for budget in policy.attainment._budgets:
        budget.left *= rng.choice((1.0, 0.2, 0.0, -1.0))
    simulation = laws.simulation = Simulation(policy, service, rng.randrange(4), laws)
    return simulation


class Mix(NamedTuple):
    """The requests of one schedule. Shares are from 0 to 1."""

    buckets: tuple[str | None, ...]
    deadlines: float
    poison: float
    cancelled: float


def _add_arrivals(rng: random.Random, simulation: Simulation, span: float, mix: Mix) -> None:
    """One request, or three at a moment."""
    random_ = rng.random
    at = span * random_() + (1.5 if random_() < 0.05 else 0.0)
    requests = []
    for _ in range(3 if random_() < 0.15 else 1):
        request = Queued(
            rng.choice((1, 1, 1, 2, 5, 20)),
            at,
            deadline=at + 0.06 * random_() - 0.001 if random_() < mix.deadlines else math.inf,
            priority=rng.choice(_PRIORITIES),
            bucket=rng.choice(mix.buckets),
        )
        requests.append(request)
        if random_() < mix.poison:
            simulation.poison[request] = rng.randrange(request.rows)
        if random_() < mix.cancelled:
            simulation.at(at + 0.03 * random_(), simulation.cancel, request)
    simulation.at(at, simulation.arrive, *requests)


_PRIORITIES = (Priority.CRITICAL, Priority.NORMAL, Priority.NORMAL, Priority.BATCH)


def _change(simulation: Simulation, objectives: tuple[Latency, ...]) -> None:
    limits = simulation.policy._limits
    simulation.set_limits(
        Limits(limits.max_batch_rows, 5, limits.max_wait, objectives, limits.max_in_flight)
    )
