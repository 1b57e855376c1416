"""HTTP/1.1 keep-alive connections: bytes out; status, stamps and a few headers back.

A connection carries one request at a time. Bodies of answers are counted and thrown away, so an
answer of any size costs no memory. What is not HTTP/1 ends its connection. An answer stands as its
own framing says; bytes that nobody asked for end the connection, not the answer before them.
"""

import asyncio
import errno
import math
import os
import re
import socket
import ssl
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from tailproof.core.clock import monotonic
from tailproof.core.recording import LOST, NO_SOCKET, NOT_CONNECTED, NOT_HTTP
from tailproof.load.target import Target

MAX_HEAD = 64 * 1024
"""Bytes of a head (or of a line between chunks) beyond which an answer is no answer."""
MAX_TIMING = 512
"""Bytes of `Server-Timing` that are kept of each answer; entries beyond are left out."""
MAX_MARK = 128
"""Bytes of `X-Replica` and its like that are kept of each answer."""

_STATUS = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9][0-9])(?: |\r\n)")
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;.*)?")
_OURS = (errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS, errno.ENOMEM)

_DURATION = re.compile(
    rb"(?:^|,)\s*(queue|batch|infer|total)\s*(?:;[^,;]*)*?;\s*dur\s*=\s*\"?"
    rb"([0-9]{1,15}(?:\.[0-9]{0,15})?)"
)
_DESCRIPTION = re.compile(rb'desc\s*=\s*"(?:[^"\\]|\\.)*"')


class NotHttp(ValueError):
    """What came back is no HTTP/1 answer."""


# --- bodies ---------------------------------------------------------------------------------------


class Body(Protocol):
    """Counts the bytes of one body."""

    def take(self, data: bytes) -> int | None:
        """How many bytes of `data` lie beyond the end; None: the end is yet to come."""


class Sized:
    """A body of a known length."""

    __slots__ = ("_left",)

    def __init__(self, num_bytes: int) -> None:
        self._left = num_bytes

    def take(self, data: bytes) -> int | None:
        self._left -= len(data)
        return -self._left if self._left <= 0 else None


class Chunked:
    """A body in chunks, trailers included. Raises NotHttp when a chunk has no readable size."""

    __slots__ = ("_expects", "_left", "_line")

    def __init__(self) -> None:
        self._left = 0
        self._line = b""
        self._expects = self._size

    def take(self, data: bytes) -> int | None:
        at, num = 0, len(data)
        while at < num:
            if self._left:
                skipped = min(self._left, num - at)
                self._left -= skipped
                at += skipped
                continue
            end = data.find(b"\n", at)
            self._line += data[at:] if end < 0 else data[at : end + 1]
            if len(self._line) > MAX_HEAD:
                raise NotHttp("a line between chunks is too long")
            if end < 0:
                return None
            at = end + 1
            line, self._line = self._line.rstrip(b"\r\n"), b""
            if self._expects(line):
                return num - at
        return None

    def _size(self, line: bytes) -> bool:
        match = _CHUNK.fullmatch(line)
        if match is None:
            raise NotHttp("a chunk without a size")
        self._left = int(match[1], 16)
        self._expects = self._end_of_chunk if self._left else self._trailer
        return False

    def _end_of_chunk(self, line: bytes) -> bool:
        if line:
            raise NotHttp("a chunk is longer than its size")
        self._expects = self._size
        return False

    def _trailer(self, line: bytes) -> bool:
        return not line


class UntilClose:
    """A body that ends with its connection."""

    def take(self, data: bytes) -> int | None:
        return None


# --- one connection -------------------------------------------------------------------------------


class Owner(Protocol):
    """Who is told what happens on a connection."""

    def connected(self, connection: "Connection") -> None: ...

    def written(self, connection: "Connection", at: float) -> None:
        """A request that the kernel did not take at once is now with it."""

    def answered(self, connection: "Connection", at: float) -> None:
        """The answer to `connection.request_id` is complete: its last byte was read at `at`."""

    def lost(self, connection: "Connection", status: int, at: float) -> None:
        """The connection is gone, for the reason `status`; `connection.request_id` (None: it was
        idle) went with it."""


class Connection(asyncio.Protocol):
    """Times are seconds on `core.clock.monotonic`."""

    __slots__ = (
        *("_bodyless", "_closing", "_descriptor", "_head", "_opened", "_owner", "_rest"),
        *(
            "_transport",
            "first_byte",
            "fresh",
            "handshake",
            "idle_since",
            "marks",
            "number",
            "received",
        ),
        *("request_id", "reusable", "status", "timing", "writing"),
    )

    def __init__(self, owner: Owner, number: int, opened: float, *, bodyless: bool) -> None:
        self._owner = owner
        self._opened = opened
        self._bodyless = bodyless
        self._head = b""
        self._rest: Body | None = None
        self._closing = LOST
        self.number = number
        self.request_id: int | None = None
        self.reusable = True
        """Turns false when the server announces a close, and when the connection ends."""
        self.fresh = True
        """No request went out on it before the one that it carries."""
        self.writing = False
        """Part of the request is still waiting for room in the kernel."""
        self.handshake = math.nan
        self.idle_since = math.inf
        """When the last answer was complete; infinite before it."""
        """How long opening took: a round trip or more, since the kernel answers, not the server."""
        self._forget_answer()

    def _forget_answer(self) -> None:
        self.status = 0
        self.received = 0
        self.first_byte = math.nan
        self.timing: bytes | None = None
        self.marks: tuple[bytes | None, bytes | None, bytes | None] | None = None

    # what its user does

    def send(self, request_id: int, request: bytes) -> float:
        """Hand a request to the kernel. Returns when that was; `written` follows if it did not
        fit. Over TLS it is handed to the encryption, which passes it on at once."""
        self._forget_answer()
        self.request_id = request_id
        if self._descriptor < 0:
            self._transport.write(request)
            return monotonic()
        # Written here, not by the transport: uvloop writes at the end of its turn, after the stamp.
        try:
            num_taken = os.write(self._descriptor, request)
        except BlockingIOError:
            num_taken = 0
        except OSError:
            self.abort(LOST)
            return monotonic()
        at = monotonic()
        if num_taken < len(request):
            self._transport.write(request[num_taken:])
        return at

    def done(self, at: float) -> None:
        """The answer of `at` was taken note of: the next request may go out, or it ends."""
        self.request_id = None
        self.fresh = False
        self.idle_since = at
        self._rest = None
        if not self.reusable:
            self._transport.abort()

    def abort(self, status: int = LOST) -> None:
        """Close at once; `lost` follows, for the reason `status`."""
        self.reusable = False
        self._closing = status
        self._transport.abort()

    # what the loop tells it

    def connection_made(self, transport: Any) -> None:  # uvloop's is no asyncio.Transport
        self.handshake = monotonic() - self._opened
        self._transport = transport
        encrypted = transport.get_extra_info("ssl_object") is not None
        transport.set_write_buffer_limits(high=1 if encrypted else 0, low=0)
        self._descriptor = -1 if encrypted else transport.get_extra_info("socket").fileno()
        self._owner.connected(self)

    def data_received(self, data: bytes) -> None:
        now = monotonic()
        if self.request_id is None:  # nobody asked
            return self.abort()
        if not self.received:
            self.first_byte = now
        self.received += len(data)
        try:
            excess = self._read_head(data) if self._rest is None else self._rest.take(data)
        except ValueError:
            return self.abort(NOT_HTTP)
        if excess is None:
            return None
        if excess or self.writing:
            self.received -= excess
            self.reusable = False
        self._owner.answered(self, now)
        return None

    def eof_received(self) -> None:
        now = monotonic()
        self.reusable = False
        if self.request_id is not None and isinstance(self._rest, UntilClose):
            self._owner.answered(self, now)

    def connection_lost(self, exc: Exception | None) -> None:
        self.reusable = False
        self._owner.lost(self, self._closing, monotonic())

    def pause_writing(self) -> None:
        self.writing = True

    def resume_writing(self) -> None:
        self.writing = False
        if self.request_id is not None:
            self._owner.written(self, monotonic())

    # the answer

    def _read_head(self, data: bytes) -> int | None:
        if self._head:
            data = self._head + data
            self._head = b""
        while True:
            end = data.find(b"\r\n\r\n")
            if end < 0:
                if len(data) > MAX_HEAD or not _may_begin(data):
                    raise NotHttp("no head")
                self._head = data
                return None
            match = _STATUS.match(data)
            if match is None or end > MAX_HEAD:
                raise NotHttp("no status line, or too long a head")
            self.status = int(match[2])
            if self.status >= 200:
                return self._begin_body(data[:end], match[1], data[end + 4 :])
            if self.status == 101:
                raise NotHttp("another protocol, which nobody asked for")
            data = data[end + 4 :]

    def _begin_body(self, head: bytes, minor: bytes, data: bytes) -> int | None:
        lowered = head.lower()
        self._keep(head, lowered)
        if not _stays_open(lowered, minor):
            self.reusable = False
        self._rest = _body(lowered, self.status, bodyless=self._bodyless)
        return self._rest.take(data)

    def _keep(self, head: bytes, lowered: bytes) -> None:
        """What a server may tell of a request; read after the step, by `durations` and others."""
        self.timing = _value(head, lowered, b"\r\nserver-timing:")
        if self.timing is not None and len(self.timing) > MAX_TIMING:
            self.timing = _whole_entries(self.timing[:MAX_TIMING])
        if b"\r\nx-" in lowered:
            self.marks = (
                _mark(head, lowered, b"\r\nx-batch-size:"),
                _mark(head, lowered, b"\r\nx-cold:"),
                _mark(head, lowered, b"\r\nx-replica:"),
            )


def _may_begin(data: bytes) -> bool:
    """Could these bytes be the beginning of an answer?"""
    return data[:7] == b"HTTP/1."[: len(data)]


def _stays_open(lowered: bytes, minor: bytes) -> bool:
    if b"\r\nconnection:" not in lowered:
        return minor == b"1"
    options = _value(lowered, lowered, b"\r\nconnection:") or b""
    named = {option.strip() for option in options.split(b",")}
    return b"close" not in named and (minor == b"1" or b"keep-alive" in named)


def _body(lowered: bytes, status: int, *, bodyless: bool) -> Body:
    """How the body of an answer ends (RFC 9112, 6.3)."""
    if bodyless or status in (204, 304):
        return Sized(0)
    if b"\r\ntransfer-encoding:" in lowered:
        coding = _value(lowered, lowered, b"\r\ntransfer-encoding:") or b""
        if coding.rpartition(b",")[2].strip() != b"chunked":
            return UntilClose()
        return Chunked()
    length = _value(lowered, lowered, b"\r\ncontent-length:")
    if length is None:
        return UntilClose()
    values = {value.strip() for value in length.split(b",")}
    text = values.pop()
    if values or not text.isdigit() or len(text) > 18:
        raise NotHttp("a Content-Length that is no number, or two of them")
    return Sized(int(text))


def _value(head: bytes, lowered: bytes, searched: bytes) -> bytes | None:
    """The value of a header; of one that is repeated, all values joined with commas."""
    at = lowered.find(searched)
    if at < 0:
        return None
    values = []
    while at >= 0:
        start = at + len(searched)
        end = head.find(b"\r\n", start)
        values.append((head[start:] if end < 0 else head[start:end]).strip())
        at = lowered.find(searched, start)
    return values[0] if len(values) == 1 else b",".join(values)


def _mark(head: bytes, lowered: bytes, searched: bytes) -> bytes | None:
    value = _value(head, lowered, searched)
    return None if value is None else value[:MAX_MARK]


def _whole_entries(cut: bytes) -> bytes:
    """The entries of a `Server-Timing` that was cut off, without the one that the cut went
    through: half a number is another number."""
    if cut.count(b'"') % 2:
        cut = cut[: cut.rfind(b'"')]
    return cut.rpartition(b",")[0]


def durations(timing: bytes) -> Iterator[tuple[str, float]]:
    """Seconds of queue, batch, infer and total in the value of a `Server-Timing` header, whose
    unit is milliseconds. What is not told, or cannot be read, does not come up."""
    if b"desc" in timing:
        timing = _DESCRIPTION.sub(b"", timing)
    for name, milliseconds in _DURATION.findall(timing):
        yield name.decode(), float(milliseconds) / 1e3


# --- many connections -----------------------------------------------------------------------------


class Pool:
    """The open connections to one target. They outlive a step; `owner` is who uses them now."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._loop = asyncio.get_running_loop()
        self._tls = tls_context(target)
        self._bodyless = target.method == "HEAD"
        self._addresses: list[str] = []
        self._idle: list[Connection] = []
        self._open: set[Connection] = set()
        self._opening: dict[int, asyncio.Task[None]] = {}
        self._num_opened = 0
        self._changed = asyncio.Event()
        self.owner: User | None = None
        self.max_open = 0
        """Open at the same time, at most, since `begin`."""

    async def begin(self, num_ready: int, patience: float) -> None:
        """Have `num_ready` idle connections, as far as the server takes them within `patience`
        seconds. The name of the host is looked up here, once a step."""
        self.max_open = 0
        await self._look_up()
        self._idle = [connection for connection in self._idle if connection.reusable]
        for _ in range(num_ready - len(self._idle)):
            self.open(patience)
        await self._wait_opened()
        self.max_open = len(self._open)

    def take(self) -> Connection | None:
        """An idle connection; None when there is none."""
        while self._idle:
            connection = self._idle.pop()
            if connection.reusable:
                return connection
        return None

    def give(self, connection: Connection) -> None:
        """It is free again."""
        self._idle.append(connection)

    @property
    def num_open(self) -> int:
        """Open or being opened."""
        return len(self._open) + len(self._opening)

    @property
    def num_opening(self) -> int:
        return len(self._opening)

    def open(self, patience: float) -> None:
        """Begin to open one more; the owner is told of it, or why it failed."""
        number = self._num_opened
        self._num_opened += 1
        task = self._loop.create_task(self._connect(number))
        self._opening[number] = task
        timer = self._loop.call_later(patience, self._cancel, number)

        def ended(_: asyncio.Task[None]) -> None:
            timer.cancel()
            self._opening.pop(number, None)  # cancelled before it began, it did not say so itself

        task.add_done_callback(ended)

    async def end(self) -> None:
        """Nobody uses the connections now: those that are being opened or carry a request are
        closed, the others kept. Returns when that is done."""
        self.owner = None
        for number in tuple(self._opening):
            self._cancel(number)
        await self._wait_opened()
        busy = [connection for connection in self._open if connection.request_id is not None]
        for connection in busy:
            connection.abort()
        await self._wait_closed(set(busy))

    async def close(self) -> None:
        """Close all connections."""
        for connection in tuple(self._open):
            connection.abort()
        await self._wait_closed(set(self._open))

    async def _wait_closed(self, connections: set[Connection]) -> None:
        while connections & self._open:
            self._changed.clear()
            await self._changed.wait()

    # what connections tell it

    def connected(self, connection: Connection) -> None:
        self._opening.pop(connection.number, None)
        self._open.add(connection)
        self.max_open = max(self.max_open, len(self._open))
        if self.owner is None:
            self._idle.append(connection)
        else:
            self.owner.connected(connection)

    def written(self, connection: Connection, at: float) -> None:
        if self.owner is not None:
            self.owner.written(connection, at)

    def answered(self, connection: Connection, at: float) -> None:
        if self.owner is not None:
            self.owner.answered(connection, at)

    def lost(self, connection: Connection, status: int, at: float) -> None:
        self._open.discard(connection)
        self._changed.set()
        if self.owner is not None:
            self.owner.lost(connection, status, at)

    # opening

    async def _connect(self, number: int) -> None:
        opened = monotonic()

        def made() -> Connection:
            return Connection(self, number, opened, bodyless=self._bodyless)

        try:
            await self._try_addresses(made)
        except OSError as error:
            self._failed(number, NO_SOCKET if error.errno in _OURS else NOT_CONNECTED)
        except asyncio.CancelledError:
            self._failed(number, NOT_CONNECTED)

    def _cancel(self, number: int) -> None:
        """Only what is not connected yet: the loop would close the rest without a word."""
        task = self._opening.get(number)
        if task is not None:
            task.cancel()

    def _failed(self, number: int, status: int) -> None:
        self._opening.pop(number, None)
        if self.owner is not None:
            self.owner.not_connected(status)

    async def _wait_opened(self) -> None:
        if self._opening:
            await asyncio.wait(self._opening.values())

    async def _try_addresses(self, made: Callable[[], Connection]) -> None:
        """The address that answered last comes first."""
        problem = OSError("the host has no address")
        for address in tuple(self._addresses):
            try:
                await self._loop.create_connection(
                    made,
                    address,
                    self._target.port,
                    ssl=self._tls,
                    server_hostname=self._target.host if self._tls else None,
                )
            except OSError as error:
                problem = error
            else:
                if address != self._addresses[0]:
                    self._addresses.remove(address)
                    self._addresses.insert(0, address)
                return
        raise problem

    async def _look_up(self) -> None:
        try:
            found = await self._loop.getaddrinfo(self._target.host, None, type=socket.SOCK_STREAM)
        except OSError:  # the requests will be told
            found = []
        addresses = dict.fromkeys(str(item[4][0]) for item in found)
        known = [address for address in self._addresses if address in addresses]
        self._addresses = list(dict.fromkeys([*known, *addresses]))


class User(Owner, Protocol):
    """Who uses a pool."""

    def not_connected(self, status: int) -> None:
        """One connection could not be opened, for the reason `status`."""


def tls_context(target: Target) -> ssl.SSLContext | None:
    """How to talk to an https target; None: http."""
    if target.scheme == "http":
        return None
    context = ssl.create_default_context(cafile=target.ca_file)
    context.set_alpn_protocols(["http/1.1"])
    if target.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
