"""One sending process: `python -m tailproof.load.sender`, started by `load.generator`.

It is told a target, then one step after another, on standard input, and answers on standard
output: length-prefixed msgpack and raw array buffers, never pickle. It ends when its input closes,
however that happens.

Requests leave when the schedule says. A late one leaves at once and shifts no other; nothing waits
for an answer. What is decided by chance (arrival times, which request) comes with the plan.

**Lost keep-alive connections.** A server may close an idle connection in the very moment in which
a request goes out on it: no fault of the service, and every client sends that request again. The
same picture (a used connection ends without a byte of an answer) is left by a worker that died
over the request, which is a lost answer and must count. They are told apart by time: servers give
up connections that were quiet for a while, and a close that was under way when the request left
arrives within a round trip. So a request is sent again, once and on a new connection, if its
connection had been idle for `RACE_IDLE_SECONDS`, gave no byte, and ended within `RACE_SECONDS` or
two handshake times of the send. It keeps its first stamps, so that the user's wait is whole;
`SenderFacts.num_retried` counts them. Everything else is LOST.
"""

import asyncio
import contextlib
import gc
import math
import os
import resource
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import uvloop

from tailproof.core.clock import monotonic
from tailproof.core.recording import (
    LOST,
    NO_SOCKET,
    NOT_CONNECTED,
    TIMED_OUT,
    UNANSWERED,
    UNSENT,
    Recording,
    columns,
)
from tailproof.load.alarm import Alarm
from tailproof.load.connection import Connection, Pool, durations
from tailproof.load.messages import (
    PREFIX,
    Aim,
    Arrays,
    Done,
    Go,
    Message,
    Prepare,
    Progress,
    Ready,
    Stop,
    decode,
    encode,
)

TICK = 0.1
"""Seconds between two looks at timeouts, and between two reports to the parent."""
POLLED = 20e-6
"""Seconds: a shorter pause than this is not worth setting the alarm."""
MAX_OPENING = 256
"""Connections that are being opened at a time: enough for thousands a second, and few enough for
the loop to turn to answers in between."""
SPARE_SOCKETS = 32
"""Descriptors that are not for connections."""
READY_PATIENCE = 5.0
"""Seconds for the connections that are opened before the first arrival."""
MAX_REPLICAS = 1_000
"""Names that are told apart in a step; a server that gives every answer a new one has no more."""
OTHER_REPLICAS = b"other"
RACE_IDLE_SECONDS = 1.0
"""No server gives up a connection that was quiet for less."""
RACE_SECONDS = 0.005
"""A loop may be as late as this to see a close that was under way."""


# --- one step -------------------------------------------------------------------------------------


class Step:
    """Sends one schedule. Use once: `await Step(...).run(start, report)`.

    What is stamped `sent` is the moment after the kernel took the request, so it is never too
    early: the send lag is not flattered. A sender that lost its core just then looks late, and the
    uncorrected time of that request short."""

    def __init__(
        self, pool: Pool, requests: tuple[bytes, ...], prepare: Prepare, arrays: Arrays
    ) -> None:
        intended = arrays["intended"]
        num = len(intended)
        self.prepare = prepare
        self._pool = pool
        self._intended = intended
        self._payload = arrays["payload"]
        self._requests = [requests[index] for index in self._payload.tolist()]
        self._due: list[float] = []
        self._next = 0

        self._woke = [math.nan] * num
        self._acquired = [math.nan] * num
        self._sent = [math.nan] * num
        self._first_byte = [math.nan] * num
        self._last = [math.nan] * num
        self._status = [UNSENT] * num
        self._received = [0] * num
        self._connection = [-1] * num
        self._fresh = [False] * num
        self._accept_wait = [0.0] * num
        self._timing: list[bytes | None] = [None] * num
        self._marks: list[tuple[bytes | None, ...] | None] = [None] * num

        self._carrier: list[Connection | None] = [None] * num
        self._waiting: deque[int] = deque()
        self._again: deque[int] = deque()
        """Those that lost a race with a close: each is sent on the next new connection."""
        self._retried: set[int] = set()
        self._left_to_server: dict[int, float] = {}
        """Since when a request has waited for the server to take a connection, and for no cap."""
        self._oldest = 0
        """What came before is over: the first that may still time out."""
        self._num_resolved = 0
        self._num_answered = 0
        self._num_in_time = 0
        self._threshold = math.inf if prepare.threshold is None else prepare.threshold
        self._max_in_flight = 0
        self._cap = math.inf if prepare.max_connections is None else prepare.max_connections
        uncapped = prepare.max_connections is None
        self._max_in_flight_allowed = most_sockets() if uncapped else math.inf
        self._loop_lag: list[float] = []
        self._over = asyncio.Event()

    async def run(self, start: float, report: Callable[[Progress], None]) -> None:
        """Second 0 is `start`. Returns when every request is resolved or the drain is over;
        `report` is called every TICK."""
        self._start, self._report = start, report
        self._loop = asyncio.get_running_loop()
        self._due = (self._intended + start).tolist()
        self._pool.owner = self
        self._alarm = Alarm(self._loop, self._rung)
        ticks = self._loop.create_task(self._tick())
        self._pace()
        if not self._due:
            self._over.set()
        with contextlib.suppress(TimeoutError):
            last = start + self.prepare.end + self.prepare.drain
            async with asyncio.timeout(last - monotonic()):
                await self._over.wait()
        self._over.set()
        self._alarm.close()
        ticks.cancel()
        self._freeze()
        await self._pool.end()

    def stop(self) -> None:
        """End now."""
        self._over.set()

    # sending

    def _rung(self) -> None:
        if self._next < len(self._due):
            self._loop_lag.append(monotonic() - self._alarmed)
        self._pace()

    def _pace(self) -> None:
        """Send all that is due; come back for the next. Never waits for an answer."""
        if self._over.is_set():
            return
        due, index, num = self._due, self._next, len(self._due)
        now = monotonic()
        while index < num and due[index] <= now:
            now = self._begin(index, now)
            index += 1
        self._next = index
        in_flight = index - self._num_resolved
        self._max_in_flight = max(self._max_in_flight, in_flight)
        if index == num:
            return
        if due[index] - now > POLLED:
            self._alarmed = due[index]
            self._alarm.set(due[index])
        else:
            self._loop.call_soon(self._pace)

    def _begin(self, index: int, now: float) -> float:
        """It is `now` this request's turn. Returns the time after."""
        self._woke[index] = now
        connection = self._pool.take()
        if connection is not None:
            return self._send(connection, index, now)
        if index - self._num_resolved >= self._max_in_flight_allowed:
            self._resolve(index, NO_SOCKET)
            return now
        self._waiting.append(index)
        if self._room():
            self._left_to_server[index] = now
            self._grow()
        return monotonic()

    def _send(self, connection: Connection, index: int, now: float) -> float:
        self._acquired[index] = now
        at = self._sent[index] = connection.send(index, self._requests[index])
        self._status[index] = UNANSWERED
        self._carrier[index] = connection
        return at

    def _grow(self) -> None:
        """Have a connection on its way for every request that needs one."""
        num_wanted = min(len(self._waiting) + len(self._again), MAX_OPENING)
        while self._pool.num_opening < num_wanted and self._room():
            self._pool.open(self.prepare.timeout)

    def _room(self) -> bool:
        """Does a declared cap allow one more connection?"""
        return self._pool.num_open < self._cap

    # what the pool tells

    def connected(self, connection: Connection) -> None:
        if self._over.is_set():
            self._pool.give(connection)
            return
        if self._again:
            index = self._again.popleft()
            connection.send(index, self._requests[index])
            self._carrier[index] = connection
        else:
            self._serve(connection)
        self._grow()

    def not_connected(self, status: int) -> None:
        if self._over.is_set():
            return
        if self._again:
            self._resolve(self._again.popleft(), status)
        elif self._waiting:
            self._resolve(self._waiting.popleft(), status)
        self._grow()

    def written(self, connection: Connection, at: float) -> None:
        """The server took its time to read the request: its part of the send lag."""
        index = connection.request_id
        assert index is not None, "a pool tells of requests"
        self._accept_wait[index] += at - self._sent[index]
        self._sent[index] = at

    def answered(self, connection: Connection, at: float) -> None:
        index = connection.request_id
        assert index is not None, "a pool tells of requests"
        if self._over.is_set():
            return
        if at - self._sent[index] > self.prepare.timeout:  # the tick has not seen it yet
            connection.abort(TIMED_OUT)
            return
        status = connection.status
        self._first_byte[index] = connection.first_byte
        self._last[index] = at
        self._received[index] = connection.received
        self._connection[index] = connection.number
        self._fresh[index] = connection.fresh
        self._timing[index] = connection.timing
        self._marks[index] = connection.marks
        self._num_answered += 1
        if (
            200 <= status < 300
            and index >= self.prepare.num_warm_up
            and at - self._due[index] <= self._threshold
        ):
            self._num_in_time += 1
        connection.done(at)
        self._resolve(index, status)
        if connection.reusable:
            self._serve(connection)
        if self._next < len(self._due) and self._due[self._next] <= at:
            self._pace()  # a batch of answers in one turn of the loop must not hold up what is due

    def lost(self, connection: Connection, status: int, at: float) -> None:
        if self._over.is_set():
            return
        index = connection.request_id
        if index is not None and self._raced(connection, index, status, at):
            self._retried.add(index)
            self._carrier[index] = None
            self._again.append(index)
        elif index is not None:
            self._connection[index] = connection.number
            self._fresh[index] = connection.fresh
            self._received[index] = connection.received
            self._first_byte[index] = connection.first_byte
            self._resolve(index, status)
        self._grow()

    def _raced(self, connection: Connection, index: int, status: int, at: float) -> bool:
        """Was the connection closed before the server can have read the request?"""
        race = max(RACE_SECONDS, 2 * connection.handshake)
        return (
            self._sent[index] - connection.idle_since >= RACE_IDLE_SECONDS
            and status == LOST
            and not connection.fresh
            and not connection.received
            and at - self._sent[index] <= race
            and index not in self._retried
        )

    def _serve(self, connection: Connection) -> None:
        """A connection is free: for whoever has waited longest."""
        if not self._waiting:
            self._pool.give(connection)
            return
        index = self._waiting.popleft()
        sent = self._send(connection, index, monotonic())
        left_at = self._left_to_server.get(index)
        if left_at is not None:
            self._accept_wait[index] = sent - left_at

    def _resolve(self, index: int, status: int) -> None:
        self._status[index] = status
        self._carrier[index] = None
        self._num_resolved += 1
        if self._num_resolved == len(self._due):
            self._over.set()

    # time passing

    async def _tick(self) -> None:
        while not self._over.is_set():
            await asyncio.sleep(TICK)
            now = monotonic()
            self._expire(now - self.prepare.timeout)
            self._report(self._progress(now))

    def _expire(self, sent_before: float) -> None:
        """Requests leave in the order of the schedule, so the oldest are the first to time out."""
        while self._oldest < self._next:
            index = self._oldest
            if self._status[index] in (UNSENT, UNANSWERED):
                if not self._sent[index] <= sent_before:
                    return
                self._time_out(index)
            self._oldest += 1

    def _time_out(self, index: int) -> None:
        carrier = self._carrier[index]
        if carrier is None:  # it waits for a connection on which to be sent again
            self._again.remove(index)
            self._resolve(index, TIMED_OUT)
        else:
            carrier.abort(TIMED_OUT)

    def _progress(self, now: float) -> Progress:
        """Good answers to requests that are not due yet count too: misses are a lower bound."""
        known_until = now - self._start - self._threshold
        first = self.prepare.num_warm_up
        overdue = int(np.searchsorted(self._intended, known_until)) - first
        return Progress(
            num_sent=self._next - len(self._waiting),
            num_answered=self._num_answered,
            num_missed=max(0, overdue - self._num_in_time),
            known_until=known_until,
        )

    # the end

    def _freeze(self) -> None:
        """What has no outcome keeps that: it was not lost, the step ended. A request that left the
        waiting to the server, by opening a connection for it, was not taken by the server."""
        for index in self._waiting:
            if index in self._left_to_server:
                self._status[index] = NOT_CONNECTED
        for index, carrier in enumerate(self._carrier):
            if carrier is not None:
                self._connection[index] = carrier.number
                self._fresh[index] = carrier.fresh
                self._received[index] = carrier.received
                self._first_byte[index] = carrier.first_byte

    def recording(self) -> Recording:
        """What happened, once `run` has returned."""
        start = self._start
        told, replicas = _told(self._timing, self._marks)
        sizes = np.array([len(request) for request in self._requests], np.int32)
        sent = np.array(self._sent) - start
        return Recording(
            intended=self._intended,
            woke=np.array(self._woke) - start,
            acquired=np.array(self._acquired) - start,
            sent=sent,
            first_byte=np.array(self._first_byte) - start,
            last=np.array(self._last) - start,
            status=np.array(self._status, np.int32),
            sent_bytes=np.where(np.isnan(sent), 0, sizes).astype(np.int32),
            received_bytes=np.array(self._received).clip(max=2**31 - 1).astype(np.int32),
            payload=self._payload,
            connection=np.array(self._connection, np.int32),
            fresh=np.array(self._fresh, np.bool_),
            accept_wait=np.array(self._accept_wait, np.float64),
            **told,
            replicas=replicas,
        )

    def facts(self) -> dict[str, Any]:
        return {
            "max_in_flight": self._max_in_flight,
            "num_connections": self._pool.max_open,
            "num_retried": len(self._retried),
        }

    @property
    def loop_lag(self) -> npt.NDArray[np.float64]:
        return np.array(self._loop_lag, np.float64)


def _told(
    timings: list[bytes | None], marks: list[tuple[bytes | None, ...] | None]
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The columns that the server's own headers fill, and the names of its replicas."""
    num = len(timings)
    told: dict[str, Any] = {
        name: np.full(num, np.nan) for name in ("queue", "batch", "infer", "total")
    }
    told |= {"batch_size": np.zeros(num, np.int32), "cold": np.zeros(num, np.bool_)}
    told["replica"] = np.full(num, -1, np.int32)
    replicas: dict[bytes, int] = {}
    for index, timing in enumerate(timings):
        if timing is not None:
            for name, seconds in durations(timing):
                told[name][index] = seconds
        mark = marks[index]
        if mark is not None:
            size, cold, replica = mark
            if size is not None and size.isdigit() and len(size) < 10:
                told["batch_size"][index] = int(size)
            told["cold"][index] = cold == b"1"
            if replica is not None:
                if len(replicas) >= MAX_REPLICAS and replica not in replicas:
                    replica = OTHER_REPLICAS
                told["replica"][index] = replicas.setdefault(replica, len(replicas))
    return told, tuple(name.decode("latin-1") for name in replicas)


# --- what the process sees of itself --------------------------------------------------------------


class Watch:
    """What this process uses from now on, for a step whose second 0 is `start`."""

    def __init__(self, start: float) -> None:
        self.gc_pauses: list[float] = []
        self._gc_began = math.nan
        gc.callbacks.append(self._on_gc)
        self._start = start
        self._usage = resource.getrusage(resource.RUSAGE_SELF)
        self._waited = run_queue_wait()

    def facts(self, ended: float) -> dict[str, Any]:
        gc.callbacks.remove(self._on_gc)
        usage, waited = resource.getrusage(resource.RUSAGE_SELF), run_queue_wait()
        before = self._usage
        return {
            "pid": os.getpid(),
            "cpu": usage.ru_utime + usage.ru_stime - before.ru_utime - before.ru_stime,
            "wall": ended - self._start,
            "run_queue_wait": (
                None if waited is None or self._waited is None else waited - self._waited
            ),
            "involuntary_switches": usage.ru_nivcsw - before.ru_nivcsw,
            "cores": tuple(sorted(os.sched_getaffinity(0))),
        }

    def _on_gc(self, phase: str, _info: dict[str, Any]) -> None:
        if phase == "start":
            self._gc_began = monotonic()
        elif not math.isnan(self._gc_began):
            self.gc_pauses.append(monotonic() - self._gc_began)


def run_queue_wait() -> float | None:
    """Seconds that this process was ready to run and had no core, so far; None: not told here."""
    try:
        return int(Path("/proc/self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return None


def no_collector() -> None:
    """Keep the garbage collector of this process out of the numbers, until `collector`."""
    gc.collect()
    gc.freeze()
    gc.disable()


def collector() -> None:
    """Undo `no_collector`."""
    gc.enable()
    gc.unfreeze()


def allow_sockets() -> None:
    """Raise the limit of open descriptors as far as this user may."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def most_sockets() -> int:
    """How many connections this process may have open."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0] - SPARE_SOCKETS


# --- the process ----------------------------------------------------------------------------------


async def session() -> None:
    """Do what the parent says until it is gone. Whatever fails ends the process."""
    incoming = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(_fail)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(incoming), sys.stdin)
    async with asyncio.TaskGroup() as group:
        running: asyncio.Task[None] | None = None
        async for message, arrays in _messages(incoming):
            match message:
                case Aim(target):
                    pool = Pool(target)
                case Prepare():
                    no_collector()
                    num_ready = min(message.ready_connections, most_sockets())
                    await pool.begin(num_ready, READY_PATIENCE)
                    step = Step(pool, target.requests, message, arrays)
                    _say(Ready())
                case Go(start):
                    running = group.create_task(_run(step, start))
                case Stop():  # it may come when the step has just ended
                    step.stop()
        if running is not None:
            running.cancel()


def _fail(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """A callback raised: a bug of ours, after which no number of this process can be trusted."""
    if not isinstance(context.get("exception"), OSError):  # a connection tells of that itself
        loop.default_exception_handler(context)
        os._exit(1)


async def _messages(incoming: asyncio.StreamReader) -> AsyncIterator[tuple[Message, Arrays]]:
    with contextlib.suppress(asyncio.IncompleteReadError):
        while True:
            num_header, num_body = PREFIX.unpack(await incoming.readexactly(PREFIX.size))
            header = await incoming.readexactly(num_header)
            yield decode(header, await incoming.readexactly(num_body))


async def _run(step: Step, start: float) -> None:
    watch = Watch(start)
    await step.run(start, _say)
    ended = monotonic()
    facts = watch.facts(ended) | step.facts()
    recording = step.recording()
    arrays: Arrays = {name: getattr(recording, name) for name in columns()}
    arrays |= {"loop_lag": step.loop_lag, "gc_pauses": np.array(watch.gc_pauses, np.float64)}
    collector()
    _say(Done(ended, recording.replicas, facts), arrays)


def _say(message: Message, arrays: Mapping[str, npt.NDArray[Any]] | None = None) -> None:
    sys.stdout.buffer.write(encode(message, arrays))
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    allow_sockets()
    uvloop.run(session())
