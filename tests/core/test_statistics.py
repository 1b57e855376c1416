"""Against scipy and scikit-learn, against formulas, and on queues whose truth is known."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats
from sklearn.isotonic import isotonic_regression

from tailproof.core import statistics
from tailproof.core.queues import mm1_quantile, one_at_a_time
from tailproof.core.recording import Floats
from tailproof.reporting.document import Percentiles

SECONDS = st.lists(st.floats(0.0, 100.0) | st.just(math.inf), min_size=1, max_size=200)


def mm1(utilization: float, num: int, rng: np.random.Generator) -> Floats:
    """Response times of a steady M/M/1 with a mean service of 10 ms."""
    warm_up = 2000
    total = num + warm_up
    arrivals = np.sort(rng.uniform(0.0, total * 0.010 / utilization, total))
    return one_at_a_time(arrivals, rng.exponential(0.010, total))[warm_up:]


# --- percentiles ----------------------------------------------------------------------------------


@given(SECONDS, st.sampled_from([1.0, 50.0, 90.0, 95.0, 99.0, 99.9]))
def test_a_percentile_is_the_least_value_that_enough_do_not_exceed(
    values: list[float], percent: float
) -> None:
    found = statistics.percentile(values, percent)

    value = math.inf if found is None else found
    assert value in values
    at_most = sum(one <= value for one in values)
    below = sum(one < value for one in values)
    assert 100 * at_most >= percent * len(values) - 1e-6
    assert 100 * below < percent * len(values)


@pytest.mark.parametrize(
    ("num", "percent", "rank"),
    [(1000, 99.9, 999), (1001, 99.9, 1000), (100, 95.0, 95), (1, 99.0, 1), (20, 95.0, 19)],
)
def test_ranks_are_exact_whatever_the_rounding(num: int, percent: float, rank: int) -> None:
    assert statistics.percentile(np.arange(num) + 1.0, percent) == rank


def test_a_percentile_that_falls_on_a_miss_is_absent() -> None:
    values = [0.1] * 94 + [math.inf] * 6

    assert statistics.percentile(values, 94.0) == 0.1
    assert statistics.percentile(values, 95.0) is None
    assert statistics.percentile([], 95.0) is None


def test_a_description_has_the_fields_of_the_document() -> None:
    values = np.append(np.random.default_rng(1).exponential(0.02, 2000), [math.inf] * 3)

    found = statistics.describe(values, intervals=True)

    document = Percentiles(**found)
    assert set(found) == set(Percentiles.__struct_fields__)
    assert document.max == values[:2000].max()
    assert document.mean == pytest.approx(values[:2000].mean())
    assert document.infinite == ["p99_9"]
    assert document.p99_9 is None
    assert document.resolved == ["p50", "p90", "p95", "p99"]
    assert set(document.intervals) == {"p50", "p90", "p95", "p99"}
    for name, (low, high) in document.intervals.items():
        assert low <= getattr(document, name) <= (high or math.inf)


def test_nothing_to_describe_is_absent_never_zero() -> None:
    nothing = dict.fromkeys([*statistics.PERCENTS, "max", "mean"])

    assert statistics.describe([], intervals=True) == nothing | {
        "resolved": [],
        "infinite": [],
        "intervals": {},
    }
    only_misses = statistics.describe([math.inf] * 10)
    assert only_misses["infinite"] == list(statistics.PERCENTS)
    assert only_misses["mean"] is None


@pytest.mark.parametrize(("percent", "least"), [("p95", 59), ("p99", 299), ("p99_9", 2995)])
def test_a_percentile_is_resolved_from_so_many_equal_values_on(percent: str, least: int) -> None:
    assert percent in statistics.describe(np.full(least, 0.1))["resolved"]
    assert percent not in statistics.describe(np.full(least - 1, 0.1))["resolved"]


def test_what_independent_requests_resolve_a_busy_queue_does_not() -> None:
    busy = mm1(0.9, 3500, np.random.default_rng(4))
    shuffled = np.random.default_rng(4).permutation(busy)

    assert statistics.describe(busy)["resolved"] == ["p50", "p90"]
    assert statistics.describe(shuffled)["resolved"] == list(statistics.PERCENTS)


# --- intervals of percentiles ---------------------------------------------------------------------


@pytest.mark.parametrize("num", [100, 500, 2000, 10_000])
@pytest.mark.parametrize("percent", [50.0, 95.0, 99.0, 99.9])
def test_an_interval_is_never_narrower_than_that_of_independent_values(
    num: int, percent: float
) -> None:
    values = np.random.default_rng(num).permutation(num) + 1.0
    q = percent / 100.0
    low_rank = max(stats.binom.ppf(0.025, num, q), 1)
    high_rank = stats.binom.ppf(0.975, num, q) + 1

    low, high = statistics.quantile_interval(values, percent)

    assert low <= low_rank
    if high_rank > num:
        assert high is None
    else:
        assert high is None or high >= high_rank


@pytest.mark.parametrize(("utilization", "num"), [(0.0, 2000), (0.5, 4000), (0.8, 12_000)])
def test_intervals_hold_the_truth_where_those_of_independent_values_do_not(
    utilization: float, num: int
) -> None:
    """150 runs: three standard errors of a coverage of 95% are 5.3 points."""
    rng = np.random.default_rng(11)
    truth = mm1_quantile(utilization / 0.010, 0.010, 0.95)
    held = held_naively = 0
    for _ in range(150):
        values = mm1(utilization, num, rng) if utilization else rng.exponential(0.010, num)
        low, high = statistics.quantile_interval(values, 95.0)
        held += low <= truth and (high is None or truth <= high)
        ranks = stats.binom.ppf([0.025, 0.975], num, 0.95).astype(int)
        naive_low, naive_high = np.sort(values)[ranks - [1, 0]]
        held_naively += bool(naive_low <= truth <= naive_high)

    assert held >= 0.87 * 150
    assert held_naively <= 0.65 * 150 if utilization else held_naively >= 0.88 * 150


def test_the_upper_end_may_be_beyond_the_sample() -> None:
    assert statistics.quantile_interval(np.arange(300.0), 99.0)[1] is None
    mostly_missed = [0.1] * 60 + [math.inf] * 40
    assert statistics.quantile_interval(mostly_missed, 50.0) == (0.1, None)
    with pytest.raises(ValueError, match="no values"):
        statistics.quantile_interval([], 50.0)


# --- how many independent requests a sample is worth ----------------------------------------------


@pytest.mark.parametrize("share", [0.001, 0.01, 0.05, 0.3, 0.5, 0.7, 0.95, 0.999])
def test_independent_misses_count_nearly_in_full_however_many(share: float) -> None:
    rng = np.random.default_rng(7)
    effects = [statistics.design_effect(rng.random(4000) < share) for _ in range(200)]

    assert min(effects) == 1.0
    assert np.median(effects) < 1.15
    assert np.mean(effects) < 1.3


@pytest.mark.parametrize("length", [4, 20])
@pytest.mark.parametrize("share", [0.02, 0.2, 0.5])
def test_misses_that_come_in_runs_count_as_one_a_run(length: int, share: float) -> None:
    rng = np.random.default_rng(9)
    effects = [
        statistics.design_effect(np.repeat(rng.random(20_000 // length) < share, length))
        for _ in range(60)
    ]

    # Runs that touch read as longer ones: with half of all late that is cautious by half.
    assert 0.75 * length < np.median(effects) < (1.25 if share < 0.5 else 1.6) * length


def test_the_effect_of_a_busy_queue_is_the_spread_between_runs() -> None:
    """The variance of the miss share over many runs, over that of independent misses."""
    rng = np.random.default_rng(13)
    threshold = mm1_quantile(50.0, 0.010, 0.9)
    runs = [mm1(0.5, 5000, rng) > threshold for _ in range(300)]
    true = float(np.var([run.mean() for run in runs], ddof=1)) * 5000 / (0.1 * 0.9)

    effects = [statistics.design_effect(run) for run in runs]

    assert true > 4.0
    assert np.median(effects) == pytest.approx(true, rel=0.25)


def test_without_a_miss_the_slowest_show_how_misses_would_cluster() -> None:
    response = mm1(0.8, 7000, np.random.default_rng(3))
    none = np.zeros(7000, np.bool_)

    assert statistics.design_effect(none) == 1.0
    assert 8.0 < statistics.design_effect(none, response) < 40.0
    assert statistics.design_effect(none, np.full(7000, 0.1)) == 1.0


@pytest.mark.parametrize("late", [30, 300, 500, 700, 990])
def test_a_block_is_worth_no_less_than_twenty_requests(late: int) -> None:
    block = np.arange(1000) >= 1000 - late

    assert 10.0 < statistics.design_effect(block) <= 50.0


@given(st.lists(st.booleans(), max_size=300))
def test_an_effect_lies_between_one_and_a_twentieth_of_the_sample(misses: list[bool]) -> None:
    marks = np.array(misses, np.bool_)
    effect = statistics.design_effect(marks, np.where(marks, math.inf, 0.1)) if misses else 1.0

    assert 1.0 <= effect <= max(1.0, len(misses) / 20)
    if 0.1 <= marks.mean() <= 0.9 and marks.mean() != 0.5 if misses else False:
        assert effect == statistics.design_effect(~marks, None)


def test_clusters_are_parted_by_more_than_the_gap() -> None:
    marks = np.zeros(100, np.bool_)
    assert statistics.clusters(marks) == 0
    marks[[3, 4, 25, 47]] = True  # 20 others between 4 and 25, 21 between 25 and 47

    assert statistics.clusters(marks) == 2
    assert statistics.clusters(marks, gap=0) == 3


# --- bounds of a share ----------------------------------------------------------------------------


@settings(max_examples=300)
@given(st.floats(1e-6, 1 - 1e-6), st.floats(1e-3, 1e5), st.floats(1e-3, 1e5))
def test_the_incomplete_beta_function(x: float, a: float, b: float) -> None:
    expected = float(special.betainc(a, b, x))

    assert statistics.regularized_beta(x, a, b) == pytest.approx(expected, rel=1e-7, abs=1e-9)


@settings(max_examples=300)
@given(st.floats(0.001, 0.999), st.floats(0.05, 1e5), st.floats(0.05, 1e5))
def test_its_inverse(p: float, a: float, b: float) -> None:
    x = statistics.inverse_beta(p, a, b)

    assert x == pytest.approx(float(special.betaincinv(a, b, p)), rel=1e-6, abs=1e-12)


@pytest.mark.parametrize(
    ("count", "num"), [(0, 299), (4, 1000), (17, 1000), (121, 10_000), (10, 10), (1e4, 1e6)]
)
def test_bounds_of_a_share_are_those_of_clopper_and_pearson(count: float, num: float) -> None:
    exact = stats.binomtest(int(count), int(num)).proportion_ci(0.90, method="exact")

    assert statistics.share_bounds(count, num) == pytest.approx((exact.low, exact.high), rel=1e-8)


@given(st.floats(0.5, 1e4), st.floats(0.0, 1.0), st.sampled_from([0.9, 0.95, 0.99]))
def test_bounds_hold_the_share_and_tighten_with_the_number(
    num: float, share: float, confidence: float
) -> None:
    low, high = statistics.share_bounds(share * num, num, confidence)
    more_low, more_high = statistics.share_bounds(share * num * 4, num * 4, confidence)

    assert 0.0 <= low <= share + 1e-9
    assert share - 1e-9 <= high <= 1.0
    assert low <= more_low + 1e-9
    assert more_high <= high + 1e-9


@pytest.mark.parametrize(("count", "num"), [(-1, 10), (11, 10), (0, 0), (math.nan, 10)])
def test_bounds_of_nonsense_are_refused(count: float, num: float) -> None:
    with pytest.raises(ValueError, match="expected 0 <= count <= num"):
        statistics.share_bounds(count, num)


@pytest.mark.parametrize("p", [0.5, 0.9, 0.95, 0.975, 0.995])
@pytest.mark.parametrize("df", [1, 4, 19, 1e6])
def test_student_t(p: float, df: float) -> None:
    assert statistics.student_t(p, df) == pytest.approx(float(stats.t.ppf(p, df)), rel=1e-5)


# --- warm-up --------------------------------------------------------------------------------------


def mser5_by_the_book(values: Floats) -> int | None:
    means = np.log(values[: len(values) // 5 * 5]).reshape(-1, 5).mean(axis=1)
    num = len(means)
    scores = [
        np.sum((means[d:] - means[d:].mean()) ** 2) / (num - d) ** 2 for d in range(num // 2 + 1)
    ]
    best = int(np.argmin(scores))
    return best * 5 if best < num // 2 else None


@pytest.mark.parametrize("seed", range(20))
def test_mser5_is_the_formula(seed: int) -> None:
    rng = np.random.default_rng(seed)
    num = int(rng.integers(20, 400))
    values = rng.lognormal(-4.0, 0.5, num) * (1.0 + 5.0 * np.exp(-np.arange(num) / 20.0))

    assert statistics.mser5(values) == mser5_by_the_book(values)


def test_a_slow_start_is_cut_off_and_a_steady_run_is_not() -> None:
    rng = np.random.default_rng(2)
    steady = rng.lognormal(-4.0, 0.3, 2000)
    warming = steady * np.where(np.arange(2000) < 200, 8.0, 1.0)

    dropped = statistics.mser5(warming)
    kept = statistics.mser5(steady)

    assert dropped is not None
    assert 190 <= dropped <= 260
    assert kept is not None
    assert kept <= 400


def test_what_still_grows_is_not_steady() -> None:
    growing = np.random.default_rng(2).lognormal(-4.0, 0.1, 1000) * np.exp(np.arange(1000) / 200.0)

    assert statistics.mser5(growing) is None
    assert statistics.mser5([0.1] * 19) is None


def test_misses_in_a_warm_up_count_as_slow() -> None:
    values = np.random.default_rng(2).lognormal(-4.0, 0.1, 1000)
    values[100:1000:100] = 0.05  # the slowest good answers
    values[:50] = math.inf

    assert statistics.mser5(values) == 50
    assert statistics.mser5([math.inf] * 100) == 0


# --- the curve of misses over rates ---------------------------------------------------------------


@given(st.lists(st.tuples(st.floats(0.0, 1.0), st.floats(0.1, 1e4)), min_size=1, max_size=30))
def test_isotonic_is_what_scikit_learn_gives(points: list[tuple[float, float]]) -> None:
    values, weights = (np.array(column) for column in zip(*points, strict=True))

    found = statistics.isotonic(values, weights)

    assert np.all(np.diff(found) >= 0.0)
    assert found == pytest.approx(isotonic_regression(values, sample_weight=weights), abs=1e-9)


def test_a_crossing_lies_between_on_the_scale_of_ratios() -> None:
    assert statistics.crossing([100, 400], [0.0, 0.1], [500, 500], 0.05) == pytest.approx(200.0)
    assert statistics.crossing([400, 100], [0.1, 0.0], [500, 500], 0.05) == pytest.approx(200.0)


@pytest.mark.parametrize("shares", [[0.0, 0.01, 0.05], [0.06, 0.2, 1.0]])
def test_no_crossing_when_all_points_are_on_one_side(shares: list[float]) -> None:
    rng = np.random.default_rng(1)
    assert statistics.crossing([1, 2, 3], shares, [9, 9, 9], 0.05) is None
    assert statistics.crossing_interval([1, 2, 3], shares, [9, 9, 9], 0.05, rng) is None
    assert statistics.crossing([], [], [], 0.05) is None


def test_points_out_of_order_are_pooled_before_they_are_crossed() -> None:
    """Without pooling the curve would cross three times."""
    rates, shares = [100, 200, 300, 400], [0.0, 0.08, 0.0, 0.2]

    found = statistics.crossing(rates, shares, [100, 100, 100, 100], 0.05)

    assert found == pytest.approx(math.exp(math.log(300) + (0.01 / 0.16) * math.log(4 / 3)))


@given(st.permutations(range(6)), st.floats(0.01, 0.5))
def test_the_order_and_splitting_of_points_do_not_matter(order: list[int], allowed: float) -> None:
    rates = np.array([100.0, 150.0, 200.0, 250.0, 300.0, 350.0])
    shares = np.array([0.0, 0.02, 0.01, 0.2, 0.15, 0.9])
    weights = np.array([10.0, 20.0, 30.0, 40.0, 50.0, 60.0])
    columns = [rates, shares, weights / 2]
    split = [np.concatenate([column, column[order]]) for column in columns]

    whole = statistics.crossing(rates, shares, weights, allowed)

    assert whole is not None
    assert statistics.crossing(*split, allowed) == pytest.approx(whole)


def test_the_interval_of_a_crossing_holds_the_truth() -> None:
    """Misses rise as a logistic curve of the log rate that allows 5% at 300/s; 200 searches."""
    rng = np.random.default_rng(17)
    rates = np.geomspace(150.0, 600.0, 12)
    shares = 1.0 / (1.0 + np.exp(-(math.log(0.05 / 0.95) + 8.0 * np.log(rates / 300.0))))
    held, widths = 0, []
    for _ in range(200):
        weights = np.full(12, 400.0)
        seen = rng.binomial(400, shares) / 400
        interval = statistics.crossing_interval(rates, seen, weights, 0.05, rng, num_draws=200)
        assert interval is not None
        held += interval[0] <= 300.0 <= interval[1]
        widths.append(interval[1] / interval[0])

    assert held >= 0.88 * 200
    assert np.median(widths) < 1.25


def test_more_requests_give_a_narrower_interval_and_a_seed_the_same() -> None:
    def interval(weight: float, seed: int) -> tuple[float, float]:
        found = statistics.crossing_interval(
            [100, 200, 300], [0.0, 0.03, 0.3], [weight] * 3, 0.05, np.random.default_rng(seed)
        )
        assert found is not None
        return found

    assert interval(100, 1) == interval(100, 1)
    few, many = interval(100, 1), interval(10_000, 1)
    assert few[0] < many[0] < many[1] < few[1]
    assert few[0] >= 100.0
    assert few[1] <= 300.0 + 1e-9


# --- the shape of arrivals ------------------------------------------------------------------------


@pytest.mark.parametrize("num", [10, 100, 5000])
@pytest.mark.parametrize("power", [1.0, 1.05, 1.3])
def test_p_values_are_those_of_scipy(num: int, power: float) -> None:
    rng = np.random.default_rng(num)
    gaps = rng.exponential(0.02, num) * power
    close = 0.025 if num < 50 else 0.012

    assert statistics.exponential_p(gaps, 0.02) == pytest.approx(
        stats.kstest(gaps, "expon", args=(0.0, 0.02)).pvalue, abs=close
    )


def test_exponential_gaps_are_rejected_as_often_as_said() -> None:
    draws = (np.random.default_rng(seed).exponential(0.02, 1000) for seed in range(400))
    values = [statistics.exponential_p(gaps, 0.02) for gaps in draws]

    assert np.mean(np.array(values) < 0.05) == pytest.approx(0.05, abs=0.035)


def test_gaps_of_another_shape_are_rejected() -> None:
    assert statistics.exponential_p(np.full(1000, 0.02), 0.02) < 1e-6
    assert statistics.exponential_p([], 0.02) == 1.0
