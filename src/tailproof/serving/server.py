"""The front process, from its first line to its last: start, serve, drain."""

import asyncio
import contextlib
import gc
import os
import secrets
import signal
import socket
import sys

import uvloop
from granian.constants import HTTPModes, Interfaces
from granian.http import HTTP1Settings
from granian.server.embed import Server as Granian
from prometheus_client import CollectorRegistry

from tailproof.core import clock
from tailproof.core.errors import ConfigError
from tailproof.serving.admission import SWEEP_SECONDS
from tailproof.serving.app import ROUTES, App
from tailproof.serving.exchange import Desk
from tailproof.serving.service import ModelService
from tailproof.serving.settings import ModelSettings, ServerSettings
from tailproof.telemetry.lag import LoopLag
from tailproof.telemetry.logs import Log, LogWriter
from tailproof.telemetry.metrics import Metrics
from tailproof.workers.pauses import GcPauses

BACKLOG = 2048
"""Connections that the kernel may hold until they are accepted."""
LAST_WORDS = 0.5
"""Seconds for the last refusals and log lines to leave before the process ends."""
MIN_HEADER_BUFFER = 8192
"""The HTTP library's smallest limit."""


def run(settings: ServerSettings, models: list[ModelSettings]) -> int:
    """Serve `models` until a signal ends it; returns the exit code.

    Raises ConfigError before the port is bound when a setting cannot work.
    """
    return uvloop.run(_Server(settings, models).run())


class _Server:
    def __init__(self, settings: ServerSettings, models: list[ModelSettings]) -> None:
        self._settings = settings
        self._models = models
        self._signals = 0
        self._in_terminal = False
        self._stop = asyncio.Event()
        self._stop_now = asyncio.Event()

    async def run(self) -> int:
        """Start, serve until a signal, drain."""
        address = _bindable(self._settings)
        writer = LogWriter(sys.stdout.fileno())
        loop = asyncio.get_running_loop()
        self._log = Log(writer, self._settings.log_format, call_soon=loop.call_soon)
        metrics = Metrics(CollectorRegistry(), ROUTES)
        metrics.log_dropped = lambda: writer.dropped
        self._desk = Desk(metrics, self._log, clock.monotonic, secrets.token_hex(4))
        self._services = {
            model.name: ModelService(model, metrics, self._log, clock.monotonic)
            for model in self._models
        }
        self._app = App(self._settings, self._services, self._desk)
        self._measure_pauses(metrics)
        self._handle_signals()
        http = self._listen(address)
        for service in self._services.values():
            service.start()
        self._announce(address)
        sweep = asyncio.create_task(self._app.sweep(SWEEP_SECONDS))
        await self._stop.wait()
        clean = await self._drain(http)
        sweep.cancel()
        await asyncio.gather(*(service.stop() for service in self._services.values()))
        self._log.event("server.stopped", "stopped", "info")
        self._log.flush()
        writer.close(LAST_WORDS)
        return 0 if clean else 1

    def _listen(self, address: str) -> Granian:
        settings = self._settings
        granian = Granian(
            self._app,
            address=address,
            port=settings.port,
            interface=Interfaces.RSGI,
            http=HTTPModes.http1,
            websockets=False,
            backlog=BACKLOG,
            backpressure=settings.max_connections,
            http1_settings=HTTP1Settings(
                header_read_timeout=round(settings.header_timeout * 1e3),
                max_buffer_size=max(settings.max_header, MIN_HEADER_BUFFER),
            ),
            log_enabled=False,
        )
        self._http = asyncio.create_task(granian.serve())
        return granian

    def _announce(self, address: str) -> None:
        host = f"[{address}]" if ":" in address else address
        url = f"http://{host}:{self._settings.port}"
        for model in self._models:
            slo = ", ".join(str(item) for item in model.slo) or "no SLO"
            self._log.event(
                "server.started", f"{model.source} at {url} ({slo})", "info", model=model.name
            )
        self._log.flush()

    def _measure_pauses(self, metrics: Metrics) -> None:
        gc.collect()
        gc.freeze()
        GcPauses(metrics.gc_pauses["front"].observe).attach()
        LoopLag(asyncio.get_running_loop(), metrics.event_loop_lag.observe).start()

    def _handle_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)

    def _on_signal(self, number: int) -> None:
        """The first signal drains, the second ends at once. Ctrl-C needs no drain delay: nobody
        behind a load balancer types it."""
        self._signals += 1
        if self._signals > 1:
            self._stop_now.set()
        self._stop.set()
        self._in_terminal = number == signal.SIGINT

    async def _drain(self, granian: Granian) -> bool:
        """Not ready first, then no new connections, then the rest gets its answers.

        True when every request was answered in time.
        """
        settings = self._settings
        self._desk.draining = True
        self._log.event("server.draining", "not ready; still answering", "info")
        self._log.flush()
        if not self._in_terminal:
            await self._wait_unless_stopped(settings.drain_delay)
        granian.stop()
        idle = asyncio.gather(*(service.idle() for service in self._services.values()))
        finished = asyncio.create_task(_both(self._http, idle))
        await self._wait_unless_stopped(settings.drain_timeout, finished)
        if finished.done():
            return not self._stop_now.is_set()
        self._app.abandon()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(self._http), LAST_WORDS)
        return False

    async def _wait_unless_stopped(
        self, seconds: float, other: asyncio.Task[None] | None = None
    ) -> None:
        """Wait for `seconds`, for `other`, or for the second signal, whichever comes first."""
        stopped = asyncio.create_task(self._stop_now.wait())
        waits: list[asyncio.Task[object]] = [stopped]
        if other is not None:
            waits.append(other)
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()


async def _both(first: asyncio.Future[None], second: asyncio.Future[list[None]]) -> None:
    await first
    await second


def _bindable(settings: ServerSettings) -> str:
    """The IP address of `host`, after a look that the port is free.

    The HTTP library shares a port with whoever else listens on it, so a second server would go
    unnoticed; this one looks first. Raises ConfigError.
    """
    try:
        family, _, _, _, target = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError:
        raise ConfigError("host", settings.host, "is not an address of this machine") from None
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(target)
        except OSError as error:
            problem = os.strerror(error.errno or 0).lower()
            key, value = ("port", settings.port) if "use" in problem else ("host", settings.host)
            raise ConfigError(key, value, f"cannot listen there ({problem})") from None
    return str(target[0])
