"""Servers whose truth is known: what a load test must say about them can be computed.

    python known_servers.py KIND --log FILE [--service 10ms ...]

prints the port it listens on and answers every POST; anything else is 404. What a server really
did goes to the log, one JSON object a line, times on the monotonic clock, which all processes of
a machine share: so an oracle can use the times it took, not those it was asked for.
"""

import argparse
import asyncio
import json
import math
import random
import signal
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

KINDS = (
    "queue",  # one worker that takes up to --max-rows at once: --service + --per-row * rows
    "constant",  # --service for each, however many there are
    "plain",  # the same, log-normal: median --service, --spread
    "gc",  # the same, constant, and the whole server stops for --stall every --stall-every
    "cold",  # the same, and the very first takes --first and says X-Cold
    "refusing",  # the same, and every --every-th is told 503 at once
    "broken",  # the same, and every --every-th meets --fault
)
FAULTS = ("garbage", "closes", "half-body", "slow-headers", "silent", "500")
HEADER_PAUSE = 0.1
"""Seconds between two pieces of a slow head. There are five."""

Answer = Callable[..., None]


def seconds(text: str) -> float:
    """`30ms`, `2s` -> seconds."""
    return float(text[:-2]) / 1000 if text.endswith("ms") else float(text[:-1])


def read_settings(arguments: list[str] | None = None) -> argparse.Namespace:
    """From the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--port", type=int, default=0)
    for name in ("service", "per-row", "first", "stall"):
        parser.add_argument(f"--{name}", type=seconds, default=0.0)
    parser.add_argument("--stall-at", type=seconds, help="after the first request")
    parser.add_argument("--stall-every", type=seconds, default=2.0)
    parser.add_argument("--spread", type=float, default=0.5, help="sigma of the log-normal")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--max-rows", type=int, default=1)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--fault", choices=FAULTS)
    return parser.parse_args(arguments)


class Log:
    """JSON lines, each complete as soon as it is written."""

    def __init__(self, path: Path) -> None:
        self._file: IO[str] = path.open("w", buffering=1)

    def write(self, **record: Any) -> None:
        """One line."""
        self._file.write(json.dumps(record) + "\n")


class Connection(asyncio.Protocol):
    """One keep-alive connection; a request is handed on when its body is complete."""

    def __init__(self, arrive: Callable[["Connection"], None]) -> None:
        self._arrive = arrive
        self._buffer = b""
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (head_end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = self._buffer[:head_end].lower()
            _, found, rest = head.partition(b"\r\ncontent-length:")
            body_end = head_end + 4 + (int(rest.split(b"\r\n", 1)[0]) if found else 0)
            if len(self._buffer) < body_end:
                return
            self._buffer = self._buffer[body_end:]
            if head.startswith(b"post "):
                self._arrive(self)
            else:
                self.answer(404)

    def answer(self, status: int = 200, *headers: str) -> None:
        """Answer the oldest request that is open. A caller who left gets nothing."""
        if not self.transport.is_closing():
            self.transport.write(encode(status, *headers))


def encode(status: int, *headers: str) -> bytes:
    """A complete answer with a small JSON body."""
    body = b'{"score": 0.5}'
    length, kind = f"Content-Length: {len(body)}", "Content-Type: application/json"
    return "\r\n".join([f"HTTP/1.1 {status} X", length, kind, *headers, "", ""]).encode() + body


class Queue:
    """One worker, a thread of its own so that its sleeps are exact. Logs every batch: when it
    began, how many rows, and how long until the next could begin."""

    def __init__(self, settings: argparse.Namespace, log: Log) -> None:
        self._settings = settings
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Connection] = deque()
        self._changed = threading.Condition()
        self._stall_from = math.inf
        self._first = True
        threading.Thread(target=self._run, daemon=True).start()

    def arrive(self, connection: Connection) -> None:
        """Queue a request."""
        if self._first and self._settings.stall_at is not None:
            self._stall_from = time.monotonic() + self._settings.stall_at
        self._first = False
        with self._changed:
            self._waiting.append(connection)
            self._changed.notify()

    def _run(self) -> None:
        settings = self._settings
        while True:
            batch = self._take()
            started = time.monotonic()
            if started >= self._stall_from:
                self._stall_from = math.inf
                self._log.write(stalled=started, seconds=settings.stall)
                time.sleep(settings.stall)
                started = time.monotonic()
            time.sleep(settings.service + settings.per_row * len(batch))
            self._loop.call_soon_threadsafe(_answer_all, batch)
            self._log.write(started=started, rows=len(batch), seconds=time.monotonic() - started)

    def _take(self) -> list[Connection]:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting)
            num_rows = min(len(self._waiting), self._settings.max_rows)
            return [self._waiting.popleft() for _ in range(num_rows)]


def _answer_all(batch: list[Connection]) -> None:
    for connection in batch:
        connection.answer()


class Parallel:
    """Every request on its own, however many there are. Logs each arrival."""

    def __init__(self, settings: argparse.Namespace, log: Log) -> None:
        self._settings = settings
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._random = random.Random(settings.seed)
        self._num = 0
        if settings.kind == "gc":
            self._loop.call_later(settings.stall_every, self._stop_everything)

    def arrive(self, connection: Connection) -> None:
        """Answer in due time, or badly when it is this one's turn."""
        self._num += 1
        self._log.write(arrived=time.monotonic())
        settings = self._settings
        odd_one_out = self._num % settings.every == 0
        if settings.kind == "refusing" and odd_one_out:
            connection.answer(503, "Retry-After: 1")
        elif settings.kind == "broken" and odd_one_out:
            self._break(connection.transport)
        elif settings.kind == "cold" and self._num == 1:
            self._loop.call_later(settings.first, connection.answer, 200, "X-Cold: 1")
        elif service := self._service():
            self._loop.call_later(service, connection.answer)
        else:
            connection.answer()

    def _service(self) -> float:
        spread = self._settings.spread if self._settings.kind == "plain" else 0.0
        return float(self._settings.service * math.exp(spread * self._random.gauss(0.0, 1.0)))

    def _stop_everything(self) -> None:
        self._loop.call_later(self._settings.stall_every, self._stop_everything)
        self._log.write(stalled=time.monotonic(), seconds=self._settings.stall)
        time.sleep(self._settings.stall)

    def _break(self, transport: asyncio.Transport) -> None:
        fault = self._settings.fault
        if fault == "garbage":
            transport.write(b"\x16\x03\x01 this is no HTTP\r\n\r\n")
        elif fault == "closes":
            transport.close()
        elif fault == "half-body":
            transport.write(encode(200)[:-5])
            transport.close()
        elif fault == "slow-headers":
            _trickle(self._loop, transport, encode(200))
        elif fault == "500":
            transport.write(encode(500))


def _trickle(loop: asyncio.AbstractEventLoop, transport: asyncio.Transport, data: bytes) -> None:
    size = -(-len(data) // 5)
    for index in range(5):
        piece = data[index * size : (index + 1) * size]
        loop.call_later(HEADER_PAUSE * (index + 1), transport.write, piece)


async def serve(settings: argparse.Namespace) -> None:
    """Until SIGTERM."""
    log = Log(settings.log)
    behaviour = (Queue if settings.kind == "queue" else Parallel)(settings, log)
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stopped.set)
    server = await loop.create_server(
        lambda: Connection(behaviour.arrive), "127.0.0.1", settings.port, backlog=4096
    )
    print(server.sockets[0].getsockname()[1], flush=True)
    await stopped.wait()


if __name__ == "__main__":
    asyncio.run(serve(read_settings()))
