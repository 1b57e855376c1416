"""What the steps of a test say together: verdict and reason, limit, knee, saturation, warnings."""

from collections.abc import Sequence
from dataclasses import dataclass

from tailproof.core.saturation import RatePoint, knee, saturation
from tailproof.core.units import format_rate
from tailproof.load.search import Result
from tailproof.reporting import document as doc
from tailproof.reporting.document import Limit, Point, Verdict

DISTURBANCES = {"foreign_cpu", "steal"}
"""Evidence of others on the tester's cores."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the steps together say."""

    verdict: Verdict
    reason: str
    limit: Limit | None
    unresolved: tuple[str, ...] = ()


def of_limit(points: Sequence[Point], limit: Limit | None, unresolved: tuple[str, ...]) -> Outcome:
    """The verdict of a search: PASS means that a limit was found, bounded and confirmed."""
    if limit is not None and limit.low is not None and limit.rate is not None:
        return _with_a_pass(points, limit, limit.low, limit.rate, unresolved)
    if limit is not None and limit.high is not None:
        told = f"{format_rate(limit.high)} failed, and no lower rate was decided: give it more time"
        return Outcome("UNDECIDED", told, limit, unresolved)
    failed = [point for point in points if point.verdict == "FAIL"]
    if failed:
        lowest = min(failed, key=lambda point: point.offered)
        told = f"not even {format_rate(lowest.offered)} holds: {lowest.reason}"
        return Outcome("FAIL", told, None, unresolved)
    spoiled = [point.reason for point in points if point.verdict == "INVALID"]
    if spoiled:
        return Outcome("INVALID", spoiled[-1], None, unresolved)
    return Outcome("UNDECIDED", "the budget did not suffice to decide any rate", None, unresolved)


def _with_a_pass(
    points: Sequence[Point], limit: Limit, low: float, rate: float, unresolved: tuple[str, ...]
) -> Outcome:
    if limit.high is None:
        spoiled = [point for point in points if point.verdict == "INVALID"]
        above = [point.reason for point in spoiled if point.offered > low]
        why = f"above that, {above[-1]}" if above else "no higher rate was decided"
        told = f"holds at least {format_rate(low)}; {why}"
        return Outcome("UNDECIDED", told, limit, unresolved)
    passed, broke = format_rate(low), format_rate(limit.high)
    told = f"{passed} passed, {broke} failed: the limit is about {format_rate(rate)}"
    if _is_confirmed(points, low):
        return Outcome("PASS", told, limit, unresolved)
    told = f"{told}, but no repeat confirmed {passed}: give it more --budget"
    return Outcome("UNDECIDED", told, limit, unresolved)


def after_proofs(ended: Outcome, proven: Sequence[doc.Signal]) -> Outcome:
    """A proof that the tester was in the number ends every other verdict."""
    against = next((signal for signal in proven if signal.bad and signal.invalidates), None)
    if against is None:
        return ended
    told = f"you are load-testing yourself: {against.text}"
    return Outcome("INVALID", told, None, ended.unresolved)


def all_passed(points: Sequence[Point]) -> Limit:
    top = max(point.offered for point in points)
    return Limit(rate=top, low=top, high=None, at_least=True)


def _is_confirmed(points: Sequence[Point], rate: float) -> bool:
    """A quick look in passing is not enough for a PASS of the whole."""
    return any(
        point.verdict == "PASS" and point.role != "bracket" and point.offered >= 0.99 * rate
        for point in points
    )


def result(role: doc.Role, rate: float, point: Point, spent: float) -> Result:
    """What the search wants to know of a step."""
    inferred = [item for item in point.findings if item.effective_requests is not None]
    broken = [item for item in point.findings if item.verdict == "FAIL"]
    asked = broken or inferred or point.findings
    worst = max(asked, key=lambda item: item.share / item.allowed, default=None)
    return Result(
        role=role,
        rate=rate,
        verdict=point.verdict,
        class_=point.class_,
        achieved=point.achieved,
        misses=worst.misses if worst else 0,
        requests=point.requests,
        effective_requests=worst.effective_requests if worst else None,
        p95=point.response_seconds.p95,
        mean_response=point.response_seconds.mean,
        spent=spent,
        reason=point.reason,
        disturbed=_is_disturbed(point),
        allowed=worst.allowed if worst else None,
    )


def _is_disturbed(point: Point) -> bool:
    """INVALID, and others are the likeliest cause."""
    blamed = {signal.name for signal in point.generator.signals if signal.bad}
    return point.verdict == "INVALID" and bool(blamed & DISTURBANCES)


def _rate_points(points: Sequence[Point]) -> list[RatePoint]:
    """What valid steps say about the course of the curve."""
    return [
        RatePoint(point.offered, point.achieved, point.response_seconds.p95, point.class_)
        for point in points
        if point.verdict != "INVALID" and point.class_ is not None
    ]


def saturation_of(points: Sequence[Point]) -> doc.Saturation | None:
    found = saturation(_rate_points(points))
    return None if found is None else doc.Saturation(**found._asdict())


def knee_of(points: Sequence[Point]) -> doc.Knee | None:
    found = knee(_rate_points(points))
    return None if found is None else doc.Knee(rate=found)


def warnings(points: Sequence[Point]) -> list[str]:
    """What evidence says that does not invalidate: each kind once, where it was worst."""
    found: dict[str, doc.Signal] = {}
    valid = [point for point in points if point.verdict != "INVALID"] or points
    for signal in (signal for point in valid for signal in point.generator.signals):
        known = found.get(signal.name)
        if signal.bad and not signal.invalidates and (known is None or _more(signal, known)):
            found[signal.name] = signal
    return [signal.text for signal in found.values()]


def _more(signal: doc.Signal, known: doc.Signal) -> bool:
    return (signal.value or 0.0) > (known.value or 0.0)
