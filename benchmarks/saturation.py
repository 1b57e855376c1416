"""How often is a step called OVERLOAD that is not, and how often is overload missed?

    python benchmarks/saturation.py --runs 200

Simulated servers with a known capacity, each begun empty, with the warm-up that a search gives a
step. Nothing is timed, so the machine does not matter.
"""

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from machine import facts, print_facts
from tailproof.core.arrivals import poisson
from tailproof.core.queues import batched, one_at_a_time
from tailproof.core.recording import UNANSWERED, Recording
from tailproof.core.saturation import classify

Floats = np.typing.NDArray[np.float64]
Responses = Callable[[Floats, np.random.Generator], Floats]

UTILIZATIONS = (0.5, 0.8, 0.9, 0.95, 1.1, 1.2, 1.5)
LENGTHS = (1.0, 3.0, 10.0, 30.0)
SERVICES = (0.003, 0.010, 0.050)


@dataclass(frozen=True, slots=True)
class Server:
    name: str
    capacity: float
    """Requests a second."""
    responses: Responses


@dataclass(frozen=True, slots=True)
class Row:
    server: str
    utilization: float
    seconds: float
    requests: int
    linear: float
    """Shares of the runs."""
    knee: float
    overload: float


def servers() -> Iterator[Server]:
    for service in SERVICES:
        yield Server(f"M/M/1 {service * 1e3:g} ms", 1.0 / service, mm1(service))
    yield Server("fixed 10 ms", 100.0, lambda at, _: one_at_a_time(at, np.full(len(at), 0.010)))
    yield Server("lognormal 10 ms", 100.0, lognormal(0.010, squared_variation=3.0))
    yield Server("batch 5 + 1 ms", 16 / 0.021, lambda at, _: batched(at, batch_seconds, 16))


def batch_seconds(rows: int) -> float:
    return 0.005 + 0.001 * rows


def mm1(service: float) -> Responses:
    return lambda at, rng: one_at_a_time(at, rng.exponential(service, len(at)))


def lognormal(mean: float, squared_variation: float) -> Responses:
    sigma = float(np.sqrt(np.log1p(squared_variation)))
    middle = np.log(mean) - sigma**2 / 2.0
    return lambda at, rng: one_at_a_time(at, rng.lognormal(middle, sigma, len(at)))


def row(server: Server, utilization: float, seconds: float, num_runs: int, seed: int) -> Row:
    rate, warm_up = utilization * server.capacity, 0.2 * seconds
    found = [
        step_class(server, rate, warm_up, seconds, seed + number) for number in range(num_runs)
    ]
    return Row(
        server.name,
        utilization,
        seconds,
        round(rate * seconds),
        *(found.count(name) / num_runs for name in ("LINEAR", "KNEE", "OVERLOAD")),
    )


def step_class(server: Server, rate: float, warm_up: float, seconds: float, seed: int) -> str:
    end = warm_up + seconds
    arrivals = poisson(rate, end, seed)
    responses = server.responses(arrivals, np.random.default_rng([seed, 1]))
    light = np.arange(200) / (0.01 * server.capacity)
    base = np.sort(server.responses(light, np.random.default_rng([seed, 2])))[189]
    return classify(recorded(arrivals, responses, drained=end + 2.0), warm_up, end, base_p95=base)


def recorded(arrivals: Floats, responses: Floats, drained: float) -> Recording:
    """A step whose answers were waited for until `drained`."""
    recording = Recording.empty(arrivals)
    recording.sent[:] = arrivals
    recording.last[:] = arrivals + responses
    recording.status[:] = 200
    late = recording.last > drained
    recording.last[late] = np.nan
    recording.status[late] = UNANSWERED
    return recording


def print_rows(rows: list[Row]) -> None:
    print(f"{'server':<16} {'load':>5} {'step':>5} {'requests':>8} LINEAR   KNEE OVERLOAD")
    for one in rows:
        print(
            f"{one.server:<16} {one.utilization:>4g}x {one.seconds:>4g}s {one.requests:>8,}"
            f" {one.linear:>6.1%} {one.knee:>6.1%} {one.overload:>8.1%}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=200, help="runs of each row")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    known: dict[str, Any] = facts(options.seed)
    print_facts(known)
    rows = [
        row(server, utilization, seconds, options.runs, options.seed)
        for server in servers()
        for utilization in UTILIZATIONS
        for seconds in LENGTHS
    ]
    if options.json:
        print(json.dumps({"facts": known, "runs": options.runs, "rows": [asdict(r) for r in rows]}))
    else:
        print_rows(rows)


if __name__ == "__main__":
    main()
