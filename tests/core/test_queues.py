"""The oracles themselves: against event loops, formulas, and each other."""

import heapq
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailproof.core.queues import batched, mm1_quantile, one_at_a_time, relaxation_time

TIMES = st.lists(st.floats(0.0, 10.0), min_size=1, max_size=60).map(sorted)


def served_in_turn(arrivals: list[float], service: list[float]) -> list[float]:
    """One server, as anybody would write it down."""
    free, response = 0.0, []
    for arrived, seconds in zip(arrivals, service, strict=True):
        free = max(free, arrived) + seconds
        response.append(free - arrived)
    return response


@given(TIMES, st.data())
def test_one_at_a_time_is_a_server_that_serves_in_turn(
    arrivals: list[float], data: st.DataObject
) -> None:
    num = len(arrivals)
    service = data.draw(st.lists(st.floats(0.0, 2.0), min_size=num, max_size=num))

    response = one_at_a_time(np.array(arrivals), np.array(service))

    assert response == pytest.approx(served_in_turn(arrivals, service), abs=1e-9)


@given(TIMES, st.floats(0.0, 2.0))
def test_batches_of_one_are_one_at_a_time(arrivals: list[float], seconds: float) -> None:
    times = np.array(arrivals)

    response = batched(times, lambda rows: seconds, max_rows=1)

    assert response == pytest.approx(one_at_a_time(times, np.full(len(times), seconds)), abs=1e-9)


@given(TIMES, st.integers(1, 4), st.floats(0.0, 2.0))
def test_several_workers_with_batches_of_one_share_a_queue(
    arrivals: list[float], workers: int, seconds: float
) -> None:
    free = [0.0] * workers
    expected = []
    for arrived in arrivals:
        left = max(heapq.heappop(free), arrived) + seconds
        heapq.heappush(free, left)
        expected.append(left - arrived)

    response = batched(np.array(arrivals), lambda rows: seconds, 1, workers)

    assert response == pytest.approx(expected, abs=1e-9)


def test_a_free_worker_takes_all_that_waits_up_to_its_limit() -> None:
    sizes = []

    def seconds(rows: int) -> float:
        sizes.append(rows)
        return 1.0

    response = batched(np.array([0.0, 0.1, 0.2, 0.3, 1.5, 9.0]), seconds, max_rows=3)

    assert sizes == [1, 3, 1, 1]
    assert response == pytest.approx([1.0, 1.9, 1.8, 1.7, 1.5, 1.0])


def test_the_formula_of_mm1_is_what_a_long_simulation_gives() -> None:
    rng = np.random.default_rng(5)
    num, rate, service = 1_000_000, 50.0, 0.010
    arrivals = np.sort(rng.uniform(0.0, num / rate, num))

    response = one_at_a_time(arrivals, rng.exponential(service, num))

    for q in (0.5, 0.95, 0.99):
        assert np.quantile(response, q) == pytest.approx(mm1_quantile(rate, service, q), rel=0.03)


@pytest.mark.parametrize(
    ("utilization", "milliseconds"), [(0.5, [13.1, 19.8, 23.1]), (0.8, [20.5, 33.3, 39.7])]
)
def test_a_batch_server_has_the_tail_that_others_simulated(
    utilization: float, milliseconds: list[float]
) -> None:
    """5 ms a batch and 1 ms a row, at most 16: P50, P95 and P99 from 200,000 requests."""
    rng = np.random.default_rng(6)
    num, rate = 400_000, utilization * 16 / 0.021
    arrivals = np.sort(rng.uniform(0.0, num / rate, num))

    response = batched(arrivals, lambda rows: 0.005 + 0.001 * rows, max_rows=16)

    assert 1e3 * np.quantile(response, [0.5, 0.95, 0.99]) == pytest.approx(milliseconds, rel=0.02)


@pytest.mark.parametrize("rate", [100.0, 200.0])
def test_an_overloaded_queue_has_no_steady_state(rate: float) -> None:
    with pytest.raises(ValueError, match="no steady state"):
        mm1_quantile(rate, 0.010, 0.95)


@pytest.mark.parametrize(("utilization", "services"), [(0.5, 12), (0.8, 90), (0.9, 380)])
def test_a_busier_server_remembers_longer(utilization: float, services: float) -> None:
    assert relaxation_time(0.010, utilization) == pytest.approx(0.010 * services, rel=0.04)
    assert math.isclose(relaxation_time(1.0, 0.0), 1.0)
