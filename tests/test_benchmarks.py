"""The instruments of benchmarks/: what they count, what they do not, and what they find."""

# ruff: noqa: E402  the benchmarks are scripts, so their folder is put on the path first

import asyncio
import importlib.util
import itertools
import json
import math
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import closed_loop
import coldstart
import findings
import overload
import processes
from alarm import Alarm
from connection import (
    LOST,
    NO_SOCKET,
    NOT_CONNECTED,
    UNANSWERED,
    Connection,
    Target,
    answer_bounds,
    header,
)
from open_loop import OpenLoop, Rules
from payloads import fraud_bodies
from search import Limit, Plan, highest_rate
from steps import (
    Recording,
    Schedule,
    Step,
    arrivals,
    classify,
    judge,
    percentile,
    percentiles,
    steady,
)
from tailproof.core.slo import Latency

SLO = Latency(95.0, 0.050)
BODY = b'{"score": 1}'
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(BODY), BODY)
REFUSAL = b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 0\r\n\r\n"


# --- schedule -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rate", "seconds"), [(50, 2.0), (348.0, 8.0), (1000, 0.5), (0.5, 4.0)])
@pytest.mark.parametrize("kind", ["poisson", "constant"])
def test_a_schedule_has_exactly_the_arrivals_of_its_rate(
    kind: Any, rate: float, seconds: float
) -> None:
    offsets = arrivals(kind, rate, seconds, np.random.default_rng(3))

    assert len(offsets) == round(rate * seconds)
    assert np.all(np.diff(offsets) >= 0)
    assert offsets[0] >= 0
    assert offsets[-1] < seconds


def test_the_same_seed_gives_the_same_arrivals_and_another_seed_others() -> None:
    def times(seed: int) -> list[float]:
        return arrivals("poisson", 100, 1.0, np.random.default_rng(seed)).tolist()

    assert times(7) == times(7)
    assert times(7) != times(8)


def test_constant_arrivals_are_equally_far_apart() -> None:
    offsets = arrivals("constant", 50, 2.0, np.random.default_rng(0))

    assert offsets[0] == 0.0
    assert np.allclose(np.diff(offsets), 0.02)


def distance_from_exponential(gaps: np.ndarray[Any, Any], rate: float) -> float:
    """Kolmogorov-Smirnov: the largest distance between the two distribution functions, times
    sqrt(n). Above 1.95 once in a thousand samples that are exponential."""
    expected = 1.0 - np.exp(-rate * np.sort(gaps))
    num = len(gaps)
    above = np.arange(1, num + 1) / num - expected
    below = expected - np.arange(num) / num
    return float(max(above.max(), below.max()) * math.sqrt(num))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("rate", [40, 500, 4000])
def test_poisson_gaps_are_exponential(rate: float, seed: int) -> None:
    offsets = arrivals("poisson", rate, 10.0, np.random.default_rng(seed))

    assert distance_from_exponential(np.diff(offsets), rate) < 1.95


def test_gaps_that_only_have_the_right_mean_are_told_apart() -> None:
    """The test above can fail: uniform and constant gaps of the same rate do not pass it."""
    rng = np.random.default_rng(1)

    assert distance_from_exponential(rng.uniform(0, 0.02, 1000), 100) > 1.95
    assert distance_from_exponential(np.full(1000, 0.01), 100) > 1.95


def test_the_warm_up_is_sent_and_not_measured() -> None:
    schedule = steady("poisson", 200, 0.5, 2.0, np.random.default_rng(1))

    assert len(schedule.offsets) == 500
    assert schedule.num_warm_up == 100
    assert schedule.rate == 200.0
    assert schedule.end == 2.5


# --- percentiles ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [
        pytest.param(range(1, 101), 95.0, 95.0, id="the 95th of a hundred"),
        pytest.param(range(1, 101), 99.9, 100.0, id="rounded up, never interpolated"),
        pytest.param([1.0, 2.0], 50.0, 1.0, id="the lower of two"),
        pytest.param([5.0], 99.0, 5.0, id="a single value"),
        pytest.param([], 50.0, None, id="nothing"),
        pytest.param([1.0] * 95 + [math.inf] * 5, 95.0, 1.0, id="rank just below the misses"),
        pytest.param([1.0] * 94 + [math.inf] * 6, 95.0, None, id="rank on a miss"),
    ],
)
def test_percentiles_are_nearest_rank(values: Any, percent: float, expected: float | None) -> None:
    assert percentile(np.array(list(values), dtype=float), percent) == expected


@given(
    st.lists(st.floats(0.001, 10.0), min_size=1, max_size=60),
    st.integers(0, 60),
    st.sampled_from([50.0, 90.0, 95.0, 99.0]),
)
def test_a_miss_never_makes_a_percentile_smaller(
    times: list[float], num_misses: int, percent: float
) -> None:
    without = percentile(np.array(times), percent)
    with_misses = percentile(np.array(times + [math.inf] * num_misses), percent)

    assert without is not None
    assert with_misses is None or with_misses >= without


def test_percentiles_are_named_for_json() -> None:
    named = percentiles(np.array([1.0, 2.0]), (50.0, 99.9))

    assert named == {"p50": 1.0, "p99_9": 2.0}


# --- verdict --------------------------------------------------------------------------------------


def recorded(
    times: list[float],
    statuses: list[int] | None = None,
    lag: float = 0.0,
    stopped_at: float | None = None,
) -> Recording:
    """One request every 10 ms; each took `times[i]` from its intended start."""
    num = len(times)
    due = np.arange(num) * 0.01
    return Recording(
        schedule=Schedule(due, 0.0, num * 0.01),
        sent=due + lag,
        last=due + np.array(times),
        status=np.array(statuses or [200] * num, dtype=np.int16),
        own_lag=np.full(num, lag),
        num_connections=1,
        stopped_at=stopped_at,
    )


@pytest.mark.parametrize(
    ("num_late", "verdict"), [(50, "PASS"), (51, "FAIL")], ids=["at the limit", "one past it"]
)
def test_the_slo_allows_exactly_its_share_of_late_answers(num_late: int, verdict: str) -> None:
    times = [0.0499] * (1000 - num_late) + [0.0501] * num_late

    assert judge(recorded(times), SLO).verdict == verdict


@pytest.mark.parametrize(
    ("num_failed", "verdict"), [(1, "PASS"), (2, "FAIL")], ids=["at the limit", "one past it"]
)
def test_one_in_a_thousand_may_go_unanswered(num_failed: int, verdict: str) -> None:
    statuses = [500] * num_failed + [200] * (1000 - num_failed)

    assert judge(recorded([0.001] * 1000, statuses), SLO).verdict == verdict


@pytest.mark.parametrize("status", [429, 503, 500, 404, 302, LOST, NOT_CONNECTED, UNANSWERED])
def test_a_fast_refusal_is_a_miss_and_not_a_fast_answer(status: int) -> None:
    step = judge(recorded([0.030] * 94 + [0.0001] * 6, [200] * 94 + [status] * 6), SLO)

    assert step.verdict == "FAIL"
    assert step.response_seconds["p95"] is None
    assert step.uncorrected_seconds["p95"] is None
    assert step.response_seconds["p50"] == pytest.approx(0.030)
    assert step.failed == pytest.approx(0.06)


def test_refusals_have_a_share_of_their_own() -> None:
    step = judge(recorded([0.03] * 100, [200] * 90 + [429] * 6 + [503] * 3 + [500]), SLO)

    assert step.refused == pytest.approx(0.09)
    assert step.failed == pytest.approx(0.10)


@pytest.mark.parametrize(
    ("lag", "verdict"), [(0.0025, "PASS"), (0.00251, "INVALID")], ids=["at the limit", "past it"]
)
def test_a_late_client_makes_the_step_invalid(lag: float, verdict: str) -> None:
    step = judge(recorded([0.010] * 200, lag=lag), SLO)

    assert step.verdict == verdict
    assert step.own_lag_seconds["p99"] == pytest.approx(lag)


def test_a_late_client_is_not_believed_when_the_slo_fails_either() -> None:
    assert judge(recorded([1.0] * 200, lag=0.5), SLO).verdict == "INVALID"


def test_a_client_without_sockets_makes_the_step_invalid() -> None:
    step = judge(recorded([0.010] * 200, [200] * 199 + [NO_SOCKET]), SLO)

    assert step.verdict == "INVALID"
    assert "sockets" in step.reason


def test_unsent_requests_are_misses_and_infinitely_late() -> None:
    recording = recorded([0.010] * 100)
    recording.sent[-10:] = recording.last[-10:] = recording.own_lag[-10:] = math.nan
    recording.status[-10:] = UNANSWERED
    step = judge(recording, SLO)

    assert step.verdict == "INVALID"
    assert step.send_lag_seconds["p95"] is None
    assert step.response_seconds["p95"] is None


def test_response_counts_from_the_intended_start_and_the_other_from_the_send() -> None:
    step = judge(recorded([0.030] * 100, lag=0.020), SLO)

    assert step.response_seconds["p50"] == pytest.approx(0.030)
    assert step.uncorrected_seconds["p50"] == pytest.approx(0.010)


def test_achieved_counts_late_answers_and_not_those_after_the_window() -> None:
    times = [0.2] * 90 + [5.0] * 10  # one a 10 ms: the last 20 of those answered early come late
    step = judge(recorded(times), SLO)

    assert step.offered == pytest.approx(100.0)
    assert step.achieved == pytest.approx(80.0)


def test_a_step_that_was_given_up_fails_and_is_judged_on_what_was_known() -> None:
    step = judge(recorded([0.010] * 50 + [9.0] * 50, stopped_at=0.60), SLO)

    assert step.verdict == "FAIL"
    assert step.stopped_early
    assert step.num_requests == 60


# --- classes --------------------------------------------------------------------------------------


def step_at(rate: float, p95: float | None, achieved: float | None = None) -> Step:
    base = judge(recorded([0.010] * 100), SLO)
    seconds = base.response_seconds | {"p95": p95}
    return replace(
        base, offered=rate, achieved=achieved if achieved else rate, response_seconds=seconds
    )


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        pytest.param(step_at(200, 0.011), "LINEAR", id="as quick as under light load"),
        pytest.param(step_at(200, 0.0199), "LINEAR", id="not yet twice the light load's"),
        pytest.param(step_at(200, 0.020), "KNEE", id="twice the light load's"),
        pytest.param(step_at(200, 0.011, 196.0), "LINEAR", id="98% answered"),
        pytest.param(step_at(200, 0.011, 195.9), "OVERLOAD", id="less than 98% answered"),
        pytest.param(step_at(200, None), "OVERLOAD", id="p95 is a miss"),
    ],
)
def test_steps_are_classified_beside_a_light_load(step: Step, expected: str) -> None:
    assert classify(step, step_at(10, 0.010)) == expected


def test_a_percentile_that_grows_faster_than_the_load_is_a_knee() -> None:
    below = step_at(100, 0.010)

    assert classify(step_at(110, 0.0112), step_at(10, 0.010), below) == "KNEE"
    assert classify(step_at(110, 0.0105), step_at(10, 0.010), below) == "LINEAR"


# --- search ---------------------------------------------------------------------------------------


@dataclass
class Service:
    """Passes up to a rate, and keeps a list of what it was asked."""

    limit: float
    invalid_above: float = math.inf
    asked: list[float] | None = None
    failing_repeats: int = 0
    """So many repeats of a rate that passed once fail, as if it had been luck."""

    def __call__(self, rate: float) -> Any:
        self.asked = [*(self.asked or []), rate]
        if rate > self.invalid_above:
            return step_with("INVALID")
        if self.failing_repeats and self.asked.count(rate) > 1:
            self.failing_repeats -= 1
            return step_with("FAIL")
        return step_with("PASS" if rate <= self.limit else "FAIL")


def step_with(verdict: Any) -> Step:
    return replace(step_at(1, 0.01), verdict=verdict)


@pytest.mark.parametrize("start", [1.0, 50.0, 99.0, 101.0, 5000.0])
def test_the_search_finds_the_limit_from_any_start(start: float) -> None:
    found = highest_rate(Service(100.0), start, Plan(tolerance=1.03))

    assert found.low is not None
    assert found.high is not None
    assert found.low <= 100.0 < found.high
    assert found.high / found.low <= 1.03
    assert found.confirmed
    assert not found.at_least


def test_a_service_that_always_fails_has_no_limit() -> None:
    found = highest_rate(Service(0.5), 20.0, Plan(lowest=1.0))

    assert found == Limit(None, 1.0, confirmed=False, num_steps=found.num_steps)


def test_a_client_that_gives_out_leaves_a_lower_bound() -> None:
    service = Service(1000.0, invalid_above=60.0)
    found = highest_rate(service, 20.0, Plan(growth=2.0, retries=2))

    assert found.low == 40.0
    assert found.at_least
    assert service.asked is not None
    assert service.asked.count(80.0) == 3


def test_the_search_never_asks_more_than_the_client_can() -> None:
    service = Service(1000.0)
    found = highest_rate(service, 5000.0, Plan(highest=300.0))

    assert found.low == 300.0
    assert found.at_least
    assert max(service.asked or []) == 300.0


def test_an_answer_that_does_not_repeat_is_lowered() -> None:
    found = highest_rate(Service(100.0, failing_repeats=2), 100.0, Plan(confirmations=3))

    assert found.low is not None
    assert found.low == pytest.approx(100.0 * 0.97**2, rel=0.03)
    assert found.high == pytest.approx(found.low / 0.97)
    assert found.confirmed


def test_a_search_gives_up_when_every_rate_is_invalid() -> None:
    service = Service(1e9, invalid_above=0.0)
    found = highest_rate(service, 1000.0, Plan(growth=2.0, retries=1))

    assert found.low is None
    assert service.asked == [1000.0, 1000.0, 500.0, 500.0, 250.0, 250.0]


def test_a_search_ends_after_its_steps() -> None:
    service = Service(1e9, invalid_above=0.0)
    found = highest_rate(service, 1e12, Plan(max_steps=7))

    assert found.low is None
    assert found.num_steps == len(service.asked or []) == 7


# --- one connection -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "bounds"),
    [
        pytest.param(ANSWER, (200, len(ANSWER)), id="complete"),
        pytest.param(ANSWER + b"more", (200, len(ANSWER)), id="more behind it"),
        pytest.param(ANSWER[:-5], (200, len(ANSWER)), id="body still short"),
        pytest.param(ANSWER[:20], None, id="head still short"),
        pytest.param(REFUSAL, (429, len(REFUSAL)), id="capitals in the header"),
        pytest.param(b"HTTP/1.1 204 No Content\r\n\r\n", (204, 27), id="no body by its status"),
    ],
)
def test_the_bounds_of_an_answer(data: bytes, bounds: tuple[int, int] | None) -> None:
    assert answer_bounds(data) == bounds


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"SSH-2.0-server\r\n\r\n", id="not HTTP"),
        pytest.param(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", id="no length"),
        pytest.param(b"HTTP/1.1 200 OK\r\ncontent-length: ten\r\n\r\n", id="length is no number"),
    ],
)
def test_what_the_client_does_not_read_is_an_error(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"HTTP|Content-Length|int"):
        answer_bounds(data)


def test_headers_are_found_whatever_their_case() -> None:
    answer = b"HTTP/1.1 200 OK\r\nServer-Timing: infer;dur=1\r\ncontent-length: 0\r\n\r\n"

    assert header(answer, "server-timing") == "infer;dur=1"
    assert header(answer, "Content-Length") == "0"
    assert header(answer, "x-absent") is None


class Heard:
    """An owner that remembers, and the transport of its connection."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.connection = Connection(self)
        self.connection.connection_made(self)

    def connected(self, connection: Connection) -> None:
        self.events.append("connected")

    def answered(self, connection: Connection, status: int, answer: bytes, at: float) -> None:
        self.events.append((connection.request_id, status, answer))

    def lost(self, connection: Connection) -> None:
        self.events.append("lost")

    def write(self, data: bytes) -> None:
        self.events.append(data)

    def abort(self) -> None:
        self.events.append("aborted")


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_an_answer_may_come_in_pieces(size: int) -> None:
    heard = Heard()
    heard.connection.send(5, b"request")
    for start in range(0, len(ANSWER), size):
        heard.connection.data_received(ANSWER[start : start + size])

    assert heard.events == ["connected", b"request", (5, 200, ANSWER)]
    assert heard.connection.reusable


def test_a_connection_that_the_server_closes_is_not_used_again() -> None:
    heard = Heard()
    heard.connection.send(1, b"request")
    heard.connection.data_received(ANSWER.replace(b"\r\n", b"\r\nConnection: close\r\n", 1))

    assert not heard.connection.reusable


@pytest.mark.parametrize(
    "data", [ANSWER * 2, b"no HTTP at all\r\n\r\n"], ids=["two answers to one request", "noise"]
)
def test_what_cannot_be_an_answer_ends_the_connection(data: bytes) -> None:
    heard = Heard()
    heard.connection.send(1, b"request")
    heard.connection.data_received(data)

    assert heard.events[-1] == "aborted"


def test_targets_are_complete_requests() -> None:
    target = Target.of("http://127.0.0.1:8000/predict", (b"{}", b'{"a": 1}'))

    assert target.port == 8000
    assert target.requests[1] == (
        b"POST /predict HTTP/1.1\r\nHost: 127.0.0.1:8000\r\n"
        b'Content-Type: application/json\r\nContent-Length: 8\r\n\r\n{"a": 1}'
    )
    with pytest.raises(ValueError, match="expected a URL"):
        Target.of("https://127.0.0.1/predict", (b"{}",))


def test_bodies_are_many_and_seeded() -> None:
    assert len(set(fraud_bodies(1))) == 500
    assert fraud_bodies(1) == fraud_bodies(1)
    assert fraud_bodies(1) != fraud_bodies(2)


@pytest.mark.parametrize("after", [0.03, -1.0], ids=["to come", "already past"])
def test_the_alarm_rings_and_never_early(after: float) -> None:
    async def rung_at() -> tuple[float, float]:
        rung = asyncio.Event()
        alarm = Alarm(asyncio.get_running_loop(), rung.set)
        instant = time.perf_counter() + after
        alarm.set(instant)
        async with asyncio.timeout(10.0):
            await rung.wait()
        now = time.perf_counter()
        alarm.close()
        return instant, now

    instant, now = uvloop.run(rung_at())

    assert now >= instant


def test_an_alarm_that_is_set_again_forgets_the_first_instant() -> None:
    async def rings() -> int:
        num_rings, done = 0, asyncio.Event()

        def ring() -> None:
            nonlocal num_rings
            num_rings += 1
            done.set()

        alarm = Alarm(asyncio.get_running_loop(), ring)
        alarm.set(time.perf_counter() + 1000.0)
        alarm.set(time.perf_counter() + 0.01)
        async with asyncio.timeout(10.0):
            await done.wait()
        alarm.close()
        return num_rings

    assert uvloop.run(rings()) == 1


# --- the open loop, against tiny servers ----------------------------------------------------------


class Scripted(asyncio.Protocol):
    """Lets `on_request(write, close)` decide what happens to each complete request."""

    def __init__(self, on_request: Callable[[Any], None]) -> None:
        self._on_request = on_request

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._on_request(self._transport)


def loaded(
    on_request: Callable[[Any], None], schedule: Schedule, rules: Rules | None = None
) -> Recording:
    """Send `schedule` to a server in the same loop."""

    async def session() -> Recording:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: Scripted(on_request), "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            return await send_to(port, schedule, rules)

    return uvloop.run(session())


async def send_to(port: int, schedule: Schedule, rules: Rules | None = None) -> Recording:
    target = Target.of(f"http://127.0.0.1:{port}/predict", fraud_bodies(1, 10))
    return await OpenLoop(target, schedule, np.random.default_rng(1), rules or Rules()).run()


def schedule_of(rate: float, seconds: float, warm_up: float = 0.0) -> Schedule:
    return steady("constant", rate, warm_up, seconds, np.random.default_rng(1))


def later(seconds: float, transport: Any, answer: bytes = ANSWER) -> None:
    asyncio.get_running_loop().call_later(seconds, transport.write, answer)


def test_every_planned_request_is_sent_and_answered_once() -> None:
    served: list[Any] = []

    def answer(transport: Any) -> None:
        served.append(transport)
        transport.write(ANSWER)

    recording = loaded(answer, schedule_of(200, 0.5, warm_up=0.1))

    assert len(served) == 120
    assert recording.status.tolist() == [200] * 120
    assert np.all(recording.sent >= recording.schedule.offsets)
    assert np.all(recording.last >= recording.sent)


def test_connections_grow_to_what_the_open_requests_need() -> None:
    """100/s of half a second each are 50 at a time, by Little's law."""
    recording = loaded(lambda transport: later(0.5, transport), schedule_of(100, 1.0))

    assert np.all(recording.good)
    assert recording.num_connections >= 45


def test_ready_connections_are_there_before_the_first_arrival() -> None:
    recording = loaded(
        lambda transport: transport.write(ANSWER),
        schedule_of(50, 0.2),
        Rules(ready_connections=20),
    )

    assert recording.num_connections >= 20
    assert np.all(recording.good)


def test_a_server_that_closes_after_each_answer_loses_nothing() -> None:
    def answer(transport: Any) -> None:
        transport.write(ANSWER.replace(b"\r\n", b"\r\nconnection: close\r\n", 1))
        transport.close()

    recording = loaded(answer, schedule_of(100, 0.3))

    assert np.all(recording.good)


def test_requests_that_go_down_with_their_connection_are_misses() -> None:
    requests = itertools.count()

    def answer(transport: Any) -> None:
        if next(requests) % 10 == 9:
            transport.abort()
        else:
            transport.write(ANSWER)

    step_statuses = loaded(answer, schedule_of(100, 0.5)).status.tolist()

    assert step_statuses.count(LOST) == 5
    assert step_statuses.count(200) == 45


def test_a_server_that_is_not_there_gives_only_misses() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]

    recording = uvloop.run(send_to(port, schedule_of(100, 0.2)))

    assert recording.status.tolist() == [NOT_CONNECTED] * 20
    assert judge(recording, SLO).response_seconds["p50"] is None


def test_what_is_unanswered_after_the_drain_is_a_miss() -> None:
    requests = itertools.count()

    def answer(transport: Any) -> None:
        if next(requests) < 10:
            transport.write(ANSWER)

    recording = loaded(answer, schedule_of(100, 0.2), Rules(drain=0.2))

    assert recording.status.tolist() == [200] * 10 + [UNANSWERED] * 10
    assert judge(recording, SLO).failed == pytest.approx(0.5)


def test_a_step_that_cannot_pass_is_given_up() -> None:
    schedule = schedule_of(100, 30.0)
    recording = loaded(lambda _: None, schedule, Rules(give_up=SLO))

    assert recording.stopped_at is not None
    assert recording.stopped_at < 30.0
    assert np.sum(np.isnan(recording.sent)) > 0
    step = judge(recording, SLO)
    assert step.stopped_early
    assert step.verdict in ("FAIL", "INVALID")
    assert step.num_requests > 0.05 * 3000


def test_a_step_is_not_given_up_for_the_misses_it_may_have() -> None:
    """Two of forty are late: that is all that p95 allows, and they are the first two."""
    requests = itertools.count()

    def answer(transport: Any) -> None:
        later(0.6 if next(requests) < 2 else 0.0, transport)

    slo = Latency(95.0, 0.5)
    recording = loaded(answer, schedule_of(40, 1.0), Rules(give_up=slo))

    assert recording.stopped_at is None
    assert np.all(recording.good)


@dataclass
class OneAtATime:
    """A server with one hand: `service` seconds a request in order, and one long pause.

    Nothing blocks: it only computes when each answer would be ready. The pause begins `pause_at`
    seconds after the first request.
    """

    service: float
    pause_at: float
    pause: float
    free_at: float = 0.0
    pause_from: float = 0.0

    def __call__(self, transport: Any) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        if not self.pause_from:
            self.pause_from = now + self.pause_at
        start = max(now, self.free_at)
        if self.pause_from <= start < self.pause_from + self.pause:
            start = self.pause_from + self.pause
        self.free_at = start + self.service
        loop.call_at(self.free_at, transport.write, ANSWER)


def test_a_stall_shows_from_the_intended_start_and_hides_from_the_send() -> None:
    """10 ms of service, 50/s for 6 s, one pause of 2 s.

    By theory P_q = pause - (1 - q) * duration * (1 - utilisation) + service: 1.86 s for P95. A
    single connection that waits for its answers sends late instead, and from the send its P95 is
    the 10 ms of service: that number is printed beside, and the step is INVALID.
    """

    async def session(rules: Rules) -> Recording:
        server_side = OneAtATime(service=0.010, pause_at=1.0, pause=2.0)
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: Scripted(server_side), "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            return await send_to(port, schedule_of(50, 6.0), rules)

    async def both() -> list[Recording]:
        return await asyncio.gather(session(Rules()), session(Rules(max_connections=1)))

    open_loop, one_connection = (judge(entry, SLO) for entry in uvloop.run(both()))

    assert open_loop.response_seconds["p95"] == pytest.approx(1.86, rel=0.15)
    assert open_loop.num_connections > 50
    assert one_connection.response_seconds["p95"] == pytest.approx(1.86, rel=0.15)
    assert one_connection.uncorrected_seconds["p95"] < 0.3
    assert one_connection.num_connections == 1
    assert one_connection.verdict == "INVALID"


# --- the closed loop ------------------------------------------------------------------------------


def test_server_timing_is_read_in_seconds() -> None:
    value = "queue;dur=0.100, batch;dur=0, infer;dur=3.25, total;dur=4.000"

    found = closed_loop.server_timing(value)

    assert found == pytest.approx({"queue": 1e-4, "batch": 0.0, "infer": 3.25e-3, "total": 4e-3})
    assert closed_loop.server_timing(None) == {}


@pytest.mark.parametrize(
    ("extra", "num_bad"),
    [
        ("", 0),
        ("  Non-2xx or 3xx responses: 40\n", 40),
        ("  Socket errors: connect 1, read 2, write 3, timeout 0\n", 6),
    ],
)
def test_wrk_is_read_with_its_errors(extra: str, num_bad: int) -> None:
    busy = closed_loop.read_wrk(f"  1000 requests in 2.00s, 3.00MB read\n{extra}")

    assert busy.seconds == 2.0
    assert busy.num_bad == num_bad
    assert busy.num_good == 1000 - (num_bad if "Non-2xx" in extra else 0)


def in_thread(on_request: Callable[[Any], None], use: Callable[[int], Any]) -> Any:
    """Run `use(port)` while a server answers in another thread."""
    ready, stop = threading.Event(), threading.Event()
    ports: list[int] = []

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: Scripted(on_request), "127.0.0.1", 0)
        async with server:
            ports.append(server.sockets[0].getsockname()[1])
            ready.set()
            await loop.run_in_executor(None, stop.wait)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        assert ready.wait(10.0)
        return use(ports[0])
    finally:
        stop.set()
        thread.join()


def test_asking_stops_after_its_number_of_requests() -> None:
    served: list[Any] = []

    def answer(transport: Any) -> None:
        served.append(transport)
        transport.write(ANSWER.replace(b"\r\n", b"\r\nServer-Timing: infer;dur=2\r\n", 1))

    def use(port: int) -> Any:
        return closed_loop.ask(Target.of(f"http://127.0.0.1:{port}/", (b"{}",)), 50, 4)

    answers = in_thread(answer, use)

    assert len(answers) == len(served) == 50
    assert len(set(served)) == 4
    assert {entry.timing["infer"] for entry in answers} == {0.002}


def test_asking_a_server_that_stops_answering_ends() -> None:
    requests = itertools.count()

    def answer(transport: Any) -> None:
        if next(requests) < 3:
            transport.write(ANSWER)

    def use(port: int) -> Any:
        target = Target.of(f"http://127.0.0.1:{port}/", (b"{}",))
        return closed_loop.ask(target, 10, 1, patience=0.3)

    assert [entry.status for entry in in_thread(answer, use)] == [200, 200, 200, UNANSWERED]


def test_the_own_closed_loop_counts_good_and_bad_answers() -> None:
    requests = itertools.count()

    def answer(transport: Any) -> None:
        transport.write(REFUSAL if next(requests) % 4 == 3 else ANSWER)

    def use(port: int) -> Any:
        target = Target.of(f"http://127.0.0.1:{port}/", (b"{}",))
        return closed_loop.keep_busy_ourselves(target, 8, 0.2)

    busy = in_thread(answer, use)

    assert busy.tool == "own"
    assert busy.num_good + busy.num_bad == next(requests)
    assert busy.bad_share == pytest.approx(0.25, abs=0.05)


# --- processes ------------------------------------------------------------------------------------


def test_a_tree_holds_the_process_and_its_children() -> None:
    script = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE) as child:
        try:
            while len(processes.tree(child.pid)) < 2:
                assert child.poll() is None
            first, second = processes.tree(child.pid)
            assert first.pid == child.pid
            assert second.parent == child.pid
            assert processes.resident_bytes(second.pid) > 2**20
        finally:
            assert child.stdin is not None
            child.stdin.close()

    assert processes.tree(child.pid) == ()


def test_cpu_time_of_a_tree_is_that_of_its_processes() -> None:
    before, own = processes.cpu_seconds(os.getpid()), os.times()
    while os.times().user - own.user < 0.05:
        sum(range(10_000))
    after = processes.cpu_seconds(os.getpid())

    assert after - before >= 0.03


def test_a_server_that_ends_at_once_says_why() -> None:
    command = [sys.executable, "-c", "import sys; sys.exit('no such model')"]

    with (
        pytest.raises(processes.NotStarted, match="no such model"),
        processes.started(command),
    ):
        pass


def test_the_raw_route_validates_and_answers() -> None:
    command = [sys.executable, str(BENCHMARKS / "raw_route.py")]
    bodies = (*fraud_bodies(1, 3), b'{"amount": 1.5, "channel": "fax", "age": 33}', b"nonsense")
    with processes.started(command) as server:
        target = Target.of(f"http://127.0.0.1:{server.port}/predict", bodies)
        answers = closed_loop.ask(target, 5)
        pid = server.pid
        assert [process.pid for process in processes.tree(pid)] == [pid]

    assert [entry.status for entry in answers] == [200, 200, 200, 422, 400]
    assert processes.tree(pid) == ()


def script(name: str) -> Any:
    """A benchmark as a module under a name of its own: `serving` is a folder of tests, too."""
    spec = importlib.util.spec_from_file_location(f"benchmark_{name}", BENCHMARKS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_a_round_measures_a_running_server(monkeypatch: pytest.MonkeyPatch) -> None:
    serving = script("serving")
    monkeypatch.setattr(serving, "CONNECTIONS", 4)
    effort = serving.Effort(
        rounds=1,
        step=0.2,
        warm_up=0.05,
        busy=1.0,
        num_lone=5,
        cold_repeats=1,
        num_requests=10,
        plan=Plan(retries=0, confirmations=0, highest=50.0, max_steps=4),
        patience=0.0,
    )
    raw = serving.Contender("raw", (sys.executable, str(BENCHMARKS / "raw_route.py")))

    found = serving.measure(raw, effort, seed=1)

    assert found.cost.per_request > 0
    assert found.cost.front_per_request == found.cost.per_request
    assert found.lone["response_seconds"]["p50"] > 0
    assert found.steps[1].step.offered == 50.0
    assert 1 <= found.limit.num_steps <= 4
    document = findings.document(findings.Findings({"raw": [found]}), {}, {})
    assert json.loads(json.dumps(document))["rounds"]["raw"][0]["steps"]


# --- what is made of it ---------------------------------------------------------------------------


def test_recovery_is_the_end_of_the_last_window_that_breaks_the_slo() -> None:
    due = np.arange(0.0, 10.0, 0.005)  # a hundred in each window of half a second
    response = np.where((due > 4.0) & (due < 6.2), math.inf, 0.05)

    assert overload.recovery(due, response, 5.0) == 1.5
    assert overload.recovery(due, response, 7.0) == 0.0
    response[-5:] = math.inf
    assert overload.recovery(due, response, 7.0) == 0.0
    response[-6:] = math.inf
    assert overload.recovery(due, response, 7.0) is None


def test_goodput_counts_the_overload_alone() -> None:
    seconds = 4.0
    schedule = overload.plan(2.0, seconds, np.random.default_rng(1))
    num = len(schedule.offsets)
    during = (schedule.offsets >= overload.BEFORE) & (schedule.offsets < overload.BEFORE + seconds)
    status = np.full(num, 200, dtype=np.int16)
    status[np.flatnonzero(during)[::2]] = 429
    recording = Recording(
        schedule=schedule,
        sent=schedule.offsets,
        last=schedule.offsets + 0.1,
        status=status,
        own_lag=np.zeros(num),
        num_connections=1,
    )
    entry = overload.summed_up(recording, 2.0, seconds, processes.Foreign())

    assert entry.offered == pytest.approx(2 * overload.CAPACITY, rel=0.001)
    assert entry.goodput == pytest.approx(overload.CAPACITY, rel=0.001)
    assert entry.refused == pytest.approx(0.5, abs=0.001)
    assert entry.failed == 0.0
    assert entry.answered_p95 == pytest.approx(0.1)
    assert entry.refusal_p99 == pytest.approx(0.1)
    assert entry.recovery == 0.0


def test_the_cold_start_ratio_leaves_the_warm_up_out() -> None:
    cold = coldstart.ColdStart((2.5, 2.6, 9.0), (0.5, 0.6, 0.5), (2.0, 1.0, 2.0))

    assert cold.ratio == pytest.approx(1.0)


def test_what_the_server_added_is_total_less_infer() -> None:
    timing = {"infer": 0.003, "total": 0.0035}
    answers = [closed_loop.Answered(0.004, 200, timing), closed_loop.Answered(9.0, 503, {})]

    lone = findings.lone_times(answers)

    assert lone["added_by_server_seconds"]["p50"] == pytest.approx(0.0005)
    assert lone["added_to_client_seconds"]["p50"] == pytest.approx(0.001)
    assert "infer_seconds" not in findings.lone_times([closed_loop.Answered(0.1, 200, {})])


def cost_of(num_good: int) -> findings.Cost:
    busy = closed_loop.Busy(1.0, num_good, 0, "own")
    return findings.Cost(0.02, 0.05, busy, processes.Foreign())


def test_cpu_time_is_shared_out_among_the_good_answers() -> None:
    assert cost_of(100).per_request == pytest.approx(0.0005)
    assert cost_of(100).front_per_request == pytest.approx(0.0002)
    assert cost_of(0).per_request is None


def test_ratios_are_taken_round_by_round() -> None:
    def round_with(limit: float | None) -> findings.Round:
        found = Limit(limit, None, confirmed=True, num_steps=1)
        return findings.Round(found, cost_of(100), {}, [])

    both = findings.Findings(
        {
            "tailproof": [round_with(300.0), round_with(100.0), round_with(None)],
            "handmade": [round_with(100.0), round_with(100.0), round_with(100.0)],
        }
    )

    assert both.ratios("tailproof", "handmade", findings.limit_of) == [2.0, 1.0, 3.0]
    assert both.ratios("tailproof", "absent", findings.limit_of) == []
    assert both.median("handmade", findings.limit_of) == [100.0, 100.0, 100.0]
