"""A target that does nothing but wait: what a tester measures when only the tester is measured.

Every request gets the same answer after the same time, however many there are: no queue, no thread
and no task per request.
"""

import asyncio
import re
from collections import deque
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import uvloop

from tailproof.core.clock import monotonic
from tailproof.core.units import format_duration, format_size
from tailproof.load.alarm import Alarm

BACKLOG = 4096
MAX_HEAD = 64 * 1024
MAX_SIZE = 2**30
"""Bytes of an answer."""
MAX_DELAY = 86_400.0
"""Seconds."""

_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nContent-Length: %d\r\n"
    b"Server-Timing: queue;dur=0, batch;dur=0, infer;dur=%.3f, total;dur=%.3f\r\n%b\r\n"
)
_BAD = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
_REQUEST = re.compile(rb"([A-Z]+) [^ ]+ HTTP/1\.([01])(?:\r\n|$)")
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,12})[ \t]*(?:\r\n|$)", re.IGNORECASE)
_OPTION = re.compile(rb"\r\nconnection:[ \t]*(close|keep-alive)", re.IGNORECASE)


class Asked(NamedTuple):
    """What a request wants, as its head says."""

    num_body_bytes: int
    with_body: bool
    stays: bool
    """The connection stays open."""


@lru_cache(maxsize=1024)  # a tester sends few different heads
def asked(head: bytes) -> Asked | None:
    """None for what this server does not read."""
    match = _REQUEST.match(head)
    if match is None or b"\r\ntransfer-encoding:" in head.lower():
        return None
    length = _LENGTH.search(head)
    option = _OPTION.search(head)
    named = option[1].lower() if option else b""
    return Asked(
        num_body_bytes=int(length[1]) if length else 0,
        with_body=match[1] != b"HEAD",
        stays=named != b"close" and (match[2] == b"1" or named == b"keep-alive"),
    )


class NullProtocol(asyncio.Protocol):
    """One client connection. Bodies of requests are counted, not kept."""

    __slots__ = ("_answers", "_asked", "_head", "_left", "_transport")

    def __init__(self, answers: "Answers") -> None:
        self._answers = answers
        self._head = b""
        self._left = 0
        self._asked: Asked | None = None

    def connection_made(self, transport: Any) -> None:  # uvloop's is no asyncio.Transport
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        while data:
            if self._asked is not None:
                data = self._skip_body(self._asked, data)
                continue
            data = self._head + data if self._head else data
            end = data.find(b"\r\n\r\n")
            self._head = data if end < 0 else b""
            if end < 0 and len(data) <= MAX_HEAD:
                return
            found = asked(data[:end])
            if end < 0 or found is None:
                self.answer(_BAD, stays=False)
                return
            data = data[end + 4 :]
            self._left = found.num_body_bytes
            self._asked = found
            if not self._left:
                self._complete(found)

    def _skip_body(self, found: Asked, data: bytes) -> bytes:
        skipped = min(self._left, len(data))
        self._left -= skipped
        if not self._left:
            self._complete(found)
        return data[skipped:]

    def _complete(self, found: Asked) -> None:
        self._asked = None
        self._answers.send(self, found)

    def answer(self, data: bytes, *, stays: bool) -> None:
        if self._transport.is_closing():
            return
        self._transport.write(data)
        if not stays:
            self._transport.close()


class Answers:
    """Sends each answer `delay` seconds after its request was complete."""

    def __init__(self, delay: float, size: int) -> None:
        self._delay = delay
        self._body = b"0" * size
        self._at_once = self._answer(Asked(0, with_body=True, stays=True), 0.0)
        self._due: deque[tuple[float, NullProtocol, Asked]] = deque()
        self._alarm = Alarm(asyncio.get_running_loop(), self._release) if delay else None

    def send(self, protocol: NullProtocol, found: Asked) -> None:
        if self._alarm is None:
            plain = found.with_body and found.stays
            data = self._at_once if plain else self._answer(found, 0.0)
            protocol.answer(data, stays=found.stays)
            return
        self._due.append((monotonic() + self._delay, protocol, found))
        if len(self._due) == 1:  # the delay is the same for all: the first to come is the first due
            self._alarm.set(self._due[0][0])

    def close(self) -> None:
        if self._alarm is not None:
            self._alarm.close()

    def _release(self) -> None:
        now = monotonic()
        while self._due and self._due[0][0] <= now:
            due, protocol, found = self._due.popleft()
            seconds = now - due + self._delay
            protocol.answer(self._answer(found, seconds), stays=found.stays)
        if self._due:
            assert self._alarm is not None, "something is due only where there is a delay"
            self._alarm.set(self._due[0][0])

    def _answer(self, found: Asked, seconds: float) -> bytes:
        more = b"" if found.stays else b"Connection: close\r\n"
        head = _HEAD % (len(self._body), seconds * 1e3, seconds * 1e3, more)
        return head + self._body if found.with_body else head


class NullServer:
    """A listening null target inside a running loop. Close it when done."""

    def __init__(self, server: asyncio.Server, answers: Answers) -> None:
        self._server = server
        self._answers = answers
        self.port: int = server.sockets[0].getsockname()[1]

    async def forever(self) -> None:
        await self._server.serve_forever()

    def close(self) -> None:
        self._server.close()
        self._answers.close()


async def listen(
    host: str = "127.0.0.1", port: int = 0, delay: float = 0.0, size: int = 64
) -> NullServer:
    """Answer every request to `port` (0: a free one) after `delay` seconds with `size` bytes.

    Raises OSError when the port cannot be had, ValueError when `delay` or `size` is out of reach.
    """
    if not 0 <= size <= MAX_SIZE:
        raise ValueError(f"an answer may have at most {format_size(MAX_SIZE)}")
    if not 0.0 <= delay <= MAX_DELAY:
        raise ValueError(f"an answer may wait for at most {format_duration(MAX_DELAY)}")
    answers = Answers(delay, size)
    try:
        server = await asyncio.get_running_loop().create_server(
            lambda: NullProtocol(answers), host, port, backlog=BACKLOG
        )
    except OSError:
        answers.close()
        raise
    return NullServer(server, answers)


def serve(
    host: str = "127.0.0.1",
    port: int = 0,
    delay: float = 0.0,
    size: int = 64,
    ready: Callable[[int], None] | None = None,
) -> None:
    """Run `listen` in a loop of its own until the process is told to end; `ready` is told the
    port. Raises as `listen` does."""

    async def session() -> None:
        server = await listen(host, port, delay, size)
        if ready is not None:
            ready(server.port)
        try:
            await server.forever()
        finally:
            server.close()

    uvloop.run(session())
