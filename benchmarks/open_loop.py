"""A small open-loop HTTP client: requests leave when the schedule says, whatever the server does.

    python benchmarks/open_loop.py http://127.0.0.1:8000/predict --rate 500/s --for 10s
    python benchmarks/open_loop.py --ceiling       # how fast is the client itself, a core each

Arrival times are computed before the step and never shifted. Response time counts from the
intended start; the time from the send stands beside it, labelled uncorrected. Whatever got no good
answer (error, refusal, lost, unanswered, unsent) is a miss: an infinite response time, so that a
percentile whose rank falls on one is None. Results taken while the client itself ran late are
marked INVALID.
"""

import argparse
import asyncio
import contextlib
import errno
import gc
import json
import math
import resource
import sys
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import uvloop

from alarm import Alarm
from connection import LOST, NO_SOCKET, NOT_CONNECTED, UNANSWERED, Connection, Target
from machine import facts, print_facts
from payloads import fraud_bodies
from processes import (
    CLIENT_CORE,
    SERVER_CORE,
    foreign_work,
    pin_client,
    started,
    stop_cleanly,
    wait_quiet,
)
from steps import HEADING, Recording, Schedule, Step, describe, details, judge, steady
from tailproof.core.slo import Latency, parse
from tailproof.core.units import format_duration, parse_duration, parse_rate

POLLED = 20e-6
"""Seconds: a shorter pause than this is not worth setting the alarm."""
READY_TIMEOUT = 5.0
"""Seconds for the connections that are opened before the first arrival."""
CEILING_START = 8000.0
"""A second: where the measurement of the client itself begins."""

# --- sending --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Rules:
    """How a step is sent, beside its schedule."""

    drain: float = 2.0
    """Seconds after the last arrival; what is unanswered then is a miss."""
    max_connections: int | None = None
    """None: as many as needed. A cap makes requests wait in the client, which is send lag."""
    ready_connections: int = 0
    """Opened before the first arrival; more are opened when all are in use."""
    give_up: Latency | None = None
    """Stop as soon as this SLO is certain to be broken."""


class OpenLoop:
    """Sends one schedule. Use once: `await OpenLoop(...).run()`."""

    def __init__(
        self, target: Target, schedule: Schedule, rng: np.random.Generator, rules: Rules
    ) -> None:
        num = len(schedule.offsets)
        self._target, self._schedule, self._rules = target, schedule, rules
        choice = rng.integers(len(target.requests), size=num).tolist()
        self._requests = [target.requests[index] for index in choice]
        self._due: list[float] = []
        self._first = schedule.num_warm_up
        self._next = 0
        self._sent = [math.nan] * num
        self._last = [math.nan] * num
        self._status = [UNANSWERED] * num
        self._accept_wait = [0.0] * num
        self._opened_at: dict[int, float] = {}
        self._waiting: deque[int] = deque()
        self._idle: list[Connection] = []
        self._open: set[Connection] = set()
        self._connecting: set[asyncio.Task[None]] = set()
        self._num_resolved = 0
        self._max_open = 0
        self._over = asyncio.Event()
        self._all_closed = asyncio.Event()
        self._stopped_at: float | None = None
        self._num_in_time = 0
        self._threshold = rules.give_up.threshold if rules.give_up else math.inf

    async def run(self) -> Recording:
        self._loop = asyncio.get_running_loop()
        await self._open_ready()
        start = time.perf_counter() + 0.05
        self._due = (self._schedule.offsets + start).tolist()
        give_up = self._loop.create_task(self._watch(start)) if self._rules.give_up else None
        self._alarm = Alarm(self._loop, self._pace)
        self._pace()
        limit = self._schedule.end + self._rules.drain + 0.05
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit):
                await self._over.wait()
        self._alarm.close()
        if give_up is not None:
            give_up.cancel()
        await self._close()
        return self._recording(start)

    async def _open_ready(self) -> None:
        for _ in range(self._rules.ready_connections):
            self._connect()
        if self._connecting:
            await asyncio.wait(self._connecting, timeout=READY_TIMEOUT)

    def _pace(self) -> None:
        """Send all that is due; come back for the next. Never waits for an answer."""
        if self._over.is_set():
            return
        due, index, num = self._due, self._next, len(self._due)
        now = time.perf_counter()
        while index < num and due[index] <= now:
            self._begin(index)
            index += 1
        self._next = index
        if index == num:
            return
        pause = due[index] - time.perf_counter()
        if pause > POLLED:
            self._alarm.set(due[index])
        else:
            self._loop.call_soon(self._pace)

    def _begin(self, index: int) -> None:
        while self._idle:
            connection = self._idle.pop()
            if connection.reusable:
                self._send(connection, index)
                return
        self._waiting.append(index)
        if self._connect():
            self._opened_at[index] = time.perf_counter()

    def _send(self, connection: Connection, index: int) -> None:
        self._sent[index] = time.perf_counter()
        connection.send(index, self._requests[index])

    def _connect(self) -> bool:
        """Open one more connection, unless a declared cap forbids it."""
        num = len(self._open) + len(self._connecting)
        cap = self._rules.max_connections
        if cap is not None and num >= cap:
            return False
        task = self._loop.create_task(self._opening())
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)
        return True

    async def _opening(self) -> None:
        target = self._target
        try:
            await self._loop.create_connection(lambda: Connection(self), target.host, target.port)
        except OSError as error:
            if self._waiting:
                self._resolve(self._waiting.popleft(), _refusal(error))

    # what Connection tells its owner

    def connected(self, connection: Connection) -> None:
        if self._over.is_set():  # it was on its way when the step ended
            connection.abort()
            return
        self._open.add(connection)
        self._max_open = max(self._max_open, len(self._open))
        self._free(connection)

    def answered(self, connection: Connection, status: int, answer: bytes, at: float) -> None:
        index = connection.request_id
        assert index is not None
        connection.request_id = None
        self._last[index] = at
        self._resolve(index, status)
        if (
            200 <= status < 300
            and index >= self._first
            and at - self._due[index] <= self._threshold
        ):
            self._num_in_time += 1
        if connection.reusable:
            self._free(connection)

    def lost(self, connection: Connection) -> None:
        self._open.discard(connection)
        if not self._open:
            self._all_closed.set()
        if connection.request_id is not None:
            self._resolve(connection.request_id, LOST)
        if not self._over.is_set() and len(self._connecting) < len(self._waiting):
            self._connect()

    def _free(self, connection: Connection) -> None:
        if not self._waiting:
            self._idle.append(connection)
            return
        index = self._waiting.popleft()
        self._send(connection, index)
        opened_at = self._opened_at.pop(index, None)
        if opened_at is not None:
            self._accept_wait[index] = self._sent[index] - opened_at

    def _resolve(self, index: int, status: int) -> None:
        self._status[index] = status
        self._num_resolved += 1
        if self._num_resolved == len(self._due):
            self._over.set()

    # ending

    async def _watch(self, start: float) -> None:
        """Give up once more requests are overdue than the whole step may miss.

        Good answers to requests that are not due yet count too, so the misses are a lower bound.
        """
        offsets, first, slo = self._schedule.offsets, self._first, self._rules.give_up
        assert slo is not None
        allowed = (1.0 - slo.objective) * (len(offsets) - first)
        while not self._over.is_set():
            await asyncio.sleep(0.1)
            known_until = time.perf_counter() - start - slo.threshold
            overdue = int(np.searchsorted(offsets, known_until)) - first
            if overdue - self._num_in_time > allowed:
                self._stopped_at = known_until
                self._over.set()

    async def _close(self) -> None:
        self._over.set()
        for task in tuple(self._connecting):
            task.cancel()
        if self._connecting:
            await asyncio.wait(self._connecting)
        # Frozen before the connections go: what is unanswered stays unanswered, not lost.
        self._all_closed.clear()
        self._final = np.array(self._status, dtype=np.int16)
        for connection in tuple(self._open):
            connection.abort()
        if self._open:
            await self._all_closed.wait()

    def _recording(self, start: float) -> Recording:
        sent = np.array(self._sent) - start
        lag = sent - self._schedule.offsets
        return Recording(
            schedule=self._schedule,
            sent=sent,
            last=np.array(self._last) - start,
            status=self._final,
            own_lag=lag - np.array(self._accept_wait),
            num_connections=self._max_open,
            stopped_at=self._stopped_at,
        )


def _refusal(error: OSError) -> int:
    ours = (errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS, errno.ENOMEM)
    return NO_SOCKET if error.errno in ours else NOT_CONNECTED


@contextlib.contextmanager
def no_collector() -> Iterator[None]:
    """Keep this process's garbage collector out of the numbers."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


def allow_sockets() -> None:
    """Raise the limit of open descriptors as far as this user may."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def send(
    target: Target, schedule: Schedule, rng: np.random.Generator, rules: Rules | None = None
) -> Recording:
    """Send `schedule` to `target` on a loop of its own; `rng` chooses the bodies."""
    allow_sockets()

    async def session() -> Recording:
        return await OpenLoop(target, schedule, rng, rules or Rules()).run()

    with no_collector():
        return uvloop.run(session())


# --- command --------------------------------------------------------------------------------------


def ceiling(slo: Latency, seconds: float, seed: int) -> list[Step]:
    """Steps of growing rate against a null server on the other core, until the client runs late.

    A rate counts as out of reach after three late steps: others work on this machine too.
    """
    script = Path(__file__).with_name("null_server.py")
    steps: list[Step] = []
    with started([sys.executable, str(script)], core=SERVER_CORE) as server:
        target = Target.of(f"http://127.0.0.1:{server.port}/predict", fraud_bodies(seed))
        rate, num_late = CEILING_START, 0
        while num_late < 3:
            rng = np.random.default_rng([seed, len(steps)])
            schedule = steady("poisson", rate, 1.0, seconds, rng)
            wait_quiet(5.0)
            with foreign_work(server.pid) as foreign:
                steps.append(judge(send(target, schedule, rng), slo))
            print(f"{describe(steps[-1])}; {foreign}", file=sys.stderr)
            late = steps[-1].verdict != "PASS"
            rate, num_late = (rate, num_late + 1) if late else (rate * 1.2, 0)
    return steps


def latency(text: str) -> Latency:
    """`p95 < 50ms`. Raises ValueError for any other kind of SLO."""
    found = parse(text)
    if not isinstance(found, Latency):
        raise ValueError(f"expected an SLO such as 'p95 < 50ms'; got {text!r}")
    return found


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    options.add_argument("url", nargs="?")
    options.add_argument("--ceiling", action="store_true", help="measure the client itself")
    options.add_argument("--rate", type=parse_rate, default=100.0)
    options.add_argument("--for", dest="seconds", type=parse_duration, default=5.0)
    options.add_argument("--warm-up", type=parse_duration, default=1.0)
    options.add_argument("--arrivals", choices=("poisson", "constant"), default="poisson")
    options.add_argument("--data", type=Path, help="one JSON body a line; default: fraud bodies")
    options.add_argument("--slo", type=latency, default=Latency(95.0, 0.050), help="p95 < 50ms")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--json", action="store_true", help="one JSON document on stdout")
    return options


def main() -> None:
    options = parser()
    args = options.parse_args()
    if args.url is None and not args.ceiling:
        options.error("a URL or --ceiling is needed")
    stop_cleanly()
    pin_client()
    known = facts(args.seed)
    print_facts(known)
    print(f"warm-up of {format_duration(args.warm_up)} before each step, excluded", file=sys.stderr)
    print(HEADING, file=sys.stderr)
    steps = ceiling(args.slo, args.seconds, args.seed) if args.ceiling else [_one(args)]
    if not args.ceiling:
        print(describe(steps[0]), file=sys.stderr)
        print("\n".join(details(steps[0])), file=sys.stderr)
    passed = [step.offered for step in steps if step.verdict == "PASS"]
    best = max(passed, default=None)
    if args.ceiling:
        print(f"client ceiling on core {CLIENT_CORE}: {best or 0:.0f}/s", file=sys.stderr)
    if args.json:
        document = {"machine": known, "ceiling": best if args.ceiling else None}
        print(json.dumps(document | {"steps": [asdict(step) for step in steps]}, indent=2))


def _one(args: Any) -> Step:
    rng = np.random.default_rng(args.seed)
    bodies = tuple(args.data.read_bytes().splitlines()) if args.data else fraud_bodies(args.seed)
    schedule = steady(args.arrivals, args.rate, args.warm_up, args.seconds, rng)
    return judge(send(Target.of(args.url, bodies), schedule, rng), args.slo)


if __name__ == "__main__":
    main()
