"""Servers under test as pinned child processes, and what /proc says about them."""

import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tailproof.load.server_view import tree

SERVER_CORE = 0
CLIENT_CORE = 1
QUIET_WINDOW = 0.4
QUIET_SHARE = 0.06
"""A core is quiet when it was busy for at most this share of the window, in seconds."""
TICK = 1.0 / os.sysconf("SC_CLK_TCK")


class NotStarted(Exception):
    """A server ended, or was not ready in time; the message holds the end of its output."""


# --- /proc ----------------------------------------------------------------------------------------


def cpu_seconds(pid: int) -> float:
    """User and system time of the whole process tree so far, in seconds (10 ms steps)."""
    return sum(process.cpu for process in tree(pid))


def busy_seconds(core: int) -> float:
    """How long `core` has worked since boot, for anybody (time stolen by the host included)."""
    for line in Path("/proc/stat").read_text().splitlines():
        if line.startswith(f"cpu{core} "):
            user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, line.split()[1:9])
            return (user + nice + system + irq + softirq + steal) * TICK
    return 0.0


@dataclass(slots=True)
class Foreign:
    """Work on a core that was not ours: the share of it, 0-1, once the measurement is over."""

    server_core: float = 0.0
    client_core: float = 0.0

    def __str__(self) -> str:
        return f"others: {self.server_core:.0%} of core 0, {self.client_core:.0%} of core 1"


@contextmanager
def foreign_work(server_pid: int) -> Iterator[Foreign]:
    """Fill a `Foreign` with what others did on both cores inside the `with` block."""
    found = Foreign()
    start = time.perf_counter()
    cores = busy_seconds(SERVER_CORE), busy_seconds(CLIENT_CORE)
    ours = cpu_seconds(server_pid), _client_seconds()
    yield found
    seconds = time.perf_counter() - start
    server = busy_seconds(SERVER_CORE) - cores[0] - (cpu_seconds(server_pid) - ours[0])
    client = busy_seconds(CLIENT_CORE) - cores[1] - (_client_seconds() - ours[1])
    found.server_core = max(0.0, server / seconds)
    found.client_core = max(0.0, client / seconds)


def wait_quiet(patience: float) -> None:
    """Wait until both cores are nearly idle, for `patience` seconds at most."""
    deadline = time.perf_counter() + patience
    while time.perf_counter() < deadline:
        before = busy_seconds(SERVER_CORE), busy_seconds(CLIENT_CORE)
        time.sleep(QUIET_WINDOW)
        after = busy_seconds(SERVER_CORE), busy_seconds(CLIENT_CORE)
        if max(after[0] - before[0], after[1] - before[1]) <= QUIET_SHARE * QUIET_WINDOW:
            return


def _client_seconds() -> float:
    own = os.times()
    return own.user + own.system + own.children_user + own.children_system


# --- starting and stopping ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Server:
    """A running server. `cold_seconds`: from the creation of its process until it was ready."""

    pid: int
    port: int
    cold_seconds: float
    log: Path


def stop_cleanly() -> None:
    """Let SIGTERM end this process the way Ctrl-C does, so that no server is left behind."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


def can_pin() -> bool:
    """Is there a core for each side, and `taskset` to keep it there?"""
    return shutil.which("taskset") is not None and (os.cpu_count() or 1) > CLIENT_CORE


def pin_client() -> None:
    """Keep this process on the client's core; nobody is pinned where servers cannot be."""
    if can_pin():
        os.sched_setaffinity(0, {CLIENT_CORE})


def pinned(command: list[str], core: int) -> list[str]:
    """The same command, kept on one core."""
    return ["taskset", "-c", str(core), *command] if can_pin() else command


def free_port() -> int:
    """A port on loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def started(
    command: list[str],
    *,
    core: int = SERVER_CORE,
    ready_path: str | None = None,
    timeout: float = 60.0,
) -> Iterator[Server]:
    """Run `command --port PORT` until the block ends.

    Ready is a 200 of `ready_path`, or without one an accepted connection. Raises NotStarted.
    """
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        begun = time.perf_counter()
        child = _spawn(pinned([*command, "--port", str(port)], core), log)
        try:
            _wait_ready(child, log, port, ready_path, begun + timeout)
            yield Server(child.pid, port, time.perf_counter() - begun, log)
        finally:
            _stop(child)


def _spawn(command: list[str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as stream:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _wait_ready(
    child: subprocess.Popen[bytes], log: Path, port: int, path: str | None, deadline: float
) -> None:
    """Ask every 5 ms, so that the answer is at most that much later than the truth."""
    while not (_accepts(port) if path is None else _is_ok(port, path)):
        if child.poll() is not None:
            raise NotStarted(f"the server ended with {child.returncode}: {_end_of(log)}")
        if time.perf_counter() > deadline:
            raise NotStarted(f"the server was not ready in time: {_end_of(log)}")
        time.sleep(0.005)


def _end_of(log: Path) -> str:
    return log.read_text(errors="replace")[-2000:]


def get_json(port: int, path: str) -> Any:
    """The JSON content of a 200; None when the route does not exist or is not ready."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5.0)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return json.loads(answer.read()) if answer.status == 200 else None
    finally:
        connection.close()


def _accepts(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _is_ok(port: int, path: str) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2.0)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _stop(child: subprocess.Popen[bytes]) -> None:
    """SIGTERM, then SIGKILL to the whole group, so that no worker outlives its measurement."""
    child.send_signal(signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        child.wait(timeout=10.0)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
