"""What the latency model believes after which batches."""

import math
import random
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailproof.core.latency_model import LatencyModel

SIZES = (1, 2, 4, 8, 16, 32, 64)


def seen(*batches: tuple[int, float], q: float = 0.99, window: int = 100) -> LatencyModel:
    """A model that has seen these (rows, seconds), CPU seconds unknown."""
    model = LatencyModel(q, window=window)
    for rows, seconds in batches:
        model.observe(rows, seconds)
    return model


def test_nothing_is_predicted_before_any_batch() -> None:
    model = LatencyModel()
    assert (model.tail_of(1), model.typical_of(1), model.stretch) == (None, None, 1.0)
    before = model.version
    model.observe(1, 1.0)
    assert (model.tail_of(1), model.typical_of(1)) == (1.0, 1.0)
    assert model.version > before


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
def test_tail_of_one_size(q: float, num: int, expected: int, why: str) -> None:
    durations = [(4, float(rank)) for rank in range(1, num + 1)]
    random.Random(0).shuffle(durations)
    assert seen(*durations, q=q).tail_of(4) == expected, why


def test_the_typical_batch_has_a_curve_of_its_own() -> None:
    model = seen(*[(rows, rows + noise) for rows in (1, 4) for noise in (0.0, 0.5, 2.0, 3.0, 3.0)])
    assert [model.typical_of(rows) for rows in (1, 2, 4)] == [3.0, 4.0, 6.0]
    assert [model.tail_of(rows) for rows in (1, 2, 4)] == [4.0, 5.0, 7.0]


def test_quantile_is_near_the_true_one() -> None:
    """Exponential durations: the 90th percentile is ln 10 = 2.303 times the mean."""
    rng = random.Random(1)
    model = LatencyModel(0.9, window=1000, horizon=10_000)
    for _ in range(1000):
        model.observe(1, rng.expovariate(1.0))
    assert model.tail_of(1) == pytest.approx(math.log(10), rel=0.1)


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
    assert seen((2, 20.0), (4, 30.0), (8, 40.0)).tail_of(rows) == expected, why


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
    assert seen(*batches).tail_of(rows) == expected, why


def test_violators_are_pooled_by_weight() -> None:
    """2 rows took 8 s three times, 4 rows took 4 s once: together 7 s."""
    model = seen((1, 1.0), (2, 8.0), (2, 8.0), (2, 8.0), (4, 4.0), (8, 9.0))
    assert [model.tail_of(rows) for rows in (1, 2, 3, 4, 8)] == [1.0, 7.0, 7.0, 7.0, 9.0]


def test_sizes_of_one_class_are_told_apart_by_the_line() -> None:
    """17 to 20 rows share a ring; the curve goes through the batch that is at the quantile."""
    model = seen((16, 16.0), (17, 17.0), (18, 18.0), (19, 19.0), (20, 20.0), (32, 32.0))
    for rows in range(16, 33):
        assert model.tail_of(rows) == pytest.approx(rows)


def test_a_cold_first_batch_does_not_poison_its_size() -> None:
    model = seen((8, 5.0))
    assert model.tail_of(8) == 5.0
    model.observe(8, 0.010)
    assert model.tail_of(8) == 5.0
    model.observe(8, 0.011)
    assert model.tail_of(8) == 0.011


def test_one_pause_is_not_the_tail_but_two_are() -> None:
    model = seen(*[(8, 0.010)] * 99, (8, 1.0))
    assert model.tail_of(8) == 0.010
    model.observe(8, 1.0)
    assert model.tail_of(8) == 1.0


@pytest.mark.parametrize("factor", [2.0, 0.5])
def test_follows_a_change_of_speed(factor: float) -> None:
    """A slowdown after two batches of the size, a speed-up after `window` of them."""
    model = seen(*[(8, 0.010)] * 100, window=20)
    needed = 2 if factor > 1 else 19
    for _ in range(needed - 1):
        model.observe(8, 0.010 * factor)
    assert model.tail_of(8) == 0.010
    model.observe(8, 0.010 * factor)
    assert model.tail_of(8) == 0.010 * factor


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
    assert model.tail_of(8) == expected


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
    assert model.tail_of(rows) == expected, why


def test_a_size_grows_stale_while_others_stay_as_they_are() -> None:
    model = seen((8, 9.0), *[(4, 1.0)] * 511)
    assert model.tail_of(8) == 9.0
    for _ in range(100):
        model.observe(4, 1.0)
    assert model.tail_of(8) == 2.0


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
    fifth = model.tail_of(5)
    assert fifth is not None
    assert fifth <= 0.014 * 5 / 4 + 1e-9


def test_version_changes_with_the_predictions_and_rarely_otherwise() -> None:
    model = seen(*[(8, 0.010)] * 100)
    rng = random.Random(2)
    versions = set()
    for _ in range(1000):
        model.observe(8, rng.uniform(0.0099, 0.0101))
        assert model.tail_of(8) == pytest.approx(0.010, rel=0.05)
        versions.add(model.version)
    assert len(versions) <= 11, "once a window"
    before = model.version
    model.observe(8, 1.0)
    model.observe(8, 1.0)
    assert model.version > before
    assert model.tail_of(8) == 1.0


batches = st.lists(
    st.tuples(
        st.integers(1, 300),
        st.floats(0.0001, 10.0),
        st.none() | st.floats(0.0, 20.0),
        st.booleans(),
    ),
    min_size=1,
    max_size=200,
)
"""Rows, seconds, CPU seconds, whether it is a calibration."""


def told(model: LatencyModel, batch: tuple[int, float, float | None, bool]) -> None:
    rows, seconds, cpu_seconds, is_calibration = batch
    (model.calibrate if is_calibration else model.observe)(rows, seconds, cpu_seconds)


@given(batches=batches, horizon=st.integers(3, 100))
def test_predictions_rise_with_the_rows_whatever_was_seen(
    batches: list[tuple[int, float, float | None, bool]], horizon: int
) -> None:
    model = LatencyModel(window=10, horizon=horizon)
    for batch in batches:
        told(model, batch)
    for ask in (model.tail_of, model.typical_of):
        curve = [ask(rows) or 0.0 for rows in range(1, 1000)]
        assert all(math.isfinite(seconds) for seconds in curve)
        assert all(low <= high * (1 + 1e-12) for low, high in pairwise(curve))
    assert model.stretch >= 1.0


@given(batches=batches, horizon=st.integers(3, 100))
def test_without_cpu_seconds_all_time_is_the_models_own(
    batches: list[tuple[int, float, float | None, bool]], horizon: int
) -> None:
    """Then predictions stay within what was seen, as for a machine that nobody else uses."""
    model = LatencyModel(window=10, horizon=horizon)
    for rows, seconds, _, is_calibration in batches:
        told(model, (rows, seconds, None, is_calibration))
    slowest = max(seconds for _, seconds, _, _ in batches)
    lowest = min(seconds for _, seconds, _, _ in batches)
    assert lowest * 0.999 / 300 <= (model.tail_of(1) or 0.0) <= slowest
    assert model.stretch == 1.0


@given(batches=batches)
def test_the_version_tells_every_change(
    batches: list[tuple[int, float, float | None, bool]],
) -> None:
    model = LatencyModel(window=10, horizon=1000)
    curves, version = None, model.version
    for batch in batches:
        told(model, batch)
        now = [(model.tail_of(rows), model.typical_of(rows)) for rows in (*SIZES, 300)]
        assert now == curves or model.version != version
        curves, version = now, model.version


@pytest.mark.parametrize(
    "settings",
    [{"tail": 0.0}, {"tail": 1.01}, {"typical": 0.0}, {"window": 2}, {"horizon": 2}],
)
def test_settings_that_make_no_sense(settings: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        LatencyModel(**settings)  # type: ignore[arg-type]
    LatencyModel(1.0, 1.0, window=3, horizon=3)


# --- a core that others use too ---------------------------------------------------------------


class Kind(NamedTuple):
    """How a model uses the machine."""

    off: float = 0.0
    """Share of its own time in which it waits by itself."""
    parallel: float = 1.0
    """Cores that it keeps busy otherwise."""


COMPUTES, WAITS, PARALLEL = Kind(), Kind(off=0.5), Kind(parallel=2.0)
SLEEPS = Kind(off=1.0)
KINDS = {"computes": COMPUTES, "waits": WAITS, "parallel": PARALLEL}


def own_seconds(rows: int) -> float:
    return 0.002 + 0.0001 * rows


def calibrated(kind: Kind = COMPUTES, largest: int = 64, **settings: int) -> LatencyModel:
    """Warmed up on an idle machine, three batches of each size."""
    model = LatencyModel(**settings)  # type: ignore[arg-type]
    for rows in [1 << power for power in range(largest.bit_length())]:
        for _ in range(3):
            own = own_seconds(rows)
            model.calibrate(rows, own, own * (1 - kind.off) * kind.parallel)
    return model


class SharedCore:
    """Processor sharing: while the front is busy, the worker gets one share of `1 + OTHERS`.

    The front's busy and idle times are exponential, 4 ms together in the mean.
    """

    OTHERS = 4
    CYCLE = 0.004

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.load = 0.0
        self._is_busy = False
        self._left = 0.0

    @property
    def stretch(self) -> float:
        """How many times longer computing takes at this load, over long times."""
        return 1.0 / (1.0 - self.load * self.OTHERS / (1 + self.OTHERS))

    def compute(self, seconds: float) -> float:
        """How long a computation takes that takes `seconds` alone."""
        taken = 0.0
        while seconds > 0.0:
            if self._left <= 0.0:
                self._is_busy = not self._is_busy
                share = self.load if self._is_busy else 1.0 - self.load
                self._left = self.rng.expovariate(1.0 / (self.CYCLE * share)) if share else 0.0
                continue
            speed = 1.0 / (1 + self.OTHERS) if self._is_busy else 1.0
            piece = min(self._left, seconds / speed)
            self._left -= piece
            seconds -= piece * speed
            taken += piece
        return taken


class Worker:
    """Runs batches on a shared core and tells the model, with or without their CPU seconds."""

    def __init__(self, model: LatencyModel, kind: Kind, *, tells_cpu: bool = True) -> None:
        self.model, self.kind, self.core = model, kind, SharedCore(seed=3)
        self.tells_cpu = tells_cpu

    def run(self, rows: int) -> float:
        own = own_seconds(rows) * self.core.rng.lognormvariate(0.0, 0.05)
        off = own * self.kind.off
        seconds = off + self.core.compute(own - off)
        cpu = (own - off) * self.kind.parallel
        self.model.observe(rows, seconds, cpu if self.tells_cpu else None)
        return seconds

    def run_many(self, num: int, sizes: Sequence[int]) -> None:
        for _ in range(num):
            self.run(self.core.rng.choice(sizes))

    def truth(self, rows: int) -> float:
        """Seconds that a batch takes at this load, in the mean."""
        own = own_seconds(rows)
        return own * self.kind.off + own * (1 - self.kind.off) * self.core.stretch


FEW_ROWS, MANY_ROWS = range(1, 9), range(24, 49)


CLOSE = (0.75, 1.6)
"""What of the truth a prediction may be. The grain makes it high for sizes far below those that
ran of late."""


def typical_over_truth(worker: Worker) -> list[float]:
    """For small and large batches, whichever ran of late."""
    asked = (1, 4, 8, 24, 32, 48)
    return [(worker.model.typical_of(rows) or 0.0) / worker.truth(rows) for rows in asked]


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_predictions_follow_an_overload_up_and_down_within_50_batches(kind: Kind) -> None:
    """Of all sizes: large batches are seen in the overload alone, small ones outside it."""
    worker = Worker(calibrated(kind), kind)
    for load, sizes in ((0.1, FEW_ROWS), (0.9, MANY_ROWS), (0.1, FEW_ROWS)):
        worker.core.load = load
        worker.run_many(50, sizes)
        assert all(CLOSE[0] < one < CLOSE[1] for one in typical_over_truth(worker)), load
        predicted = [
            (rows, worker.model.tail_of(rows) or 0.0, worker.run(rows))
            for rows in worker.core.rng.choices(sizes, k=550)
        ]
        assert sum(seconds > tail for _, tail, seconds in predicted) <= 550 * 0.06
        assert all(tail < 2.5 * worker.truth(rows) for rows, tail, _ in predicted), "no alarm"


def test_wall_time_alone_follows_neither_up_nor_down() -> None:
    """The control: what the CPU seconds are for."""
    worker = Worker(calibrated(COMPUTES), COMPUTES, tells_cpu=False)
    worker.core.load = 0.1
    worker.run_many(600, FEW_ROWS)
    worker.core.load = 0.9
    worker.run_many(50, MANY_ROWS)
    assert typical_over_truth(worker)[0] < 0.5, "small batches are slow now too"
    worker.run_many(550, MANY_ROWS)
    worker.core.load = 0.1
    worker.run_many(50, FEW_ROWS)
    assert typical_over_truth(worker)[-1] > 2.5, "large batches are quick again"


def test_stretch_is_what_the_load_makes_of_batch_times() -> None:
    worker = Worker(calibrated(), COMPUTES)
    assert worker.model.stretch == 1.0
    for load in (0.9, 0.5, 0.0):
        worker.core.load = load
        worker.run_many(50, MANY_ROWS)
        assert worker.model.stretch == pytest.approx(worker.core.stretch, rel=0.25)
    assert worker.model.stretch == 1.0


def test_the_version_tells_that_only_the_load_has_changed() -> None:
    model = calibrated()
    told, version = (model.tail_of(8), model.typical_of(8)), model.version
    for _ in range(2):
        model.observe(8, 2 * own_seconds(8), own_seconds(8))
    assert model.tail_of(8) != told[0]
    assert model.typical_of(8) == told[1]
    assert model.version != version


@pytest.mark.parametrize("rows", [4, 36, 128])
def test_what_sizes_need_that_were_not_calibrated(rows: int) -> None:
    """A model that waits by itself, calibrated with 8 and 64 rows: below, in between, beyond."""
    model = LatencyModel()
    for known in (8, 64):
        model.calibrate(known, own_seconds(known), 0.0)
    for _ in range(32):
        model.observe(rows, 2 * own_seconds(rows), 0.0)
    assert model.stretch == pytest.approx(2.0, rel=0.15)


def test_one_pause_of_the_machine_is_not_the_tail_but_two_are_while_they_are_recent() -> None:
    model = calibrated()
    usual, cpu = model.tail_of(8), own_seconds(8)
    model.observe(8, 1.0, cpu)
    assert model.tail_of(8) == usual
    model.observe(4, 1.0, own_seconds(4))
    assert model.tail_of(8) == pytest.approx(1.0, rel=0.1)
    assert model.typical_of(8) == usual
    for _ in range(32):
        model.observe(1, own_seconds(1), own_seconds(1))
    assert model.tail_of(8) == usual


def test_ever_longer_pauses_leave_nothing_behind_in_a_model_that_computes() -> None:
    """Its own time is known for certain, however long it had to wait."""
    model = calibrated()
    usual = model.tail_of(64)
    for power in range(10):
        model.observe(64, own_seconds(64) * 2.0**power, own_seconds(64))
    for _ in range(32):
        model.observe(1, own_seconds(1), own_seconds(1))
    assert model.tail_of(64) == usual


def test_a_turn_that_short_batches_wait_for_is_not_multiplied_for_long_ones() -> None:
    """One of 0.2 ms that waits 3 ms takes 16 times as long; one of 40 ms will not."""
    model = LatencyModel()
    for rows, own in ((1, 0.0002), (200, 0.040)):
        for _ in range(3):
            model.calibrate(rows, own, own)
    for _ in range(64):
        model.observe(1, 0.0032, 0.0002)
    assert model.typical_of(1) == pytest.approx(0.0032)
    assert 0.043 <= (model.typical_of(200) or 0.0) <= 0.090


def test_a_batch_that_computes_longer_is_own_time_whatever_the_load() -> None:
    """Followed after two batches of its size, and nothing is said of the others."""
    worker = Worker(calibrated(), COMPUTES)
    worker.core.load = 0.5
    worker.run_many(200, MANY_ROWS)
    model, own = worker.model, own_seconds(64)
    before, small = model.tail_of(64), model.tail_of(2)
    assert before is not None
    for _ in range(2):
        model.observe(64, 3 * own * model.stretch, 3 * own)
    assert model.tail_of(64) == pytest.approx(3 * before, rel=0.25)
    assert model.tail_of(2) == pytest.approx(small, rel=0.1)


@pytest.mark.parametrize("kind", [WAITS, SLEEPS], ids=["waits", "sleeps"])
@pytest.mark.parametrize("between", [0, 40])
def test_a_model_that_waits_longer_is_followed_after_two_batches_of_its_size(
    kind: Kind, between: int
) -> None:
    """Its GPU or network has become slow: no CPU second says so. Alone or among others."""
    model, own = calibrated(kind), own_seconds(64)
    for _ in range(2):
        for _ in range(between):
            model.observe(1, own_seconds(1), own_seconds(1) * (1 - kind.off))
        model.observe(64, 2 * own, own * (1 - kind.off))
    assert model.tail_of(64) == pytest.approx(2 * own, rel=0.1)
    if between:
        assert model.tail_of(1) == pytest.approx(own_seconds(1), rel=0.1)
        assert model.stretch == 1.0


def test_a_model_that_waits_less_is_followed_as_any_speed_up() -> None:
    model = calibrated(WAITS, window=20)
    for _ in range(20):
        model.observe(8, own_seconds(8) * 0.8, own_seconds(8) * 0.5)
    assert model.tail_of(8) == pytest.approx(own_seconds(8) * 0.8, rel=0.05)
    assert model.stretch == 1.0


def test_more_cores_than_at_the_calibration_are_no_stretch() -> None:
    model = calibrated(PARALLEL)
    for _ in range(50):
        model.observe(8, own_seconds(8) * 0.8, own_seconds(8) * 2)
    assert model.stretch == 1.0
    assert model.typical_of(8) == pytest.approx(own_seconds(8) * 0.8, rel=0.05)


@pytest.mark.parametrize("slow", ["first", "last"])
def test_a_worker_that_warms_up_under_load_does_not_spoil_the_calibration(slow: str) -> None:
    """Its warm-up batches wait for the core; they are not what the model needs of a machine."""
    busy = [(8, own_seconds(8) * factor, own_seconds(8)) for factor in (3.0, 2.5, 2.8)]
    idle = [(8, own_seconds(8), own_seconds(8))] * 3
    model = LatencyModel()
    for batch in busy + idle if slow == "first" else idle + busy:
        model.calibrate(*batch)
    if slow == "last":
        assert model.tail_of(8) == own_seconds(8)
    for _ in range(32):
        model.observe(8, own_seconds(8) * 2, own_seconds(8))
    assert model.stretch == pytest.approx(2.0)


def test_a_cold_first_batch_on_many_threads_is_not_how_the_model_computes() -> None:
    model = LatencyModel()
    for seconds, cpu in ((1.0, 8.0), (0.010, 0.010), (0.010, 0.010)):
        model.calibrate(4, seconds, cpu)
    for _ in range(32):
        model.observe(4, 0.010, 0.010)
    assert model.stretch == 1.0
    assert model.typical_of(4) == 0.010


# --- for the next start -----------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_what_is_known_survives_a_restart_without_the_load_of_that_moment(kind: Kind) -> None:
    worker = Worker(calibrated(kind), kind)
    worker.core.load = 0.9
    worker.run_many(500, (*FEW_ROWS, *MANY_ROWS))
    restored = LatencyModel()
    restored.restore(worker.model.samples())

    worker.core.load = 0.0
    worker.run_many(64, FEW_ROWS)
    for rows in (1, 4, 8, 24, 48, 64):
        assert restored.tail_of(rows) == pytest.approx(worker.model.tail_of(rows), rel=0.1)
        assert restored.typical_of(rows) == pytest.approx(worker.model.typical_of(rows), rel=0.1)
    assert restored.stretch == 1.0

    worker.model = restored
    worker.core.load = 0.9
    worker.run_many(50, MANY_ROWS)
    assert all(CLOSE[0] < one < CLOSE[1] for one in typical_over_truth(worker)), "calibrated"


def test_samples_are_few_and_keep_the_quantiles() -> None:
    rng = random.Random(5)
    model = LatencyModel(horizon=10_000)
    for _ in range(3000):
        rows = rng.randint(1, 300)
        model.observe(rows, rng.uniform(1.0, 1.05) * rows)
    samples = model.samples()
    assert len(samples) <= 16 * 29, "8 sizes and 21 classes"

    restored = LatencyModel()
    restored.restore(samples)
    assert restored.samples() == samples
    for rows in (1, 8, 100, 300):
        assert restored.tail_of(rows) == model.tail_of(rows)
        assert restored.typical_of(rows) == pytest.approx(model.typical_of(rows), rel=0.01)
