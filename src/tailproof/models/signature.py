"""What a model takes and gives, and the compiled validator that stands before it."""

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tailproof.core.errors import Invalid, Malformed, RequestError, TooLarge
from tailproof.models.arrays import Arranger
from tailproof.models.columns import Column, Kind, Output, Signature, Table
from tailproof.models.constraints import check, merge
from tailproof.models.examples import example_value

if TYPE_CHECKING:  # workers import this module for its types and do not pay for pydantic
    from tailproof.models.readers import Reader

__all__ = ["Column", "Kind", "Output", "Signature", "Table", "Validator", "check_table", "merge"]

MAX_ROWS = 4096
"""Most rows in one list, unless the caller says otherwise."""
MAX_ERRORS = 1000
"""Most errors that one refusal lists."""
MAX_KEY = 128
"""Most characters of a key in `loc`: an unknown key is the caller's data and of any length."""

LARGE_BODY = 1 << 16
"""Bytes. What a larger body holds is counted before anything is made of it."""

_JSON_TYPES = {"float": "number", "int": "integer", "bool": "boolean", "string": "string"}

Row = dict[str, Any]


class Validator:
    """Reads request bodies into rows and rows into columns. One for each model, compiled once.

    Strict: no `"33"` for a number, no `true` or `33.0` for an int (an int is fine for a float),
    no NaN, no Infinity, no unknown key. Of a key that is given twice the last value counts.
    """

    def __init__(self, signature: Signature, reader: "Reader", *, max_rows: int) -> None:
        from tailproof.models.readers import REFUSALS, parse  # noqa: PLC0415

        self.signature = signature
        self._reader = reader
        self._refusals = REFUSALS
        self._parse = parse
        self._max_rows = max_rows
        self._arranger = Arranger(signature)

    @classmethod
    def compile(cls, signature: Signature, *, max_rows: int = MAX_ROWS) -> "Validator":
        """The validator of a signature; a list of more than `max_rows` rows is TooLarge.

        Raises ConfigError (`columns.<name>.<key>`) for a pattern that does not compile (there is
        no look-around), and for an example that its own column refuses.
        """
        from tailproof.models.readers import SignatureReader  # noqa: PLC0415

        return cls(signature, SignatureReader(signature, max_rows), max_rows=max_rows)

    @classmethod
    def of_class(
        cls, model: type, signature: Signature | None = None, *, max_rows: int = MAX_ROWS
    ) -> "Validator":
        """The validator of a user's pydantic class, whose field names are the columns.

        `signature` is the model's own; without one the fields are it, in their order. What the
        class says explicitly (`extra`, `strict`, `allow_inf_nan`) is kept; what it leaves open is
        strict, as with `compile`.

        Raises ConfigError naming the field that is no column, or does not fit the model's.
        """
        from tailproof.models.user_class import ClassReader  # noqa: PLC0415

        reader = ClassReader(model, signature, max_rows)
        return cls(reader.signature, reader, max_rows=max_rows)

    def rows(self, body: bytes) -> tuple[list[Row], bool]:
        """The rows of a JSON body, and whether it was a list (told by its first character).

        Every row has every column of the signature; what was left out or null is None.

        Raises:
            Malformed: the bytes are not JSON.
            Invalid: they are, but not rows of this model; `detail` lists what is wrong where.
            TooLarge: a list of more than `max_rows` rows.
        """
        if len(body) > LARGE_BODY:
            self._check_counts(body)
        try:
            return self._reader.rows(body)
        except self._refusals:
            raise self._refusal(body) from None

    def _check_counts(self, body: bytes) -> None:
        """Refuse what cannot be rows of this model by its punctuation alone: 16 MB of `[],` would
        become a gigabyte of objects, and seconds in which nobody else is served."""
        if self._reader.known is None:
            return  # a class that takes any key
        num_openers, num_closers, num_commas = _punctuation(body)
        if num_openers != num_closers:
            raise Malformed("the body is not JSON: its brackets do not match")
        if num_openers > self._max_rows + 1:
            raise TooLarge(f"over {self._max_rows} rows in one request, or nested values")
        if num_commas > self._max_rows * max(1, len(self._reader.known)):
            raise TooLarge(f"more values than {self._max_rows} rows of this model have")

    def check(self, rows: Sequence[Any]) -> list[Row]:
        """The same for rows that a protocol has decoded already: plain Python values.

        A float NaN in a column that is not required counts as missing.
        """
        decoded = self._without_nan(rows)
        try:
            return self._reader.decoded(decoded)
        except self._refusals:
            raise self._explained(decoded) from None

    def columns(self, rows: Sequence[Row]) -> dict[str, npt.NDArray[Any]]:
        """One array of len(rows) per column, in the signature's order whatever that of the keys.

        float64, int64 (float64 with NaN for missing when the column is not required), bool (the
        same), object arrays of str | None.
        """
        return self._arranger.arrays(rows)

    def json_schema(self) -> dict[str, Any]:
        """The JSON Schema (2020-12, as OpenAPI 3.1 uses it) of one row."""
        example = self.example()
        schema = self._reader.json_schema() or _schema_of(self.signature, example)
        return {**schema, "examples": [example]} if example else schema

    def example(self) -> Row:
        """One plausible row, made of values that hold. See `without_example`."""
        keys = {self._reader.key_of(column): column for column in self._reader.columns}
        made = {key: example_value(column) for key, column in keys.items()}
        row = {key: value for key, value in made.items() if value is not None}
        bad = {error["loc"][0] for error in self._faults(row) if error["loc"]}
        return {key: value for key, value in row.items() if key not in bad}

    @property
    def without_example(self) -> tuple[str, ...]:
        """Required columns that `example` lacks: no value could be made, so declare `example`."""
        row = self.example()
        required = (column for column in self._reader.columns if column.required)
        return tuple(c.name for c in required if self._reader.key_of(c) not in row)

    def _refusal(self, body: bytes) -> RequestError:
        """What is wrong with a body that was refused. Slow and careful, off the good path."""
        try:
            return self._explained(self._parse(body))
        except ValueError as error:
            return Malformed(f"the body is not JSON: {error}")

    def _explained(self, value: Any) -> RequestError:
        """The error for decoded JSON. Row by row, so that a small body cannot ask for millions
        of error records before the list is cut."""
        if not isinstance(value, list):
            return Invalid(self._faults(value)[:MAX_ERRORS])
        if len(value) > self._max_rows:
            return TooLarge(f"{len(value)} rows in one request; the limit is {self._max_rows}")
        if not value:
            message = "List should have at least 1 row"
            return Invalid([{"loc": [], "msg": message, "type": "too_short"}])
        faults: list[dict[str, Any]] = []
        for index, row in enumerate(value):
            found = self._faults(row)
            faults.extend({**fault, "loc": [index, *fault["loc"]]} for fault in found)
            if len(faults) >= MAX_ERRORS:
                break
        return Invalid(faults[:MAX_ERRORS])

    def _faults(self, row: Any) -> list[dict[str, Any]]:
        """What is wrong with one decoded row: the columns first, then the keys that are none."""
        known = self._reader.known
        unknown: list[str] = []
        if isinstance(row, Mapping) and known is not None:
            unknown = list(islice((key for key in row if key not in known), MAX_ERRORS))
            row = {key: row[key] for key in known if key in row}
        faults = [
            {
                "loc": [_cut(part) for part in fault["loc"]],
                "msg": fault["msg"],
                "type": fault["type"],
            }
            for fault in self._reader.faults(row)
        ]
        message = "Extra inputs are not permitted"
        extra = ({"loc": [_cut(k)], "msg": message, "type": "extra_forbidden"} for k in unknown)
        return [*faults, *extra]

    def _without_nan(self, rows: Sequence[Any]) -> list[Any]:
        optional = [column.name for column in self.signature.inputs if not column.required]
        if not optional:
            return list(rows)
        return [_nan_to_none(row, optional) if isinstance(row, Mapping) else row for row in rows]


def _punctuation(body: bytes) -> tuple[int, int, int]:
    """How many of `{[`, of `}]` and of `,` a JSON text has outside of its strings."""
    text = np.frombuffer(body.replace(rb"\\", b"").replace(rb"\"", b""), dtype=np.uint8)
    num_quotes = np.cumsum(text == ord('"'), dtype=np.uint8)  # only whether it is odd matters
    outside = (num_quotes & 1) == 0
    openers = (text == ord("{")) | (text == ord("["))
    closers = (text == ord("}")) | (text == ord("]"))
    found = (openers, closers, text == ord(","))
    num_openers, num_closers, num_commas = (int((each & outside).sum()) for each in found)
    return num_openers, num_closers, num_commas


def check_table(table: Table) -> None:
    """Everything about a table of constraints that can be told before the model is loaded.

    Raises ConfigError, for a pattern that does not compile too.
    """
    from tailproof.models.readers import check_pattern  # noqa: PLC0415

    check(table)
    for name, keys in table.items():
        if keys.get("pattern") is not None:
            check_pattern(name, keys["pattern"])


def _nan_to_none(row: Mapping[str, Any], optional: list[str]) -> Row:
    missing = {name: None for name in optional if (value := row.get(name)) != value}
    return {**row, **missing}


def _cut(part: str | int) -> str | int:
    return part[:MAX_KEY] if isinstance(part, str) else part


def _schema_of(signature: Signature, example: Row) -> dict[str, Any]:
    columns = signature.inputs
    return {
        "type": "object",
        "properties": {c.name: _property_of(c, example.get(c.name)) for c in columns},
        "required": [column.name for column in columns if column.required],
        "additionalProperties": False,
    }


def _property_of(column: Column, example: Any) -> dict[str, Any]:
    kind = _JSON_TYPES[column.type]
    enum = None if column.enum is None else list(column.enum)
    if enum is not None and not column.required:
        enum.append(None)  # type: ignore[arg-type]
    parts = {
        "type": kind if column.required else [kind, "null"],
        "description": column.description,
        "exclusiveMinimum": _whole(column.gt),
        "minimum": _whole(column.ge),
        "exclusiveMaximum": _whole(column.lt),
        "maximum": _whole(column.le),
        "pattern": column.pattern,
        "minLength": column.min_length,
        "maxLength": column.max_length,
        "enum": enum,
        "examples": None if example is None else [example],
    }
    return {key: value for key, value in parts.items() if value is not None}


def _whole(bound: float | None) -> float | int | None:
    """120.0 -> 120, which reads better beside an integer."""
    return int(bound) if bound is not None and bound == int(bound) else bound
