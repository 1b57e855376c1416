"""Why the tail is long: causes that are there are named, and none is made up."""

from pathlib import Path
from typing import Any

import pytest

from .prove import Said, known, prove, prove_validly, two_cores

STALL = "GC or stall"


def _shares(said: Said) -> dict[str, float]:
    return {one["cause"]: one["share"] for one in said.document["tail_causes"]}


def _adds_up(document: dict[str, Any]) -> None:
    shares = [one["share"] for one in document["tail_causes"]]
    assert all(0.0 <= share <= 1.0 for share in shares)
    if document["unexplained"] is not None:
        assert sum(shares) + document["unexplained"] == pytest.approx(1.0, abs=0.01)


@two_cores
def test_a_server_that_stops_now_and_then(tmp_path: Path) -> None:
    pauses = ("--stall", "150ms", "--stall-every", "1s")
    with known("gc", "--service", "3ms", *pauses, folder=tmp_path) as server:
        flags = ("--rate", "100/s", "--for", "4s")
        said = prove_validly(server.url, *flags, folder=tmp_path, slo="p95 < 50ms")

    assert said.document["primary_cause"] == STALL, said.document["tail_causes"]
    assert _shares(said)[STALL] >= 0.5
    _adds_up(said.document)


@two_cores
@pytest.mark.soak
def test_times_that_vary_on_their_own_are_no_stall(tmp_path: Path) -> None:
    with known("plain", "--service", "100ms", "--spread", "0.8", folder=tmp_path) as server:
        flags = ("--rate", "100/s", "--for", "12s")
        said = prove_validly(server.url, *flags, folder=tmp_path, slo="p95 < 2s")

    assert said.document["primary_cause"] is None, said.document["tail_causes"]
    assert _shares(said).get(STALL, 0.0) < 0.5
    _adds_up(said.document)


@two_cores
@pytest.mark.soak
def test_a_busy_server_is_queueing(tmp_path: Path) -> None:
    with known("queue", "--service", "10ms", folder=tmp_path) as server:
        flags = ("--rate", "80/s", "--for", "12s")
        said = prove_validly(server.url, *flags, folder=tmp_path, slo="p95 < 500ms")

    assert said.document["primary_cause"] == "queueing", said.document["tail_causes"]
    _adds_up(said.document)


@two_cores
def test_the_cold_request_stands_apart(tmp_path: Path) -> None:
    """400 ms once, then 5 ms: the warm percentiles know nothing of it."""
    with known("cold", "--service", "5ms", "--first", "400ms", folder=tmp_path) as server:
        flags = ("--rate", "50/s", "--for", "1s")
        said = prove(server.url, *flags, folder=tmp_path)

    cold = said.document["cold"]
    assert cold["requests"] >= 1
    assert 0.4 <= cold["first_seconds"] < 0.5
    assert cold["cold_warm_ratio"] > 20
    assert cold["warm_seconds"]["p50"] < 0.03
    assert said.point["response_seconds"]["max"] < 0.3
