"""A tester that shares its core with something greedy says so, instead of blaming the server."""

from pathlib import Path
from typing import Any

import pytest

from .prove import BUSY, OPEN, TESTER_CORE, Said, Witness, known, prove, spinner, two_cores

FLAGS = ("--rate", "300/s", "--for", "4s")
SLO = "p95 < 20ms"


def _prove(folder: Path) -> Said:
    with known("constant", "--service", "5ms", folder=folder) as server:
        return prove(server.url, *FLAGS, folder=folder, slo=SLO)


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
@pytest.mark.parametrize("attempt", [1, 2])
def test_beside_a_spinner_it_is_invalid(tmp_path: Path, attempt: int) -> None:
    with spinner(TESTER_CORE):
        _is_invalid(_prove(tmp_path))


def _undisturbed(folder: Path, num: int) -> list[Said]:
    """`num` runs during which nobody else used the tester's core, as an independent witness saw
    it. The test is skipped where half of all tries were not like that."""
    found: list[Said] = []
    for _ in range(2 * num):
        with Witness(TESTER_CORE) as witness:
            said = _prove(folder)
        found += [said] if witness.foreign < BUSY else []
        if len(found) == num:
            return found
    pytest.skip("others use the tester's core")


@two_cores
def test_on_an_idle_core_it_is_not(tmp_path: Path) -> None:
    runs = _undisturbed(tmp_path, 2)

    assert any(said.verdict == "PASS" for said in runs), runs[0].explained()


@pytest.mark.soak
@two_cores
def test_twenty_of_twenty(tmp_path: Path) -> None:
    with spinner(TESTER_CORE):
        for _ in range(20):
            _is_invalid(_prove(tmp_path))


@pytest.mark.soak
@two_cores
def test_at_most_one_of_twenty_when_idle(tmp_path: Path) -> None:
    verdicts = [said.verdict for said in _undisturbed(tmp_path, 20)]

    assert verdicts.count("INVALID") <= 1, verdicts
