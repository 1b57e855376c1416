"""The search for the highest rate inside the SLO: which step comes next. It runs none itself.

    search = Search(SearchSettings(budget=120.0), slos)
    while (planned := search.next(seconds_spent)) is not None:
        search.add(result_of(planned))
    search.limit(), search.unresolved()

Five phases follow each other: a very light base, a bracket of doubled rates, bisection between the
highest rate that held and the lowest that did not, repeats of the answer, and what the latency
curve still lacks. Each ends at its share of the budget, and no step is planned that would not be
over in time.
"""

import math
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tailproof.core.saturation import Class, Verdict
from tailproof.core.slo import Availability, Slo, latencies, tightest_threshold
from tailproof.core.statistics import crossing, crossing_interval, share_bounds
from tailproof.core.units import format_rate
from tailproof.reporting.document import Limit, Role

BASE_RATE = 10.0
"""Requests a second of the first step, while nothing is known of the service."""
BASE_SECONDS = 6.0
"""At most."""
LOWEST_RATE = 0.5
"""A service that fails even here has no limit."""
FEWEST_REQUESTS, HANDFUL = 3, 10
"""A step with fewer says nothing; the base has a handful."""
LIGHT = 0.25
"""Utilization at which the bracket begins, if requests are served one at a time."""
GROWTH, GROWTH_FAR = 2.0, 4.0
IN_PASSING: tuple[Role, ...] = ("bracket", "curve")
"""Roles whose steps are short."""
LEFT_UNDONE = 0.9
"""A server that answers less than this share of the load is overloaded beyond accident."""
TESTER_TOLERANCE = 1.25
"""How near to where the tester gave out the search goes."""
RETREAT = 0.97
"""What the answer is lowered by when a repeat of it fails."""
NEARBY = (0.9, 1.05)
"""Shares of the answer whose steps are mixed among its repeats."""
BIMODAL = 1.02
"""A rate that passes so far above one that failed is no matter of precision."""
CURVE = tuple(float(share) for share in np.geomspace(0.1, 1.3, 9))
"""Shares of the answer at which the latency curve wants a point."""
SAME_POINT = 1.08
"""Two points of the curve nearer than this are one."""
ENOUGH_POINTS = 8
OVERLOADED = 1.5
"""From a rate that the server kept up with to the next, until one overloads it."""

RETRIES, PATIENCE = 2, 6
"""A step that is INVALID by the tester's own fault is repeated this often, then the rate is beyond
the tester; one that others disturbed, until it has been tried so often."""
MAX_EXTENSIONS = 3
"""Further steps for a rate that is undecided."""
USUAL_OVERHEAD = 0.5
"""Seconds that a step takes besides warm-up and measuring, until that is known."""
DRAIN = 2.0
"""Seconds more where the server may not keep up."""
LONG, SHORT = 1 / 20, 1 / 40
"""Share of the budget that a step of the bisection measures, and one of the bracket at most."""
SHORT_REQUESTS = 300
"""A step of the bracket ends with so many, if not before."""
UNTIL_BISECTED, UNTIL_NARROW, UNTIL_CONFIRMED = 0.68, 0.8, 0.88
"""Shares of the budget after which bisection ends, or ends while the gap is still wide, and after
which repeats do. The curve may use what is left."""
WIDE = 1.2


@dataclass(frozen=True, slots=True)
class SearchSettings:
    """Seconds, and requests a second."""

    budget: float = 120.0
    """For everything, drain and cool-down included."""
    start: float | None = None
    """First rate of the bracket; None: from the response time of the base."""
    max_rate: float | None = None
    """Nothing is sent faster."""
    max_requests: int = 10**7
    """Of all steps together."""
    warm_up: float | None = None
    """Of every step; None: a fifth of what is measured, and longer for a slow service."""
    min_seconds: float = 1.0
    max_seconds: float = 60.0
    """What one step is measured for."""
    tolerance: float = 1.03
    """Bisection ends when the lowest rate that failed is this near to the highest that held."""
    confirmations: int = 5
    """Repeats of the answer, as far as the budget allows."""
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Planned:
    """The next step. Seconds, and requests a second."""

    role: Role
    rate: float
    seconds: float
    """Measured, after the warm-up."""
    warm_up: float
    extend: bool = False
    """This rate has been measured and needs more requests; they count together."""


@dataclass(frozen=True, slots=True)
class Result:
    """What one step said, of the SLO that came nearest to breaking."""

    role: Role
    rate: float
    verdict: Verdict
    """Of this step alone; steps at one rate are put together here."""
    class_: Class | None
    achieved: float
    misses: int
    requests: int
    effective_requests: float | None
    """How many independent requests they are worth; None: the rule is about the observed share."""
    p95: float | None
    mean_response: float | None
    spent: float
    """Wall seconds of the step, with all that belongs to it."""
    reason: str = ""
    disturbed: bool = False
    """INVALID because others used the tester's cores: that says nothing about this rate."""
    allowed: float | None = None
    """Share of misses that this SLO allows; None: what the first latency SLO does."""

    @property
    def broke(self) -> bool:
        """A server that does not keep up holds no SLO for long, whatever a short step says."""
        return self.verdict == "FAIL" or self.class_ == "OVERLOAD"

    @property
    def weight(self) -> float:
        """Independent requests, and never nothing."""
        known = self.requests if self.effective_requests is None else self.effective_requests
        return max(1.0, known)


# --- what steps say together ----------------------------------------------------------------------


@dataclass(slots=True)
class Level:
    """One rate and its valid steps, in the order in which they ran."""

    rate: float
    allowed: float
    """Share of misses."""
    results: list[Result] = field(default_factory=list)

    @property
    def counted(self) -> list[Result]:
        """All but short steps that broke where a later one did not: they met an accident."""
        last = max((i for i, one in enumerate(self.results) if not one.broke), default=0)
        return [
            one
            for i, one in enumerate(self.results)
            if i >= last or not one.broke or one.role not in IN_PASSING
        ]

    @property
    def is_glance(self) -> bool:
        """A single short step of the curve: too little to overrule what was repeated above it."""
        return [result.role for result in self.results] == ["curve"]

    @property
    def verdict(self) -> Verdict:
        """FAIL when a repeat of the answer broke, or the last step did. PASS when all passed;
        otherwise what their misses say together."""
        counted = self.counted
        repeats = [result for result in counted if result.role == "confirm"]
        if any(result.broke for result in repeats or counted[-1:]):
            return "FAIL"
        if all(result.verdict == "PASS" for result in counted):
            return "PASS"
        return self._together()

    @property
    def share(self) -> float:
        """Of misses. A step judged by another SLO counts as near to breaking as it was."""
        counted = self.counted
        missed = sum(one.misses * self.allowed / (one.allowed or self.allowed) for one in counted)
        return min(1.0, missed / max(1, sum(one.requests for one in counted)))

    @property
    def weight(self) -> float:
        """Independent requests."""
        return sum(result.weight for result in self.counted)

    @property
    def seems_to_hold(self) -> bool:
        """It passed; or it was only looked at in passing, and no more was late than may be."""
        in_passing = all(result.role in IN_PASSING for result in self.results)
        return self.verdict == "PASS" or (
            self.verdict == "UNDECIDED" and in_passing and self.share <= self.allowed
        )

    def requests_needed(self) -> float:
        """About how many independent requests would decide, were their share of misses the true
        one: (1.645 / distance)^2 share (1 - share), and what a sample without a miss needs."""
        distance = max(1e-9, abs(self.share - self.allowed))
        spread = max(self.share, 0.25 * self.allowed)
        return max(3.0 / self.allowed, (1.645 / distance) ** 2 * spread * (1.0 - spread))

    def _together(self) -> Verdict:
        if any(
            one.verdict == "UNDECIDED" and one.effective_requests is None for one in self.counted
        ):
            return "UNDECIDED"  # by another SLO than the one whose misses are known here
        low, high = share_bounds(self.share * self.weight, self.weight)
        if high <= self.allowed:
            return "PASS"
        return "FAIL" if low > self.allowed else "UNDECIDED"


def levels(results: Sequence[Result], allowed: float) -> list[Level]:
    """The valid results by rising rate. The base only counts while there is nothing else: a
    service that was slow to start may have failed there."""
    found: dict[float, Level] = {}
    valid = [result for result in results if result.verdict != "INVALID"]
    for result in [one for one in valid if one.role != "base"] or valid:
        found.setdefault(result.rate, Level(result.rate, allowed)).results.append(result)
    return [found[rate] for rate in sorted(found)]


def limit_of(results: Sequence[Result], allowed: float, seed: int = 1) -> Limit | None:
    """The limit that steps at any rates show; None when none of them holds the SLO.

    `allowed`: the share of misses that the SLO allows. A rate that passed above one that failed
    does not count. `at_least`: nothing failed.
    """
    known = levels(results, allowed)
    top = max((level.rate for level in known if level.verdict == "PASS"), default=0.0)
    failed = [level for level in known if level.verdict == "FAIL"]
    high = min((one.rate for one in failed if one.rate > top or not one.is_glance), default=None)
    below = [level for level in known if high is None or level.rate < high]
    low = max((level.rate for level in below if level.verdict == "PASS"), default=None)
    if high is None:
        return None if low is None else Limit(rate=low, low=low, high=None, at_least=True)
    if not below:
        return None
    return Limit(
        rate=_crossing(known, allowed, low, high),
        low=low,
        high=high,
        at_least=False,
        interval=crossing_interval(*_columns(known), allowed, np.random.default_rng(seed)),
    )


def _crossing(known: list[Level], allowed: float, low: float | None, high: float) -> float | None:
    """The isotonic estimate, held between what passed and what failed."""
    rate = crossing(*_columns(known), allowed)
    if rate is None:
        return None if low is None else math.sqrt(low * high)
    return min(high, max(rate, low or 0.0))


def _columns(known: list[Level]) -> tuple[list[float], list[float], list[float]]:
    """Rates, shares of misses, weights."""
    return (
        [level.rate for level in known],
        [level.share for level in known],
        [level.weight for level in known],
    )


# --- the search -----------------------------------------------------------------------------------

Steps = Generator[Planned, Result, Result | None]
"""Plans steps, is sent their results, and returns the last; None when none could be run."""
Phase = Generator[Planned, Result, None]


class Search:
    """Plans step after step. Everything random in it comes from the seed."""

    def __init__(self, settings: SearchSettings, slos: Sequence[Slo]) -> None:
        self.settings = settings
        self.allowed = allowed_share(slos)
        self._threshold = tightest_threshold(tuple(slos)) or 0.0
        self.results: list[Result] = []
        """All that were added, at the rates that were planned."""
        self.done = ""
        """Why no further step is planned; empty while there are more."""
        self._reason = "every phase is through"
        self._rng = np.random.default_rng(settings.seed)
        self._spent = 0.0
        self._num_requests = 0.0
        self._overheads: list[tuple[float, float]] = [(0.0, USUAL_OVERHEAD)]
        """(rate, seconds besides warm-up and measuring) of each step."""
        self._base_rate = self._capped(min(BASE_RATE, (settings.start or math.inf) / 4.0))
        self._usual_response = 0.0
        self._ceiling = math.inf
        """The lowest rate at which the tester gave out."""
        self._planned: Planned | None = None
        self._result: Result | None = None
        self._steps = self._phases()

    def next(self, spent: float) -> Planned | None:
        """The next step, or None at the end. `spent`: wall seconds since the search began. The
        result of the step before must have been added."""
        assert self._planned is None or self._result is not None, "the last step has no result"
        self._spent = spent
        result, self._result, self._planned = self._result, None, None
        try:
            self._planned = next(self._steps) if result is None else self._steps.send(result)
        except StopIteration:
            self.done = self._reason
        return self._planned

    def add(self, result: Result) -> None:
        """What came of the step that was planned last."""
        planned = self._planned
        assert planned is not None, "no step was planned"
        self._result = replace(result, rate=planned.rate)
        self.results.append(self._result)
        self._num_requests += planned.rate * (planned.seconds + planned.warm_up)
        beside = result.spent - planned.seconds - planned.warm_up
        self._overheads.append((planned.rate, beside))

    def limit(self) -> Limit | None:
        """From all steps so far; None when no rate holds the SLO, as far as is known."""
        return limit_of(self.results, self.allowed, self.settings.seed)

    def unresolved(self) -> list[str]:
        """What the budget, or the tester, did not suffice to say."""
        return list(self._open_questions())

    def _open_questions(self) -> Iterator[str]:
        known, limit = self.levels(), self.limit()
        disturbed = sum(result.disturbed for result in self.results)
        if disturbed:
            yield f"{disturbed} steps were disturbed by others on the tester's cores: run it again"
        if self._ceiling < math.inf:
            yield f"the tester gave out at {format_rate(self._ceiling)}"
        if limit is None:
            yield f"no limit: {self.done or 'the search has not ended'}"
            return
        if limit.high is None:
            yield f"no rate failed up to {format_rate(known[-1].rate)}"
        elif limit.low is None:
            yield f"no rate passed below {format_rate(limit.high)}: more time is needed"
        elif limit.high > BIMODAL * self.settings.tolerance * limit.low:
            span = f"between {format_rate(limit.low)} and {format_rate(limit.high)}"
            yield f"{span} the SLO is undecided"
        yield from _contradictions(known)
        if limit.low is not None and not self._is_repeated(limit.low):
            yield f"{format_rate(limit.low)} was not repeated"
        if not any(result.class_ == "OVERLOAD" for result in self.results):
            yield f"no overload was seen up to {format_rate(known[-1].rate)}"
        if len(known) < ENOUGH_POINTS:
            yield f"the latency curve has only {len(known)} points"

    def _is_repeated(self, rate: float) -> bool:
        return any(result.role == "confirm" and result.rate == rate for result in self.results)

    # the phases, in order

    def _phases(self) -> Phase:
        if (yield from self._base()):
            yield from self._bracket()
            yield from self._bisect()
            yield from self._confirm()
            yield from self._curve()

    def _base(self) -> Generator[Planned, Result, bool]:
        """A light load that holds the SLO: a quarter of the rate each time it does not. A service
        that is only slow to start gains time by it. False: there is none."""
        lowest = min(self._base_rate, LOWEST_RATE)
        while result := (yield from self._step("base", self._base_rate, self._base_seconds())):
            usual = result.mean_response or math.inf
            if result.misses <= max(1.0, self.allowed * result.requests) < result.requests:
                self._usual_response = result.mean_response or 0.0
                return True
            if self._base_rate <= lowest or usual * self._base_rate < LIGHT:
                self._reason = "no rate holds the SLO"
                return False
            self._base_rate = max(lowest, self._base_rate / 4.0)
        return False

    def _base_seconds(self) -> float:
        """For a handful of requests at least, if that is not too long."""
        longest = min(BASE_SECONDS, self._length(LONG))
        return max(longest, min(HANDFUL / self._base_rate, 0.2 * self.settings.budget))

    def _bracket(self) -> Phase:
        """Double the rate until it fails or overloads. Once may be an accident, unless a tenth of
        the load was left undone. What is only undecided goes on."""
        rate, num_broke = self._first_rate(), 0
        while result := (yield from self._step("bracket", rate, self._short(rate))):
            num_broke = num_broke + 1 if result.broke else 0
            left_undone = result.class_ == "OVERLOAD" and result.achieved < LEFT_UNDONE * rate
            if left_undone or num_broke == 2 or rate >= self._capped(math.inf):
                return
            growth = GROWTH_FAR if self._is_far(result) else GROWTH
            rate = rate if num_broke else self._capped(growth * rate)

    def _bisect(self, until: float = UNTIL_BISECTED) -> Phase:
        """Halve the gap, in logarithms, between what holds and what does not. A rate that stays
        undecided is closed in from both sides."""
        while (rate := self._next_to_try()) is not None:
            held, failed = self._gap()
            end = max(until, UNTIL_NARROW) if failed > WIDE * held else until
            if not self._has_time(end) or (yield from self._decided("bisect", rate, end)) is None:
                return

    def _confirm(self) -> Phase:
        """Repeat the answer, mixed with rates beside it. When a repeat fails it is lowered; when
        nothing near below is known to hold, that is bisected first."""
        answer = self._highest_held()
        while answer is not None and self._has_time(UNTIL_CONFIRMED):
            if (yield from self._repeated(answer)) is None or not self._failed(answer):
                return
            answer *= RETREAT
            if (self._highest_held() or 0.0) < NEARBY[0] * answer:
                yield from self._bisect(UNTIL_CONFIRMED)
                answer = self._highest_held()

    def _curve(self) -> Phase:
        """First an overloaded point, so that the capacity is seen; then what the curve lacks."""
        yield from self._until_overloaded()
        limit = self.limit()
        answer = 0.0 if limit is None else limit.rate or 0.0
        missing = [share * answer for share in CURVE if answer and self._is_new(share * answer)]
        for index, rate in enumerate(self._shuffled(missing)):
            left = (self.settings.budget - self._spent) / (len(missing) - index)
            fair = 0.8 * (left - self._overhead_at(rate))
            seconds = min(self._length(LONG), max(self.settings.min_seconds, fair))
            result = yield from self._step("curve", rate, seconds)
            if result is not None and result.broke and rate < answer:
                yield from self._step("curve", rate, self._length(LONG))

    def _is_far(self, result: Result) -> bool:
        """Latency has hardly grown, and half of the threshold is left: the limit is far away."""
        p95 = result.p95
        return result.class_ == "LINEAR" and p95 is not None and p95 < 0.5 * self._threshold

    # their parts

    def _repeated(self, answer: float) -> Steps:
        left = UNTIL_CONFIRMED * self.settings.budget - self._spent
        affordable = max(1, int(left / self._cost(self._length(LONG))))
        num_repeats = max(1, min(self.settings.confirmations, round(0.7 * affordable)))
        beside = [share * answer for share in NEARBY][: max(0, affordable - num_repeats)]
        last = None
        for rate in self._shuffled([answer] * num_repeats + beside):
            ran = yield from self._step("confirm", self._capped(rate), self._length(LONG))
            last = ran or last
            if self._failed(answer):
                break
        return last

    def _until_overloaded(self) -> Phase:
        while not any(result.class_ == "OVERLOAD" for result in self.results):
            top = max(result.rate for result in self.results)
            rate = self._capped(OVERLOADED * top)
            if rate <= top or (yield from self._step("curve", rate, self._short(rate))) is None:
                return

    def _decided(self, role: Role, rate: float, until: float) -> Steps:
        """Steps at one rate until they decide together, or more would not help."""
        result = yield from self._step(role, rate, self._length(LONG))
        for _ in range(MAX_EXTENSIONS):
            seconds = self._seconds_needed(rate)
            if result is None or seconds is None or not self._has_time(until):
                break
            result = (yield from self._step(role, rate, seconds, extend=True)) or result
        return result

    def _step(self, role: Role, rate: float, seconds: float, *, extend: bool = False) -> Steps:
        """One valid step; None when budget or tester do not allow it."""
        num_own = num_disturbed = 0
        while num_own <= RETRIES and num_disturbed < PATIENCE:
            planned = self._fitted(role, rate, seconds, extend=extend)
            if planned is None or rate >= self._ceiling:
                return None
            result = yield planned
            if result.verdict != "INVALID":
                return result
            num_disturbed += result.disturbed
            num_own += not result.disturbed
        if num_own > RETRIES:
            self._ceiling = rate
        else:
            self._reason = "others used the tester's cores"
        return None

    def _fitted(self, role: Role, rate: float, seconds: float, *, extend: bool) -> Planned | None:
        """The step, shortened to the time and the requests that are left; None: too short."""
        settings = self.settings
        time_left = settings.budget - self._spent - self._overhead_at(rate)
        requests_left = settings.max_requests - self._num_requests
        available = min(time_left, requests_left / rate)
        warm_up = self._warm_up(seconds)
        if warm_up + seconds > available and settings.warm_up is None:
            warm_up = min(warm_up, 0.2 * available)
        seconds = min(seconds, available - warm_up)
        if seconds >= settings.min_seconds and rate * seconds >= FEWEST_REQUESTS:
            return Planned(role, rate, seconds, warm_up, extend)
        self._reason = "no time left" if time_left * rate < requests_left else "no requests left"
        return None

    # which rate

    def _first_rate(self) -> float:
        settings = self.settings
        usual = LIGHT / self._usual_response if self._usual_response > 0.0 else math.inf
        return self._capped(settings.start or min(1000.0, max(GROWTH * self._base_rate, usual)))

    def _next_to_try(self) -> float | None:
        """First the rate that seems to hold, if it was only looked at in passing; then the middle
        of the widest gap above the tolerance; then the lowest rate that failed, if it did so only
        once. None: nothing more to learn."""
        low, top = self._gap()
        if math.isinf(top):
            return None
        held, failed = self._level(low), self._level(top)
        if held is not None and held.verdict == "UNDECIDED":
            return low
        undecided = [level.rate for level in self.levels() if low < level.rate < top]
        below, above = _widest_gap([low, *undecided, top])
        if above > below * (TESTER_TOLERANCE if failed is None else self.settings.tolerance):
            return math.sqrt(below * above)
        return top if failed is not None and len(failed.results) == 1 else None

    def _gap(self) -> tuple[float, float]:
        """The highest rate that holds, else that of the base; and the lowest that failed, or at
        which the tester gave out."""
        failed = (level.rate for level in self.levels() if level.verdict == "FAIL")
        return self._highest_held() or self._base_rate, min(self._ceiling, *failed, math.inf)

    def _highest_held(self) -> float | None:
        """Below all that failed."""
        held = None
        for level in self.levels():
            if level.verdict == "FAIL":
                break
            held = level.rate if level.seems_to_hold else held
        return held

    def _level(self, rate: float) -> Level | None:
        return next((level for level in self.levels() if level.rate == rate), None)

    def _failed(self, rate: float) -> bool:
        level = self._level(rate)
        return level is not None and level.verdict == "FAIL"

    def levels(self) -> list[Level]:
        return levels(self.results, self.allowed)

    def _is_new(self, rate: float) -> bool:
        if rate > self._capped(rate):
            return False
        near = (max(rate, level.rate) / min(rate, level.rate) for level in self.levels())
        return all(ratio > SAME_POINT for ratio in near)

    def _capped(self, rate: float) -> float:
        return rate if self.settings.max_rate is None else min(rate, self.settings.max_rate)

    def _shuffled(self, rates: list[float]) -> list[float]:
        """So that a drift of the service does not look like an effect of the rate."""
        return [float(rate) for rate in self._rng.permutation(rates)]

    # how long

    def _length(self, share: float) -> float:
        """That share of the budget, within what a step may take."""
        wanted = share * self.settings.budget
        return min(self.settings.max_seconds, max(self.settings.min_seconds, wanted))

    def _short(self, rate: float) -> float:
        return min(self._length(SHORT), max(self.settings.min_seconds, SHORT_REQUESTS / rate))

    def _seconds_needed(self, rate: float) -> float | None:
        """To decide an undecided rate; None: it is decided, or that would take too long."""
        level = self._level(rate)
        if level is None or level.verdict != "UNDECIDED":
            return None
        measured = sum(result.requests for result in level.results) / rate
        more = measured * (1.2 * level.requests_needed() / level.weight - 1.0)
        longest = min(self.settings.max_seconds, 2.0 * self._length(LONG))
        return max(self.settings.min_seconds, more) if more <= longest else None

    def _warm_up(self, seconds: float) -> float:
        if self.settings.warm_up is not None:
            return self.settings.warm_up
        return max(0.2 * seconds, min(3.0 * self._usual_response, seconds))

    def _cost(self, seconds: float) -> float:
        usual = float(np.median([beside for _, beside in self._overheads]))
        return seconds + self._warm_up(seconds) + usual

    def _overhead_at(self, rate: float) -> float:
        """The longest seen at about this rate or above; where no step has been, the server may
        have to be drained."""
        seen = [beside for at, beside in self._overheads if at > 0.9 * rate]
        return max(seen) if seen else self._overheads[-1][1] + DRAIN

    def _has_time(self, until: float) -> bool:
        """Whether a long step would end before that share of the budget."""
        return self._spent + self._cost(self._length(LONG)) <= until * self.settings.budget


def _contradictions(known: list[Level]) -> Iterator[str]:
    top = max((level.rate for level in known if level.verdict == "PASS"), default=0.0)
    for level in known:
        if level.verdict == "FAIL" and BIMODAL * level.rate < top:
            then = "once, in a short step" if level.is_glance else "so the lower one is kept"
            yield f"bimodal: {format_rate(top)} passed; {format_rate(level.rate)} failed, {then}"


def _widest_gap(rates: list[float]) -> tuple[float, float]:
    """The first or the last, whichever is wider: those between them bound undecided rates."""
    return max((rates[0], rates[1]), (rates[-2], rates[-1]), key=lambda gap: gap[1] / gap[0])


def allowed_share(slos: Sequence[Slo]) -> float:
    """Share of misses: of the tightest latency SLO, else of the availability."""
    found = latencies(tuple(slos))
    if found:
        return 1.0 - found[0].objective
    stated = [slo.objective for slo in slos if isinstance(slo, Availability)]
    return 1.0 - max(stated, default=0.999)
