"""One HTTP/1.1 keep-alive connection: bytes out, status and time of the last byte back."""

import asyncio
import time
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import urlsplit

LOST = -1
"""Status of a request whose connection ended, or spoke no HTTP, before the answer was complete."""
NOT_CONNECTED = -2
"""The server did not take the connection."""
NO_SOCKET = -3
"""This machine had no descriptor or port left: the client's fault, not the server's."""
UNANSWERED = 0


@dataclass(frozen=True, slots=True)
class Target:
    """Where requests go, and the complete bytes of each request that may be sent."""

    host: str
    port: int
    requests: tuple[bytes, ...]

    @classmethod
    def of(cls, url: str, bodies: tuple[bytes, ...]) -> "Target":
        """POST one of `bodies` (JSON) to `url`. Raises ValueError unless it is http://host:port."""
        parts = urlsplit(url)
        if parts.scheme != "http" or parts.hostname is None:
            raise ValueError(f"expected a URL such as http://127.0.0.1:8000/predict; got {url!r}")
        port = parts.port or 80
        path = parts.path or "/"
        head = f"POST {path} HTTP/1.1\r\nHost: {parts.hostname}:{port}\r\n".encode()
        head += b"Content-Type: application/json\r\n"
        requests = (head + b"Content-Length: %d\r\n\r\n" % len(body) + body for body in bodies)
        return cls(parts.hostname, port, tuple(requests))


def answer_bounds(data: bytes) -> tuple[int, int] | None:
    """(status, length in bytes of head and body) of the answer that `data` begins with.

    None while the head is incomplete. Raises ValueError for what this client does not read: no
    HTTP, or a body without Content-Length.
    """
    head_end = data.find(b"\r\n\r\n")
    if head_end < 0:
        return None
    if not data.startswith(b"HTTP/1."):
        raise ValueError("the answer is not HTTP/1")
    status = int(data[9:12])
    length = _header(data, head_end, b"content-length:")
    if length is None and status != 204:
        raise ValueError("the answer has no Content-Length")
    return status, head_end + 4 + int(length or 0)


def header(answer: bytes, name: str) -> str | None:
    """The value of one header of a complete answer; None when it is absent."""
    found = _header(answer, answer.find(b"\r\n\r\n"), name.lower().encode() + b":")
    return None if found is None else found.decode("latin-1").strip()


def _header(data: bytes, head_end: int, lowered: bytes) -> bytes | None:
    searched = b"\r\n" + lowered
    at = data.find(searched, 0, head_end)
    if at < 0:  # most servers write lower case already, so the copy is rarely made
        at = data[:head_end].lower().find(searched)
    if at < 0:
        return None
    start = at + len(searched)
    return data[start : data.find(b"\r\n", start)]


class Owner(Protocol):
    """Who is told what happens on a connection."""

    def connected(self, connection: "Connection") -> None: ...

    def answered(self, connection: "Connection", status: int, answer: bytes, at: float) -> None:
        """`at`: seconds on `time.perf_counter` when the last byte was read."""

    def lost(self, connection: "Connection") -> None:
        """The connection is gone; `connection.request_id` is the request that went with it."""


class Connection(asyncio.Protocol):
    """Carries one request at a time. `reusable` turns false when the server announces a close."""

    __slots__ = ("_buffer", "_transport", "owner", "request_id", "reusable")

    def __init__(self, owner: Owner) -> None:
        self.owner = owner
        self.request_id: int | None = None
        self.reusable = True
        self._buffer = b""

    def send(self, request_id: int, request: bytes) -> None:
        self.request_id = request_id
        self._transport.write(request)

    def abort(self) -> None:
        self.reusable = False
        self._transport.abort()

    def connection_made(self, transport: Any) -> None:  # uvloop's is no asyncio.Transport
        self._transport = transport
        self.owner.connected(self)

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        if self._buffer:
            data = self._buffer + data
        try:
            bounds = answer_bounds(data)
        except ValueError:
            return self.abort()
        if bounds is None or len(data) < bounds[1]:
            self._buffer = data
            return None
        if self.request_id is None or len(data) > bounds[1]:  # an answer that nobody asked for
            return self.abort()
        self._buffer = b""
        if b"onnection: close" in data:
            self.reusable = False
        self.owner.answered(self, bounds[0], data, now)
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        self.reusable = False
        self.owner.lost(self)
