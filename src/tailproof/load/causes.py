"""Cold and warm apart, and why the slow ones were slow: what the records of steps say."""

from collections.abc import Iterable, Sequence

import numpy as np
from msgspec.structs import replace

from tailproof.core.attribution import Attribution, Cause, attribute, cold_requests
from tailproof.core.recording import Bools, Floats
from tailproof.core.statistics import describe, mser5
from tailproof.reporting.document import Cold, Percentiles, Point
from tailproof.reporting.runs import StepData

BOOTSTRAP = 3
"""Stream of random numbers."""


def tail_point(points: Sequence[Point]) -> int | None:
    """The step to look into: the highest rate that passed, the longest step at it; else the
    highest that did not overload; else the first. None without any valid step."""
    valid = [point for point in points if point.verdict != "INVALID" and point.role != "base"]
    passed = [point for point in valid if point.verdict == "PASS"]
    calm = [point for point in valid if point.class_ != "OVERLOAD"]
    for chosen in (passed, calm, valid):
        if chosen:
            top = max(point.offered for point in chosen)
            near = [point for point in chosen if point.offered >= 0.98 * top]
            return max(near, key=lambda point: point.requests).index
    return points[0].index if points else None


def of_tail(step: StepData, seed: int) -> Attribution:
    """The causes of the slowest 5% of a step's measured requests."""
    return attribute(step.measured, rng=np.random.default_rng([seed, BOOTSTRAP]))


def as_causes(found: Attribution) -> list[Cause]:
    """For the document, largest share first."""
    return sorted(found.causes, key=lambda cause: -cause.share)


def cold(first: float | None, steps: Iterable[StepData]) -> Cold | None:
    """Requests that met something for the first time, over all steps. `first`: seconds of the very
    first answer, before any step; None: it gave none. None when there is nothing to say."""
    kinds: dict[str, int] = {}
    until_steady: int | None = None
    cold_times: list[Floats] = []
    warm_times: list[Floats] = []
    for number, step in enumerate(steps):
        found = cold_requests(step.recording)
        any_cold = _any(found.values(), len(step.recording))
        response = step.recording.response
        cold_times.append(response[any_cold])
        if number == 0:  # of the lightest load: what comes later waits, too
            warm_times.append(response[~any_cold])
            until_steady = mser5(response)
        for kind, which in found.items():
            kinds[kind] = kinds.get(kind, 0) + int(np.sum(which))
    ours = [np.array([first])] if first is not None else []
    all_cold = np.concatenate([*ours, *cold_times]) if ours or cold_times else np.array([])
    if len(all_cold) == 0:
        return None
    told = _cold(first, all_cold, np.concatenate([*warm_times, np.array([])]), kinds)
    return replace(told, requests_until_steady=until_steady)


def _any(which: Iterable[Bools], num: int) -> Bools:
    found = np.zeros(num, np.bool_)
    for one in which:
        found |= one
    return found


def _cold(first: float | None, cold_times: Floats, warm: Floats, kinds: dict[str, int]) -> Cold:
    usual = Percentiles(**describe(warm)) if len(warm) else None
    median = None if usual is None else usual.p50
    both = np.concatenate([cold_times, warm])
    both = both[np.isfinite(both)]
    return Cold(
        requests=len(cold_times),
        response_seconds=Percentiles(**describe(cold_times)),
        kinds={kind: num for kind, num in kinds.items() if num},
        first_seconds=first,
        warm_seconds=usual,
        cold_warm_ratio=None if first is None or not median else first / median,
        mean_over_both=float(np.mean(both)) if len(both) else None,
    )
