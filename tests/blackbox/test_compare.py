"""Two runs: better, worse, or no difference; never a difference that is not there."""

from pathlib import Path
from typing import Any

import pytest

from .prove import FAIL, OPEN, PASS, USAGE, Known, Said, known, prove_validly, tailproof, two_cores

SAME = ("no difference", "undecided")


def _run(server: Known, folder: Path, name: str, seed: int) -> str:
    """One measurement at 150/s; returns the run's folder."""
    flags = ("--rate", "150/s", "--for", "1500ms", "--seed", str(seed), "--out", name)
    return str(prove_validly(server.url, *flags, folder=folder, slo="p95 < 2s").run)


def _serve(folder: Path, median: str, seed: int) -> Any:
    flags = ("--service", median, "--spread", "0.4", "--seed", str(seed))
    return known("plain", *flags, folder=folder)


def _compare(folder: Path, before: str, after: str) -> Said:
    return tailproof("compare", before, after, "--json", folder=folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the runs are kept that several tests compare."""
    return tmp_path_factory.mktemp("compare")


@pytest.fixture(scope="module")
def before(folder: Path) -> str:
    with _serve(folder, "200ms", 1) as server:
        return _run(server, folder, "before", seed=1)


@two_cores
def test_a_server_against_itself(folder: Path, before: str) -> None:
    with _serve(folder, "200ms", 2) as server:
        after = _run(server, folder, "again", seed=2)

    said = _compare(folder, before, after)

    assert said.document["outcome"] in SAME, said
    assert said.code == (PASS if said.document["outcome"] == "no difference" else OPEN)


@two_cores
def test_slower_is_worse_and_faster_is_better(folder: Path, before: str) -> None:
    """30%, in both directions."""
    with _serve(folder, "260ms", 3) as server:
        after = _run(server, folder, "slower", seed=3)

    worse, better = _compare(folder, before, after), _compare(folder, after, before)

    assert (worse.document["outcome"], worse.code) == ("worse", FAIL), worse
    assert (better.document["outcome"], better.code) == ("better", PASS), better


@two_cores
def test_more_misses_are_worse_however_fast(folder: Path, before: str) -> None:
    with known("refusing", "--every", "4", "--service", "100ms", folder=folder) as server:
        after = _run(server, folder, "refusing", seed=4)

    said = _compare(folder, before, after)

    assert (said.document["outcome"], said.code) == ("worse", FAIL), said


@two_cores
def test_a_run_against_itself_in_words(folder: Path, before: str) -> None:
    said = tailproof("compare", before, before, folder=folder)

    assert said.code == PASS, said
    assert "no difference" in said.stdout


@pytest.mark.parametrize("names", [("nowhere", "nothing")])
def test_what_is_no_run(tmp_path: Path, names: tuple[str, str]) -> None:
    said = tailproof("compare", *names, folder=tmp_path)

    assert said.code == USAGE, said
    assert "nowhere" in said.stderr
    assert not said.crashed, said


@pytest.mark.soak
@two_cores
def test_a_server_against_itself_ten_times(tmp_path: Path) -> None:
    """Interleaved, so that a drift of the machine meets both."""
    outcomes = []
    with _serve(tmp_path, "200ms", 1) as one, _serve(tmp_path, "200ms", 2) as other:
        for seed in range(10):
            before = _run(one, tmp_path, f"a{seed}", seed=seed)
            after = _run(other, tmp_path, f"b{seed}", seed=100 + seed)
            outcomes.append(_compare(tmp_path, before, after).document["outcome"])

    assert sum(outcome in SAME for outcome in outcomes) >= 9, outcomes
