"""One load step from its plan to what it says: send, record, judge the tester and the service."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tailproof.core.arrivals import Schedule
from tailproof.core.recording import Floats, Ints, status_name
from tailproof.core.saturation import achieved, advice, classify
from tailproof.core.slo import Slo, latencies, tightest_threshold
from tailproof.core.statistics import describe
from tailproof.core.verdict import Judgement, judge
from tailproof.load import selfcheck
from tailproof.load.generator import Generator
from tailproof.load.server_view import Observer
from tailproof.load.shapes import Shape
from tailproof.load.steps import Sent, StepPlan
from tailproof.reporting import document, runs
from tailproof.reporting.document import (
    Class,
    Percentiles,
    Point,
    Role,
    ServerView,
    Verdict,
)
from tailproof.reporting.runs import StepData

ARRIVALS, CHOICE = 1, 2
"""Streams of random numbers; `load.payloads` draws the bodies from the seed itself."""

MANY, MANY_TIMES = 20, 3.0
"""Misses, and times the allowed share of them, after which a step need not go on."""

Progress = Callable[[float, int, int], None]
"""(seconds since the step began, sent so far, answered so far)"""


@dataclass(frozen=True, slots=True)
class Load:
    """What one step shall send, in seconds and requests a second."""

    role: Role
    rate: float | None
    """None: the shape of the arrivals brings its own."""
    seconds: float
    warm_up: float
    drain: float
    give_up: bool = False
    """End it when no answer can change the verdict."""


@dataclass(slots=True)
class Stepper:
    """Runs steps against one target; keeps what they say in `points`, their records in `folder`."""

    generator: Generator
    observer: Observer
    folder: Path
    slos: tuple[Slo, ...]
    shape: Shape
    row_counts: Ints
    """Rows in each of the target's bodies."""
    mix: Ints
    """Which of them are drawn from."""
    seed: int
    timeout: float
    max_connections: int | None
    has_base: bool
    """The first step is the light one that the others are compared with."""
    points: list[Point] = field(default_factory=list)

    def __call__(self, load: Load, progress: Progress | None = None) -> Point:
        index = len(self.points)
        plan = self.plan(load, index)
        before = self.observer.read()
        with selfcheck.Surroundings(self.generator.pids) as surroundings:
            sent = self.generator.run(plan, progress)
        server = self.observer.since(before, int(np.sum(sent.recording.good)))
        data = StepData(
            index,
            sent.recording,
            plan.warm_up,
            plan.end,
            plan.offered,
            sent.stopped_at,
            rows=float(np.mean(self.row_counts[plan.payload])) if len(plan.payload) else 1.0,
        )
        runs.write_step(self.folder, data)
        tester = selfcheck.check(plan, sent, tightest_threshold(self.slos), surroundings, server)
        self.points.append(self._point(load, data, sent, tester, server))
        return self.points[-1]

    # before

    def plan(self, load: Load, index: int) -> StepPlan:
        """Everything about a step, drawn from the seed and its number."""
        intended = self._schedule(load, index)
        choice = np.random.default_rng([self.seed, CHOICE, index])
        return StepPlan(
            intended=intended,
            warm_up=load.warm_up,
            end=load.warm_up + load.seconds,
            payload=self.mix[choice.integers(len(self.mix), size=len(intended))],
            timeout=self.timeout,
            drain=load.drain,
            ready_connections=self._ready(load),
            max_connections=self.max_connections,
            give_up=self._hopeless(intended, load) if load.give_up else None,
        )

    def _schedule(self, load: Load, index: int) -> Schedule:
        """The warm-up at the same rate, then the measured window: two draws, so that each has its
        exact number of requests."""
        seeds = np.random.SeedSequence([self.seed, ARRIVALS, index]).generate_state(2)
        measured = self.shape.schedule(load.rate, load.seconds, int(seeds[0])) + load.warm_up
        if load.warm_up == 0.0 or load.rate is None:
            return measured
        before = self.shape.steady().schedule(load.rate, load.warm_up, int(seeds[1]))
        return np.concatenate([before, measured])

    def _ready(self, load: Load) -> int:
        """As many connections as are in use when every request takes the time of the SLO."""
        needed = (
            1 if load.rate is None else round(load.rate * (tightest_threshold(self.slos) or 0.1))
        )
        cap = self.max_connections or 1000
        return max(1, min(needed, cap, 1000))

    def _hopeless(self, intended: Schedule, load: Load) -> tuple[float, float] | None:
        """When to end a step early: at three times the misses that the most demanding latency SLO
        allows, and never for a handful, which may be one accident."""
        slo = max(latencies(self.slos), key=lambda slo: slo.objective, default=None)
        num = int(np.sum(intended >= load.warm_up))
        if slo is None or num == 0:
            return None
        share = max(MANY_TIMES * (1.0 - slo.objective), MANY / num)
        return (slo.threshold, 1.0 - share) if share < 1.0 else None

    # after

    def _point(
        self,
        load: Load,
        data: StepData,
        sent: Sent,
        tester: document.Generator,
        server: ServerView,
    ) -> Point:
        measured = data.measured
        judged = judge(measured, self.slos)
        kind = self._class(data)
        verdict, reason = combine(judged, kind, tester, stopped_early=data.stopped_at is not None)
        response = describe(measured.response, intervals=True)
        in_flight = measured.in_flight
        return Point(
            index=data.index,
            role=load.role,
            offered=data.offered,
            achieved=achieved(data.recording, data.warm_up, data.until),
            requests=len(measured),
            errors=int(np.sum(~measured.good)),
            refused=int(np.sum(measured.refused)),
            statuses=_statuses(measured.status),
            class_=kind,
            verdict=verdict,
            reason=reason,
            advice=advice(kind, verdict),
            findings=list(judged.findings),
            response_seconds=Percentiles(**response),
            uncorrected_seconds=_percentiles(measured.uncorrected),
            send_lag_seconds=_percentiles(measured.send_lag),
            own_lag_seconds=_percentiles(measured.own_lag),
            warm_up_seconds=data.warm_up,
            measured_seconds=data.until - data.warm_up,
            stopped_early=data.stopped_at is not None,
            connections=sum(facts.num_connections for facts in sent.senders),
            generator=tester,
            server=server,
            mean_in_flight=float(np.mean(in_flight)) if len(in_flight) else None,
        )

    def _class(self, data: StepData) -> Class | None:
        """Beside the lightest step and the next lower one that were measured without fault. None:
        there is none to compare with, and no overload either."""
        sound = [
            (point.offered, point.response_seconds.p95)
            for point in self.points
            if point.verdict != "INVALID" and point.response_seconds.p95 is not None
        ]
        below = max((one for one in sound if one[0] < 0.95 * data.offered), default=None)
        base = min(sound, default=None)
        found = classify(
            data.recording,
            data.warm_up,
            data.until,
            base_p95=None if base is None else base[1],
            below=below,
        )
        is_first = base is None and not self.has_base
        return found if found == "OVERLOAD" or not is_first else None


def combine(
    judged: Judgement, kind: Class | None, tester: document.Generator, *, stopped_early: bool
) -> tuple[Verdict, str]:
    """The verdict on a step. A tester in the number comes first: nothing can then be believed. A
    step that overloads has no steady state to infer from: what was seen decides."""
    if not tester.ok:
        worst = next(signal for signal in tester.signals if signal.bad and signal.invalidates)
        return "INVALID", f"you are load-testing yourself: {worst.text}"
    broken = [item for item in judged.findings if item.share > item.allowed]
    if broken and (kind == "OVERLOAD" or stopped_early):
        item = broken[0]
        return "FAIL", (
            f"{item.share:.1%} of {item.requests:,} requests missed {item.slo}, "
            f"at most {100.0 * item.allowed:.3g}% may"
        )
    return judged.verdict, judged.reason


def _statuses(status: Ints) -> dict[str, int]:
    values, counts = np.unique(status, return_counts=True)
    pairs = zip(values.tolist(), counts.tolist(), strict=True)
    return {status_name(value): count for value, count in pairs}


def _percentiles(values: Floats) -> Percentiles:
    return Percentiles(**describe(values))
