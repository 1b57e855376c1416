"""Is a service slower than it was? Two sets of recordings at one rate, before and after.

Requests behind each other in a queue are late together, so their number says little about how well
a percentile is known. Both sides are therefore cut into `NUM_BATCHES` stretches of time, and
what is compared is how many requests of each stretch are slower than one threshold: the scatter
between stretches holds the autocorrelation, stretches that still resemble their neighbours widen it
further. The interval of the ratio of two percentiles is every ratio that this test does not reject.

How often that is wrong on queues whose truth is known is calibrated in its tests; `docs/prove.md`
quotes the table.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from tailproof.core.recording import Floats, Recording
from tailproof.core.statistics import regularized_beta
from tailproof.core.units import format_duration

Outcome = Literal["better", "worse", "no difference", "undecided"]

TOLERANCE = 1.02
"""Nobody acts on less than 2%: such a ratio is no difference, however sure it is."""

TELLING = 1.3
"""Where a ratio of 1.3 (or 1/1.3) cannot be ruled out, `no difference` says so."""

MISS_TOLERANCE = 0.001
"""Share of misses that two services may differ by: what the availability of 99.9% allows that
holds unless another one is declared."""

TELLING_MISSES = 0.02
"""As TELLING, for the difference between two shares of misses."""

NUM_BATCHES = 20
MIN_REQUESTS = 40
"""On each side: two a batch."""

_WIDEST = math.log(1e3)
"""No end of an interval is looked for beyond this factor of the ratio."""
_LAST_FINITE = float(np.finfo(np.float64).max)
"""What is above it is a miss."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """What became of one figure. Seconds for a percentile, a share (0-1) for misses."""

    outcome: Outcome
    before: float | None
    """None: it falls on a miss, or there are too few requests."""
    after: float | None
    ratio: float | None
    """after / before; above 1 is slower."""
    low: float | None
    """Interval of the ratio; for misses of the difference after - before. None: no bound."""
    high: float | None
    p: float
    """Chance of such a figure where nothing beyond the tolerance has changed (two-sided)."""
    reason: str


def compare(
    before: Sequence[Recording],
    after: Sequence[Recording],
    percentile: float,
    confidence: float = 0.95,
) -> Comparison:
    """Whether a percentile of the response time has changed.

    Each recording holds the measured requests of one step; all are of (nearly) the same rate. A
    miss is infinitely late: where the percentile falls on misses on both sides, more misses are
    worse. `percentile` is 0-100.
    """
    sides = _side(before), _side(after)
    if min(len(side.response) for side in sides) < MIN_REQUESTS:
        return _too_few(f"P{percentile:g}")
    first, second = (side.quantile(percentile) for side in sides)
    if math.isinf(first) and math.isinf(second):
        return compare_misses(before, after, confidence)
    return _judged_ratio(_Ratio(*sides, first, second), percentile, confidence)


def compare_misses(
    before: Sequence[Recording], after: Sequence[Recording], confidence: float = 0.95
) -> Comparison:
    """Whether the share of requests without a good answer has changed."""
    sides = _side(before), _side(after)
    if min(len(side.response) for side in sides) < MIN_REQUESTS:
        return _too_few("the share of misses")
    first, second = (side.above(_LAST_FINITE) for side in sides)
    return _judged_misses(first, second, confidence)


class _Share(NamedTuple):
    """How many requests are above a threshold."""

    mean: float
    variance: float
    """Of the mean."""
    num_batches: int
    requests: int


@dataclass(frozen=True, slots=True, eq=False)
class _Side:
    response: Floats
    """Of all recordings, one after the other. Shape (requests,)."""
    starts: npt.NDArray[np.intp]
    """Index of the first request of each batch."""
    continues: npt.NDArray[np.bool_]
    """Whether the batch after this one is of the same recording. Shape (batches - 1,)."""

    def quantile(self, percent: float) -> float:
        """By nearest rank."""
        rank = max(math.ceil(percent * len(self.response) / 100.0), 1) - 1
        return float(np.partition(self.response, rank)[rank])

    def above(self, threshold: float) -> _Share:
        """Ratio estimate over batches of unequal size; where neighbours resemble each other, the
        variance grows as that of an AR(1) process with their correlation: (1 + r) / (1 - r)."""
        late = self.response > threshold
        requests, num = len(late), len(self.starts)
        sizes = np.diff(self.starts, append=requests)
        counts = np.add.reduceat(late, self.starts, dtype=np.float64)
        mean = float(counts.sum() / requests)
        excess = counts - mean * sizes
        scatter = float(excess @ excess)
        if scatter == 0.0:
            return _Share(mean, 0.0, num, requests)
        alike = float((excess[:-1] * excess[1:])[self.continues].sum()) / scatter
        alike = min(max(alike, 0.0), 0.9)
        variance = num / (num - 1) * scatter / requests**2 * (1.0 + alike) / (1.0 - alike)
        return _Share(mean, variance, num, requests)


@dataclass(frozen=True, slots=True)
class _Ratio:
    """Hypotheses: `after` is `before` times exp(x)."""

    before: _Side
    after: _Side
    first: float
    second: float
    """The percentile of each; one may be infinite."""

    def statistic(self, log_ratio: float) -> tuple[float, float]:
        """Student's t and its degrees of freedom: positive where `after` is slower than that.

        The threshold is the lower of the two percentiles: where one side is far slower, nearly all
        of it is then above, instead of only the end of a backlog that still grows.
        """
        ratio = math.exp(log_ratio)
        return _welch(
            self.before.above(min(self.first, self.second / ratio)),
            self.after.above(min(self.first * ratio, self.second)),
        )


@dataclass(frozen=True, slots=True)
class _Difference:
    """Hypotheses: `after` is `before` plus x."""

    before: _Share
    after: _Share

    def statistic(self, difference: float) -> tuple[float, float]:
        return _welch(self.before, self.after, difference)


def _side(recordings: Sequence[Recording]) -> _Side:
    parts = [part.response for part in recordings if len(part)]
    total = sum(map(len, parts))
    starts: list[int] = []
    continues: list[bool] = []
    begin = 0
    for part in parts:
        num = min(max(round(NUM_BATCHES * len(part) / total), 1), len(part))
        starts += (begin + np.arange(num) * len(part) // num).tolist()
        continues += [True] * (num - 1) + [False]
        begin += len(part)
    response = np.concatenate(parts) if parts else np.empty(0)
    return _Side(response, np.array(starts, np.intp), np.array(continues[:-1], np.bool_))


def _welch(before: _Share, after: _Share, margin: float = 0.0) -> tuple[float, float]:
    """t of `after - before - margin` and its degrees of freedom (Welch-Satterthwaite). No variance
    is less than that of independent requests; one more late request keeps it above 0."""
    num_late = before.mean * before.requests + after.mean * after.requests
    pooled = (num_late + 1.0) / (before.requests + after.requests + 2.0)
    first, second = (
        max(side.variance, pooled * (1.0 - pooled) / side.requests) for side in (before, after)
    )
    freedom = (first + second) ** 2 / (
        first**2 / (before.num_batches - 1) + second**2 / (after.num_batches - 1)
    )
    return (after.mean - before.mean - margin) / math.sqrt(first + second), freedom


def _tail(t: float, freedom: float) -> float:
    """P(T > t) of Student's t."""
    beyond = regularized_beta(freedom / (freedom + t * t), freedom / 2.0, 0.5) / 2.0
    return beyond if t > 0.0 else 1.0 - beyond


def _judged_ratio(test: _Ratio, percentile: float, confidence: float) -> Comparison:
    before, after = (value if math.isfinite(value) else None for value in (test.first, test.second))
    ratio = after / before if before and after else None
    p, slower = _evidence(test, math.log(TOLERANCE))
    centre = math.log(ratio or 1.0)
    ends = _interval(test, centre - _WIDEST, centre + _WIDEST, 1.0 - confidence)
    low, high = (_within_reach(end, centre) for end in ends)
    close = low is not None and high is not None and low > 1.0 / TELLING and high < TELLING
    outcome = _outcome(p < 1.0 - confidence, slower=slower)
    was, became = (
        "a miss" if value is None else format_duration(value) for value in (before, after)
    )
    reason = (
        f"{outcome}: P{percentile:g} was {was}, then {became} "
        f"(ratio {_bound(low)} to {_bound(high)}){_unseen(outcome, close=close)}"
    )
    return Comparison(outcome, before, after, ratio, low, high, p, reason)


def _judged_misses(before: _Share, after: _Share, confidence: float) -> Comparison:
    test = _Difference(before, after)
    p, slower = _evidence(test, MISS_TOLERANCE)
    low, high = _interval(test, -2.0, 2.0, 1.0 - confidence)
    close = low > -TELLING_MISSES and high < TELLING_MISSES
    outcome = _outcome(p < 1.0 - confidence, slower=slower)
    ratio = after.mean / before.mean if before.mean else None
    reason = (
        f"{outcome}: {before.mean:.2%} of the requests had no good answer, then {after.mean:.2%} "
        f"(difference {100 * low:+.2f} to {100 * high:+.2f} points){_unseen(outcome, close=close)}"
    )
    return Comparison(outcome, before.mean, after.mean, ratio, low, high, p, reason)


def _evidence(test: _Ratio | _Difference, tolerance: float) -> tuple[float, bool]:
    """Two-sided p of a change beyond the tolerance, and whether it is to the slower side."""
    slower, faster = _chance_above(test, tolerance), _chance_below(test, -tolerance)
    return min(1.0, 2.0 * min(slower, faster)), slower < faster


def _interval(
    test: _Ratio | _Difference, least: float, most: float, level: float
) -> tuple[float, float]:
    """All hypotheses in [least, most] that are not rejected at `level` (two-sided)."""
    low = _crossing(lambda x: _chance_above(test, x) - level / 2.0, least, most)
    high = _crossing(lambda x: level / 2.0 - _chance_below(test, x), least, most)
    return low, high


def _chance_above(test: _Ratio | _Difference, hypothesis: float) -> float:
    return _tail(*test.statistic(hypothesis))


def _chance_below(test: _Ratio | _Difference, hypothesis: float) -> float:
    t, freedom = test.statistic(hypothesis)
    return _tail(-t, freedom)


def _crossing(rising: Callable[[float], float], low: float, high: float) -> float:
    """Where a rising function crosses 0, by bisection to 10^-7 of the range."""
    for _ in range(24):
        middle = (low + high) / 2.0
        if rising(middle) < 0.0:
            low = middle
        else:
            high = middle
    return (low + high) / 2.0


def _within_reach(end: float, centre: float) -> float | None:
    return math.exp(end) if abs(end - centre) < 0.99 * _WIDEST else None


def _outcome(changed: bool, *, slower: bool) -> Outcome:
    if changed:
        return "worse" if slower else "better"
    return "no difference"


def _unseen(outcome: Outcome, *, close: bool) -> str:
    """What an interval that reaches far has to say for itself."""
    if close or outcome != "no difference":
        return ""
    return "; a change within that could not have been seen: measure for longer"


def _too_few(what: str) -> Comparison:
    reason = f"undecided: fewer than {MIN_REQUESTS} requests say nothing about {what}"
    return Comparison("undecided", None, None, None, None, None, 1.0, reason)


def _told(seconds: float | None) -> str:
    return "a miss" if seconds is None else format_duration(seconds)


def _bound(value: float | None) -> str:
    return "no bound" if value is None else f"{value:.2f}"
