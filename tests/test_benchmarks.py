"""The instruments of benchmarks/: what they count, what they do not, and what they find."""

# ruff: noqa: E402  the benchmarks are scripts, so their folder is put on the path first

import asyncio
import itertools
import json
import math
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import closed_loop
import coldstart
import findings
import overload
import processes
from payloads import fraud_bodies
from tailproof.core.recording import LOST, Recording
from tailproof.load import preflight
from tailproof.load.target import Target, build
from tailproof.reporting import document
from tests.scripts import script

BODY = b'{"score": 1}'
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(BODY), BODY)
REFUSAL = b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 0\r\n\r\n"


def test_bodies_are_many_and_seeded() -> None:
    assert len(set(fraud_bodies(1))) == 500
    assert fraud_bodies(1) == fraud_bodies(1)
    assert fraud_bodies(1) != fraud_bodies(2)


# --- the closed loop ------------------------------------------------------------------------------


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


class Scripted(asyncio.Protocol):
    """Lets `on_request(transport)` decide what happens to each complete request."""

    def __init__(self, on_request: Callable[[Any], None]) -> None:
        self._on_request = on_request

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._on_request(self._transport)


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


def target(port: int) -> Target:
    return build(f"http://127.0.0.1:{port}/", (b"{}",))


def kept_busy(on_request: Callable[[Any], None], num: int, seconds: float = 0.2) -> Any:
    return in_thread(
        on_request, lambda port: closed_loop.keep_busy_ourselves(target(port), num, seconds)
    )


def test_the_own_closed_loop_counts_good_and_bad_answers() -> None:
    served: list[Any] = []

    def answer(transport: Any) -> None:
        served.append(transport)
        transport.write(REFUSAL if len(served) % 4 == 3 else ANSWER)

    busy = kept_busy(answer, 8)

    assert busy.tool == "own"
    assert busy.bad_share == pytest.approx(0.25, abs=0.05)
    assert len(set(served)) == 8
    open_at_the_end = len(served) - busy.num_good - busy.num_bad
    assert 0 <= open_at_the_end <= 8


def test_the_own_closed_loop_ends_although_nobody_answers() -> None:
    busy = kept_busy(lambda _: None, 4)

    assert (busy.num_good, busy.num_bad) == (0, 0)
    assert busy.seconds == pytest.approx(0.2, abs=0.1)


def test_connections_that_end_are_counted_once() -> None:
    requests = itertools.count()

    def answer(transport: Any) -> None:
        if next(requests) < 4:
            transport.abort()
        else:
            transport.write(ANSWER)

    busy = kept_busy(answer, 6)

    assert busy.num_bad == 4
    assert busy.num_good > 6


# --- processes ------------------------------------------------------------------------------------


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
        raw = build(f"http://127.0.0.1:{server.port}/predict", bodies)
        answers = [preflight.ask(raw, 10.0, which) for which in range(5)]

    assert [answer.status for answer in answers] == [200, 200, 200, 422, 400]
    assert processes.tree(server.pid) == ()


# --- a round --------------------------------------------------------------------------------------


def test_a_round_measures_a_running_server(monkeypatch: pytest.MonkeyPatch) -> None:
    serving = script("serving")
    monkeypatch.setattr(serving, "CONNECTIONS", 4)
    monkeypatch.setattr(serving, "MAX_RATE", 5.0)
    effort = serving.Effort(
        rounds=1, budget=4.5, busy=1.0, num_lone=5, cold_repeats=1, used=1.0, patience=0.0
    )
    raw = serving.Contender("raw", (sys.executable, str(BENCHMARKS / "raw_route.py")))

    found = serving.measure(raw, effort, seed=1)

    assert found.cost.per_request > 0
    assert found.cost.front_per_request == found.cost.per_request
    assert found.lone["seconds"]["p50"] > 0
    assert found.proof.slo == ["p95 < 50ms"]
    assert max(point.offered for point in found.proof.points) <= 5.0
    assert all(point.server.cpu_seconds is not None for point in found.proof.points)
    written = findings.document(findings.Findings({"raw": [found]}), {}, {})
    assert json.loads(json.dumps(written))["rounds"]["raw"][0]["proof"]["points"]


def test_lone_requests_take_turns_on_one_connection() -> None:
    """Also when an answer takes longer than the pause until the next request."""
    serving = script("serving")
    served: list[tuple[Any, int]] = []
    open_now = 0

    def finish(transport: Any) -> None:
        nonlocal open_now
        open_now -= 1
        transport.write(ANSWER.replace(b"\r\n", b"\r\nServer-Timing: infer;dur=2\r\n", 1))

    def answer(transport: Any) -> None:
        nonlocal open_now
        served.append((transport, open_now))
        open_now += 1
        asyncio.get_running_loop().call_later(0.02, finish, transport)

    recording = in_thread(answer, lambda port: serving.asked_alone(target(port), 20))

    assert recording.good.all()
    assert len({transport for transport, _ in served}) == 1
    assert [others for _, others in served] == [0] * 20
    assert recording.infer.tolist() == [0.002] * 20
    assert np.all(recording.uncorrected < recording.response)


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


def overloaded(multiple: float, seconds: float) -> Recording:
    """Every request answered after 0.1 s, but every second one of the overload refused."""
    plan = overload.plan(multiple, seconds, seed=1)
    recording = Recording.empty(plan.intended)
    recording.sent[:] = plan.intended
    recording.last[:] = plan.intended + 0.1
    during = (plan.intended >= overload.BEFORE) & (plan.intended < overload.BEFORE + seconds)
    recording.status[:] = 200
    recording.status[np.flatnonzero(during)[::2]] = 429
    return recording


def test_goodput_counts_the_overload_alone() -> None:
    sound = document.Generator(ok=True)
    recording = overloaded(2.0, 4.0)

    entry = overload.summed_up(recording, 2.0, 4.0, sound, processes.Foreign())

    assert entry.offered == pytest.approx(2 * overload.CAPACITY, rel=0.001)
    assert entry.goodput == pytest.approx(overload.CAPACITY, rel=0.001)
    assert entry.refused == pytest.approx(0.5, abs=0.001)
    assert entry.failed == 0.0
    assert entry.answered_p95 == pytest.approx(0.1)
    assert entry.refusal_p99 == pytest.approx(0.1)
    assert entry.recovery == 0.0


def test_what_failed_is_no_refusal_and_no_goodput() -> None:
    recording = overloaded(1.0, 4.0)
    recording.status[recording.status == 429] = LOST

    entry = overload.summed_up(
        recording, 1.0, 4.0, document.Generator(ok=True), processes.Foreign()
    )

    assert (entry.refused, entry.refusal_p99) == (0.0, None)
    assert entry.failed == pytest.approx(0.5, abs=0.001)
    assert entry.goodput == pytest.approx(overload.CAPACITY / 2, rel=0.01)


def test_the_plan_of_an_overload_is_quiet_before_and_after() -> None:
    plan = overload.plan(5.0, 4.0, seed=1)
    end = overload.BEFORE + 4.0

    def rate(start: float, until: float) -> float:
        return np.sum((plan.intended >= start) & (plan.intended < until)) / (until - start)

    assert rate(0.0, overload.BEFORE) == pytest.approx(0.5 * overload.CAPACITY, rel=0.01)
    assert rate(overload.BEFORE, end) == pytest.approx(5.0 * overload.CAPACITY, rel=0.01)
    assert rate(end, plan.end) == pytest.approx(0.5 * overload.CAPACITY, rel=0.01)
    assert np.all(np.diff(plan.intended) >= 0)
    assert plan.end == end + overload.AFTER


def signal(name: str, *, bad: bool, invalidates: bool) -> document.Signal:
    return document.Signal(
        name=name, value=1.0, limit=1.0, unit="ratio", bad=bad, invalidates=invalidates, text=name
    )


def test_a_client_in_the_number_is_said_to_be() -> None:
    signals = [
        signal("send_lag", bad=True, invalidates=True),
        signal("arrivals", bad=False, invalidates=True),
        signal("client_cpu", bad=True, invalidates=False),
    ]
    spoiled = document.Generator(ok=False, signals=signals)
    entry = overload.summed_up(overloaded(2.0, 4.0), 2.0, 4.0, spoiled, processes.Foreign())

    assert overload.faults(spoiled) == "; INVALID: send_lag"
    assert overload.faults(document.Generator(ok=True, signals=signals[1:])) == ""
    assert "INVALID" in overload.line(entry, 1.0)


def test_the_cold_start_ratio_leaves_the_warm_up_out() -> None:
    cold = coldstart.ColdStart((2.5, 2.6, 9.0), (0.5, 0.6, 0.5), (2.0, 1.0, 2.0))

    assert cold.ratio == pytest.approx(1.0)


def test_what_the_server_added_is_total_less_infer() -> None:
    recording = Recording.empty(np.array([0.0, 1.0]))
    recording.sent[:] = [0.0, 1.5]
    recording.last[:] = [0.004, 10.0]
    recording.status[:] = [200, 503]
    silent = findings.lone_times(recording)
    recording.infer[:], recording.total[:] = 0.003, 0.0035

    lone = findings.lone_times(recording)

    assert lone["seconds"]["p99"] == pytest.approx(0.004)
    assert lone["added_by_server_seconds"]["p50"] == pytest.approx(0.0005)
    assert lone["added_to_client_seconds"]["p50"] == pytest.approx(0.001)
    assert silent.keys() == {"seconds"}


def cost_of(num_good: int) -> findings.Cost:
    busy = closed_loop.Busy(1.0, num_good, 0, "own")
    return findings.Cost(0.02, 0.05, busy, processes.Foreign())


def test_cpu_time_is_shared_out_among_the_good_answers() -> None:
    assert cost_of(100).per_request == pytest.approx(0.0005)
    assert cost_of(100).front_per_request == pytest.approx(0.0002)
    assert cost_of(0).per_request is None


def round_with(
    rate: float | None, *, at_least: bool = False, verdict: document.Verdict = "PASS"
) -> findings.Round:
    limit = None
    if rate is not None:
        high = None if at_least else 1.1 * rate
        limit = document.Limit(rate=rate, low=rate, high=high, at_least=at_least)
    proof = document.Document(
        tool="tailproof",
        target="http://127.0.0.1/predict",
        slo=["p95 < 50ms"],
        verdict=verdict,
        reason="",
        mode="search",
        limit=limit,
        generator=document.Generator(ok=True),
        command="",
        seconds=1.0,
    )
    return findings.Round(proof, cost_of(100), {}, processes.Foreign())


def test_ratios_are_taken_round_by_round() -> None:
    both = findings.Findings(
        {
            "tailproof": [round_with(300.0), round_with(100.0), round_with(None)],
            "handmade": [round_with(100.0), round_with(100.0), round_with(100.0)],
        }
    )

    assert both.ratios("tailproof", "handmade", findings.limit_of) == [2.0, 1.0, 3.0]
    assert both.ratios("tailproof", "absent", findings.limit_of) == []
    assert both.median("handmade", findings.limit_of) == [100.0, 100.0, 100.0]


def shown(title: str, **rounds: list[findings.Round]) -> str:
    """The rest of the line of the table that begins so."""
    table = findings.lines(findings.Findings(rounds))
    (line,) = [line for line in table if line.strip().startswith(title)]
    return " ".join(line.strip().removeprefix(title).split())


def test_limits_stand_with_what_passed_and_failed() -> None:
    found = {"tailproof": [round_with(100.0), round_with(300.0), round_with(200.0)]}

    assert shown("highest rate with p95 < 50ms, /s", **found) == "200 [100 .. 300]"
    assert shown("highest that passed, /s", **found) == "200 [100 .. 300]"
    assert shown("lowest that failed, /s", **found) == "220 [110 .. 330]"
    assert shown("verdicts of the rounds", **found) == "3 PASS"


def test_limits_that_were_not_reached_are_marked() -> None:
    reached = [round_with(100.0)]
    beyond = [round_with(400.0, at_least=True, verdict="UNDECIDED")]
    title = "limit: tailproof / raw"

    assert shown("highest rate with p95 < 50ms, /s", raw=beyond) == ">= 400 [400 .. 400]"
    assert shown("lowest that failed, /s", raw=beyond) == "-"
    assert shown(title, tailproof=reached, raw=beyond) == "<= 0.25 [0.25 .. 0.25]"
    assert shown(title, tailproof=beyond, raw=reached) == ">= 4.00 [4.00 .. 4.00]"
    assert shown(title, tailproof=beyond, raw=beyond) == "? 1.00 [1.00 .. 1.00]"
    assert shown(title, tailproof=reached, raw=reached) == "1.00 [1.00 .. 1.00]"


def test_a_round_that_is_invalid_is_named_and_in_no_figure() -> None:
    found = {"tailproof": [round_with(100.0), round_with(None, verdict="INVALID")]}

    assert shown("highest rate with p95 < 50ms, /s", **found) == "100 [100 .. 100]"
    assert shown("verdicts of the rounds", **found) == "1 PASS, 1 INVALID"
