"""A fixed number of connections, each asking again as soon as it is answered.

Says what a server costs when it is always busy. Never used for response times under load: a closed
loop slows down with the server and so hides its stalls.
"""

import asyncio
import contextlib
import math
import re
import shutil
import subprocess
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import uvloop

from connection import LOST, UNANSWERED, Connection, Target, header
from open_loop import allow_sockets, no_collector
from processes import CLIENT_CORE, pinned

PATIENCE = 30.0
"""Seconds that a closed loop waits for its last answers, and `ask` for all of them."""


@dataclass(frozen=True, slots=True)
class Busy:
    """What one closed-loop run did. Counts of answers; `tool` is `wrk` or `own`."""

    seconds: float
    num_good: int
    num_bad: int
    tool: str

    @property
    def rate(self) -> float:
        """Good answers a second."""
        return self.num_good / self.seconds

    @property
    def bad_share(self) -> float:
        """Share of answers that were refusals or errors, 0-1."""
        return self.num_bad / max(1, self.num_good + self.num_bad)


@dataclass(frozen=True, slots=True)
class Answered:
    """One answer of the own closed loop: seconds from its send, status, its `Server-Timing`."""

    seconds: float
    status: int
    timing: dict[str, float]


def keep_busy(target: Target, num_connections: int, seconds: float) -> Busy:
    """Load `target` for `seconds`: with `wrk` where it is installed, else with our own client."""
    if shutil.which("wrk"):
        return _with_wrk(target, num_connections, seconds)
    return keep_busy_ourselves(target, num_connections, seconds)


def keep_busy_ourselves(target: Target, num_connections: int, seconds: float) -> Busy:
    """The same with our own client, which costs about ten times the CPU of `wrk`."""
    return uvloop.run(_own(target, num_connections, seconds))


def ask(
    target: Target, num: int, num_connections: int = 1, patience: float = PATIENCE
) -> tuple[Answered, ...]:
    """`num` requests, at most `num_connections` at a time; answers in order of completion.

    What is unanswered after `patience` seconds comes last, with infinite time and status 0.
    """

    async def session() -> tuple[Answered, ...]:
        loop = _ClosedLoop(target, num_requests=num)
        await loop.run(num_connections, None, patience)
        return tuple(loop.answers)

    with no_collector():
        return uvloop.run(session())


def server_timing(value: str | None) -> dict[str, float]:
    """`queue;dur=0.1, infer;dur=3.2` (milliseconds) -> {"queue": 0.0001, "infer": 0.0032}."""
    found = re.findall(r"([\w-]+)\s*;\s*dur=([0-9.]+)", value or "")
    return {name: float(number) / 1e3 for name, number in found}


# --- wrk ------------------------------------------------------------------------------------------

_SCRIPT = """
local requests = {%s}
local n = 0
request = function()
  n = n %% #requests + 1
  return requests[n]
end
"""


def _with_wrk(target: Target, num_connections: int, seconds: float) -> Busy:
    quoted = ",\n".join(_lua(request) for request in target.requests)
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "bodies.lua"
        script.write_text(_SCRIPT % quoted)
        command = ["wrk", "-t1", f"-c{num_connections}", f"-d{round(seconds)}s", "--timeout", "30s"]
        command += ["-s", str(script), f"http://{target.host}:{target.port}/"]
        done = subprocess.run(
            pinned(command, CLIENT_CORE), capture_output=True, text=True, check=True
        )
    return read_wrk(done.stdout)


def _lua(request: bytes) -> str:
    """A Lua string of these bytes, whatever they are."""
    return '"' + "".join(f"\\{byte:03d}" for byte in request) + '"'


def read_wrk(output: str) -> Busy:
    """What wrk printed; its socket errors are bad answers. Raises ValueError without a total."""
    total = re.search(r"(\d+) requests in ([\d.]+)(ms|s|m)", output)
    if total is None:
        raise ValueError(f"wrk printed no total: {output}")
    bad = re.search(r"Non-2xx or 3xx responses: (\d+)", output)
    broken = re.search(r"Socket errors: connect (\d+), read (\d+), write (\d+)", output)
    num_bad = int(bad[1]) if bad else 0
    num_broken = sum(map(int, broken.groups())) if broken else 0
    seconds = float(total[2]) * {"ms": 1e-3, "s": 1.0, "m": 60.0}[total[3]]
    return Busy(seconds, int(total[1]) - num_bad, num_bad + num_broken, "wrk")


# --- our own --------------------------------------------------------------------------------------


async def _own(target: Target, num_connections: int, seconds: float) -> Busy:
    loop = _ClosedLoop(target)
    elapsed = await loop.run(num_connections, seconds, PATIENCE)
    good = sum(num for status, num in loop.statuses.items() if 200 <= status < 300)
    return Busy(elapsed, good, loop.statuses.total() - good, "own")


class _ClosedLoop:
    """Owner of the connections. Answers are kept only when a number of requests is asked for."""

    def __init__(self, target: Target, num_requests: int | None = None) -> None:
        allow_sockets()
        self._target = target
        self._num_left = num_requests
        self._next = 0
        self._keep = num_requests is not None
        self._sent_at: dict[Connection, float] = {}
        self._stopping = False
        self._over = asyncio.Event()
        self.statuses: Counter[int] = Counter()
        self.answers: list[Answered] = []

    async def run(self, num_connections: int, seconds: float | None, patience: float) -> float:
        """Run for `seconds` or until the requests are used up; returns the seconds it took.

        What is unanswered `patience` seconds later is counted as such, and left.
        """
        loop, target = asyncio.get_running_loop(), self._target
        start = time.perf_counter()
        opened = [
            await loop.create_connection(lambda: Connection(self), target.host, target.port)
            for _ in range(num_connections)
        ]
        if seconds is not None:
            loop.call_later(seconds, self._stop)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout((seconds or 0.0) + patience):
                await self._over.wait()
        elapsed = time.perf_counter() - start
        self._give_up()
        for transport, _ in opened:
            transport.abort()
        await asyncio.sleep(0.01)
        return elapsed

    def _give_up(self) -> None:
        self._stopping = True
        self.statuses[UNANSWERED] += len(self._sent_at)
        if self._keep:
            self.answers += [Answered(math.inf, UNANSWERED, {})] * len(self._sent_at)
        self._sent_at.clear()

    def _stop(self) -> None:
        self._stopping = True

    def connected(self, connection: Connection) -> None:
        self._ask(connection)

    def _ask(self, connection: Connection) -> None:
        if self._stopping or self._num_left == 0:
            self._sent_at.pop(connection, None)
            if not self._sent_at:
                self._over.set()
            return
        if self._num_left is not None:
            self._num_left -= 1
        request = self._target.requests[self._next % len(self._target.requests)]
        self._next += 1
        self._sent_at[connection] = time.perf_counter()
        connection.send(self._next, request)

    def answered(self, connection: Connection, status: int, answer: bytes, at: float) -> None:
        connection.request_id = None
        self.statuses[status] += 1
        if self._keep:
            timing = server_timing(header(answer, "server-timing"))
            self.answers.append(Answered(at - self._sent_at[connection], status, timing))
        self._ask(connection)

    def lost(self, connection: Connection) -> None:
        """Counted, and not opened again: a server that does this to a closed loop is broken."""
        if self._sent_at.pop(connection, None) is not None:
            self.statuses[LOST] += 1
        if not self._sent_at:
            self._over.set()
