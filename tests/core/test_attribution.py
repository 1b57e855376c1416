"""Tails whose causes are known: the right one is named, with about its share, and no other."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tailproof.core.arrivals import poisson
from tailproof.core.attribution import Attribution, attribute, cold_requests
from tailproof.core.queues import batched, one_at_a_time
from tailproof.core.recording import Floats, Recording

SECONDS = 30.0


def recorded(
    arrivals: Floats, service_view: Floats, *, own_lag: Floats | None = None, **known: Any
) -> Recording:
    """Requests that were answered `service_view` seconds after their send."""
    lag = np.full(len(arrivals), 30e-6) if own_lag is None else own_lag
    accept_wait = known.get("accept_wait", np.zeros(len(arrivals)))
    sent = arrivals + lag + accept_wait
    columns: dict[str, Any] = {
        "woke": arrivals + lag,
        "acquired": sent,
        "sent": sent,
        "first_byte": sent + service_view,
        "last": sent + service_view,
        "status": np.full(len(arrivals), 200, np.int32),
        "sent_bytes": np.full(len(arrivals), 300, np.int32),
    }
    return replace(Recording.empty(arrivals), **(columns | known))


def explained(recording: Recording, **options: Any) -> Attribution:
    return attribute(recording, rng=np.random.default_rng(0), **options)


def shares(found: Attribution) -> dict[str, float]:
    return {cause.cause: cause.share for cause in found.causes}


def steady(num: int, seconds: float, rng: np.random.Generator) -> Floats:
    """Nearly constant service."""
    return seconds * rng.uniform(0.95, 1.05, num)


def stopping(
    arrivals: Floats,
    service: Floats,
    stalls: list[tuple[float, float]],
    *,
    one_by_one: bool,
) -> Floats:
    """Response times of a service that stands still in each of `stalls` (start, end)."""
    free, response = 0.0, np.empty_like(arrivals)
    for index, (arrived, needed) in enumerate(zip(arrivals, service, strict=True)):
        now, left = (max(arrived, free) if one_by_one else arrived), needed
        for start, end in stalls:
            if end <= now:
                continue
            if now + left <= start:
                break
            left -= max(0.0, start - now)
            now = end
        free = now + left
        response[index] = free - arrived
    return response


def every_two_seconds(seconds: float = 0.150) -> list[tuple[float, float]]:
    return [(at, at + seconds) for at in np.arange(1.0, SECONDS, 2.0)]


def batches(arrivals: Floats) -> tuple[Floats, Floats, npt.NDArray[np.int32]]:
    """(waiting, computing, batch size) of a server that needs 5 ms and 1 ms a row, 16 at most."""
    sizes: list[int] = []

    def seconds(rows: int) -> float:
        sizes.append(rows)
        return 0.005 + 0.001 * rows

    response = batched(arrivals, seconds, 16)
    size = np.repeat(sizes, sizes).astype(np.int32)
    computing = 0.005 + 0.001 * size
    return response - computing, computing, size


def true_share(waiting: Floats, response: Floats) -> float:
    """Of the excess of the slowest 5%: the waiting beyond that of the middle requests."""
    slow = response > np.percentile(response, 95.0, method="inverted_cdf")
    low, high = np.percentile(response, (40.0, 60.0))
    middle = (response >= low) & (response <= high)
    excess = np.sum(response[slow] - np.median(response))
    return float(np.sum(waiting[slow] - np.median(waiting[middle])) / excess)


# --- one cause ------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("utilization", [0.5, 0.8, 0.9])
def test_queueing_is_named_from_the_outside_as_from_the_servers_own_clock(
    utilization: float, seed: int
) -> None:
    arrivals = poisson(utilization * 200, SECONDS, seed)
    service = np.random.default_rng(seed).exponential(0.005, len(arrivals))
    response = one_at_a_time(arrivals, service)
    waiting = response - service
    truth = true_share(waiting, response)

    outside = explained(recorded(arrivals, response))
    told = explained(
        recorded(
            arrivals, response, queue=waiting, batch=0 * waiting, infer=service, total=response
        )
    )

    assert outside.primary == told.primary == "queueing"
    assert shares(outside)["queueing"] == pytest.approx(truth, abs=0.06)
    assert shares(told)["queueing"] == pytest.approx(truth, abs=0.02)
    assert set(shares(outside)) == set(shares(told)) == {"queueing"}


@pytest.mark.parametrize("rate", [300, 600, 700])
def test_waiting_and_batch_mates_are_told_apart(rate: int) -> None:
    arrivals = poisson(rate, SECONDS, 5)
    waiting, computing, size = batches(arrivals)
    response = waiting + computing
    truth = true_share(waiting, response)

    outside = explained(recorded(arrivals, response))
    told = explained(
        recorded(
            arrivals,
            response,
            queue=waiting,
            batch=0 * waiting,
            infer=computing,
            total=response,
            batch_size=size,
        )
    )

    assert shares(outside)["queueing"] == pytest.approx(truth, abs=0.05)
    assert shares(told)["queueing"] == pytest.approx(truth, abs=0.02)
    assert shares(told)["batch mates"] == pytest.approx(1.0 - truth, abs=0.05)


@pytest.mark.parametrize("one_by_one", [True, False])
@pytest.mark.parametrize("rate", [50, 150])
@pytest.mark.parametrize("clock", ["none", "in the front", "in the worker"])
def test_a_stall_is_named_whatever_the_server_tells(
    rate: int, one_by_one: bool, clock: str
) -> None:
    arrivals = poisson(rate, SECONDS, 7)
    service = steady(len(arrivals), 0.003, np.random.default_rng(7))
    response = stopping(arrivals, service, every_two_seconds(), one_by_one=one_by_one)
    nothing = np.zeros(len(arrivals))
    told: dict[str, dict[str, Floats]] = {
        "none": {},
        "in the front": {"queue": nothing, "batch": nothing, "infer": service, "total": service},
        "in the worker": {
            "queue": response - service,
            "batch": nothing,
            "infer": service,
            "total": response,
        },
    }

    found = explained(recorded(arrivals, response, **told[clock]))

    assert found.primary == "GC or stall"
    assert shares(found)["GC or stall"] > 0.95
    assert re.search(r"up to 1[45]\dms, every (2|2\.0\d|1\.9\d)s", found.causes[0].text)


def test_stalls_that_come_at_any_time_are_counted_and_not_called_periodic() -> None:
    arrivals = poisson(100, SECONDS, 8)
    service = steady(len(arrivals), 0.003, np.random.default_rng(8))
    stalls = [(at, at + 0.2) for at in (1.0, 2.3, 6.1, 7.0, 13.7, 15.1, 24.6, 28.2)]

    found = explained(recorded(arrivals, stopping(arrivals, service, stalls, one_by_one=False)))

    assert found.primary == "GC or stall"
    assert "8 times" in found.causes[0].text


def test_a_known_pause_that_is_too_short_to_stand_out_is_believed() -> None:
    arrivals = poisson(300, SECONDS, 9)
    service = np.random.default_rng(9).exponential(0.010, len(arrivals))
    pauses = [(at, at + 0.035) for at in np.arange(0.5, SECONDS, 0.5)]
    response = stopping(arrivals, service, pauses, one_by_one=False)
    recording = recorded(arrivals, response)

    unknown, known = explained(recording), explained(recording, gc_pauses=pauses)

    assert "GC or stall" not in shares(unknown)
    assert shares(known)["GC or stall"] > 0.2


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_large_inputs_are_named(seed: int) -> None:
    rng = np.random.default_rng(seed)
    arrivals = poisson(100, SECONDS, seed)
    large = rng.random(len(arrivals)) < 0.05
    service = np.where(large, 0.050, 0.005) * rng.uniform(0.95, 1.05, len(arrivals))
    sizes = np.where(large, 20_000, 300).astype(np.int32)

    at_once = explained(recorded(arrivals, service, sent_bytes=sizes))
    in_line = explained(recorded(arrivals, one_at_a_time(arrivals, service), sent_bytes=sizes))

    assert at_once.primary == "large input"
    assert shares(at_once)["large input"] > 0.9
    assert set(shares(in_line)) == {"large input", "queueing"}
    assert shares(in_line)["large input"] > 0.4  # they, and who waits right behind them


def test_sizes_that_have_nothing_to_do_with_it_are_not_blamed() -> None:
    rng = np.random.default_rng(4)
    arrivals = poisson(100, SECONDS, 4)
    slow = rng.random(len(arrivals)) < 0.05
    sizes = rng.permutation(np.where(slow, 20_000, 300)).astype(np.int32)

    found = explained(recorded(arrivals, np.where(slow, 0.050, 0.005), sent_bytes=sizes))

    assert found.causes == ()
    assert found.unexplained == 1.0


def test_cold_requests_are_named_and_who_waited_behind_them() -> None:
    arrivals = poisson(100, SECONDS, 5)
    service = steady(len(arrivals), 0.004, np.random.default_rng(5))
    service[0] += 0.8
    cold = np.zeros(len(arrivals), np.bool_)
    cold[0] = True

    found = explained(recorded(arrivals, one_at_a_time(arrivals, service), cold=cold))

    assert found.primary == "cold start"
    assert shares(found)["cold start"] > 0.9


@pytest.mark.parametrize("num", [4, 30])
def test_a_slow_replica_is_named_by_its_name(num: int) -> None:
    rng = np.random.default_rng(6)
    arrivals = poisson(100, SECONDS, 6)
    replica = rng.integers(num, size=len(arrivals)).astype(np.int32)
    service = np.where(replica == 2, 0.020, 0.005) * rng.uniform(0.9, 1.1, len(arrivals))
    names = tuple(f"worker-{number}" for number in range(num))

    found = explained(recorded(arrivals, service, replica=replica, replicas=names))

    assert found.primary == "replica"
    assert "worker-2" in found.causes[0].text


def test_late_sends_are_the_generators() -> None:
    rng = np.random.default_rng(7)
    arrivals = poisson(100, SECONDS, 7)
    late = rng.random(len(arrivals)) < 0.1
    lag = np.where(late, rng.exponential(0.020, len(arrivals)), 30e-6)

    found = explained(recorded(arrivals, steady(len(arrivals), 0.005, rng), own_lag=lag))

    assert found.primary == "the generator"


def test_a_tester_that_stood_still_is_not_taken_for_a_server_that_did() -> None:
    """It sends nothing meanwhile, and reads all that was in flight late."""
    arrivals = poisson(400, SECONDS, 8)
    service = steady(len(arrivals), 0.010, np.random.default_rng(8))
    response = stopping(arrivals, service, every_two_seconds(), one_by_one=False)
    lag = np.full(len(arrivals), 30e-6)
    for start, end in every_two_seconds():
        asleep = (arrivals >= start) & (arrivals < end)
        lag[asleep] = end - arrivals[asleep]
    answered_late = np.where(lag > 1e-3, service, response)

    found = explained(recorded(arrivals, answered_late, own_lag=lag))

    assert found.primary == "the generator"
    assert "GC or stall" not in shares(found)


def test_time_between_tester_and_server_is_the_networks() -> None:
    rng = np.random.default_rng(9)
    arrivals = poisson(100, SECONDS, 9)
    service = steady(len(arrivals), 0.005, rng)
    lost = np.where(rng.random(len(arrivals)) < 0.05, 0.2, 0.0005)
    nothing = np.zeros(len(arrivals))
    told = {"queue": nothing, "batch": nothing, "infer": service, "total": service}

    found = explained(recorded(arrivals, service + lost, **told))

    assert found.primary == "network"


def test_time_at_no_stage_of_the_server_is_a_starved_front() -> None:
    rng = np.random.default_rng(10)
    arrivals = poisson(100, SECONDS, 10)
    service = steady(len(arrivals), 0.005, rng)
    starved = np.where(rng.random(len(arrivals)) < 0.06, rng.exponential(0.03, len(arrivals)), 0.0)
    nothing = np.zeros(len(arrivals))
    told = {"queue": nothing, "batch": nothing, "infer": service, "total": service + starved}

    found = explained(recorded(arrivals, service + starved, **told))

    assert found.primary == "starved CPU"


# --- several, and none ----------------------------------------------------------------------------


def test_two_causes_are_both_named() -> None:
    rng = np.random.default_rng(11)
    arrivals = poisson(100, SECONDS, 11)
    large = rng.random(len(arrivals)) < 0.03
    service = np.where(large, 0.100, 0.005)
    sizes = np.where(large, 20_000, 300).astype(np.int32)
    response = stopping(arrivals, service, every_two_seconds(0.1), one_by_one=False)

    found = explained(recorded(arrivals, response, sent_bytes=sizes))

    assert set(shares(found)) == {"GC or stall", "large input"}
    assert min(shares(found).values()) > 0.2


def test_a_stall_in_a_busy_queue_has_about_the_share_that_is_gone_without_it() -> None:
    arrivals = poisson(140, SECONDS, 12)
    service = np.random.default_rng(12).exponential(0.005, len(arrivals))
    without = one_at_a_time(arrivals, service)
    response = stopping(arrivals, service, every_two_seconds(), one_by_one=True)
    slow = response > np.percentile(response, 95.0)
    gone = np.sum((response - without)[slow]) / np.sum((response - np.median(response))[slow])

    found = explained(recorded(arrivals, response))

    assert found.primary == "GC or stall"
    assert shares(found)["GC or stall"] == pytest.approx(gone, abs=0.1)


@pytest.mark.parametrize("rate", [50, 300, 1000])
@pytest.mark.parametrize("spread", [0.5, 1.0, 1.5])
@pytest.mark.parametrize("seed", [1, 2])
def test_independent_services_with_a_long_tail_stay_unexplained(
    spread: float, rate: int, seed: int
) -> None:
    arrivals = poisson(rate, 10.0, seed)
    rng = np.random.default_rng(seed)
    service = 0.010 * rng.lognormal(0.0, spread, len(arrivals))
    sizes = rng.integers(300, 3000, len(arrivals)).astype(np.int32)
    replica = rng.integers(3, size=len(arrivals)).astype(np.int32)

    found = explained(recorded(arrivals, service, sent_bytes=sizes, replica=replica))

    assert found.primary is None
    assert found.unexplained > 0.9


def test_the_usual_scatter_has_no_cause() -> None:
    arrivals = poisson(1000, SECONDS, 13)
    rng = np.random.default_rng(13)

    found = explained(recorded(arrivals, 0.005 * rng.uniform(0.97, 1.03, len(arrivals))))

    assert found.causes == ()
    assert found.unexplained == 1.0
    assert found.tail_from == pytest.approx(0.005, rel=0.05)


def test_few_slow_requests_are_not_explained() -> None:
    arrivals = poisson(10, SECONDS, 14)
    service = steady(len(arrivals), 0.003, np.random.default_rng(14))
    response = stopping(arrivals, service, every_two_seconds(1.0), one_by_one=True)

    found = explained(recorded(arrivals, response))

    assert np.sum(response > 0.1) > 100
    assert found.causes == ()
    assert found.primary is None


def test_nothing_answered_nothing_explained() -> None:
    found = explained(Recording.empty(poisson(100, 1.0, 1)))

    assert found == Attribution((), 1.0, None, None)
    assert explained(Recording.empty(np.array([]))).tail_from is None


def test_shares_and_the_rest_make_one() -> None:
    arrivals = poisson(700, SECONDS, 15)
    waiting, computing, size = batches(arrivals)
    recording = recorded(
        arrivals, waiting + computing, queue=waiting, infer=computing, batch_size=size
    )

    found = explained(recording)

    assert sum(shares(found).values()) + found.unexplained == pytest.approx(1.0)
    assert all(0.0 < cause.low <= cause.share <= cause.high <= 1.0 for cause in found.causes)


def test_the_same_seed_gives_the_same_answer() -> None:
    arrivals = poisson(170, SECONDS, 16)
    service = np.random.default_rng(16).exponential(0.005, len(arrivals))
    recording = recorded(arrivals, one_at_a_time(arrivals, service))

    assert explained(recording) == explained(recording)


def test_very_many_requests_are_explained_in_a_moment() -> None:
    """A sample of the slow ones is looked into; the answer stays."""
    arrivals = poisson(8000, SECONDS, 17)
    service = np.random.default_rng(17).exponential(0.0001, len(arrivals))

    found = explained(recorded(arrivals, one_at_a_time(arrivals, service)))

    assert found.primary == "queueing"


# --- cold requests --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "make", "expected"),
    [
        ("process", lambda one: one, []),
        ("process", lambda one: replace(one, cold=np.arange(len(one)) == 3), [3]),
        ("connection", lambda one: replace(one, fresh=np.arange(len(one)) < 2), [0, 1]),
        ("idle", lambda one: one, [50]),
    ],
)
def test_cold_requests_by_kind(
    kind: str, make: Callable[[Recording], Recording], expected: list[int]
) -> None:
    """100 requests, 10 ms apart, with a silence of 5 s after the 50th."""
    arrivals = np.arange(100) * 0.01
    arrivals[50:] += 5.0
    recording = make(recorded(arrivals, np.full(100, 0.002)))

    assert np.flatnonzero(cold_requests(recording)[kind]).tolist() == expected


def test_the_first_of_a_run_is_cold_when_it_is_said_to_be() -> None:
    recording = recorded(np.arange(5) * 1.0, np.full(5, 0.1))

    first = cold_requests(recording, first_of_run=True)["process"]

    assert first.tolist() == [True, False, False, False, False]


def test_a_slow_answer_over_a_silence_is_no_idleness() -> None:
    arrivals = np.array([*np.arange(50) * 0.01, 6.0])
    service = np.full(51, 0.002)
    service[49] = 5.5  # in flight almost until the next

    assert not np.any(cold_requests(recorded(arrivals, service))["idle"])
