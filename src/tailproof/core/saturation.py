"""Is the server keeping up? The class of a step, and from many steps the knee and the capacity.

A server is past its capacity when what is offered stays longer and longer. That has to be told
from a healthy server that happens to be busy when the window ends, so three things must agree:
the backlog grew by more than chance explains; it still grew in the second half; and while it was
long, answers left more slowly than requests came. The last is the strongest: a healthy server
works its backlog off.

How often this is wrong is measured by `benchmarks/saturation.py`. Up to 0.9 of the capacity about 1
step in 100 is called OVERLOAD, at most. At 1.1 times the capacity fewer than 2 in 100 are missed
from about 2,500 requests on (exponential service times; 1,100 when they are fixed): a shorter step
so near to the capacity is called KNEE.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from tailproof.core.recording import TIMED_OUT, UNANSWERED, UNSENT, Bools, Floats, Recording
from tailproof.core.statistics import percentile

Class = Literal["LINEAR", "KNEE", "OVERLOAD"]
Verdict = Literal["PASS", "FAIL", "UNDECIDED", "INVALID"]

KEPT_UP = 0.98
"""Share of the offered requests that a server must answer well not to be overloaded."""

ENOUGH, SWAMPED = 100, 0.3
"""Of at least so many requests, such a share is unanswered and the rest is all that was done."""
WALK = 2.0
"""Standard deviations of a random walk that a backlog may grow by (one-sided: 2%)."""

HEALTHY_GROWTH = 20.0
"""However long the window, the backlog of a healthy server does not grow by more than this, for
each unit of variance of arrivals and departures. In heavy traffic the backlog is exponential with
mean variance / (2 (1 - utilization)) (Kingman 1962); its 98th percentile at utilization 0.9 is
3.9 times that: 19.6."""

STILL_GROWING = 0.1
"""Share of the growth that falls into the second half; half of it would under steady overload. Of
a server that was only starting up there is none."""

NUM_SLICES = 20
"""Of the window, to see how evenly requests come and leave."""

DOUBLED = 2.0
"""A P95 so many times that of the light load is past the knee."""

APART = 1.2
"""Two rates closer than this say nothing about how latency grows between them."""

FEWEST_FOR_KNEE = 5
NEAREST = 3
"""Overloaded points whose answers a second are taken for the capacity: those at the lowest rates,
because many servers answer less the more they are overloaded."""


@dataclass(frozen=True, slots=True)
class RatePoint:
    """What one step, or several at one rate, say about it. Requests a second; seconds."""

    rate: float
    achieved: float
    p95: float | None
    """None: more than 5% had no good answer."""
    class_: Class


class Capacity(NamedTuple):
    """Requests a second."""

    rate: float
    low: float
    """The highest rate that was not OVERLOAD."""
    high: float | None
    """The lowest above it that was."""


# --- one step -------------------------------------------------------------------------------------


def achieved(recording: Recording, start: float, end: float) -> float:
    """2xx answers completed in [start, end), late or not, a second."""
    done = recording.good & (recording.last >= start) & (recording.last < end)
    return int(np.sum(done)) / (end - start)


def classify(
    recording: Recording,
    start: float,
    end: float,
    *,
    base_p95: float | None = None,
    below: tuple[float, float] | None = None,
) -> Class:
    """The class of a step from all its requests, warm-up included; [start, end) was measured.

    `base_p95`: seconds, under the lightest load. `below`: (rate, P95) of the next lower step. KNEE:
    P95 is twice the base's, or grows faster than the load does, d ln P95 / d ln rate >= 1, which
    is where rate / P95 (Kleinrock's power) is greatest. What is answered after `end` does not count
    as answered.
    """
    if is_overloaded(recording, start, end):
        return "OVERLOAD"
    measured = recording.between(start, end)
    waited = measured.response[~_broke(measured)]
    if len(waited) == 0:
        return "LINEAR"
    p95 = percentile(waited, 95.0)
    if p95 is None or (base_p95 is not None and p95 >= DOUBLED * base_p95):
        return "KNEE"
    if below is None:
        return "LINEAR"
    rate = len(measured) / (end - start)
    return "KNEE" if _elasticity(below, (rate, p95)) >= 1.0 else "LINEAR"


def is_overloaded(recording: Recording, start: float, end: float) -> bool:
    """Whether the server cannot answer what [start, end) offers: it refuses a part of it, or the
    backlog grows as it does not when the server keeps up."""
    measured = recording.between(start, end)
    return (
        _falls_short(measured)
        or _is_swamped(measured, achieved(recording, start, end) * (end - start))
        or _piles_up(recording, start, end)
    )


def _falls_short(measured: Recording) -> bool:
    """More was refused, or not answered in time, than 2% and what chance adds. Errors of another
    kind are no sign of load: they have lines of their own in every report."""
    turned_away = int(np.sum(measured.refused | (measured.status == TIMED_OUT)))
    expected = (1.0 - KEPT_UP) * len(measured)
    return turned_away > expected + WALK * math.sqrt(expected)


def _is_swamped(measured: Recording, num_answered: float) -> bool:
    """So much was left waiting that no statistics are needed, and a step that was given up early
    has no time for them."""
    num = len(measured)
    waiting = int(np.sum(_waits(measured)))
    return num >= ENOUGH and waiting > SWAMPED * num and num_answered < (1.0 - SWAMPED) * num


def _broke(recording: Recording) -> Bools:
    """Failed without any waiting to blame: an error, a lost connection."""
    waiting: Bools = recording.refused | _waits(recording) | (recording.status == TIMED_OUT)
    return ~recording.good & ~waiting


def _waits(recording: Recording) -> Bools:
    """Neither answered nor given up when the step ended."""
    return np.isin(recording.status, (UNANSWERED, UNSENT))


def _piles_up(recording: Recording, start: float, end: float) -> bool:
    backlog = _Backlog.of(recording, start, end)
    if backlog.num_arrived == 0 or backlog.growth <= _by_chance(backlog):
        return False
    still_grows = backlog.growth_since((start + end) / 2.0) > STILL_GROWING * backlog.growth
    return still_grows and backlog.leaving_rate() < backlog.num_arrived / (end - start)


def _by_chance(backlog: "_Backlog") -> float:
    """The growth that 98 in 100 healthy servers stay under. With variances v of the arrivals and
    departures, each over its mean, the backlog of n requests is a walk with standard deviation
    sqrt(v n), which a server that keeps up holds down."""
    variance = backlog.dispersion()
    walk = WALK * math.sqrt(variance * backlog.num_arrived)
    return min(walk, HEALTHY_GROWTH * variance)


@dataclass(frozen=True, slots=True, eq=False)
class _Backlog:
    """How many requests were unanswered, through a window. Those that failed never count."""

    start: float
    end: float
    moments: Floats
    """Of each arrival and departure in the window, rising. Shape (events,)."""
    steps: Floats
    """+1 and -1."""
    before: Floats
    """Backlog before each event, and after the last. Shape (events + 1,)."""

    @classmethod
    def of(cls, recording: Recording, start: float, end: float) -> "_Backlog":
        counted = recording.good | _waits(recording)
        arrived = recording.intended[counted]
        left = np.where(recording.good, recording.last, np.inf)[counted]
        already = int(np.sum(arrived < start)) - int(np.sum(left < start))
        arrived = arrived[(arrived >= start) & (arrived < end)]
        left = left[(left >= start) & (left < end)]
        moments = np.concatenate([arrived, left])
        steps = np.repeat([1.0, -1.0], [len(arrived), len(left)])
        order = np.argsort(moments, kind="stable")
        before = already + np.concatenate([[0.0], np.cumsum(steps[order])])
        return cls(start, end, moments[order], steps[order], before)

    @property
    def num_arrived(self) -> int:
        return int(np.sum(self.steps > 0))

    @property
    def growth(self) -> float:
        return float(self.before[-1] - self.before[0])

    def growth_since(self, moment: float) -> float:
        return float(self.before[-1] - self.before[np.searchsorted(self.moments, moment)])

    def dispersion(self) -> float:
        """Variance over mean of the requests that come in a slice of the window, plus the same of
        those that leave: 1 + 1 for M/M/1, 1 + 0 for a server that always works at one pace."""
        edges = np.linspace(self.start, self.end, NUM_SLICES + 1)
        counts = (np.histogram(self.moments[self.steps == way], edges)[0] for way in (1.0, -1.0))
        return float(sum(count.var(ddof=1) / max(count.mean(), 1.0) for count in counts))

    def leaving_rate(self) -> float:
        """Departures a second while the backlog was longer than it was half of the time. A server
        that keeps up is then faster than requests come, whatever its kind; one that is past its
        capacity is not. Infinite when the backlog never was longer."""
        spans = np.diff(np.concatenate([[self.start], self.moments, [self.end]]))
        usual = _weighted_median(self.before, spans)
        seconds = float(np.sum(spans[self.before > usual]))
        num_left = int(np.sum((self.steps < 0) & (self.before[:-1] > usual)))
        return num_left / seconds if seconds > 0.0 else math.inf


def _weighted_median(values: Floats, weights: Floats) -> float:
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(reached, reached[-1] / 2.0)])


def _elasticity(below: tuple[float, float], here: tuple[float, float]) -> float:
    """d ln P95 / d ln rate between two (rate, P95); 0 where they are too close to say."""
    (rate_below, p95_below), (rate, p95) = below, here
    if rate < APART * rate_below or min(p95_below, p95) <= 0.0:
        return 0.0
    return math.log(p95 / p95_below) / math.log(rate / rate_below)


# --- many steps -----------------------------------------------------------------------------------


def knee(points: Sequence[RatePoint]) -> float | None:
    """The rate at which rate / P95 is greatest: beyond it latency grows faster than load does
    (Kleinrock 1979). Between the rates it is read off a parabola in logarithms.

    None when fewer than 5 rates have a P95, or when it is greatest at the first or the last of
    them, so that the knee lies outside.
    """
    known = _p95_of_rates(points)
    if len(known) < FEWEST_FOR_KNEE:
        return None
    rates = np.log([rate for rate, _ in known])
    power = rates - np.log([p95 for _, p95 in known])
    top = int(np.argmax(power))
    if top in (0, len(known) - 1):
        return None
    return math.exp(_peak(rates[top - 1 : top + 2], power[top - 1 : top + 2]))


def _p95_of_rates(points: Sequence[RatePoint]) -> list[tuple[float, float]]:
    """(rate, median P95) of each rate that has one, rising."""
    found: dict[float, list[float]] = {}
    for point in points:
        if point.p95:
            found.setdefault(point.rate, []).append(point.p95)
    return [(rate, float(np.median(p95s))) for rate, p95s in sorted(found.items())]


def _peak(x: Floats, y: Floats) -> float:
    """Where the parabola through three points, the middle one highest, has its top."""
    left, right = (y[1] - y[0]) / (x[1] - x[0]), (y[2] - y[1]) / (x[2] - x[1])
    middles = (x[0] + x[1]) / 2.0, (x[1] + x[2]) / 2.0
    if left == right:
        return float(x[1])
    return float(middles[0] + (middles[1] - middles[0]) * left / (left - right))


def saturation(points: Sequence[RatePoint]) -> Capacity | None:
    """The rate beyond which no more is answered, from points in any order.

    Past capacity the answers a second stay flat: `rate` is their median over the three lowest
    overloaded rates, within `low` and `high`. None when no point was OVERLOAD above one that kept
    up: a short step that was not called OVERLOAD and yet fell short says nothing.
    """
    calm = [
        point.rate
        for point in points
        if point.class_ != "OVERLOAD" and point.achieved >= KEPT_UP * point.rate
    ]
    low = max(calm, default=math.inf)
    over = [point for point in points if point.class_ == "OVERLOAD" and point.rate > low]
    if not over:
        return None
    nearest = sorted(over, key=lambda point: point.rate)[:NEAREST]
    plateau = float(np.median([point.achieved for point in nearest]))
    high = nearest[0].rate
    return Capacity(min(max(plateau, low), high), low, high)


# --- in words -------------------------------------------------------------------------------------

_ADVICE: dict[tuple[Class, Verdict], str] = {
    ("LINEAR", "PASS"): "keep loading",
    ("LINEAR", "FAIL"): "load is not why the SLO breaks: look at the service itself and its errors",
    ("KNEE", "PASS"): "keep loading, in small steps: latency now grows faster than load",
    ("KNEE", "FAIL"): "the SLO belongs before this point",
    ("OVERLOAD", "PASS"): "this is the capacity, the basis for scaling; warning: the SLO breaks "
    "only beyond saturation, so it does not protect the service",
    ("OVERLOAD", "FAIL"): "this is the capacity, the basis for scaling",
}
_ALONE: dict[Verdict, str] = {
    "PASS": "this rate is inside the SLO",
    "FAIL": "this rate is outside the SLO",
    "UNDECIDED": "undecided: needs a longer step",
}
_MORE: dict[Class, str] = {
    "LINEAR": "keep loading",
    "KNEE": "the SLO belongs near this point",
    "OVERLOAD": "this is the capacity, the basis for scaling",
}


def advice(class_: Class | None, verdict: Verdict, more_requests: int | None = None) -> str:
    """What an engineer writes beside a step. `more_requests`: about how many an UNDECIDED one
    still needs; None: not known."""
    if verdict == "INVALID":
        return "look at the tester first: it is in the number"
    if class_ is None:
        return _ALONE[verdict]
    if verdict == "UNDECIDED":
        more = (
            "a longer step" if more_requests is None else f"about {more_requests:,} more requests"
        )
        return f"{_MORE[class_]}; undecided: needs {more}"
    return _ADVICE[class_, verdict]
