"""A plausible value for each column: for the OpenAPI page, for warm-up, for a first curl.

Only the standard library, since workers need it too. What is made here is checked against the
column; a value that does not hold is left out rather than shown.
"""

import math
import re
from typing import Any

from tailproof.models.columns import Column, Signature

_REPEAT = re.compile(r"\{(\d+)(?:,(\d*))?\}")
_CLASSES = {"d": "1", "w": "a", "s": " ", "D": "a", "W": "-", "S": "a"}
_SPECIAL = set("^$.|?*+()[]{}\\")


def example_row(signature: Signature) -> dict[str, Any]:
    """One value per column, in order. A column for which none can be made is absent."""
    found = {column.name: example_value(column) for column in signature.inputs}
    return {name: value for name, value in found.items() if value is not None}


def example_value(column: Column) -> Any:
    """The column's own example, else one made from its enum, range, pattern and lengths.

    None when no value that holds can be made; the remedy is to declare `example`.
    """
    if column.example is not None:
        return column.example
    if column.enum is not None:
        return next((value for value in column.enum if _holds(column, value)), None)
    made: dict[str, Any] = {"float": _number, "int": _number, "bool": _true, "string": _text}
    value = made[column.type](column)
    return value if _holds(column, value) else None


def _true(column: Column) -> bool:
    return True


def _number(column: Column) -> float | int:
    """The middle of the range; a step inside it when only one end is given; else 1."""
    low = max((bound for bound in (column.gt, column.ge) if bound is not None), default=None)
    high = min((bound for bound in (column.lt, column.le) if bound is not None), default=None)
    if low is not None and high is not None:
        value = low + (high - low) / 2
    elif low is not None:
        value = low + 1
    else:
        value = 1.0 if high is None else high - 1
    if column.type == "float":
        return float(value)
    return next(
        (whole for whole in (math.floor(value), math.ceil(value)) if _holds(column, whole)), 0
    )


def _text(column: Column) -> str | None:
    if column.pattern is not None:
        return pattern_example(column.pattern)
    length = max(column.min_length or 0, 4)
    if column.max_length is not None:
        length = min(length, column.max_length)
    return ("text" * (length // 4 + 1))[:length]


def _holds(column: Column, value: Any) -> bool:
    if value is None:
        return False
    if isinstance(value, str):
        return (
            (column.pattern is None or re.search(column.pattern, value) is not None)
            and len(value) >= (column.min_length or 0)
            and (column.max_length is None or len(value) <= column.max_length)
        )
    return (
        (column.gt is None or value > column.gt)
        and (column.ge is None or value >= column.ge)
        and (column.lt is None or value < column.lt)
        and (column.le is None or value <= column.le)
    )


def pattern_example(pattern: str) -> str | None:
    """A short string that the pattern matches, such as `web` for `^(web|app)$`.

    Reads alternatives, groups, character classes, escapes and repetitions; None for anything
    else, and whenever the result does not match after all.
    """
    try:
        text, rest = _alternatives(pattern)
        matches = not rest and re.search(pattern, text) is not None
    except (re.error, ValueError, IndexError, RecursionError):
        return None
    return text if matches else None


def _alternatives(pattern: str) -> tuple[str, str]:
    """The first alternative, and what follows the group's closing bracket or the end."""
    first, rest = _sequence(pattern)
    while rest.startswith("|"):
        _, rest = _sequence(rest[1:])
    return first, rest


def _sequence(pattern: str) -> tuple[str, str]:
    made = ""
    while pattern and pattern[0] not in "|)":
        piece, pattern = _atom(pattern)
        count, pattern = _repetitions(pattern)
        made += piece * count
    return made, pattern


def _atom(pattern: str) -> tuple[str, str]:
    first, rest = pattern[0], pattern[1:]
    if first in "^$":
        return "", rest
    if first == ".":
        return "a", rest
    if first == "[":
        return _character_class(rest)
    if first == "(":
        inner = rest.removeprefix("?:")
        if inner.startswith("?"):
            raise ValueError("a group with flags or look-around")
        text, rest = _alternatives(inner)
        return text, rest[1:]
    if first == "\\":
        return _escape(rest[0]), rest[1:]
    if first in _SPECIAL:
        raise ValueError("a repetition of nothing")
    return first, rest


def _escape(letter: str) -> str:
    if letter in _CLASSES:
        return _CLASSES[letter]
    if letter.isalnum():
        raise ValueError("an escape with a meaning of its own")
    return letter


def _character_class(rest: str) -> tuple[str, str]:
    """The first member of `[...]`; of a negated one, a character that is not in it."""
    end = rest.index("]", 2 if rest.startswith("^") else 1)
    inside, after = rest[:end], rest[end + 1 :]
    if inside.startswith("^"):
        tried = (letter for letter in "a1-_ Z" if re.match(f"[{inside}]", letter))
        return next(tried, ""), after
    return (_escape(inside[1]) if inside[0] == "\\" else inside[0]), after


def _repetitions(pattern: str) -> tuple[int, str]:
    """How often to repeat what came before: the fewest times, but once where that is allowed."""
    count, rest = 1, pattern
    if match := _REPEAT.match(pattern):
        low = int(match[1])
        count = 1 if low == 0 and match[2] != "0" and match[2] is not None else low
        rest = pattern[match.end() :]
    elif pattern[:1] in ("*", "+", "?"):
        rest = pattern[1:]
    else:
        return count, rest
    if count > 10_000:
        raise ValueError("an example as long as that helps nobody")
    return count, rest.removeprefix("?")
