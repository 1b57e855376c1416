"""Queues whose truth is known: the oracle of the statistics, and what a plan is compared with.

All times are seconds. Each function takes rising arrival times, shape (n,), and returns the
response time of each request, shape (n,).
"""

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def one_at_a_time(arrivals: Floats, service: Floats) -> Floats:
    """A single server, first come first served; `service[i]` is what request i takes.

    Lindley's recursion in closed form: request i leaves at max over j <= i of
    arrivals[j] + service[j] + ... + service[i].
    """
    work = np.cumsum(service)
    leaves: Floats = work + np.maximum.accumulate(arrivals - (work - service))
    response: Floats = leaves - arrivals
    return response


def batched(
    arrivals: Floats, batch_seconds: Callable[[int], float], max_rows: int, workers: int = 1
) -> Floats:
    """Each free worker takes all that waits, up to `max_rows`; `batch_seconds(rows)` is what it
    then needs. With one row a batch this is `one_at_a_time` (for one worker)."""
    leaves = np.empty_like(arrivals)
    free = [0.0] * workers
    first, num = 0, len(arrivals)
    times = arrivals.tolist()
    while first < num:
        worker = min(range(workers), key=free.__getitem__)
        start = max(free[worker], times[first])
        beyond = first
        while beyond < num and beyond - first < max_rows and times[beyond] <= start:
            beyond += 1
        free[worker] = start + batch_seconds(beyond - first)
        leaves[first:beyond] = free[worker]
        first = beyond
    return leaves - arrivals


def mm1_quantile(rate: float, service: float, q: float) -> float:
    """The exact q-quantile of the response time of M/M/1: -ln(1 - q) / (1/service - rate).

    Raises ValueError when the server is not faster than the arrivals.
    """
    if rate * service >= 1.0:
        raise ValueError(f"no steady state: {rate:g}/s at {service:g} s each")
    return float(-np.log1p(-q) / (1.0 / service - rate))


def relaxation_time(service: float, utilization: float) -> float:
    """How long M/M/1 remembers: service / (1 - sqrt(utilization))^2."""
    return service / (1.0 - math.sqrt(utilization)) ** 2
