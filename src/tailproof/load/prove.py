"""`prove`: from a target and an SLO to a verdict, with the records that anybody can check.

One rate, a ladder of rates, or a search for the highest rate inside the SLO. What is sent is
decided in `search` and `shapes`, sent by `generator`, judged in `stepper`; here is the order of
things, and the document at the end.
"""

import http.client
import math
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
from msgspec.structs import replace

from tailproof import __version__
from tailproof.core.clock import monotonic
from tailproof.core.errors import ConfigError
from tailproof.core.recording import Ints, Recording
from tailproof.core.slo import latencies, tightest_threshold
from tailproof.core.units import format_duration, format_rate, parse_rate
from tailproof.core.verdict import CALIBRATED
from tailproof.load import causes, outcome, preflight, proofs, selfcheck
from tailproof.load.environment import environment
from tailproof.load.generator import Generator, LoadError
from tailproof.load.outcome import Outcome
from tailproof.load.payloads import Payloads
from tailproof.load.search import Planned, Search, SearchSettings, allowed_share, limit_of
from tailproof.load.server_view import Observer
from tailproof.load.settings import LoadSettings
from tailproof.load.shapes import Shape
from tailproof.load.stepper import Load, Progress, Stepper
from tailproof.load.target import Target
from tailproof.reporting import document as doc
from tailproof.reporting import runs
from tailproof.reporting.document import Document, Limit, Point, Verdict

ONE_RATE = 30.0
"""Seconds that one rate is measured for, unless `--for` says otherwise."""
ONE_OF_A_LADDER = 5.0
COOL_DOWN, COOL_DOWN_SHARE = 20.0, 0.05
"""Seconds, and share of the budget, at most until a lone request is quick again after a step that
overloaded."""
COUNTABLE = 10**7
SPLIT_SECONDS = 10.0
QUIET_PATIENCE = 3.0
"""Seconds that a tester which was in the number waits for others to leave its cores."""
SURELY_QUICK = 0.005
WAITING = {"unanswered", "timed out"}
"""Statuses of requests that the server may still work on."""
CALM = 3
"""Lone requests in a row that must be quick."""

Mode = Literal["search", "rate", "ladder"]


class Listener(Protocol):
    """Who is told what happens while it happens."""

    def say(self, line: str) -> None: ...

    def step(self, number: int, role: str, rate: float | None, seconds: float) -> Progress | None:
        """A step begins; what is returned is told how far it is."""

    def point(self, point: Point) -> None:
        """It ended."""


@dataclass(frozen=True, slots=True)
class Job:
    """One test: what is sent where, how fast, and how it is said."""

    target: Target
    payloads: Payloads
    mix: Ints
    """Which bodies are drawn from, with repetitions for what is sent more often."""
    shape: Shape
    load: LoadSettings
    seed: int
    timeout: float
    command: str
    token: str
    """Makes the folder's name one of its kind."""
    now: datetime


def mode_of(load: LoadSettings, shape: Shape) -> Mode:
    """Which of the three tests is asked for. Raises ConfigError when several are."""
    asked = {
        "--rate": load.rate,
        "--require": load.require,
        "--steps": load.steps,
        f"--arrivals {load.arrivals}": None if shape.needs_rate else shape,
    }
    given = [name for name, value in asked.items() if value is not None]
    if len(given) > 1:
        raise ConfigError(given[1], str(asked[given[1]]), f"give either {' or '.join(given)}")
    if not given:
        return "search"
    return "ladder" if given == ["--steps"] else "rate"


def check(job: Job) -> Mode:
    """Everything that can be said before anything is sent. Raises ConfigError."""
    load, mode = job.load, mode_of(job.load, job.shape)
    if not load.slo:
        raise ConfigError("--slo", None, "say what must hold, e.g. --slo 'p95 < 50ms'")
    for slo in load.slo:
        if getattr(slo, "signal", "e2e") != "e2e":
            raise ConfigError("--slo", str(slo), "this target gives whole answers: use pNN < TIME")
    for slo in latencies(load.slo):
        if job.timeout < slo.threshold:
            problem = f"no answer could be seen to hold {slo}: give it more"
            raise ConfigError("--timeout", format_duration(job.timeout), problem)
    if mode == "search" and load.seconds is not None:
        problem = "a search has --budget; --for goes with a rate"
        raise ConfigError("--for", format_duration(load.seconds), problem)
    _check_caps(job, mode)
    return mode


def _check_caps(job: Job, mode: Mode) -> None:
    """What is planned stays under every cap. A search plans by itself, within them."""
    load = job.load
    loads = planned_loads(job, mode)
    for each in loads:
        peak = job.shape.peak_rate(each.rate)
        if load.max_rate is not None and peak > load.max_rate:
            problem = f"up to {format_rate(peak)} are planned"
            raise ConfigError("--max-rate", format_rate(load.max_rate), problem)
    num = sum(num_planned(job.shape, each, load.max_requests) for each in loads)
    if num > load.max_requests:
        problem = f"{num:,} requests are planned, warm-up included: raise it, or shorten --for"
        raise ConfigError("--max-requests", load.max_requests, problem)
    whole = sum(each.warm_up + each.seconds for each in loads) if loads else load.budget
    if whole > load.max_time:
        problem = f"{format_duration(whole)} are planned: raise it, or shorten the test"
        raise ConfigError("--max-time", format_duration(load.max_time), problem)


def planned_loads(job: Job, mode: Mode) -> list[Load]:
    """The steps of everything but a search."""
    if mode == "search":
        return []
    seconds, rates = _seconds(job, mode), _rates(job.load)
    drain = job.timeout if mode == "rate" else _drain(job)
    return [
        Load("rate", rate, seconds, _warm_up(job, seconds, rate), drain) for rate in rates or [None]
    ]


def num_planned(shape: Shape, load: Load, enough: int) -> int:
    """Requests of a step, warm-up included; a bound where that is surely not above `enough`, or so
    far above that counting would take too long."""
    before = (load.rate or 0.0) * load.warm_up
    most = shape.peak_rate(load.rate) * load.seconds + before
    if most <= enough or most > COUNTABLE:
        return round(most)
    return len(shape.schedule(load.rate, load.seconds, 1)) + round(before)


def run(job: Job, listener: Listener, closed_loop: doc.ClosedLoop | None = None) -> Document:
    """The whole test. `closed_loop`: what users who wait for their answers saw before; then one
    rate is measured, and the verdict is UNDECIDED.

    Raises ConfigError when it cannot begin. What was measured is recorded step by step, so that an
    interrupted run keeps it.
    """
    mode = check(job)
    began = monotonic()
    first = preflight.check(job.target, job.timeout)
    folder = runs.create(Path(job.load.out), job.now, job.token)
    observer = Observer(job.target, job.load.server_pid)
    with Generator(job.target, job.load.processes) as generator:
        stepper = Stepper(
            generator=generator,
            observer=observer,
            folder=folder,
            slos=job.load.slo,
            shape=job.shape,
            row_counts=np.array(job.payloads.rows, np.int32),
            mix=job.mix,
            has_base=mode != "rate",
            seed=job.seed,
            timeout=job.timeout,
            max_connections=job.load.max_connections,
        )
        test = Test(job, mode, stepper, listener, began)
        ended, broke_off = _outcome(test)
        proven = [] if broke_off else _proofs(job, stepper, ended.limit)
        ended = outcome.after_proofs(ended, proven)
    result = _document(
        job=job,
        mode=mode,
        points=stepper.points,
        ended=ended,
        first=first,
        folder=folder,
        proven=proven,
        seconds=monotonic() - began,
    )
    if closed_loop is not None:
        result = _beside_a_closed_loop(result, closed_loop)
    runs.write_document(folder, result)
    if isinstance(broke_off, KeyboardInterrupt):
        listener.say(f"interrupted; what was measured is in {folder}")
        raise broke_off
    return result


def _outcome(test: "Test") -> tuple[Outcome, BaseException | None]:
    """What the test says, and what broke it off, if something did."""
    try:
        return test.outcome(), None
    except LoadError as error:
        return Outcome("INVALID", f"the tester broke off: {error}", None), error
    except KeyboardInterrupt as error:
        return Outcome("UNDECIDED", "interrupted", None), error


@dataclass(slots=True)
class Test:
    """The steps of one test, in order, with a pause after each that overloaded."""

    job: Job
    mode: Mode
    stepper: Stepper
    listener: Listener
    began: float

    def outcome(self) -> Outcome:
        if self.mode == "rate":
            return self._one_rate()
        return self._ladder() if self.mode == "ladder" else self._search()

    def _one_rate(self) -> Outcome:
        (load,) = planned_loads(self.job, self.mode)
        point = self._step(load, last=True)
        return Outcome(point.verdict, point.reason, limit=None)

    def _ladder(self) -> Outcome:
        for load in planned_loads(self.job, self.mode):
            self._step(load)
        points = self.stepper.points
        if all(point.verdict == "PASS" for point in points):
            return Outcome(
                "PASS", f"holds at each of {len(points)} rates", outcome.all_passed(points)
            )
        results = [outcome.result("rate", point.offered, point, 0.0) for point in points]
        limit = limit_of(results, allowed_share(self.job.load.slo), self.job.seed)
        return outcome.of_limit(points, limit, ())

    def _search(self) -> Outcome:
        load = self.job.load
        search = Search(
            SearchSettings(
                budget=min(load.budget, load.max_time),
                max_rate=load.max_rate,
                max_requests=load.max_requests,
                warm_up=load.warm_up,
                seed=self.job.seed,
            ),
            self.job.load.slo,
        )
        while (planned := search.next(monotonic() - self.began)) is not None:
            before = monotonic()
            point = self._step(self._load(planned))
            search.add(outcome.result(planned.role, planned.rate, point, monotonic() - before))
        return outcome.of_limit(self.stepper.points, search.limit(), tuple(search.unresolved()))

    def _load(self, planned: Planned) -> Load:
        return Load(
            role=planned.role,
            rate=planned.rate,
            seconds=planned.seconds,
            warm_up=planned.warm_up,
            drain=_drain(self.job),
            give_up=planned.role in ("bisect", "confirm"),
        )

    def _step(self, load: Load, *, last: bool = False) -> Point:
        number, whole = len(self.stepper.points), load.warm_up + load.seconds
        progress = self.listener.step(number, load.role, load.rate, whole)
        point = self.stepper(load, progress)
        self.listener.point(point)
        if last:
            return point
        if point.class_ == "OVERLOAD" or set(point.statuses) & WAITING:
            self._cool_down()
        if point.verdict == "INVALID":
            selfcheck.wait_quiet(self.stepper.generator.pids, QUIET_PATIENCE)
        return point

    def _cool_down(self) -> None:
        """Lone requests until the service is as quick as it was under the lightest load."""
        known = [point.response_seconds.p95 for point in self.stepper.points]
        usual = min((p95 for p95 in known if p95 is not None), default=math.inf)
        quick = max(SURELY_QUICK, 2.0 * usual)
        longest = min(COOL_DOWN, COOL_DOWN_SHARE * self.job.load.budget)
        deadline, calm = monotonic() + longest, 0
        while (left := deadline - monotonic()) > 0 and calm < CALM:
            try:
                answer = preflight.ask(self.job.target, min(self.job.timeout, left))
            except (OSError, http.client.HTTPException):
                return
            calm = calm + 1 if answer.seconds <= quick else 0


def _rates(load: LoadSettings) -> tuple[float, ...]:
    """The rates that were asked for by name. Raises ConfigError when one is none."""
    if load.steps is None:
        return tuple(rate for rate in (load.rate, load.require) if rate is not None)
    try:
        rates = tuple(parse_rate(text) for text in load.steps.split(","))
    except ValueError as error:
        raise ConfigError("--steps", load.steps, str(error)) from None
    if min(rates) <= 0:
        raise ConfigError("--steps", load.steps, "expected rates above 0/s")
    return rates


def _warm_up(job: Job, seconds: float, rate: float | None) -> float:
    """A shape with rates of its own has its beginning measured, too."""
    if rate is None:
        return 0.0
    given = job.load.warm_up
    return min(2.0, 0.2 * seconds) if given is None else given


def _drain(job: Job) -> float:
    """What comes later than this is a miss whatever it says."""
    loosest = max((slo.threshold for slo in latencies(job.load.slo)), default=0.0)
    return min(job.timeout, max(2.0, 3.0 * loosest))


def _seconds(job: Job, mode: Mode) -> float:
    """How long each rate is measured."""
    if job.shape.fixed_seconds is not None:
        return job.shape.fixed_seconds
    return job.load.seconds or (ONE_OF_A_LADDER if mode == "ladder" else ONE_RATE)


def _document(
    *,
    job: Job,
    mode: Mode,
    points: list[Point],
    ended: Outcome,
    first: preflight.Answer | None,
    folder: Path,
    proven: list[doc.Signal],
    seconds: float,
) -> Document:
    chosen = causes.tail_point(points)
    tail = None if chosen is None else causes.of_tail(runs.read_step(folder, chosen), job.seed)
    tester = doc.Generator(ok=False) if chosen is None else points[chosen].generator
    calm = [point for point in points if point.verdict != "INVALID" and point.class_ != "OVERLOAD"]
    whole = [point for point in calm if not point.stopped_early] or points
    steps = (runs.read_step(folder, point.index) for point in whole)
    return Document(
        tool=f"tailproof {__version__}",
        target=job.target.url,
        slo=[str(slo) for slo in job.load.slo],
        verdict=ended.verdict,
        reason=ended.reason,
        mode=mode,
        limit=ended.limit,
        saturation=outcome.saturation_of(points),
        knee=outcome.knee_of(points),
        points=points,
        cold=causes.cold(None if first is None else first.seconds, steps),
        tail_causes=[] if tail is None else causes.as_causes(tail),
        unexplained=None if tail is None else tail.unexplained,
        primary_cause=None if tail is None else tail.primary,
        tail_point=chosen,
        generator=doc.Generator(
            ok=tester.ok and not any(signal.bad and signal.invalidates for signal in proven),
            signals=[*tester.signals, *proven],
        ),
        warnings=outcome.warnings(points),
        unresolved=list(ended.unresolved),
        confidence=dict(CALIBRATED),
        required=job.load.require,
        environment=environment(
            target=job.target,
            processes=job.load.processes,
            seeds={"seed": job.seed},
            payload=job.payloads.facts(),
        ),
        command=job.command,
        seconds=seconds,
        run=str(folder),
    )


def _beside_a_closed_loop(found: Document, loop: doc.ClosedLoop) -> Document:
    reason = (
        f"{loop.users} users who wait for their answers cannot prove an SLO; the same requests at "
        f"the {format_rate(loop.rate)} that they reached, open loop, are {found.verdict}: "
        f"{found.reason}"
    )
    verdict: Verdict = "INVALID" if found.verdict == "INVALID" else "UNDECIDED"
    points = [replace(point, role="replay") for point in found.points]
    return replace(
        found,
        mode="locust",
        verdict=verdict,
        reason=reason,
        points=points,
        closed_loop=loop,
        warnings=[*loop.warnings, *found.warnings],
    )


def _proofs(job: Job, stepper: Stepper, limit: Limit | None) -> list[doc.Signal]:
    """Could the tester have sent that much? Asked of a limit; one rate has its own evidence."""
    if limit is None or limit.low is None:
        return []
    threshold, processes = tightest_threshold(job.load.slo), job.load.processes
    found = [proofs.null_calibration(job.target, processes, limit.low, threshold, job.seed)]
    if job.load.split_test:
        load = Load("split", limit.low, SPLIT_SECONDS, warm_up=1.0, drain=2.0)

        def make(generator: Generator, number: int) -> Recording:
            plan = stepper.plan(load, len(stepper.points) + number)
            sent = generator.run(plan)
            return sent.recording.between(plan.warm_up, plan.end)

        found.append(proofs.split_test(job.target, make, processes, job.seed))
    return found
