"""What the latency model believes after which batches."""

import math
import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailproof.core.latency_model import LatencyModel

SIZES = (1, 2, 4, 8, 16, 32, 64)


def seen(*batches: tuple[int, float], q: float = 0.99, window: int = 100) -> LatencyModel:
    model = LatencyModel(q, window=window)
    for rows, seconds in batches:
        model.observe(rows, seconds)
    return model


def test_nothing_is_predicted_before_any_batch() -> None:
    assert LatencyModel().quantile_of(1) is None


@pytest.mark.parametrize(
    ("q", "num", "expected", "why"),
    [
        (0.99, 1, 1, "the only one"),
        (0.99, 2, 2, "the slower of two"),
        (0.99, 3, 2, "from three on the slowest alone is not believed"),
        (0.99, 100, 99, "nearest rank: ceil(0.99 * 100)"),
        (0.5, 9, 5, "the median"),
        (1.0, 50, 49, "even for the maximum one outlier is left out"),
    ],
)
def test_quantile_of_one_size(q: float, num: int, expected: int, why: str) -> None:
    durations = [(4, float(rank)) for rank in range(1, num + 1)]
    random.Random(0).shuffle(durations)
    assert seen(*durations, q=q).quantile_of(4) == expected, why


def test_quantile_is_near_the_true_one() -> None:
    """Exponential durations: the 90th percentile is ln 10 = 2.303 times the mean."""
    rng = random.Random(1)
    model = LatencyModel(0.9, window=1000, horizon=10_000)
    for _ in range(1000):
        model.observe(1, rng.expovariate(1.0))
    assert model.quantile_of(1) == pytest.approx(math.log(10), rel=0.1)


@pytest.mark.parametrize(
    ("rows", "expected", "why"),
    [
        (1, 20.0, "below the smallest: no less than that"),
        (2, 20.0, "a size that was seen"),
        (3, 25.0, "half way between 2 and 4"),
        (4, 30.0, "a size that was seen"),
        (6, 35.0, "half way between 4 and 8"),
        (8, 40.0, "the largest seen"),
        (10, 45.0, "its slope over the upper half: 10 for 4 rows"),
        (16, 60.0, "up to twice the largest"),
        (32, 120.0, "beyond, in proportion"),
    ],
)
def test_between_and_beyond_the_sizes_seen(rows: int, expected: float, why: str) -> None:
    assert seen((2, 20.0), (4, 30.0), (8, 40.0)).quantile_of(rows) == expected, why


@pytest.mark.parametrize(
    ("batches", "rows", "expected", "why"),
    [
        ([(4, 10.0)], 8, 20.0, "one size known: in proportion"),
        ([(4, 10.0), (8, 10.0)], 16, 10.0, "flat: goes on flat up to twice the largest"),
        ([(4, 10.0), (8, 10.0)], 32, 20.0, "but no further without evidence"),
        ([(4, 10.0), (7, 20.0), (8, 20.0)], 10, 25.0, "the slope of the upper half, not the end"),
        ([(4, 1.0), (8, 10.0)], 16, 20.0, "a steep step: never more than in proportion"),
    ],
)
def test_beyond_is_sane(
    batches: list[tuple[int, float]], rows: int, expected: float, why: str
) -> None:
    assert seen(*batches).quantile_of(rows) == expected, why


def test_violators_are_pooled_by_weight() -> None:
    """2 rows took 8 s three times, 4 rows took 4 s once: together 7 s."""
    model = seen((1, 1.0), (2, 8.0), (2, 8.0), (2, 8.0), (4, 4.0), (8, 9.0))
    assert [model.quantile_of(rows) for rows in (1, 2, 3, 4, 8)] == [1.0, 7.0, 7.0, 7.0, 9.0]


def test_sizes_of_one_class_are_told_apart_by_the_line() -> None:
    """17 to 20 rows share a ring; the curve goes through the batch that is at the quantile."""
    model = seen((16, 16.0), (17, 17.0), (18, 18.0), (19, 19.0), (20, 20.0), (32, 32.0))
    for rows in range(16, 33):
        assert model.quantile_of(rows) == pytest.approx(rows)


def test_a_cold_first_batch_does_not_poison_its_size() -> None:
    model = seen((8, 5.0))
    assert model.quantile_of(8) == 5.0
    model.observe(8, 0.010)
    assert model.quantile_of(8) == 5.0
    model.observe(8, 0.011)
    assert model.quantile_of(8) == 0.011


def test_one_pause_is_not_the_tail_but_two_are() -> None:
    model = seen(*[(8, 0.010)] * 99, (8, 1.0))
    assert model.quantile_of(8) == 0.010
    model.observe(8, 1.0)
    assert model.quantile_of(8) == 1.0


@pytest.mark.parametrize("factor", [2.0, 0.5])
def test_follows_a_change_of_speed(factor: float) -> None:
    """A slowdown after two batches of the size, a speed-up after `window` of them."""
    model = seen(*[(8, 0.010)] * 100, window=20)
    needed = 2 if factor > 1 else 19
    for _ in range(needed - 1):
        model.observe(8, 0.010 * factor)
    assert model.quantile_of(8) == 0.010
    model.observe(8, 0.010 * factor)
    assert model.quantile_of(8) == 0.010 * factor


@pytest.mark.parametrize(("others", "expected"), [(46, 0.010), (47, 0.005)])
def test_a_rare_size_follows_a_speed_up_once_the_old_batches_have_expired(
    others: int, expected: float
) -> None:
    """Two fast ones count when they, one old one, and nothing within the horizon are left: the
    last but one of the old ones is 48 + 2 batches ago at least."""
    model = LatencyModel(window=100, horizon=50)
    for _ in range(100):
        model.observe(8, 0.010)
    for _ in range(others):
        model.observe(1, 0.001)
    model.observe(8, 0.005)
    model.observe(8, 0.005)
    assert model.quantile_of(8) == expected


@pytest.mark.parametrize(
    ("stale", "fresh", "rows", "expected", "why"),
    [
        ([(8, 9.0)], [(4, 2.0)], 8, 4.0, "at most in proportion to a smaller fresh one"),
        ([(8, 1.0)], [(4, 2.0)], 8, 2.0, "at least as much as a smaller fresh one"),
        ([(8, 3.0)], [(4, 2.0)], 8, 3.0, "in between: kept for its shape"),
        ([(4, 9.0)], [(8, 2.0)], 4, 2.0, "at most as much as a larger fresh one"),
        ([(4, 0.5)], [(8, 2.0)], 4, 1.0, "at least in proportion to a larger fresh one"),
        ([(4, 9.0)], [(2, 1.0), (8, 3.0)], 4, 2.0, "between two: both count"),
        ([(8, 9.0), (16, 50.0)], [(4, 2.0)], 16, 8.0, "each stale one is held by the one before"),
    ],
)
def test_stale_sizes_are_held_between_the_fresh_ones(
    stale: list[tuple[int, float]],
    fresh: list[tuple[int, float]],
    rows: int,
    expected: float,
    why: str,
) -> None:
    model = LatencyModel(horizon=10)
    for batch in stale:
        model.observe(*batch)
    for _ in range(64):
        for batch in fresh:
            model.observe(*batch)
    assert model.quantile_of(rows) == expected, why


def test_a_size_grows_stale_while_others_stay_as_they_are() -> None:
    model = seen((8, 9.0), *[(4, 1.0)] * 511)
    assert model.quantile_of(8) == 9.0
    for _ in range(100):
        model.observe(4, 1.0)
    assert model.quantile_of(8) == 2.0


def test_a_bad_time_does_not_keep_a_size_from_being_tried_for_ever() -> None:
    """Sizes up to 15 took twice as long for a while. Since then only batches of at most 4 rows
    ran, as a bound computed from those predictions would have it: it must not stay there."""
    model = LatencyModel()
    for _ in range(100):
        for rows in range(1, 16):
            model.observe(rows, 2 * (0.010 + 0.001 * rows))
    for _ in range(600):
        for rows in range(1, 5):
            model.observe(rows, 0.010 + 0.001 * rows)
    fifth = model.quantile_of(5)
    assert fifth is not None
    assert fifth <= 0.014 * 5 / 4 + 1e-9


def test_version_changes_with_the_predictions_and_rarely_otherwise() -> None:
    model = seen(*[(8, 0.010)] * 100)
    versions = set()
    for _ in range(60):
        model.observe(8, 0.009)
        versions.add(model.version)
    assert len(versions) <= 2
    before = model.version
    model.observe(8, 1.0)
    model.observe(8, 1.0)
    assert model.version > before


batches = st.lists(
    st.tuples(st.integers(1, 300), st.floats(0.0001, 10.0)), min_size=1, max_size=200
)


@given(batches=batches, horizon=st.integers(3, 100))
@settings(derandomize=True, deadline=None)
def test_predictions_rise_with_the_rows_whatever_was_seen(
    batches: list[tuple[int, float]], horizon: int
) -> None:
    model = LatencyModel(window=10, horizon=horizon)
    for batch in batches:
        model.observe(*batch)
    curve = [model.quantile_of(rows) or 0.0 for rows in range(1, 1000)]
    slowest = max(seconds for _, seconds in batches)
    for smaller, larger in pairwise(curve):
        assert smaller <= larger * (1 + 1e-12)
    assert min(seconds for _, seconds in batches) * 0.999 / 300 <= curve[0] <= slowest


@given(batches=batches)
@settings(derandomize=True, deadline=None)
def test_the_version_tells_every_change(batches: list[tuple[int, float]]) -> None:
    model = LatencyModel(window=10, horizon=1000)
    curve, version = None, model.version
    for batch in batches:
        model.observe(*batch)
        now = [model.quantile_of(rows) for rows in (*SIZES, 300)]
        assert now == curve or model.version != version
        curve, version = now, model.version


@pytest.mark.parametrize(
    "settings",
    [{"q": 0.0}, {"q": 1.01}, {"window": 2}, {"horizon": 2}],
)
def test_settings_that_make_no_sense(settings: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        LatencyModel(**settings)  # type: ignore[arg-type]
    LatencyModel(1.0, window=3, horizon=3)
