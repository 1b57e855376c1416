"""The highest rate at which a step passes: bracket, bisect, confirm. Measures nothing itself."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from steps import Verdict

MAX_INVALID = 3
"""Rates in a row that only gave INVALID steps: then it is not the rate that makes them so."""


class Judged(Protocol):
    """All that the search asks of a step."""

    @property
    def verdict(self) -> Verdict: ...


@dataclass(frozen=True, slots=True)
class Plan:
    """How far apart rates are tried, and how often the answer is confirmed. Rates a second."""

    growth: float = 1.5
    """Factor between the rates of the bracket."""
    tolerance: float = 1.03
    """Bisection ends when the lowest FAIL is within this factor of the highest PASS."""
    confirmations: int = 2
    """Repeats that must all pass at the answer; else it is lowered by `retreat`."""
    retreat: float = 0.97
    retries: int = 2
    """An INVALID step is repeated this often before it ends what needs it."""
    lowest: float = 1.0
    """A service that fails even here has no limit."""
    highest: float = math.inf
    """The client is not trusted above this, so a PASS here ends the search."""
    max_steps: int = 40


@dataclass(frozen=True, slots=True)
class Limit:
    """The answer, in requests a second.

    `low`: highest PASS; None when even the lowest rate fails. `high`: lowest FAIL above it; None
    when the client gave out first, so that `low` is only a lower bound (`at_least`). `confirmed`:
    all repeats at `low` passed.
    """

    low: float | None
    high: float | None
    confirmed: bool
    num_steps: int

    @property
    def at_least(self) -> bool:
        return self.low is not None and self.high is None


def highest_rate(measure: Callable[[float], Judged], start: float, plan: Plan) -> Limit:
    """Search the arrival rate; `measure` runs one step at a rate and cools down after it."""
    search = _Search(measure, plan)
    low, high = search.bracket(min(start, plan.highest))
    if low is None:
        return Limit(None, high, confirmed=False, num_steps=search.num_steps)
    low, high = search.bisected(low, high)
    return search.confirmed(low, high)


class _Search:
    def __init__(self, measure: Callable[[float], Judged], plan: Plan) -> None:
        self._measure, self._plan = measure, plan
        self.num_steps = 0

    def verdict(self, rate: float) -> Verdict:
        """One step, repeated while it is INVALID and patience lasts."""
        for _ in range(1 + self._plan.retries):
            if self.num_steps >= self._plan.max_steps:
                break
            self.num_steps += 1
            verdict = self._measure(rate).verdict
            if verdict != "INVALID":
                return verdict
        return "INVALID"

    def bracket(self, rate: float) -> tuple[float | None, float | None]:
        """A passing rate and a failing one above it; None for what was not found."""
        high, num_invalid = None, 0
        while num_invalid < MAX_INVALID and self.num_steps < self._plan.max_steps:
            verdict = self.verdict(rate)
            if verdict == "PASS":
                return (rate, high) if high is not None else self._upwards(rate)
            high = rate if verdict == "FAIL" else high
            num_invalid = num_invalid + 1 if verdict == "INVALID" else 0
            if rate <= self._plan.lowest:
                break
            rate = max(rate / self._plan.growth, self._plan.lowest)
        return None, high

    def _upwards(self, low: float) -> tuple[float, float | None]:
        while low < self._plan.highest:
            rate = min(low * self._plan.growth, self._plan.highest)
            verdict = self.verdict(rate)
            if verdict != "PASS":
                return low, rate if verdict == "FAIL" else None
            low = rate
        return low, None

    def bisected(self, low: float, high: float | None) -> tuple[float, float | None]:
        """The same pair, close together, as far as the steps are valid."""
        while high is not None and high / low > self._plan.tolerance:
            middle = math.sqrt(low * high)
            verdict = self.verdict(middle)
            if verdict == "INVALID":
                break
            low, high = (middle, high) if verdict == "PASS" else (low, middle)
        return low, high

    def confirmed(self, low: float, high: float | None) -> Limit:
        """Lower the answer until every repeat passes."""
        while low >= self._plan.lowest:
            verdicts = (self.verdict(low) for _ in range(self._plan.confirmations))
            other = next((verdict for verdict in verdicts if verdict != "PASS"), "PASS")
            if other != "FAIL":
                return Limit(low, high, confirmed=other == "PASS", num_steps=self.num_steps)
            low, high = low * self._plan.retreat, low
        return Limit(None, high, confirmed=False, num_steps=self.num_steps)
