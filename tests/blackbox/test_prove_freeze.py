"""A server that freezes once: the clock starts when a request was due, not when it was sent.

Service s, one request at a time, a constant rate with utilisation r, one freeze of F in D seconds.
The freeze delays F / (1 - r) seconds' worth of requests; the q-quantile of all is
R_q = F - (1 - q) D (1 - r) + s, wherever in the window the freeze falls.
"""

from pathlib import Path

import numpy as np
import pytest

from .prove import FAIL, Said, known, prove, two_cores, validly

RATE = 50.0
CONSTANT = ("--arrivals", "constant")


def _quantile(q: float, freeze: float, window: float, service: float) -> float:
    return freeze - (1.0 - q) * window * (1.0 - RATE * service) + service


def _prove(folder: Path, freeze: str, seconds: int, *flags: str) -> tuple[Said, float]:
    """What is said of a fresh server that freezes once (it starts anew for every attempt), and
    what a request really takes there, seconds."""
    stall = () if freeze == "0s" else ("--stall", freeze, "--stall-at", f"{0.4 * seconds + 2:g}s")
    with known("queue", "--service", "10ms", *stall, folder=folder) as server:
        load = ("--rate", f"{RATE:g}/s", "--for", f"{seconds}s", *flags)
        said = prove(server.url, *load, folder=folder, slo="p99 < 100ms")
        return said, float(np.median([one["seconds"] for one in server.records("rows")]))


def _prove_validly(folder: Path, freeze: str, seconds: int, *flags: str) -> tuple[Said, float]:
    attempts: list[tuple[Said, float]] = []

    def measure() -> Said:
        attempts.append(_prove(folder, freeze, seconds, *flags))
        return attempts[-1][0]

    validly(measure)
    return attempts[-1]


def _frozen_in_the_window(said: Said, freeze: float) -> None:
    assert said.point["response_seconds"]["max"] == pytest.approx(freeze, rel=0.05)


@two_cores
def test_what_users_felt_in_a_short_freeze(tmp_path: Path) -> None:
    """Slack for a busy machine: 5 times that of the full test below."""
    said, service = _prove_validly(tmp_path, "1s", 6, *CONSTANT)

    assert (said.code, said.verdict) == (FAIL, "FAIL"), said.explained()
    _frozen_in_the_window(said, 1.0)
    for name, q in (("p90", 0.90), ("p95", 0.95), ("p99", 0.99)):
        wanted = _quantile(q, 1.0, 6.0, service)
        assert said.point["response_seconds"][name] == pytest.approx(wanted, rel=0.15), name
    assert said.point["response_seconds"]["p50"] < 0.03
    assert said.point["requests"] == 300


@two_cores
def test_without_a_freeze_the_same_server_is_fast(tmp_path: Path) -> None:
    said, _ = _prove_validly(tmp_path, "0s", 2, *CONSTANT)

    assert said.verdict in ("PASS", "UNDECIDED"), said.explained()
    assert said.point["response_seconds"]["p99"] < 0.05


@pytest.mark.soak
@two_cores
def test_one_connection_cannot_hide_the_freeze(tmp_path: Path) -> None:
    """Requests then wait inside the tester. Counted from the send only one of them was slow, which
    is what a closed loop would print; the headline still counts from when they were due."""
    said, service = _prove(tmp_path, "1s", 10, *CONSTANT, "--max-connections", "1")

    _frozen_in_the_window(said, 1.0)
    wanted = pytest.approx(_quantile(0.99, 1.0, 10.0, service), rel=0.15)
    assert said.point["response_seconds"]["p99"] == wanted
    assert said.point["uncorrected_seconds"]["p99"] < 0.05
    assert said.point["uncorrected_seconds"]["max"] == pytest.approx(1.0, rel=0.05)
    assert said.verdict in ("FAIL", "INVALID"), said.explained()


@pytest.mark.soak
@two_cores
def test_the_freeze_in_full(tmp_path: Path) -> None:
    said, service = _prove_validly(tmp_path, "2s", 30, *CONSTANT)

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
    said, _ = _prove_validly(tmp_path, "2s", 30, "--seed", seed)

    _frozen_in_the_window(said, 2.0)
    assert 1.6 <= said.point["response_seconds"]["p99"] <= 2.1
