"""One HTTP/1.1 connection over a raw socket: keep-alive, no pipelining, can be cut anywhere."""

import asyncio
import json
import socket
import struct
import time
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

HOST = "127.0.0.1"
PATIENCE = 60.0
"""Seconds after which an answer that has not come is called a hang."""

Headers = Iterable[tuple[str, str]]
T = TypeVar("T")


class NoAnswer(Exception):
    """The request got no complete answer; the message says how the connection ended."""


class Refused(NoAnswer):
    """The server did not accept the connection."""


class BadAnswer(NoAnswer):
    """The bytes that came are not an HTTP/1.1 answer."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One complete answer. Header names are in lower case; stamps are monotonic seconds."""

    status: int
    headers: dict[str, str]
    body: bytes
    sent: float
    first_byte: float
    last: float

    @property
    def seconds(self) -> float:
        """From the send to the last byte."""
        return self.last - self.sent

    def json(self) -> Any:
        """The body, which must be JSON."""
        return json.loads(self.body)


@dataclass(frozen=True, slots=True)
class Message:
    """One answer cut out of the stream, and how many bytes of it were used."""

    status: int
    headers: dict[str, str]
    body: bytes
    num_bytes: int


def parse(data: bytes, *, ended: bool, without_body: bool = False) -> Message | None:
    """Cut the first final answer (not 1xx) out of `data`; None while it is incomplete.

    `ended`: the server has closed, which completes a body that has no declared length.
    Raises BadAnswer on anything that is not HTTP/1.1.
    """
    start = 0
    while True:
        head_end = data.find(b"\r\n\r\n", start)
        if head_end < 0:
            return None
        status, headers = _head(data[start:head_end])
        body_start = head_end + 4
        if not 100 <= status < 200:
            break
        start = body_start
    if without_body or status in (204, 304):
        return Message(status, headers, b"", body_start)
    if "chunked" in headers.get("transfer-encoding", ""):
        chunked = _chunked(data, body_start)
        return None if chunked is None else Message(status, headers, *chunked)
    if "content-length" in headers:
        body_end = body_start + int(headers["content-length"])
        if len(data) < body_end:
            return None
        return Message(status, headers, data[body_start:body_end], body_end)
    return Message(status, headers, data[body_start:], len(data)) if ended else None


def _head(data: bytes) -> tuple[int, dict[str, str]]:
    first, *lines = data.decode("latin-1").split("\r\n")
    version, _, rest = first.partition(" ")
    if version != "HTTP/1.1" or not rest[:3].isdigit():
        raise BadAnswer(f"not a status line: {first[:80]!r}")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon:
            raise BadAnswer(f"not a header: {line[:80]!r}")
        name = name.lower()
        known = headers.get(name)
        headers[name] = value.strip() if known is None else f"{known}, {value.strip()}"
    return int(rest[:3]), headers


def _chunked(data: bytes, start: int) -> tuple[bytes, int] | None:
    parts = []
    while True:
        line_end = data.find(b"\r\n", start)
        if line_end < 0:
            return None
        size = int(data[start:line_end].split(b";")[0], 16)
        start = line_end + 2
        if len(data) < start + size + 2:
            return None
        if data[start + size : start + size + 2] != b"\r\n":
            raise BadAnswer("a chunk does not end with CRLF")
        parts.append(data[start : start + size])
        start += size + 2
        if size == 0:
            return b"".join(parts), start


def encode(method: str, path: str, body: bytes = b"", headers: Headers = ()) -> bytes:
    """The bytes of one request. `Content-Length` is written when there is a body."""
    lines = [f"{method} {path} HTTP/1.1", f"Host: {HOST}"]
    lines += [f"{name}: {value}" for name, value in headers]
    if body:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


_open: set["Connection"] = set()
"""Every connection of this process that has not ended."""


def run(scenario: Coroutine[Any, Any, T]) -> T:
    """Play a scenario in an event loop of its own; whatever it leaves open, for instance because
    it failed, is reset."""

    async def play() -> T:
        try:
            return await scenario
        finally:
            for connection in list(_open):
                await connection.reset()

    return asyncio.run(play())


class Connection(asyncio.Protocol):
    """One connection. Ask with `request`, or send any bytes and wait for `answer`."""

    def __init__(self) -> None:
        self.ended: str | None = None
        """How the connection ended, or None while it is open."""
        self.num_bytes = 0
        """Bytes received so far."""
        self._transport: asyncio.Transport | None = None
        self._buffer = b""
        self._waiting: asyncio.Future[Message] | None = None
        self._without_body = False
        self._sent = 0.0
        self._first_byte: float | None = None
        self._closed = asyncio.get_running_loop().create_future()

    @classmethod
    async def open(cls, port: int) -> "Connection":
        """Connect. Raises Refused when nobody accepts."""
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_connection(cls, HOST, port)
        except OSError as error:
            raise Refused(type(error).__name__) from None
        return connection

    @property
    def reusable(self) -> bool:
        """Open, and nothing arrived that nobody asked for."""
        return self.ended is None and not self._buffer

    @property
    def unsolicited(self) -> bytes:
        """What arrived although no answer was owed."""
        return self._buffer if self._waiting is None else b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        _open.add(self)
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        if self._first_byte is None:
            self._first_byte = time.monotonic()
        self.num_bytes += len(data)
        self._buffer += data
        self._try_answer()

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended = "closed" if exc is None else type(exc).__name__
        _open.discard(self)
        self._try_answer()
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(NoAnswer(self.ended))
        if not self._closed.done():
            self._closed.set_result(None)

    def send(self, data: bytes, *, without_body: bool = False) -> float:
        """Hand bytes to the socket; returns the time. Raises NoAnswer on a closed connection."""
        if self.ended is not None or self._transport is None or self._transport.is_closing():
            raise NoAnswer(self.ended or "closed")
        self._sent = time.monotonic()
        self._first_byte = None
        self._without_body = without_body
        self._transport.write(data)
        return self._sent

    async def answer(self, patience: float = PATIENCE) -> Answer:
        """Wait for the answer that is owed. Raises NoAnswer when it cannot come any more, or has
        not come within `patience` seconds."""
        self._waiting = asyncio.get_running_loop().create_future()
        self._try_answer()
        if self.ended is not None and not self._waiting.done():
            self._waiting.set_exception(NoAnswer(self.ended))
        try:
            message = await asyncio.wait_for(self._waiting, patience)
        except TimeoutError:
            raise NoAnswer(f"no answer in {patience:g} s") from None
        finally:
            self._waiting = None
        now = time.monotonic()
        first = now if self._first_byte is None else self._first_byte
        return Answer(message.status, message.headers, message.body, self._sent, first, now)

    async def request(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: Headers = (),
        patience: float = PATIENCE,
    ) -> Answer:
        """Send one request and wait for its answer. Raises NoAnswer."""
        self.send(encode(method, path, body, headers), without_body=method == "HEAD")
        return await self.answer(patience)

    async def until_closed(self, patience: float = PATIENCE) -> None:
        """Wait for the end of the connection. Raises NoAnswer when it stays open."""
        try:
            await asyncio.wait_for(asyncio.shield(self._closed), patience)
        except TimeoutError:
            raise NoAnswer(f"still open after {patience:g} s") from None

    async def close(self) -> None:
        """Close in order (FIN), also when an answer is still owed."""
        if self._transport is not None and self.ended is None:
            self._transport.close()
            await self._closed

    async def reset(self) -> None:
        """Leave at once: the server sees a reset (RST), whatever was under way."""
        if self._transport is not None and self.ended is None:
            sock = self._transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._transport.abort()
            await self._closed

    def _try_answer(self) -> None:
        if self._waiting is None or self._waiting.done() or not self._buffer:
            return
        try:
            message = parse(
                self._buffer, ended=self.ended is not None, without_body=self._without_body
            )
        except (BadAnswer, ValueError) as error:
            self._waiting.set_exception(BadAnswer(str(error)))
            return
        if message is not None:
            self._buffer = self._buffer[message.num_bytes :]
            self._waiting.set_result(message)


async def ask(
    port: int, method: str, path: str, body: bytes = b"", headers: Headers = ()
) -> Answer:
    """One request on a connection of its own. Raises NoAnswer, or Refused."""
    connection = await Connection.open(port)
    try:
        return await connection.request(method, path, body, headers)
    finally:
        await connection.close()
