"""The supervisor of one model's worker processes: starts them, feeds them, replaces the dead."""

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol, cast

from tailproof.workers import frames
from tailproof.workers.cores import thread_environment

SHORT_LIFE = 30.0
"""A worker that lived less than this (seconds) is restarted with back-off."""
FIRST_DELAY = 0.5
SERVED_DELAY_LIMIT = 2.0
"""Longest back-off of a worker that had been ready: it may well serve again."""
FAILED_DELAY_LIMIT = 30.0
"""Longest back-off of a worker that never got ready."""
PATIENCE = 0.2
"""Seconds that a worker which closed its socket has to end by itself, for its exit code."""
LOAD_FAILED, STALLED, STOPPED = "load_failed", "stalled", "stopped"
"""Why a worker ended, where its exit code does not say so; the first two are its last stage too."""
MAX_OUTPUT_LINE = 64 * 2**10


class State(Enum):
    """What a worker process is doing."""

    STARTING = "starting"  # importing, loading, warming up
    READY = "ready"  # takes batches
    DEAD = "dead"  # gone; a successor is on its way


@dataclass(slots=True, eq=False)
class Worker:
    """One worker process, from its start to its end."""

    number: int
    pid: int = 0
    state: State = State.STARTING
    stage: str = "starting"
    is_cold: bool = True
    """No batch has come back from it yet."""
    in_flight: set[int] = field(default_factory=set)
    ready_at: float | None = None
    last_finished: float = 0.0
    """When it finished its previous batch, or became ready."""
    connection: "_Connection | None" = None


class Listener(Protocol):
    """Told what happens to the workers, on the event loop."""

    def worker_progress(self, worker: Worker) -> None:
        """A starting worker reached another stage."""

    def worker_ready(self, worker: Worker, loaded: frames.Loaded) -> None:
        """It takes batches from now on."""

    def worker_load_failed(self, worker: Worker, failure: frames.LoadFailed) -> None:
        """It could not load the model and ends."""

    def worker_lost(self, worker: Worker, reason: str, batch_ids: set[int]) -> None:
        """It ended and took these batches along.

        `reason`: `signal 9`, `exit 1`, ...; `load_failed` after that was told; `stalled` when it
        was replaced for it; `stopped` with the server.
        """

    def worker_restarts(self, worker: Worker, delay: float) -> None:
        """Its successor starts in `delay` seconds."""

    def worker_output(self, worker: Worker, line: str) -> None:
        """The model printed something."""

    def batch_done(
        self, worker: Worker, frame: frames.Result | frames.Failed, body: memoryview
    ) -> None:
        """One batch came back."""


def restart_delay(short_lives: int, *, was_ready: bool) -> float:
    """Seconds until the next start after `short_lives` short or failed lives in a row.

    0 after a long life, then 0.5 s, doubling.
    """
    if short_lives == 0:
        return 0.0
    limit = SERVED_DELAY_LIMIT if was_ready else FAILED_DELAY_LIMIT
    return min(FIRST_DELAY * 2.0 ** min(short_lives - 1, 16), limit)


class Pool:
    """`size` worker processes of one model. All methods are called on the event loop."""

    def __init__(
        self,
        load: frames.Load,
        size: int,
        listener: Listener,
        clock: Callable[[], float],
    ) -> None:
        self._load = load
        self._listener = listener
        self._clock = clock
        self._environment = _environment(size)
        self.workers = [Worker(number) for number in range(size)]
        self._supervisors: list[asyncio.Task[None]] = []
        self._stopping = False

    def start(self) -> None:
        """Start the worker processes and keep them running until `stop`."""
        loop = asyncio.get_running_loop()
        self._supervisors = [
            loop.create_task(self._supervise(number)) for number in range(len(self.workers))
        ]

    async def stop(self) -> None:
        """End all worker processes now, and wait until they are gone."""
        self._stopping = True
        for task in self._supervisors:
            task.cancel()
        await asyncio.gather(*self._supervisors, return_exceptions=True)

    @property
    def num_ready(self) -> int:
        """Workers that take batches now."""
        return sum(worker.state is State.READY for worker in self.workers)

    def submit(self, batch: frames.Batch, body: list[bytes]) -> Worker:
        """Hand a batch to the least busy ready worker. There must be one."""
        ready = [worker for worker in self.workers if worker.state is State.READY]
        worker = min(ready, key=lambda worker: len(worker.in_flight))
        assert worker.connection is not None
        worker.in_flight.add(batch.batch_id)
        worker.connection.send(batch, body)
        return worker

    def replace(self, worker: Worker) -> None:
        """Kill a worker that will not come back by itself; another one follows."""
        worker.stage = STALLED
        _kill_all(worker.pid)

    async def _supervise(self, number: int) -> None:
        short_lives = 0
        while True:
            worker = self.workers[number] = Worker(number)
            began = self._clock()
            try:
                await self._live(worker)
            except OSError as error:  # no process or file descriptor to be had
                failure = frames.LoadFailed(type(error).__name__, str(error), stack="")
                self._listener.worker_load_failed(worker, failure)
            was_ready, lived = worker.ready_at is not None, self._clock() - began
            short_lives = short_lives + 1 if lived < SHORT_LIFE or not was_ready else 0
            delay = restart_delay(short_lives, was_ready=was_ready)
            self._listener.worker_restarts(worker, delay)
            await asyncio.sleep(delay)

    async def _live(self, worker: Worker) -> None:
        """Run one worker process from start to end."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with theirs:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "tailproof.workers.child", str(theirs.fileno())),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                pass_fds=(theirs.fileno(),),
                env=self._environment,
                start_new_session=True,
                limit=MAX_OUTPUT_LINE,
            )
        worker.pid = process.pid
        connection = _Connection(self, worker)
        output = asyncio.create_task(self._relay(worker, process.stdout))
        try:
            await asyncio.get_running_loop().create_connection(lambda: connection, sock=ours)
            worker.connection = connection
            connection.send(self._load, [])
            with _ended(process.pid) as ended:
                await asyncio.wait({ended, connection.closed}, return_when=asyncio.FIRST_COMPLETED)
                worker.state = State.DEAD
                await asyncio.wait({ended}, timeout=PATIENCE)
        finally:
            _kill_all(process.pid)
            connection.close()
            with contextlib.suppress(TimeoutError):  # somebody may still hold its pipes
                await asyncio.wait_for(process.wait(), PATIENCE)
            self._bury(worker, process.returncode or 0)
            await asyncio.wait({output}, timeout=PATIENCE)  # its last words
            output.cancel()

    def _bury(self, worker: Worker, code: int) -> None:
        reason = f"signal {-code}" if code < 0 else f"exit {code}"
        if worker.stage in {LOAD_FAILED, STALLED}:
            reason = worker.stage
        worker.state = State.DEAD
        lost, worker.in_flight = worker.in_flight, set()
        self._listener.worker_lost(worker, STOPPED if self._stopping else reason, lost)

    def received(self, worker: Worker, frame: frames.Frame, body: memoryview) -> None:
        """A frame came from `worker` (called by its connection)."""
        match frame:
            case frames.Result() | frames.Failed():
                worker.in_flight.discard(frame.batch_id)
                self._listener.batch_done(worker, frame, body)
                worker.last_finished = frame.finished
            case frames.Progress():
                worker.stage = frame.stage
                self._listener.worker_progress(worker)
            case frames.Loaded():
                worker.state, worker.stage = State.READY, "ready"
                worker.ready_at = worker.last_finished = self._clock()
                self._listener.worker_ready(worker, frame)
            case frames.LoadFailed():
                worker.stage = LOAD_FAILED
                self._listener.worker_load_failed(worker, frame)
            case _:
                raise frames.FrameError(f"a worker does not send {type(frame).__name__}")

    async def _relay(self, worker: Worker, stream: asyncio.StreamReader | None) -> None:
        assert stream is not None
        while True:
            try:
                line = await stream.readline()
            except ValueError:  # a line over the limit: readline has dropped it
                self._listener.worker_output(worker, "[a line over 64 KiB was left out]")
                continue
            if not line:
                return
            self._listener.worker_output(worker, line.decode(errors="replace").rstrip())


class _Connection(asyncio.Protocol):
    """Our end of a worker's socket. Its end is the first sign that the worker is gone."""

    def __init__(self, pool: Pool, worker: Worker) -> None:
        self._pool = pool
        self._worker = worker
        self._reader = frames.Reader()
        self._transport: asyncio.WriteTransport | None = None
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.WriteTransport", transport)

    def data_received(self, data: bytes) -> None:
        try:
            for frame, body in self._reader.feed(data):
                self._pool.received(self._worker, frame, body)
        except frames.FrameError:
            assert self._transport is not None
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._worker.state = State.DEAD
        if not self.closed.done():
            self.closed.set_result(None)

    def close(self) -> None:
        """Give the socket up, though somebody may still hold its other end."""
        if self._transport is not None:
            self._transport.abort()

    def send(self, frame: frames.Frame, body: list[bytes]) -> None:
        assert self._transport is not None
        self._transport.write(b"".join(frames.encode(frame, body)))


def _environment(num_workers: int) -> dict[str, str]:
    """Ours, with the numeric libraries' threads limited to the cores that one worker can have."""
    # what a model prints is wanted when it prints it, not when a buffer is full
    ours = thread_environment(num_workers) | {"PYTHONUNBUFFERED": "1"}
    return {**ours, **os.environ}


@contextlib.contextmanager
def _ended(pid: int) -> Iterator[asyncio.Future[None]]:
    """Done when the process has ended. Its socket and pipes say so too late when its model has
    forked: the copies stay open."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()
    handle = os.pidfd_open(pid)

    def on_end() -> None:
        loop.remove_reader(handle)
        ended.set_result(None)

    loop.add_reader(handle, on_end)
    try:
        yield ended
    finally:
        loop.remove_reader(handle)
        os.close(handle)


def _kill_all(pid: int) -> None:
    """End the worker and whatever its model has started: the session has the worker's pid."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
