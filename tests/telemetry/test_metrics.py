"""The metrics tell the truth, to the request, and nobody from outside can blow them up."""

import math
import random
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from tailproof.core import slo
from tailproof.core.slo import Latency
from tailproof.core.timeline import Timeline
from tailproof.core.units import parse_duration
from tailproof.telemetry import metrics
from tailproof.telemetry.metrics import Account, Histogram, LiveState, Metrics, buckets

seeded = settings(max_examples=50)

SLOS = (slo.parse("p95 < 50ms"), slo.parse("p99 < 250ms"), slo.parse("availability > 99.9%"))
PAGES = ("/", "/metrics", "/health")
TIMELINE = Timeline(
    admitted=0.001,
    worker_free=0.011,
    dispatched=0.016,
    started=0.017,
    finished=0.037,
    answered=0.04,
)
QUIET = LiveState(0, 0)

Scrape = dict[str, Metric]


def make(probe: Callable[[], LiveState] | None = lambda: QUIET) -> Metrics:
    """Metrics with one model, `fraud`, of which version 3 is loaded."""
    made = Metrics(CollectorRegistry(), PAGES)
    model = made.model("fraud", SLOS, ("/predict", "/invocations"), probe)
    model.loaded("3", alias="champion", runtime="sklearn", sha256="sha256:" + "ab" * 32)
    return made


def scrape(made: Metrics) -> Scrape:
    body, _ = made.render()
    return {family.name: family for family in parse_text(body.decode())}


def value(found: Scrape, name: str, **labels: str) -> float | None:
    """Sum of the samples of that name with these labels; None when there is none."""
    values = [
        sample.value
        for family in found.values()
        for sample in family.samples
        if sample.name == f"tailproof_{name}" and labels.items() <= sample.labels.items()
    ]
    return sum(values) if values else None


def num_series(made: Metrics) -> int:
    return sum(len(family.samples) for family in made.collect())


# Buckets

THRESHOLDS = st.floats(min_value=0.0005, max_value=60.0)


@seeded
@given(st.lists(THRESHOLDS, max_size=40))
def test_every_threshold_is_an_edge_and_edges_are_few_and_sorted(thresholds: list[float]) -> None:
    edges = buckets(thresholds)

    assert set(thresholds) <= set(edges)
    assert list(edges) == sorted(set(edges))
    assert len(edges) <= max(24, len(set(thresholds)))


@seeded
@given(THRESHOLDS)
def test_one_threshold_keeps_all_its_neighbours_and_the_whole_range(threshold: float) -> None:
    edges = buckets([threshold])

    for factor in (0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 4.0):
        assert any(math.isclose(edge, threshold * factor, rel_tol=1e-9) for edge in edges)
    assert edges[0] <= 0.0005
    assert edges[-1] >= 60.0


@seeded
@given(st.lists(THRESHOLDS, min_size=2, max_size=6))
def test_several_thresholds_keep_the_nearest_neighbours_of_each(thresholds: list[float]) -> None:
    edges = buckets(thresholds)

    for threshold in thresholds:
        assert any(math.isclose(edge, threshold * 0.9, rel_tol=1e-9) for edge in edges)
        assert any(math.isclose(edge, threshold * 1.1, rel_tol=1e-9) for edge in edges)


@pytest.mark.parametrize(("num_thresholds", "num_edges"), [(0, 16), (1, 24), (24, 24), (25, 25)])
def test_twenty_four_edges_unless_there_are_more_thresholds(
    num_thresholds: int, num_edges: int
) -> None:
    thresholds = [0.0123 * 1.2**index for index in range(num_thresholds)]

    assert len(buckets(thresholds)) == num_edges


@pytest.mark.parametrize(
    ("written", "label"),
    [("9ms", "0.009"), ("13ms", "0.013"), ("1s", "1.0"), ("100ms", "0.1"), ("50us", "5e-05")],
)
def test_the_text_of_an_edge_is_what_the_user_wrote(written: str, label: str) -> None:
    assert metrics.edge_label(parse_duration(written)) == label


def test_every_whole_millisecond_has_a_short_label() -> None:
    labels = [metrics.edge_label(parse_duration(f"{n}ms")) for n in range(1, 10_000)]

    assert max(map(len, labels)) == len("9.999")


def test_an_edge_belongs_to_the_bucket_that_it_closes() -> None:
    histogram = Histogram((0.1, 0.2))
    for seconds in (0.1, math.nextafter(0.1, 1.0), 0.2, 0.3):
        histogram.observe(seconds)

    family = HistogramMetricFamily("h", "h", labels=())
    histogram.add_to(family, ())

    by_edge = {s.labels["le"]: s.value for s in family.samples if s.name == "h_bucket"}
    assert by_edge == {"0.1": 1, "0.2": 3, "+Inf": 4}
    assert histogram.count == 4


# Accounting

ENDS = (
    (200, "ok", ""),
    (422, "client_error", ""),
    (429, "shed", "queue_full"),
    (429, "shed", "a reason nobody declared"),
    (499, "cancelled", "queue"),
    (499, "cancelled", "execute"),
    (500, "failed", ""),
    (503, "failed", ""),
    (504, "timeout", "execute"),
)
ASKED = (
    ("fraud", "/predict"),
    ("fraud", "/invocations"),
    ("", "/health"),
    ("", "/no/such/page"),
    ("unknown", "/predict"),
)
LANDS = {
    ("", "/no/such/page"): ("", "unmatched"),
    ("unknown", "/predict"): ("", "unmatched"),
}
"""Where a request is counted whose model or route is not ours."""

Where = tuple[str, str]


@dataclass
class Client:
    """Sends requests and keeps its own books. `skip` is the number of the end that the server
    forgets to report: a flaw that the books must show."""

    metrics: Metrics
    skip: int | None = None
    sent: Counter[Where] = field(default_factory=Counter)
    ended: Counter[tuple[Where, str]] = field(default_factory=Counter)
    open: list[tuple[Where, Account]] = field(default_factory=list)
    num_ends: int = 0

    def send(self, which: int) -> None:
        asked = ASKED[which % len(ASKED)]
        where = LANDS.get(asked, asked)
        self.open.append((where, self.metrics.received(*asked)))
        self.sent[where] += 1

    def end(self, which: int) -> None:
        if not self.open:
            return
        where, account = self.open.pop(which % len(self.open))
        code, outcome, cause = ENDS[which % len(ENDS)]
        self.ended[where, outcome] += 1
        self.num_ends += 1
        if self.num_ends != self.skip:
            account.answered(
                "POST", code, outcome, TIMELINE, version="3", wasted_rows=2, cause=cause
            )

    def check(self) -> None:
        """The scrape agrees with the books, for each (model, route) and outcome, to the one."""
        found = scrape(self.metrics)
        in_flight: Counter[str] = Counter()
        for where in {LANDS.get(asked, asked) for asked in ASKED}:
            labels = {"model": where[0], "route": where[1]}
            received = value(found, "requests_received_total", **labels)
            ends = {
                outcome: value(found, "requests_total", **labels, outcome=outcome) or 0
                for outcome in metrics.OUTCOMES
            }
            assert received == self.sent[where]
            assert ends == {name: self.ended[where, name] for name in metrics.OUTCOMES}
            in_flight[where[0]] += int(received - sum(ends.values()))
        for model, num in in_flight.items():
            assert value(found, "inflight_requests", model=model) == num
            assert num == sum(where[0] == model for where, _ in self.open)


STEPS = st.lists(st.tuples(st.sampled_from(["send", "end"]), st.integers(0, 10**6)), max_size=40)


@seeded
@given(STEPS)
def test_received_is_what_ended_and_what_is_in_flight(steps: list[tuple[str, int]]) -> None:
    client = Client(make())

    for number, (step, which) in enumerate(steps):
        getattr(client, step)(which)
        if number % 8 == 0:
            client.check()
    client.check()


def test_a_forgotten_end_is_caught_by_the_same_check() -> None:
    """The negative control: without it, the property above might hold for any server."""
    for skip, caught in ((None, False), (7, True)):
        client = Client(make(), skip=skip)
        for which in range(20):
            client.send(which)
        for which in range(20):
            client.end(which)
        if caught:
            with pytest.raises(AssertionError):
                client.check()
        else:
            client.check()


def test_an_end_reported_twice_is_caught_by_the_same_check() -> None:
    client = Client(make())
    client.send(0)
    account = client.open[0][1]
    client.end(0)
    client.check()

    account.answered("POST", 200, "ok", TIMELINE)

    with pytest.raises(AssertionError):
        client.check()


@seeded
@given(STEPS)
def test_causes_add_up_to_their_outcomes(steps: list[tuple[str, int]]) -> None:
    client = Client(make())
    for step, which in steps:
        getattr(client, step)(which)

    found = scrape(client.metrics)
    for family, outcome in (
        ("shed_total", "shed"),
        ("deadline_exceeded_total", "timeout"),
        ("cancelled_total", "cancelled"),
    ):
        assert value(found, family, model="fraud") == value(
            found, "requests_total", model="fraud", outcome=outcome
        )


def test_a_model_removed_while_it_computes_leaves_the_other_accounts_right() -> None:
    made = make()
    account = made.received("fraud", "/predict")

    made.remove_model("fraud")
    account.answered("POST", 200, "ok", TIMELINE, version="3")

    found = scrape(made)
    assert value(found, "requests_received_total", model="fraud") is None
    assert value(found, "inflight_requests", model="") == 0


def test_the_accounts_tell_what_the_scrape_tells() -> None:
    made = make()
    made.received("fraud", "/predict")
    made.received("fraud", "/predict").answered("POST", 200, "ok", TIMELINE)

    account = next(a for a in made.accounts() if (a.model, a.route) == ("fraud", "/predict"))

    assert (account.num_received, account.in_flight) == (2, 1)
    assert ("POST", "200", "ok", 1) in account.ended()


# Closed sets


KNOWN = (("", "/no/such/page"), ("", "/health"), ("fraud", "/predict"))


def test_ten_thousand_made_up_requests_add_no_series() -> None:
    made = make()
    chance = random.Random(26)

    def word() -> str:
        return "".join(chr(chance.randrange(1, 0xD800)) for _ in range(chance.randrange(1, 20)))

    def either(known: str) -> str:
        return chance.choice((known, word()))

    for where in KNOWN:  # everything that there can be, once
        for method in (*sorted(metrics.METHODS), "MADE-UP"):
            for code, outcome, _ in ENDS:
                made.received(*where).answered(method, code, outcome, TIMELINE)
                made.received(*where).answered(method, 0, outcome, TIMELINE)
    before = num_series(made)
    for _ in range(10_000):
        model, route = chance.choice(KNOWN)
        code, outcome, cause = chance.choice(ENDS)
        account = made.received(either(model), either(route))
        code = chance.choice((code, chance.randrange(600, 10**6)))
        account.answered(
            either("GET"), code, outcome, TIMELINE, version=either("3"), cause=either(cause)
        )

    assert num_series(made) == before
    assert value(scrape(made), "requests_received_total", route="unmatched") > 5_000


@pytest.mark.parametrize(
    ("method", "code", "labelled"),
    [
        ("GET", 404, ("GET", "404")),
        ("BREW", 404, ("other", "404")),
        ("get", 404, ("other", "404")),
        ("GET", 499, ("GET", "499")),
        ("GET", 599, ("GET", "other")),
        ("GET", 10**9, ("GET", "other")),
    ],
)
def test_methods_and_codes_come_from_closed_sets(
    method: str, code: int, labelled: tuple[str, str]
) -> None:
    made = make()

    made.received("", "/health").answered(method, code, "client_error", TIMELINE)

    ended = next(account.ended() for account in made.accounts() if account.route == "/health")
    assert ended == [(*labelled, "client_error", 1)]


@pytest.mark.parametrize(
    ("reason", "counted_as"),
    [
        ("signal 9", "signal"),
        ("exit 1", "exit"),
        ("stalled", "stalled"),
        ("", "other"),
        ("struck by lightning", "other"),
    ],
)
def test_why_a_worker_was_lost_is_its_first_word(reason: str, counted_as: str) -> None:
    made = make()
    model = made.model("m", (), ("/m",))

    model.worker_restart(reason)

    found = scrape(made)
    assert value(found, "worker_restarts_total", model="m", reason=counted_as) == 1
    assert value(found, "worker_restarts_total", model="m") == 1


@pytest.mark.parametrize("name", ["", "fraud"])
def test_a_model_needs_a_name_of_its_own(name: str) -> None:
    with pytest.raises(ValueError, match="model name"):
        make().model(name, (), ())


# What the families say


def test_a_registered_model_starts_at_zero() -> None:
    found = scrape(make())

    for name, labels in (
        ("requests_received_total", {"route": "/predict"}),
        ("requests_total", {"route": "/predict", "code": "200", "outcome": "ok"}),
        ("requests_total", {"route": "/predict", "code": "504", "outcome": "timeout"}),
        ("request_duration_seconds_count", {"route": "/predict", "outcome": "ok"}),
        ("shed_total", {"reason": "queue_full"}),
        ("deadline_exceeded_total", {"stage": "queue"}),
        ("cancelled_total", {"stage": "execute"}),
        ("wasted_rows_total", {"reason": "cancelled"}),
        ("worker_restarts_total", {"reason": "signal"}),
        ("model_load_failures_total", {}),
        ("batch_rows_count", {}),
        ("batch_failures_total", {"version": "3"}),
    ):
        assert value(found, name, model="fraud", **labels) == 0, name


def test_what_is_not_known_is_absent() -> None:
    made = make(probe=None)

    found = scrape(made)

    for name in ("queue_rows", "workers", "model_state", "log_records_dropped_total"):
        assert value(found, name) is None, name
    for name in ("model_load_duration_seconds", "scrape_duration_seconds"):
        assert value(found, name) is None, name


def test_the_queue_is_asked_at_every_scrape() -> None:
    states = iter(
        (
            LiveState(2, 7, 64, {"ready": 1, "starting": 1}, {"3": "ready", None: "loading"}),
            LiveState(0, 0, None, {"ready": 2}, {"3": "draining"}),
        )
    )
    made = make(lambda: next(states))

    first, second = scrape(made), scrape(made)

    assert [value(first, name) for name in ("queue_requests", "queue_rows")] == [2, 7]
    assert value(first, "queue_capacity_rows") == 64
    assert value(first, "workers", state="ready") == value(first, "workers", state="starting") == 1
    assert value(first, "workers", state="dead") == 0
    assert value(first, "model_state", version="3", state="ready") == 1
    assert value(first, "model_state", version="", state="loading") == 1
    assert value(first, "model_state") == 2
    assert value(second, "queue_rows") == 0
    assert value(second, "queue_capacity_rows") is None
    assert value(second, "model_state", version="3", state="draining") == 1


def test_the_parts_of_a_response_time_go_to_their_histograms() -> None:
    made = make()

    made.received("fraud", "/predict").answered("POST", 200, "ok", TIMELINE, version="3")

    found = scrape(made)
    sums = {
        name: value(found, f"{name}_sum", model="fraud", version="3")
        for name in ("queue_wait_seconds", "batch_assembly_seconds", "execute_seconds")
    }
    assert sums == {
        "queue_wait_seconds": pytest.approx(0.01),
        "batch_assembly_seconds": pytest.approx(0.005),
        "execute_seconds": pytest.approx(0.02),
    }
    duration = {"route": "/predict", "outcome": "ok"}
    assert value(found, "request_duration_seconds_sum", **duration) == pytest.approx(0.04)
    assert value(found, "request_duration_seconds_bucket", le="0.05", **duration) == 1
    assert value(found, "request_duration_seconds_bucket", le="0.0375", **duration) == 0


def test_stamps_that_were_not_taken_are_not_observed() -> None:
    made = make()

    made.received("fraud", "/predict").answered(
        "POST", 422, "client_error", Timeline(answered=0.001), version="3"
    )
    made.received("fraud", "/predict").answered("POST", 499, "cancelled", Timeline())

    found = scrape(made)
    assert value(found, "queue_wait_seconds_count") == 0
    assert value(found, "execute_seconds_count") == 0
    assert value(found, "request_duration_seconds_count", outcome="client_error") == 1
    assert value(found, "request_duration_seconds_count", outcome="cancelled") is None


def test_every_slo_threshold_is_an_edge_of_the_response_time() -> None:
    found = scrape(make())

    edges = {
        sample.labels["le"]
        for sample in found["tailproof_request_duration_seconds"].samples
        if sample.name.endswith("_bucket")
    }
    for label in ("0.05", "0.25"):
        assert label in edges
    assert value(found, "slo_threshold_seconds", slo="p95 < 50ms") == 0.05
    assert value(found, "slo_objective_ratio", slo="p95 < 50ms") == 0.95
    assert value(found, "slo_objective_ratio", slo="availability > 99.9%") == pytest.approx(0.999)
    assert value(found, "slo_threshold_seconds", slo="availability > 99.9%") is None


def test_two_slos_that_print_the_same_are_two_series() -> None:
    made = Metrics(CollectorRegistry())
    made.model("m", (Latency(95.0, 0.0500001), Latency(95.0, 0.0500002)), ("/m",))

    samples = scrape(made)["tailproof_slo_threshold_seconds"].samples

    assert sorted(sample.value for sample in samples) == [0.0500001, 0.0500002]


def test_wasted_rows_are_those_of_requests_that_timed_out_or_left() -> None:
    made = make()

    def end(code: int, outcome: str, cause: str, rows: int) -> None:
        account = made.received("fraud", "/predict")
        account.answered("POST", code, outcome, TIMELINE, wasted_rows=rows, cause=cause)

    end(499, "cancelled", "queue", 0)
    end(499, "cancelled", "execute", 2)
    end(499, "cancelled", "stream", 4)
    end(504, "timeout", "queue", 0)
    end(504, "timeout", "execute", 16)
    end(429, "shed", "execute", 32)
    end(200, "ok", "execute", 64)

    found = scrape(made)
    assert value(found, "wasted_rows_total", reason="cancelled") == 2 + 4
    assert value(found, "wasted_rows_total", reason="timeout") == 16


def test_batches_are_counted_by_rows_and_time() -> None:
    made = make()
    model = made.model("m", (), ("/m",))
    model.loaded("1")

    model.batch("1", 4096, 0.25, cpu_seconds=0.5)
    model.batch("1", 1, 0.25)
    model.batch("never loaded", 3, 9.0)
    model.batch_failed("1")
    model.load_failed()

    found = scrape(made)
    assert value(found, "batch_rows_sum", model="m") == 4100
    assert value(found, "batch_rows_bucket", model="m", le="1.0") == 1
    assert value(found, "batch_rows_bucket", model="m", le="4096.0") == 3
    assert value(found, "batch_seconds_sum", model="m") == 0.5
    assert value(found, "batch_cpu_seconds_total", model="m") == 0.5
    assert value(found, "batch_failures_total", model="m") == 1
    assert value(found, "model_load_failures_total", model="m") == 1


def test_what_is_served_is_told_until_it_is_unloaded() -> None:
    made = make()
    model = made.model("m", (), ("/m",))

    model.loaded("1", alias="champion", load_seconds=2.0, warmup_seconds=0.5)
    model.batch("1", 1, 0.25)
    model.loaded("1", alias="old", runtime="onnx", sha256="sha256:" + "0123456789abcdef" * 4)
    renewed = scrape(made)
    model.unloaded("1")
    gone = scrape(made)

    facts = {"alias": "old", "runtime": "onnx", "sha256_12": "0123456789ab"}
    assert value(renewed, "model_info", model="m", version="1", **facts) == 1
    assert value(renewed, "model_info", model="m", alias="champion") is None
    assert value(renewed, "batch_seconds_count", model="m") == 1
    for name in ("model_info", "batch_seconds_count", "execute_seconds_count"):
        assert value(gone, name, model="m") is None, name
    assert value(gone, "batch_rows_count", model="m") == 1


def test_the_process_tells_of_its_own_troubles() -> None:
    made = make()
    made.log_dropped = lambda: 17
    made.event_loop_lag.observe(0.004)
    made.gc_pauses["front"].observe(0.002)

    found = scrape(made)

    assert value(found, "log_records_dropped_total") == 17
    assert value(found, "event_loop_lag_seconds_bucket", le="0.005") == 1
    assert value(found, "event_loop_lag_seconds_bucket", le="0.002") == 0
    assert value(found, "gc_pause_seconds_sum", process="front") == 0.002
    assert value(found, "gc_pause_seconds_sum", process="worker") == 0
    assert value(found, "build_info") == 1
    assert "process_resident_memory_bytes" in found
    assert "process_start_time_seconds" in found


def test_each_scrape_tells_what_the_previous_one_took() -> None:
    made = Metrics(CollectorRegistry(), clock=iter((10.0, 10.5, 20.0, 20.1)).__next__)

    scrape(made)

    assert value(scrape(made), "scrape_duration_seconds") == 0.5


# The exposition

FAMILIES = {
    "requests_received": "counter",
    "requests": "counter",
    "request_duration_seconds": "histogram",
    "inflight_requests": "gauge",
    "queue_wait_seconds": "histogram",
    "batch_assembly_seconds": "histogram",
    "execute_seconds": "histogram",
    "batch_rows": "histogram",
    "batch_seconds": "histogram",
    "batch_cpu_seconds": "counter",
    "batch_failures": "counter",
    "shed": "counter",
    "deadline_exceeded": "counter",
    "cancelled": "counter",
    "wasted_rows": "counter",
    "isolated_batches": "counter",
    "priority_requests": "counter",
    "worker_restarts": "counter",
    "model_load_failures": "counter",
    "queue_requests": "gauge",
    "queue_rows": "gauge",
    "queue_capacity_rows": "gauge",
    "workers": "gauge",
    "model_state": "gauge",
    "model": "info",
    "model_load_duration_seconds": "gauge",
    "model_warmup_duration_seconds": "gauge",
    "slo_objective_ratio": "gauge",
    "slo_threshold_seconds": "gauge",
    "event_loop_lag_seconds": "histogram",
    "gc_pause_seconds": "histogram",
    "log_records_dropped": "counter",
    "scrape_duration_seconds": "gauge",
    "build": "info",
}
"""Names are a contract with dashboards, rules and whoever wrote them: renaming one breaks them."""

NOT_BASE_UNITS = ("_ms", "_us", "_milliseconds", "_minutes", "_percent", "_kb", "_mb", "_count")


def busy() -> Metrics:
    """Metrics in which every family has a sample."""
    made = make(lambda: LiveState(1, 2, 3, {"ready": 1}, {"3": "ready"}))
    made.model("m", (), ("/m",)).loaded("1", load_seconds=1.0, warmup_seconds=0.5)
    made.log_dropped = lambda: 0
    for where in ASKED:
        for code, outcome, cause in ENDS:
            made.received(*where).answered("POST", code, outcome, TIMELINE, cause=cause)
    made.render()
    return made


def lint(families: list[Metric]) -> list[str]:
    """What is wrong with names, help, units and series of an exposition."""
    found = []
    seen: Counter[tuple[str, tuple[tuple[str, str], ...]]] = Counter()
    for family in families:
        if not family.documentation:
            found.append(f"{family.name}: no HELP")
        if family.type == "unknown":
            found.append(f"{family.name}: no TYPE")
        if family.name.endswith(NOT_BASE_UNITS):
            found.append(f"{family.name}: not a base unit")
        for sample in family.samples:
            if (family.type == "counter") != sample.name.endswith("_total"):
                found.append(f"{sample.name}: _total is for counters")
            seen[sample.name, tuple(sorted(sample.labels.items()))] += 1
    found += [f"{name}{labels}: twice" for (name, labels), num in seen.items() if num > 1]
    return found


def test_the_families_are_these() -> None:
    found = {
        family.name.removeprefix("tailproof_"): family.type
        for family in busy().collect()
        if family.samples
    }

    assert found == FAMILIES


@pytest.mark.parametrize("accept", ["text/plain", "application/openmetrics-text"])
def test_the_exposition_is_clean(accept: str) -> None:
    body, content_type = busy().render(accept)
    parse = parse_openmetrics if "openmetrics" in content_type else parse_text

    families = list(parse(body.decode()))

    assert lint(families) == []
    assert len(families) >= len(FAMILIES)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("# TYPE a counter\na_total 1\n", "no HELP"),
        ("# HELP a_total x\na_total 1\n", "no TYPE"),
        ("# HELP a_ms x\n# TYPE a_ms gauge\na_ms 1\n", "not a base unit"),
        ("# HELP a_total x\n# TYPE a_total gauge\na_total 1\n", "_total is for counters"),
        ("# HELP a x\n# TYPE a gauge\na 1\na 2\n", "twice"),
    ],
)
def test_the_lint_finds_each_fault(text: str, complaint: str) -> None:
    assert complaint in "".join(lint(list(parse_text(text))))


def test_both_formats_tell_the_same() -> None:
    made = busy()
    text, openmetrics = made.render("")[0], made.render("application/openmetrics-text")[0]

    def samples(families: list[Metric]) -> set[tuple[str, tuple[tuple[str, str], ...], float]]:
        return {
            (sample.name, tuple(sorted(sample.labels.items())), sample.value)
            for family in families
            for sample in family.samples
            if family.name.startswith("tailproof_") and "scrape" not in family.name
        }

    assert samples(list(parse_text(text.decode()))) == samples(
        list(parse_openmetrics(openmetrics.decode()))
    )


def test_units_are_told_in_openmetrics() -> None:
    body, _ = busy().render("application/openmetrics-text")

    units = {family.name: family.unit for family in parse_openmetrics(body.decode())}

    assert units["tailproof_request_duration_seconds"] == "seconds"
    assert units["tailproof_batch_cpu_seconds"] == "seconds"
    assert units["tailproof_slo_objective_ratio"] == "ratio"
    assert units["tailproof_batch_rows"] == ""


PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,"
    "text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,*/*;q=0.1"
)


@pytest.mark.parametrize(
    ("accept", "openmetrics"),
    [
        ("", False),
        ("*/*", False),
        ("text/html", False),
        (PROMETHEUS_3, True),
        ("application/openmetrics-text; version=0.0.1,text/plain;version=0.0.4;q=0.5", False),
        ("application/openmetrics-text", True),
        ("text/plain,application/openmetrics-text", False),
        ("application/openmetrics-text;version=abc", False),
        ("application/openmetrics-text;version=", False),
        ("application/openmetrics-text;version=2.0.0", False),
        ("application/openmetrics-text;version=10.0.0", False),
        ("application/openmetrics-text;version=1.0.0\r\nSet-Cookie: x=1", True),
        pytest.param(";" * 10_000, False, id="10 KB of parameters"),
        pytest.param("," * 10_000 + "application/openmetrics-text", False, id="10 KB of types"),
        ("\ud800\x00", False),
    ],
)
def test_any_accept_header_gets_one_of_two_content_types(accept: str, openmetrics: bool) -> None:
    body, content_type = Metrics(CollectorRegistry()).render(accept)

    assert content_type == (metrics.OPENMETRICS_TYPE if openmetrics else metrics.TEXT_TYPE)
    assert body.endswith(b"# EOF\n") == openmetrics


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_has_no_complaint() -> None:
    body, _ = busy().render()
    command = [str(shutil.which("promtool")), "check", "metrics"]

    done = subprocess.run(command, input=body, capture_output=True, check=False, timeout=60)

    complaints = (done.stdout + done.stderr).decode().splitlines()
    assert [line for line in complaints if "tailproof_" in line] == []
