"""What stands before the queue: the body's type, size and time."""

import asyncio
from collections.abc import Callable
from typing import Any

from granian.rsgi import ProtocolClosed  # type: ignore[attr-defined]

from tailproof.core.errors import BodyTimeout, Malformed, TooLarge, Unavailable, UnsupportedType
from tailproof.serving.settings import ServerSettings

SWEEP_SECONDS = 0.25
"""How often deadlines are looked at: they are kept this exactly."""

MAX_CHUNKS = 65_536
"""Most chunks of one body: each costs us, however small it is."""

BODY_BUDGET = 256 * 2**20
"""Most bytes of bodies that are being read at a time, as announced (unannounced: the most that
they may become): half-sent bodies are memory that many clients can make us hold."""

LONGEST_NUMBER = 19
"""Digits of a Content-Length."""


class ClientLeft(Exception):
    """The client closed the connection before its request was complete."""


class BodyReader:
    """Reads request bodies within the limits. A timer per request would cost more than the
    request's own work, so one sweep looks at the oldest of them."""

    def __init__(
        self,
        settings: ServerSettings,
        clock: Callable[[], float],
        *,
        max_chunks: int = MAX_CHUNKS,
    ) -> None:
        self._max_bytes = settings.max_body
        self._timeout = settings.body_timeout
        self._clock = clock
        self._max_chunks = max_chunks
        self._reading: dict[Any, float] = {}
        self._late: set[Any] = set()
        self._held_bytes = 0
        self._budget = max(BODY_BUDGET, settings.max_body)
        self._abandoned = False

    async def read_json(self, headers: Any, proto: Any) -> bytes:
        """The whole body of a JSON request.

        Raises:
            UnsupportedType: Content-Type is not JSON, or the body is encoded.
            TooLarge: more bytes than `max_body`, announced or sent.
            BodyTimeout: not there within `body_timeout`.
            ClientLeft: the connection ended first.
            Unavailable: other bodies fill the memory set aside for them, or the process ends.
        """
        check_json(headers)
        if headers.get("transfer-encoding", "chunked").strip().lower() != "chunked":
            raise UnsupportedType("send the body without Transfer-Encoding, or as chunked")
        announced = headers.get("content-length")
        if announced is None:
            return await self._read_chunks(proto)
        if not announced.isascii() or not announced.isdigit() or len(announced) > LONGEST_NUMBER:
            raise Malformed("Content-Length must be a number")
        num_bytes = int(announced)
        if num_bytes > self._max_bytes:
            raise TooLarge(self._limit)
        self._hold(num_bytes)
        try:
            body: bytes = await self._in_time(proto())
        finally:
            self._held_bytes -= num_bytes
        return body

    async def _read_chunks(self, proto: Any) -> bytes:
        held = self._max_bytes  # it may become so large
        self._hold(held)
        try:
            return await self._collect(proto)
        finally:
            self._held_bytes -= held

    def _hold(self, num_bytes: int) -> None:
        if self._held_bytes + num_bytes > self._budget:
            raise Unavailable("too many large bodies are being read", reason="body_budget")
        self._held_bytes += num_bytes

    async def _collect(self, proto: Any) -> bytes:
        """A body of unknown length. The library tells a broken one (bad framing, or its client
        left) from a complete one only by a second empty chunk at the end."""
        chunks, num_bytes = [], 0
        stream = proto.__aiter__()
        deadline = self._clock() + self._timeout
        while chunk := await self._in_time(stream.__anext__(), deadline):
            num_bytes += len(chunk)
            if num_bytes > self._max_bytes:
                raise TooLarge(self._limit)
            chunks.append(chunk)
            if len(chunks) > self._max_chunks:
                raise TooLarge(f"the body has over {self._max_chunks} chunks")
        try:
            await self._in_time(stream.__anext__(), deadline)
        except StopAsyncIteration:
            return b"".join(chunks)
        raise Malformed("the body's chunks are broken, or end in a trailer")

    async def _in_time(self, future: Any, deadline: float | None = None) -> bytes:
        self._reading[future] = deadline or self._clock() + self._timeout
        try:
            data: bytes = await future
        except asyncio.CancelledError:
            if self._abandoned:
                raise Unavailable("the server is stopping", reason="draining") from None
            if future not in self._late:
                raise
            raise BodyTimeout(f"the body was not there after {self._timeout:g} s") from None
        except ProtocolClosed:
            raise ClientLeft from None
        finally:
            del self._reading[future]
            self._late.discard(future)
        return data

    def sweep(self) -> None:
        """Give up the bodies whose time is over. Called every `SWEEP_SECONDS`."""
        now = self._clock()
        for future in [item for item, deadline in self._reading.items() if deadline <= now]:
            self._late.add(future)
            future.cancel()

    def abandon(self) -> int:
        """The process ends: nobody waits for the bodies that are not there. Returns how many."""
        self._abandoned = True
        for future in self._reading:
            future.cancel()
        return len(self._reading)

    @property
    def _limit(self) -> str:
        return f"the body is over the limit of {self._max_bytes} bytes"


def check_json(headers: Any) -> None:
    """Raise UnsupportedType unless the headers announce plain JSON (or no type at all)."""
    content_type = headers.get("content-type")
    if content_type is not None and content_type != "application/json":
        kind = content_type.partition(";")[0].strip().lower()
        if kind != "application/json" and not kind.endswith("+json"):
            raise UnsupportedType("send JSON, with the header Content-Type: application/json")
    encoding = headers.get("content-encoding")
    if encoding is not None and encoding.strip().lower() != "identity":
        raise UnsupportedType("send the body without Content-Encoding")
