"""A server under test as a real process: start, wait on conditions, watch, kill, stop."""

import asyncio
import inspect
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import IO, Any

from . import processes
from .http_client import HOST, NoAnswer, ask

TAILPROOF = (sys.executable, "-m", "tailproof", "serve")
FLAWED = (sys.executable, str(Path(__file__).with_name("flawed_server.py")))

START_TIMEOUT = 30.0
EXIT_TIMEOUT = 30.0
TAIL_LINES = 25


class ServerDied(AssertionError):
    """The process ended while the test needed it."""


def free_port() -> int:
    """A port that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


class Server:
    """One server process and its captured output.

    Times are seconds. `forked` is the monotonic time at which the process was started.
    """

    def __init__(
        self,
        folder: Path,
        source: str,
        flags: Sequence[str] = (),
        *,
        command: Sequence[str] = TAILPROOF,
        unread_stdout: bool = False,
        haste: float = 1.0,
    ) -> None:
        self.port = free_port()
        self.name = "m"
        self.stdout_path = folder / f"stdout-{self.port}.log"
        self.stderr_path = folder / f"stderr-{self.port}.log"
        self.arguments = [
            *command,
            *([source] if source else []),
            *("--name", self.name, "--port", str(self.port), "--log-format", "json"),
            *flags,
        ]
        self.haste = haste
        """What the waits of a check are multiplied with: a server that is known to be flawed need
        not be waited for as long as one that is expected to keep its promise."""
        self._folder = folder
        self.may_end = False
        """The test has asked for the end of the process, or expects it."""
        self._unread_stdout = unread_stdout
        self._workers_seen: dict[int, str] = {}
        self.forked = time.monotonic()
        self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        with self.stdout_path.open("wb") as stdout, self.stderr_path.open("wb") as stderr:
            target: IO[bytes] | int = subprocess.PIPE if self._unread_stdout else stdout
            return subprocess.Popen(
                self.arguments,
                stdin=subprocess.DEVNULL,
                stdout=target,
                stderr=stderr,
                cwd=self._folder,
                env={k: v for k, v in os.environ.items() if not k.startswith("TAILPROOF_")},
            )

    @property
    def pid(self) -> int:
        """Process id of the front."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative: the signal that ended it."""
        return self._process.poll()

    def workers(self) -> list[int]:
        """Process ids of the live model processes, oldest first."""
        alive = [pid for pid in processes.children(self.pid) if processes.started(pid)]
        self._workers_seen |= {pid: born for pid in alive if (born := processes.started(pid))}
        return sorted(alive, key=lambda pid: int(self._workers_seen.get(pid, "0")))

    def orphans(self) -> list[int]:
        """Every process that was ever seen as a worker and still runs."""
        return [pid for pid, born in self._workers_seen.items() if processes.started(pid) == born]

    def zombies(self) -> list[int]:
        """Children that ended and that nobody has waited for."""
        return [pid for pid, state in processes.children(self.pid).items() if state == "Z"]

    def worker(self) -> int:
        """The process id of the only worker."""
        [pid] = self.workers()
        return pid

    def terminate(self) -> float:
        """SIGTERM to the front; returns the time of it."""
        self.workers()
        self.may_end = True
        self._process.send_signal(signal.SIGTERM)
        return time.monotonic()

    def kill(self) -> float:
        """SIGKILL to the front alone; returns the time of it."""
        self.workers()
        self.may_end = True
        self._process.kill()
        return time.monotonic()

    async def until(
        self,
        condition: Callable[[], Any | Awaitable[Any]],
        what: str,
        within: float = START_TIMEOUT,
        every: float = 0.01,
    ) -> Any:
        """Poll `condition` until it gives something true; returns that.

        Raises AssertionError naming `what` after `within`, ServerDied when the process ends.
        """
        within *= self.haste
        deadline = time.monotonic() + within
        while True:
            found = condition()
            if inspect.isawaitable(found):
                found = await found
            if found:
                return found
            if not self.may_end and self.exit_code is not None:
                raise ServerDied(f"exit code {self.exit_code} before: {what}\n{self.tail()}")
            if time.monotonic() > deadline:
                raise AssertionError(f"not within {within:g} s: {what}\n{self.tail()}")
            await asyncio.sleep(every)

    async def until_ready(self, within: float = START_TIMEOUT) -> None:
        """Wait until `/health` says 200."""

        async def ready() -> bool:
            try:
                return (await ask(self.port, "GET", "/health")).status == 200
            except NoAnswer:
                return False

        await self.until(ready, "GET /health answers 200", within)

    async def until_exit(self, within: float = EXIT_TIMEOUT) -> int:
        """Wait for the end of the process; returns its exit code."""
        self.may_end = True
        await self.until(lambda: self.exit_code is not None, "the process ends", within)
        code = self.exit_code
        assert code is not None
        return code

    async def until_orphans_end(self, within: float = 10.0) -> None:
        """Wait until every worker that was ever seen has ended, whatever became of the front."""
        await self.until(
            lambda: not self.orphans(),
            "the worker processes end",
            within,
        )

    def stop(self) -> None:
        """SIGTERM, then SIGKILL after a while; kills workers that outlive the front."""
        self.workers()
        if self.exit_code is None:
            self.may_end = True
            self._process.terminate()
            try:
                self._process.wait(EXIT_TIMEOUT if self.haste == 1.0 else 0.1)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        for pid in self.orphans():
            processes.kill(pid)

    def lines(self) -> list[str]:
        """Complete lines on stdout so far."""
        return self.stdout_path.read_text(errors="replace").split("\n")[:-1]

    def records(self) -> list[dict[str, Any]]:
        """Every line on stdout as the JSON object it must be. Raises AssertionError if not."""
        found = []
        for line in self.lines():
            try:
                record = json.loads(line)
            except ValueError:
                raise AssertionError(f"a line on stdout is not JSON: {line[:200]!r}") from None
            assert isinstance(record, dict), f"a line on stdout is no object: {line[:200]!r}"
            found.append(record)
        return found

    def access_records(self) -> list[dict[str, Any]]:
        """The records of requests."""
        return [record for record in self.records() if record.get("event.name") == "request"]

    def tail(self) -> str:
        """The end of both logs."""
        parts = []
        for path in (self.stdout_path, self.stderr_path):
            lines = path.read_text(errors="replace").splitlines()[-TAIL_LINES:]
            parts.append("\n".join([f"--- {path.name} (last {TAIL_LINES} lines)", *lines]))
        return "\n".join(parts)
