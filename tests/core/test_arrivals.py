"""Schedules: exact counts, the right shape, the same for the same seed."""

import math

import numpy as np
import pytest

from tailproof.core.arrivals import on_off, poisson


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
