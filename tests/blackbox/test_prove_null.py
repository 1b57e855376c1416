"""The null target: it answers after a set delay, so what a load test adds can be seen."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from .http_client import Answer, Refused, ask, run
from .prove import BODY, PASS, SERVER_CORE, end, prove_validly, start, two_cores
from .server import free_port


@contextmanager
def _null(folder: Path, *flags: str) -> Iterator[int]:
    """The port of a running null target."""
    port = free_port()
    process = start("null", "--port", str(port), *flags, folder=folder, core=SERVER_CORE)
    try:
        deadline = time.monotonic() + 20
        while not _listens(port):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline, "the null target does not listen"
            time.sleep(0.05)
        yield port
    finally:
        end(process)
        process.communicate()


def _ask(port: int) -> Answer:
    return run(ask(port, "POST", "/predict", BODY.encode()))


def _listens(port: int) -> bool:
    try:
        return _ask(port).status == 200
    except Refused:
        return False


def test_delay_and_size(tmp_path: Path) -> None:
    with _null(tmp_path, "--delay", "50ms", "--size", "1000B") as port:
        answers = [_ask(port) for _ in range(5)]

    assert {len(one.body) for one in answers} == {1000}
    assert min(one.seconds for one in answers) >= 0.05
    assert min(one.seconds for one in answers) < 0.06


@two_cores
def test_what_the_tester_adds(tmp_path: Path) -> None:
    with _null(tmp_path, "--delay", "5ms") as port:
        url = f"http://127.0.0.1:{port}/predict"
        flags = ("--rate", "200/s", "--for", "1s")
        said = prove_validly(url, *flags, folder=tmp_path, slo="p95 < 50ms")

    assert (said.verdict, said.code) == ("PASS", PASS), said.explained()
    assert said.point["response_seconds"]["p50"] == pytest.approx(0.005, abs=0.0025)
    assert said.point["errors"] == 0
