"""Pages of a target: each read before a deadline and up to a size, however slowly it drips."""

import http.client
import io
import socket
import ssl
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any

from tailproof.core.clock import monotonic
from tailproof.core.units import format_size


def get(
    origin: tuple[str, str, int | None],
    path: str,
    *,
    seconds: float,
    most: int,
    headers: Mapping[str, str] | None = None,
    context: ssl.SSLContext | None = None,
) -> tuple[int, bytes]:
    """The status and body of `path` at `origin`: its scheme, host and port.

    `seconds` is for all of it once the name is looked up, `most` (bytes) for the body. No redirect
    is followed. Raises OSError (TimeoutError when the time is over), ValueError or
    http.client.HTTPException.
    """
    scheme, host, port = origin
    deadline = monotonic() + seconds
    connection = (
        http.client.HTTPSConnection(host, port, timeout=seconds, context=context)
        if scheme == "https"
        else http.client.HTTPConnection(host, port, timeout=seconds)
    )
    with closing(connection):
        connection.connect()
        with closing(connection.sock) as plain:
            connection.sock = Impatient(plain, deadline)
            connection.request("GET", path, headers=dict(headers or {}))
            answer = connection.getresponse()
            return answer.status, _body(answer, most)


def _body(answer: http.client.HTTPResponse, most: int) -> bytes:
    body = answer.read(most + 1)
    if len(body) > most:
        raise OSError(f"larger than {format_size(most)}")
    if answer.length:
        raise http.client.IncompleteRead(body, answer.length)
    return body


class Impatient:
    """What http.client uses of a socket, where all waiting together ends at the deadline. (The
    timeout of a socket is for one byte, and begins anew with the next.)"""

    def __init__(self, plain: socket.socket, deadline: float) -> None:
        self._plain = plain
        self._deadline = deadline

    def sendall(self, data: Any) -> None:
        self._plain.settimeout(self._left())
        self._plain.sendall(data)

    def makefile(self, mode: str) -> io.BufferedReader:
        del mode  # http.client reads bytes
        return io.BufferedReader(_Received(self._plain, self._left))

    def close(self) -> None:
        """An answer may be read on after http.client has closed its connection: `get` closes."""

    def _left(self) -> float:
        left = self._deadline - monotonic()
        if left <= 0.0:
            raise TimeoutError("timed out")
        return left


class _Received(io.RawIOBase):
    """The bytes of a socket, each time within what is left of the time."""

    def __init__(self, plain: socket.socket, left: Callable[[], float]) -> None:
        self._plain = plain
        self._left = left

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._plain.settimeout(self._left())
        return self._plain.recv_into(buffer)
