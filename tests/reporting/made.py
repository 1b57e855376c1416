"""A made run: a simulated batch server (5 ms and 1 ms a row, at most 16 rows) at ten rates, written
as a load test would write it. Its capacity is 16 rows in 21 ms, 762 requests a second."""

from pathlib import Path

import msgspec
import numpy as np

from tailproof.core import queues
from tailproof.core.arrivals import poisson
from tailproof.core.attribution import Cause
from tailproof.core.recording import Recording
from tailproof.core.statistics import describe
from tailproof.core.verdict import Finding
from tailproof.reporting import runs
from tailproof.reporting.document import (
    Cold,
    Document,
    Environment,
    Generator,
    Knee,
    Limit,
    Percentiles,
    Point,
    Saturation,
    ServerView,
    Signal,
    Verdict,
)
from tailproof.reporting.runs import StepData

CAPACITY = 16 / 0.021
THRESHOLD = 0.0333
RATES = (40, 120, 240, 360, 440, 520, 580, 610, 640, 700, 840)
WARM_UP, END = 1.0, 11.0
SLO = ["p95 < 33.3ms", "p99 < 80ms", "availability > 99.9%"]

ADVICE = {
    "LINEAR": "keep loading",
    "KNEE": "the SLO belongs before this point",
    "OVERLOAD": "this is the capacity, the basis for scaling",
}


def batch_seconds(rows: int) -> float:
    return 0.005 + 0.001 * rows


def step(index: int, rate: float, *, refused: float = 0.0) -> StepData:
    """One step of the simulated server; a share of its requests is refused at once."""
    rng = np.random.default_rng(index)
    intended = poisson(rate, END, seed=index)
    response = queues.batched(intended, batch_seconds, 16) + rng.exponential(2e-4, len(intended))
    recording = Recording.empty(intended)
    turned_away = rng.random(len(intended)) < refused
    recording.sent[:] = intended + rng.exponential(3e-5, len(intended))
    recording.last[:] = np.where(turned_away, recording.sent + 0.001, intended + response)
    recording.status[:] = np.where(turned_away, 503, 200)
    late = recording.last > END + 2.0
    recording.status[late] = 0
    recording.last[late] = np.nan
    return StepData(index, recording, WARM_UP, END, rate)


def point(data: StepData, verdict: Verdict | None = None) -> Point:
    """What a load test would say about a step."""
    measured, threshold = data.measured, THRESHOLD
    late = int((measured.response > threshold).sum())
    share = late / max(len(measured), 1)
    seen = verdict or ("PASS" if share < 0.05 else "FAIL")
    class_ = "LINEAR" if data.offered < 300 else "KNEE" if data.offered < CAPACITY else "OVERLOAD"
    names, nums = np.unique(measured.status, return_counts=True)
    done = data.recording.good & (data.recording.last < END) & (data.recording.last >= WARM_UP)
    bad = int((~measured.good).sum())
    finding = Finding(
        slo=SLO[0],
        misses=late,
        requests=len(measured),
        share=share,
        allowed=0.05,
        low=share * 0.8,
        high=min(share * 1.2 + 0.001, 1.0),
        effective_requests=len(measured) / 9.0,
        verdict=seen,
        reason=f"{late} of {len(measured)} requests were late",
    )
    return Point(
        index=data.index,
        role="curve",
        offered=data.offered,
        achieved=float(done.sum()) / (END - WARM_UP),
        requests=len(measured),
        errors=bad,
        refused=int(measured.refused.sum()),
        statuses={str(n) if n else "unanswered": int(k) for n, k in zip(names, nums, strict=True)},
        class_=class_,
        verdict=seen,
        reason=finding.reason,
        advice=ADVICE[class_],
        findings=[finding],
        response_seconds=Percentiles(**describe(measured.response, intervals=True)),
        uncorrected_seconds=Percentiles(**describe(measured.uncorrected)),
        send_lag_seconds=Percentiles(**describe(measured.send_lag)),
        own_lag_seconds=Percentiles(**describe(measured.own_lag)),
        warm_up_seconds=WARM_UP,
        measured_seconds=END - WARM_UP,
        stopped_early=False,
        connections=12,
        generator=Generator(ok=seen != "INVALID"),
        server=ServerView(),
    )


def write(parent: Path) -> runs.Run:
    """The run's folder, in `parent`."""
    steps = [step(index, float(rate)) for index, rate in enumerate(RATES)]
    steps[-2] = step(len(RATES) - 2, float(RATES[-2]), refused=0.01)
    path = parent / "20261130-191502-3f2a"
    (path / "steps").mkdir(parents=True)
    for data in steps:
        runs.write_step(path, data)
    runs.write_document(path, document([point(data) for data in steps], run=str(path)))
    return runs.read(path)


def document(points: list[Point], run: str | None = None) -> Document:
    return Document(
        tool="tailproof 0.1.0",
        target="http://localhost:8000/predict",
        slo=SLO,
        verdict="PASS",
        reason="holds up to 610/s: 580/s passed, 640/s failed",
        mode="search",
        limit=Limit(rate=611.0, low=580.0, high=640.0, at_least=False, interval=(592.0, 628.0)),
        saturation=Saturation(rate=758.0, low=700.0, high=840.0),
        knee=Knee(rate=431.0),
        points=points,
        cold=Cold(
            requests=14,
            response_seconds=Percentiles(p50=0.02, p95=0.812, p99=0.812, resolved=["p50"]),
            kinds={"process": 1, "connection": 13},
            first_seconds=0.812,
            warm_seconds=Percentiles(p50=0.0071, p95=0.0093, p99=0.0101, resolved=["p50", "p95"]),
            cold_warm_ratio=114.4,
            mean_over_both=0.0152,
        ),
        tail_causes=[
            Cause(cause="queueing", share=0.62, low=0.51, high=0.7, text="Late ones met a queue."),
            Cause(cause="batch mates", share=0.21, low=0.1, high=0.3),
        ],
        unexplained=0.17,
        primary_cause="queueing",
        tail_point=6,
        generator=Generator(
            ok=True,
            signals=[
                Signal(
                    name="send_lag",
                    value=0.00012,
                    limit=0.0016,
                    unit="seconds",
                    bad=False,
                    invalidates=True,
                    text="99% of the requests left within 0.12 ms of their time.",
                ),
                Signal(
                    name="same_host",
                    value=1.0,
                    limit=0.0,
                    unit="count",
                    bad=True,
                    invalidates=False,
                    text="Tester and target share this machine: use another host to be sure.",
                ),
            ],
        ),
        warnings=["Tester and target share this machine: use another host to be sure."],
        unresolved=["P99.9 at 580/s would need 12,000 more requests"],
        confidence={
            "false_pass": 0.021,
            "false_pass_at": "0.8 x the true P99",
            "power": 0.78,
            "power_at": "1.5 x the true P99",
            "runs": 1000,
        },
        required=None,
        environment=Environment(
            date="2026-11-30T19:15:02+08:00",
            cores=2,
            allowed_cores=1,
            cpu="Example CPU @ 2.4 GHz",
            governor=None,
            memory_bytes=8 * 2**30,
            kernel="6.1.0",
            python="3.11.7",
            versions={"tailproof": "0.1.0", "numpy": "2.4.6"},
            same_host=True,
            processes=1,
            seeds={"seed": 1},
            payload={"source": "openapi.json", "bodies": 1000},
        ),
        command="tailproof prove http://localhost:8000/predict --slo 'p95 < 33.3ms'",
        seconds=131.4,
        run=run,
    )


def invalid() -> Document:
    """One INVALID step and nothing else; all its percentiles fall on misses."""
    data = step(0, 200.0, refused=1.0)
    only = msgspec.structs.replace(point(data, "INVALID"), class_=None, findings=[], advice="")
    return Document(
        tool="tailproof 0.1.0",
        target="http://localhost:8000/<script>alert(1)</script>",
        slo=["p95 < 50ms"],
        verdict="INVALID",
        reason="the tester was 38 ms late",
        mode="rate",
        limit=None,
        saturation=None,
        knee=None,
        points=[only],
        cold=None,
        tail_causes=[],
        unexplained=None,
        generator=Generator(ok=False),
        command="tailproof prove URL",
        seconds=11.0,
        run=None,
    )
