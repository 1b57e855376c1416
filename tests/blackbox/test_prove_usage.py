"""Wrong usage is exit 2 and one line that says what is wrong and what to do; nothing is sent."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from .prove import FAIL, USAGE, Known, Said, known, prove, tailproof
from .server import free_port

QUICK = ("--rate", "20/s", "--for", "1s")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Known]:
    """One that answers at once, and logs whatever reaches it."""
    with known("constant", folder=tmp_path_factory.mktemp("server"), core=None) as running:
        yield running


def _complains(said: Said, *words: str) -> None:
    assert said.code == USAGE, said
    assert said.stdout == "", said
    [line] = [line for line in said.stderr.splitlines() if line.strip()]
    for word in words:
        assert word in line, line


@pytest.mark.parametrize(
    ("slo", "words"),
    [
        ("95% < 100ms", ("--slo", "95% < 100ms", "p95 < 50ms")),
        ("p95 < 100", ("--slo", "p95 < 100", "unit")),
        ("p100 < 1s", ("--slo", "p100 < 1s")),
    ],
)
def test_an_slo_that_is_none(
    tmp_path: Path, server: Known, slo: str, words: tuple[str, ...]
) -> None:
    _complains(prove(server.url, *QUICK, folder=tmp_path, slo=slo), *words)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--arrivals", "bursty"), ("--arrivals", "bursty", "poisson")),
        (("--arrivals", "gamma:none"), ("--arrivals", "gamma:none")),
        (("--arrivals", "trace:nowhere.txt"), ("--arrivals", "nowhere.txt")),
        (("--rate", "20"), ("--rate", "20", "300/s")),
        (("--for", "1"), ("--for", "unit")),
        (("--require", "10/s"), ("--require", "--rate")),
        (("--steps", "10/s,20/s"), ("--steps", "--rate")),
        (("--timeout", "0s"), ("--timeout",)),
        (("--header", "no colon"), ("--header", "no colon")),
        (("--processes", "0"), ("--processes", "0")),
    ],
)
def test_a_flag_that_makes_no_sense(
    tmp_path: Path, server: Known, flags: tuple[str, ...], words: tuple[str, ...]
) -> None:
    _complains(prove(server.url, *QUICK, *flags, folder=tmp_path), *words)


def test_no_payload(tmp_path: Path, server: Known) -> None:
    """This server has no openapi.json to draw from."""
    said = tailproof("prove", server.url, "--slo", "p95 < 1s", *QUICK, folder=tmp_path)

    _complains(said, "--data", "--template")


@pytest.mark.parametrize(("name", "text"), [("missing.jsonl", None), ("empty.jsonl", "")])
def test_a_payload_that_is_not_there(
    tmp_path: Path, server: Known, name: str, text: str | None
) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)

    said = tailproof(
        *("prove", server.url, "--slo", "p95 < 1s", "--data", name, *QUICK), folder=tmp_path
    )

    _complains(said, "--data", name)


@pytest.mark.parametrize("url", ["http://192.0.2.1:9/predict", "http://[2001:db8::1]:9/predict"])
def test_a_public_host_needs_a_word(tmp_path: Path, url: str) -> None:
    """Addresses that are kept for documentation: they belong to nobody."""
    said = prove(url, *QUICK, folder=tmp_path, timeout=20)

    _complains(said, "--i-may-load-this-host")


@pytest.mark.parametrize("url", ["localhost:8000/predict", "ftp://127.0.0.1/x", "http://"])
def test_a_target_that_is_none(tmp_path: Path, url: str) -> None:
    _complains(prove(url, *QUICK, folder=tmp_path, timeout=20))


def test_no_slo(tmp_path: Path, server: Known) -> None:
    said = prove(server.url, *QUICK, folder=tmp_path, slo=())

    _complains(said, "--slo")


def test_nothing_was_sent(tmp_path: Path, server: Known) -> None:
    """By any of the complaints above; a run without a mistake does reach the server."""
    assert server.records("arrived") == []

    prove(server.url, *QUICK, folder=tmp_path, slo="p50 < 1s")

    assert len(server.records("arrived")) >= 20


def test_nobody_answers_a_search(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}/predict"

    said = prove(url, "--budget", "20s", folder=tmp_path, timeout=40)

    _complains(said, url.rpartition("/")[0].removeprefix("http://"))


def test_nobody_answers_one_rate(tmp_path: Path) -> None:
    """Either it is told at the door, as in a search, or every request is a miss: never a pass,
    never a stack."""
    url = f"http://127.0.0.1:{free_port()}/predict"

    said = prove(url, *QUICK, folder=tmp_path, timeout=40)

    if said.code == USAGE:
        _complains(said, url.rpartition("/")[0].removeprefix("http://"))
    else:
        assert (said.code, said.verdict) == (FAIL, "FAIL"), said
        assert said.point["statuses"] == {"not connected": 20}


@pytest.mark.parametrize("command", ["prove", "probe", "report", "compare", "null"])
def test_help_says_what_there_is(tmp_path: Path, command: str) -> None:
    said = tailproof(command, "--help", folder=tmp_path)

    assert said.code == 0
    assert "Usage: tailproof " + command in said.stdout
