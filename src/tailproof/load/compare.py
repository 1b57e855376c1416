"""Is one run better than another? What both measured at the same rates, and their limits.

Many figures are compared at once, so a difference counts only where it survives Holm's correction
over all of them: two runs of one service are then called different in about one case of twenty, not
in one figure of twenty.
"""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from tailproof.core import slo
from tailproof.core.comparison import TELLING, Comparison, Outcome, compare, compare_misses
from tailproof.core.recording import Recording
from tailproof.core.units import format_rate
from tailproof.reporting.document import Document, Limit, Point
from tailproof.reporting.runs import Run

PERCENTILES = (50.0, 95.0, 99.0)
"""Compared at every common rate, and those of the SLOs."""
SAME_RATE = 1.005
"""Steps at rates this close are repetitions of one step."""
NEAR_RATE = 1.05
"""Rates this close are compared. More load makes a service slower, so where the rates differ, only
a change against that direction counts: slower under less load, or faster under more."""
LIMIT_TOLERANCE = 1.05
"""Two limits this close are no difference: a search does not know its limit any better."""
LIMIT_PRECISION = 1.03
"""No limit is known better than to this factor: the step width of a search."""
CONFIDENCE = 0.95

_Z = 1.959964
"""Of a 95% interval of a normal variable."""


class Row(Struct, kw_only=True, frozen=True):
    """One figure before and after."""

    figure: str
    """`P95`, `misses` or `limit`."""
    unit: Literal["seconds", "ratio", "per_second"]
    """Of `before` and `after`."""
    rate: float | None
    """Offered before, in requests a second; None for the limit."""
    rate_after: float | None
    before: float | None
    after: float | None
    ratio: float | None
    low: float | None
    """95% interval of the ratio; of the difference after - before for misses. None: no bound."""
    high: float | None
    p: float
    outcome: Outcome
    """With Holm's correction over all rows."""
    reason: str


class RunComparison(Struct, kw_only=True, frozen=True):
    """The document that `compare --json` prints."""

    before: str
    after: str
    outcome: Outcome
    reasons: list[str]
    rows: list[Row]
    warnings: list[str]


def compare_runs(before: Run, after: Run) -> RunComparison:
    """What has changed from one run to the other.

    Raises ConfigError when the records of a step cannot be read.
    """
    rows = _holm([*_rows_at_common_rates(before, after), *_limit_rows(before, after)])
    headline = {f"P{percent:g}" for percent in _slo_percentiles(before, after) or {95.0}}
    outcome = _overall(rows, headline)
    return RunComparison(
        before=str(before.path),
        after=str(after.path),
        outcome=outcome,
        reasons=_reasons(rows, outcome, headline, before, after),
        rows=rows,
        warnings=[*_left_out(before, after), *_differences(before.document, after.document)],
    )


@dataclass(frozen=True, slots=True)
class _Steps:
    """The steps of one run at one rate."""

    run: Run
    points: tuple[Point, ...]

    @property
    def rate(self) -> float:
        return sum(point.offered for point in self.points) / len(self.points)

    @property
    def overloaded(self) -> bool:
        return all(point.class_ == "OVERLOAD" for point in self.points)

    def recordings(self) -> list[Recording]:
        return [self.run.step(point.index).measured for point in self.points]


def _rows_at_common_rates(before: Run, after: Run) -> Iterator[Row]:
    percentiles = sorted({*PERCENTILES, *_slo_percentiles(before, after)})
    for was, became in _matched(_by_rate(before), _by_rate(after)):
        first, second = was.recordings(), became.recordings()
        yield _row("misses", was, became, compare_misses(first, second))
        if was.overloaded and became.overloaded:
            continue  # their response times say how long the steps were
        for percent in percentiles:
            yield _row(f"P{percent:g}", was, became, compare(first, second, percent))


def _by_rate(run: Run) -> list[_Steps]:
    """The steps that count, those at (nearly) the same rate together, in order of rate."""
    groups: list[list[Point]] = []
    for point in sorted(filter(_counts, run.document.points), key=lambda point: point.offered):
        if groups and point.offered <= groups[-1][0].offered * SAME_RATE:
            groups[-1].append(point)
        else:
            groups.append([point])
    return [_Steps(run, tuple(group)) for group in groups]


def _counts(point: Point) -> bool:
    return point.verdict != "INVALID" and point.requests > 0


def _matched(before: Sequence[_Steps], after: Sequence[_Steps]) -> list[tuple[_Steps, _Steps]]:
    """Each with at most one other, the nearest first; in order of rate."""
    near = [
        (abs(math.log(was.rate / became.rate)), i, j)
        for i, was in enumerate(before)
        for j, became in enumerate(after)
        if abs(math.log(was.rate / became.rate)) <= math.log(NEAR_RATE)
    ]
    pairs: dict[int, int] = {}
    for _, i, j in sorted(near):
        if i not in pairs and j not in pairs.values():
            pairs[i] = j
    return [(before[i], after[pairs[i]]) for i in sorted(pairs)]


def _row(figure: str, was: _Steps, became: _Steps, found: Comparison) -> Row:
    row = Row(
        figure=figure,
        unit="ratio" if figure == "misses" else "seconds",
        rate=was.rate,
        rate_after=became.rate,
        before=found.before,
        after=found.after,
        ratio=found.ratio,
        low=found.low,
        high=found.high,
        p=found.p,
        outcome=found.outcome,
        reason=f"at {format_rate(was.rate)} {found.reason}",
    )
    more_load, less_load = became.rate > was.rate * SAME_RATE, was.rate > became.rate * SAME_RATE
    if (row.outcome == "worse" and more_load) or (row.outcome == "better" and less_load):
        why = f"undecided, the rates differ ({format_rate(became.rate)} after): {row.reason}"
        return replace(row, outcome="undecided", p=1.0, reason=why)
    return row


def _slo_percentiles(*runs: Run) -> set[float]:
    parsed = tuple(slo.parse(text) for run in runs for text in run.document.slo)
    return {item.percentile for item in slo.latencies(parsed)}


# --- limits ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Known:
    """What is known of the logarithm of a limit."""

    centre: float
    error: float
    """Standard error."""
    open: bool
    """It may be anything above."""


def _limit_rows(before: Run, after: Run) -> Iterator[Row]:
    first, second = (_limit_of(run.document) for run in (before, after))
    if isinstance(first, Limit) and isinstance(second, Limit):
        yield _compared_limits(first, second)
    elif isinstance(first, Limit) and second == "fails":
        yield _limit_row(first.rate, None, "worse", "after, no rate holds the SLO")
    elif first == "fails" and isinstance(second, Limit):
        yield _limit_row(None, second.rate, "better", "before, no rate held the SLO")


def _limit_of(document: Document) -> Limit | Literal["fails", "unknown"]:
    if document.limit is not None and (document.limit.rate or document.limit.low):
        return document.limit
    searched = document.mode in ("search", "ladder")
    return "fails" if searched and document.verdict == "FAIL" else "unknown"


def _compared_limits(first: Limit, second: Limit) -> Row:
    was, became = _known(first), _known(second)
    change = became.centre - was.centre
    error = math.hypot(was.error, became.error)
    lower = 1.0 if became.open else _normal_tail((-change - math.log(LIMIT_TOLERANCE)) / error)
    higher = 1.0 if was.open else _normal_tail((change - math.log(LIMIT_TOLERANCE)) / error)
    p = min(1.0, 2.0 * min(lower, higher))
    low = None if was.open else math.exp(change - _Z * error)
    high = None if became.open else math.exp(change + _Z * error)
    outcome: Outcome = "undecided"
    if p < 1.0 - CONFIDENCE:
        outcome = "worse" if lower < higher else "better"
    elif low is not None and high is not None and low > 1.0 / TELLING and high < TELLING:
        outcome = "no difference"
    told = " to ".join(_limit_told(limit) for limit in (first, second))
    row = _limit_row(math.exp(was.centre), math.exp(became.centre), outcome, f"limit from {told}")
    ratio = None if was.open or became.open else math.exp(change)
    return replace(row, ratio=ratio, low=low, high=high, p=p)


def _known(limit: Limit) -> _Known:
    passed = limit.low or limit.rate
    assert passed is not None
    if limit.at_least or limit.high is None:
        return _Known(math.log(passed), math.log(LIMIT_PRECISION) / _Z, open=True)
    low, high = limit.interval or (passed, limit.high)
    width = max(math.log(high / low) / 2.0, math.log(LIMIT_PRECISION))
    return _Known(math.log(limit.rate or math.sqrt(low * high)), width / _Z, open=False)


def _limit_told(limit: Limit) -> str:
    known = _known(limit)
    return f"{'at least ' if known.open else ''}{format_rate(math.exp(known.centre))}"


def _limit_row(before: float | None, after: float | None, outcome: Outcome, told: str) -> Row:
    return Row(
        figure="limit",
        unit="per_second",
        rate=None,
        rate_after=None,
        before=before,
        after=after,
        ratio=None,
        low=None,
        high=None,
        p=0.0,
        outcome=outcome,
        reason=f"{outcome}: {told}",
    )


def _normal_tail(z: float) -> float:
    return math.erfc(z / math.sqrt(2.0)) / 2.0


# --- all figures together -------------------------------------------------------------------------


def _holm(rows: Sequence[Row]) -> list[Row]:
    """A difference that may be chance among so many figures is none (Holm, 1979)."""
    kept: set[int] = set()
    ranked = sorted(range(len(rows)), key=lambda index: rows[index].p)
    for rank, index in enumerate(ranked):
        if rows[index].p >= (1.0 - CONFIDENCE) / (len(rows) - rank):
            break
        kept.add(index)
    return [
        row if index in kept or row.outcome not in ("better", "worse") else _doubted(row, len(rows))
        for index, row in enumerate(rows)
    ]


def _doubted(row: Row, num_figures: int) -> Row:
    why = f"no difference, it may be chance among {num_figures} figures: {row.reason}"
    return replace(row, outcome="no difference", reason=why)


def _overall(rows: Sequence[Row], headline: set[str]) -> Outcome:
    """One worse figure is worse; `no difference` wants an answer about a percentile of the SLO at
    one rate at least, or about the limit."""
    outcomes = {row.outcome for row in rows}
    if "worse" in outcomes:
        return "worse"
    if "better" in outcomes:
        return "better"
    telling = (row.outcome for row in rows if row.figure in headline | {"limit"})
    return "no difference" if "no difference" in telling else "undecided"


def _reasons(
    rows: Sequence[Row], outcome: Outcome, headline: set[str], before: Run, after: Run
) -> list[str]:
    changed = sorted((row for row in rows if row.outcome in ("better", "worse")), key=lambda r: r.p)
    found = [row.reason for row in changed if row.outcome == outcome][:3]
    found += [f"but {row.reason}" for row in changed if row.outcome != outcome][:3]
    told = [row for row in rows if row.figure in headline | {"limit"}]
    if outcome == "no difference":
        found += [row.reason for row in told if row.outcome == "no difference"][:3]
    unknown = [row.reason for row in told if row.outcome == "undecided"]
    found += unknown[:3]
    if len(unknown) > 3:
        found.append(f"{len(unknown) - 3} more figures of the SLO are undecided")
    if not any(row.rate for row in rows):
        rates = (
            ", ".join(format_rate(steps.rate) for steps in _by_rate(run)) or "none"
            for run in (before, after)
        )
        found.append(f"no rate was measured in both runs: {' against '.join(rates)}")
    return found


def _left_out(before: Run, after: Run) -> list[str]:
    invalid = {
        name: sum(point.verdict == "INVALID" for point in run.document.points)
        for name, run in (("before", before), ("after", after))
    }
    return [
        f"{num} INVALID step{'s' if num > 1 else ''} of the run {name} left out: the tester was in "
        "the number"
        for name, num in invalid.items()
        if num
    ]


def _differences(before: Document, after: Document) -> list[str]:
    """What else differs, each a sentence: then the service may not be the cause."""
    pairs: dict[str, tuple[object, object]] = {
        "targets": (before.target, after.target),
        "SLOs": (before.slo, after.slo),
        "arrivals": (_arrivals(before.command), _arrivals(after.command)),
    }
    first, second = before.environment, after.environment
    if first is not None and second is not None:
        pairs |= {
            "payloads": (first.payload, second.payload),
            "CPUs": (first.cpu, second.cpu),
            "numbers of cores": (first.allowed_cores, second.allowed_cores),
            "kernels": (first.kernel, second.kernel),
            "CPU governors": (first.governor, second.governor),
            "places of the tester": (_place(first.same_host), _place(second.same_host)),
            "numbers of senders": (first.processes, second.processes),
            "versions": (first.versions, second.versions),
        }
    return [
        f"the {name} differ: {_shown(was)}, then {_shown(became)}"
        for name, (was, became) in pairs.items()
        if was != became
    ]


def _arrivals(command: str) -> str:
    found = re.search(r"--arrivals[= ]('[^']*'|\S+)", command)
    return found[1].strip("'") if found else "poisson"


def _place(same_host: bool) -> str:
    return "beside the service" if same_host else "on another machine"


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {item}" for name, item in value.items()) or "none"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
