"""What the rounds of serving.py found, and the table made of it."""

import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import msgspec
import numpy as np

from closed_loop import Busy
from coldstart import ColdStart
from peers.picture import Limits, picture
from processes import Foreign
from tailproof.core.recording import Floats, Recording
from tailproof.core.slo import Latency
from tailproof.core.statistics import percentile
from tailproof.reporting.document import Document

SLO = Latency(95.0, 0.050)
OURS = ("tailproof", "handmade", "raw")
"""What is in the table of all details."""


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU seconds that a busy server used, and what it did with them."""

    front_seconds: float
    """Of the process that was started; its children's are in `whole_seconds` alone."""
    whole_seconds: float
    busy: Busy
    foreign: Foreign

    @property
    def per_request(self) -> float | None:
        """Seconds of the whole process tree for a good answer; None without any."""
        return self.whole_seconds / self.busy.num_good if self.busy.num_good else None

    @property
    def front_per_request(self) -> float | None:
        """The front process's part of it."""
        return self.front_seconds / self.busy.num_good if self.busy.num_good else None

    def __str__(self) -> str:
        shown = "-" if self.per_request is None else f"{self.per_request * 1e6:.1f}"
        refused = f"{self.busy.bad_share:.1%} refused"
        return f"{self.busy.rate:.0f}/s, {shown} us of CPU a good answer, {refused}"


@dataclass(frozen=True, slots=True)
class Overload:
    """What came of a multiple of the limit. Rates a second, time in seconds, shares 0-1."""

    offered: float
    goodput: float
    """Good answers within the SLO's threshold."""
    refused: float
    """Answered 429 or 503."""
    failed: float
    """Without an answer before the client went away, or with another error."""
    answered_p95: float | None
    """Of the good answers, from when the request was due. None: there was none."""
    client_ok: bool
    """False: the client was in the number."""

    @classmethod
    def of(cls, recording: Recording, seconds: float, *, client_ok: bool) -> "Overload":
        """Of all requests that were due within `seconds`."""
        return cls(
            offered=len(recording) / seconds,
            goodput=float(np.sum(recording.response <= SLO.threshold)) / seconds,
            refused=float(np.mean(recording.refused)),
            failed=float(np.mean(~recording.refused & ~recording.good)),
            answered_p95=percentile(recording.response[recording.good], 95.0),
            client_ok=client_ok,
        )


@dataclass(frozen=True, slots=True)
class Round:
    """What one round found out about one contender."""

    proof: Document
    """What `tailproof prove` says about its limit."""
    cost: Cost
    lone: dict[str, Any]
    others: Foreign
    """While the limit was searched."""
    ready_seconds: float | None = None
    """From the creation of its process to its first right answer."""
    overload: Overload | None = None

    @property
    def at_least(self) -> bool:
        """The client gave out, or was not allowed more, before the service did."""
        return self.proof.limit is not None and self.proof.limit.at_least

    def to_json(self) -> dict[str, Any]:
        """Plain types, for a document."""
        return {
            "proof": msgspec.to_builtins(self.proof),
            "cpu_seconds_per_request": self.cost.per_request,
            "front_cpu_seconds_per_request": self.cost.front_per_request,
            "closed_loop": asdict(self.cost) | {"rate": self.cost.busy.rate},
            "lone": self.lone,
            "others": asdict(self.others),
            "ready_seconds": self.ready_seconds,
            "overload": asdict(self.overload) if self.overload else None,
        }


def lone_times(recording: Recording) -> dict[str, Any]:
    """One request after the other: seconds from its send, and what was added to the model's own.

    `added_by_server` is total - infer of Server-Timing, `added_to_client` the time seen by the
    client minus infer. Both are absent where the service does not say how long its model took.
    """
    good = recording.take(recording.good)
    seen: dict[str, Any] = {"seconds": _percentiles(good.uncorrected)}
    timed = good.take(np.isfinite(good.infer) & np.isfinite(good.total))
    if len(timed):
        seen["infer_seconds"] = _percentiles(timed.infer)
        seen["added_by_server_seconds"] = _percentiles(timed.total - timed.infer)
        seen["added_to_client_seconds"] = _percentiles(timed.uncorrected - timed.infer)
    return seen


def _percentiles(values: Floats) -> dict[str, float | None]:
    return {f"p{percent}": percentile(values, percent) for percent in (50, 95, 99)}


@dataclass(slots=True)
class Findings:
    """Everything measured, in order."""

    rounds: dict[str, list[Round | None]] = field(default_factory=dict)
    """None: the contender failed in this round."""
    cold: ColdStart | None = None
    memory: dict[str, Any] | None = None
    faults: dict[str, str] = field(default_factory=dict)
    """Why a contender was not measured, in all rounds or in the last that failed."""
    titles: dict[str, str] = field(default_factory=dict)
    """How a picture names them."""
    versions: dict[str, dict[str, str]] = field(default_factory=dict)
    """Of packages of contenders that have an environment of their own."""

    def measured(self, name: str) -> list[Round]:
        """The rounds in which this contender did not fail."""
        return [entry for entry in self.rounds.get(name, []) if entry is not None]

    def median(self, name: str, value: Callable[[Round], float | None]) -> list[float]:
        """`value` of every round of one contender where it is known: median, lowest, highest."""
        found = [entry for entry in map(value, self.measured(name)) if entry is not None]
        return [statistics.median(found), min(found), max(found)] if found else []

    def ratios(self, over: str, under: str, value: Callable[[Round], float | None]) -> list[float]:
        """Round by round, `value` of one over that of another: median, lowest, highest."""
        pairs = zip(self.rounds.get(over, []), self.rounds.get(under, []), strict=False)
        values = [(value(first), value(second)) for first, second in pairs if first and second]
        found = [first / second for first, second in values if first and second]
        return [statistics.median(found), min(found), max(found)] if found else []


# --- printing -------------------------------------------------------------------------------------


def limit_of(entry: Round) -> float | None:
    """Requests a second: the estimate, or what passed at least. None: no rate passed."""
    return entry.proof.limit.rate if entry.proof.limit is not None else None


def passed_of(entry: Round) -> float | None:
    """The highest rate that passed."""
    return entry.proof.limit.low if entry.proof.limit is not None else None


def failed_of(entry: Round) -> float | None:
    """The lowest rate that failed."""
    return entry.proof.limit.high if entry.proof.limit is not None else None


def cpu_of(entry: Round) -> float | None:
    """Seconds a request."""
    return entry.cost.per_request


def lone_of(key: str) -> Callable[[Round], float | None]:
    """P50 of one of the lone times, in seconds."""
    return lambda entry: entry.lone.get(key, {}).get("p50")


def lines(findings: Findings) -> list[str]:
    """The table of what is ours: medians over the rounds, lowest and highest in brackets."""
    names = [name for name in OURS if findings.measured(name)]
    shown = [f"{'(median [lowest .. highest])':34}" + "".join(f"{n:>30}" for n in names)]

    def cells(title: str, found: Sequence[str]) -> None:
        shown.append(f"{title:34}" + "".join(f"{cell:>30}" for cell in found))

    def row(title: str, value: Callable[[Round], float | None], scale: float, digits: int) -> None:
        cells(title, [_spread(findings.median(name, value), scale, digits) for name in names])

    cells(f"highest rate with {SLO}, /s", [_limit_cell(findings, name) for name in names])
    row("  highest that passed, /s", passed_of, 1.0, 0)
    row("  lowest that failed, /s", failed_of, 1.0, 0)
    cells("  verdicts of the rounds", [_verdicts(findings, name) for name in names])
    row("closed loop, good answers, /s", lambda entry: entry.cost.busy.rate, 1.0, 0)
    row("closed loop, refused, %", lambda entry: entry.cost.busy.bad_share, 100.0, 1)
    row("CPU a request, us", cpu_of, 1e6, 1)
    row("  of the front process, us", lambda entry: entry.cost.front_per_request, 1e6, 1)
    row("lone request, p50, ms", lone_of("seconds"), 1e3, 2)
    row("  inside the model, ms", lone_of("infer_seconds"), 1e3, 2)
    row("  added, by Server-Timing, ms", lone_of("added_by_server_seconds"), 1e3, 2)
    row("  added, as the client sees, ms", lone_of("added_to_client_seconds"), 1e3, 2)
    row("others on the server's core, %", lambda entry: entry.others.server_core, 100.0, 0)
    shown.append("")
    for over, under in (("tailproof", "handmade"), ("tailproof", "raw")):
        shown.append(f"{f'limit: {over} / {under}':50} {_ratio_cell(findings, over, under)}")
    ratio = _spread(findings.ratios("tailproof", "raw", cpu_of), 1.0, 2)
    shown.append(f"{'CPU a request: tailproof / raw (promised <= 2.5)':50} {ratio}")
    return shown + _cold_lines(findings.cold) + _memory_lines(findings.memory)


def side_by_side(findings: Findings) -> list[str]:
    """A line for each contender, the highest limit first; then those that failed."""
    head = ("limit, /s", "tailproof holds", "CPU, us", "refused, %", "lone, ms", "ready, s")
    shown = [_cells("", (*head, "verdicts"))]
    for name in by_limit(findings):
        cells = (
            _limit_cell(findings, name),
            _ratio_cell(findings, "tailproof", name),
            _spread(findings.median(name, cpu_of), 1e6, 0),
            _spread(findings.median(name, lambda entry: entry.cost.busy.bad_share), 100.0, 0),
            _spread(findings.median(name, lone_of("seconds")), 1e3, 2),
            _spread(findings.median(name, lambda entry: entry.ready_seconds), 1.0, 1),
            _verdicts(findings, name),
        )
        shown.append(_cells(name, cells))
    return [*shown, *_overload_lines(findings), *_fault_lines(findings)]


def by_limit(findings: Findings) -> list[str]:
    """The contenders that were measured, the highest limit first."""
    limits = {name: findings.median(name, limit_of) for name in findings.rounds}
    found = [name for name in limits if findings.measured(name)]
    return sorted(found, key=lambda name: -limits[name][0] if limits[name] else 0.0)


def _overload_lines(findings: Findings) -> list[str]:
    shown = []
    for name in by_limit(findings):
        found = [entry.overload for entry in findings.measured(name) if entry.overload]
        if found:
            late = [one.answered_p95 for one in found if one.answered_p95 is not None]
            cells = (
                _spread(_three([one.offered for one in found]), 1.0, 0),
                _spread(_three([one.goodput for one in found]), 1.0, 0),
                _spread(_three(late), 1e3, 0),
                _spread(_three([one.refused for one in found]), 100.0, 0),
                _spread(_three([one.failed for one in found]), 100.0, 0),
                "" if all(one.client_ok for one in found) else "the client was late",
            )
            shown.append(_cells(name, cells))
    head = ("offered, /s", "in time, /s", "P95 of answers, ms", "refused, %", "failed, %", "")
    return ["", _cells("overload", head), *shown] if shown else []


def _fault_lines(findings: Findings) -> list[str]:
    shown = []
    for name, reason in findings.faults.items():
        num, failed = len(findings.rounds.get(name, [])), findings.rounds.get(name, []).count(None)
        what = "not measured" if failed == num else f"failed in {failed} of {num} rounds"
        shown.append(f"{name}: {what}: {reason}")
    return shown


def _cells(name: str, cells: Sequence[str]) -> str:
    return f"{name:12}" + "".join(f" {cell:>25}" for cell in cells)


def _ratio_cell(findings: Findings, over: str, under: str) -> str:
    sign = _bound(findings, over, under)
    return _spread(findings.ratios(over, under, limit_of), 1.0, 2, sign)


def _limit_cell(findings: Findings, name: str) -> str:
    return _spread(findings.median(name, limit_of), 1.0, 0, _bound(findings, name))


def _bound(findings: Findings, over: str, under: str = "") -> str:
    """What stands before a limit, or the ratio of two, when one was not reached; `?`: neither."""
    at_least = [any(one.at_least for one in findings.measured(name)) for name in (over, under)]
    if all(at_least):
        return "? "
    return ">= " if at_least[0] else "<= " if at_least[1] else ""


def _verdicts(findings: Findings, name: str) -> str:
    counts = Counter(entry.proof.verdict for entry in findings.measured(name))
    return ", ".join(f"{num} {verdict}" for verdict, num in counts.items())


def _cold_lines(cold: ColdStart | None) -> list[str]:
    if cold is None:
        return []
    warm_up = [entry for entry in cold.warm_up_seconds if entry is not None]
    return [
        "",
        f"cold start, process to ready, s      {_spread(_three(cold.ready_seconds), 1.0, 2)}",
        f"  of which warm-up, s                {_spread(_three(warm_up), 1.0, 2)}",
        f"import and load alone, s             {_spread(_three(cold.load_alone_seconds), 1.0, 2)}",
        f"loaded / load alone (promised <= 1.3) {cold.ratio:.2f}",
    ]


def _memory_lines(found: dict[str, Any] | None) -> list[str]:
    if found is None:
        return []
    shown = [""]
    for title, key in (("after start", "after_start"), ("after requests", "after_requests")):
        children = ", ".join(f"{one / 2**20:.0f}" for one in found[key]["children"])
        front = found[key]["front"] / 2**20
        shown.append(f"resident {title:15} front {front:.0f} MiB, workers {children} MiB")
    shown.append(f"  {found['num_good']} of {found['num_requests']} requests answered 200")
    return shown


def _three(values: Sequence[float]) -> list[float]:
    return [statistics.median(values), min(values), max(values)] if values else []


def _spread(found: list[float], scale: float, digits: int, sign: str = "") -> str:
    if not found:
        return "-"
    middle, lowest, highest = (f"{value * scale:.{digits}f}" for value in found)
    return f"{sign}{middle} [{lowest} .. {highest}]"


def drawn(findings: Findings) -> str:
    """The limits as a picture, the highest first; `raw` is left out, for it has no model."""
    names = [name for name in by_limit(findings) if name != "raw"]
    names += [name for name in findings.faults if name not in names]
    entries = [_limits(findings, name) for name in names]
    return picture(entries, f"Highest rate with {SLO}: every round, and the median")


def _limits(findings: Findings, name: str) -> Limits:
    entries = findings.measured(name)
    return Limits(
        label=findings.titles.get(name, name),
        rates=[rate for rate in map(limit_of, entries) if rate is not None],
        at_least=any(entry.at_least for entry in entries),
        note="no limit found" if entries else "not measured",
        ours=name == "tailproof",
    )


def document(findings: Findings, known: dict[str, Any], effort: dict[str, Any]) -> dict[str, Any]:
    """Everything, in plain types."""
    return {
        "machine": known,
        "slo": str(SLO),
        "effort": effort,
        "versions": findings.versions,
        "faults": findings.faults,
        "rounds": {
            name: [entry and entry.to_json() for entry in entries]
            for name, entries in findings.rounds.items()
        },
        "limit": {name: findings.median(name, limit_of) for name in findings.rounds},
        "verdicts": {
            name: [entry and entry.proof.verdict for entry in entries]
            for name, entries in findings.rounds.items()
        },
        "tailproof_over": {
            name: findings.ratios("tailproof", name, limit_of) for name in findings.rounds
        },
        "limit_over_handmade": findings.ratios("tailproof", "handmade", limit_of),
        "cpu_over_raw": findings.ratios("tailproof", "raw", cpu_of),
        "cold_start": asdict(findings.cold) | {"ratio": findings.cold.ratio}
        if findings.cold
        else None,
        "memory": findings.memory,
    }
