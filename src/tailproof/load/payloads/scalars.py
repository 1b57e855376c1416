"""Numbers and texts drawn from a JSON Schema: like the examples, and within the bounds."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np

from tailproof.load.payloads import patterns
from tailproof.load.payloads.budget import Budget, Undrawable
from tailproof.load.payloads.templates import words

_TRIES = 50
_TEXT_TRIES = 1_000
"""A length that must be met exactly is met by few draws."""
_LARGEST_WHOLE = 2.0**53
"""Whole numbers beyond it are not exact in every JSON reader."""
LARGEST = 1e300
MAX_TEXT = 2**20
"""Characters of a text that is made."""


def is_number(value: Any) -> bool:
    """One that arithmetic can bear."""
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and -LARGEST <= value <= LARGEST
    )


def number(
    flat: Mapping[str, Any], rng: np.random.Generator, hints: Sequence[Any], budget: Budget
) -> float:
    """A number like one of the examples, within the bounds. Raises Undrawable."""
    told = flat.get("type") or ()
    is_whole = told == "integer" or "integer" in told
    largest = _LARGEST_WHOLE if is_whole else LARGEST
    low, high = _bounds(flat, is_whole=is_whole)
    if low > high or low > largest or high < -largest:
        raise Undrawable("there is no number within its bounds")
    examples = [float(hint) for hint in hints if is_number(hint) and low <= hint <= high]
    near = _finite(low, high, largest)
    for _ in range(_TRIES):
        budget.spend(24 if "multipleOf" in flat else 8)
        value = _fitted(_roughly(rng, examples, near, largest), flat, is_whole=is_whole)
        if low <= value <= high:
            return value
    value = _fitted(float(rng.uniform(*near)), flat, is_whole=is_whole)
    if not low <= value <= high:
        raise Undrawable("found no number within its bounds")
    return value


def _bounds(flat: Mapping[str, Any], *, is_whole: bool) -> tuple[float, float]:
    """The smallest and the largest value, both allowed; infinite where there is no bound."""
    low, high = float(flat.get("minimum", -math.inf)), float(flat.get("maximum", math.inf))
    above, below = flat.get("exclusiveMinimum", False), flat.get("exclusiveMaximum", False)
    if above is not False:  # OpenAPI 3.0: whether `minimum` itself is excluded; 3.1: a number
        low = max(low, _beyond(low if above is True else float(above), 1, is_whole=is_whole))
    if below is not False:
        high = min(high, _beyond(high if below is True else float(below), -1, is_whole=is_whole))
    if is_whole and math.isfinite(low):
        low = math.ceil(low)
    if is_whole and math.isfinite(high):
        high = math.floor(high)
    return low, high


def _beyond(limit: float, direction: int, *, is_whole: bool) -> float:
    """The next number above (1) or below (-1) a limit."""
    if not is_whole or math.isinf(limit):
        return math.nextafter(limit, direction * math.inf)
    return math.floor(limit) + 1 if direction > 0 else math.ceil(limit) - 1


def _finite(low: float, high: float, largest: float) -> tuple[float, float]:
    """A range to draw from: the bounds, or about a hundred from the only one."""
    if math.isinf(low):
        low = min(0.0, high - 100.0)
    if math.isinf(high):
        high = max(low, 0.0) + 100.0
    return max(low, -largest), min(high, largest)


def _roughly(
    rng: np.random.Generator, hints: list[float], near: tuple[float, float], largest: float
) -> float:
    """Half to twice an example, give or take; without one, anything within the bounds."""
    if not hints:
        return float(rng.uniform(*near))
    hint = float(hints[rng.integers(len(hints))])
    value = hint * float(rng.lognormal(0.0, 0.5)) if hint else float(rng.normal())
    return max(-largest, min(value, largest))


def _fitted(value: float, flat: Mapping[str, Any], *, is_whole: bool) -> float:
    """The nearest value that the schema's kind of number allows, with few digits if it may."""
    step = flat.get("multipleOf")
    if step:
        exact = Decimal(str(step)) * round(Decimal(value) / Decimal(str(step)))
        return int(exact) if is_whole else float(exact)
    if is_whole:
        return round(value)
    low, high = _bounds(flat, is_whole=False)
    short = float(f"{value:.6g}")
    return short if low <= short <= high else value


def text(
    flat: Mapping[str, Any], rng: np.random.Generator, hints: Sequence[Any], budget: Budget
) -> str:
    """A text for the pattern or format, else one of the examples, else words. Raises Undrawable."""
    least, most = int(flat.get("minLength", 0)), int(flat.get("maxLength", 10**9))
    fitting = [hint for hint in hints if isinstance(hint, str) and least <= len(hint) <= most]
    if (pattern := flat.get("pattern")) is not None:
        return _matching(pattern, rng, (least, most), fitting, budget)
    if (make := _FORMATS.get(flat.get("format", ""))) is not None:
        return make(rng)
    if fitting:
        return str(budget.give(fitting[rng.integers(len(fitting))]))
    _require_short(least)
    if most < least:
        raise Undrawable(f"no text is of at least {least} and at most {most}")
    return _words(rng, least, most, budget)


def _require_short(least: int) -> None:
    if least > MAX_TEXT:
        raise Undrawable(f"a text of {least:,} characters is too long to make")


def _words(rng: np.random.Generator, least: int, most: int, budget: Budget) -> str:
    shortest = max(least, min(1, most))
    length = int(rng.integers(shortest, min(most, shortest + 24), endpoint=True))
    budget.spend(8 + length // 16)
    found = words(rng, length // 2 + 1)[:length]
    return found[:-1] + "s" if found.endswith(" ") else found


def _matching(
    pattern: str,
    rng: np.random.Generator,
    lengths: tuple[int, int],
    hints: list[str],
    budget: Budget,
) -> str:
    """A text that the pattern is found in, made or taken from the examples."""
    least, most = lengths
    try:
        _require_short(least)
        for _ in range(_TEXT_TRIES):
            budget.spend(8)
            found = patterns.draw(pattern, rng, budget, least, min(most, MAX_TEXT))
            if found is None or len(found) < least:
                continue
            if patterns.matches(pattern, found, budget):
                return found
    except (re.error, patterns.Unknown, OverflowError):
        pass  # another dialect, or beyond us: the examples are left
    if hints:
        return str(budget.give(hints[rng.integers(len(hints))]))
    raise Undrawable(f"cannot make a text that matches {pattern[:100]}")


_EPOCH = datetime(2024, 1, 1, tzinfo=UTC)


def _moment(rng: np.random.Generator) -> datetime:
    """Some second of 2024."""
    return _EPOCH + timedelta(seconds=int(rng.integers(366 * 86_400)))


_FORMATS: dict[str, Callable[[np.random.Generator], str]] = {
    "date": lambda rng: _moment(rng).date().isoformat(),
    "date-time": lambda rng: _moment(rng).strftime("%Y-%m-%dT%H:%M:%SZ"),
    "time": lambda rng: _moment(rng).strftime("%H:%M:%SZ"),
    "duration": lambda rng: f"PT{rng.integers(1, 3600)}S",
    "uuid": lambda rng: str(UUID(bytes=rng.bytes(16), version=4)),
    "email": lambda rng: f"user{rng.integers(10**6)}@example.com",
    "uri": lambda rng: f"https://example.com/{rng.integers(10**6)}",
    "url": lambda rng: f"https://example.com/{rng.integers(10**6)}",
    "hostname": lambda rng: f"host{rng.integers(10**6)}.example.com",
    "ipv4": lambda rng: f"192.0.2.{rng.integers(1, 255)}",
    "ipv6": lambda rng: f"2001:db8::{rng.integers(1, 2**16):x}",
}
