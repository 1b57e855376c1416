"""The user's table of constraints, joined to the columns that the model itself declares."""

import math
from collections.abc import Iterable, Mapping
from typing import Any, get_type_hints

import msgspec

from tailproof.core.errors import ConfigError
from tailproof.models.columns import Column, Signature, Table

_FIELDS = {name: kind for name, kind in get_type_hints(Column).items() if name != "name"}
_RANGE = ("gt", "ge", "lt", "le")
_TEXT = ("pattern", "min_length", "max_length")
_VALUES: dict[str, tuple[type, ...]] = {
    "float": (float, int),
    "int": (int,),
    "string": (str,),
    "bool": (),
}


def merge(signature: Signature | None, table: Table) -> Signature:
    """The signature with the table's constraints.

    What the table says about a column replaces what the model said about it, key by key. Without
    a signature the table alone is the signature, in its own order, and every column needs `type`.

    Raises:
        ConfigError: `columns.<name>.<key>`: unknown key or column, a value of the wrong type, a
            type that contradicts the model's, or constraints that no value can meet.
    """
    check(table)
    if signature is None:
        return Signature(inputs=tuple(_declared(name, keys) for name, keys in table.items()))
    names = [column.name for column in signature.inputs]
    for name in table:
        if name not in names:
            known = ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")
            raise ConfigError(
                f"columns.{name}",
                dict(table[name]),
                f"the model has no such column; it has {known}",
            )
    inputs = tuple(_joined(column, table.get(column.name, {})) for column in signature.inputs)
    return Signature(inputs=inputs, outputs=signature.outputs)


def table_of(columns: Iterable[Mapping[str, Any]]) -> Table:
    """`{"name": "age", "ge": 0}, ...` as a table. Raises ConfigError for one without a name."""
    table: dict[str, dict[str, Any]] = {}
    for column in columns:
        if not isinstance(column, Mapping) or not isinstance(column.get("name"), str):
            raise ConfigError("columns", column, "expected columns with a name")
        table[column["name"]] = {key: value for key, value in column.items() if key != "name"}
    return table


def check(table: Table) -> None:
    """Everything about a table that can be told without the model. Raises ConfigError."""
    for name, keys in table.items():
        if not name:
            raise ConfigError("columns", name, "a column needs a name")
        for key, value in keys.items():
            if key not in _FIELDS:
                known = ", ".join(_FIELDS)
                raise ConfigError(f"columns.{name}.{key}", value, f"unknown key; known are {known}")
            _converted(name, key, value)


def _declared(name: str, keys: Any) -> Column:
    if "type" not in keys:
        raise ConfigError(
            f"columns.{name}.type", None, "needed, since the model declares no signature of its own"
        )
    given = {key: _converted(name, key, value) for key, value in keys.items()}
    return checked(Column(name=name, **given))


def _joined(column: Column, keys: Any) -> Column:
    given = {key: _converted(column.name, key, value) for key, value in keys.items()}
    if given.get("type", column.type) != column.type:
        raise ConfigError(
            f"columns.{column.name}.type", given["type"], f"the model declares {column.type}"
        )
    if given.get("required") is False and column.required:
        raise ConfigError(f"columns.{column.name}.required", False, "the model requires it")
    return checked(msgspec.structs.replace(column, **given))


def _converted(name: str, key: str, value: Any) -> Any:
    try:
        return msgspec.convert(value, _FIELDS[key])
    except msgspec.ValidationError as error:
        problem = str(error)
        raise ConfigError(
            f"columns.{name}.{key}", value, problem[:1].lower() + problem[1:]
        ) from None


def checked(column: Column) -> Column:
    """The column itself, if its constraints suit its type and leave room for a value.

    Raises ConfigError that names the key, e.g. `columns.amount.ge`.
    """
    _check_names(column)
    _check_range(column)
    _check_length(column)
    _check_enum(column)
    return column


def _wrong(column: Column, key: str, problem: str) -> ConfigError:
    return ConfigError(f"columns.{column.name}.{key}", getattr(column, key), problem)


def _check_names(column: Column) -> None:
    """A range is for numbers, a pattern and a length are for strings."""
    is_number = column.type in ("int", "float")
    for key in _RANGE:
        if getattr(column, key) is not None and not is_number:
            raise _wrong(column, key, f"a {column.type} column has no range")
    for key in _TEXT:
        if getattr(column, key) is not None and column.type != "string":
            raise _wrong(column, key, f"only a string column has a {key}")


def _check_range(column: Column) -> None:
    for key in _RANGE:
        bound = getattr(column, key)
        if bound is not None and not math.isfinite(bound):
            raise _wrong(column, key, "expected a finite number")
    for low_key in ("gt", "ge"):
        for high_key in ("lt", "le"):
            low, high = getattr(column, low_key), getattr(column, high_key)
            if low is None or high is None:
                continue
            touching_allowed = low_key == "ge" and high_key == "le"
            if low > high or (low == high and not touching_allowed):
                raise _wrong(column, high_key, f"no value is left: {low_key} is {low:g}")
    if column.type == "int" and _is_without_integer(column):
        key = "lt" if column.lt is not None else "le"
        raise _wrong(column, key, "no whole number is left in the range")


def _is_without_integer(column: Column) -> bool:
    lows = [math.ceil(column.ge)] if column.ge is not None else []
    lows += [math.floor(column.gt) + 1] if column.gt is not None else []
    highs = [math.floor(column.le)] if column.le is not None else []
    highs += [math.ceil(column.lt) - 1] if column.lt is not None else []
    return bool(lows and highs) and max(lows) > min(highs)


def _check_length(column: Column) -> None:
    for key in ("min_length", "max_length"):
        length = getattr(column, key)
        if length is not None and length < 0:
            raise _wrong(column, key, "expected 0 or more")
    if (column.min_length or 0) > (math.inf if column.max_length is None else column.max_length):
        raise _wrong(column, "max_length", f"no value is left: min_length is {column.min_length}")


def _check_enum(column: Column) -> None:
    if column.enum is None:
        return
    if not column.enum:
        raise _wrong(column, "enum", "expected at least one value")
    for value in column.enum:
        if isinstance(value, bool) or not isinstance(value, _VALUES[column.type]):
            raise _wrong(column, "enum", f"{value!r} is not a value of a {column.type} column")
        if isinstance(value, float) and not math.isfinite(value):
            raise _wrong(column, "enum", "expected finite numbers")
