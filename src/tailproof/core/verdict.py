"""Does the service keep its SLO? PASS, FAIL, or not known yet.

A verdict is about the service, not about one sample of it: PASS means that the share of misses is,
with the confidence asked for, within what the SLO allows, also when one allows for requests that
are late together. `docs/verdict.md` has the error rates, measured on queues whose truth is known.
(INVALID, the fourth verdict, is about the tester, and is decided from its own evidence.)
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tailproof.core.recording import Bools, Floats, Recording
from tailproof.core.slo import Availability, Latency, Slo
from tailproof.core.statistics import clusters, design_effect, percentile, share_bounds
from tailproof.core.units import format_duration

Verdict = Literal["PASS", "FAIL", "UNDECIDED"]

UNDECLARED = Availability(0.999)
"""Failed and refused requests are misses of their own kind: this is checked without being asked."""

CALIBRATED: dict[str, Any] = {
    "false_pass": 0.018,
    "false_pass_at": "0.8 x the true P99",
    "pass_on_the_limit": 0.222,
    "power": 0.750,
    "power_at": "1.5 x the true P99",
    "measured_on": "M/M/1, utilization 0.8, 100 relaxation times, 7,178 requests",
    "runs": 1000,
    "more_in": "docs/verdict.md",
}
"""How often this errs: a line of the table of `benchmarks/verdict.py`, and the hard end of it."""

_TICK = 1e-9
"""Seconds. An answer at the threshold is in time, whatever the subtraction of two times rounds."""
_SEVERITY: dict[Verdict, int] = {"PASS": 0, "UNDECIDED": 1, "FAIL": 2}
_MOST_TIMES = 1000
"""A sample that would have to grow further than this sits on the limit: no number is named."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What one step says about one SLO. Also a part of the document that reports are made from."""

    slo: str
    misses: int
    requests: int
    share: float
    """misses / requests, as observed."""
    allowed: float
    low: float | None
    """One-sided bounds of the true share; None where the rule is about the observed share."""
    high: float | None
    effective_requests: float | None
    """How many independent requests these are worth."""
    verdict: Verdict
    reason: str


@dataclass(frozen=True, slots=True)
class Judgement:
    """The worst of the findings, and why."""

    verdict: Verdict
    reason: str
    findings: tuple[Finding, ...]


def judge(
    recording: Recording, slos: Sequence[Slo], *, confidence: float = 0.95, looks: int = 1
) -> Judgement:
    """Hold the measured requests against each SLO, in the order given.

    A request misses a latency SLO unless a good answer came within the threshold. The share of
    misses is bounded by Clopper and Pearson on as many independent requests as these are worth
    (`statistics.design_effect`): PASS when even the upper bound is allowed, FAIL when even the
    lower one is not. Each bound is one-sided, at `confidence`. Availability is judged so when
    declared; undeclared, 99.9% is asked of the observed share.

    `looks`: how many times the same growing sample will be judged, fixed beforehand; each look
    gets that part of the error (Bonferroni).

    Raises ValueError for an SLO about tokens (ttft, itl, tpot), which no column here can answer.
    """
    assert 0.0 < confidence < 1.0, confidence
    assert looks >= 1, looks
    if len(recording) == 0:
        return Judgement("UNDECIDED", "no request was measured", ())
    sure = 1.0 - (1.0 - confidence) / looks
    findings = [_find(recording, slo, sure) for slo in slos]
    if not any(isinstance(slo, Availability) for slo in slos):
        findings.append(_undeclared(recording))
    worst = max(findings, key=_weight)
    return Judgement(worst.verdict, worst.reason, tuple(findings))


def _weight(finding: Finding) -> tuple[int, float]:
    """By verdict, then by how much of its allowance is used up."""
    return _SEVERITY[finding.verdict], finding.share / finding.allowed


def _find(recording: Recording, slo: Slo, sure: float) -> Finding:
    if isinstance(slo, Availability):
        is_miss, response = ~recording.good, None
        said = f"{_percent(is_miss.mean())} of {len(is_miss):,} requests got no good answer"
    elif slo.signal == "e2e":
        response = recording.response
        is_miss = response > slo.threshold + _TICK
        said = _what_was_late(recording, slo, response, is_miss)
    else:
        raise ValueError(f"{slo}: only the whole answer is timed here, not its tokens")
    return _inferred(slo, is_miss, response, said, sure)


def _inferred(slo: Slo, is_miss: Bools, response: Floats | None, said: str, sure: float) -> Finding:
    requests, misses, allowed = len(is_miss), int(is_miss.sum()), _allowed(slo)
    worth = requests / design_effect(is_miss, response)
    share = misses / requests
    low, high = share_bounds(share * worth, worth, sure)
    verdict = _decide(low, high, allowed)
    said = f"{said}, at most {_percent(allowed)} may be; with {100.0 * sure:.4g}% confidence "
    if verdict == "PASS":
        said += f"at most {_percent(high)}"
    elif verdict == "FAIL":
        said += f"at least {_percent(low)}"
    else:
        said += f"{_percent(low)} to {_percent(high)}; {_wanted(is_miss, worth, allowed, sure)}"
    return Finding(
        slo=str(slo),
        misses=misses,
        requests=requests,
        share=share,
        allowed=allowed,
        low=low,
        high=high,
        effective_requests=worth,
        verdict=verdict,
        reason=said,
    )


def _undeclared(recording: Recording) -> Finding:
    is_miss = ~recording.good
    share, allowed = float(is_miss.mean()), _allowed(UNDECLARED)
    said = f"{_percent(share)} of {len(is_miss):,} requests got no good answer"
    return Finding(
        slo=str(UNDECLARED),
        misses=int(is_miss.sum()),
        requests=len(is_miss),
        share=share,
        allowed=allowed,
        low=None,
        high=None,
        effective_requests=None,
        verdict="PASS" if share <= allowed else "FAIL",
        reason=f"{said}, at most {_percent(allowed)} may be (no availability was declared)",
    )


def _decide(low: float, high: float, allowed: float) -> Verdict:
    if high <= allowed:
        return "PASS"
    return "FAIL" if low > allowed else "UNDECIDED"


def _allowed(slo: Slo) -> float:
    """1 - objective, without the noise of the subtraction: 5%, not 5.000000000000004%."""
    return round(1.0 - slo.objective, 12)


def _what_was_late(recording: Recording, slo: Latency, response: Floats, is_miss: Bools) -> str:
    name, value = f"P{slo.percentile:g}", percentile(response, slo.percentile)
    measured = f"{name} was {_told_apart(value, slo.threshold)}"
    unanswered = int((~recording.good).sum())
    late = f"{_percent(is_miss.mean())} of {len(is_miss):,} requests were late"
    return f"{measured}: {late}" + (f" or failed ({unanswered:,} failed)" if unanswered else "")


def _told_apart(value: float | None, threshold: float) -> str:
    """A duration with as many digits as it takes to see on which side of the threshold it is."""
    if value is None:
        return "a miss"
    if abs(value - threshold) > _TICK and format_duration(value) == format_duration(threshold):
        return f"{1e3 * value:.6g}ms"
    return format_duration(value)


def _wanted(is_miss: Bools, worth: float, allowed: float, sure: float) -> str:
    """What an UNDECIDED needs: about how many more requests, if they go on like these."""
    together = len(is_miss) / worth
    why = ""
    if together > 2.0:
        why = f" (these are worth {worth:,.0f} independent ones"
        num = clusters(is_miss)
        why += f"; the misses came in {num} spell{'s'[: num != 1]})" if num else ")"
    times = _times(float(is_miss.mean()), worth, allowed, sure)
    if times is None:
        return f"the service is too close to the limit to tell{why}"
    more = (times - 1.0) * len(is_miss)
    return f"about {_rounded_up(more):,} more requests would decide{why}"


def _times(share: float, worth: float, allowed: float, sure: float) -> float | None:
    """How many times as many requests would decide, at the same share of misses."""

    def decides(times: float) -> bool:
        bounds = share_bounds(share * worth * times, worth * times, sure)
        return _decide(*bounds, allowed) != "UNDECIDED"

    low, high = 1.0, 2.0
    while not decides(high):
        low, high = high, 2.0 * high
        if high > _MOST_TIMES:
            return None
    while high / low > 1.02:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if decides(middle) else (middle, high)
    return high


def _rounded_up(number: float) -> int:
    """To two digits: it is an estimate."""
    unit = int(10 ** max(math.floor(math.log10(number)) - 1, 0))
    return math.ceil(number / unit) * unit


def _percent(share: float) -> str:
    """0.0123 -> `1.2%`; two digits, and never 0% or 100% for what is neither."""
    percent = 100.0 * float(share)
    digits = 2 if percent < 99.0 else 4
    return f"{float(f'{percent:.{digits}g}'):g}%"
