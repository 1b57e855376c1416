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
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from machine import facts, print_facts
from processes import Foreign, foreign_work, pin_client, started, stop_cleanly, wait_quiet
from tailproof.core.arrivals import poisson
from tailproof.core.recording import Floats, Recording
from tailproof.core.slo import Latency
from tailproof.core.statistics import percentile
from tailproof.core.units import parse_duration
from tailproof.load import selfcheck
from tailproof.load.generator import Generator
from tailproof.load.steps import StepPlan
from tailproof.load.target import build
from tailproof.reporting import document

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
    client: document.Generator
    """Not ok: the client was in the number, and the line says nothing about the server."""
    foreign: Foreign


def plan(multiple: float, seconds: float, seed: int) -> StepPlan:
    """Half the capacity, `multiple` of it for `seconds`, half again; Poisson, exact counts."""
    seeds = np.random.SeedSequence([seed, round(multiple * 10)]).generate_state(4).tolist()
    quiet, overload, end = QUIET_LOAD * CAPACITY, multiple * CAPACITY, BEFORE + seconds + AFTER
    before = poisson(quiet, BEFORE, seeds[0])
    during = poisson(overload, seconds, seeds[1]) + BEFORE
    after = poisson(quiet, AFTER, seeds[2]) + BEFORE + seconds
    intended = np.concatenate([before, during, after])
    choice = np.random.default_rng(seeds[3]).integers(len(BODIES), size=len(intended))
    return StepPlan(intended, BEFORE, end, choice.astype(np.int32), ready_connections=64)


def summed_up(
    recording: Recording,
    multiple: float,
    seconds: float,
    client: document.Generator,
    foreign: Foreign,
) -> Run:
    """The overload's requests, and what the time after it says about recovery."""
    during = recording.between(BEFORE, BEFORE + seconds)
    answered = during.response[during.good]
    refusal_times = (during.last - during.intended)[during.refused]
    return Run(
        multiple=multiple,
        offered=len(during) / seconds,
        goodput=float(np.sum(during.response <= SLO.threshold)) / seconds,
        refused=float(np.mean(during.refused)),
        failed=float(np.mean(~during.refused & ~during.good)),
        answered_p50=percentile(answered, 50.0),
        answered_p95=percentile(answered, 95.0),
        refusal_p99=percentile(refusal_times, 99.0),
        recovery=recovery(recording.intended, recording.response, BEFORE + seconds),
        client=client,
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
    step = plan(multiple, seconds, seed)
    with started([*command, "--drain-delay", "0s"], ready_path="/health/ready") as server:
        target = build(f"http://127.0.0.1:{server.port}/predict", BODIES)
        wait_quiet(5.0)
        with (
            foreign_work(server.pid) as foreign,
            Generator(target) as generator,
            selfcheck.Surroundings(generator.pids) as surroundings,
        ):
            sent = generator.run(step)
    client = selfcheck.check(step, sent, SLO.threshold, surroundings, server=None)
    return summed_up(sent.recording, multiple, seconds, client, foreign)


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
        f"{'on time' if entry.client.ok else 'INVALID'} ({entry.foreign})",
    )
    return " ".join(cells)


def _shown(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:.2f}"


def faults(client: document.Generator) -> str:
    """Why the client cannot be believed; empty when it can."""
    found = [signal.text for signal in client.signals if signal.bad and signal.invalidates]
    return "".join(f"; INVALID: {text}" for text in found)


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
        print(f"{multiple:g}x done{faults(runs[-1].client)}", file=sys.stderr)
    peak = max([entry.goodput for entry in runs] + [1e-9])
    table = "\n".join([HEADING, *(line(entry, peak) for entry in runs)])
    print(table, file=sys.stderr if args.json else sys.stdout)
    if args.json:
        found = {"machine": known, "model": MODEL, "capacity": CAPACITY, "slo": str(SLO)}
        print(json.dumps(found | {"runs": msgspec.to_builtins(runs)}, indent=2))


if __name__ == "__main__":
    main()
