"""Schedules: exact counts, the right shape, the same for the same seed."""

import math

import numpy as np
import pytest
from scipy import stats

from tailproof.core.arrivals import (
    Schedule,
    constant,
    gamma,
    on_off,
    poisson,
    ramp,
    spike,
    steps,
    trace,
)


def test_poisson_has_the_exact_count_in_order_and_in_range() -> None:
    times = poisson(rate=50.0, seconds=30.0, seed=7)
    assert times.dtype == np.float64
    assert len(times) == 1500
    assert np.all(np.diff(times) >= 0.0)
    assert times[0] >= 0.0
    assert times[-1] < 30.0


def test_poisson_gaps_are_exponential() -> None:
    """Kolmogorov-Smirnov at 0.1%: D < 1.95 / sqrt(n)."""
    rate, num = 100.0, 10_000
    gaps = np.sort(np.diff(poisson(rate, num / rate, seed=3)))
    expected = 1.0 - np.exp(-rate * gaps)
    empirical = np.arange(1, len(gaps) + 1) / len(gaps)
    assert np.max(np.abs(empirical - expected)) < 1.95 / math.sqrt(len(gaps))


def test_on_off_has_the_exact_count_in_every_phase() -> None:
    times = on_off(on=900.0, off=100.0, phase=0.5, seconds=4.25, seed=1)
    counts = np.histogram(times, bins=[*np.arange(0.0, 4.5, 0.5), 4.25])[0]
    assert counts.tolist() == [450, 50] * 4 + [225]
    assert np.all(np.diff(times) >= 0.0)


def test_on_off_may_fall_silent() -> None:
    times = on_off(on=10.0, off=0.0, phase=1.0, seconds=4.0, seed=1)
    assert set(np.floor(times)) == {0.0, 2.0}


def test_a_seed_gives_one_schedule() -> None:
    assert np.array_equal(poisson(50.0, 10.0, 1), poisson(50.0, 10.0, 1))
    assert not np.array_equal(poisson(50.0, 10.0, 1), poisson(50.0, 10.0, 2))
    assert np.array_equal(on_off(9.0, 1.0, 1.0, 9.0, 1), on_off(9.0, 1.0, 1.0, 9.0, 1))
    assert not np.array_equal(on_off(9.0, 1.0, 1.0, 9.0, 1), on_off(9.0, 1.0, 1.0, 9.0, 2))


@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan])
def test_values_that_make_no_sense_are_named(value: float) -> None:
    with pytest.raises(ValueError, match="rate"):
        poisson(value, 1.0, 0)
    with pytest.raises(ValueError, match="seconds"):
        poisson(1.0, value, 0)
    with pytest.raises(ValueError, match="phase"):
        on_off(1.0, 1.0, value, 1.0, 0)
    if value != 0.0:
        with pytest.raises(ValueError, match="off"):
            on_off(1.0, value, 1.0, 1.0, 0)


SCHEDULES = {
    "constant": (constant(30.3, 33.0), 1000, 33.0),
    "constant, rounded up": (constant(10.0, 1.06), 11, 1.06),
    "gamma, bursts": (gamma(100.0, 20.0, 0.2, 1), 2000, 20.0),
    "gamma, extreme": (gamma(100.0, 20.0, 0.01, 1), 2000, 20.0),
    "gamma, even": (gamma(100.0, 20.0, 50.0, 1), 2000, 20.0),
    "ramp up": (ramp(0.0, 100.0, 20.0, 1), 1000, 20.0),
    "ramp down": (ramp(100.0, 0.0, 20.0, 1), 1000, 20.0),
    "ramp, level": (ramp(50.0, 50.0, 20.0, 1), 1000, 20.0),
    "steps": (steps([100.0, 0.0, 300.0], 30.0, 1), 4000, 30.0),
    "spike": (spike(50.0, 3.0, 5.0, 20.0, 1), 376 + 375 * 2 + 374, 20.0),
    "none": (constant(0.1, 1.0), 0, 1.0),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule_is_exact_rising_and_inside(name: str) -> None:
    times, num, seconds = SCHEDULES[name]
    assert times.dtype == np.float64
    assert len(times) == num
    assert np.all(np.diff(times) >= 0.0)
    assert np.all((times >= 0.0) & (times < seconds))


def test_constant_is_one_every_period_from_zero() -> None:
    assert constant(4.0, 1.0).tolist() == [0.0, 0.25, 0.5, 0.75]


@pytest.mark.parametrize("shape", [0.25, 1.0, 4.0])
def test_gamma_gaps_have_the_variation_of_their_shape(shape: float) -> None:
    gaps = np.diff(gamma(200.0, 100.0, shape, seed=5))
    assert np.std(gaps) / np.mean(gaps) == pytest.approx(1 / math.sqrt(shape), rel=0.05)
    scaled = stats.gamma(shape, scale=1 / (200.0 * shape))
    assert stats.kstest(gaps, scaled.cdf).pvalue > 0.001
    other = stats.gamma(shape * 1.5, scale=1 / (200.0 * shape * 1.5))
    assert stats.kstest(gaps, other.cdf).pvalue < 0.001, "the check sees another shape"


def test_gamma_does_not_put_an_arrival_on_every_second() -> None:
    fractions = np.concatenate([gamma(40.0, 50.0, 0.5, seed) % 1.0 for seed in range(5)])
    assert stats.kstest(fractions, "uniform").pvalue > 0.001


def test_a_ramp_becomes_uniform_when_its_time_is_rescaled() -> None:
    times = ramp(50.0, 500.0, 20.0, seed=4)
    assert stats.kstest(area_under_ramp(times, 50.0, 500.0, 20.0), "uniform").pvalue > 0.001
    level = poisson(275.0, 20.0, seed=4)
    assert stats.kstest(area_under_ramp(level, 50.0, 500.0, 20.0), "uniform").pvalue < 0.001


def area_under_ramp(times: Schedule, low: float, high: float, seconds: float) -> Schedule:
    """The share of the ramp's arrivals that is expected before each time."""
    share: Schedule = (low * times + (high - low) / seconds * times**2 / 2) / (
        (low + high) / 2 * seconds
    )
    return share


def test_steps_and_spikes_have_the_exact_count_in_every_part() -> None:
    in_steps = np.histogram(steps([100.0, 0.0, 300.0], 30.0, 1), bins=[0, 10, 20, 30])[0]
    assert in_steps.tolist() == [1000, 0, 3000]
    in_spike = np.histogram(spike(40.0, 3.0, 5.0, 20.0, 1), bins=[0, 7.5, 12.5, 20])[0]
    assert in_spike.tolist() == [300, 600, 300]


def test_a_trace_starts_at_zero_sorted_and_sped_up() -> None:
    assert trace([1005.0, 1000.0, 1001.0], speedup=2.0).tolist() == [0.0, 0.5, 2.5]


def test_every_random_schedule_follows_its_seed() -> None:
    for make in (
        lambda seed: gamma(50.0, 10.0, 0.5, seed),
        lambda seed: ramp(10.0, 90.0, 10.0, seed),
        lambda seed: steps([10.0, 90.0], 10.0, seed),
        lambda seed: spike(50.0, 2.0, 1.0, 10.0, seed),
    ):
        assert np.array_equal(make(1), make(1))
        assert not np.array_equal(make(1), make(2))


def test_what_the_other_schedules_cannot_be_is_named() -> None:
    for wrong, name in (
        (lambda: constant(0.0, 1.0), "rate"),
        (lambda: gamma(1.0, 1.0, 0.001, 0), "shape"),
        (lambda: gamma(1.0, 1.0, math.nan, 0), "shape"),
        (lambda: ramp(0.0, 0.0, 1.0, 0), "rates"),
        (lambda: ramp(-1.0, 2.0, 1.0, 0), "from_rate"),
        (lambda: steps([], 1.0, 0), "rates"),
        (lambda: steps([-1.0, 2.0], 1.0, 0), "rate"),
        (lambda: spike(1.0, 2.0, 5.0, 5.0, 0), "spike_seconds"),
        (lambda: spike(1.0, 0.0, 1.0, 5.0, 0), "factor"),
        (lambda: trace([]), "timestamps"),
        (lambda: trace([0.0, math.inf]), "timestamps"),
        (lambda: trace([0.0], speedup=0.0), "speedup"),
    ):
        with pytest.raises(ValueError, match=name):
            wrong()
