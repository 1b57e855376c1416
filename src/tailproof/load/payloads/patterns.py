"""Texts drawn from a regular expression: its literals, classes, alternatives and repeats.

What looks around (`(?=...)`, `\\b`) is passed over: whoever asks checks what comes out.
"""

import importlib
import string
from collections.abc import Callable
from typing import Any

import numpy as np

_parser = importlib.import_module("re._parser")
"""The standard library's own reader of patterns."""

_PRINTABLE = string.digits + string.ascii_letters + string.punctuation + " "
_MORE = 8
"""Something is repeated at most so many times more than it must be."""


class Unknown(Exception):
    """The pattern holds something that we cannot draw."""


def draw(pattern: str, rng: np.random.Generator, min_length: int = 0) -> str:
    """A text for the pattern. Of many draws some have `min_length` characters, if any can.

    Raises re.error for what is no pattern, Unknown for what cannot be drawn.
    """
    further = int(rng.integers(min_length, endpoint=True))
    return _sequence(_parser.parse(pattern), rng, further)


def _sequence(items: Any, rng: np.random.Generator, further: int) -> str:
    return "".join(_item(str(kind), value, rng, further) for kind, value in items)


def _item(kind: str, value: Any, rng: np.random.Generator, further: int) -> str:
    if kind in ("AT", "ASSERT", "ASSERT_NOT"):
        return ""
    if kind in ("LITERAL", "NOT_LITERAL", "ANY", "IN"):
        characters = _characters(kind, value)
        return characters[rng.integers(len(characters))]
    if kind.endswith("_REPEAT"):
        least, most, items = value
        start = min(int(most), least + further)
        num = int(rng.integers(start, min(int(most), start + _MORE), endpoint=True))
        return "".join(_sequence(items, rng, further) for _ in range(num))
    return _sequence(_inside(kind, value, rng), rng, further)


def _inside(kind: str, value: Any, rng: np.random.Generator) -> Any:
    """What a group holds; of alternatives, one."""
    match kind:
        case "BRANCH":
            return value[1][rng.integers(len(value[1]))]
        case "SUBPATTERN":
            return value[3]
        case "ATOMIC_GROUP":
            return value
    raise Unknown(kind.lower())


def _characters(kind: str, value: Any) -> str:
    """The characters that may stand here. Raises Unknown when there is none."""
    match kind:
        case "LITERAL":
            found = chr(value)
        case "NOT_LITERAL":
            found = _PRINTABLE.replace(chr(value), "")
        case "ANY":
            found = _PRINTABLE
        case _:
            found = _class(value)
    if not found:
        raise Unknown("an empty class")
    return found


def _class(items: Any) -> str:
    """The characters of `[...]`."""
    found, is_negated = "", False
    for kind, value in items:
        match str(kind):
            case "NEGATE":
                is_negated = True
            case "LITERAL":
                found += chr(value)
            case "RANGE":
                low, high = value
                found += "".join(map(chr, range(low, min(high, low + 255) + 1)))
            case "CATEGORY":
                found += "".join(filter(_CATEGORIES[str(value)], _PRINTABLE))
    return "".join(c for c in _PRINTABLE if c not in found) if is_negated else found


_CATEGORIES: dict[str, Callable[[str], bool]] = {
    "CATEGORY_DIGIT": str.isdigit,
    "CATEGORY_NOT_DIGIT": lambda c: not c.isdigit(),
    "CATEGORY_SPACE": str.isspace,
    "CATEGORY_NOT_SPACE": lambda c: not c.isspace(),
    "CATEGORY_WORD": lambda c: c.isalnum() or c == "_",
    "CATEGORY_NOT_WORD": lambda c: not (c.isalnum() or c == "_"),
}
