"""A server that freezes once: the clock starts when a request was due, not when it was sent.

Service s, one request at a time, a constant rate with utilisation r, one freeze of F in D seconds.
The freeze delays F / (1 - r) seconds' worth of requests; the q-quantile of all is
R_q = F - (1 - q) D (1 - r) + s, wherever in the window the freeze falls.
"""

from pathlib import Path

import numpy as np
import pytest

from .prove import FAIL, PASS, Known, Said, known, prove, prove_validly, two_cores

RATE = 50.0
SLO = "p99 < 100ms"


def _quantile(q: float, freeze: float, window: float, service: float) -> float:
    return freeze - (1.0 - q) * window * (1.0 - RATE * service) + service


def _service(server: Known) -> float:
    """What a request really took, seconds."""
    return float(np.median([one["seconds"] for one in server.records("rows")]))


def _frozen_in_the_window(said: Said, freeze: float) -> None:
    assert said.point["response_seconds"]["max"] == pytest.approx(freeze, rel=0.05)


def _flags(seconds: int, arrivals: str = "constant") -> tuple[str, ...]:
    return ("--rate", f"{RATE:g}/s", "--for", f"{seconds}s", "--arrivals", arrivals)


@two_cores
def test_what_users_felt_in_a_short_freeze(tmp_path: Path) -> None:
    """Slack for a busy machine: 5 times that of the full test below."""
    freezing = ("--service", "10ms", "--stall", "1s", "--stall-at", "7s")
    with known("queue", *freezing, folder=tmp_path) as server:
        said = prove_validly(server.url, *_flags(10), folder=tmp_path, slo=SLO)
        service = _service(server)

    assert (said.code, said.verdict) == (FAIL, "FAIL"), said.explained()
    _frozen_in_the_window(said, 1.0)
    for name, q in (("p90", 0.90), ("p95", 0.95), ("p99", 0.99)):
        wanted = _quantile(q, 1.0, 10.0, service)
        assert said.point["response_seconds"][name] == pytest.approx(wanted, rel=0.15), name
    assert said.point["response_seconds"]["p50"] < 0.03
    assert said.point["requests"] == 500


@two_cores
def test_without_a_freeze_the_same_server_passes(tmp_path: Path) -> None:
    with known("queue", "--service", "10ms", folder=tmp_path) as server:
        said = prove_validly(server.url, *_flags(10), folder=tmp_path, slo=SLO)

    assert (said.code, said.verdict) == (PASS, "PASS"), said.explained()
    assert said.point["response_seconds"]["p99"] < 0.05


@two_cores
def test_one_connection_cannot_hide_the_freeze(tmp_path: Path) -> None:
    """Requests then wait inside the tester. Counted from the send only one of them was slow, which
    is what a closed loop would print; the headline still counts from when they were due."""
    freezing = ("--service", "10ms", "--stall", "1s", "--stall-at", "7s")
    with known("queue", *freezing, folder=tmp_path) as server:
        flags = (*_flags(10), "--max-connections", "1")
        said = prove(server.url, *flags, folder=tmp_path, slo=SLO)
        wanted = _quantile(0.99, 1.0, 10.0, _service(server))

    _frozen_in_the_window(said, 1.0)
    assert said.point["response_seconds"]["p99"] == pytest.approx(wanted, rel=0.15)
    assert said.point["uncorrected_seconds"]["p99"] < 0.05
    assert said.point["uncorrected_seconds"]["max"] == pytest.approx(1.0, rel=0.05)
    assert said.verdict in ("FAIL", "INVALID"), said.explained()


@pytest.mark.soak
@two_cores
def test_the_freeze_in_full(tmp_path: Path) -> None:
    freezing = ("--service", "10ms", "--stall", "2s", "--stall-at", "12s")
    with known("queue", *freezing, folder=tmp_path) as server:
        said = prove_validly(server.url, *_flags(30), folder=tmp_path, slo=SLO)
        service = _service(server)

    assert said.verdict == "FAIL", said.explained()
    _frozen_in_the_window(said, 2.0)
    times = said.point["response_seconds"]
    assert times["p99"] == pytest.approx(1.860, rel=0.03)
    assert times["p95"] == pytest.approx(_quantile(0.95, 2.0, 30.0, service), rel=0.03)
    assert said.point["uncorrected_seconds"]["p99"] <= times["p99"]
    assert said.point["requests"] == 1500


@pytest.mark.soak
@two_cores
@pytest.mark.parametrize("seed", ["1", "2", "3"])
def test_the_freeze_under_random_arrivals(tmp_path: Path, seed: str) -> None:
    freezing = ("--service", "10ms", "--stall", "2s", "--stall-at", "12s")
    with known("queue", *freezing, folder=tmp_path) as server:
        flags = (*_flags(30, "poisson"), "--seed", seed)
        said = prove_validly(server.url, *flags, folder=tmp_path, slo=SLO)

    _frozen_in_the_window(said, 2.0)
    assert 1.6 <= said.point["response_seconds"]["p99"] <= 2.1
