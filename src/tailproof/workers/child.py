"""The model process: loads one model, then computes batch after batch until its socket closes.

Started as `python -m tailproof.workers.child FD`, with FD one end of a socket pair. It never sees
HTTP; it ends when the front process does, however that happens.
"""

import ctypes
import gc
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Iterator

import numpy as np

from tailproof.core.errors import TailproofError
from tailproof.models.runtimes import load
from tailproof.models.runtimes.base import Columns, LoadedModel, Runtime
from tailproof.workers import frames
from tailproof.workers.pauses import GcPauses

WARMUP_REPEATS = 3
WARMUP_SECONDS = 10.0
"""No further batch size is tried once the warm-up has taken this long."""

STACK_FRAMES = 5
STACK_CHARACTERS = 4000
"""What of a stack goes to the log, from its end: enough to find the line."""

_READ_BYTES = 1 << 20
_PR_SET_PDEATHSIG = 1


def main() -> int:
    """Serve the socket whose file descriptor is the first argument."""
    _end_with_parent()
    with socket.socket(fileno=int(sys.argv[1])) as connection:
        incoming = _receive(connection)
        order, _ = next(incoming)
        assert isinstance(order, frames.Load), "the front sends Load first"
        runtime = _prepare(connection, order)
        if runtime is None:
            return 1
        _compute(connection, incoming, runtime)
    return 0


def _prepare(connection: socket.socket, order: frames.Load) -> Runtime | None:
    """Load and warm up, and tell the front how it went."""

    def progress(stage: str) -> None:
        _send(connection, frames.Progress(stage))

    begin = time.monotonic()
    try:
        loaded = load(order.spec, progress)
        load_seconds = time.monotonic() - begin
        progress("warming up")
        begin = time.monotonic()
        samples = warm_up(loaded, order.warmup_rows, order.longest_batch)
    except Exception as error:  # noqa: BLE001  the model's own code may raise anything
        ours = isinstance(error, TailproofError) and error.__cause__ is None
        stack = None if ours else stack_of(error)
        _send(connection, frames.LoadFailed(type(error).__name__, message_of(error), stack))
        return None
    warmup_seconds = time.monotonic() - begin
    gc.collect()
    gc.freeze()
    _send(connection, frames.Loaded(loaded.manifest, load_seconds, warmup_seconds, samples))
    return loaded.runtime


def warm_up(
    loaded: LoadedModel, sizes: tuple[int, ...], longest: float
) -> tuple[tuple[int, float, float], ...]:
    """Run the example at each batch size, smallest first: (rows, seconds, CPU seconds) of each run.

    Sizes over the model's own maximum are skipped, and those beyond the first that never took
    less than `longest` seconds: no such batch will be formed. Raises what the model raises.
    """
    limit = loaded.manifest.max_rows or max(sizes, default=1)
    begin = time.monotonic()
    samples = []
    for rows in sorted({min(size, limit) for size in sizes}):
        columns = _repeat(loaded.example, rows)
        runs = [_timed(loaded.runtime, columns, rows) for _ in range(WARMUP_REPEATS)]
        samples += [(rows, seconds, cpu) for seconds, cpu in runs]
        if min(runs)[0] > longest or time.monotonic() - begin > WARMUP_SECONDS:
            break
    return tuple(samples)


def _timed(runtime: Runtime, columns: Columns, rows: int) -> tuple[float, float]:
    """Seconds by the clock, and of this process's CPU time."""
    started, cpu = time.monotonic(), time.process_time()
    runtime.predict(columns, rows)
    return time.monotonic() - started, time.process_time() - cpu


def message_of(error: BaseException) -> str:
    """What an exception says, whatever that is: short, and text that can be sent."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001  even this is the model's own code
        text = "an exception without words"
    return _sendable(text[:STACK_CHARACTERS])


def stack_of(error: BaseException) -> str:
    """The innermost frames of an exception and of what caused it, ending in its message."""
    lines = traceback.format_exception(error, limit=-STACK_FRAMES)
    return _sendable("".join(lines)[-STACK_CHARACTERS:])


def _sendable(text: str) -> str:
    return text.encode(errors="replace").decode()


def _compute(
    connection: socket.socket,
    incoming: Iterator[tuple[frames.Frame, memoryview]],
    runtime: Runtime,
) -> None:
    """Answer each batch with a Result or a Failed, in order, until the front closes."""
    pauses = GcPauses()
    pauses.attach()
    for batch, body in incoming:
        assert isinstance(batch, frames.Batch), "after loading the front sends batches only"
        paused, cpu = pauses.total_seconds, time.process_time()
        started = time.monotonic()
        try:
            outputs = runtime.predict(frames.unpack(batch.columns, body), batch.num_rows)
            finished = time.monotonic()
            if not outputs:
                raise ValueError("the model gave no output")
            described, data = frames.pack(outputs)
            result = frames.Result(
                batch_id=batch.batch_id,
                started=started,
                finished=finished,
                cpu_seconds=time.process_time() - cpu,
                gc_seconds=pauses.total_seconds - paused,
                outputs=described,
            )
            reply = frames.encode(result, data)
        except Exception as error:  # noqa: BLE001  the model's own code may raise anything
            stamps = (started, time.monotonic())
            reason = (type(error).__name__, message_of(error), stack_of(error))
            reply = frames.encode(frames.Failed(batch.batch_id, *stamps, *reason))
        connection.sendall(b"".join(reply))


def _repeat(example: Columns, rows: int) -> Columns:
    return {name: np.resize(values, rows) for name, values in example.items()}


def _receive(connection: socket.socket) -> Iterator[tuple[frames.Frame, memoryview]]:
    reader = frames.Reader()
    while data := connection.recv(_READ_BYTES):
        yield from reader.feed(data)


def _send(connection: socket.socket, frame: frames.Frame, body: list[bytes] | None = None) -> None:
    connection.sendall(b"".join(frames.encode(frame, body or [])))


def _end_with_parent() -> None:
    """Leave the end of this process to the front: it closes the socket or sends SIGKILL.

    SIGTERM and SIGINT often reach a whole process group while the front still drains. Should the
    front be killed while the model computes, the kernel ends this process.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if sys.platform == "linux":
        parent = os.getppid()
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the kernel was told
            sys.exit(0)


if __name__ == "__main__":
    try:
        code = main()
        sys.stdout.flush()
        os._exit(code)  # the model's libraries may take seconds to tear themselves down
    except (BrokenPipeError, ConnectionResetError, StopIteration):
        sys.exit(0)  # the front is gone; there is nobody to tell
