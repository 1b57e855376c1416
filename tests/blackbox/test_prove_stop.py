"""A run that is stopped in the middle leaves no process behind, and keeps what it had measured."""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tailproof.reporting.runs import read_step

from .processes import kill
from .prove import BODY, Known, alive, end, family, has_crashed, known, start, tailproof

LADDER = ("--steps", "50/s,60/s,70/s", "--for", "1s", "--processes", "2")


def _begin(server: Known, folder: Path) -> "subprocess.Popen[str]":
    (folder / "body.jsonl").write_text(BODY + "\n")
    options = ("--slo", "p95 < 100ms", "--data", "body.jsonl", "--json")
    return start("prove", server.url, *options, *LADDER, folder=folder)


def _until(condition: Callable[[], object], what: str, within: float = 40.0) -> None:
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, f"not within {within:g} s: {what}"
        time.sleep(0.02)


def _first_step(folder: Path) -> Path:
    return folder / "runs" / "latest" / "steps" / "000.npz"


def _stop(folder: Path, server: Known, how: Callable[[int], None]) -> int:
    """Begin, wait for the first step's file, stop; returns the exit code. The children are gone
    when it ends."""
    process = _begin(server, folder)
    members: dict[int, str] = {}
    try:
        _until(lambda: _first_step(folder).exists() or process.poll() is not None, "a step")
        assert process.poll() is None, process.communicate()
        members |= family(process.pid)
        assert len(alive(members)) > 1, "no senders to leave behind"
        how(process.pid)
        _, stderr = process.communicate(timeout=15)
        assert not has_crashed(stderr), stderr
        _until(lambda: not alive(members), "the children end", 5.0)
    finally:
        end(process)
        for pid in alive(members):
            kill(pid)
    return process.returncode


def _ctrl_c(pid: int) -> None:
    """As a terminal does it: to the whole group in the foreground."""
    os.killpg(pid, signal.SIGINT)


def _terminate(pid: int) -> None:
    kill(pid, signal.SIGTERM)


@pytest.mark.parametrize(("how", "codes"), [(_ctrl_c, {130}), (_terminate, {143, -signal.SIGTERM})])
def test_stopped_in_the_middle(tmp_path: Path, how: Callable[[int], None], codes: set[int]) -> None:
    with known("constant", "--service", "5ms", folder=tmp_path) as server:
        code = _stop(tmp_path, server, how)

    assert code in codes
    step = read_step(tmp_path / "runs" / "latest", 0)
    assert len(step.measured) == 50
    assert step.measured.good.all()
    _has_a_report(tmp_path)


def _has_a_report(folder: Path) -> None:
    """Or it is told in one line why there is none, but by no stack."""
    said = tailproof("report", "runs/latest", "--json", folder=folder)

    assert not said.crashed, said
    assert said.code in (0, 2, 3), said
    if said.code == 2:
        assert "latest" in said.stderr


def test_killed_outright(tmp_path: Path) -> None:
    """Nobody can tidy up then; the senders notice by themselves."""
    with known("constant", "--service", "5ms", folder=tmp_path) as server:
        code = _stop(tmp_path, server, kill)

    assert code == -signal.SIGKILL
    assert len(read_step(tmp_path / "runs" / "latest", 0).measured) == 50
