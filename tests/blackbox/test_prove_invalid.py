"""A tester that shares its core with something greedy says so, instead of blaming the server."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .prove import BUSY, OPEN, TESTER_CORE, Said, Witness, known, prove, spinner, two_cores

SHORT, LONG = "2s", "4s"
SLO = "p95 < 20ms"


def _prove(folder: Path, seconds: str) -> Said:
    with known("constant", "--service", "5ms", folder=folder) as server:
        flags = ("--rate", "300/s", "--for", seconds)
        return prove(server.url, *flags, folder=folder, slo=SLO)


def _signal(said: Said, name: str) -> dict[str, Any]:
    [found] = [one for one in said.point["generator"]["signals"] if one["name"] == name]
    assert isinstance(found, dict)
    return found


def _is_invalid(said: Said) -> None:
    assert (said.verdict, said.code) == ("INVALID", OPEN), said.explained()
    assert "load-testing yourself" in f"{said.document['reason']} {said.point['reason']}"
    generator = said.point["generator"]
    assert not generator["ok"]
    assert any(one["bad"] and one["invalidates"] for one in generator["signals"])
    foreign = _signal(said, "foreign_cpu")
    assert foreign["bad"]
    assert foreign["value"] > 0.3
    assert foreign["text"]


@two_cores
def test_beside_a_spinner_it_is_invalid(tmp_path: Path) -> None:
    with spinner(TESTER_CORE):
        _is_invalid(_prove(tmp_path, SHORT))


def _undisturbed(folder: Path, num: int, seconds: str) -> Iterator[Said]:
    """`num` runs during which nobody else used the tester's core, as an independent witness saw
    it. The test is skipped where half of all tries were not like that."""
    num_found = 0
    for _ in range(2 * num):
        with Witness(TESTER_CORE) as witness:
            said = _prove(folder, seconds)
        if witness.foreign < BUSY:
            yield said
            num_found += 1
        if num_found == num:
            return
    pytest.skip("others use the tester's core")


@two_cores
def test_on_an_idle_core_it_is_not(tmp_path: Path) -> None:
    """One accident may happen."""
    reasons = []
    for said in _undisturbed(tmp_path, 2, SHORT):
        if said.verdict == "PASS":
            return
        reasons.append(said.explained())
    pytest.fail("\n".join(reasons))


@pytest.mark.soak
@two_cores
def test_twenty_of_twenty(tmp_path: Path) -> None:
    with spinner(TESTER_CORE):
        for _ in range(20):
            _is_invalid(_prove(tmp_path, LONG))


@pytest.mark.soak
@two_cores
def test_at_most_one_of_twenty_when_idle(tmp_path: Path) -> None:
    verdicts = [said.verdict for said in _undisturbed(tmp_path, 20, LONG)]

    assert verdicts.count("INVALID") <= 1, verdicts
