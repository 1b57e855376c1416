"""One rate, one verdict: raw times against the SLO, misses are never fast, overload stays."""

from pathlib import Path
from typing import Any

import pytest

from .known_servers import FAULTS
from .prove import FAIL, PASS, USAGE, known, prove, prove_validly, two_cores

FLAGS = ("--rate", "100/s", "--for", "3s")
SLOW, SLO = ("--service", "300ms"), "p95 < 600ms"
"""Where nothing depends on how fast a server is, it is one beside which the few milliseconds that
a busy machine adds are nothing."""
HALL = ("queue", "--service", "200ms", "--max-rows", "20")
"""At most 100 a second."""


@two_cores
@pytest.mark.parametrize(
    ("slo", "verdict", "code"),
    [
        ("p95 < 100ms", "FAIL", FAIL),  # a tool that rounds to 10 ms would pass it
        ("p95 < 104ms", "FAIL", FAIL),
        ("p95 < 120ms", "PASS", PASS),
    ],
)
def test_times_are_not_rounded(tmp_path: Path, slo: str, verdict: str, code: int) -> None:
    with known("constant", "--service", "104.9ms", folder=tmp_path) as server:
        said = prove_validly(server.url, *FLAGS, folder=tmp_path, slo=slo)

    assert (said.verdict, said.code) == (verdict, code), said.explained()
    assert 0.1049 <= said.point["response_seconds"]["p50"] < 0.115


@two_cores
def test_every_slo_must_hold(tmp_path: Path) -> None:
    slos = ("p50 < 600ms", "p95 < 250ms")
    with known("constant", *SLOW, folder=tmp_path) as server:
        said = prove_validly(server.url, *FLAGS, folder=tmp_path, slo=slos)

    assert said.verdict == "FAIL"
    found = {one["slo"]: one["verdict"] for one in said.point["findings"]}
    assert (found[slos[0]], found[slos[1]]) == ("PASS", "FAIL")


@two_cores
@pytest.mark.parametrize(("required", "verdict"), [("50/s", "PASS"), ("200/s", "FAIL")])
def test_a_required_rate_is_a_gate(tmp_path: Path, required: str, verdict: str) -> None:
    with known(*HALL, folder=tmp_path) as server:
        flags = ("--require", required, "--for", "3s", "--arrivals", "constant")
        said = prove_validly(server.url, *flags, folder=tmp_path, slo=SLO)

    assert (said.verdict, said.code) == (verdict, PASS if verdict == "PASS" else FAIL)
    assert said.document["required"] == float(required[:-2])
    assert said.document["seconds"] < 30


@two_cores
def test_too_few_requests_decide_nothing(tmp_path: Path) -> None:
    """20 requests cannot show that 1 in 1,000 is late; the percentile is printed, marked."""
    with known("constant", *SLOW, folder=tmp_path) as server:
        flags = ("--rate", "10/s", "--for", "2s")
        said = prove_validly(server.url, *flags, folder=tmp_path, slo="p99.9 < 1s")

    assert (said.verdict, said.code) == ("UNDECIDED", 3), said.explained()
    times = said.point["response_seconds"]
    assert times["p99_9"] is not None
    assert "p99_9" not in times["resolved"]
    assert said.point["requests"] == 20


@two_cores
def test_a_fast_refusal_is_no_fast_answer(tmp_path: Path) -> None:
    with known("refusing", "--every", "2", *SLOW, folder=tmp_path) as server:
        said = prove_validly(server.url, *FLAGS, folder=tmp_path, slo=SLO)

    point = said.point
    assert (said.verdict, said.code) == ("FAIL", FAIL), said.explained()
    _is_a_miss(point, "p95")
    assert point["requests"] == 300
    assert abs(point["errors"] - 150) <= 1
    assert point["refused"] == point["errors"] == point["statuses"]["503"]
    assert said.document["seconds"] < 15, "nothing to wait for after the only step"
    assert point["achieved"] == pytest.approx(50.0, rel=0.05)


@two_cores
def test_one_refusal_in_a_hundred_breaks_the_default_availability(tmp_path: Path) -> None:
    """P95 holds easily; 99.9% good answers are expected although nobody declared it."""
    with known("refusing", "--every", "100", *SLOW, folder=tmp_path) as server:
        said = prove_validly(server.url, *FLAGS, folder=tmp_path, slo=SLO)

    assert said.point["response_seconds"]["p95"] < 0.4
    assert (said.verdict, said.code) == ("FAIL", FAIL), said.explained()


@two_cores
@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault != "slow-headers"])
def test_broken_answers_are_misses(tmp_path: Path, fault: str) -> None:
    """Every fifth. The others are answered as ever."""
    with known("broken", "--fault", fault, "--every", "5", *SLOW, folder=tmp_path) as server:
        flags = (*FLAGS, "--timeout", "1s")
        said = prove_validly(server.url, *flags, folder=tmp_path, slo=SLO)

    point = said.point
    assert (said.verdict, said.code) == ("FAIL", FAIL), said.explained()
    _is_a_miss(point, "p95")
    assert abs(point["errors"] - 60) <= 1
    assert point["statuses"]["200"] == 300 - point["errors"]
    assert point["response_seconds"]["p50"] < 0.4


@two_cores
def test_a_slow_head_counts_to_its_last_byte(tmp_path: Path) -> None:
    slow = ("broken", "--fault", "slow-headers", "--every", "5", *SLOW)
    with known(*slow, folder=tmp_path) as server:
        said = prove_validly(server.url, *FLAGS, folder=tmp_path, slo="p95 < 450ms")

    assert said.verdict == "FAIL", said.explained()
    assert said.point["errors"] == 0
    assert 0.5 <= said.point["response_seconds"]["p95"] < 0.6


@two_cores
def test_a_server_that_only_breaks(tmp_path: Path) -> None:
    """No percentile exists, and nothing is made up in its place. Whether the run or a first look
    at the server says so, it is never a pass."""
    with known("broken", "--fault", "500", folder=tmp_path) as server:
        said = prove(server.url, "--rate", "50/s", "--for", "2s", folder=tmp_path)

    assert said.code in (FAIL, USAGE), said
    assert not said.crashed, said
    if said.code == FAIL:
        assert said.point["errors"] == said.point["requests"] == 100
        _is_a_miss(said.point, "p50")
        assert said.point["response_seconds"]["mean"] is None


def _is_a_miss(point: dict[str, Any], name: str) -> None:
    assert point["response_seconds"][name] is None
    assert name in point["response_seconds"]["infinite"]


@two_cores
def test_overload_that_drains_afterwards_stays_overload(tmp_path: Path) -> None:
    """Everything is answered in the end, most of it late."""
    with known(*HALL, folder=tmp_path) as server:
        flags = ("--rate", "115/s", "--for", "10s")
        said = prove_validly(server.url, *flags, folder=tmp_path, slo=SLO)

    assert said.point["class"] == "OVERLOAD", said.explained()
    assert (said.verdict, said.code) == ("FAIL", FAIL)
    if not said.point["stopped_early"]:
        assert said.point["errors"] == 0
        assert said.point["achieved"] <= 102.0


@two_cores
def test_half_the_load_is_no_overload(tmp_path: Path) -> None:
    with known(*HALL, folder=tmp_path) as server:
        flags = ("--rate", "50/s", "--for", "6s")
        said = prove_validly(server.url, *flags, folder=tmp_path, slo=SLO)

    assert said.point["class"] != "OVERLOAD", said.explained()
    assert (said.verdict, said.code) == ("PASS", PASS)


@two_cores
def test_a_hopeless_rate_takes_no_longer_than_it_was_given(tmp_path: Path) -> None:
    with known(*HALL, folder=tmp_path) as server:
        flags = ("--rate", "400/s", "--for", "5s", "--timeout", "2s")
        said = prove_validly(server.url, *flags, folder=tmp_path, slo=SLO)

    assert said.verdict == "FAIL", said.explained()
    assert said.point["class"] == "OVERLOAD"
    assert said.point["measured_seconds"] <= 5.0
    assert said.document["seconds"] < 15
