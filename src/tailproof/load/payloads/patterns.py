"""Texts drawn from a regular expression: its literals, classes, alternatives and repeats.

What looks around (`(?=...)`, `\\b`) is passed over: whoever asks checks the result, by `matches`
and not by `re`, which may take years over `^(a|a)*b$`. Patterns come from strangers.
"""

import importlib
import re
import string
import warnings
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from tailproof.load.payloads.budget import Budget

_parser = importlib.import_module("re._parser")
"""The standard library's own reader of patterns."""

MAX_PATTERN = 4096
"""Characters of a pattern that is read."""
_PRINTABLE = string.digits + string.ascii_letters + string.punctuation + " "
_MORE = 8
"""Something is repeated at most so many times more than it must be."""
_REPEATS = ("MAX_REPEAT", "MIN_REPEAT")
_SINGLE = ("LITERAL", "NOT_LITERAL", "ANY", "IN")


class Unknown(Exception):
    """The pattern holds something that we cannot draw."""


class _TooLong(Exception):
    """This text has grown longer than it may be."""


@lru_cache(maxsize=256)
def _read(pattern: str) -> tuple[Any, int]:
    """The parts of a pattern, and its flags. Raises re.error, OverflowError, Unknown."""
    if len(pattern) > MAX_PATTERN:
        raise Unknown("too long")
    try:
        with warnings.catch_warnings(action="ignore"):
            tree = _parser.parse(pattern)
    except RecursionError:
        raise Unknown("nested too deeply") from None
    flags: int = tree.state.flags
    if flags & ~(re.UNICODE | re.IGNORECASE | re.MULTILINE | re.DOTALL | re.VERBOSE):
        raise Unknown("a flag")
    return tree, flags


# --- drawing --------------------------------------------------------------------------------------


def draw(
    pattern: str, rng: np.random.Generator, budget: Budget, least: int = 0, most: int = 2**20
) -> str | None:
    """A text for the pattern; None: this one grew longer than `most` characters. Of many draws some
    have at least `least`, if any can.

    Raises re.error for what is no pattern, Unknown for what cannot be drawn, Exhausted.
    """
    tree, _ = _read(pattern)
    drawing = _Drawing(rng, budget, int(rng.integers(least, endpoint=True)), most)
    try:
        drawing.add(tree)
    except _TooLong:
        return None
    except RecursionError:
        raise Unknown("nested too deeply") from None
    return "".join(drawing.found)


class _Drawing:
    """One text as it grows."""

    def __init__(self, rng: np.random.Generator, budget: Budget, further: int, most: int) -> None:
        self.found: list[str] = []
        self._rng = rng
        self._budget = budget
        self._further = further
        self._most = most

    def add(self, items: Any) -> None:
        for kind, value in items:
            self._budget.spend(2)
            self._add(kind.name, value)

    def _add(self, kind: str, value: Any) -> None:
        if kind in ("AT", "ASSERT", "ASSERT_NOT"):
            return
        if kind in _SINGLE:
            self.found.append(self._character(kind, value))
            if len(self.found) > self._most:
                raise _TooLong
        elif kind in _REPEATS:
            least, most, items = value
            start = min(int(most), least + self._further)
            end = min(int(most), start + _MORE)
            for _ in range(int(self._rng.integers(start, end, endpoint=True))):
                self._budget.spend(1)
                self.add(items)
        else:
            self.add(self._inside(kind, value))

    def _inside(self, kind: str, value: Any) -> Any:
        """What a group holds; of alternatives, one."""
        match kind:
            case "BRANCH":
                return value[1][self._rng.integers(len(value[1]))]
            case "SUBPATTERN":
                return value[3]
        raise Unknown(kind.lower())

    def _character(self, kind: str, value: Any) -> str:
        if kind == "LITERAL":
            return chr(value)
        characters = _characters(kind, value)
        self._budget.spend(2 + len(characters) // 16)
        if not characters:
            raise Unknown("an empty class")
        return characters[self._rng.integers(len(characters))]


def _characters(kind: str, value: Any) -> str:
    """The characters that may stand here."""
    match kind:
        case "NOT_LITERAL":
            return _PRINTABLE.replace(chr(value), "")
        case "ANY":
            return _PRINTABLE
    if value[0][0].name == "NEGATE":
        return "".join(c for c in _PRINTABLE if not _is_among(value[1:], {c}))
    return "".join(_members(kind.name, what) for kind, what in value)


def _members(kind: str, value: Any) -> str:
    match kind:
        case "LITERAL":
            return chr(value)
        case "RANGE":
            low, high = value
            return "".join(map(chr, range(low, min(high, low + 255) + 1)))
    return "".join(filter(_CATEGORIES[value.name], _PRINTABLE))


# --- checking -------------------------------------------------------------------------------------


def matches(pattern: str, text: str, budget: Budget) -> bool:
    """Does a match of the pattern begin where the text does?

    All ways to match are followed at once, as the set of places that they have come to, so that the
    time is bounded by the lengths of pattern and text. Raises as `draw`.
    """
    tree, flags = _read(pattern)
    try:
        return bool(_Matching(text, budget).after(tree, {0}, flags))
    except RecursionError:
        raise Unknown("nested too deeply") from None


class _Matching:
    """Places in a text that a pattern can come to."""

    def __init__(self, text: str, budget: Budget) -> None:
        self._text = text
        self._budget = budget

    def after(self, items: Any, places: set[int], flags: int) -> set[int]:
        """Where a match of `items` that begins at one of `places` can end."""
        for kind, value in items:
            self._budget.spend(1 + len(places))
            if not places:
                break
            places = self._step(kind.name, value, places, flags)
        return places

    def _step(self, kind: str, value: Any, places: set[int], flags: int) -> set[int]:
        match kind:
            case "MAX_REPEAT" | "MIN_REPEAT":
                least, most, items = value
                return self._repeat(least, int(most), items, places, flags)
            case "BRANCH":
                return set().union(*(self.after(each, places, flags) for each in value[1]))
            case "SUBPATTERN":
                _, added, removed, items = value
                return self.after(items, places, (flags | added) & ~removed)
            case "AT":
                return {place for place in places if self._is_at(value.name, place, flags)}
            case "ASSERT" | "ASSERT_NOT":
                direction, items = value
                seen = {at for at in places if self._looks(direction, items, at, flags)}
                return seen if kind == "ASSERT" else places - seen
        if kind not in _SINGLE:
            raise Unknown(kind.lower())
        return {place + 1 for place in places if self._is_here(kind, value, place, flags)}

    def _repeat(self, least: int, most: int, items: Any, places: set[int], flags: int) -> set[int]:
        for _ in range(least):
            self._budget.spend(1)
            before, places = places, self.after(items, places, flags)
            if places in (before, set()):  # so it stays, however often
                break
        found, fresh = set(places), places
        for _ in range(most - least):
            self._budget.spend(1 + len(fresh))
            fresh = self.after(items, fresh, flags) - found
            if not fresh:
                break
            found |= fresh
        return found

    def _is_here(self, kind: str, value: Any, place: int, flags: int) -> bool:
        """Does the character there fit?"""
        if place >= len(self._text):
            return False
        character = self._text[place]
        if kind == "ANY":
            return character != "\n" or bool(flags & re.DOTALL)
        alike = {character}
        if flags & re.IGNORECASE:
            alike |= {character.lower(), character.upper()}
        if kind != "IN":
            return (chr(value) in alike) == (kind == "LITERAL")
        self._budget.spend(len(value))
        if value[0][0].name == "NEGATE":
            return not _is_among(value[1:], alike)
        return _is_among(value, alike)

    def _is_at(self, name: str, place: int, flags: int) -> bool:
        match name:
            case "AT_BEGINNING" | "AT_BEGINNING_STRING":
                lines = flags & re.MULTILINE and name == "AT_BEGINNING"
                return place == 0 or bool(lines and self._text[place - 1] == "\n")
            case "AT_END" | "AT_END_STRING":
                lines = flags & re.MULTILINE and name == "AT_END"
                end = place == len(self._text)
                return end or bool(lines and self._text[place] == "\n")
            case "AT_BOUNDARY" | "AT_NON_BOUNDARY":
                sides = self._text[max(0, place - 1) : place], self._text[place : place + 1]
                return (_is_word(sides[0]) != _is_word(sides[1])) == (name == "AT_BOUNDARY")
        raise Unknown(name.lower())

    def _looks(self, direction: int, items: Any, place: int, flags: int) -> bool:
        """Does what looks ahead (1) or behind (-1) from here see what it looks for?"""
        if direction > 0:
            return bool(self.after(items, {place}, flags))
        low, high = items.getwidth()
        if low != high:
            raise Unknown("a look behind of no fixed length")
        return place >= low and place in self.after(items, {place - low}, flags)


def _is_among(items: Any, alike: set[str]) -> bool:
    """Is one of these characters in a class?"""
    return any(_is_in(kind.name, value, c) for kind, value in items for c in alike)


def _is_in(kind: str, value: Any, character: str) -> bool:
    match kind:
        case "LITERAL":
            return character == chr(value)
        case "RANGE":
            return len(character) == 1 and value[0] <= ord(character) <= value[1]
    return _CATEGORIES[value.name](character)


def _is_word(character: str) -> bool:
    return character.isalnum() or character == "_"


_CATEGORIES: dict[str, Callable[[str], bool]] = {
    "CATEGORY_DIGIT": str.isdecimal,
    "CATEGORY_NOT_DIGIT": lambda c: not c.isdecimal(),
    "CATEGORY_SPACE": str.isspace,
    "CATEGORY_NOT_SPACE": lambda c: not c.isspace(),
    "CATEGORY_WORD": _is_word,
    "CATEGORY_NOT_WORD": lambda c: not _is_word(c),
}
