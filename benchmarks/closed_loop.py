"""A fixed number of connections, each asking again as soon as it is answered.

Says what a server costs when it is always busy. Never used for response times under load: a closed
loop slows down with the server and so hides its stalls.
"""

import asyncio
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import uvloop

from processes import CLIENT_CORE, pinned
from tailproof.core.clock import monotonic
from tailproof.load.connection import Connection, Pool
from tailproof.load.target import Target

PATIENCE = 5.0
"""Seconds for the connections that are opened at the start."""


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


def keep_busy(target: Target, num_connections: int, seconds: float) -> Busy:
    """Load `target` for `seconds`: with `wrk` where it is installed, else with our own client."""
    if shutil.which("wrk"):
        return _with_wrk(target, num_connections, seconds)
    return keep_busy_ourselves(target, num_connections, seconds)


def keep_busy_ourselves(target: Target, num_connections: int, seconds: float) -> Busy:
    """The same with our own client."""
    return uvloop.run(_own(target, num_connections, seconds))


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
    pool, loop = Pool(target), _ClosedLoop(target.requests)
    await pool.begin(num_connections, PATIENCE)
    pool.owner = loop
    start = monotonic()
    while (connection := pool.take()) is not None:
        loop.ask(connection)
    await asyncio.sleep(seconds)
    elapsed = monotonic() - start
    await pool.end()
    await pool.close()
    good = sum(num for status, num in loop.statuses.items() if 200 <= status < 300)
    return Busy(elapsed, good, loop.statuses.total() - good, "own")


class _ClosedLoop:
    """The user of a pool. A connection that ends is counted and not opened again: a server that
    does this to a closed loop is broken."""

    def __init__(self, requests: tuple[bytes, ...]) -> None:
        self._requests = cycle(requests)
        self.statuses: Counter[int] = Counter()

    def ask(self, connection: Connection) -> None:
        connection.send(connection.number, next(self._requests))

    def answered(self, connection: Connection, at: float) -> None:
        self.statuses[connection.status] += 1
        connection.done(at)
        if connection.reusable:
            self.ask(connection)

    def lost(self, connection: Connection, status: int, at: float) -> None:
        if connection.request_id is not None:
            self.statuses[status] += 1

    def connected(self, connection: Connection) -> None:
        """All were open before the loop began."""

    def not_connected(self, status: int) -> None:
        """Likewise."""

    def written(self, connection: Connection, at: float) -> None:
        """When does not matter."""
