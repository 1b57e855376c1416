"""What the rounds of serving.py found, and the table made of it."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from closed_loop import Answered, Busy
from coldstart import ColdStart
from limit import Measured
from processes import Foreign
from search import Limit
from steps import percentiles
from tailproof.core.slo import Latency

SLO = Latency(95.0, 0.050)


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
class Round:
    """What one round found out about one contender."""

    limit: Limit
    cost: Cost
    lone: dict[str, Any]
    steps: list[Measured]

    def to_json(self) -> dict[str, Any]:
        """Plain types, for a document."""
        return {
            "limit": asdict(self.limit) | {"at_least": self.limit.at_least},
            "cpu_seconds_per_request": self.cost.per_request,
            "front_cpu_seconds_per_request": self.cost.front_per_request,
            "closed_loop": asdict(self.cost) | {"rate": self.cost.busy.rate},
            "lone": self.lone,
            "steps": [entry.to_json() for entry in self.steps],
        }


def lone_times(answers: Sequence[Answered]) -> dict[str, Any]:
    """One request after the other: its time, and what the server added to the model's own.

    `added_by_server` is total - infer of Server-Timing, `added_to_client` the time seen by the
    client minus infer. Both are absent where the service does not say how long its model took.
    """
    good = [answer for answer in answers if 200 <= answer.status < 300]
    seen: dict[str, Any] = {"response_seconds": _percentiles([one.seconds for one in good])}
    timed = [one for one in good if {"infer", "total"} <= one.timing.keys()]
    if timed:
        infer = [one.timing["infer"] for one in timed]
        added = [one.timing["total"] - one.timing["infer"] for one in timed]
        to_client = [one.seconds - one.timing["infer"] for one in timed]
        seen["infer_seconds"] = _percentiles(infer)
        seen["added_by_server_seconds"] = _percentiles(added)
        seen["added_to_client_seconds"] = _percentiles(to_client)
    return seen


def _percentiles(values: Sequence[float]) -> dict[str, float | None]:
    return percentiles(np.array(values), (50.0, 95.0, 99.0))


@dataclass(slots=True)
class Findings:
    """Everything measured, in order."""

    rounds: dict[str, list[Round]] = field(default_factory=dict)
    cold: ColdStart | None = None
    memory: dict[str, Any] | None = None

    def median(self, name: str, value: Callable[[Round], float | None]) -> list[float]:
        """`value` of every round of one contender where it is known: median, lowest, highest."""
        found = [entry for entry in map(value, self.rounds.get(name, [])) if entry is not None]
        return [statistics.median(found), min(found), max(found)] if found else []

    def ratios(self, over: str, under: str, value: Callable[[Round], float | None]) -> list[float]:
        """Round by round, `value` of one over that of another: median, lowest, highest."""
        pairs = zip(self.rounds.get(over, []), self.rounds.get(under, []), strict=False)
        values = [(value(first), value(second)) for first, second in pairs]
        found = [first / second for first, second in values if first and second]
        return [statistics.median(found), min(found), max(found)] if found else []


# --- printing -------------------------------------------------------------------------------------


def limit_of(entry: Round) -> float | None:
    """Requests a second."""
    return entry.limit.low


def cpu_of(entry: Round) -> float | None:
    """Seconds a request."""
    return entry.cost.per_request


def lone_of(key: str) -> Callable[[Round], float | None]:
    """P50 of one of the lone times, in seconds."""
    return lambda entry: entry.lone.get(key, {}).get("p50")


def lines(findings: Findings) -> list[str]:
    """The table: medians over the rounds, lowest and highest in brackets."""
    shown = [f"{'(median [lowest .. highest])':34}" + "".join(f"{n:>30}" for n in findings.rounds)]

    def row(title: str, value: Callable[[Round], float | None], scale: float, digits: int) -> None:
        cells = (_spread(findings.median(name, value), scale, digits) for name in findings.rounds)
        shown.append(f"{title:34}" + "".join(f"{cell:>30}" for cell in cells))

    row(f"highest rate with {SLO}, /s", limit_of, 1.0, 0)
    row("  of which only a lower bound, %", lambda entry: entry.limit.at_least, 100.0, 0)
    row("closed loop, good answers, /s", lambda entry: entry.cost.busy.rate, 1.0, 0)
    row("closed loop, refused, %", lambda entry: entry.cost.busy.bad_share, 100.0, 1)
    row("CPU a request, us", cpu_of, 1e6, 1)
    row("  of the front process, us", lambda entry: entry.cost.front_per_request, 1e6, 1)
    row("lone request, p50, ms", lone_of("response_seconds"), 1e3, 2)
    row("  inside the model, ms", lone_of("infer_seconds"), 1e3, 2)
    row("  added, by Server-Timing, ms", lone_of("added_by_server_seconds"), 1e3, 2)
    row("  added, as the client sees, ms", lone_of("added_to_client_seconds"), 1e3, 2)
    row("others on the server's core, %", _noise, 100.0, 0)
    shown.append("")
    for title, over, under, value in (
        ("limit: tailproof / handmade", "tailproof", "handmade", limit_of),
        ("limit: tailproof / raw", "tailproof", "raw", limit_of),
        ("CPU a request: tailproof / raw (promised <= 2.5)", "tailproof", "raw", cpu_of),
    ):
        shown.append(f"{title:50} {_spread(findings.ratios(over, under, value), 1.0, 2)}")
    return shown + _cold_lines(findings.cold) + _memory_lines(findings.memory)


def _noise(entry: Round) -> float:
    return statistics.median(step.foreign.server_core for step in entry.steps)


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


def _spread(found: list[float], scale: float, digits: int) -> str:
    if not found:
        return "-"
    middle, lowest, highest = (f"{value * scale:.{digits}f}" for value in found)
    return f"{middle} [{lowest} .. {highest}]"


def document(findings: Findings, known: dict[str, Any], effort: dict[str, Any]) -> dict[str, Any]:
    """Everything, in plain types."""
    return {
        "machine": known,
        "slo": str(SLO),
        "effort": effort,
        "rounds": {
            name: [entry.to_json() for entry in entries]
            for name, entries in findings.rounds.items()
        },
        "limit": {name: findings.median(name, limit_of) for name in findings.rounds},
        "limit_over_handmade": findings.ratios("tailproof", "handmade", limit_of),
        "cpu_over_raw": findings.ratios("tailproof", "raw", cpu_of),
        "cold_start": asdict(findings.cold) | {"ratio": findings.cold.ratio}
        if findings.cold
        else None,
        "memory": findings.memory,
    }
