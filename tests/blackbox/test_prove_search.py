"""The search against a batch server whose limit and capacity can be computed from the batch times
that it really took: 5 ms + 1 ms a row, at most 16 rows, so about 762 a second."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tailproof.core.arrivals import poisson
from tailproof.core.queues import batched

from .prove import Known, Said, known, prove, prove_validly, two_cores

SERVER = ("queue", "--service", "5ms", "--per-row", "1ms", "--max-rows", "16")
SLO, THRESHOLD = "p95 < 33.3ms", 0.0333


class Truth:
    """What the server can do, from its own log."""

    def __init__(self, server: Known) -> None:
        batches = server.records("rows")
        rows = np.array([one["rows"] for one in batches])
        seconds = np.array([one["seconds"] for one in batches])
        self._taken = {n: seconds[rows == n] for n in range(1, 17) if (rows == n).any()}
        self._random = np.random.default_rng(1)
        assert 16 in self._taken, "the server was never full"
        self.capacity = 16 / float(self._taken[16].mean())

    def _batch_seconds(self, rows: int) -> float:
        """A time that a batch of that size took; the nearest size where none was seen."""
        nearest = min(self._taken, key=lambda n: abs(n - rows))
        return float(self._random.choice(self._taken[nearest]))

    def p95(self, rate: float) -> float:
        """By simulation, seconds."""
        response = batched(poisson(rate, 60.0, seed=3), self._batch_seconds, 16)
        return float(np.percentile(response, 95, method="inverted_cdf"))

    def limit(self) -> float:
        """The highest rate whose P95 is inside the SLO."""
        low, high = 0.3 * self.capacity, self.capacity
        while high / low > 1.005:
            middle = (low * high) ** 0.5
            low, high = (middle, high) if self.p95(middle) < THRESHOLD else (low, middle)
        return low


def _points_in_order(document: dict[str, Any]) -> list[dict[str, Any]]:
    return sorted(document["points"], key=lambda point: float(point["offered"]))


def _is_consistent(said: Said) -> None:
    """The three rates and the points say the same."""
    limit, points = said.document["limit"], said.document["points"]
    assert limit is not None, said.explained()
    assert _decided(points, limit["low"], "PASS")
    assert limit["low"] <= limit["rate"] * 1.001
    if limit["high"] is not None:
        assert limit["rate"] <= limit["high"] * 1.001
        assert _decided(points, limit["high"], "FAIL")


def _decided(points: list[dict[str, Any]], rate: float, verdict: str) -> bool:
    """A step at this rate said so, or several that decide nothing alone may do so together. A rate
    that passed above one that failed is no limit, so nothing is said about the highest."""
    here = [one["verdict"] for one in points if one["offered"] == pytest.approx(rate, rel=0.01)]
    return verdict in here or (len(here) > 1 and set(here) == {"UNDECIDED"})


@two_cores
def test_the_limit_roughly(tmp_path: Path) -> None:
    """Steps of a second and less come within 5% on a machine with nothing else to do."""
    with known(*SERVER, folder=tmp_path) as server:
        flags = ("--budget", "12s")
        said = prove_validly(server.url, *flags, folder=tmp_path, slo=SLO)
        wanted = Truth(server).limit()

    _is_consistent(said)
    assert said.document["mode"] == "search"
    assert said.document["limit"]["rate"] == pytest.approx(wanted, rel=0.25), said.explained()
    assert said.document["seconds"] < 22
    assert {point["class"] for point in _points_in_order(said.document)[:1]} == {"LINEAR"}


@two_cores
def test_a_ladder_turns_from_linear_to_overload(tmp_path: Path) -> None:
    with known(*SERVER, folder=tmp_path) as server:
        flags = ("--steps", "150/s,1100/s", "--for", "1200ms")
        said = prove_validly(server.url, *flags, folder=tmp_path, slo=SLO)
        capacity = Truth(server).capacity

    slow, fast = _points_in_order(said.document)
    assert (slow["class"], slow["verdict"]) == ("LINEAR", "PASS"), said.explained()
    assert (fast["class"], fast["verdict"]) == ("OVERLOAD", "FAIL"), said.explained()
    assert slow["requests"] == 180
    assert fast["achieved"] < capacity * 1.03
    assert slow["advice"] != fast["advice"]
    assert said.document["mode"] == "ladder"


@two_cores
def test_no_rate_is_inside_an_impossible_slo(tmp_path: Path) -> None:
    """20 ms each, and 10 ms asked for: at 10/s they do not even meet each other."""
    with known("constant", "--service", "20ms", folder=tmp_path) as server:
        said = prove_validly(server.url, "--budget", "20s", folder=tmp_path, slo="p95 < 10ms")

    assert (said.verdict, said.code) == ("FAIL", 1), said.explained()
    limit = said.document["limit"]
    assert limit is None or limit["low"] is None
    assert said.document["seconds"] < 30


@two_cores
@pytest.mark.soak
def test_caps_bound_the_search(tmp_path: Path) -> None:
    """A server without a limit: the rate is capped, and the limit is a lower bound."""
    with known("constant", folder=tmp_path) as server:
        flags = ("--budget", "20s", "--max-rate", "200/s", "--max-requests", "3000")
        said = prove(server.url, *flags, folder=tmp_path, slo="p95 < 100ms")
        seen = len(server.records("arrived"))

    assert seen <= 3000
    assert max(point["offered"] for point in said.document["points"]) <= 201
    limit = said.document["limit"]
    assert limit is None or limit["high"] is None, said.explained()


@pytest.mark.soak
@two_cores
def test_the_limit_in_full(tmp_path: Path) -> None:
    with known(*SERVER, folder=tmp_path) as server:
        flags = ("--budget", "5m")
        said = prove_validly(server.url, *flags, folder=tmp_path, slo=SLO, timeout=400)
        truth = Truth(server)
        wanted = truth.limit()

    _is_consistent(said)
    assert said.verdict == "PASS", said.explained()
    assert said.document["limit"]["rate"] == pytest.approx(wanted, rel=0.05)
    assert wanted == pytest.approx(610, rel=0.1), "the server is not the one of the figures"
    assert said.document["saturation"]["rate"] == pytest.approx(truth.capacity, rel=0.05)


@pytest.mark.soak
@two_cores
def test_overload_begins_at_the_capacity(tmp_path: Path) -> None:
    """Within 5%, on either side."""
    with known(*SERVER, folder=tmp_path) as server:
        prove(server.url, "--rate", "850/s", "--for", "5s", folder=tmp_path, slo=SLO)
        capacity = Truth(server).capacity
        rates = [capacity * share for share in (0.85, 0.95, 1.05, 1.15)]
        steps = ",".join(f"{rate:.0f}/s" for rate in rates)
        said = prove_validly(
            server.url, "--steps", steps, "--for", "20s", folder=tmp_path, slo=SLO, timeout=200
        )

    classes = [point["class"] for point in _points_in_order(said.document)]
    assert "OVERLOAD" not in classes[:2], said.explained()
    assert classes[2:] == ["OVERLOAD", "OVERLOAD"], said.explained()
