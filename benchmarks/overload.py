"""What a server still gives when more is asked than it can do, and how soon it is well again.

    python benchmarks/overload.py
    python benchmarks/overload.py --multiples 2,10 --for 20s --json > overload.json

Serves `fake:?fixed=30ms&per_row=1ms&max=16`, which can do 16 rows in 46 ms (348/s) and no more.
Each line of the table is one run on a fresh server: half the capacity, then a multiple of it for a
while, then half again. All open loop; goodput counts answers within the SLO's threshold.
"""

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from connection import Target
from machine import facts, print_facts
from open_loop import Rules, send
from processes import Foreign, foreign_work, pin_client, started, stop_cleanly, wait_quiet
from steps import (
    Floats,
    Recording,
    Schedule,
    Verdict,
    arrivals,
    judge,
    milliseconds,
    percentile,
)
from tailproof.core.slo import Latency
from tailproof.core.units import parse_duration

MODEL = "fake:?fixed=30ms&per_row=1ms&max=16"
CAPACITY = 16 / (0.030 + 16 * 0.001)
"""Rows a second, when every batch is full."""
SLO = Latency(95.0, 0.120)
MULTIPLES = (0.5, 1.0, 2.0, 5.0, 10.0)
QUIET_LOAD = 0.5
"""Share of the capacity that is offered before and after."""
BEFORE, AFTER = 2.0, 8.0
"""Seconds of it."""
WINDOW = 0.5
"""Seconds: recovery is told this exactly."""
BODIES = tuple(json.dumps({"value": float(number)}).encode() for number in range(500))


@dataclass(frozen=True, slots=True)
class Run:
    """One multiple. Rates a second, times in seconds; None: nothing was there to be measured."""

    multiple: float
    offered: float
    goodput: float
    """Good answers within the SLO's threshold, of requests due in the overload, a second."""
    refused: float
    """Share answered 429 or 503."""
    failed: float
    """Share without any answer, or with another error."""
    answered_p50: float | None
    answered_p95: float | None
    refusal_p99: float | None
    recovery: float | None
    """From the end of the overload until the SLO holds again for good; None: not by the end."""
    client: Verdict
    """INVALID: the client was late, and the line says nothing about the server."""
    foreign: Foreign


def plan(multiple: float, seconds: float, rng: np.random.Generator) -> Schedule:
    """Half the capacity, `multiple` of it for `seconds`, half again; Poisson, exact counts."""
    quiet = QUIET_LOAD * CAPACITY
    before = arrivals("poisson", quiet, BEFORE, rng)
    overload = arrivals("poisson", multiple * CAPACITY, seconds, rng) + BEFORE
    after = arrivals("poisson", quiet, AFTER, rng) + BEFORE + seconds
    return Schedule(np.concatenate([before, overload, after]), BEFORE, BEFORE + seconds + AFTER)


def summed_up(recording: Recording, multiple: float, seconds: float, foreign: Foreign) -> Run:
    """The overload's requests, and what the time after it says about recovery."""
    due = recording.schedule.offsets
    during = (due >= BEFORE) & (due < BEFORE + seconds)
    response, status = recording.response[during], recording.status[during]
    refusals = np.isin(status, (429, 503))
    refusal_times = (recording.last - due)[during][refusals]
    answered = response[np.isfinite(response)]
    return Run(
        multiple=multiple,
        offered=float(np.sum(during)) / seconds,
        goodput=float(np.sum(response <= SLO.threshold)) / seconds,
        refused=float(np.mean(refusals)),
        failed=float(np.mean(~refusals & ~recording.good[during])),
        answered_p50=percentile(answered, 50.0),
        answered_p95=percentile(answered, 95.0),
        refusal_p99=percentile(refusal_times, 99.0),
        recovery=recovery(due, recording.response, BEFORE + seconds),
        client=judge(recording, SLO).verdict,
        foreign=foreign,
    )


def recovery(due: Floats, response: Floats, end: float) -> float | None:
    """Seconds from `end` until every later window of WINDOW seconds holds the SLO's share.

    None: the last one does not.
    """
    numbers = np.floor((due[due >= end] - end) / WINDOW).astype(np.int64)
    missed = response[due >= end] > SLO.threshold
    shares = np.bincount(numbers, weights=missed) / np.maximum(1, np.bincount(numbers))
    bad = np.flatnonzero(shares > 1.0 - SLO.objective)
    if len(bad) == 0:
        return 0.0
    return None if bad[-1] == numbers.max() else float(bad[-1] + 1) * WINDOW


def run(multiple: float, seconds: float, seed: int) -> Run:
    """One multiple on a fresh server."""
    command = [sys.executable, "-m", "tailproof", "serve", MODEL, "--slo", str(SLO)]
    rng = np.random.default_rng([seed, round(multiple * 10)])
    schedule = plan(multiple, seconds, rng)
    with started([*command, "--drain-delay", "0s"], ready_path="/health/ready") as server:
        target = Target.of(f"http://127.0.0.1:{server.port}/predict", BODIES)
        wait_quiet(5.0)
        with foreign_work(server.pid) as foreign:
            recording = send(target, schedule, rng, Rules(ready_connections=64))
    return summed_up(recording, multiple, seconds, foreign)


HEADING = (
    f"{'load':>5} {'offered/s':>9} {'goodput/s':>9} {'of peak':>7} {'refused':>7} {'failed':>6}"
    f" {'p50 ms':>7} {'p95 ms':>7} {'refusal p99':>11} {'well after':>10} client"
)


def line(entry: Run, peak: float) -> str:
    """One line of the table."""
    well = "never" if entry.recovery is None else f"{entry.recovery:.1f} s"
    cells = (
        f"{entry.multiple:4g}x {entry.offered:9.0f} {entry.goodput:9.1f}",
        f"{entry.goodput / peak:7.0%} {entry.refused:7.1%} {entry.failed:6.1%}",
        f"{_shown(entry.answered_p50):>7} {_shown(entry.answered_p95):>7}",
        f"{_shown(entry.refusal_p99):>11} {well:>10}",
        "late: INVALID" if entry.client == "INVALID" else "on time",
        f"({entry.foreign})",
    )
    return " ".join(cells)


def _shown(seconds: float | None) -> str:
    return "-" if seconds is None else milliseconds(seconds)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    options.add_argument("--multiples", default=",".join(f"{one:g}" for one in MULTIPLES))
    options.add_argument("--for", dest="seconds", type=parse_duration, default=8.0)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--json", action="store_true", help="one JSON document on stdout")
    args = options.parse_args()
    stop_cleanly()
    pin_client()
    known: dict[str, Any] = facts(args.seed)
    print_facts(known)
    print(f"{MODEL}, {CAPACITY:.0f}/s, {SLO}; {args.seconds:g} s each", file=sys.stderr)
    runs = []
    for multiple in map(float, args.multiples.split(",")):
        runs.append(run(multiple, args.seconds, args.seed))
        print(f"{multiple:g}x done", file=sys.stderr)
    peak = max([entry.goodput for entry in runs] + [1e-9])
    table = "\n".join([HEADING, *(line(entry, peak) for entry in runs)])
    print(table, file=sys.stderr if args.json else sys.stdout)
    if args.json:
        document = {"machine": known, "model": MODEL, "capacity": CAPACITY, "slo": str(SLO)}
        print(json.dumps(document | {"runs": [asdict(entry) for entry in runs]}, indent=2))


if __name__ == "__main__":
    main()
