"""Which HTTP front, and what it does at the edges: the experiments behind docs/http.md.

Starts real servers (granian embedded through RSGI and ASGI, uvicorn) as child processes on free
loopback ports, treats them badly and prints what came back.

    python benchmarks/http_choice.py                         # everything, three to four minutes
    python benchmarks/http_choice.py --only drain,timeouts
    python benchmarks/http_choice.py --json > http_choice.json

Needs granian, uvicorn, httptools and uvloop on Linux; the throughput part also needs `wrk`.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import json
import os
import platform
import shutil
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any
from urllib.parse import quote

BODY = b'{"amount": 1234.5, "hour": 12, "age": 33}'
ANSWER = b'{"score": 0.123456789012345, "model_alias": "champion", "model_version": "3"}'
HEADERS = [
    ("content-type", "application/json"),
    ("x-request-id", "abc"),
    ("server-timing", "queue;dur=1.0, batch;dur=2.0, infer;dur=3.0, total;dur=4.0"),
]
RAW_HEADERS = [(name.encode(), value.encode()) for name, value in HEADERS]
MB = 1 << 20
BODY_LIMIT = 16 * MB
PIECE = b"x" * 65536


# --- the served side ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Options:
    """How a child serves. `front` is rsgi, asgi (granian) or uvicorn."""

    front: str = "rsgi"
    loop: str = "uvloop"
    switch_ms: float = 5.0  # how long a Python thread may hold the interpreter lock
    backlog: int = 2048
    backpressure: int | None = 4096
    header_ms: int = 30_000
    max_buffer: int | None = None  # None: the library's default
    own_socket: bool = False  # listen ourselves and hand granian a copy of the descriptor
    user_timeout_ms: int = 0  # TCP_USER_TIMEOUT on our own listener, inherited by connections
    gentle: bool = False  # own socket: turn newcomers away before stop(), answer the backlog 503


def emit(event: str, **values: Any) -> None:
    """One line for the parent; CLOCK_MONOTONIC is the same clock in both processes."""
    line = json.dumps({"event": event, "at": time.monotonic(), **values})
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


class FakeBatches:
    """Answers everything that arrived in the last 3 ms at once, as a batch would."""

    def __init__(self) -> None:
        self.waiting: list[asyncio.Future[None]] = []

    def submit(self) -> asyncio.Future[None]:
        loop = asyncio.get_running_loop()
        if not self.waiting:
            loop.call_later(0.003, self._flush)
        future: asyncio.Future[None] = loop.create_future()
        self.waiting.append(future)
        return future

    def _flush(self) -> None:
        batch, self.waiting = self.waiting, []
        for future in batch:
            if not future.done():
                future.set_result(None)


@dataclass(slots=True)
class State:
    batches: FakeBatches = field(default_factory=FakeBatches)
    closing: bool = False  # answer with `connection: close`
    accepted: int = 0  # bytes that a stream has taken so far
    kept: list[Any] = field(default_factory=list)


STATE = State()


def answer_headers() -> list[tuple[str, str]]:
    return [*HEADERS, ("connection", "close")] if STATE.closing else HEADERS


def on_gone(watch: Any) -> None:
    if not watch.cancelled():
        emit("gone")


class RsgiApp:
    """One method a route; `arg` is the query string."""

    def __rsgi_init__(self, loop: asyncio.AbstractEventLoop) -> None:
        pass

    async def __rsgi__(self, scope: Any, proto: Any) -> None:
        name = scope.path.strip("/").partition("/")[0]
        await getattr(self, name or "fast", self.fast)(scope, proto)

    async def fast(self, scope: Any, proto: Any) -> None:
        body = await proto()
        emit("body", size=len(body), text=body[:40].decode("latin-1"), path=scope.path[:40])
        proto.response_bytes(200, answer_headers(), ANSWER)

    async def quiet(self, scope: Any, proto: Any) -> None:
        await proto()
        proto.response_bytes(200, answer_headers(), ANSWER)

    async def plain(self, scope: Any, proto: Any) -> None:
        await proto()
        await STATE.batches.submit()
        proto.response_bytes(200, answer_headers(), ANSWER)

    async def batch(self, scope: Any, proto: Any) -> None:
        await proto()
        watch = proto.client_disconnect()
        watch.add_done_callback(on_gone_quiet)
        await STATE.batches.submit()
        watch.cancel()
        proto.response_bytes(200, answer_headers(), ANSWER)

    async def batch_uncancelled(self, scope: Any, proto: Any) -> None:
        await proto()
        proto.client_disconnect().add_done_callback(on_gone_quiet)
        await STATE.batches.submit()
        proto.response_bytes(200, answer_headers(), ANSWER)

    async def wait(self, scope: Any, proto: Any) -> None:
        await proto()
        await self._wait(scope, proto)

    async def wait_unread(self, scope: Any, proto: Any) -> None:
        await self._wait(scope, proto)

    async def _wait(self, scope: Any, proto: Any) -> None:
        emit("begin")
        watch = proto.client_disconnect()
        watch.add_done_callback(on_gone)
        await asyncio.sleep(float(scope.query_string or 1))
        watch.cancel()
        proto.response_bytes(200, answer_headers(), ANSWER)
        emit("answered")

    async def wait_late(self, scope: Any, proto: Any) -> None:
        """The watch starts only after the client has gone."""
        await proto()
        emit("begin")
        await asyncio.sleep(0.2)
        emit("watching")
        proto.client_disconnect().add_done_callback(on_gone)
        await asyncio.sleep(0.3)

    async def wait_twice(self, scope: Any, proto: Any) -> None:
        """Two watches on one request."""
        await proto()
        emit("begin")
        watches = [proto.client_disconnect(), proto.client_disconnect()]
        for watch in watches:
            watch.add_done_callback(on_gone)
        await asyncio.sleep(0.5)
        for watch in watches:
            watch.cancel()

    async def wait_after(self, scope: Any, proto: Any) -> None:
        """The watch is left running after the answer."""
        await proto()
        proto.client_disconnect().add_done_callback(on_gone)
        proto.response_bytes(200, answer_headers(), ANSWER)
        await asyncio.sleep(0.5)

    async def collect(self, scope: Any, proto: Any) -> None:
        emit("begin")
        try:
            body = await proto()
        except Exception as error:
            emit("read", how=f"{type(error).__name__}({error})")
            raise
        emit("read", how=f"complete, {len(body)} bytes")
        proto.response_bytes(200, HEADERS, ANSWER)

    async def count(self, scope: Any, proto: Any) -> None:
        """A running count: refuse as soon as the limit is passed."""
        emit("begin")
        size, empty = 0, 0
        async for chunk in proto:
            size += len(chunk)
            empty += not chunk
            if size > BODY_LIMIT:
                emit("read", how="over the limit", size=size)
                proto.response_str(413, [("connection", "close")], "too large")
                return
        emit("read", how=f"complete, {size} bytes, {empty} empty chunks", size=size)
        proto.response_bytes(200, HEADERS, ANSWER)

    async def early(self, scope: Any, proto: Any) -> None:
        proto.response_str(413, [("connection", "close")], "too large")

    async def early_keep(self, scope: Any, proto: Any) -> None:
        proto.response_str(413, [], "too large")

    async def read_some(self, scope: Any, proto: Any) -> None:
        """Bound the wait for the body ourselves."""
        try:
            await asyncio.wait_for(_collect(proto), 0.5)
        except TimeoutError:
            proto.response_str(408, [("connection", "close")], "body too slow")

    async def stream(self, scope: Any, proto: Any) -> None:
        emit("begin")
        watch = proto.client_disconnect()
        watch.add_done_callback(on_gone)
        out = proto.response_stream(200, [("content-type", "text/event-stream")])
        STATE.accepted = 0
        try:
            for _ in range(int(scope.query_string) * MB // len(PIECE)):
                await out.send_bytes(PIECE)
                STATE.accepted += len(PIECE)
                await asyncio.sleep(0)
            emit("streamed", size=STATE.accepted)
        except Exception as error:  # noqa: BLE001 - the kind is the finding
            emit("stream_error", how=f"{type(error).__name__}({error})", size=STATE.accepted)

    async def tick(self, scope: Any, proto: Any) -> None:
        """A slow stream: ten pieces a second until it fails or ends. The watch is left on."""
        emit("begin")
        proto.client_disconnect().add_done_callback(on_gone)
        out = proto.response_stream(200, [("content-type", "text/event-stream")])
        try:
            for index in range(int(scope.query_string)):
                await out.send_str(f"data: {index}\n\n")
                await asyncio.sleep(0.1)
            emit("streamed")
        except Exception as error:  # noqa: BLE001 - the kind is the finding
            emit("stream_error", how=f"{type(error).__name__}({error})")

    async def big(self, scope: Any, proto: Any) -> None:
        """One answer larger than every socket buffer."""
        await proto()
        proto.response_bytes(200, HEADERS, b"x" * (int(scope.query_string) * MB))
        emit("answered")

    async def fail(self, scope: Any, proto: Any) -> None:
        raise ValueError("secret detail")

    async def fail_base(self, scope: Any, proto: Any) -> None:
        raise asyncio.CancelledError

    async def fail_stream(self, scope: Any, proto: Any) -> None:
        out = proto.response_stream(200, [("content-type", "text/event-stream")])
        await out.send_str("data: 1\n\n")
        await asyncio.sleep(0.05)
        raise ValueError("in the middle")

    async def silent(self, scope: Any, proto: Any) -> None:
        await proto()

    async def handed_over(self, scope: Any, proto: Any) -> None:
        """Return at once; something else answers 50 ms later."""
        call_later(0.05, lambda: proto.response_bytes(200, HEADERS, ANSWER))

    async def handed_stream(self, scope: Any, proto: Any) -> None:
        """Return at once; something else feeds the stream."""
        out = proto.response_stream(200, [("content-type", "text/event-stream")])
        for index in range(3):
            call_later(0.05 * (index + 1), lambda: STATE.kept.append(out.send_str("data: x\n\n")))

    async def close(self, scope: Any, proto: Any) -> None:
        await proto()
        proto.response_bytes(200, [*HEADERS, ("connection", "close")], ANSWER)

    async def odd_header(self, scope: Any, proto: Any) -> None:
        proto.response_bytes(200, [("x-echo", "a\r\nx-evil: 1"), ("x-good", "1")], ANSWER)

    async def odd_length(self, scope: Any, proto: Any) -> None:
        proto.response_str(200, [("content-length", "3")], "body")

    async def odd_status(self, scope: Any, proto: Any) -> None:
        proto.response_bytes(int(scope.query_string), HEADERS, ANSWER)

    async def pages(self, scope: Any, proto: Any) -> None:
        await AsgiPages(fastapi_app(), scope, proto)()

    async def show(self, scope: Any, proto: Any) -> None:
        await proto()
        seen = {"path": scope.path, "headers": [list(item) for item in scope.headers.items()]}
        proto.response_str(200, HEADERS, json.dumps(seen))


class AsgiPages:
    """RSGI in front, ASGI behind, whole bodies both ways: enough for rare pages."""

    def __init__(self, app: Any, scope: Any, proto: Any) -> None:
        self.app, self.scope, self.proto = app, scope, proto
        self.read = False
        self.watch: Any = None
        self.start: dict[str, Any] = {}
        self.parts: list[bytes] = []

    async def __call__(self) -> None:
        try:
            await self.app(self._asgi_scope(), self._receive, self._send)
        finally:
            if self.watch is not None:
                self.watch.cancel()  # a watch that nobody cancels is never freed

    def _asgi_scope(self) -> dict[str, Any]:
        scope = self.scope
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": scope.http_version,
            "method": scope.method,
            "scheme": scope.scheme,
            "path": scope.path.removeprefix("/pages"),
            "raw_path": quote(scope.path).encode(),  # RSGI gives the decoded path only
            "query_string": scope.query_string.encode(),
            "root_path": "",
            "headers": [(name.encode(), value.encode()) for name, value in scope.headers.items()],
            "client": (scope.client.rpartition(":")[0], int(scope.client.rpartition(":")[2])),
            "server": (scope.server.rpartition(":")[0], int(scope.server.rpartition(":")[2])),
        }

    async def _receive(self) -> dict[str, Any]:
        if self.read:
            self.watch = self.watch or self.proto.client_disconnect()
            await self.watch
            return {"type": "http.disconnect"}
        self.read = True
        return {"type": "http.request", "body": await self.proto(), "more_body": False}

    async def _send(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.start = message
            return
        self.parts.append(message.get("body", b""))
        if message.get("more_body"):
            return
        headers = [
            (name.decode(), value.decode("latin-1")) for name, value in self.start["headers"]
        ]
        kept = [(name, value) for name, value in headers if name.lower() != "content-length"]
        self.proto.response_bytes(self.start["status"], kept, b"".join(self.parts))


@cache
def fastapi_app() -> Any:
    from fastapi import FastAPI

    app = FastAPI()

    async def read(number: int) -> dict[str, int]:
        return {"number": number}

    async def fail() -> None:
        raise ValueError("secret detail")

    async def echo(values: dict[str, float]) -> dict[str, float]:
        return values

    app.get("/items/{number}")(read)
    app.get("/fail")(fail)
    app.post("/echo")(echo)
    return app


def on_gone_quiet(watch: Any) -> None:
    """What the hot path would do: mark the request as left. Here: nothing."""


def call_later(delay: float, call: Callable[[], Any]) -> None:
    asyncio.get_running_loop().call_later(delay, call)


async def _collect(proto: Any) -> bytes:
    return bytes(await proto())


async def read_asgi_body(receive: Callable[[], Awaitable[dict[str, Any]]]) -> None:
    message = await receive()
    while message.get("more_body"):
        message = await receive()


async def asgi_app(scope: Any, receive: Any, send: Any) -> None:
    """The same few routes in ASGI. The watch is one more receive() after the end of the body."""
    if scope["type"] != "http":
        return
    path, arg = scope["path"], scope["query_string"].decode()
    if path == "/stream":
        await asgi_stream(send, int(arg))
        return
    await read_asgi_body(receive)
    if path == "/plain":
        await STATE.batches.submit()
    elif path in ("/batch", "/wait"):
        watch = receive()
        if asyncio.iscoroutine(watch):  # uvicorn: receive() is a plain coroutine
            watch = asyncio.ensure_future(watch)
        watch.add_done_callback(on_gone if path == "/wait" else on_gone_quiet)
        if path == "/wait":
            emit("begin")
            await asyncio.sleep(float(arg or 1))
        else:
            await STATE.batches.submit()
        watch.cancel()
    await send({"type": "http.response.start", "status": 200, "headers": RAW_HEADERS})
    await send({"type": "http.response.body", "body": ANSWER})


async def asgi_stream(send: Any, megabytes: int) -> None:
    emit("begin")
    headers = [(b"content-type", b"text/event-stream")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    STATE.accepted = 0
    for _ in range(megabytes * MB // len(PIECE)):
        await send({"type": "http.response.body", "body": PIECE, "more_body": True})
        STATE.accepted += len(PIECE)
    await send({"type": "http.response.body", "body": b"", "more_body": False})
    emit("streamed", size=STATE.accepted)


def open_listener(port: int, options: Options) -> socket.socket:
    """Our own listener: no SO_REUSEPORT, options that every accepted connection inherits."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if options.user_timeout_ms:
        timeout = options.user_timeout_ms
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, timeout)
    listener.bind(("127.0.0.1", port))
    listener.listen(options.backlog)
    listener.setblocking(False)
    return listener


def granian_server(port: int, options: Options, listener: socket.socket | None) -> Any:
    from granian.constants import HTTPModes, Interfaces
    from granian.http import HTTP1Settings
    from granian.net import SocketHolder
    from granian.server.embed import Server

    class OwnSocketServer(Server):  # type: ignore[misc]
        def _init_shared_socket(self) -> None:
            assert listener is not None
            self._shd = SocketHolder(os.dup(listener.fileno()), False, options.backlog)
            self._sfd, self._ssp = self._shd.get_fd(), None

    rsgi = options.front == "rsgi"
    buffer = {} if options.max_buffer is None else {"max_buffer_size": options.max_buffer}
    return (OwnSocketServer if listener else Server)(
        RsgiApp() if rsgi else asgi_app,
        port=port,
        interface=Interfaces.RSGI if rsgi else Interfaces.ASGINL,
        http=HTTPModes.http1,
        websockets=False,
        backlog=options.backlog,
        backpressure=options.backpressure,
        http1_settings=HTTP1Settings(header_read_timeout=options.header_ms, **buffer),
        log_enabled=False,
    )


# Classic BPF over the TCP header: drop a segment with SYN and without ACK, pass every other.
DROP_SYN = [
    (0x30, 0, 0, 13),  # load the byte of flags
    (0x54, 0, 0, 0x12),  # keep SYN and ACK
    (0x15, 0, 1, 0x02),  # SYN alone?
    (0x06, 0, 0, 0),  # drop
    (0x06, 0, 0, 0xFFFFFFFF),  # pass
]


def turn_newcomers_away(listener: socket.socket) -> None:
    """A filter on the listener; handshakes under way still finish.

    A client that connects now sends its SYN again a second later and is then refused.
    """
    code = b"".join(struct.pack("HBBI", *instruction) for instruction in DROP_SYN)
    buffer = ctypes.create_string_buffer(code)
    program = struct.pack("HL", len(DROP_SYN), ctypes.addressof(buffer))
    listener.setsockopt(socket.SOL_SOCKET, 26, program)  # SO_ATTACH_FILTER


def answer_503(connection: socket.socket) -> None:
    connection.settimeout(0.2)
    try:
        connection.recv(65536)
        connection.sendall(
            b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\n"
            b"connection: close\r\ncontent-length: 0\r\n\r\n"
        )
        connection.shutdown(socket.SHUT_WR)
    except OSError:
        pass
    connection.close()


def sweep(listener: socket.socket) -> int:
    """Answer what granian left in the kernel's backlog, then stop listening."""
    swept = 0
    while True:
        try:
            connection, _ = listener.accept()
        except BlockingIOError:
            break
        answer_503(connection)
        swept += 1
    listener.close()
    return swept


async def serve_granian(port: int, options: Options) -> None:
    listener = open_listener(port, options) if options.own_socket else None
    server = granian_server(port, options, listener)

    def stop() -> None:
        emit("stopping")
        if not (options.gentle and listener):
            server.stop()
            return
        turn_newcomers_away(listener)
        call_later(0.1, server.stop)
        call_later(0.15, lambda: emit("swept", num=sweep(listener)))

    listen_for_commands(stop)
    emit("starting")
    await server.serve()
    emit("served")
    await asyncio.sleep(0.2)  # tasks that outlive serve() show themselves here
    emit("tasks", num=len(asyncio.all_tasks()) - 1)


async def serve_uvicorn(port: int, options: Options) -> None:
    import uvicorn

    config = uvicorn.Config(
        asgi_app,
        port=port,
        log_level="critical",
        access_log=False,
        http="httptools",
        lifespan="off",
        backlog=options.backlog,
    )
    server = uvicorn.Server(config)
    listen_for_commands(lambda: setattr(server, "should_exit", True))
    await server.serve()
    emit("served")


def listen_for_commands(stop: Callable[[], None]) -> None:
    """Commands arrive as lines on standard input; its end stops the process."""
    loop = asyncio.get_running_loop()

    def counters() -> None:
        emit("counters", accepted=STATE.accepted, tasks=len(asyncio.all_tasks()))

    commands: dict[str, Callable[[], None]] = {
        "stop": stop,
        "closing": lambda: setattr(STATE, "closing", True),
        "counters": counters,
    }

    def read() -> None:
        for line in sys.stdin:
            loop.call_soon_threadsafe(commands[line.strip()])
        os._exit(0)

    threading.Thread(target=read, daemon=True).start()


def serve(port: int, options: Options) -> None:
    sys.setswitchinterval(options.switch_ms / 1000)
    main = serve_uvicorn if options.front == "uvicorn" else serve_granian
    try:
        if options.loop == "uvloop":
            import uvloop

            uvloop.run(main(port, options))
        else:
            asyncio.run(main(port, options))
    except BaseException as error:  # noqa: BLE001 - reported to the parent
        emit("crashed", how=f"{type(error).__name__}: {error}".splitlines()[0])
        raise SystemExit(1) from None


# --- the measuring side: processes ----------------------------------------------------------------


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Served:
    """A child server: its events, its memory, its end."""

    def __init__(self, options: Options, port: int, core: int | None = None) -> None:
        self.port = port
        self.events: list[dict[str, Any]] = []
        self.arrived = threading.Condition()
        pin = ["taskset", "-c", str(core)] if core is not None else []
        self.process = subprocess.Popen(
            [*pin, sys.executable, __file__, "--serve", str(port), json.dumps(asdict(options))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self.arrived:
                self.events.append(json.loads(line))
                self.arrived.notify_all()
        with self.arrived:
            self.events.append({"event": "ended", "at": time.monotonic()})
            self.arrived.notify_all()

    def wait_ready(self) -> None:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                time.sleep(0.02)
        raise RuntimeError(f"the server did not start: {self.events}")

    def command(self, line: str) -> float:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return time.monotonic()

    def wait_event(self, name: str, timeout: float, since: float = 0.0) -> dict[str, Any] | None:
        def found() -> dict[str, Any] | None:
            matching = (e for e in self.events if e["event"] == name and e["at"] >= since)
            return next(matching, None)

        with self.arrived:
            self.arrived.wait_for(lambda: found() is not None, timeout)
            return found()

    def count(self, name: str, since: float = 0.0) -> int:
        with self.arrived:
            return sum(e["event"] == name and e["at"] >= since for e in self.events)

    def memory(self, key: str = "VmRSS") -> float:
        """Megabytes; VmHWM is the peak."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith(key + ":"):
                return int(line.split()[1]) / 1024
        raise RuntimeError(key)

    def cpu_seconds(self) -> float:
        """User and system time so far; other work on the machine hardly moves it."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def alive(self) -> bool:
        return self.process.poll() is None

    def end(self) -> None:
        if self.alive():
            self.process.kill()
        self.process.wait()


@contextmanager
def serving(core: int | None = None, **options: Any) -> Iterator[Served]:
    served = Served(Options(**options), free_port(), core)
    try:
        served.wait_ready()
        yield served
    finally:
        served.end()


# --- the measuring side: one connection -----------------------------------------------------------


@dataclass(slots=True)
class Response:
    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key == name), None)


class Wire:
    """A raw HTTP/1.1 client connection that remembers how it ended."""

    def __init__(self, port: int, timeout: float = 5.0, receive_buffer: int = 0) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.settimeout(timeout)
        self.socket.connect(("127.0.0.1", port))
        self.buffer = b""
        self.ending = ""  # "", "closed" or "reset"

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def request(self, path: str, headers: str = "", method: str = "POST") -> None:
        head = (
            f"{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(BODY)}\r\n{headers}\r\n"
        )
        self.send(head.encode("latin-1") + BODY)

    def ask(self, path: str, headers: str = "") -> Response | None:
        self.request(path, headers)
        return self.response()

    def _more(self) -> bool:
        if self.ending:
            return False
        try:
            data = self.socket.recv(1 << 18)
        except (ConnectionResetError, BrokenPipeError):
            self.ending = "reset"
            return False
        if not data:
            self.ending = "closed"
        self.buffer += data
        return bool(data)

    def response(self, timeout: float = 5.0, bodiless: bool = False) -> Response | None:
        """The next response, or None when the connection ended or stayed silent first."""
        self.socket.settimeout(timeout)
        try:
            while b"\r\n\r\n" not in self.buffer:
                if not self._more():
                    return None
            head, self.buffer = self.buffer.split(b"\r\n\r\n", 1)
            lines = head.decode("latin-1").split("\r\n")
            pairs = [line.partition(":") for line in lines[1:]]
            headers = [(name.lower(), value.strip()) for name, _, value in pairs]
            response = Response(int(lines[0].split()[1]), headers, b"")
            response.body = b"" if bodiless else self._body(response)
            return response
        except TimeoutError:
            return None

    def _body(self, response: Response) -> bytes:
        if response.header("transfer-encoding") == "chunked":
            return self._chunks()
        size = int(response.header("content-length") or 0)
        while len(self.buffer) < size and self._more():
            pass
        body, self.buffer = self.buffer[:size], self.buffer[size:]
        return body

    def _chunks(self) -> bytes:
        body = b""
        while True:
            while b"\r\n" not in self.buffer:
                if not self._more():
                    return body + b"<cut off>"
            line, self.buffer = self.buffer.split(b"\r\n", 1)
            size = int(line, 16)
            while len(self.buffer) < size + 2:
                if not self._more():
                    return body + b"<cut off>"
            body, self.buffer = body + self.buffer[:size], self.buffer[size + 2 :]
            if size == 0:
                return body

    def until_end(self, timeout: float) -> float | None:
        """Seconds until the server ends the connection, or None."""
        start = time.monotonic()
        self.socket.settimeout(timeout)
        try:
            while self._more():
                pass
        except TimeoutError:
            return None
        return time.monotonic() - start

    def reset(self) -> None:
        """Leave with RST instead of FIN."""
        linger = struct.pack("ii", 1, 0)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.socket.close()

    def half_close(self) -> None:
        self.socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self.socket.close()


def wires(port: int, num: int) -> list[Wire]:
    return [Wire(port) for _ in range(num)]


def close_all(connections: list[Wire]) -> None:
    for wire in connections:
        wire.close()


# --- findings -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Finding:
    case: str
    result: str
    numbers: Mapping[str, float | None] = field(default_factory=dict)


def milliseconds(seconds: float | None) -> str:
    return "never" if seconds is None else f"{seconds * 1000:,.1f} ms"


def described(response: Response | None, wire: Wire) -> str:
    if response is not None:
        return str(response.status)
    return {"": "no answer", "closed": "closed without an answer", "reset": "reset"}[wire.ending]


# --- throughput -----------------------------------------------------------------------------------

VARIANTS: dict[str, tuple[dict[str, Any], str]] = {
    "granian RSGI, no watch": ({}, "/plain"),
    "granian RSGI, watch": ({}, "/batch"),
    "granian RSGI, watch, own socket": ({"own_socket": True}, "/batch"),
    "granian RSGI, watch, switch interval 0.5 ms": ({"switch_ms": 0.5}, "/batch"),
    "granian RSGI, watch, plain asyncio": ({"loop": "asyncio"}, "/batch"),
    "granian ASGI, watch": ({"front": "asgi"}, "/batch"),
    "uvicorn ASGI, no watch": ({"front": "uvicorn"}, "/plain"),
    "uvicorn ASGI, watch task": ({"front": "uvicorn"}, "/batch"),
}
REFERENCE = "granian RSGI, watch"
LUA = f"""
wrk.method="POST"; wrk.headers["Content-Type"]="application/json"; wrk.body='{BODY.decode()}'
function done(summary, latency)
  local e = summary.errors
  print("#num " .. summary.requests)
  print("#seconds " .. summary.duration / 1e6)
  print("#p99_ms " .. latency:percentile(99) / 1e3)
  print("#bad " .. e.connect + e.read + e.write + e.status + e.timeout)
end
"""


def pinned() -> bool:
    return shutil.which("taskset") is not None and (os.cpu_count() or 1) >= 2


@dataclass(frozen=True, slots=True)
class Run:
    rate: float
    num: int
    p99_ms: float
    good: bool  # every request was answered with 2xx
    cpu_us: float = 0.0  # CPU time of the server for each request


def run_wrk(port: int, path: str, seconds: float, connections: int) -> Run:
    pin = ["taskset", "-c", "1"] if pinned() else []
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
        script.write(LUA)
        script.flush()
        command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds:g}s", "-s", script.name]
        url = f"http://127.0.0.1:{port}{path}"
        done = subprocess.run([*pin, *command, url], check=True, capture_output=True, text=True)
    fields = dict(line.split()[:2] for line in done.stdout.splitlines() if line.startswith("#"))
    num, bad = int(fields["#num"]), int(fields["#bad"])
    return Run(num / float(fields["#seconds"]), num, float(fields["#p99_ms"]), bad == 0)


def throughput(rounds: int, seconds: float) -> list[Finding]:
    """256 closed-loop connections, 3 ms fake batches, server on one core and wrk on another."""
    if shutil.which("wrk") is None:
        return [Finding("all", "skipped: wrk is not installed")]
    core = 0 if pinned() else None
    servers = {n: Served(Options(**o), free_port(), core) for n, (o, _) in VARIANTS.items()}
    runs: dict[str, list[Run]] = {name: [] for name in VARIANTS}
    try:
        for name, served in servers.items():
            served.wait_ready()
            run_wrk(served.port, VARIANTS[name][1], 1, 256)
        for index in range(rounds):
            for name in list(VARIANTS)[:: 1 if index % 2 == 0 else -1]:
                runs[name].append(measured_run(servers[name], VARIANTS[name][1], seconds))
    finally:
        for served in servers.values():
            served.end()
    return [rate_finding(name, found, runs[REFERENCE]) for name, found in runs.items()]


def measured_run(served: Served, path: str, seconds: float) -> Run:
    before = served.cpu_seconds()
    run = run_wrk(served.port, path, seconds, 256)
    return replace(run, cpu_us=(served.cpu_seconds() - before) / run.num * 1e6)


def rate_finding(name: str, runs: list[Run], reference: list[Run]) -> Finding:
    rates = [run.rate for run in runs]
    numbers: dict[str, float] = {
        "median": statistics.median(rates),
        "low": min(rates),
        "high": max(rates),
        "of_reference": statistics.median(
            run.rate / other.rate for run, other in zip(runs, reference, strict=True)
        ),
        "cpu_us": statistics.median(run.cpu_us for run in runs),
        "p99_ms": statistics.median(run.p99_ms for run in runs),
    }
    text = (
        "{median:>7,.0f}/s ({low:,.0f} to {high:,.0f}), {of_reference:.2f} of the RSGI watch, "
        "{cpu_us:.0f} us CPU a request, P99 {p99_ms:.0f} ms"
    ).format(**numbers)
    return Finding(name, text if all(run.good for run in runs) else f"{text}, errors", numbers)


# --- client disconnect ----------------------------------------------------------------------------


def leave(wire: Wire, how: str) -> float:
    actions = {"close": wire.close, "reset": wire.reset, "half-close": wire.half_close}
    at = time.monotonic()
    actions[how]()
    return at


def seconds_to_notice(served: Served, path: str, how: str, before: int = 0) -> float | None:
    """From the client's close to the server's event; None when it never came."""
    wire = Wire(served.port)
    for _ in range(before):
        wire.ask("/batch")
    start = time.monotonic()
    wire.request(path)
    served.wait_event("begin", 2, start)
    time.sleep(0.03)
    left = leave(wire, how)
    gone = served.wait_event("gone", 0.7, start)
    wire.close()
    return None if gone is None else gone["at"] - left


def notice_finding(served: Served, case: str, repeats: int, *args: Any) -> Finding:
    seen = [seconds_to_notice(served, *args) for _ in range(repeats)]
    good = [value for value in seen if value is not None]
    if not good:
        return Finding(case, f"not seen in {repeats} of {repeats}", {"seen": 0, "of": repeats})
    middle, worst = statistics.median(good), max(good)
    text = f"seen {len(good)} of {repeats}, median {milliseconds(middle)}"
    numbers: dict[str, float] = {"seen": len(good), "of": repeats}
    numbers |= {"median_seconds": middle, "max_seconds": worst}
    return Finding(case, f"{text}, worst {milliseconds(worst)}", numbers)


def disconnect() -> list[Finding]:
    """Does the handler learn that its client has gone, and how soon?"""
    found = []
    with serving() as served:
        for case, repeats, args in [
            ("close, 1st request", 20, ("/wait?0.5", "close")),
            ("reset, 1st request", 20, ("/wait?0.5", "reset")),
            ("half-close, 1st request", 10, ("/wait?0.5", "half-close")),
            ("close, 50th request, earlier watches cancelled", 10, ("/wait?0.5", "close", 49)),
            ("body not read by the handler, close", 5, ("/wait_unread?0.5", "close")),
        ]:
            found.append(notice_finding(served, case, repeats, *args))
        found.append(late_watch_finding(served))
        found.append(pipelined_finding(served))
        found.append(half_close_finding(served))
        found.append(two_watches_finding(served))
        found.append(many_leave_finding(served))
        found.append(watch_after_answer_finding(served))
        found.append(watch_after_stream_finding(served))
        found.append(answer_to_nobody_finding(served))
    for front, name in [("asgi", "granian ASGI, third receive()"), ("uvicorn", "uvicorn ASGI")]:
        with serving(front=front) as served:
            for how in ("close", "half-close"):
                case = f"{name}: {how}, 1st request"
                found.append(notice_finding(served, case, 10, "/wait?0.5", how))
    return found


def late_watch_finding(served: Served) -> Finding:
    start = time.monotonic()
    wire = Wire(served.port)
    wire.request("/wait_late")
    served.wait_event("begin", 2, start)
    wire.close()
    watching = served.wait_event("watching", 1, start)
    gone = served.wait_event("gone", 1, start)
    took = gone["at"] - watching["at"] if gone and watching else None
    return Finding("watch started after the close", f"fires after {milliseconds(took)}")


def half_close_finding(served: Served) -> Finding:
    wire = Wire(served.port)
    wire.request("/wait?0.3")
    wire.half_close()
    response = wire.response(1)
    time.sleep(0.5)
    result = "answered" if response else f"gets no answer ({described(response, wire)})"
    return Finding("half-close, then the client waits for its answer", result)


def pipelined_finding(served: Served) -> Finding:
    """A second request already in the read buffer hides the end of the stream."""
    wire = Wire(served.port)
    start = time.monotonic()
    wire.request("/wait?0.5")
    wire.request("/wait?0.5")
    served.wait_event("begin", 2, start)
    time.sleep(0.05)
    left = leave(wire, "close")
    gone = served.wait_event("gone", 1.5, start)
    text = "not seen" if gone is None else f"seen after {milliseconds(gone['at'] - left)}"
    return Finding("close with a pipelined request behind", f"{text} (first handler takes 500 ms)")


def two_watches_finding(served: Served) -> Finding:
    """A disconnect wakes one waiter for sure; a second one on the same request only by luck."""
    fired = []
    for _ in range(20):
        wire = Wire(served.port)
        start = time.monotonic()
        wire.request("/wait_twice")
        served.wait_event("begin", 2, start)
        wire.close()
        time.sleep(0.1)
        fired.append(served.count("gone", start))
    text = f"both fired in {fired.count(2)} of 20, one in {fired.count(1)}"
    numbers = {"both": fired.count(2), "one": fired.count(1), "none": fired.count(0)}
    return Finding("two watches on one request, close", text, numbers)


def many_leave_finding(served: Served) -> Finding:
    start = time.monotonic()
    opened = wires(served.port, 300)
    for wire in opened:
        wire.request("/wait?2")
    while served.count("begin", start) < 300 and time.monotonic() < start + 1.5:
        time.sleep(0.01)
    close_all(opened)
    time.sleep(0.5)
    num = served.count("gone", start)
    return Finding("300 clients leave at once", f"{num} of 300 seen", {"seen": num, "of": 300})


def watch_after_answer_finding(served: Served) -> Finding:
    """A watch that nobody cancels: what ends it?"""
    start = time.monotonic()
    wire = Wire(served.port)
    wire.ask("/wait_after")
    wire.close()
    gone = served.wait_event("gone", 0.6, start)
    text = "fires" if gone else "stays pending for ever"
    return Finding("watch left on after a good answer, then close", text)


def watch_after_stream_finding(served: Served) -> Finding:
    start = time.monotonic()
    wire = Wire(served.port)
    wire.ask("/tick?2")
    gone = served.wait_event("gone", 0.6, start)
    wire.close()
    text = "fires, as if the client had left" if gone else "does not fire"
    return Finding("watch left on at the normal end of a stream", text)


def answer_to_nobody_finding(served: Served) -> Finding:
    start = time.monotonic()
    wire = Wire(served.port)
    wire.request("/wait?0.2")
    served.wait_event("begin", 2, start)
    wire.close()
    answered = served.wait_event("answered", 1, start)
    text = "handler runs on, response_bytes() raises nothing" if answered else "handler stopped"
    return Finding("handler that ignores the disconnect", text)


def watch_memory() -> list[Finding]:
    """Do watches leak? 64 keep-alive connections under wrk, 100,000 requests or more."""
    if shutil.which("wrk") is None:
        return [Finding("all", "skipped: wrk is not installed")]
    found = []
    for case, path in [("cancelled", "/batch"), ("never cancelled", "/batch_uncancelled")]:
        with serving() as served:
            run_wrk(served.port, path, 2, 64)
            before = served.memory()
            num = 0
            for _ in range(6):
                if num < 100_000:
                    num += run_wrk(served.port, path, 4, 64).num
            time.sleep(1)
            grown = served.memory() - before
        text = f"{grown:+.1f} MB over {num:,} keep-alive requests, connections closed"
        numbers = {"grown_mb": grown, "requests": num}
        found.append(Finding(f"watch {case} after each answer", text, numbers))
    return found


# --- many connections -----------------------------------------------------------------------------


def open_idle(port: int, num: int, budget: float = 3.0) -> tuple[list[Wire], int]:
    """Keep-alive connections that each had one answer; how many got it within the budget."""
    opened: list[Wire] = []
    deadline = time.monotonic() + budget
    for _ in range(num):
        if time.monotonic() > deadline:
            break
        try:
            opened.append(Wire(port, timeout=0.3))
            opened[-1].request("/quiet")
        except OSError:
            break
    answered = 0
    for wire in opened:
        left = max(0.001, deadline + 0.5 - time.monotonic())
        answered += wire.response(left) is not None
    return opened, answered


def probe_seconds(port: int, timeout: float = 2.0) -> float | None:
    """One request on a fresh connection."""
    start = time.monotonic()
    try:
        wire = Wire(port, timeout)
    except OSError:
        return None
    try:
        wire.request("/quiet")
        return time.monotonic() - start if wire.response(timeout) else None
    finally:
        wire.close()


def probes_text(port: int, num: int = 30) -> tuple[str, dict[str, float]]:
    seen = sorted(probe_seconds(port) or 9.0 for _ in range(num))
    middle, worst = statistics.median(seen), seen[-1]
    numbers = {"median_seconds": middle, "max_seconds": worst}
    return f"probe median {milliseconds(middle)}, worst {milliseconds(worst)}", numbers


def idle_connections() -> list[Finding]:
    """1,000 idle keep-alive connections and a probe on a fresh one."""
    found = []
    with serving(backlog=128, backpressure=None) as served:
        idle, answered = open_idle(served.port, 1000)
        probe = probe_seconds(served.port)
        text = f"{len(idle)} connected, {answered} answered; fresh probe: {milliseconds(probe)}"
        found.append(Finding("defaults (128 / 128), 1,000 idle wanted", text))
        close_all(idle)
        after = probe_seconds(served.port)
        found.append(Finding("defaults, after the idle ones left", f"probe {milliseconds(after)}"))
    with serving(backlog=2048, backpressure=4096) as served:
        text, numbers = probes_text(served.port)
        found.append(Finding("raised (2048 / 4096), no idle connections", text, numbers))
        before = served.memory()
        idle, answered = open_idle(served.port, 1000)
        each = (served.memory() - before) * 1024 / max(1, len(idle))
        text, numbers = probes_text(served.port)
        text = f"{answered} answered, {each:.0f} KB each; {text}"
        found.append(Finding("raised, 1,000 idle", text, numbers | {"kb_each": each}))
        close_all(idle)
    found += at_the_limit()
    return found


def at_the_limit() -> list[Finding]:
    """Connection number backpressure + 1."""
    found = []
    with serving(backpressure=16, header_ms=2000) as served:
        idle, _ = open_idle(served.port, 16)
        probe = probe_seconds(served.port, 0.8)
        found.append(Finding("16 idle at backpressure 16, 17th request", milliseconds(probe)))
        waiting = Wire(served.port)
        waiting.request("/quiet")
        start = time.monotonic()
        idle[0].close()
        answered = waiting.response(2) is not None
        took = milliseconds(time.monotonic() - start) if answered else "never"
        found.append(Finding("... answered after one idle connection leaves", took))
        start = time.monotonic()
        freed = probe_seconds(served.port, 6)
        found.append(Finding("... or header_read_timeout (2 s) frees one", milliseconds(freed)))
        close_all([*idle, waiting])
    return found


# --- drain ----------------------------------------------------------------------------------------


def stop_and_wait(served: Served, timeout: float) -> tuple[float, float | None]:
    """When stop() was called and how long serve() then took to return."""
    at = served.command("stop")
    served.wait_event("stopping", 2)
    end = served.wait_event("served", timeout)
    return at, None if end is None else end["at"] - at


def returned(seconds: float | None, limit: float) -> str:
    if seconds is None:
        return f"serve() had not returned after {limit:g} s"
    return f"serve() returned after {milliseconds(seconds)}"


def drain() -> list[Finding]:
    """What stop() does to every kind of connection."""
    cases: list[Callable[[], list[Finding]]] = [
        drain_in_flight,
        drain_idle,
        drain_untouched,
        drain_half_header,
        drain_half_body,
        drain_backlog,
        drain_stalled_reader,
        drain_orphan,
        drain_stream,
        drain_storm,
        drain_keep_alive_clients,
    ]
    return [finding for case in cases for finding in case()]


def drain_in_flight() -> list[Finding]:
    with serving() as served:
        busy = Wire(served.port)
        busy.request("/wait?1")
        served.wait_event("begin", 2)
        time.sleep(0.2)
        at = served.command("stop")
        served.wait_event("stopping", 2)
        time.sleep(0.1)
        try:
            fresh = Wire(served.port, 0.5)
            fresh.request("/quiet")
            late = described(fresh.response(0.5), fresh)
        except ConnectionRefusedError:
            late = "refused"
        except OSError as error:
            late = type(error).__name__
        response = busy.response(3)
        end = served.wait_event("served", 3)
        took = None if end is None else end["at"] - at
        early = busy.until_end(1)
    header = response.header("connection") if response else None
    ending = "closed" if early is not None else "kept open"
    text = f"{described(response, busy)} with connection: {header}, then {ending}"
    return [
        Finding("1 s request in flight", text),
        Finding("... serve()", returned(took, 3), {"seconds": took}),
        Finding("new connection while it drains", late),
    ]


def drain_idle() -> list[Finding]:
    with serving() as served:
        idle, _ = open_idle(served.port, 20)
        _, took = stop_and_wait(served, 3)
        ends = [wire.until_end(1) for wire in idle]
        closed = sum(value is not None for value in ends)
        text = f"{closed} of {len(idle)} closed; {returned(took, 3)}"
    return [Finding("20 idle keep-alive connections", text, {"seconds": took})]


def drain_untouched() -> list[Finding]:
    with serving(header_ms=2000) as served:
        opened = wires(served.port, 5)
        time.sleep(0.2)
        _, took = stop_and_wait(served, 4)
        close_all(opened)
    return [Finding("5 connections that sent nothing", returned(took, 4), {"seconds": took})]


def drain_half_header() -> list[Finding]:
    found = []
    for name, before in [("first request", 0), ("second request", 1)]:
        with serving(header_ms=2000) as served:
            wire = Wire(served.port)
            if before:
                wire.ask("/quiet")
            wire.send(b"POST /quiet HTTP/1.1\r\nhost: x\r\n")
            time.sleep(0.2)
            _, took = stop_and_wait(served, 4)
            case = f"half a header, {name} (header_read_timeout 2 s)"
            found.append(Finding(case, returned(took, 4), {"seconds": took}))
            wire.close()
    return found


def drain_half_body() -> list[Finding]:
    found = []
    for name, path in [("handler waits for it", "/collect"), ("handler gives up", "/read_some")]:
        with serving(header_ms=1000) as served:
            wire = Wire(served.port)
            head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n0123456789"
            wire.send(head.encode())
            time.sleep(0.2)
            _, took = stop_and_wait(served, 3)
            found.append(Finding(f"half a body, {name}", returned(took, 3), {"seconds": took}))
            wire.close()
    return found


def drain_backlog() -> list[Finding]:
    """Connections that the kernel accepted and granian did not."""
    found = []
    options: list[tuple[str, dict[str, Any]]] = [
        ("granian's socket", {}),
        ("our socket, gentle stop", {"own_socket": True, "gentle": True}),
    ]
    for name, extra in options:
        with serving(backpressure=1, **extra) as served:
            busy = Wire(served.port)
            busy.request("/wait?0.5")
            served.wait_event("begin", 2)
            waiting = wires(served.port, 5)
            for wire in waiting:
                wire.request("/quiet")
            time.sleep(0.1)
            served.command("stop")
            ends = [described(wire.response(1.5), wire) for wire in waiting]
            close_all(waiting)
        summary = ", ".join(f"{ends.count(end)} x {end}" for end in sorted(set(ends)))
        found.append(Finding(f"5 requests in the kernel backlog, {name}", summary))
    return found


def drain_stalled_reader() -> list[Finding]:
    """A client that never reads its answer."""
    found = []
    for case, extra in [
        ("", {}),
        (", TCP_USER_TIMEOUT 1 s on our socket", {"own_socket": True, "user_timeout_ms": 1000}),
    ]:
        with serving(header_ms=1000, **extra) as served:
            wire = Wire(served.port, receive_buffer=4096)
            wire.request("/big?16")
            served.wait_event("answered", 2)
            time.sleep(0.2)
            _, took = stop_and_wait(served, 4)
            text = returned(took, 4)
            found.append(Finding(f"client that never reads a 16 MB answer{case}", text))
            wire.close()
    return found


def drain_orphan() -> list[Finding]:
    """The client left; its handler still runs."""
    with serving() as served:
        wire = Wire(served.port)
        wire.request("/wait?2")
        served.wait_event("begin", 2)
        wire.close()
        time.sleep(0.1)
        _, took = stop_and_wait(served, 3)
        tasks = served.wait_event("tasks", 1)
    left = tasks["num"] if tasks else None
    text = f"{returned(took, 3)} with {left} handler(s) still running"
    return [Finding("handler whose client has left (2 s)", text, {"seconds": took})]


def drain_stream() -> list[Finding]:
    with serving() as served:
        wire = Wire(served.port)
        wire.request("/tick?10")
        served.wait_event("begin", 2)
        time.sleep(0.2)
        _, took = stop_and_wait(served, 4)
        response = wire.response(2)
        events = response.body.count(b"data:") if response else 0
        whole = response is not None and not response.body.endswith(b"<cut off>")
    text = f"{events} of 10 events, complete: {whole}; {returned(took, 4)}"
    return [Finding("event stream in progress (1 s)", text, {"seconds": took})]


def drain_storm() -> list[Finding]:
    """Connections that arrive in the same instant as stop(): does each learn of the shutdown?"""
    took, trials = [], 10
    for _ in range(trials):
        with serving(core=0 if pinned() else None, header_ms=3000) as served:
            stop = threading.Event()
            threads = [Newcomers(served.port, stop) for _ in range(4)]
            time.sleep(0.1)
            took.append(stop_and_wait(served, 4)[1])
            stop.set()
            for thread in threads:
                thread.join()
    late = sum(value is None or value > 2 for value in took)
    text = f"serve() took over 2 s in {late} of {trials} stops"
    case = "connections that arrive in the instant of stop()"
    return [Finding(case, text, {"late": late, "of": trials})]


class Newcomers(threading.Thread):
    """Opens connections until refused, then keeps asking on each of them ten times a second."""

    def __init__(self, port: int, stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self.port, self.stop = port, stop
        self.start()

    def run(self) -> None:
        opened: list[Wire] = []
        while not self.stop.is_set():
            try:
                opened.append(Wire(self.port, 0.2))
                opened[-1].request("/quiet")
            except OSError:
                break
        while opened and not self.stop.wait(0.1):
            opened = [wire for wire in opened if self._ask(wire)]
        close_all(opened)

    @staticmethod
    def _ask(wire: Wire) -> bool:
        try:
            while wire.response(0.001):
                pass
            wire.request("/quiet")
        except OSError:
            wire.ending = wire.ending or "reset"
        return not wire.ending


def drain_keep_alive_clients() -> list[Finding]:
    """64 closed-loop keep-alive clients: who loses a request when the server stops?"""
    found = []
    gentle = {"own_socket": True, "gentle": True}
    plans: list[tuple[str, float, dict[str, Any]]] = [
        ("stop() at once", 0.0, {}),
        ("`connection: close` for 0.3 s first", 0.3, {}),
        ("the same, our socket, gentle stop", 0.3, gentle),
    ]
    for name, announce, options in plans:
        clients = [client for _ in range(5) for client in stop_under_clients(announce, options)]
        answered = sum(client.answered for client in clients)
        used = sum(client.lost == "used" for client in clients)
        fresh = sum(client.lost == "fresh" for client in clients)
        text = (
            f"{used + fresh} of {answered:,} requests lost in 5 stops "
            f"({used} on a used connection, {fresh} on a fresh one)"
        )
        numbers = {"used": used, "fresh": fresh, "answered": answered}
        found.append(Finding(f"64 busy keep-alive clients, {name}", text, numbers))
    return found


def stop_under_clients(announce: float, options: dict[str, Any]) -> list[Client]:
    with serving(**options) as served:
        clients = [Client(served.port) for _ in range(64)]
        time.sleep(0.4)
        if announce:
            served.command("closing")
            time.sleep(announce)
        served.command("stop")
        served.wait_event("served", 4)
        for client in clients:
            client.join()
    return clients


class Client(threading.Thread):
    """Sends, waits, sends. Looks before it sends, as a connection pool does; ends when refused."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self.port, self.lost, self.answered = port, "", 0
        self.start()

    def run(self) -> None:
        wire: Wire | None = None
        while True:
            if wire is not None and wire.until_end(0.005) is not None:
                wire = None
            uses = "fresh" if wire is None else "used"
            try:
                wire = wire or Wire(self.port, 1)
            except OSError:
                return
            response = self._ask(wire)
            if response is None:
                self.lost = uses
            if response is None or response.status == 503:
                return
            self.answered += 1
            if response.header("connection") == "close":
                wire = None

    @staticmethod
    def _ask(wire: Wire) -> Response | None:
        try:
            return wire.ask("/batch")
        except OSError:
            return None


# --- timeouts -------------------------------------------------------------------------------------


def timeouts() -> list[Finding]:
    """header_read_timeout = 1 s: what does it cover, and what does the client see?"""
    found = []
    with serving(header_ms=1000) as served:
        for case, before, data, limit in [
            ("half a header, then silence", 0, b"POST /quiet HTTP/1.1\r\nhost: x\r\n", 3.0),
            ("nothing sent at all", 0, b"", 3.0),
            ("idle after a good answer", 1, b"", 3.0),
            ("half of a second header", 1, b"POST /quiet HTTP/1.1\r\nho", 3.0),
            (
                "body that never comes (10 of 100 bytes)",
                0,
                b"POST /collect HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n0123456789",
                4.0,
            ),
            (
                "same, handler bounds its own wait to 0.5 s",
                0,
                b"POST /read_some HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n0123456789",
                3.0,
            ),
        ]:
            found.append(silence_finding(served.port, case, before, data, limit))
        found.append(idle_then_half_finding(served.port))
        found.append(drip_finding(served.port))
        found.append(long_handler_finding(served.port))
    return found


def silence_finding(port: int, case: str, before: int, data: bytes, limit: float) -> Finding:
    wire = Wire(port)
    for _ in range(before):
        wire.ask("/quiet")
    if data:
        wire.send(data)
    took = wire.until_end(limit)
    line = wire.buffer.split(b"\r\n", 1)[0].decode("latin-1") or "nothing"
    ending = f"still open after {limit:g} s"
    if took is not None:
        ending = f"{wire.ending} after {milliseconds(took)}"
    wire.close()
    return Finding(case, f"received {line}; {ending}", {"seconds": took})


def idle_then_half_finding(port: int) -> Finding:
    """Does the clock of the next header start with its first byte?"""
    wire = Wire(port)
    wire.ask("/quiet")
    time.sleep(0.7)
    wire.send(b"POST /quiet HTTP/1.1\r\nho")
    took = wire.until_end(3)
    wire.close()
    text = f"closed {milliseconds(took)} after the half header"
    return Finding("0.7 s idle, then half of a second header", text, {"seconds": took})


def drip_finding(port: int) -> Finding:
    """Is the limit on the whole header, or on each silence?"""
    wire = Wire(port)
    start = time.monotonic()
    ended = None
    for byte in b"POST /quiet HTTP/1.1\r\nhost: " + b"x" * 20:
        try:
            wire.send(bytes([byte]))
            if wire.until_end(0.1) is not None:
                raise ConnectionResetError
        except OSError:
            ended = time.monotonic() - start
            break
    wire.close()
    result = f"closed after {milliseconds(ended)}" if ended else "still open after 4 s"
    return Finding("one header byte every 100 ms", result, {"seconds": ended})


def long_handler_finding(port: int) -> Finding:
    wire = Wire(port)
    response = wire.ask("/wait?2")
    return Finding("handler of 2 s", described(response, wire))


# --- oversized headers ----------------------------------------------------------------------------


def oversized() -> list[Finding]:
    """Headers that are too large, at two buffer sizes."""
    found = []
    for buffer in (None, 65536):
        with serving(max_buffer=buffer) as served:
            name = f"max_buffer_size {buffer or 8192 + 4096 * 100:,}"
            for case, data in [
                ("1 MB header value", header_request([("x-a", "a" * MB)])),
                ("10,000 headers", header_request([(f"x-{i}", "a") for i in range(10_000)])),
                ("100 headers", header_request([(f"x-{i}", "a") for i in range(99)])),
                ("101 headers", header_request([(f"x-{i}", "a") for i in range(100)])),
                ("1 MB URL", header_request([], "/quiet?" + "a" * MB)),
                ("65,000-byte URL", header_request([], "/quiet?" + "a" * 64_992)),
                ("66,000-byte URL", header_request([], "/quiet?" + "a" * 65_992)),
            ]:
                found.append(oversized_finding(served, f"{name}: {case}", data))
            found.append(largest_finding(served, name))
            found.append(flood_finding(served, name, (buffer or 417_792) - 4096))
    return found


def largest_finding(served: Served, name: str) -> Finding:
    """Bisect the largest header value that is answered."""
    low, high = 1024, 2 * MB
    while high - low > 1024:
        middle = (low + high) // 2
        wire = Wire(served.port)
        with suppress(OSError):
            wire.send(header_request([("x-a", "a" * middle)]))
        response = wire.response(2)
        wire.close()
        low, high = (middle, high) if response and response.status == 200 else (low, middle)
    case = f"{name}: largest header value answered"
    return Finding(case, f"about {low // 1024} KB", {"bytes": low})


def header_request(headers: list[tuple[str, str]], path: str = "/quiet") -> bytes:
    lines = [f"GET {path} HTTP/1.1", "host: x", *(f"{name}: {value}" for name, value in headers)]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def oversized_finding(served: Served, case: str, data: bytes) -> Finding:
    wire = Wire(served.port)
    with suppress(OSError):
        wire.send(data)
    response = wire.response(2)
    closed = wire.until_end(0.3) is not None
    wire.close()
    return Finding(case, f"{described(response, wire)}{', closed' if closed else ', kept open'}")


def flood_finding(served: Served, name: str, size: int) -> Finding:
    """100 connections that each hold an unfinished header just under the limit."""
    before = served.memory()
    opened = wires(served.port, 100)
    for wire in opened:
        wire.send(b"GET /quiet HTTP/1.1\r\nx-a: " + b"a" * size)
    time.sleep(0.5)
    grown = served.memory() - before
    close_all(opened)
    case = f"{name}: 100 unfinished headers of {size // 1024} KB"
    return Finding(case, f"{grown:+.0f} MB", {"grown_mb": grown})


# --- framing --------------------------------------------------------------------------------------

POST = b"POST /fast HTTP/1.1\r\nhost: x\r\n"
GET = b"GET /fast HTTP/1.1\r\nhost: x\r\n"
CHUNKED = b"transfer-encoding: chunked\r\n"
ABC = b"\r\n3\r\nabc\r\n0\r\n\r\n"
FRAMES: dict[str, bytes] = {
    "content-length and chunked": POST + b"content-length: 5\r\n" + CHUNKED + ABC,
    "content-length twice, same": POST + b"content-length: 5\r\n" * 2 + b"\r\nhello",
    "content-length twice, different": POST
    + b"content-length: 5\r\ncontent-length: 6\r\n\r\nhello!",
    "content-length: 5, 5": POST + b"content-length: 5, 5\r\n\r\nhello",
    "content-length: -1": POST + b"content-length: -1\r\n\r\n",
    "content-length: +5": POST + b"content-length: +5\r\n\r\nhello",
    "content-length: 0x5": POST + b"content-length: 0x5\r\n\r\nhello",
    "content-length of 2^64": POST + b"content-length: 18446744073709551616\r\n\r\nhello",
    "transfer-encoding: xchunked": POST + b"transfer-encoding: xchunked\r\n\r\nhello",
    "transfer-encoding: chunked, identity": POST
    + b"transfer-encoding: chunked, identity\r\n"
    + ABC,
    "transfer-encoding: gzip, chunked": POST + b"transfer-encoding: gzip, chunked\r\n" + ABC,
    "chunked in HTTP/1.0": b"POST /fast HTTP/1.0\r\n" + CHUNKED + ABC,
    "bare LF line ends": b"POST /fast HTTP/1.1\nhost: x\ncontent-length: 5\n\nhello",
    "bare CR in a value": GET + b"x-a: b\rc\r\n\r\n",
    "NUL in a value": GET + b"x-a: b\x00c\r\n\r\n",
    "space before the colon": POST + b"content-length : 5\r\n\r\nhello",
    "folded header": GET + b"x-a: b\r\n c\r\n\r\n",
    "chunk size that is no number": POST + CHUNKED + b"\r\nzz\r\nabc\r\n0\r\n\r\n",
    "chunk size 2^64": POST + CHUNKED + b"\r\n10000000000000000\r\nabc\r\n0\r\n\r\n",
    "chunk longer than its size": POST + CHUNKED + b"\r\n3\r\nabcdef\r\n0\r\n\r\n",
    "chunk ends with bare LF": POST + CHUNKED + b"\r\n3\nabc\n0\n\n",
    "chunk extension": POST + CHUNKED + b"\r\n3;a=b\r\nabc\r\n0\r\n\r\n",
    "trailer": POST + CHUNKED + b"\r\n3\r\nabc\r\n0\r\nx-t: 1\r\n\r\n",
    "no host in HTTP/1.1": b"GET /fast HTTP/1.1\r\n\r\n",
    "two hosts": b"GET /fast HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n",
    "HTTP/0.9": b"GET /fast\r\n\r\n",
    "HTTP/1.0": b"GET /fast HTTP/1.0\r\n\r\n",
    "HTTP/1.0 keep-alive": b"GET /fast HTTP/1.0\r\nconnection: keep-alive\r\n\r\n",
    "HTTP/1.2": b"GET /fast HTTP/1.2\r\nhost: x\r\n\r\n",
    "HTTP/2 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "empty lines first": b"\r\n\r\n" + GET + b"\r\n",
    "garbage": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    "CONNECT": b"CONNECT a:80 HTTP/1.1\r\nhost: x\r\n\r\n",
    "OPTIONS *": b"OPTIONS * HTTP/1.1\r\nhost: x\r\n\r\n",
    "upgrade to h2c": GET + b"upgrade: h2c\r\nconnection: upgrade\r\n\r\n",
    "unknown method": b"BREW /fast HTTP/1.1\r\nhost: x\r\n\r\n",
    "absolute URL": b"GET http://other/fast HTTP/1.1\r\nhost: x\r\n\r\n",
    "space in the path": b"GET /fast x HTTP/1.1\r\nhost: x\r\n\r\n",
    "raw UTF-8 in the path": "GET /fast/\u00e9 HTTP/1.1\r\nhost: x\r\n\r\n".encode(),
    "two requests in one write": GET + b"\r\n" + GET + b"\r\n",
}


def framing() -> list[Finding]:
    """Odd framing: status, what the handler read, what became of the connection."""
    with serving() as served:
        found = [framing_finding(served, case, data) for case, data in FRAMES.items()]
        alive = "yes" if probe_seconds(served.port) is not None else "no"
        return [*found, Finding("server answers afterwards", alive)]


def framing_finding(served: Served, case: str, data: bytes) -> Finding:
    start = time.monotonic()
    wire = Wire(served.port)
    wire.send(data)
    statuses = []
    while (response := wire.response(0.3)) is not None:
        statuses.append(str(response.status))
    ending = {"": "kept open", "closed": "closed", "reset": "reset"}[wire.ending]
    wire.close()
    time.sleep(0.02)
    bodies = [e for e in served.events if e["event"] == "body" and e["at"] >= start]
    seen = " handler read " + ", ".join(repr(e["text"]) for e in bodies) if bodies else ""
    result = f"{', '.join(statuses) or 'no answer'}, {ending}{';' + seen if seen else ''}"
    return Finding(case, result)


# --- bodies ---------------------------------------------------------------------------------------


def send_chunked(wire: Wire, megabytes: int) -> int:
    """Send until done or until the server ends it; megabytes that left."""
    piece = b"x" * MB
    frame = f"{len(piece):x}\r\n".encode() + piece + b"\r\n"
    for index in range(megabytes):
        try:
            wire.send(frame)
        except OSError:
            return index
    with suppress(OSError):
        wire.send(b"0\r\n\r\n")
    return megabytes


def bodies() -> list[Finding]:
    """Large, early-refused and cut-off bodies."""
    found = []
    for case, path in [("counted, limit 16 MB", "/count"), ("collected by proto()", "/collect")]:
        found.append(large_body_finding(case, path))
    found += early_answer_findings()
    with serving() as served:
        for path, name in [("/count", "async for"), ("/collect", "await proto()")]:
            found += cut_off_findings(served, path, name)
        found.append(small_chunks_finding(served))
    return found


def large_body_finding(case: str, path: str) -> Finding:
    with serving() as served:
        before = served.memory()
        wire = Wire(served.port)
        wire.send(f"POST {path} HTTP/1.1\r\nhost: x\r\n".encode() + CHUNKED + b"\r\n")
        sent = send_chunked(wire, 200)
        response = wire.response(5)
        grown = served.memory("VmHWM") - before
        wire.close()
    text = f"{described(response, wire)}, {sent} MB sent, peak {grown:+.0f} MB"
    return Finding(f"200 MB chunked, {case}", text, {"grown_mb": grown, "sent_mb": sent})


def early_answer_findings() -> list[Finding]:
    """A 413 before the body is read: does the client get to see it?"""
    found = []
    with serving() as served:
        for path, name in [("/early", "connection: close"), ("/early_keep", "keep-alive")]:
            for size in (1, 64):
                trials = [sees_early(served.port, path, size) for _ in range(10)]
                seen = sum(status == 413 for status, _, _ in trials)
                sent = statistics.median(megabytes for _, megabytes, _ in trials)
                closed = sum(ended for _, _, ended in trials)
                case = f"413 at once ({name}), client writes all {size} MB before it reads"
                text = f"seen by {seen} of 10, {sent:g} MB sent, {closed} of 10 closed"
                found.append(Finding(case, text, {"seen": seen, "of": 10, "sent_mb": sent}))
        found.append(expect_finding(served.port, "/early", "413 at once"))
        found.append(expect_finding(served.port, "/collect", "body wanted"))
    return found


def sees_early(port: int, path: str, megabytes: int) -> tuple[int, int, bool]:
    """A client that writes everything before it reads, as many libraries do."""
    wire = Wire(port)
    size = megabytes * MB
    wire.send(f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {size}\r\n\r\n".encode())
    sent = 0
    with suppress(OSError):
        while sent < megabytes:
            wire.send(b"x" * MB)
            sent += 1
    response = wire.response(1)
    closed = wire.until_end(0.1) is not None
    wire.close()
    return response.status if response else 0, sent, closed


def expect_finding(port: int, path: str, name: str) -> Finding:
    wire = Wire(port)
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\nexpect: 100-continue\r\n\r\n"
    wire.send(head.encode())
    first = described(wire.response(1), wire)
    second = ""
    if first == "100":
        wire.send(b"hello")
        second = f", then {described(wire.response(1), wire)}"
    ending = "closed" if wire.until_end(0.3) is not None else "kept open"
    wire.close()
    return Finding(f"Expect: 100-continue, {name}", f"{first}{second}, {ending}")


CUTS: dict[str, bytes] = {
    "chunked, client leaves after 2 chunks": CHUNKED + b"\r\n3\r\nabc\r\n3\r\ndef\r\n",
    "chunked, bad size after 2 chunks": CHUNKED + b"\r\n3\r\nabc\r\n3\r\ndef\r\nzz\r\n",
    "chunked, complete": CHUNKED + b"\r\n3\r\nabc\r\n3\r\ndef\r\n0\r\n\r\n",
    "chunked, complete, with a trailer": CHUNKED + b"\r\n6\r\nabcdef\r\n0\r\nx-t: 1\r\n\r\n",
    "content-length 100, client leaves after 6": b"content-length: 100\r\n\r\nabcdef",
}


def cut_off_findings(served: Served, path: str, name: str) -> list[Finding]:
    """Can the handler tell a cut-off body from a complete one?"""
    found = []
    for case, data in CUTS.items():
        start = time.monotonic()
        wire = Wire(served.port)
        wire.send(f"POST {path} HTTP/1.1\r\nhost: x\r\n".encode() + data)
        served.wait_event("begin", 1, start)
        time.sleep(0.05)
        if "leaves" in case:
            wire.close()
        read = served.wait_event("read", 1, start)
        answer = "" if "leaves" in case else f"; client: {described(wire.response(0.5), wire)}"
        wire.close()
        result = f"{read['how'] if read else 'still waiting'}{answer}"
        found.append(Finding(f"{name}: {case}", result))
    return found


def small_chunks_finding(served: Served) -> Finding:
    """One-byte chunks: the price of a chunk."""
    num = 20_000
    wire = Wire(served.port)
    wire.send(b"POST /count HTTP/1.1\r\nhost: x\r\n" + CHUNKED + b"\r\n")
    start = time.monotonic()
    sender = threading.Thread(target=wire.send, args=(b"1\r\nx\r\n" * num + b"0\r\n\r\n",))
    sender.start()
    response = wire.response(20)
    sender.join()
    each = (time.monotonic() - start) / num
    wire.close()
    text = f"{described(response, wire)}, {each * 1e6:.0f} microseconds a chunk"
    return Finding(f"{num:,} one-byte chunks, async for", text, {"seconds_each": each})


# --- streams --------------------------------------------------------------------------------------


def streams() -> list[Finding]:
    """A 64 MB event stream to a client that never reads."""
    found = []
    for front, name in [("rsgi", "RSGI send_bytes"), ("asgi", "granian ASGI send")]:
        found.append(unread_finding(front, name))
    found.append(left_stream_finding())
    found.append(user_timeout_finding())
    return found


def unread_finding(front: str, name: str) -> Finding:
    """Ten such clients one after the other: does the memory come back?"""
    with serving(front=front) as served:
        before = served.memory()
        wire = unread_stream(served)
        served.command("counters")
        counters = served.wait_event("counters", 2)
        taken = counters["accepted"] / MB if counters else -1.0
        ended = served.count("streamed") > 0
        grown = served.memory() - before
        wire.close()
        for _ in range(9):
            unread_stream(served).close()
            time.sleep(0.2)
        after = served.memory() - before
    state = "never blocked" if ended else "then blocked"
    text = f"{taken:.1f} MB taken, {state}, {grown:+.0f} MB; {after:+.0f} MB after 10 of them left"
    numbers = {"taken_mb": taken, "grown_mb": grown, "after_mb": after}
    return Finding(name, text, numbers)


def unread_stream(served: Served) -> Wire:
    start = time.monotonic()
    wire = Wire(served.port, receive_buffer=4096)
    wire.request("/stream?64")
    served.wait_event("begin", 2, start)
    served.wait_event("streamed", 0.7, start)
    return wire


def left_stream_finding() -> Finding:
    with serving() as served:
        wire = Wire(served.port)
        wire.request("/tick?20")
        served.wait_event("begin", 2)
        time.sleep(0.25)
        left = leave(wire, "close")
        error = served.wait_event("stream_error", 2)
        text = f"{error['how']} after {milliseconds(error['at'] - left)}" if error else "no error"
    return Finding("client leaves a running stream, send_str()", text)


def user_timeout_finding() -> Finding:
    """TCP_USER_TIMEOUT on our own listener is inherited and also covers a closed window."""
    with serving(own_socket=True, user_timeout_ms=1000) as served:
        before = served.memory()
        wire = Wire(served.port, receive_buffer=4096)
        wire.request("/stream?64")
        served.wait_event("begin", 2)
        start = time.monotonic()
        gone = served.wait_event("gone", 8)
        took = None if gone is None else gone["at"] - start
        time.sleep(0.3)
        grown = served.memory() - before
        wire.close()
    text = f"connection dropped after {milliseconds(took)}, {grown:+.0f} MB then"
    case = "never-reading client, TCP_USER_TIMEOUT 1 s on our socket"
    return Finding(case, text, {"seconds": took, "grown_mb": grown})


# --- handlers -------------------------------------------------------------------------------------


def handlers() -> list[Finding]:
    """What becomes of exceptions, missing answers and odd answers."""
    found = []
    with serving() as served:
        for case, path, method, headers in [
            ("handler raises", "/fail", "POST", ""),
            ("handler raises CancelledError", "/fail_base", "POST", ""),
            ("handler returns without an answer", "/silent", "POST", ""),
            ("handler returns, another callback answers later", "/handed_over", "POST", ""),
            ("handler returns, another callback feeds its stream", "/handed_stream", "POST", ""),
            ("exception in the middle of a stream", "/fail_stream", "POST", ""),
            ("`connection: close` set by the handler", "/close", "POST", ""),
            ("request with `connection: close`", "/quiet", "POST", "connection: close\r\n"),
            ("newline in a response header", "/odd_header", "POST", ""),
            ("status 999", "/odd_status?999", "POST", ""),
            ("wrong content-length set by the handler", "/odd_length", "POST", ""),
            ("HEAD answered with a body", "/quiet", "HEAD", ""),
            ("path /show/a%2Fb%20c", "/show/a%2Fb%20c", "POST", ""),
            ("header value in Latin-1", "/show", "POST", "x-a: caf\u00e9\r\nx-b: 1\r\n"),
        ]:
            found.append(handler_finding(served, case, path, method, headers))
        alive = "yes" if probe_seconds(served.port) is not None else "no"
        found.append(Finding("server answers afterwards", alive))
    found += [abort_finding(status) for status in (99, 1000)]
    return found


def abort_finding(status: int) -> Finding:
    with serving() as served:
        Wire(served.port).request(f"/odd_status?{status}")
        ended = served.wait_event("ended", 2)
        code = served.process.wait(2) if ended else None
    text = "the process lives" if code is None else f"the whole process dies (signal {-code})"
    return Finding(f"status {status}", text)


def handler_finding(
    served: Served, case: str, path: str, method: str = "POST", headers: str = ""
) -> Finding:
    wire = Wire(served.port)
    wire.request(path, headers, method)
    response = wire.response(2, bodiless=method == "HEAD")
    closed = "closed" if wire.until_end(0.3) is not None else "kept open"
    wire.close()
    if response is None:
        return Finding(case, f"{described(None, wire)}, {closed}")
    extra = f", then stray bytes {wire.buffer[:20]!r}" if wire.buffer else ""
    if "odd_header" in path:
        extra = f", headers {[name for name, _ in response.headers if name[:2] == 'x-']}"
    body = "" if response.body == ANSWER else f", body {response.body[:90]!r}"
    return Finding(case, f"{response.status}{body}{extra}, {closed}")


# --- pages ----------------------------------------------------------------------------------------


def pages() -> list[Finding]:
    """FastAPI behind the RSGI to ASGI adapter, whole bodies both ways."""
    if installed("fastapi") is None:
        return [Finding("all", "skipped: fastapi is not installed")]
    found = []
    with serving() as served:
        for method, path in [
            ("GET", "/openapi.json"),
            ("GET", "/docs"),
            ("GET", "/items/3"),
            ("GET", "/items/three"),
            ("GET", "/nothing"),
            ("GET", "/fail"),
            ("POST", "/echo"),
        ]:
            headers = "content-type: application/json\r\n"
            found.append(
                handler_finding(served, f"{method} {path}", f"/pages{path}", method, headers)
            )
    return found


# --- the listening socket -------------------------------------------------------------------------


def listening() -> list[Finding]:
    """Two servers on one port, a port already taken, our own socket."""
    found = []
    for name, own in [("granian's socket", False), ("our socket", True)]:
        with serving(own_socket=own) as first:
            second = Served(Options(own_socket=own), first.port)
            crashed = second.wait_event("crashed", 2)
            text = f"second one fails: {crashed['how']}" if crashed else share_text(first, second)
            second.end()
        found.append(Finding(f"second server on the same port, {name}", text))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        late = Served(Options(), taken.getsockname()[1])
        crashed = late.wait_event("crashed", 3)
        late.end()
    text = crashed["how"] if crashed else "starts without a word"
    found.append(Finding("port taken by another program, granian's socket", text))
    return found


def share_text(first: Served, second: Served) -> str:
    start = time.monotonic()
    for _ in range(40):
        wire = Wire(first.port)
        wire.ask("/fast")
        wire.close()
    time.sleep(0.1)
    shares = first.count("body", start), second.count("body", start)
    return f"both start; 40 requests split {shares[0]} to {shares[1]}"


# --- command line ---------------------------------------------------------------------------------


def experiments(rounds: int, seconds: float) -> dict[str, Callable[[], list[Finding]]]:
    return {
        "throughput": lambda: throughput(rounds, seconds),
        "disconnect": disconnect,
        "watch_memory": watch_memory,
        "idle_connections": idle_connections,
        "drain": drain,
        "timeouts": timeouts,
        "oversized": oversized,
        "framing": framing,
        "bodies": bodies,
        "streams": streams,
        "handlers": handlers,
        "pages": pages,
        "listening": listening,
    }


def installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def machine() -> dict[str, Any]:
    model = "unknown"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    packages = ("granian", "uvicorn", "uvloop", "httptools", "fastapi")
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
        "python": platform.python_version(),
        "packages": {name: installed(name) for name in packages},
        "pinned": pinned(),
    }


def print_table(title: str, findings: list[Finding], seconds: float) -> None:
    width = min(64, max(len(finding.case) for finding in findings))
    print(f"\n{title} ({seconds:.0f} s)")
    for finding in findings:
        print(f"  {finding.case:<{width}}  {finding.result}")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", help="comma-separated experiments")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of the throughput part")
    parser.add_argument("--seconds", type=float, default=3.0, help="seconds a throughput run")
    parser.add_argument("--json", action="store_true", help="one JSON document on standard output")
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(int(args.serve[0]), Options(**json.loads(args.serve[1])))
        return
    table = experiments(args.rounds, args.seconds)
    chosen = args.only.split(",") if args.only else list(table)
    unknown = [name for name in chosen if name not in table]
    if unknown:
        parser.error(f"unknown experiment {', '.join(unknown)}; known: {', '.join(table)}")
    report(table, chosen, args.json)


def report(table: dict[str, Callable[[], list[Finding]]], chosen: list[str], as_json: bool) -> None:
    document: dict[str, Any] = {"machine": machine(), "experiments": {}}
    if not as_json:
        for key, value in document["machine"].items():
            print(f"{key:<9} {value}")
    for name in chosen:
        start = time.monotonic()
        findings = table[name]()
        document["experiments"][name] = [asdict(finding) for finding in findings]
        if as_json:
            print(f"{name}: {time.monotonic() - start:.0f} s", file=sys.stderr)
        else:
            print_table(name, findings, time.monotonic() - start)
    if as_json:
        print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
