"""One served model: its workers, its queue, its validator, and the truth about its state."""

import asyncio
import importlib
import random
from collections import Counter
from collections.abc import Callable
from enum import Enum
from typing import Any

import msgspec

from tailproof.core import slo
from tailproof.core.errors import ConfigError, Unavailable
from tailproof.core.latency_model import LatencyModel
from tailproof.core.policy import Dispatch, Limits, Policy
from tailproof.core.units import format_duration
from tailproof.models.manifest import Manifest, digest
from tailproof.models.signature import Column, Validator, check_table
from tailproof.models.source import ModelSpec
from tailproof.serving.batcher import Batcher, Ticket, Withdrawn
from tailproof.serving.calibration import Calibration, cache_folder, key_of, this_machine
from tailproof.serving.protocols.native import NativeEncoder
from tailproof.serving.settings import ModelSettings
from tailproof.telemetry.logs import Level, Log
from tailproof.telemetry.metrics import LiveState, Metrics
from tailproof.workers import frames
from tailproof.workers.pool import LOAD_FAILED, STOPPED, Pool, Worker

ROUTES = ("/predict", "/models/{name}/predict")
"""Route templates of every model."""

LONGEST_WARMUP_BATCH = 1.0
"""Seconds: without an SLO, larger batches than the first that takes so long are not tried."""

DEFAULT_MAX_BATCH = 256
"""Most rows in a batch when neither the user nor the model says anything."""


class State(Enum):
    """Where a model is between start and service."""

    LOADING = "loading"  # no worker has been ready yet
    READY = "ready"  # at least one worker takes batches
    FAILED = "failed"  # the last attempt to load failed; another one follows
    DOWN = "down"  # was ready; every worker is being replaced


class ModelService:
    """Everything about one served model in the front process."""

    def __init__(
        self, settings: ModelSettings, metrics: Metrics, log: Log, clock: Callable[[], float]
    ) -> None:
        self.settings = settings
        self.name = settings.name
        self.manifest: Manifest | None = None
        self.load_seconds: float | None = None
        self.warmup_seconds: float | None = None
        self.reason: str | None = None
        """Why the last attempt to load failed, in words that may be shown."""
        self._log = log
        self._clock = clock
        self._gc_pauses = metrics.gc_pauses["worker"]
        self._user_class = _import_class(settings)
        _check_columns(settings)
        self._validator: Validator | None = None
        self._encoder: NativeEncoder | None = None
        self._times = LatencyModel()
        self._calibration: Calibration | None = None
        self._kept_version = 0
        self._policy = Policy(_limits(settings, None), self._times, random.random)
        spec = _spec(settings, self._user_class)
        self._pool = Pool(_load_order(settings, spec), settings.workers, self, clock)
        self._batcher = Batcher(self._policy, self._pool, self._columns, self, clock)
        self.metrics = metrics.model(self.name, settings.slo, ROUTES, self._live_state)

    # Life

    def start(self) -> None:
        """Start the workers; the model is ready some time later."""
        self._pool.start()

    async def stop(self) -> None:
        """End the workers now, and keep what was learned of their batch times."""
        await asyncio.gather(self._pool.stop(), self.keep_times())

    async def keep_times(self) -> None:
        """Write the learned batch times to the cache folder, if they have changed."""
        if self._calibration is None or self._times.version == self._kept_version:
            return
        self._kept_version = self._times.version
        problem = await asyncio.to_thread(self._calibration.save, self._times.samples())
        if problem is not None:
            self._log.event("model.calibration", problem, "warning", model=self.name)

    @property
    def state(self) -> State:
        """Computed afresh at every call, from the workers that there are."""
        if self._pool.num_ready and self._validator is not None:
            return State.READY
        if self.manifest is not None:
            return State.DOWN
        return State.LOADING if self.reason is None else State.FAILED

    @property
    def workers(self) -> list[Worker]:
        """The worker processes as they are now."""
        return self._pool.workers

    @property
    def version(self) -> str | None:
        """The served version; None: not known yet, or the model has none."""
        return self.manifest.version if self.manifest is not None else None

    # The hot path

    def submit(self, ticket: Ticket) -> None:
        """Queue validated rows.

        Raises Shed, DeadlineExceeded when the caller's own time is too short, and Unavailable
        while no worker is ready.
        """
        if not self._pool.num_ready:
            raise self.unavailable()
        self._batcher.submit(ticket)

    def withdraw(self, ticket: Ticket) -> Withdrawn:
        """The request is over; see `Batcher.withdraw`."""
        return self._batcher.withdraw(ticket)

    @property
    def validator(self) -> Validator:
        """Raises Unavailable until the model's signature is known."""
        if self._validator is None:
            raise self.unavailable()
        return self._validator

    @property
    def encoder(self) -> NativeEncoder:
        """Raises Unavailable until the model is known."""
        if self._encoder is None:
            raise self.unavailable()
        return self._encoder

    def unavailable(self) -> Unavailable:
        """The error for a request that comes while no worker is ready."""
        if self.manifest is None:
            failed = "; the last attempt failed, /health says why" if self.reason else ""
            return Unavailable(f"model not loaded{failed}", reason="not_ready")
        return Unavailable(
            "every worker is being replaced",
            reason="worker_lost",
            retry_after=self.load_seconds or 1.0,
        )

    def _columns(self, rows: list[dict[str, Any]]) -> Any:
        return self.validator.columns(rows)

    def _live_state(self) -> LiveState:
        policy = self._policy
        return LiveState(
            queue_requests=policy.queued_requests,
            queue_rows=policy.queued_rows,
            queue_capacity_rows=policy.capacity_rows,
            workers=Counter(worker.state.value for worker in self.workers),
            versions={self.version: self.state.value},
            budget_left=policy.attainment.budget_left,
            margin=policy.attainment.margin,
            stretch=self._times.stretch,
            late=policy.attainment.num_late,
            isolated_batches=policy.isolated_batches,
        )

    # What the pool tells

    def worker_progress(self, worker: Worker) -> None:
        self._event("worker.progress", worker.stage, worker)

    def worker_ready(self, worker: Worker, loaded: frames.Loaded) -> None:
        try:
            self._accept(loaded)
        except ConfigError as error:
            self.reason = str(error)
            self._event("model.refused", self.reason, worker, level="error")
            return
        if self._calibration is None:
            self._restore_times(loaded.manifest)
        for rows, seconds, cpu_seconds in loaded.samples:
            self._times.calibrate(rows, seconds, cpu_seconds)
        self._batcher.workers_changed()
        manifest = loaded.manifest
        self.metrics.loaded(
            manifest.version,
            alias=manifest.alias,
            runtime=manifest.runtime,
            sha256=digest(manifest.files) if manifest.files else None,
            load_seconds=loaded.load_seconds,
            warmup_seconds=loaded.warmup_seconds,
        )
        self._event(
            "worker.ready",
            f"loaded in {loaded.load_seconds:.2f} s, warm after {loaded.warmup_seconds:.2f} s",
            worker,
        )

    def worker_load_failed(self, worker: Worker, failure: frames.LoadFailed) -> None:
        self.reason = failure.message
        if failure.stack is not None:
            self.reason = f"loading raised {failure.error}; the log says where"
        self.metrics.load_failed()
        self._raised("model.load_failed", worker, failure)

    def worker_lost(self, worker: Worker, reason: str, batch_ids: set[int]) -> None:
        self._batcher.lost(batch_ids)
        self._batcher.workers_changed()
        if reason == STOPPED:
            return
        self.metrics.worker_restart(reason)
        if reason != LOAD_FAILED:
            self._event("worker.lost", reason, worker, level="warning")

    def sweep(self, request_timeout: float) -> None:
        """Replace the workers whose batch is older than any request may get: nobody waits for
        it any more, and what has not come by then hardly ever comes."""
        for worker in self._batcher.stalled(request_timeout):
            self._pool.replace(worker)

    def worker_restarts(self, worker: Worker, delay: float) -> None:
        when = f"in {format_duration(delay)}" if delay else "now"
        self._event("worker.restarts", f"another worker starts {when}", worker)

    def worker_output(self, worker: Worker, line: str) -> None:
        self._event("worker.output", line, worker)

    def batch_done(
        self, worker: Worker, frame: frames.Result | frames.Failed, body: memoryview
    ) -> None:
        self._batcher.done(worker, frame, body)

    # What the batcher tells

    def batch(self, worker: Worker, frame: frames.Result, decision: Dispatch) -> None:
        seconds = frame.finished - frame.started
        self.metrics.batch(self.version, decision.rows, seconds, frame.cpu_seconds)
        if frame.gc_seconds:
            self._gc_pauses.observe(frame.gc_seconds)

    def batch_failed(self, worker: Worker, frame: frames.Failed, guilty: list[Ticket]) -> None:
        self.metrics.batch_failed(self.version)
        if guilty:
            others = len(guilty) - 1 or None
            request_id = guilty[0].request_id
            self._raised("model.raised", worker, frame, request_id=request_id, others=others)

    def bug(self, error: Exception) -> None:
        self._log.event("server.bug", repr(error), "error", model=self.name)

    def _accept(self, loaded: frames.Loaded) -> None:
        """Take over what a worker found out about the model. Raises ConfigError."""
        manifest = loaded.manifest
        validator = (
            Validator.of_class(self._user_class, manifest.signature)
            if self._user_class
            else Validator.compile(manifest.signature)
        )
        self.manifest, self._validator = manifest, validator
        self._encoder = NativeEncoder(manifest, self.settings.output, self.settings.output_list)
        self.load_seconds, self.warmup_seconds = loaded.load_seconds, loaded.warmup_seconds
        self.reason = None
        self._policy.set_limits(_limits(self.settings, manifest.max_rows))

    def _restore_times(self, manifest: Manifest) -> None:
        """Begin with the batch times that an earlier run has learned."""
        key = key_of(manifest, self.settings.workers, this_machine())
        self._calibration = Calibration(cache_folder(), self.name, key)
        samples, problem = self._calibration.load()
        self._times.restore(samples)
        if problem is not None:
            self._log.event("model.calibration", problem, "warning", model=self.name)

    def _raised(
        self,
        name: str,
        worker: Worker,
        failure: frames.LoadFailed | frames.Failed,
        **fields: Any,
    ) -> None:
        fields |= {"error": failure.error, "stack": failure.stack}
        self._event(name, failure.message, worker, level="error", **fields)

    def _event(
        self, name: str, message: str, worker: Worker, *, level: Level = "info", **fields: Any
    ) -> None:
        self._log.event(
            name, message, level, model=self.name, worker=worker.number, pid=worker.pid, **fields
        )


def _limits(settings: ModelSettings, model_max_rows: int | None) -> Limits:
    """What the user set, else what the model says, else the defaults."""
    max_rows = settings.max_batch or DEFAULT_MAX_BATCH
    return Limits(
        max_batch_rows=min(max_rows, model_max_rows or max_rows),
        max_queue_rows=settings.max_queue,
        max_wait=settings.max_wait,
        objectives=slo.latencies(settings.slo),
    )


def _spec(settings: ModelSettings, user_class: type | None) -> ModelSpec:
    columns = settings.columns if isinstance(settings.columns, dict) else {}
    fields = Validator.of_class(user_class).signature.inputs if user_class is not None else ()
    return ModelSpec(
        source=settings.source,
        name=settings.name,
        method=settings.method,
        class_index=settings.class_index,
        trust=settings.trust,
        tracking_uri=settings.tracking_uri,
        columns=tuple({"name": name, **table} for name, table in columns.items()),
        class_columns=tuple(_declared(field) for field in fields),
    )


def _declared(column: Column) -> dict[str, Any]:
    """What a column says, as a table; what it leaves open is left out."""
    return {key: value for key, value in msgspec.to_builtins(column).items() if value is not None}


def _load_order(settings: ModelSettings, spec: ModelSpec) -> frames.Load:
    """What to load, and how to warm it up: no batch over the SLO will ever be formed."""
    latencies = slo.latencies(settings.slo)
    longest = latencies[0].threshold if latencies else LONGEST_WARMUP_BATCH
    return frames.Load(spec, _warmup_sizes(settings), longest)


def _warmup_sizes(settings: ModelSettings) -> tuple[int, ...]:
    """1, 2, 4, ... and the largest batch: the sizes at which batch time is measured."""
    largest = settings.max_batch or DEFAULT_MAX_BATCH
    sizes = {largest} | {1 << power for power in range(largest.bit_length())}
    return tuple(sorted(size for size in sizes if size <= largest))


def _check_columns(settings: ModelSettings) -> None:
    """Everything about the table of columns that can be told before the model is loaded."""
    if isinstance(settings.columns, dict):
        try:
            check_table(settings.columns)
        except ConfigError as error:
            key = f"models.{settings.name}.{error.key}"
            raise ConfigError(key, error.value, error.problem) from None


def _import_class(settings: ModelSettings) -> type | None:
    """The user's own pydantic class, when `columns` names one. Raises ConfigError."""
    if not isinstance(settings.columns, str):
        return None
    module_name, _, class_name = settings.columns.partition(":")
    try:
        found = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError, ValueError) as error:
        key = f"models.{settings.name}.columns"
        raise ConfigError(key, settings.columns, f"cannot be imported ({error})") from None
    if not isinstance(found, type):
        raise ConfigError(f"models.{settings.name}.columns", settings.columns, "is not a class")
    return found
