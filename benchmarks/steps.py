"""What an open-loop step is: its schedule, what happened to each request, and what that says."""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from connection import NO_SOCKET
from tailproof.core.slo import Latency
from tailproof.core.units import format_duration

Floats = npt.NDArray[np.float64]
Arrivals = Literal["poisson", "constant"]

PERCENTILES = (50.0, 90.0, 95.0, 99.0, 99.9)
AVAILABILITY = 0.999
"""Share of offered requests that must get a good answer at all (the undeclared default)."""
LAG_LIMIT = 1e-3
"""Seconds: a client whose P99 send lag is above this (or 5% of the SLO, if more) is to blame."""


# --- the schedule ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Schedule:
    """Arrival times in seconds since the start of the step, ascending.

    Those before `warm_up` are sent and not measured; the measured window ends at `end`.
    """

    offsets: Floats
    warm_up: float
    end: float

    @property
    def num_warm_up(self) -> int:
        return int(np.searchsorted(self.offsets, self.warm_up, side="left"))

    @property
    def rate(self) -> float:
        """Offered load in the measured window, requests a second."""
        return (len(self.offsets) - self.num_warm_up) / (self.end - self.warm_up)


def arrivals(kind: Arrivals, rate: float, seconds: float, rng: np.random.Generator) -> Floats:
    """Exactly round(rate * seconds) arrival times in [0, seconds).

    Poisson: sorted uniform times, which is a Poisson process given its count, so that the offered
    rate has no sampling noise.
    """
    num = round(rate * seconds)
    if kind == "constant":
        return np.arange(num, dtype=np.float64) / rate
    return np.sort(rng.uniform(0.0, seconds, num))


def steady(
    kind: Arrivals, rate: float, warm_up: float, seconds: float, rng: np.random.Generator
) -> Schedule:
    """`seconds` at `rate`, after `warm_up` seconds at the same rate that are not measured."""
    before = arrivals(kind, rate, warm_up, rng)
    measured = arrivals(kind, rate, seconds, rng) + warm_up
    return Schedule(np.concatenate([before, measured]), warm_up, warm_up + seconds)


# --- what happened --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Recording:
    """One entry per planned request, in order of intended start; seconds since the step began.

    `sent` and `last` are NaN for what did not happen. `status` is HTTP's, or one of the codes of
    `connection` (0 and below). `own_lag` is the part of the send lag that the client caused: all
    of it, less the time that the server took to accept a new connection.
    """

    schedule: Schedule
    sent: Floats
    last: Floats
    status: npt.NDArray[np.int16]
    own_lag: Floats
    num_connections: int
    stopped_at: float | None = None
    """Set when the step was given up because it could no longer pass: the last moment at which the
    outcome of every earlier request was known. None: the step ran to its end."""

    @property
    def good(self) -> npt.NDArray[np.bool_]:
        return (self.status >= 200) & (self.status < 300)

    @property
    def response(self) -> Floats:
        """From the intended start to the last byte; infinite for a miss."""
        return np.where(self.good, self.last - self.schedule.offsets, np.inf)

    @property
    def uncorrected(self) -> Floats:
        """From the send to the last byte, as closed-loop tools count; infinite for a miss."""
        return np.where(self.good, self.last - self.sent, np.inf)

    @property
    def measured(self) -> slice:
        """The requests that count: after the warm-up, and before the step was given up."""
        offsets = self.schedule.offsets
        until = math.inf if self.stopped_at is None else self.stopped_at
        return slice(self.schedule.num_warm_up, int(np.searchsorted(offsets, until)))


def percentile(values: Floats, percent: float) -> float | None:
    """Nearest rank, upper: the ceil(percent/100 * n)-th smallest value.

    None when there are no values, or when the rank falls on a miss (an infinite value).
    """
    if len(values) == 0:
        return None
    rank = max(1, math.ceil(percent * len(values) / 100.0 - 1e-9))
    value = float(np.partition(values, rank - 1)[rank - 1])
    return value if math.isfinite(value) else None


def percentiles(values: Floats, wanted: tuple[float, ...] = PERCENTILES) -> dict[str, float | None]:
    """`{"p50": ..., "p99_9": ...}` in the unit of `values`."""
    return {f"p{percent:g}".replace(".", "_"): percentile(values, percent) for percent in wanted}


Class = Literal["LINEAR", "KNEE", "OVERLOAD"]
Verdict = Literal["PASS", "FAIL", "INVALID"]


@dataclass(frozen=True, slots=True)
class Step:
    """One load step, summed up. Rates a second, times in seconds; None: falls on a miss."""

    offered: float
    achieved: float
    """Good answers completed inside the measured window, late or not, a second."""
    num_requests: int
    good_in_time: float
    """Share of the measured requests with a good answer within the SLO's threshold."""
    failed: float
    """Share without a good answer: errors, refusals, lost, unanswered, unsent."""
    refused: float
    """Share answered 429 or 503."""
    response_seconds: dict[str, float | None]
    uncorrected_seconds: dict[str, float | None]
    send_lag_seconds: dict[str, float | None]
    own_lag_seconds: dict[str, float | None]
    num_connections: int
    verdict: Verdict
    reason: str
    stopped_early: bool


def judge(recording: Recording, slo: Latency) -> Step:
    """Does the recorded step hold `slo` at its offered rate?

    PASS when the SLO's share of the offered requests got a good answer in time and at most
    1 - AVAILABILITY got none. A description of this step, not an inference about the service.
    """
    part = recording.measured
    response, good = recording.response[part], recording.good[part]
    in_time = float(np.mean(response <= slo.threshold)) if len(good) else 0.0
    failed = float(1.0 - np.mean(good)) if len(good) else 1.0
    verdict, reason = _verdict(recording, slo, in_time, failed)
    schedule, status = recording.schedule, recording.status[part]
    until = schedule.end if recording.stopped_at is None else recording.stopped_at
    inside = recording.good & (recording.last >= schedule.warm_up) & (recording.last < until)
    return Step(
        offered=schedule.rate,
        achieved=float(np.sum(inside)) / max(until - schedule.warm_up, 1e-9),
        num_requests=len(good),
        good_in_time=in_time,
        failed=failed,
        refused=float(np.mean(np.isin(status, (429, 503)))) if len(good) else 0.0,
        response_seconds=percentiles(response),
        uncorrected_seconds=percentiles(recording.uncorrected[part]),
        send_lag_seconds=percentiles(_lag(recording)),
        own_lag_seconds=percentiles(_unsent_last(recording.own_lag[part])),
        num_connections=recording.num_connections,
        verdict=verdict,
        reason=reason,
        stopped_early=recording.stopped_at is not None,
    )


def classify(step: Step, base: Step | None, below: Step | None = None) -> Class:
    """LINEAR, KNEE or OVERLOAD, beside a lightly loaded step and the next lower one.

    OVERLOAD: not even 98% of the offered load was answered. KNEE: P95 is at least twice that of
    the light load, or grows faster than the load does (elasticity of 1 or more).
    """
    if step.stopped_early or step.achieved < 0.98 * step.offered:
        return "OVERLOAD"
    p95 = step.response_seconds["p95"]
    if p95 is None:
        return "OVERLOAD"
    base_p95 = None if base is None else base.response_seconds["p95"]
    if base_p95 is not None and p95 >= 2.0 * base_p95:
        return "KNEE"
    lower_p95 = None if below is None else below.response_seconds["p95"]
    if below is None or lower_p95 is None or step.offered <= 1.05 * below.offered:
        return "LINEAR"
    elasticity = math.log(p95 / lower_p95) / math.log(step.offered / below.offered)
    return "KNEE" if elasticity >= 1.0 else "LINEAR"


def _lag(recording: Recording) -> Floats:
    part = recording.measured
    return _unsent_last(recording.sent[part] - recording.schedule.offsets[part])


def _unsent_last(lags: Floats) -> Floats:
    return np.where(np.isnan(lags), np.inf, lags)


def _verdict(
    recording: Recording, slo: Latency, in_time: float, failed: float
) -> tuple[Verdict, str]:
    """INVALID comes first: neither PASS nor FAIL can be believed of a client that ran late."""
    part = recording.measured
    if np.any(recording.status[part] == NO_SOCKET):
        return "INVALID", "the client ran out of sockets"
    limit = max(LAG_LIMIT, 0.05 * slo.threshold)
    lag = percentile(_unsent_last(recording.own_lag[part]), 99.0)
    if lag is None or lag > limit:
        seen = "unsent requests" if lag is None else format_duration(lag)
        return "INVALID", f"the client was late: P99 of its send lag is {seen}"
    if recording.stopped_at is not None:
        return "FAIL", "stopped early: more misses than the whole step may have"
    if in_time < slo.objective:
        return "FAIL", f"{in_time:.2%} in time, {slo.objective:.2%} wanted"
    if failed > 1.0 - AVAILABILITY:
        return "FAIL", f"{failed:.2%} without a good answer, {1 - AVAILABILITY:.2%} allowed"
    return "PASS", f"{in_time:.2%} in time"


# --- printing -------------------------------------------------------------------------------------


def describe(step: Step) -> str:
    """One line of a table."""
    response = step.response_seconds
    shown = (response["p50"], response["p95"], response["p99"], step.uncorrected_seconds["p95"])
    times = " ".join(f"{milliseconds(value):>8}" for value in shown)
    lag = milliseconds(step.own_lag_seconds["p99"])
    return (
        f"{step.offered:8.0f}/s -> {step.achieved:7.0f}/s {times} {lag:>7}"
        f" {step.num_connections:5d} {step.verdict:7} {step.reason}"
    )


def details(step: Step) -> list[str]:
    """All percentiles, a line each for response, uncorrected time and send lag, in ms."""
    rows = {
        "response, from the intended start": step.response_seconds,
        "uncorrected, from the send": step.uncorrected_seconds,
        "send lag": step.send_lag_seconds,
        "send lag that the client caused": step.own_lag_seconds,
    }
    return [f"  {title:34}" + "".join(map(_cell, row.items())) for title, row in rows.items()]


def _cell(named: tuple[str, float | None]) -> str:
    name, seconds = named
    return f"{name.replace('_', '.'):>7} {milliseconds(seconds):>8}"


HEADING = (
    f"{'offered':>10}    {'achieved':>9} {'p50 ms':>8} {'p95 ms':>8} {'p99 ms':>8} {'unc. p95':>8}"
    f" {'lag p99':>7} {'conns':>5} verdict"
)


def milliseconds(seconds: float | None) -> str:
    return "miss" if seconds is None else f"{seconds * 1e3:.2f}"
