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
from tailproof.load.payloads.templates import words

_TRIES = 50
_TEXT_TRIES = 1_000
"""A length that must be met exactly is met by few draws."""
_LARGEST = 2.0**53
"""Whole numbers beyond it are not exact in every JSON reader."""


class Undrawable(Exception):
    """The document says nothing, or nothing that we understand, about what to send."""


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def number(flat: Mapping[str, Any], rng: np.random.Generator, hints: Sequence[Any]) -> float:
    """A number like one of the examples, within the bounds. Raises Undrawable."""
    is_whole = flat.get("type") == "integer" or "integer" in (flat.get("type") or ())
    examples = [float(hint) for hint in hints if _is_number(hint)]
    low, high = _bounds(flat, is_whole=is_whole)
    if low > high:
        raise Undrawable("there is no number within its bounds")
    for _ in range(_TRIES):
        value = _fitted(_roughly(rng, examples, low, high), flat, is_whole=is_whole)
        if low <= value <= high:
            return value
    value = _fitted(float(rng.uniform(*_finite(low, high))), flat, is_whole=is_whole)
    if not low <= value <= high:
        raise Undrawable("found no number within its bounds")
    return value


def _bounds(flat: Mapping[str, Any], *, is_whole: bool) -> tuple[float, float]:
    """The smallest and the largest value, both allowed; infinite where there is no bound."""
    low, high = float(flat.get("minimum", -math.inf)), float(flat.get("maximum", math.inf))
    above, below = flat.get("exclusiveMinimum", False), flat.get("exclusiveMaximum", False)
    if above is not False:  # OpenAPI 3.0: whether `minimum` itself is excluded; 3.1: a number
        limit = low if above is True else float(above)
        low = max(low, math.floor(limit) + 1 if is_whole else math.nextafter(limit, math.inf))
    if below is not False:
        limit = high if below is True else float(below)
        high = min(high, math.ceil(limit) - 1 if is_whole else math.nextafter(limit, -math.inf))
    if is_whole and math.isfinite(low):
        low = math.ceil(low)
    if is_whole and math.isfinite(high):
        high = math.floor(high)
    return low, high


def _finite(low: float, high: float) -> tuple[float, float]:
    """A range to draw from: the bounds, or about a hundred from the only one."""
    if math.isinf(low):
        low = min(0.0, high - 100.0)
    if math.isinf(high):
        high = max(low, 0.0) + 100.0
    return max(low, -_LARGEST), min(high, _LARGEST)


def _roughly(rng: np.random.Generator, hints: list[float], low: float, high: float) -> float:
    """Half to twice an example, give or take; without one, anything within the bounds."""
    if not hints:
        return float(rng.uniform(*_finite(low, high)))
    hint = float(hints[rng.integers(len(hints))])
    return hint * float(rng.lognormal(0.0, 0.5)) if hint else float(rng.normal())


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


def text(flat: Mapping[str, Any], rng: np.random.Generator, hints: Sequence[Any]) -> str:
    """A text for the pattern or format, else one of the examples, else words. Raises Undrawable."""
    least, most = int(flat.get("minLength") or 0), int(flat.get("maxLength", 10**9))
    fitting = [hint for hint in hints if isinstance(hint, str) and least <= len(hint) <= most]
    if (pattern := flat.get("pattern")) is not None:
        return _matching(pattern, rng, (least, most), fitting)
    if (make := _FORMATS.get(flat.get("format", ""))) is not None:
        return make(rng)
    if fitting:
        return fitting[rng.integers(len(fitting))]
    if most < least:
        raise Undrawable(f"no text is of at least {least} and at most {most}")
    return _words(rng, least, most)


def _words(rng: np.random.Generator, least: int, most: int) -> str:
    shortest = max(least, min(1, most))
    length = int(rng.integers(shortest, min(most, shortest + 24), endpoint=True))
    found = words(rng, length // 2 + 1)[:length]
    return found[:-1] + "s" if found.endswith(" ") else found


def _matching(
    pattern: str, rng: np.random.Generator, lengths: tuple[int, int], hints: list[str]
) -> str:
    """A text that the pattern is found in, made or taken from the examples."""
    least, most = lengths
    try:
        for _ in range(_TEXT_TRIES):
            found = patterns.draw(pattern, rng, least)
            if least <= len(found) <= most and re.search(pattern, found):
                return found
    except (re.error, patterns.Unknown, OverflowError):
        pass  # another dialect, or beyond us: the examples are left
    if hints:
        return hints[rng.integers(len(hints))]
    raise Undrawable(f"cannot make a text that matches {pattern}")


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
