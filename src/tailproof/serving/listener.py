"""The listening socket: ours, so that a stop loses no connection and a port has one owner.

Why, with the measured differences: `docs/http.md`. granian takes a socket of ours only through a
method that is not public; `tests/serving/test_listener.py` guards it and the version is capped.
"""

import asyncio
import contextlib
import ctypes
import os
import socket
import struct
import sys
from typing import Any

from granian.constants import HTTPModes, Interfaces
from granian.http import HTTP1Settings
from granian.net import SocketHolder  # type: ignore[attr-defined]
from granian.server.embed import Server as Granian

from tailproof.core.errors import ConfigError
from tailproof.serving.settings import ServerSettings

BACKLOG = 2048
"""Connections that the kernel may hold until they are accepted."""
UNREAD_SECONDS = 30.0
"""A client that takes none of its answer for so long is cut off, by the kernel."""
TURN_AWAY_SECONDS = 0.5
"""Between the last new connection and the end of accepting: handshakes under way finish."""

READ_SECONDS = 0.1
"""For those that are turned away to read why."""

_SO_ATTACH_FILTER = 26
_DROP_SYN = (
    (0x30, 0, 0, 13),  # load the byte of TCP flags
    (0x54, 0, 0, 0x12),  # keep SYN and ACK
    (0x15, 0, 1, 0x02),  # SYN alone, a new connection?
    (0x06, 0, 0, 0),  # drop it
    (0x06, 0, 0, 0xFFFFFFFF),  # let everything else pass
)
"""Classic BPF (linux/filter.h): code, jump if true, jump if false, operand."""

_TURNED_AWAY = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\n"
    b'connection: close\r\ncontent-length: 21\r\n\r\n{"detail":"draining"}'
)


class Listener:
    """A bound and listening socket, and the HTTP server on it."""

    def __init__(self, settings: ServerSettings, app: Any) -> None:
        """Listen. Raises ConfigError when the address cannot be had."""
        self._socket = _bound(settings)
        self.url = _url(self._socket)
        self._http = _Server(self._socket, settings, app)
        self._serving: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Accept connections from now on."""
        self._serving = asyncio.create_task(self._http.serve())

    async def stop_accepting(self) -> None:
        """No new connection; none that the kernel has accepted is reset.

        New ones are ignored first (they try again a second later and are refused), what is still
        in the kernel's queue when granian has stopped is told 503.
        """
        if sys.platform == "linux":
            _drop_newcomers(self._socket)
            await asyncio.sleep(TURN_AWAY_SECONDS)
        self._http.stop()  # type: ignore[no-untyped-call]
        await asyncio.sleep(0)  # granian's stop is a turn of the loop away
        await _turn_away_backlog(self._socket)
        self.close()

    def close(self) -> None:
        """Give the address back. `stop_accepting` does so by itself."""
        self._socket.close()

    @property
    def finished(self) -> asyncio.Task[None]:
        """Done when the last connection has been served, after `stop_accepting`."""
        assert self._serving is not None
        return self._serving


class _Server(Granian):
    """granian on a socket that is open already."""

    def __init__(self, listening: socket.socket, settings: ServerSettings, app: Any) -> None:
        self._listening = listening
        super().__init__(
            app,
            interface=Interfaces.RSGI,
            http=HTTPModes.http1,
            websockets=False,
            backlog=BACKLOG,
            backpressure=settings.max_connections,
            http1_settings=HTTP1Settings(
                header_read_timeout=round(settings.header_timeout * 1e3),
                max_buffer_size=settings.max_header,
            ),
            log_enabled=False,
        )

    def _init_shared_socket(self) -> None:
        make: Any = SocketHolder  # its stub says that it takes nothing
        holder = make(os.dup(self._listening.fileno()), False, BACKLOG)
        self._shd, self._sfd, self._ssp = holder, holder.get_fd(), None


def _bound(settings: ServerSettings) -> socket.socket:
    try:
        family, _, _, _, target = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError):
        raise ConfigError("host", settings.host, "is not an address of this machine") from None
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if sys.platform == "linux":
        milliseconds = round(UNREAD_SECONDS * 1e3)  # accepted connections inherit it
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
    try:
        listening.bind(target)
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        problem = os.strerror(error.errno or 0).lower()
        key, value = ("port", settings.port) if "use" in problem else ("host", settings.host)
        raise ConfigError(key, value, f"cannot listen there ({problem})") from None
    listening.setblocking(False)
    return listening


def _url(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _drop_newcomers(listening: socket.socket) -> None:
    """Attach a filter that ignores new SYNs; established connections do not notice."""
    code = b"".join(struct.pack("HBBI", *instruction) for instruction in _DROP_SYN)
    buffer = ctypes.create_string_buffer(code)
    program = struct.pack("HL", len(_DROP_SYN), ctypes.addressof(buffer))
    listening.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)


async def _turn_away_backlog(listening: socket.socket) -> None:
    """Tell 503 to all that the kernel has accepted and granian has not; nobody is waited for."""
    connections = []
    with contextlib.suppress(OSError):  # none is left, or no descriptor for it
        while True:
            connection, _ = listening.accept()
            connection.setblocking(False)
            connections.append(connection)
    for connection in connections:
        with contextlib.suppress(OSError):
            connection.send(_TURNED_AWAY)
            connection.shutdown(socket.SHUT_WR)
    if connections:
        await asyncio.sleep(READ_SECONDS)  # what is unread when a socket closes resets it
    for connection in connections:
        with contextlib.suppress(OSError), connection:
            connection.recv(1 << 16)
