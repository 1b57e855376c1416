"""A tester that shares its core with something greedy says so, instead of blaming the server."""

from pathlib import Path
from typing import Any

import pytest

from .prove import OPEN, TESTER_CORE, Said, known, prove, spinner, two_cores

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


@two_cores
def test_on_an_idle_core_it_is_not(tmp_path: Path) -> None:
    """One of two: the machine itself may be busy at this moment."""
    runs = [_prove(tmp_path) for _ in range(2)]

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
    verdicts = [_prove(tmp_path).verdict for _ in range(20)]

    assert verdicts.count("INVALID") <= 1, verdicts
