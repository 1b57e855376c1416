"""How much of an overload is answered in time, by the rule that forms the batches.

    python benchmarks/policies.py
    python benchmarks/policies.py --noise 0.2 --seeds 3 --json > policies.json

In simulated time: one worker, whose batch of n rows takes 10 ms + n ms with Gaussian noise, at most
32 rows, and requests of one row that are good within 50 ms. Twice 15 rows in 25 ms is what a rule
can do that drops nothing: 600 requests a second. Each rule is a few lines here, with the mean batch
time known to it exactly; ours is `tailproof.core.policy` itself, which must learn it. Columns are
the offered rates a second; the last one is 900/s and 100/s in turn, half a second each.

Cells are goodput a second, how far the seeds spread (half the range), and a percentile of what was
answered in milliseconds: the 99th, or the one of the SLO for ours.
"""

import argparse
import json
import math
import random
import statistics
import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from machine import facts, print_facts
from tailproof.core.arrivals import Schedule, on_off, poisson
from tailproof.core.latency_model import LatencyModel
from tailproof.core.policy import Dispatch, Limits, Policy, Queued
from tailproof.core.slo import Latency
from tailproof.core.statistics import percentile

FIXED, PER_ROW = 0.010, 0.001
THRESHOLD = 0.050
MAX_ROWS = 32
ARRIVALS = 20_000
RATES = (300, 500, 600, 700, 900, 1200)
BURSTS = "bursts"
COLUMNS = (*map(str, RATES), BURSTS)

Request = tuple[float, int]
"""When it came, and its number."""


def mean_seconds(rows: int) -> float:
    """Of a batch, without its noise."""
    return FIXED + PER_ROW * rows


# --- The rules ------------------------------------------------------------------------------------


class Rule(Protocol):
    """Forms the batches of one worker."""

    def arrive(self, request: Request, now: float) -> None:
        """A request comes."""

    def next_batch(self, now: float) -> tuple[list[Request], float]:
        """The worker is idle: what it is to run, and if nothing, when to ask again at the latest
        (inf: when something has come)."""

    def finished(self, seconds: float, now: float) -> None:
        """The batch has taken so long."""


class TakeAll:
    """All that waits goes, nothing is ever dropped (Triton, delay 0)."""

    def __init__(self) -> None:
        self.queue: deque[Request] = deque()

    def arrive(self, request: Request, now: float) -> None:
        self.queue.append(request)

    def next_batch(self, now: float) -> tuple[list[Request], float]:
        self.drop(now)
        return self.take(MAX_ROWS), math.inf

    def finished(self, seconds: float, now: float) -> None:
        """The time is known."""

    def drop(self, now: float) -> None:
        """Before a batch is formed."""

    def take(self, most: int) -> list[Request]:
        return [self.queue.popleft() for _ in range(min(most, len(self.queue)))]

    def slack(self, now: float) -> float:
        """Seconds that the oldest still has."""
        return self.queue[0][0] + THRESHOLD - now


class Frozen(TakeAll):
    """Batches are closed after 5 ms, whether a worker is free or not (MLServer)."""

    def __init__(self) -> None:
        super().__init__()
        self.closed: deque[list[Request]] = deque()

    def arrive(self, request: Request, now: float) -> None:
        self.close(now)
        self.queue.append(request)

    def next_batch(self, now: float) -> tuple[list[Request], float]:
        self.close(now)
        if self.closed:
            return self.closed.popleft(), math.inf
        return [], self.queue[0][0] + 0.005 if self.queue else math.inf

    def close(self, now: float) -> None:
        if self.queue and (now >= self.queue[0][0] + 0.005 or len(self.queue) == MAX_ROWS):
            self.closed.append(self.take(MAX_ROWS))


class Window(TakeAll):
    """A free worker waits 5 ms for company (TorchServe, Mosec, LitServe)."""

    asked: float | None = None

    def next_batch(self, now: float) -> tuple[list[Request], float]:
        if not self.queue:
            return [], math.inf
        self.asked = now if self.asked is None else self.asked
        if len(self.queue) < MAX_ROWS and now < self.asked + 0.005:
            return [], self.asked + 0.005
        self.asked = None
        return self.take(MAX_ROWS), math.inf


class DropsExpired(TakeAll):
    """Whose time has passed is dropped (Triton, timeout)."""

    def drop(self, now: float) -> None:
        while self.queue and self.slack(now) < 0.0:
            self.queue.popleft()


class HeadLimited(TakeAll):
    """Who cannot make it is dropped, and the batch is as large as the oldest allows (Clipper)."""

    def next_batch(self, now: float) -> tuple[list[Request], float]:
        while self.queue and self.slack(now) < mean_seconds(1):
            self.queue.popleft()
        if not self.queue:
            return [], math.inf
        most = min(MAX_ROWS, len(self.queue))
        while most > 1 and mean_seconds(most) > self.slack(now):
            most -= 1
        return self.take(most), math.inf


class Admits(HeadLimited):
    """The same behind a door that lets in who is predicted to be in time."""

    free_at = -math.inf
    target = 15

    def arrive(self, request: Request, now: float) -> None:
        full, rest = divmod(len(self.queue) + 1, self.target)
        ahead = full * mean_seconds(self.target) + (mean_seconds(rest) if rest else 0.0)
        if max(self.free_at - now, 0.0) + ahead <= THRESHOLD:
            super().arrive(request, now)

    def next_batch(self, now: float) -> tuple[list[Request], float]:
        batch, wake = super().next_batch(now)
        self.free_at = now + mean_seconds(len(batch))
        return batch, wake


class Capped(TakeAll):
    """A queue of 13 rows, tuned by hand for just this batch time."""

    def arrive(self, request: Request, now: float) -> None:
        if len(self.queue) < 13:
            super().arrive(request, now)


class Targets(TakeAll):
    """The oldest are dropped until a batch of 15 rows is in time, and that runs (Nexus)."""

    def next_batch(self, now: float) -> tuple[list[Request], float]:
        while self.queue and mean_seconds(min(15, len(self.queue))) > self.slack(now):
            self.queue.popleft()
        return self.take(15), math.inf


class FitsRest(TakeAll):
    """The oldest are dropped until all the others are in time (BentoML's rule).

    `stretch`: on the mean batch time, in place of a quantile.
    """

    def __init__(self, stretch: float = 1.0) -> None:
        super().__init__()
        self._stretch = stretch

    def drop(self, now: float) -> None:
        while len(self.queue) > 1 and self._seconds() > self.slack(now):
            self.queue.popleft()

    def _seconds(self) -> float:
        return self._stretch * mean_seconds(min(MAX_ROWS, len(self.queue)))


class Ours:
    """`tailproof.core.policy`, which has seen five warm-up batches of each size."""

    def __init__(self, slo: Latency, service: Callable[[int], float], seed: int) -> None:
        model = LatencyModel()
        for rows in (1, 2, 4, 8, 16, 32):
            for _ in range(5):
                model.calibrate(rows, service(rows))
        limits = Limits(max_batch_rows=MAX_ROWS, objectives=(slo,))
        self._policy = Policy(limits, model, random.Random(seed).random)
        self._policy.set_workers(1)
        self._running: Dispatch | None = None

    def arrive(self, request: Request, now: float) -> None:
        self._policy.arrive(Queued(1, request[0], payload=request), now)

    def next_batch(self, now: float) -> tuple[list[Request], float]:
        ended, decision = self._running, self._policy.next_batch(now)
        self._answer(ended, now)
        if not isinstance(decision, Dispatch):
            self._running = None
            return [], decision.until
        self._running = decision
        return [part.request.payload for part in decision.parts], math.inf

    def finished(self, seconds: float, now: float) -> None:
        assert self._running is not None
        self._policy.finished(self._running, seconds, now)

    def _answer(self, ended: Dispatch | None, now: float) -> None:
        """As in the server: the next batch starts before the answers go out."""
        for part in ended.parts if ended is not None else ():
            self._policy.answered(part.request, now)


Maker = Callable[[Callable[[int], float], int], Rule]
"""Makes a rule, given a service from which it may learn and a seed."""


def knowing(rule: Callable[[], Rule]) -> Maker:
    """A rule that knows the batch time."""
    return lambda _service, _seed: rule()


def learning(slo: Latency) -> Maker:
    """Ours."""
    return lambda service, seed: Ours(slo, service, seed)


RIVALS: dict[str, Callable[[], Rule]] = {
    "5 ms window, then frozen": Frozen,
    "5 ms window of a free worker": Window,
    "take all": TakeAll,
    "take all, drop expired": DropsExpired,
    "batch as the oldest allows": HeadLimited,
    "... and a door that predicts": Admits,
    "queue of 13 rows": Capped,
    "drop, target of 15 rows": Targets,
    "drop until the rest fits": FitsRest,
    "... at 1.1 of the mean": lambda: FitsRest(1.1),
    "... at 1.25 of the mean": lambda: FitsRest(1.25),
}
SLOS = (Latency(95.0, THRESHOLD), Latency(99.0, THRESHOLD))


# --- The simulation -------------------------------------------------------------------------------


def noisy(noise: float, seed: int) -> Callable[[int], float]:
    """Seconds of a batch."""
    gauss = random.Random(seed).gauss
    return lambda rows: mean_seconds(rows) * max(0.2, gauss(1.0, noise))


def serve(rule: Rule, times: Sequence[float], service: Callable[[int], float]) -> list[float]:
    """The response time of each arrival in seconds; inf: it was not answered."""
    responses = [math.inf] * len(times)
    arrivals = deque((time, number) for number, time in enumerate(times))
    running: list[Request] = []
    seconds, end, wake = 0.0, math.inf, math.inf
    while arrivals or running or wake < math.inf:
        coming = arrivals[0][0] if arrivals else math.inf
        now = min(coming, end, wake)
        if now == end:
            rule.finished(seconds, now)
            for arrived, number in running:
                responses[number] = now - arrived
            running, end = [], math.inf
        elif now == coming:
            rule.arrive(arrivals.popleft(), now)
        if not running:
            running, wake = rule.next_batch(now)
            if running:
                seconds = service(len(running))
                end, wake = now + seconds, math.inf
    return responses


def arrivals(column: str, num: int, seed: int) -> Schedule:
    """Of one column, about `num` in all."""
    if column == BURSTS:
        return on_off(900.0, 100.0, 0.5, num / 500.0, seed)
    return poisson(float(column), num / float(column), seed)


@dataclass(frozen=True, slots=True)
class Cell:
    """One rule at one rate."""

    goodput: float
    """Answers within the threshold a second; the median of the seeds."""
    spread: float
    """Half the range of it over the seeds."""
    answered: float | None
    """Seconds at `percent` of what was answered; the median. None: nothing was."""
    percent: float


def cell(
    rule: Maker,
    column: str,
    percent: float,
    *,
    noise: float,
    seeds: Sequence[int],
    num: int = ARRIVALS,
) -> Cell:
    """Runs of `num` arrivals, one a seed."""
    goodputs, tails = [], []
    for seed in seeds:
        times, service = arrivals(column, num, seed), noisy(noise, seed)
        responses = serve(rule(service, seed), times.tolist(), service)
        good = sum(response <= THRESHOLD for response in responses)
        goodputs.append(good / float(times[-1]))
        answers = [response for response in responses if response < math.inf]
        tails.append(percentile(answers, percent))
    known = [tail for tail in tails if tail is not None]
    return Cell(
        goodput=statistics.median(goodputs),
        spread=(max(goodputs) - min(goodputs)) / 2,
        answered=statistics.median(known) if known else None,
        percent=percent,
    )


def rows_of_table() -> list[tuple[str, Maker, float]]:
    """Name, rule and percentile of each line."""
    rivals = [(name, knowing(rule), 99.0) for name, rule in RIVALS.items()]
    return rivals + [(f"tailproof, {slo}", learning(slo), slo.percentile) for slo in SLOS]


def line(name: str, cells: Sequence[Cell]) -> str:
    """One line of the table."""
    shown = [
        f"{one.goodput:5.0f}±{one.spread:<2.0f}/{_milliseconds(one.answered)}" for one in cells
    ]
    return f"{name:30}" + " ".join(shown)


def _milliseconds(seconds: float | None) -> str:
    return "   -" if seconds is None else f"{min(seconds, 9.999) * 1e3:<4.0f}"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    options.add_argument("--noise", default="0.05,0.2", help="relative, of the batch time")
    options.add_argument("--seeds", type=int, default=5)
    options.add_argument("--arrivals", type=int, default=ARRIVALS, help="of each run")
    options.add_argument("--json", action="store_true", help="one JSON document on stdout")
    args = options.parse_args()
    known: dict[str, Any] = facts(args.seeds)
    print_facts(known)
    print(f"seeds 1 to {args.seeds}, {args.arrivals} arrivals each", file=sys.stderr)
    found: dict[str, Any] = {"machine": known, "arrivals": args.arrivals, "tables": []}
    output = sys.stderr if args.json else sys.stdout
    for noise in map(float, args.noise.split(",")):
        print(f"\nnoise {noise:.0%}", file=output)
        print(f"{'':30}" + " ".join(f"{column:^13}" for column in COLUMNS), file=output)
        for name, rule, percent in rows_of_table():
            seeds = range(1, args.seeds + 1)
            cells = [
                cell(rule, column, percent, noise=noise, seeds=seeds, num=args.arrivals)
                for column in COLUMNS
            ]
            print(line(name, cells), file=output, flush=True)
            entry = {column: asdict(one) for column, one in zip(COLUMNS, cells, strict=True)}
            found["tables"].append({"noise": noise, "rule": name, "cells": entry})
    if args.json:
        print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
