"""Simulated servers whose capacity is known: is a step classed for what it is?"""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailproof.core.arrivals import poisson
from tailproof.core.queues import batched, one_at_a_time
from tailproof.core.recording import TIMED_OUT, UNANSWERED, Floats, Recording
from tailproof.core.saturation import (
    Class,
    RatePoint,
    achieved,
    advice,
    classify,
    is_overloaded,
    knee,
    saturation,
)

Serve = Callable[[Floats, np.random.Generator], Floats]
"""Arrival times, a generator -> response times."""


def exponential(mean: float) -> Serve:
    return lambda at, rng: one_at_a_time(at, rng.exponential(mean, len(at)))


def batches(at: Floats, _: np.random.Generator) -> Floats:
    """5 ms + 1 ms a row, at most 16: 762/s."""
    return batched(at, lambda rows: 0.005 + 0.001 * rows, 16)


def step(arrivals: Floats, response: Floats, drained: float = np.inf) -> Recording:
    """A step whose answers are all 200, unless they come after `drained`."""
    recording = Recording.empty(arrivals)
    recording.sent[:] = arrivals
    recording.last[:] = arrivals + response
    recording.status[:] = 200
    late = recording.last > drained
    recording.last[late] = np.nan
    recording.status[late] = UNANSWERED
    return recording


def simulated(serve: Serve, rate: float, seconds: float, seed: int) -> tuple[Recording, float]:
    """A step with a fifth of warm-up, and when that was over."""
    warm_up = 0.2 * seconds
    arrivals = poisson(rate, warm_up + seconds, seed)
    response = serve(arrivals, np.random.default_rng([seed, 1]))
    return step(arrivals, response, drained=warm_up + seconds + 2.0), warm_up


def overloaded(serve: Serve, rate: float, seconds: float, num_runs: int) -> float:
    """Share of the runs that are called so."""
    found = (simulated(serve, rate, seconds, seed) for seed in range(num_runs))
    return float(np.mean([is_overloaded(made, start, start + seconds) for made, start in found]))


# --- false alarms and misses ----------------------------------------------------------------------


@pytest.mark.parametrize("utilization", [0.5, 0.8, 0.9])
@pytest.mark.parametrize(
    ("service", "seconds"), [(0.003, 3.0), (0.003, 30.0), (0.010, 3.0), (0.050, 3.0), (0.050, 30.0)]
)
def test_a_busy_server_that_keeps_up_is_not_overloaded(
    utilization: float, service: float, seconds: float
) -> None:
    found = overloaded(exponential(service), utilization / service, seconds, num_runs=100)

    assert found <= 0.03


@pytest.mark.parametrize("utilization", [0.5, 0.8, 0.9])
@pytest.mark.parametrize("seconds", [3.0, 10.0])
def test_a_busy_batch_server_is_not_overloaded(utilization: float, seconds: float) -> None:
    assert overloaded(batches, utilization * 762.0, seconds, num_runs=30) == 0.0


@pytest.mark.parametrize(
    ("serve", "capacity", "seconds"),
    [
        (exponential(0.003), 333.3, 10.0),
        (exponential(0.010), 100.0, 30.0),
        (batches, 762.0, 3.0),
        (batches, 762.0, 10.0),
    ],
)
def test_a_tenth_too_much_is_seen(serve: Serve, capacity: float, seconds: float) -> None:
    assert overloaded(serve, 1.1 * capacity, seconds, num_runs=50) >= 0.96


def test_a_short_step_near_capacity_does_not_pretend_to_know() -> None:
    too_short = overloaded(exponential(0.050), 1.1 * 20.0, 3.0, num_runs=100)

    assert too_short <= 0.1


@given(seed=st.integers(0, 10**6), rate=st.floats(50.0, 5000.0), seconds=st.floats(1.0, 10.0))
def test_without_a_queue_nothing_overloads(seed: int, rate: float, seconds: float) -> None:
    arrivals = poisson(rate, 1.2 * seconds, seed)
    unlimited = step(arrivals, np.full(len(arrivals), 0.02))

    assert not is_overloaded(unlimited, 0.2 * seconds, 1.2 * seconds)


def test_hardly_any_room_left_is_not_yet_overload() -> None:
    """Its backlog wanders far; yet it is worked off faster than requests come."""
    assert overloaded(exponential(0.003), 0.98 / 0.003, 30.0, num_runs=100) <= 0.05


def test_many_in_flight_come_and_go_by_chance() -> None:
    """2,000 requests in flight, none of which waits for another."""

    def unlimited(at: Floats, rng: np.random.Generator) -> Floats:
        return rng.exponential(0.5, len(at))

    assert overloaded(unlimited, 4000.0, 12.0, num_runs=60) <= 0.02


def test_a_service_that_only_starts_up_slowly_is_not_overloaded() -> None:
    """Two seconds each, all at once: the backlog grows for two seconds, then it stays."""
    for seed in range(30):
        arrivals = poisson(500.0, 12.0, seed)
        started = step(arrivals, np.full(len(arrivals), 2.0))

        assert not is_overloaded(started, 0.5, 12.0), seed


def test_a_freeze_that_recovers_is_no_overload() -> None:
    arrivals = poisson(50.0, 30.0, seed=5)
    service = np.full(len(arrivals), 0.010)
    service[np.searchsorted(arrivals, 14.0)] = 2.0

    frozen = step(arrivals, one_at_a_time(arrivals, service))

    assert classify(frozen, 0.0, 30.0, base_p95=0.02) == "KNEE"
    assert not is_overloaded(frozen, 5.0, 30.0)


def test_what_is_only_answered_in_the_drain_stays_overload() -> None:
    rate, seconds = 1.3 * 762.0, 5.0
    arrivals = poisson(rate, 6.0, seed=2)
    drained = step(arrivals, batches(arrivals, np.random.default_rng(0)))

    assert np.all(drained.good)
    assert classify(drained, 1.0, 6.0) == "OVERLOAD"
    assert achieved(drained, 1.0, 6.0) == pytest.approx(762.0, rel=0.02)
    assert achieved(drained, 1.0, 1.0 + 2 * seconds) == pytest.approx(rate / 2, rel=0.15)


def test_a_burst_at_the_end_of_a_bursty_load_is_no_overload() -> None:
    """The same backlog that would be overload under even arrivals."""
    quiet, burst = np.linspace(0, 8, 4000, endpoint=False), np.linspace(9, 10, 1500, endpoint=False)
    bursts = np.sort(np.concatenate([quiet, burst]))
    even = np.linspace(0, 10, 5500, endpoint=False)
    left = np.sort(one_at_a_time(bursts, np.full(5500, 1 / 1000)) + bursts)

    assert not is_overloaded(step(bursts, left - bursts), 0.0, 10.0)
    assert is_overloaded(step(even, one_at_a_time(even, np.full(5500, 1 / 500))), 0.0, 10.0)


# --- refusals and errors --------------------------------------------------------------------------


def test_errors_of_another_kind_are_no_sign_of_load() -> None:
    arrivals = poisson(500.0, 6.0, seed=7)
    for share in (0.2, 1.0):
        failing = step(arrivals, np.full(len(arrivals), 0.004))
        failing.status[np.random.default_rng(1).random(len(arrivals)) < share] = 500

        assert classify(failing, 1.0, 6.0, base_p95=0.004) == "LINEAR"


@pytest.mark.parametrize("status", [429, 503, TIMED_OUT])
@pytest.mark.parametrize(("share", "expected"), [(0.0, "LINEAR"), (0.1, "OVERLOAD")])
def test_a_server_that_sheds_is_past_its_capacity(
    status: int, share: float, expected: Class
) -> None:
    arrivals = poisson(500.0, 6.0, seed=7)
    shedding = step(arrivals, np.full(len(arrivals), 0.004))
    refused = np.random.default_rng(1).random(len(arrivals)) < share
    shedding.status[refused] = status

    assert classify(shedding, 1.0, 6.0, base_p95=0.004) == expected
    in_window = (arrivals >= 1.0) & ~refused
    assert achieved(shedding, 1.0, 6.0) == pytest.approx(np.sum(in_window) / 5.0, rel=0.01)


def test_one_refusal_in_a_short_step_is_chance() -> None:
    few = step(np.linspace(0, 1, 20, endpoint=False), np.full(20, 0.004))
    few.status[3] = 503

    assert classify(few, 0.0, 1.0, base_p95=0.1) == "LINEAR"


def test_nothing_answered_is_overload_and_nothing_asked_is_not() -> None:
    silent = step(poisson(100.0, 3.0, seed=1), np.full(300, 99.0), drained=3.0)

    assert classify(silent, 0.0, 3.0) == "OVERLOAD"
    assert achieved(silent, 0.0, 3.0) == 0.0
    assert classify(Recording.empty(np.array([])), 0.0, 1.0) == "LINEAR"


# --- linear or knee -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("base", "below", "expected", "why"),
    [
        (None, None, "LINEAR", "nothing to compare with"),
        (0.011, (50.0, 0.009), "LINEAR", "elasticity ln(10/9) / ln 2 = 0.15"),
        (0.006, (50.0, 0.009), "LINEAR", "1.7 times the base"),
        (0.005, (50.0, 0.009), "KNEE", "twice the base"),
        (0.009, (50.0, 0.005), "KNEE", "doubled as the rate did: elasticity 1"),
        (0.009, (50.0, 0.006), "LINEAR", "elasticity 0.74"),
        (0.009, (95.0, 0.005), "LINEAR", "too near to say how fast latency grows"),
    ],
)
def test_latency_that_outgrows_load_is_the_knee(
    base: float | None, below: tuple[float, float] | None, expected: Class, why: str
) -> None:
    steady = step(np.linspace(0, 5, 500, endpoint=False), np.full(500, 0.010))

    assert classify(steady, 0.0, 5.0, base_p95=base, below=below) == expected, why


# --- knee and capacity from many steps ------------------------------------------------------------


def mm1_point(rate: float, capacity: float = 100.0) -> RatePoint:
    """P95 = -ln(0.05) / (capacity - rate)."""
    return RatePoint(rate, rate, 3.0 / (capacity - rate), "LINEAR")


def test_the_knee_of_a_single_server_is_at_half_its_capacity() -> None:
    points = [mm1_point(rate) for rate in (10, 20, 35, 45, 60, 75, 90)]

    assert knee(points) == pytest.approx(50.0, rel=0.03)


@pytest.mark.parametrize(
    ("rates", "why"),
    [
        ((20, 45, 60, 80), "too few"),
        ((5, 10, 20, 30, 40), "beyond the highest"),
        ((60, 65, 70, 80, 90), "below the lowest"),
    ],
)
def test_a_knee_that_was_not_seen_is_none(rates: tuple[float, ...], why: str) -> None:
    assert knee([mm1_point(rate) for rate in rates]) is None, why


def test_rates_without_a_p95_do_not_move_the_knee() -> None:
    seen = [mm1_point(rate) for rate in (10, 20, 35, 45, 60, 75, 90)]
    lost = [RatePoint(rate, 99.0, None, "OVERLOAD") for rate in (110.0, 150.0)]

    assert knee(seen + lost) == knee(seen)


def points(*found: tuple[float, float, Class]) -> list[RatePoint]:
    return [RatePoint(rate, got, 0.01, class_) for rate, got, class_ in found]


def test_the_capacity_is_the_plateau_of_the_overloaded() -> None:
    found = saturation(
        points(
            (1500, 700, "OVERLOAD"),
            (400, 400, "LINEAR"),
            (800, 764, "OVERLOAD"),
            (700, 699, "KNEE"),
            (1000, 760, "OVERLOAD"),
            (5000, 90, "OVERLOAD"),
        )
    )

    assert found == (760.0, 700.0, 800.0)


def test_a_server_that_answers_less_when_overloaded_still_has_its_capacity() -> None:
    found = saturation(points((700, 699, "KNEE"), (1000, 300, "OVERLOAD"), (1400, 50, "OVERLOAD")))

    assert found == (700.0, 700.0, 1000.0)


def test_a_short_step_that_fell_short_is_not_taken_for_keeping_up() -> None:
    found = saturation(points((20, 20, "LINEAR"), (40, 30, "KNEE"), (80, 31, "OVERLOAD")))

    assert found == (31.0, 20.0, 80.0)


@pytest.mark.parametrize(
    "found",
    [
        [],
        points((100, 100, "LINEAR"), (200, 199, "KNEE")),
        points((100, 50, "OVERLOAD")),
    ],
)
def test_without_both_sides_there_is_no_saturation(found: list[RatePoint]) -> None:
    assert saturation(found) is None


# --- in words -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("class_", "verdict", "more", "words"),
    [
        ("LINEAR", "PASS", None, "keep loading"),
        ("LINEAR", "FAIL", None, "load is not why"),
        ("KNEE", "PASS", None, "keep loading"),
        ("KNEE", "FAIL", None, "the SLO belongs before this point"),
        ("OVERLOAD", "FAIL", None, "this is the capacity, the basis for scaling"),
        ("OVERLOAD", "PASS", None, "breaks only beyond saturation"),
        ("KNEE", "INVALID", None, "look at the tester first"),
        (None, "INVALID", None, "look at the tester first"),
        ("KNEE", "UNDECIDED", 1200, "about 1,200 more requests"),
        ("LINEAR", "UNDECIDED", None, "a longer step"),
    ],
)
def test_advice(class_: Class | None, verdict: str, more: int | None, words: str) -> None:
    assert words in advice(class_, verdict, more)  # type: ignore[arg-type]
