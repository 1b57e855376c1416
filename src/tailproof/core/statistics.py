"""What a sample says, and how much: percentiles, their intervals, curves and shapes of arrival.

Requests in a queue are not independent: one busy spell makes many of them late together. Taken as
independent they promise far more than they know (the textbook 95% interval of a P99 holds the
truth in 12% of runs at utilization 0.8). So everything here that speaks of certainty first asks
how many independent requests the sample is worth: its number divided by the `design_effect`.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from tailproof.core.recording import Bools, Floats

PERCENTS = {"p50": 50.0, "p90": 90.0, "p95": 95.0, "p99": 99.0, "p99_9": 99.9}

NUM_BATCHES = 20
"""Parts of a run whose means are compared. Fewer say less about their spread, more would each be
too short to be independent of the next."""

PROXY_SHARE = 0.1
"""While fewer are late, the slowest tenth shows how slow requests come together."""

_CONFIDENCE = 0.95


# --- percentiles ----------------------------------------------------------------------------------


def percentile(values: npt.ArrayLike, percent: float) -> float | None:
    """The smallest value that at least `percent` % of `values` do not exceed (nearest rank).

    Infinite values are misses. None when there are no values, or the rank falls on a miss.
    """
    return _finite(_at_rank(np.sort(np.asarray(values, np.float64)), percent))


def describe(values: npt.ArrayLike, *, intervals: bool = False) -> dict[str, Any]:
    """The fields of `reporting.document.Percentiles`; `max` and `mean` are over finite values.

    `values`, shape (n,), come in order of intended start. A percentile is `resolved` when, with
    95% confidence, something in the sample is above it: q^m <= 5% for the m independent requests
    that the sample is worth (59 for P95, 299 for P99, 2,995 for P99.9). One that falls on a miss
    is in `infinite` and not resolved. `intervals` adds `quantile_interval` for each finite one.
    """
    found = np.asarray(values, np.float64)
    ordered = np.sort(found)
    finite = ordered[: np.searchsorted(ordered, np.inf)]
    ranked = {name: _at_rank(ordered, percent) for name, percent in PERCENTS.items()}
    known = {name: value for name, value in ranked.items() if value is not None}
    return {
        **{name: _finite(value) for name, value in ranked.items()},
        "max": float(finite[-1]) if len(finite) else None,
        "mean": float(finite.mean()) if len(finite) else None,
        "resolved": [name for name, value in known.items() if _is_resolved(found, name, value)],
        "infinite": [name for name, value in known.items() if math.isinf(value)],
        "intervals": {
            name: quantile_interval(found, PERCENTS[name])
            for name, value in known.items()
            if intervals and math.isfinite(value)
        },
    }


def quantile_interval(
    values: npt.ArrayLike, percent: float, *, confidence: float = _CONFIDENCE
) -> tuple[float, float | None]:
    """Two-sided interval of a percentile, in the unit of `values`, that allows for autocorrelation.

    Ranks of order statistics for as many independent values as the sample is worth, by the means
    of 20 batches of 1[value > percentile] (Conway 1963); widened by Student's t for so few batches,
    and never narrower than for independent values. No upper end: the sample is too short for one.

    `values`, shape (n,), in order of intended start. Raises ValueError when there are none.
    """
    found = np.asarray(values, np.float64)
    ordered = np.sort(found)
    center = _at_rank(ordered, percent)
    if center is None:
        raise ValueError("no values to take a percentile of")
    num, q, alpha = len(found), percent / 100.0, (1.0 - confidence) / 2.0
    df = NUM_BATCHES - 1
    widening = (student_t(1.0 - alpha, df) / student_t(1.0 - alpha, 1e6)) ** 2
    effect = max(1.0, widening * _spread_of_batches(found > center))
    worth = num / effect
    below = _count_at(alpha, worth, q)
    above = _count_at(alpha, worth, 1.0 - q)
    low = ordered[max(math.ceil(below * effect) - 1, 0)] if below is not None else ordered[0]
    if above is None:
        return float(low), None
    return float(low), _finite(float(ordered[num - 1 - math.floor(above * effect)]))


def _at_rank(ordered: Floats, percent: float) -> float | None:
    """Nearest rank; the tiny term keeps 99.9% of 1,000 at rank 999 whatever the rounding."""
    num = len(ordered)
    if num == 0:
        return None
    rank = math.ceil(percent * num / 100.0 - 1e-9)
    return float(ordered[min(max(rank, 1), num) - 1])


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _is_resolved(values: Floats, name: str, value: float) -> bool:
    if math.isinf(value):
        return False
    worth = len(values) / design_effect(values > value, values)
    return bool((PERCENTS[name] / 100.0) ** worth <= 1.0 - _CONFIDENCE)


def _count_at(alpha: float, num: float, share: float) -> float | None:
    """The largest real c with P(Binomial(num, share) <= c) <= alpha; None if there is none.

    P(Binomial(n, p) <= c) = I_{1-p}(n - c, c + 1), which also reads for real n and c.
    """

    def at_most(count: float) -> float:
        return regularized_beta(1.0 - share, num - count, count + 1.0)

    if at_most(0.0) > alpha:
        return None
    return _bisect(lambda count: at_most(count) - alpha, 0.0, num * share)


# --- how many independent requests a sample is worth ----------------------------------------------


def design_effect(is_miss: Bools, response: Floats | None = None) -> float:
    """How many of these requests say as much as one independent request: from 1 to n / 20.

    The larger of two estimates, because each is blind where the other sees:

    - how many *come together*, by the gaps between them: the inverse of the extremal index, by
      the intervals estimator (Ferro and Segers 2003). It has no window to choose, is 1 for
      independent misses however many, and works with few of them. With fewer than a tenth late it
      asks the slowest tenth of `response` instead: a run without any miss still shows how its
      slow requests cluster.
    - how much the share of misses *differs between 20 batches*, over what independent misses
      would. It sees slow swings and drift, and needs many misses.

    Both look at whichever is rarer, misses or the others. Nothing beyond n / 20: a spell longer
    than a batch cannot be told from a change of level.

    `is_miss` and `response` (seconds, infinite for misses), shape (n,), in order of intended start.
    """
    num = len(is_miss)
    marks = is_miss
    if response is not None and is_miss.sum() < PROXY_SHARE * num:
        rank = num - math.floor(PROXY_SHARE * num) - 1
        marks = response > np.partition(response, rank)[rank]
    effect = max(_mean_spell(marks), _mean_spell(is_miss), _spread_of_batches(is_miss))
    return max(1.0, min(effect, num / NUM_BATCHES))


def clusters(is_miss: Bools, gap: int = 20) -> int:
    """Into how many groups the misses fall; more than `gap` others between two part them.

    Means something only while misses are rare: of independent ones, one in `gap` is a single group.
    """
    where = np.flatnonzero(is_miss)
    return int(np.sum(np.diff(where) > gap + 1)) + 1 if len(where) else 0


def _mean_spell(marks: Bools) -> float:
    """1 / theta, theta = 2 (sum g)^2 / (N sum g (g - 1)), with g the others between two marks."""
    rare = marks if 2 * marks.sum() <= len(marks) else ~marks
    between = np.diff(np.flatnonzero(rare)).astype(np.float64) - 1.0
    if len(between) and not between.any():
        return len(between) + 1.0  # all in one block
    spread = float(np.sum(between * (between - 1.0)))
    return len(between) * spread / (2.0 * float(between.sum()) ** 2) if spread else 1.0


def _spread_of_batches(marks: Bools) -> float:
    """Variance of the batch means over that of independent marks; 1 where there is none."""
    size, share = len(marks) // NUM_BATCHES, float(marks.mean()) if len(marks) else 0.0
    if size < 2 or not 0.0 < share < 1.0:
        return 1.0
    means = marks[: size * NUM_BATCHES].reshape(NUM_BATCHES, size).mean(axis=1)
    return float(means.var(ddof=1)) * size / (share * (1.0 - share))


# --- bounds of a share ----------------------------------------------------------------------------


def share_bounds(count: float, num: float, confidence: float = _CONFIDENCE) -> tuple[float, float]:
    """One-sided bounds of a share, each at `confidence`, from `count` of `num` (Clopper and Pearson
    1934). Both may be fractions: counts divided by a design effect.

    Raises ValueError unless 0 <= count <= num and num > 0.
    """
    if not 0.0 <= count <= num or num <= 0.0:
        raise ValueError(f"expected 0 <= count <= num; got {count} of {num}")
    low = inverse_beta(1.0 - confidence, count, num - count + 1.0) if count > 0.0 else 0.0
    high = inverse_beta(confidence, count + 1.0, num - count) if count < num else 1.0
    return low, high


def regularized_beta(x: float, a: float, b: float) -> float:
    """I_x(a, b) for a, b > 0, by the continued fraction of DLMF 8.17.22 (Lentz's method)."""
    if x <= 0.0 or x >= 1.0:
        return float(x >= 1.0)
    if x > (a + 1.0) / (a + b + 2.0):
        return 1.0 - regularized_beta(1.0 - x, b, a)
    front = math.exp(a * math.log(x) + b * math.log1p(-x) - _log_beta(a, b)) / a
    return front * _beta_fraction(x, a, b)


def inverse_beta(p: float, a: float, b: float) -> float:
    """The x with I_x(a, b) = p: Newton's steps in the log odds of x, kept between two bounds."""
    low, high = -745.0, 745.0
    odds = math.log(a / b)
    for _ in range(200):
        x = _share_of(odds)
        error = regularized_beta(x, a, b) - p
        low, high = (low, odds) if error > 0.0 else (odds, high)
        log_slope = -a * _softplus(-odds) - b * _softplus(odds) - _log_beta(a, b)
        step = error / math.exp(log_slope) if log_slope > -700.0 else math.inf
        following = odds - step
        if not low < following < high:
            following = (low + high) / 2.0
        if abs(following - odds) < 1e-12 * max(1.0, abs(odds)):
            break
        odds = following
    return _share_of(odds)


def student_t(p: float, df: float) -> float:
    """The p-quantile of Student's t with `df` degrees of freedom, for p in [0.5, 1)."""
    x = inverse_beta(2.0 * (1.0 - p), df / 2.0, 0.5) if p > 0.5 else 1.0
    return math.sqrt(df * (1.0 / x - 1.0))


def _beta_fraction(x: float, a: float, b: float) -> float:
    tiny = 1e-300
    c, d = 1.0, 1.0 / (1.0 - (a + b) * x / (a + 1.0) or tiny)
    value = d
    for m in range(1, 100_000):
        even = m * (b - m) * x / ((a + 2 * m - 1.0) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1.0))
        for term in (even, odd):
            d = 1.0 / (1.0 + term * d or tiny)
            c = 1.0 + term / c or tiny
            value *= c * d
        if abs(c * d - 1.0) < 1e-15:
            break
    return value


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)


def _softplus(y: float) -> float:
    return max(y, 0.0) + math.log1p(math.exp(-abs(y)))


def _share_of(odds: float) -> float:
    return math.exp(-_softplus(-odds))


def _bisect(rising: Callable[[float], float], low: float, high: float) -> float:
    for _ in range(60):
        middle = (low + high) / 2.0
        low, high = (low, middle) if rising(middle) > 0.0 else (middle, high)
    return low


# --- warm-up --------------------------------------------------------------------------------------


def mser5(values: npt.ArrayLike) -> int | None:
    """How many first values to drop so that the rest is steady (MSER-5, White 1997; on logarithms).

    Means of fives; the cut that minimizes sum of squares / (what is left)^2, at most half of them.
    None: not steady yet (the best cut is at the half), or fewer than 20 values. Misses count as
    the slowest good answer.
    """
    found = np.asarray(values, np.float64)
    num = len(found) // 5
    if num < 4:
        return None
    finite = found[np.isfinite(found)]
    logs = np.log(np.clip(found, 1e-12, finite.max() if len(finite) else 1.0))
    means = logs[: num * 5].reshape(num, 5).mean(axis=1)
    means -= means.mean()  # sums of squares are taken by difference
    left = num - np.arange(num // 2 + 1)
    squares = np.cumsum((means**2)[::-1])[::-1][: len(left)]
    sums = np.cumsum(means[::-1])[::-1][: len(left)]
    best = int(np.argmin(np.maximum(squares - sums**2 / left, 0.0) / left**2))
    return best * 5 if best < num // 2 else None


# --- the curve of misses over rates ---------------------------------------------------------------


def isotonic(values: npt.ArrayLike, weights: npt.ArrayLike) -> Floats:
    """The closest rising curve by weighted squares: pool adjacent violators. Shape (n,)."""
    blocks: list[tuple[float, float, int]] = []  # mean, weight, length
    for value, weight in zip(np.asarray(values), np.asarray(weights), strict=True):
        mean, total, length = float(value), float(weight), 1
        while blocks and blocks[-1][0] >= mean:
            other, other_total, other_length = blocks.pop()
            mean = (mean * total + other * other_total) / (total + other_total)
            total, length = total + other_total, length + other_length
        blocks.append((mean, total, length))
    return np.repeat([mean for mean, _, _ in blocks], [length for _, _, length in blocks])


def crossing(
    rates: npt.ArrayLike, miss_shares: npt.ArrayLike, weights: npt.ArrayLike, allowed: float
) -> float | None:
    """The rate at which the rising curve through `miss_shares` reaches `allowed`.

    Between two rates the share is a straight line over the logarithm of the rate. `weights`: how
    many independent requests each share comes from (above 0). All shape (n,), in any order.
    None when every point is on one side.
    """
    xs, shares, num = _by_rate(rates, miss_shares, weights)
    place = _cross(xs, isotonic(shares, num), allowed) if len(xs) else math.inf
    return math.exp(place) if math.isfinite(place) else None


def crossing_interval(
    rates: npt.ArrayLike,
    miss_shares: npt.ArrayLike,
    weights: npt.ArrayLike,
    allowed: float,
    rng: np.random.Generator,
    *,
    num_draws: int = 1000,
) -> tuple[float, float] | None:
    """95% interval of `crossing` by parametric bootstrap.

    Each share is drawn anew from Beta(k + 1/2, n - k + 1/2), k = share * weight, so that a point
    without any miss is not taken for certain. A draw that never crosses counts as the lowest or
    highest rate. None when `crossing` is None.
    """
    if crossing(rates, miss_shares, weights, allowed) is None:
        return None
    xs, shares, num = _by_rate(rates, miss_shares, weights)
    drawn = rng.beta(shares * num + 0.5, (1.0 - shares) * num + 0.5, size=(num_draws, len(shares)))
    places = np.sort([_cross(xs, isotonic(draw, num), allowed) for draw in drawn])
    low, high = (_at_rank(places, percent) for percent in (2.5, 97.5))
    assert low is not None and high is not None  # noqa: PT018  there are draws
    return math.exp(max(low, xs[0])), math.exp(min(high, xs[-1]))


def _by_rate(*columns: npt.ArrayLike) -> tuple[Floats, Floats, Floats]:
    """Log rates, shares and weights in order of rate; equal rates are one point."""
    rates, shares, weights = (np.asarray(column, np.float64) for column in columns)
    unique, which = np.unique(rates, return_inverse=True)
    num: Floats = np.bincount(which, weights).astype(np.float64)
    pooled: Floats = np.bincount(which, shares * weights) / num
    return np.log(unique), pooled, num


def _cross(xs: Floats, curve: Floats, allowed: float) -> float:
    """Where a rising curve goes above `allowed`; -inf, inf: before or beyond all points."""
    above = int(np.searchsorted(curve, allowed, side="right"))
    if above in (0, len(curve)):
        return math.inf if above else -math.inf
    low, high = curve[above - 1], curve[above]
    part = (allowed - low) / (high - low)
    return float(xs[above - 1] + part * (xs[above] - xs[above - 1]))


# --- the shape of arrivals ------------------------------------------------------------------------


def exponential_p(gaps: npt.ArrayLike, mean: float) -> float:
    """The same for gaps that should be exponential with this mean (seconds). When the mean is that
    of the gaps themselves the test is cautious: it rejects less often than it says."""
    return _kolmogorov_p(-np.expm1(-np.sort(np.asarray(gaps, np.float64)) / mean))


def _kolmogorov_p(ordered: Floats) -> float:
    """P-value of uniformity on [0, 1]: the asymptotic law at Stephens' corrected distance (1970),
    within 0.01 of the exact one from 50 values on."""
    num = len(ordered)
    if num == 0:
        return 1.0
    steps = np.arange(num + 1) / num
    distance = max(float(np.max(steps[1:] - ordered)), float(np.max(ordered - steps[:-1])))
    z = (math.sqrt(num) + 0.12 + 0.11 / math.sqrt(num)) * distance
    if z < 0.2:
        return 1.0  # the series would need many terms; the value is above 1 - 1e-12
    terms = (-1.0) ** np.arange(100) * np.exp(-2.0 * (np.arange(1, 101) * z) ** 2)
    return float(min(max(2.0 * terms.sum(), 0.0), 1.0))
