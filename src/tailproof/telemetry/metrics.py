"""Everything that is counted, and how Prometheus reads it.

Every request is received once and ends once, in one of six outcomes. One counter holds what ended
and in flight is what is left, so that for each (model, route), at any moment,

    received = ok + client_error + shed + timeout + cancelled + failed + in flight

The hot path adds to plain ints and lists; Prometheus families are built only when somebody
scrapes. Every label value comes from a closed set: the routes and models that the server declared,
and the enumerations below. What a client makes up becomes `unmatched` or `other`.

All methods belong to one thread, the event loop's.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from http import HTTPStatus
from itertools import accumulate
from typing import NamedTuple

from prometheus_client import PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector, CollectorRegistry

from tailproof import __version__
from tailproof.core.clock import monotonic
from tailproof.core.slo import Latency, Slo, latencies, parse
from tailproof.core.timeline import Timeline
from tailproof.core.waiting import Priority

PREFIX = "tailproof_"

UNMATCHED = "unmatched"
"""The route of a request whose path is none of ours."""
OTHER = "other"
"""What a value outside its closed set is counted as."""

OUTCOMES = ("ok", "client_error", "shed", "timeout", "cancelled", "failed")
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
CODES = frozenset({*map(int, HTTPStatus), 499})
SHED_REASONS = ("queue_full", "hopeless", "dropped", "limit", "memory", "quota", OTHER)
"""At the door: no room, or no hope to be in time. `dropped`: given up at dispatch."""
STAGES = ("door", "queue", "execute", "stream", OTHER)
"""How far a request had come when its client left or its deadline passed."""
RESTART_REASONS = ("signal", "exit", "stalled", "load_failed", "memory", OTHER)
WORKER_STATES = ("starting", "ready", "dead")
MODEL_STATES = ("loading", "ready", "failed", "down", "draining")

USUAL_ENDS = (
    ("POST", 200, "ok"),
    ("POST", 422, "client_error"),
    ("POST", 429, "shed"),
    ("POST", 499, "cancelled"),
    ("POST", 500, "failed"),
    ("POST", 503, "failed"),
    ("POST", 504, "timeout"),
)
"""Series of a model that start at 0, so that `rate()` sees the first of each."""

MAX_EDGES = 24
FACTORS = (0.9, 1.1, 0.75, 1.25, 0.5, 1.5, 2.0, 0.25, 4.0)
"""Edges around a threshold, as multiples of it; the first are the last to be given up."""
SPINE = (0.0005, 0.005, 0.05, 0.5, 5.0, 60.0)
"""One grid edge a decade, kept before the far factors: a histogram must show its whole range."""
GRID = (0.001, 0.002, 0.01, 0.02, 0.1, 0.2, 1.0, 2.0, 10.0, 30.0)

STAGE_EDGES = tuple(sorted((*SPINE, *GRID)))
ROW_EDGES = tuple(float(1 << power) for power in range(13))
"""1, 2, 4, ... 4096 rows: the largest request there can be."""
PAUSE_EDGES = (0.0001, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
"""From a pause that nobody feels to one that breaks every SLO."""


def buckets(thresholds: Sequence[float]) -> tuple[float, ...]:
    """Upper edges (seconds) of a histogram that can prove these SLO thresholds.

    Every threshold is an edge; without one, the share of requests within it cannot be read from
    the histogram at all. Around each stand its `FACTORS`, from 0.5 ms to 60 s stands a grid; of
    both, the least useful edges are left out when there would be more than 24.
    """
    edges = set(thresholds)
    around = [_tidy(threshold * factor) for factor in FACTORS for threshold in thresholds]
    for edge in (*SPINE, *around):
        if len(edges) < MAX_EDGES:
            edges.add(edge)
    grid = set(GRID) - edges
    while grid and len(edges) < MAX_EDGES:
        loneliest = max(sorted(grid), key=lambda edge: _gap(edge, edges))
        grid.remove(loneliest)
        edges.add(loneliest)
    return tuple(sorted(edges))


def edge_label(edge: float) -> str:
    """The `le` text of an edge: `0.009`, also where 9 x 1e-3 is 0.009000000000000001."""
    return "+Inf" if edge == math.inf else repr(_tidy(edge))


@cache
def _edge_labels(edges: tuple[float, ...]) -> tuple[str, ...]:
    return tuple(edge_label(edge) for edge in (*edges, math.inf))


def _tidy(value: float) -> float:
    return float(f"{value:.12g}")


def _gap(edge: float, edges: set[float]) -> float:
    """How far (as a logarithm) an edge is from its nearest neighbour."""
    return min(abs(math.log(edge / other)) for other in edges)


class LiveState(NamedTuple):
    """What the owner of a model's queue and workers knows; asked for at every scrape."""

    queue_requests: int
    queue_rows: int
    queue_capacity_rows: int | None = None
    workers: Mapping[str, int] = {}
    """How many workers are in each of `WORKER_STATES`; a state left out has none."""
    versions: Mapping[str | None, str] = {}
    """Which of `MODEL_STATES` each version is in."""
    budget_left: float | None = None
    """Share (0-1) of the late answers that may be given on purpose that is left."""
    margin: float | None = None
    """By which predicted batch times are multiplied."""
    stretch: float | None = None
    """How many times longer batches take than on an idle machine."""
    late: Mapping[str, int] = {}
    """Answers later than the SLO, by whether that was `expected` or a `surprise`."""
    isolated_batches: int = 0
    """Parts of failed batches that were computed again."""


class Histogram:
    """Counts a bucket, and the sum: what a Prometheus histogram is made of."""

    __slots__ = ("_counts", "_edges", "_sum")

    def __init__(self, edges: tuple[float, ...]) -> None:
        self._edges = edges
        self._counts = [0] * (len(edges) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count `value`; an edge belongs to the bucket that it closes."""
        self._counts[bisect_left(self._edges, value)] += 1
        self._sum += value

    @property
    def count(self) -> int:
        """How many values were observed."""
        return sum(self._counts)

    def add_to(self, family: HistogramMetricFamily, labels: Sequence[str]) -> None:
        """Write this histogram's samples (cumulative counts) into a family."""
        cumulative = accumulate(self._counts)
        samples = list(zip(_edge_labels(self._edges), cumulative, strict=True))
        family.add_metric(labels, samples, self._sum)


class _Version:
    """Where the time went in the requests and batches of one version."""

    __slots__ = (
        "alias",
        "assembly",
        "batch",
        "cpu_seconds",
        "execute",
        "failures",
        "load_seconds",
        "queue_wait",
        "runtime",
        "sha256",
        "warmup_seconds",
    )

    def __init__(self) -> None:
        self.queue_wait = Histogram(STAGE_EDGES)
        self.assembly = Histogram(STAGE_EDGES)
        self.execute = Histogram(STAGE_EDGES)
        self.batch = Histogram(STAGE_EDGES)
        self.cpu_seconds = 0.0
        self.failures = 0
        self.alias = self.runtime = self.sha256 = ""
        self.load_seconds: float | None = None
        self.warmup_seconds: float | None = None

    def observe(self, timeline: Timeline) -> None:
        if (seconds := timeline.queue_seconds) is not None:
            self.queue_wait.observe(seconds)
        if (seconds := timeline.batch_seconds) is not None:
            self.assembly.observe(seconds)
        if (seconds := timeline.infer_seconds) is not None:
            self.execute.observe(seconds)


class ModelMetrics:
    """The counts of one served model, over all its versions."""

    def __init__(
        self,
        name: str,
        slos: Sequence[Slo],
        probe: Callable[[], LiveState] | None,
    ) -> None:
        self.name = name
        self.slos = {_slo_label(slo): slo for slo in slos}
        self.probe = probe
        thresholds = [latency.threshold for latency in latencies(tuple(slos))]
        self.edges = buckets(thresholds)
        self.versions: dict[str | None, _Version] = {}
        self.batch_rows = Histogram(ROW_EDGES)
        self.causes = {
            "shed": dict.fromkeys(SHED_REASONS, 0),
            "timeout": dict.fromkeys(STAGES, 0),
            "cancelled": dict.fromkeys(STAGES, 0),
        }
        self.wasted_rows = {"timeout": 0, "cancelled": 0}
        self.by_priority: dict[tuple[Priority, str], int] = {}
        self.restarts = dict.fromkeys(RESTART_REASONS, 0)
        self.load_failures = 0

    def loaded(
        self,
        version: str | None,
        *,
        alias: str | None = None,
        runtime: str | None = None,
        sha256: str | None = None,
        load_seconds: float | None = None,
        warmup_seconds: float | None = None,
    ) -> None:
        """A worker has this version ready. Calling it again (alias moved, worker replaced)
        renews the facts and keeps the counts. `sha256` is hex or `sha256:` and hex."""
        facts = self.versions.setdefault(version, _Version())
        facts.alias, facts.runtime = alias or "", runtime or ""
        facts.sha256 = (sha256 or "").removeprefix("sha256:")[:12]
        facts.load_seconds, facts.warmup_seconds = load_seconds, warmup_seconds

    def unloaded(self, version: str | None) -> None:
        """The version is gone: its series end."""
        self.versions.pop(version, None)

    def load_failed(self) -> None:
        """A version could not be loaded or warmed."""
        self.load_failures += 1

    def worker_restart(self, reason: str) -> None:
        """A worker was lost. Only the first word of `reason` counts: `signal 9` is a `signal`."""
        kind = reason.partition(" ")[0]
        self.restarts[kind if kind in self.restarts else OTHER] += 1

    def batch(
        self,
        version: str | None,
        num_rows: int,
        seconds: float,
        cpu_seconds: float = 0.0,
    ) -> None:
        """A batch was computed in `seconds`, which took `cpu_seconds` of the worker's CPU."""
        self.batch_rows.observe(num_rows)
        facts = self.versions.get(version)
        if facts is not None:
            facts.batch.observe(seconds)
            facts.cpu_seconds += cpu_seconds

    def batch_failed(self, version: str | None) -> None:
        """The model raised."""
        facts = self.versions.get(version)
        if facts is not None:
            facts.failures += 1

    def ended_badly(self, outcome: str, cause: str, wasted_rows: int) -> None:
        """Say why, for the outcomes that have a cause. Called by `Account.answered`."""
        causes = self.causes.get(outcome)
        if causes is None:
            return
        causes[cause if cause in causes else OTHER] += 1
        if outcome in self.wasted_rows:
            self.wasted_rows[outcome] += wasted_rows


class Account:
    """The requests of one (model, route), each received once and ended once."""

    __slots__ = ("_durations", "_ended", "_model", "_versions", "model", "num_received", "route")

    def __init__(self, model: ModelMetrics | None, route: str) -> None:
        self.model = "" if model is None else model.name
        self.route = route
        self.num_received = 0
        self._ended: dict[tuple[str, int, str], int] = {}
        self._model = model
        self._durations: dict[str, Histogram] = {}
        if model is not None:
            self._versions = model.versions
            self._ended.update(dict.fromkeys(USUAL_ENDS, 0))
            self._durations = {outcome: Histogram(model.edges) for outcome in OUTCOMES}

    def answered(
        self,
        method: str,
        code: int,
        outcome: str,
        timeline: Timeline,
        *,
        version: str | None = None,
        priority: Priority = Priority.NORMAL,
        wasted_rows: int = 0,
        cause: str = "",
    ) -> None:
        """The one end of a request that was `received`, whatever the end is.

        Args:
            code: the HTTP status; 499 when the client left.
            outcome: one of `OUTCOMES`.
            version: the version that computed it.
            priority: its class.
            wasted_rows: rows of it that were computed, or are being computed, for nobody.
            cause: of a shed request one of `SHED_REASONS`; of a timeout or a cancelled one the
                stage in which it ended, one of `STAGES`.
        """
        key = (method, code, outcome)
        if key not in self._ended:
            key = self._in_closed_sets(key)
        self._ended[key] += 1
        if self._model is None:
            return
        by_priority, which = self._model.by_priority, (priority, outcome)
        by_priority[which] = by_priority.get(which, 0) + 1
        if outcome != "ok":
            self._model.ended_badly(outcome, cause, wasted_rows)
        if timeline.answered is not None:
            self._durations[outcome].observe(timeline.answered)
        stages = self._versions.get(version)
        if stages is not None:
            stages.observe(timeline)

    @property
    def in_flight(self) -> int:
        """Requests received and not ended yet."""
        return self.num_received - sum(self._ended.values())

    def ended(self) -> list[tuple[str, str, str, int]]:
        """(method, code, outcome, requests), as they are labelled."""
        return [
            (method, str(code or OTHER), outcome, num)
            for (method, code, outcome), num in self._ended.items()
        ]

    def durations(self) -> list[tuple[str, Histogram]]:
        """(outcome, response times) of a model's route; outcomes never seen are absent."""
        return [
            (outcome, histogram)
            for outcome, histogram in self._durations.items()
            if outcome == "ok" or histogram.count
        ]

    def _in_closed_sets(self, key: tuple[str, int, str]) -> tuple[str, int, str]:
        method, code, outcome = key
        assert outcome in OUTCOMES, outcome
        known = (method if method in METHODS else OTHER, code if code in CODES else 0, outcome)
        self._ended.setdefault(known, 0)
        return known


class Metrics(Collector):
    """All metrics of the front process; registers itself with `registry`.

    `routes` are the templates of the pages, probes and other routes that belong to no model.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        routes: Iterable[str] = (),
        *,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.event_loop_lag = Histogram(PAUSE_EDGES)
        self.gc_pauses = {"front": Histogram(PAUSE_EDGES), "worker": Histogram(PAUSE_EDGES)}
        """Of the front each pause; of a worker the sum over each batch that had one."""
        self.log_dropped: Callable[[], int] | None = None
        """Asked at a scrape for the number of log records that were dropped."""
        self._registry = registry
        self._clock = clock
        self._scrape_seconds: float | None = None
        self._models: dict[str, ModelMetrics] = {}
        self._accounts: dict[tuple[str, str], Account] = {}
        self._unmatched = self._accounts["", UNMATCHED] = Account(None, UNMATCHED)
        self.add_routes(routes)
        registry.register(self)
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)

    def add_routes(self, routes: Iterable[str]) -> None:
        """Declare route templates that belong to no model. Known ones keep their counts."""
        for route in routes:
            self._accounts.setdefault(("", route), Account(None, route))

    def model(
        self,
        name: str,
        slos: Sequence[Slo],
        routes: Iterable[str],
        probe: Callable[[], LiveState] | None = None,
    ) -> ModelMetrics:
        """Register a model, its SLOs and its route templates; its counters start at 0.

        `probe` is asked at every scrape. Raises ValueError when `name` is registered already.
        """
        if not name or name in self._models:
            raise ValueError(f"a model name must be new and not empty; got {name!r}")
        model = self._models[name] = ModelMetrics(name, slos, probe)
        for route in routes:
            self._accounts[name, route] = Account(model, route)
        return model

    def remove_model(self, name: str) -> None:
        """Forget a model: its series end. Requests still in flight end on their own accounts."""
        self._models.pop(name, None)
        for key in [key for key in self._accounts if key[0] == name]:
            del self._accounts[key]

    def received(self, model: str, route: str) -> Account:
        """Count a request in. The account that comes back must be told how the request ended.

        A model or route that was not declared counts as no model, or as `unmatched`.
        """
        account = self._accounts.get((model, route))
        if account is None:
            account = self._accounts.get(("", route), self._unmatched)
        account.num_received += 1
        return account

    def accounts(self) -> list[Account]:
        """All accounts, for whoever shows totals."""
        return list(self._accounts.values())

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """The exposition and its content type: OpenMetrics when `accept` asks for it first, else
        Prometheus text. Any `accept` gets an answer."""
        began = self._clock()
        if _wants_openmetrics(accept):
            # Our names need no escaping, and the default looks at each of their letters.
            body: bytes = openmetrics.generate_latest(  # type: ignore[no-untyped-call]
                self._registry, escaping=openmetrics.ALLOWUTF8
            )
            content_type = OPENMETRICS_TYPE
        else:
            body, content_type = generate_latest(self._registry), TEXT_TYPE
        self._scrape_seconds = self._clock() - began
        return body, content_type

    def collect(self) -> Iterator[Metric]:
        """Build the families (called by the registry at a scrape)."""
        accounts, models = self.accounts(), list(self._models.values())
        yield from _request_families(accounts)
        yield _in_flight_family(accounts)
        yield from _stage_families(models)
        yield from _batch_families(models)
        yield from _cause_families(models)
        lives = [(model.name, model.probe()) for model in models if model.probe is not None]
        yield from _live_families(lives)
        yield from _policy_families(lives)
        yield from _version_families(models)
        yield from _slo_families(models)
        yield from self._process_families()

    def _process_families(self) -> Iterator[Metric]:
        lag = _histogram("event_loop_lag_seconds", "How late the event loop ran a timer.", ())
        self.event_loop_lag.add_to(lag, ())
        pauses = _histogram(
            "gc_pause_seconds",
            "Pauses of Python's collector; of a worker, per batch.",
            ("process",),
        )
        for process, histogram in self.gc_pauses.items():
            histogram.add_to(pauses, (process,))
        yield from (lag, pauses)
        if self.log_dropped is not None:
            dropped = _counter("log_records_dropped", "Log records that could not be written.", ())
            dropped.add_metric((), self.log_dropped())
            yield dropped
        if self._scrape_seconds is not None:
            scrape = _gauge("scrape_duration_seconds", "Time to render the previous scrape.", ())
            scrape.add_metric((), self._scrape_seconds)
            yield scrape
        build = InfoMetricFamily(PREFIX + "build", "This server's version.")
        build.add_metric((), {"version": __version__})
        yield build


TEXT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"


def _wants_openmetrics(accept: str) -> bool:
    """Whether OpenMetrics 1.x is the first of the formats that we have."""
    for offer in accept[:1024].split(","):
        media_type, *parameters = (part.strip() for part in offer.split(";"))
        if media_type == "text/plain":
            return False
        if media_type == "application/openmetrics-text":
            version = next((p[8:] for p in parameters if p.startswith("version=")), "1.0.0")
            if version.startswith("1."):
                return True
    return False


def _unit(name: str) -> str:
    last = name.rpartition("_")[2]
    return last if last in ("seconds", "ratio") else ""


def _counter(name: str, text: str, labels: Sequence[str]) -> CounterMetricFamily:
    return CounterMetricFamily(PREFIX + name, text, labels=labels, unit=_unit(name))


def _gauge(name: str, text: str, labels: Sequence[str]) -> GaugeMetricFamily:
    return GaugeMetricFamily(PREFIX + name, text, labels=labels, unit=_unit(name))


def _histogram(name: str, text: str, labels: Sequence[str]) -> HistogramMetricFamily:
    return HistogramMetricFamily(PREFIX + name, text, labels=labels, unit=_unit(name))


def _slo_label(slo: Slo) -> str:
    """The SLO's text; with all digits where the text is rounded, so that no two are the same."""
    text = str(slo)
    if isinstance(slo, Latency) and parse(text) != slo:
        return f"{slo.signal} p{slo.percentile!r} < {slo.threshold!r}s"
    return text


def _request_families(accounts: list[Account]) -> Iterator[Metric]:
    received = _counter("requests_received", "Requests that came in.", ("model", "route"))
    ended = _counter(
        "requests", "Requests that ended.", ("model", "route", "method", "code", "outcome")
    )
    duration = _histogram(
        "request_duration_seconds",
        "From the request's arrival to its answer; an edge is on every SLO threshold.",
        ("model", "route", "outcome"),
    )
    for account in accounts:
        where = (account.model, account.route)
        received.add_metric(where, account.num_received)
        for method, code, outcome, num in account.ended():
            ended.add_metric((*where, method, code, outcome), num)
        for outcome, histogram in account.durations():
            histogram.add_to(duration, (*where, outcome))
    yield from (received, ended, duration)


def _in_flight_family(accounts: list[Account]) -> Metric:
    family = _gauge("inflight_requests", "Requests received and not ended.", ("model",))
    in_flight: dict[str, int] = {}
    for account in accounts:
        in_flight[account.model] = in_flight.get(account.model, 0) + account.in_flight
    for model, num in in_flight.items():
        family.add_metric((model,), num)
    return family


def _stage_families(models: list[ModelMetrics]) -> Iterator[Metric]:
    labels = ("model", "version")
    queue = _histogram("queue_wait_seconds", "Waiting because every worker was busy.", labels)
    assembly = _histogram("batch_assembly_seconds", "Waiting for the batch to be formed.", labels)
    execute = _histogram("execute_seconds", "Inside the model's runtime, per request.", labels)
    for model in models:
        for version, facts in model.versions.items():
            where = (model.name, version or "")
            facts.queue_wait.add_to(queue, where)
            facts.assembly.add_to(assembly, where)
            facts.execute.add_to(execute, where)
    yield from (queue, assembly, execute)


def _batch_families(models: list[ModelMetrics]) -> Iterator[Metric]:
    labels = ("model", "version")
    rows = _histogram("batch_rows", "Rows in a batch.", ("model",))
    seconds = _histogram("batch_seconds", "Time to compute a batch in the runtime.", labels)
    cpu = _counter("batch_cpu_seconds", "CPU time that batches took in the workers.", labels)
    failures = _counter("batch_failures", "Batches in which the model raised.", labels)
    for model in models:
        model.batch_rows.add_to(rows, (model.name,))
        for version, facts in model.versions.items():
            where = (model.name, version or "")
            facts.batch.add_to(seconds, where)
            cpu.add_metric(where, facts.cpu_seconds)
            failures.add_metric(where, facts.failures)
    yield from (rows, seconds, cpu, failures)


def _cause_families(models: list[ModelMetrics]) -> Iterator[Metric]:
    by_reason, by_stage = ("model", "reason"), ("model", "stage")
    shed = _counter("shed", "Requests refused or dropped, never executed.", by_reason)
    late = _counter("deadline_exceeded", "Requests whose time passed, by stage.", by_stage)
    cancelled = _counter("cancelled", "Requests whose client left, by stage.", by_stage)
    wasted = _counter("wasted_rows", "Rows computed for a request that had ended.", by_reason)
    restarts = _counter("worker_restarts", "Workers that were lost and replaced.", by_reason)
    load_failures = _counter("model_load_failures", "Failed attempts to load.", ("model",))
    by_priority = _counter(
        "priority_requests", "Requests that ended, by class.", ("model", "priority", "outcome")
    )
    for model in models:
        for (priority, outcome), num in sorted(model.by_priority.items()):
            by_priority.add_metric((model.name, priority.word, outcome), num)
        for family, counts in (
            (shed, model.causes["shed"]),
            (late, model.causes["timeout"]),
            (cancelled, model.causes["cancelled"]),
            (wasted, model.wasted_rows),
            (restarts, model.restarts),
        ):
            for label, num in counts.items():
                family.add_metric((model.name, label), num)
        load_failures.add_metric((model.name,), model.load_failures)
    yield from (shed, late, cancelled, wasted, by_priority, restarts, load_failures)


def _live_families(lives: list[tuple[str, LiveState]]) -> Iterator[Metric]:
    requests = _gauge("queue_requests", "Requests waiting now.", ("model",))
    rows = _gauge("queue_rows", "Rows waiting now.", ("model",))
    capacity = _gauge("queue_capacity_rows", "Most rows that may wait.", ("model",))
    workers = _gauge("workers", "Worker processes.", ("model", "state"))
    states = _gauge("model_state", "1 for the state it is in.", ("model", "version", "state"))
    for name, live in lives:
        requests.add_metric((name,), live.queue_requests)
        rows.add_metric((name,), live.queue_rows)
        if live.queue_capacity_rows is not None:
            capacity.add_metric((name,), live.queue_capacity_rows)
        for state in WORKER_STATES:
            workers.add_metric((name, state), live.workers.get(state, 0))
        for version, current in live.versions.items():
            for state in MODEL_STATES:
                states.add_metric((name, version or "", state), int(state == current))
    yield from (requests, rows, capacity, workers, states)


def _policy_families(lives: list[tuple[str, LiveState]]) -> Iterator[Metric]:
    labels = ("model",)
    budget = _gauge(
        "slo_budget_left_ratio", "Late answers that may still be given on purpose.", labels
    )
    margin = _gauge("batch_margin_ratio", "Factor on predicted batch times.", labels)
    stretch = _gauge("batch_stretch_ratio", "Batch time over that of an idle machine.", labels)
    late = _counter("late_answers", "Answers later than the SLO's threshold.", ("model", "reason"))
    isolated = _counter(
        "isolated_batches", "Parts of failed batches that were computed again.", labels
    )
    for name, live in lives:
        for family, value in (
            (budget, live.budget_left),
            (margin, live.margin),
            (stretch, live.stretch),
        ):
            if value is not None:
                family.add_metric((name,), value)
        for reason, num in live.late.items():
            late.add_metric((name, reason), num)
        isolated.add_metric((name,), live.isolated_batches)
    yield from (budget, margin, stretch, late, isolated)


def _version_families(models: list[ModelMetrics]) -> Iterator[Metric]:
    labels = ("model", "version")
    info = InfoMetricFamily(PREFIX + "model", "What is served.", labels=labels)
    load = _gauge("model_load_duration_seconds", "Time that loading took.", labels)
    warmup = _gauge("model_warmup_duration_seconds", "Time that warming up took.", labels)
    for model in models:
        for version, facts in model.versions.items():
            where = (model.name, version or "")
            declared = {"alias": facts.alias, "runtime": facts.runtime, "sha256_12": facts.sha256}
            info.add_metric(where, declared)
            if facts.load_seconds is not None:
                load.add_metric(where, facts.load_seconds)
            if facts.warmup_seconds is not None:
                warmup.add_metric(where, facts.warmup_seconds)
    yield from (info, load, warmup)


def _slo_families(models: list[ModelMetrics]) -> Iterator[Metric]:
    labels = ("model", "slo")
    objective = _gauge("slo_objective_ratio", "Share of requests that must be good.", labels)
    threshold = _gauge("slo_threshold_seconds", "Time within which an answer is good.", labels)
    for model in models:
        for label, slo in model.slos.items():
            objective.add_metric((model.name, label), slo.objective)
            if isinstance(slo, Latency):
                threshold.add_metric((model.name, label), _tidy(slo.threshold))
    yield from (objective, threshold)
