"""The one sentence that drives server, load test, plan and alerts: `p95 < 50ms`."""

import re
from dataclasses import dataclass
from typing import Literal

from tailproof.core.units import format_duration, parse_duration

_LATENCY = re.compile(
    r"(?:(?P<signal>ttft|itl|tpot|e2e)\s+)?p(?P<percentile>\d{1,2}(?:\.\d+)?)\s*<=?\s*(?P<bound>\S+)"
)
_AVAILABILITY = re.compile(r"availability\s*>=?\s*(?P<percent>\d{1,3}(?:\.\d+)?)\s*%")


@dataclass(frozen=True, slots=True)
class Latency:
    """At least `percentile` % of the offered requests are answered within `threshold` seconds."""

    percentile: float
    threshold: float
    signal: Literal["e2e", "ttft", "itl", "tpot"] = "e2e"

    @property
    def objective(self) -> float:
        """The share (0-1) of requests that must be good."""
        return self.percentile / 100.0

    def __str__(self) -> str:
        prefix = "" if self.signal == "e2e" else f"{self.signal} "
        return f"{prefix}p{self.percentile:g} < {format_duration(self.threshold)}"


@dataclass(frozen=True, slots=True)
class Availability:
    """At least `objective` (0-1) of the offered requests get a good answer at all."""

    objective: float

    def __str__(self) -> str:
        return f"availability > {self.objective * 100:g}%"


Slo = Latency | Availability


def parse(text: str) -> Slo:
    """`p95 < 50ms`, `ttft p99 < 1s` or `availability > 99.9%`; `<=` means the same as `<`.

    Raises:
        ValueError: the text is none of these; the message says what is expected.
    """
    cleaned = text.strip()
    if match := _LATENCY.fullmatch(cleaned):
        percentile = float(match["percentile"])
        threshold = parse_duration(match["bound"])
        if not 0 < percentile < 100 or threshold <= 0:
            raise ValueError(
                f"the percentile must be above 0 and below 100, the duration above 0; got {text!r}"
            )
        return Latency(percentile, threshold, match["signal"] or "e2e")  # type: ignore[arg-type]
    if match := _AVAILABILITY.fullmatch(cleaned):
        percent = float(match["percent"])
        if not 0 < percent < 100:
            raise ValueError(f"availability must be between 0% and 100%; got {text!r}")
        return Availability(percent / 100.0)
    raise ValueError(
        f"expected an SLO such as 'p95 < 50ms' or 'availability > 99.9%'; got {text!r}"
    )


def latencies(slos: tuple[Slo, ...]) -> tuple[Latency, ...]:
    """The end-to-end latency SLOs among `slos`, tightest threshold first."""
    found = [slo for slo in slos if isinstance(slo, Latency) and slo.signal == "e2e"]
    return tuple(sorted(found, key=lambda slo: slo.threshold))


def tightest_threshold(slos: tuple[Slo, ...]) -> float | None:
    """Seconds of the tightest end-to-end latency SLO; None: there is none."""
    return next((slo.threshold for slo in latencies(slos)), None)
