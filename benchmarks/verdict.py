"""How often the verdict is right, on queues whose truth is known.

    python benchmarks/verdict.py
    python benchmarks/verdict.py --runs 200 --json > verdict.json

Each run is a load test in simulated time: a warm-up that is not counted, then as many requests as
arrive in so many relaxation times of M/M/1. It is judged against thresholds of a factor times the
true percentile: below 1 the service breaks the SLO (right: FAIL), above 1 it keeps it (right:
PASS), at 1 it sits on the limit, and either answer is a guess. The first table has the shares of
the verdicts, beside those of a verdict that takes requests for independent; the second how often
the 95% interval of a percentile holds the true one.
"""

import argparse
import json
import sys
import time
from dataclasses import asdict, dataclass, replace

import numpy as np

from machine import facts, print_facts
from tailproof.core.queues import batched, mm1_quantile, one_at_a_time, relaxation_time
from tailproof.core.recording import Floats, Recording
from tailproof.core.slo import Latency
from tailproof.core.statistics import quantile_interval, share_bounds
from tailproof.core.verdict import judge

PERCENTS = (50.0, 95.0, 99.0, 99.9)
FACTORS = (0.8, 1.0, 1.5, 2.0)
SERVICE = 0.010
"""Mean seconds of a request of M/M/1, and of the independent ones."""
FIXED, PER_ROW, MAX_ROWS = 0.005, 0.001, 16
"""The batch server."""
WARM_UP = 10
"""Relaxation times."""
LONG = 2_000_000
"""Requests from which the truth of the batch server is taken: there is no formula."""


@dataclass(frozen=True, slots=True)
class Case:
    """A queue, how busy it is, and for how many relaxation times of M/M/1 a run measures."""

    queue: str
    utilization: float
    relaxations: int

    def requests_in(self, relaxations: float) -> int:
        """For the batch server as many as for M/M/1."""
        return round(relaxations * relaxation_time(1.0, self.utilization) * self.utilization)


CASES = (
    Case("M/M/1", 0.8, 100),
    Case("M/M/1", 0.8, 400),
    Case("M/M/1", 0.5, 100),
    Case("M/M/1", 0.5, 400),
    Case("batch", 0.8, 100),
    Case("batch", 0.5, 400),
    Case("independent", 0.8, 100),
)


@dataclass(frozen=True, slots=True)
class Verdicts:
    """Shares (0-1) of the runs for one SLO: `factor` times the true percentile."""

    case: Case
    requests: int
    percent: float
    factor: float
    passed: float
    failed: float
    naive_passed: float
    naive_failed: float


@dataclass(frozen=True, slots=True)
class Coverage:
    """Shares (0-1) of the runs whose interval of a percentile holds the true one."""

    case: Case
    requests: int
    percent: float
    covered: float
    bounded: float
    """Shares of the runs whose interval has an upper end."""
    naive_covered: float


def responses(case: Case, num: int, rng: np.random.Generator) -> Floats:
    """The response times of `num` requests to a steady queue, seconds."""
    warm_up = case.requests_in(WARM_UP)
    total = warm_up + num
    spread = np.sort(rng.random(total)) * total
    if case.queue == "batch":
        capacity = MAX_ROWS / (FIXED + PER_ROW * MAX_ROWS)
        arrivals = spread / (case.utilization * capacity)
        return batched(arrivals, lambda rows: FIXED + PER_ROW * rows, MAX_ROWS)[warm_up:]
    service = rng.exponential(SERVICE, total)
    if case.queue == "independent":
        return service[warm_up:]
    return one_at_a_time(spread * SERVICE / case.utilization, service)[warm_up:]


def truth(case: Case, rng: np.random.Generator) -> list[float]:
    """The true percentiles, seconds."""
    shares = [percent / 100.0 for percent in PERCENTS]
    if case.queue == "batch":
        long = responses(case, LONG, rng)
        return list(map(float, np.quantile(long, shares, method="inverted_cdf")))
    rate = case.utilization / SERVICE if case.queue == "M/M/1" else 0.0
    return [mm1_quantile(rate, SERVICE, share) for share in shares]


def answered(response: Floats) -> Recording:
    """Requests that were all answered well, after these seconds."""
    start = np.zeros(len(response))
    return replace(Recording.empty(start), last=response, status=np.full(len(start), 200, np.int32))


def naive_verdict(misses: int, requests: int, allowed: float) -> str:
    """The same rule for requests that are taken for independent."""
    low, high = share_bounds(misses, requests)
    return "PASS" if high <= allowed else "FAIL" if low > allowed else "UNDECIDED"


def measure(case: Case, num_runs: int, seed: int) -> tuple[list[Verdicts], list[Coverage]]:
    """The lines of both tables for one case."""
    rng = np.random.default_rng([seed, CASES.index(case)])
    true = dict(zip(PERCENTS, truth(case, rng), strict=True))
    num = case.requests_in(case.relaxations)
    slos = [Latency(percent, factor * true[percent]) for percent in PERCENTS for factor in FACTORS]
    verdicts, naive, covered, bounded, naive_covered = [], [], [], [], []
    for _ in range(num_runs):
        response = responses(case, num, rng)
        findings = judge(answered(response), slos).findings[: len(slos)]
        verdicts.append([found.verdict for found in findings])
        naive.append([naive_verdict(one.misses, num, one.allowed) for one in findings])
        intervals = [quantile_interval(response, percent) for percent in PERCENTS]
        bounded.append([high is not None for _, high in intervals])
        covered.append(
            [
                low <= value and (high is None or value <= high)
                for (low, high), value in zip(intervals, true.values(), strict=True)
            ]
        )
        naive_covered.append(
            [
                _holds(int(np.sum(response > value)), num, 1.0 - percent / 100.0)
                for percent, value in true.items()
            ]
        )
    shares = [
        np.mean(np.array(table) == word, axis=0).tolist()
        for table in (verdicts, naive)
        for word in ("PASS", "FAIL")
    ]
    factors = FACTORS * len(PERCENTS)
    return [
        Verdicts(case, num, slo.percentile, factor, *found)
        for slo, factor, *found in zip(slos, factors, *shares, strict=True)
    ], [
        Coverage(case, num, percent, *map(float, found))
        for percent, *found in zip(
            PERCENTS, *(np.mean(t, axis=0) for t in (covered, bounded, naive_covered)), strict=True
        )
    ]


def _holds(misses: int, requests: int, share: float) -> bool:
    """The textbook order-statistic interval: its ranks are those of Clopper and Pearson."""
    low, high = share_bounds(misses, requests, 0.975)
    return low <= share <= high


def verdict_table(found: list[Verdicts]) -> str:
    """PASS / FAIL / UNDECIDED in percent of the runs, a column a factor; naive: PASS / FAIL."""
    head = [f"{factor:g} x" for factor in FACTORS] + [f"naive {f:g} x" for f in FACTORS[:2]]
    lines = [_row(["queue", "busy", "length", "requests", "SLO", *head]), _row(["---"] * 11)]
    for start in range(0, len(found), len(FACTORS)):
        group = found[start : start + len(FACTORS)]
        cells = [
            f"{_percent(one.passed)} / {_percent(one.failed)} / "
            f"{_percent(1.0 - one.passed - one.failed)}"
            for one in group
        ]
        cells += [
            f"{_percent(one.naive_passed)} / {_percent(one.naive_failed)}" for one in group[:2]
        ]
        lines.append(_row([*_named(group[0]), *cells]))
    return "\n".join(lines)


def coverage_table(found: list[Coverage]) -> str:
    head = ["queue", "busy", "length", "requests", "of", "holds the truth", "has an upper end"]
    lines = [_row([*head, "naive holds it"]), _row(["---"] * 8)]
    for one in found:
        shares = (one.covered, one.bounded, one.naive_covered)
        lines.append(_row([*_named(one), *map(_percent, shares)]))
    return "\n".join(lines)


def _named(one: Verdicts | Coverage) -> list[str]:
    case = one.case
    return [
        *(case.queue, f"{case.utilization:g}", f"{case.relaxations} rt"),
        *(f"{one.requests:,}", f"P{one.percent:g}"),
    ]


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _percent(share: float) -> str:
    return f"{100.0 * abs(share):.3g}"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    options.add_argument("--runs", type=int, default=1000)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--json", action="store_true", help="one JSON document on stdout")
    args = options.parse_args()
    known = facts(args.seed)
    print_facts(known)
    print(f"{args.runs} runs a case; rt: relaxation times of M/M/1", file=sys.stderr)
    verdicts: list[Verdicts] = []
    coverage: list[Coverage] = []
    for case in CASES:
        start = time.perf_counter()
        for table, found in zip(
            (verdicts, coverage), measure(case, args.runs, args.seed), strict=True
        ):
            table.extend(found)  # type: ignore[arg-type]
        print(f"{case}: {time.perf_counter() - start:.0f} s", file=sys.stderr)
    if args.json:
        rows = {"verdicts": verdicts, "coverage": coverage}
        document = {name: [asdict(one) for one in found] for name, found in rows.items()}
        print(json.dumps({"machine": known, "runs": args.runs} | document, indent=2))
    else:
        print(f"{verdict_table(verdicts)}\n\n{coverage_table(coverage)}")


if __name__ == "__main__":
    main()
