"""JSON with rules in it: `{"amount": {{uniform 100 50000}}, "channel": "{{choice web app}}"}`.

    {{uniform LOW HIGH}}      a number from LOW up to HIGH
    {{int LOW HIGH}}          a whole number from LOW to HIGH, both included
    {{normal MEAN SPREAD}}    a normally distributed number
    {{lognormal MEAN SPREAD}} exp of one: amounts, sizes, lengths (6 1: a median of 403)
    {{choice A B C}}          one of these words; 'in quotes' for words with spaces
    {{words LOW HIGH}}        a text of LOW to HIGH words
    {{uuid}}                  a UUID
    {{index}}                 0, 1, 2, ...

A rule between double quotes gives a part of a string, otherwise it must give a number (or true,
false, null).
"""

import re
import shlex
import uuid
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from tailproof.core.errors import ConfigError

FLAG = "--template"
Draw = Callable[[np.random.Generator, int], str]
"""The text that a rule gives for the body of that index."""

_RULE = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)
_SIZES = {
    "uniform": "LOW HIGH",
    "int": "LOW HIGH",
    "normal": "MEAN SPREAD",
    "lognormal": "MEAN SPREAD",
    "words": "LOW HIGH",
    "choice": "A B ...",
    "uuid": "",
    "index": "",
}


class Template:
    """A template that has been read. Raises ConfigError when a rule is wrong."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._rules = [match[1].strip() for match in _RULE.finditer(text)]
        # Literal texts and rules take turns, beginning and ending with a literal.
        self._literals = _RULE.split(text)[::2]
        self._draws = [self._read(rule) for rule in self._rules]

    def draw(self, rng: np.random.Generator, index: int) -> str:
        """The body of that index, as JSON text. Raises ConfigError when it is none."""
        values = [draw(rng, index) for draw in self._draws]
        parts = [part for pair in zip(self._literals, values, strict=False) for part in pair]
        body = "".join([*parts, self._literals[-1]])
        try:
            msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
            raise ConfigError(FLAG, self._text, self._blame(values, str(error))) from None
        return body

    def _read(self, rule: str) -> Draw:
        try:
            kind, *given = shlex.split(rule)
            return _draw(kind, given)
        except ValueError as error:
            raise ConfigError(FLAG, self._text, f"{{{{{rule}}}}}: {error}") from None

    def _blame(self, values: Sequence[str], error: str) -> str:
        """What to say about a body that is no JSON: which rule needs quotes, if it is that."""
        for rule, value, before in zip(self._rules, values, self._literals, strict=False):
            if not before.endswith('"') and not _is_bare(value) and _starts_value(before):
                return f"{{{{{rule}}}}} gives {value!r}: put it between double quotes"
        return f"the result is no JSON: {error}"


def _draw(kind: str, given: list[str]) -> Draw:
    """Raises ValueError, saying how the rule is written."""
    if kind not in _SIZES:
        raise ValueError(f"unknown rule; known are {', '.join(_SIZES)}")
    if kind == "choice":
        if not given:
            raise ValueError("expected choice A B ...")
        escaped = [msgspec.json.encode(word).decode()[1:-1] for word in given]
        return lambda rng, _: escaped[rng.integers(len(escaped))]
    usage = f"{kind} {_SIZES[kind]}".strip()
    if len(given) != len(_SIZES[kind].split()):
        raise ValueError(f"expected {usage}")
    if kind == "uuid":
        return lambda rng, _: str(uuid.UUID(bytes=rng.bytes(16), version=4))
    if kind == "index":
        return lambda _, index: str(index)
    return _whole(kind, given, usage) if kind in ("int", "words") else _real(kind, given, usage)


def _whole(kind: str, given: list[str], usage: str) -> Draw:
    try:
        low, high = map(int, given)
    except ValueError:
        raise ValueError(f"expected {usage} in whole numbers") from None
    least = 1 if kind == "words" else -(2**63)
    most = 100_000 if kind == "words" else 2**63 - 1
    if not least <= low <= high <= most:
        raise ValueError(f"expected {usage} with {least} <= LOW <= HIGH <= {most}")
    if kind == "int":
        return lambda rng, _: str(rng.integers(low, high, endpoint=True))
    return lambda rng, _: words(rng, int(rng.integers(low, high, endpoint=True)))


def _real(kind: str, given: list[str], usage: str) -> Draw:
    try:
        first, second = map(float, given)
    except ValueError:
        raise ValueError(f"expected {usage} in numbers") from None
    if not np.isfinite([first, second]).all():
        raise ValueError(f"expected {usage} in finite numbers")
    if kind == "uniform" and not 0 <= second - first < np.inf:
        raise ValueError(f"expected {usage} with LOW <= HIGH")
    if kind != "uniform" and second < 0:
        raise ValueError(f"expected {usage} with a SPREAD from 0")
    if kind == "lognormal" and first + 10 * second > 700:
        raise ValueError("these numbers are too large: exp of 710 is infinite")
    method = {"uniform": "uniform", "normal": "normal", "lognormal": "lognormal"}[kind]
    return lambda rng, _: repr(float(getattr(rng, method)(first, second)))


def words(rng: np.random.Generator, num: int) -> str:
    """`num` plain English words with a space between."""
    return " ".join(_WORDS[place] for place in rng.integers(len(_WORDS), size=num))


def _starts_value(before: str) -> bool:
    """Whether a JSON value is expected where this text ends."""
    return before.rstrip()[-1:] in ("", ":", ",", "[")


def _is_bare(value: str) -> bool:
    try:
        msgspec.json.decode(value)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


_TEXT = """
    the of and to in is was for on that with as be at by this had not are but from or have an
    they which one you were all her she there would their we him been has when who will no more
    if out so up said what its about than into them can only other time new some could these two
    may first then do any like my now over such our man me even most made after also did many
    off before must well back through years much where your way down should because long each
    just state those people too good world still see work life day house water light river road
    winter market window paper number letter story question answer morning garden money order
"""
_WORDS = _TEXT.split()
