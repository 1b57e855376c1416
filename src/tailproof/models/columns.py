"""The columns of a model: what a signature is made of."""

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

Kind = Literal["float", "int", "bool", "string"]


class Column(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One input column: its type from the model's signature, its limits from the user's table.

    A column that is not `required` may be left out or null; numbers then become NaN (so an `int`
    or `bool` column that may be missing reaches the model as float64), strings None.
    """

    name: str
    type: Kind
    required: bool = True
    description: str | None = None
    gt: float | None = None
    ge: float | None = None
    lt: float | None = None
    le: float | None = None
    pattern: str | None = None
    """A regular expression that must be found in the string (anchor it with ^ and $)."""
    min_length: int | None = None
    max_length: int | None = None
    enum: tuple[str | int | float, ...] | None = None
    example: Any = None


class Output(msgspec.Struct, frozen=True, kw_only=True):
    """One output. `shape` is that of one row: () for a number, (3,) for three of them."""

    name: str
    type: Kind
    shape: tuple[int, ...] = ()


class Signature(msgspec.Struct, frozen=True, kw_only=True):
    """Inputs in the model's own order, and outputs."""

    inputs: tuple[Column, ...]
    outputs: tuple[Output, ...] = ()


Table = Mapping[str, Mapping[str, Any]]
"""What a user writes about columns: name -> any field of `Column` except the name."""
