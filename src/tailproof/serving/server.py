"""The front process, from its first line to its last: start, serve, drain."""

import asyncio
import gc
import os
import secrets
import signal
import sys
from collections.abc import Coroutine
from typing import Any

import uvloop
from prometheus_client import CollectorRegistry

from tailproof.core import clock
from tailproof.serving.admission import SWEEP_SECONDS
from tailproof.serving.app import ROUTES, App
from tailproof.serving.exchange import Desk
from tailproof.serving.listener import Listener
from tailproof.serving.service import ModelService
from tailproof.serving.settings import ModelSettings, ServerSettings
from tailproof.telemetry.lag import LoopLag
from tailproof.telemetry.logs import Log, LogWriter
from tailproof.telemetry.metrics import Metrics
from tailproof.workers.pauses import GcPauses

KEEP_SECONDS = 60.0
"""How often the learned batch times are written down."""

LAST_WORDS = 0.5
"""Seconds for the last refusals and log lines to leave before the process ends."""


def run(settings: ServerSettings, models: list[ModelSettings]) -> int:
    """Serve `models` until a signal ends it; returns the exit code.

    Raises ConfigError before the port is bound when a setting cannot work.
    """
    return uvloop.run(_Server(settings, models).run())


class _Server:
    def __init__(self, settings: ServerSettings, models: list[ModelSettings]) -> None:
        self._settings = settings
        self._models = models
        self._in_terminal = self._signalled = False
        self._num_cut_off = 0
        self._stop = asyncio.Event()
        self._stop_now = asyncio.Event()

    async def run(self) -> int:
        """Start, serve until a signal, drain."""
        writer = LogWriter(sys.stdout.fileno())
        loop = asyncio.get_running_loop()
        self._log = Log(writer, self._settings.log_format, call_soon=loop.call_soon)
        metrics = Metrics(CollectorRegistry(), ROUTES)
        metrics.log_dropped = lambda: writer.dropped
        self._desk = Desk(metrics, self._log, clock.monotonic, secrets.token_hex(4))
        services = self._services = {
            model.name: ModelService(model, metrics, self._log, clock.monotonic)
            for model in self._models
        }
        self._app = App(self._settings, services, self._desk)
        listener = Listener(self._settings, self._app)
        self._handle_signals()
        for service in services.values():
            service.start()
        await asyncio.to_thread(self._app.build_pages)
        self._measure_pauses(metrics)
        listener.start()
        self._announce(listener.url)
        sweep = asyncio.create_task(self._app.sweep(SWEEP_SECONDS))
        keeping = asyncio.create_task(self._app.keep_times(KEEP_SECONDS))
        listener.finished.add_done_callback(lambda _task: self._stop.set())
        await self._stop.wait()
        clean = await self._drain(listener)
        sweep.cancel()
        keeping.cancel()
        await asyncio.gather(*(service.stop() for service in services.values()))
        self._log.event("server.stopped", self._last_sentence(), "info" if clean else "warning")
        writer.close(LAST_WORDS)
        code = 0 if clean and self._signalled else 1
        if not listener.finished.done():
            os._exit(code)  # somebody holds a connection: the library would wait for him
        return code

    def _last_sentence(self) -> str:
        if not self._num_cut_off:
            return "stopped"
        return f"stopped; {self._num_cut_off} requests were cut off with 503"

    def _announce(self, url: str) -> None:
        for model in self._models:
            slo = ", ".join(str(item) for item in model.slo) or "no SLO"
            message = f"{model.source} at {url} ({slo})"
            self._log.event("server.started", message, "info", model=model.name)

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
        if self._signalled:
            self._stop_now.set()
        self._signalled = True
        self._in_terminal = number == signal.SIGINT
        self._stop.set()

    async def _drain(self, listener: Listener) -> bool:
        """Not ready first, then no new connections, then the rest gets its answers.

        True when every request was answered in time.
        """
        settings = self._settings
        self._desk.draining = True
        self._log.event("server.draining", "not ready; still answering", "info")
        was_ready = any(service.manifest is not None for service in self._services.values())
        if was_ready and not self._in_terminal:  # else no load balancer sends anything
            await self._unless_stopped(asyncio.sleep(settings.drain_delay))
        await self._unless_stopped(_finish(listener), settings.drain_timeout)
        self._num_cut_off = self._app.abandon()
        if not listener.finished.done():
            await asyncio.wait([listener.finished], timeout=LAST_WORDS)
        return self._num_cut_off == 0

    async def _unless_stopped(
        self, work: Coroutine[Any, Any, None], seconds: float | None = None
    ) -> None:
        """Do `work` for at most `seconds`, or until the second signal."""
        stopped = asyncio.create_task(self._stop_now.wait())
        working = asyncio.create_task(work)
        ends = {stopped, working}
        await asyncio.wait(ends, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        working.cancel()


async def _finish(listener: Listener) -> None:
    await listener.stop_accepting()
    await asyncio.wait([listener.finished])
