"""`tailproof prove` and its sisters as real processes, and the servers they are pointed at."""

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from . import processes

TAILPROOF = (sys.executable, "-m", "tailproof")
KNOWN = str(Path(__file__).with_name("known_servers.py"))

CORES = sorted(os.sched_getaffinity(0))
SERVER_CORE, TESTER_CORE = CORES[0], CORES[-1]
two_cores = pytest.mark.skipif(len(CORES) < 2, reason="tester and server need a core each")

PASS, FAIL, USAGE, OPEN = 0, 1, 2, 3
CODES = {"PASS": PASS, "FAIL": FAIL, "UNDECIDED": OPEN, "INVALID": OPEN}
BODY = '{"amount": 12.5}'


def pinned(core: int | None) -> tuple[str, ...]:
    """The start of a command that runs on one core."""
    return () if core is None else ("taskset", "-c", str(core))


@dataclass(frozen=True, slots=True)
class Known:
    """A running server whose truth is known."""

    pid: int
    url: str
    log: Path

    def records(self, key: str) -> list[dict[str, Any]]:
        """What it logged so far, of those records that have `key`."""
        lines = self.log.read_text().split("\n")[:-1]
        return [record for line in lines if key in (record := json.loads(line))]


@contextmanager
def known(kind: str, *flags: str, folder: Path, core: int | None = SERVER_CORE) -> Iterator[Known]:
    """A server of `known_servers.py`, on a core of its own."""
    log = folder / f"{kind}-{time.monotonic_ns()}.jsonl"
    command = [*pinned(core), sys.executable, KNOWN, kind, "--log", str(log), *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            port = process.stdout.readline().strip()
            assert port, "the server did not start"
            yield Known(process.pid, f"http://127.0.0.1:{port}/predict", log)
            assert process.poll() is None, "the server died during the test"
        finally:
            process.terminate()


@contextmanager
def spinner(core: int) -> Iterator[None]:
    """Something else that wants the whole of a core."""
    spin = "import time\nend = time.monotonic() + 300\nwhile time.monotonic() < end: pass"
    with subprocess.Popen([*pinned(core), sys.executable, "-c", spin]) as process:
        try:
            yield
        finally:
            process.kill()


def has_crashed(stderr: str) -> bool:
    """A stack, or the one line that stands for one."""
    return "Traceback" in stderr or "unexpected" in stderr


@dataclass(frozen=True, slots=True)
class Said:
    """What a command said, and how it ended."""

    code: int
    stdout: str
    stderr: str
    folder: Path
    """Where it ran."""

    @property
    def document(self) -> Any:
        """The one JSON document on stdout. Raises AssertionError when it is none."""
        try:
            return json.loads(self.stdout)
        except ValueError:
            pytest.fail(f"stdout is no JSON document (exit {self.code})\n{self}")

    @property
    def crashed(self) -> bool:
        """It met something that it had not thought of."""
        return has_crashed(self.stderr)

    @property
    def point(self) -> dict[str, Any]:
        """The only step."""
        [point] = self.document["points"]
        assert isinstance(point, dict)
        return point

    @property
    def verdict(self) -> str:
        return str(self.document["verdict"])

    @property
    def run(self) -> Path:
        """The run's folder."""
        return self.folder / str(self.document["run"])

    @property
    def disturbed(self) -> bool:
        """The tester was in the number, or in one that the whole rests on. A search repeats such
        a step; it is disturbed when it had to stop for it."""
        document = self.document
        if document["mode"] == "search":
            limit = document["limit"]
            return self.verdict == "INVALID" or (limit is not None and bool(limit["at_least"]))
        return any(point["verdict"] == "INVALID" for point in document["points"])

    def explained(self) -> str:
        """For a failed assertion: verdict, reason, and what the points say."""
        document = self.document
        points = [(p["offered"], p["class"], p["verdict"], p["reason"]) for p in document["points"]]
        return f"{document['verdict']}: {document['reason']}\n{points}\n{self.stderr[-2000:]}"

    def __str__(self) -> str:
        return f"--- stdout\n{self.stdout[-2000:]}\n--- stderr\n{self.stderr[-2000:]}"


def tailproof(
    *arguments: str, folder: Path, core: int | None = None, timeout: float = 120.0
) -> Said:
    """Run one command in `folder`, to its end. Raises TimeoutExpired; nothing outlives it."""
    process = start(*arguments, folder=folder, core=core)
    try:
        stdout, stderr = process.communicate(timeout=timeout)
    finally:
        end(process)
    return Said(process.returncode, stdout, stderr, folder)


def start(*arguments: str, folder: Path, core: int | None = None) -> "subprocess.Popen[str]":
    """Begin one command in `folder`, in a process group of its own, as a shell does."""
    return subprocess.Popen(
        [*pinned(core), *TAILPROOF, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        process_group=0,
    )


def end(process: "subprocess.Popen[str]") -> None:
    """Kill the command and its children, if they still run."""
    members = family(process.pid) if process.poll() is None else {}
    for pid in alive(members):
        processes.kill(pid)
    process.wait()


def family(pid: int) -> dict[int, str]:
    """A process and everything below it: process id -> when it started."""
    born = processes.started(pid)
    found = {} if born is None else {pid: born}
    for child in processes.children(pid):
        found |= family(child)
    return found


def alive(members: dict[int, str]) -> list[int]:
    """Those of a family that still run."""
    return [pid for pid, born in members.items() if processes.started(pid) == born]


def prove(
    url: str,
    *flags: str,
    folder: Path,
    slo: str | Sequence[str] = "p95 < 100ms",
    core: int | None = TESTER_CORE,
    timeout: float = 120.0,
) -> Said:
    """`tailproof prove URL --slo SLO --json FLAGS` with one small body, on a core of its own."""
    body = folder / "body.jsonl"
    body.write_text(BODY + "\n")
    slos = [slo] if isinstance(slo, str) else slo
    wanted = [part for text in slos for part in ("--slo", text)]
    arguments = ("prove", url, *wanted, "--data", str(body), "--json", *flags)
    return tailproof(*arguments, folder=folder, core=core, timeout=timeout)


def prove_validly(url: str, *flags: str, folder: Path, **options: Any) -> Said:
    """The same, undisturbed: see `validly`."""
    return validly(lambda: prove(url, *flags, folder=folder, **options))


def validly(measure: Callable[[], Said]) -> Said:
    """Measure; where the tester itself was in the number, once more.

    Twice in a row is a failure, unless others really used the tester's core meanwhile: then
    nothing can be measured here, and the test is skipped.
    """
    for _ in range(2):
        with Witness(TESTER_CORE) as witness:
            said = measure()
        if said.code not in CODES.values() or not said.disturbed:
            assert said.code == CODES[said.verdict], said.explained()
            return said
    if witness.foreign > BUSY:
        pytest.skip(f"others used {witness.foreign:.0%} of the tester's core")
    pytest.fail(f"disturbed although the tester's core was free: {said.explained()}")


BUSY = 0.02
"""Share of a core that others may use beside a tester that promises to be undisturbed."""


class Witness:
    """What others than our children used of a core while the block ran, read independently of
    the tester: a share of that time."""

    def __init__(self, core: int) -> None:
        self._core = core
        self.foreign = 0.0

    def __enter__(self) -> "Witness":
        self._before = self._now()
        return self

    def __exit__(self, *_: object) -> None:
        wall, busy, ours = (b - a for a, b in zip(self._before, self._now(), strict=True))
        self.foreign = max(0.0, busy - ours) / wall

    def _now(self) -> tuple[float, float, float]:
        """Seconds: the time, the core's busy time, the time that children who ended have used."""
        lines = Path("/proc/stat").read_text().splitlines()
        [line] = [line for line in lines if line.startswith(f"cpu{self._core} ")]
        user, nice, system, _, _, irq, softirq, steal = map(int, line.split()[1:9])
        busy = (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return time.monotonic(), busy, used.ru_utime + used.ru_stime
