"""A few requests one by one: the first against the warm ones."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from .prove import BODY, USAGE, Said, known, tailproof
from .server import free_port

KEYS = {"cold_seconds", "warm_seconds", "cold_warm_ratio", "counters"}


def _probe(url: str, *flags: str, folder: Path) -> Said:
    (folder / "body.jsonl").write_text(BODY + "\n")
    return tailproof("probe", url, "--data", "body.jsonl", *flags, folder=folder, timeout=60)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("probe")


@pytest.fixture(scope="module")
def probed(folder: Path) -> Iterator[tuple[Said, int]]:
    """What it said, and how many requests the server saw."""
    with known("cold", "--service", "5ms", "--first", "800ms", folder=folder) as server:
        said = _probe(server.url, "--json", "--html", "probe.html", folder=folder)
        yield said, len(server.records("arrived"))


def test_cold_against_warm(probed: tuple[Said, int]) -> None:
    said, num_seen = probed
    document = said.document

    assert said.code == 0, said
    assert num_seen == 30
    assert set(document) >= KEYS
    assert 0.8 <= document["cold_seconds"] < 0.95
    assert 0.005 <= document["warm_seconds"]["p50"] < 0.02
    assert document["warm_seconds"]["p99"] < 0.3
    ratio = document["cold_seconds"] / document["warm_seconds"]["p50"]
    assert document["cold_warm_ratio"] == pytest.approx(ratio, rel=0.01)


def test_thirty_requests_resolve_no_p99(probed: tuple[Said, int]) -> None:
    resolved = probed[0].document["warm_seconds"]["resolved"]

    assert "p50" in resolved
    assert "p99" not in resolved


def test_the_page(probed: tuple[Said, int], folder: Path) -> None:
    assert probed[0].code == 0
    assert "<html" in (folder / "probe.html").read_text()


def test_as_many_as_asked_for(tmp_path: Path) -> None:
    with known("constant", "--service", "2ms", folder=tmp_path) as server:
        said = _probe(server.url, "--requests", "7", "--json", folder=tmp_path)
        num_seen = len(server.records("arrived"))

    assert num_seen == 7
    assert said.document["cold_warm_ratio"] < 20


def test_for_people(tmp_path: Path) -> None:
    with known("constant", "--service", "2ms", folder=tmp_path) as server:
        said = _probe(server.url, "--requests", "5", folder=tmp_path)

    assert said.code == 0, said
    assert "cold" in said.stdout.lower()
    assert "ms" in said.stdout


def test_refusals_are_no_fast_answers(tmp_path: Path) -> None:
    """Every other one at once, the others after 20 ms: a warm P50 of 0 ms would be a lie."""
    with known("refusing", "--every", "2", "--service", "20ms", folder=tmp_path) as server:
        said = _probe(server.url, "--json", folder=tmp_path)

    p50 = said.document["warm_seconds"]["p50"]
    assert p50 is None or p50 >= 0.02


def test_nobody_answers(tmp_path: Path) -> None:
    port = free_port()
    said = _probe(f"http://127.0.0.1:{port}/predict", "--json", folder=tmp_path)

    assert said.code in (1, USAGE), said
    assert not said.crashed, said
    assert str(port) in said.stderr


def test_no_payload(tmp_path: Path) -> None:
    with known("constant", folder=tmp_path) as server:
        said = tailproof("probe", server.url, folder=tmp_path)

    assert said.code == USAGE, said
    assert "--data" in said.stderr
