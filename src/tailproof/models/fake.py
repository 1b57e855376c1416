"""What the fake model can be told: `fake:?fixed=30ms&per_row=1ms&max=16`.

A model with set times, for tests, load tests and benchmarks of everything around a model. Faults
happen on demand. The runtime that obeys is `runtimes.fake`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

from tailproof.core.errors import ConfigError
from tailproof.core.units import parse_duration, parse_size
from tailproof.models.columns import Column, Kind

_KINDS: dict[str, Kind] = {"float": "float", "int": "int", "bool": "bool", "string": "string"}


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeOptions:
    """Times in seconds, sizes in bytes. A batch of n rows takes `fixed + n * per_row`."""

    fixed: float = 0.0
    per_row: float = 0.0
    max_rows: int | None = None
    """`max`: the most rows in a batch; a larger one is an error."""
    noise: float = 0.0
    """Standard deviation of the time, as a share of it: normal, never below 0."""
    seed: int = 0
    busy: bool = False
    """Keep the processor busy instead of sleeping."""
    load: float = 0.0
    """How long loading takes."""
    columns: tuple[Column, ...] = (Column(name="value", type="float"),)
    """`name:type,name:type`; the first number comes back as `score`."""
    fail_load: str | None = None
    """Loading fails: `1`, or the message to fail with."""
    fail_value: float | None = None
    """A batch that has this value in its first number column raises."""
    exit_value: float | None = None
    """... ends the process, with exit code 3."""
    hang_value: float | None = None
    """... never returns."""
    leak: int = 0
    """Bytes that every batch leaves behind."""
    log: str | None = None
    """File that gets one JSON line per batch: started, finished, rows, values, outcome."""

    @classmethod
    def parse(cls, query: str) -> "FakeOptions":
        """Read `fixed=30ms&per_row=1ms`. Raises ConfigError naming the parameter."""
        given: dict[str, Any] = {}
        for key, text in parse_qsl(query, keep_blank_values=True):
            if key not in _PARAMETERS:
                known = ", ".join(_PARAMETERS)
                raise ConfigError(f"fake.{key}", text, f"unknown parameter; known are {known}")
            field, read = _PARAMETERS[key]
            try:
                given[field] = read(text)
            except ValueError as error:
                raise ConfigError(f"fake.{key}", text, str(error)) from None
        return cls(**given)

    @property
    def echoed(self) -> str:
        """The column whose numbers come back as `score`."""
        return next(column.name for column in self.columns if column.type in ("float", "int"))


def _whole(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise ValueError("expected a whole number above 0")
    return int(text)


def _seed(text: str) -> int:
    if not text.isdecimal():
        raise ValueError("expected a whole number")
    return int(text)


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("expected a finite number")
    return value


def _share(text: str) -> float:
    value = _number(text)
    if not 0 <= value <= 1:
        raise ValueError("expected a share from 0 to 1")
    return value


def _switch(text: str) -> bool:
    if text not in ("0", "1"):
        raise ValueError("expected 0 or 1")
    return text == "1"


def _text(text: str) -> str:
    if not text:
        raise ValueError("expected some text")
    return text


def _columns(text: str) -> tuple[Column, ...]:
    """`value:float,kind:string`; a column without a type is a float."""
    pairs = [part.partition(":") for part in text.split(",")]
    for name, _, kind in pairs:
        if not name or (kind or "float") not in _KINDS:
            raise ValueError("expected name:type,... with the types " + ", ".join(_KINDS))
    columns = tuple(Column(name=name, type=_KINDS[kind or "float"]) for name, _, kind in pairs)
    if len({column.name for column in columns}) < len(columns):
        raise ValueError("a column is named twice")
    if not any(column.type in ("float", "int") for column in columns):
        raise ValueError("expected at least one float or int column")
    return columns


_PARAMETERS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "fixed": ("fixed", parse_duration),
    "per_row": ("per_row", parse_duration),
    "max": ("max_rows", _whole),
    "noise": ("noise", _share),
    "seed": ("seed", _seed),
    "busy": ("busy", _switch),
    "load": ("load", parse_duration),
    "columns": ("columns", _columns),
    "fail_load": ("fail_load", _text),
    "fail_value": ("fail_value", _number),
    "exit_value": ("exit_value", _number),
    "hang_value": ("hang_value", _number),
    "leak": ("leak", parse_size),
    "log": ("log", _text),
}
"""Parameter -> the field that it fills, and how its text is read."""
