"""A user's pydantic class as the reader of rows: its field names are the model's columns.

Only the front process imports this module.
"""

import re
from collections.abc import Iterable
from enum import Enum
from typing import Annotated, Any

from pydantic import (
    AliasChoices,
    AliasPath,
    BaseModel,
    ConfigDict,
    FailFast,
    Field,
    PydanticUserError,
    RootModel,
    TypeAdapter,
)
from pydantic.fields import FieldInfo

from tailproof.core.errors import ConfigError
from tailproof.models.columns import Column, Kind, Signature
from tailproof.models.readers import RefusedError, Row, errors_of, json_of

_KINDS: dict[str, Kind] = {
    "number": "float",
    "integer": "int",
    "boolean": "bool",
    "string": "string",
}
_LIST = re.compile(rb"[ \t\r\n]*\[")
_MIN_INT, _MAX_INT = -(2**63), 2**63 - 1


class ClassReader:
    """Rows of a user's pydantic class: its validators run, its defaults fill what is left out."""

    def __init__(self, model: type, signature: Signature | None, max_rows: int) -> None:
        base = _base_model(model)
        strict = _strict_of(base)
        self._fields = strict.model_fields
        self._names = tuple(self._fields)
        self._schema, self.columns = _described(base, self._names)
        self.signature = _fitted(self.columns, signature)
        self._absent = {
            column.name: None for column in self.signature.inputs if column.name not in self._fields
        }
        self._ints = tuple(column.name for column in self.columns if column.type == "int")
        forbids = base.model_config.get("extra", "forbid") == "forbid"
        self.known: frozenset[str] | None = _accepted_keys(strict) if forbids else None
        self._one: TypeAdapter[BaseModel] = TypeAdapter(strict)
        limits = Field(min_length=1, max_length=max_rows)
        listed: Any = Annotated[list[strict], FailFast(), limits]  # type: ignore[valid-type]
        self._many: TypeAdapter[list[BaseModel]] = TypeAdapter(listed)

    def rows(self, body: bytes) -> tuple[list[Row], bool]:
        if _LIST.match(body):
            return [self._row(item) for item in self._many.validate_json(body)], True
        return [self._row(self._one.validate_json(body))], False

    def decoded(self, rows: list[Any]) -> list[Row]:
        # Through JSON, since strict Python values would have to be the class's own enum members.
        return self.rows(json_of(rows))[0]

    def faults(self, row: Any) -> list[Any]:
        found = errors_of(self._one, row)
        if found:
            return found
        values = self._one.validate_json(json_of(row)).__dict__
        message = f"Input should be between {_MIN_INT} and {_MAX_INT}"
        wide = (name for name in self._ints if _is_wide(values[name]))
        return [{"loc": (name,), "msg": message, "type": "int64_range"} for name in wide]

    def key_of(self, column: Column) -> str:
        return next(iter(_keys_of(column.name, self._fields[column.name], by_name=False)))

    def json_schema(self) -> dict[str, Any] | None:
        closed = {} if self.known is None else {"additionalProperties": False}
        return {**self._schema, **closed}

    def _row(self, item: BaseModel) -> Row:
        if item.__pydantic_extra__ and self.known is not None:
            raise RefusedError
        values = item.__dict__
        row = {name: _plain(values[name]) for name in self._names}
        if any(_is_wide(row[name]) for name in self._ints):
            raise RefusedError
        return {**row, **self._absent}


def _base_model(model: type) -> type[BaseModel]:
    base = model if isinstance(model, type) and issubclass(model, BaseModel) else BaseModel
    if not base.model_fields or issubclass(base, RootModel):
        name = getattr(model, "__name__", str(model))
        raise ConfigError("columns", name, "expected a pydantic BaseModel with fields")
    return base


def _strict_of(model: type[BaseModel]) -> type[BaseModel]:
    """The class with strictness wherever it does not speak for itself.

    Unknown keys are let through and counted afterwards, since pydantic would write an error
    record for each of a million of them.
    """
    own = model.model_config
    config = ConfigDict(
        strict=own.get("strict", True),
        allow_inf_nan=own.get("allow_inf_nan", False),
        extra="allow" if own.get("extra", "forbid") == "forbid" else own["extra"],
    )
    attributes = {"model_config": config, "__module__": model.__module__}
    metaclass: Any = type(model)
    strict: type[BaseModel] = metaclass(model.__name__, (model,), attributes)
    return strict


def _described(
    model: type[BaseModel], names: tuple[str, ...]
) -> tuple[dict[str, Any], tuple[Column, ...]]:
    """The JSON Schema of a row, and the columns that it implies."""
    try:
        schema = _inlined(model.model_json_schema())
        by_name = _inlined(model.model_json_schema(by_alias=False))["properties"]
    except PydanticUserError as error:
        problem = f"a field has a type that no column has: {error.message}"
        raise ConfigError("columns", model.__name__, problem) from None
    return schema, tuple(_column_of(model, name, by_name[name]) for name in names)


def _inlined(schema: dict[str, Any]) -> dict[str, Any]:
    """References to enums replaced by what they refer to: a row stands alone in OpenAPI."""
    definitions = schema.pop("$defs", {})

    def inline(part: Any) -> Any:
        if isinstance(part, list):
            return [inline(item) for item in part]
        if not isinstance(part, dict):
            return part
        target = definitions.get(str(part.get("$ref", "")).removeprefix("#/$defs/"), {})
        if "enum" not in target and "const" not in target:
            return {key: inline(value) for key, value in part.items()}
        return {**target, **{key: value for key, value in part.items() if key != "$ref"}}

    inlined: dict[str, Any] = inline(schema)
    return inlined


def _column_of(model: type[BaseModel], name: str, schema: dict[str, Any]) -> Column:
    """A field as a column. Its JSON Schema says all: type, limits, description, examples."""
    options = [part for part in schema.get("anyOf", [schema]) if part.get("type") != "null"]
    value = options[0]
    kind = _KINDS.get(str(value.get("type")))
    if kind is None or len(options) != 1 or "format" in value:
        raise ConfigError(
            f"columns.{name}",
            model.__name__,
            "a field must be float, int, bool, str, a Literal or an Enum of these, or one of them "
            "or None",
        )
    allowed = [value["const"]] if "const" in value else value.get("enum")
    examples = schema.get("examples") or value.get("examples") or [schema.get("default")]
    return Column(
        name=name,
        type=kind,
        required=len(options) == len(schema.get("anyOf", [schema])),
        description=schema.get("description"),
        gt=value.get("exclusiveMinimum"),
        ge=value.get("minimum"),
        lt=value.get("exclusiveMaximum"),
        le=value.get("maximum"),
        pattern=value.get("pattern"),
        min_length=value.get("minLength"),
        max_length=value.get("maxLength"),
        enum=None if allowed is None or kind == "bool" else tuple(allowed),
        example=examples[0],
    )


def _fitted(columns: tuple[Column, ...], signature: Signature | None) -> Signature:
    """The signature that the fields fill: the model's own, else the fields themselves."""
    if signature is None:
        return Signature(inputs=columns)
    own = {column.name: column for column in signature.inputs}
    for column in columns:
        if column.name not in own:
            raise ConfigError(f"columns.{column.name}", column.type, "the model has no such column")
        _check_fit(column, own[column.name])
    for name, column in own.items():
        if column.required and name not in {field.name for field in columns}:
            raise ConfigError(f"columns.{name}", None, "the model requires it; the class lacks it")
    return signature


def _check_fit(field: Column, column: Column) -> None:
    if field.type != column.type and (field.type, column.type) != ("int", "float"):
        raise ConfigError(f"columns.{field.name}", field.type, f"the model declares {column.type}")
    if column.required and not field.required:
        raise ConfigError(f"columns.{field.name}", None, "the model requires a value")


def _accepted_keys(model: type[BaseModel]) -> frozenset[str]:
    config = model.model_config
    by_name = bool(config.get("populate_by_name") or config.get("validate_by_name"))
    fields = model.model_fields.items()
    return frozenset(
        key for name, field in fields for key in _keys_of(name, field, by_name=by_name)
    )


def _keys_of(name: str, field: FieldInfo, *, by_name: bool) -> Iterable[str]:
    """The JSON keys that reach a field, the first one first."""
    alias = field.validation_alias
    choices = alias.choices if isinstance(alias, AliasChoices) else [alias]
    for choice in choices:
        if isinstance(choice, AliasPath):
            yield str(choice.path[0])
        elif choice is not None:
            yield choice
    if alias is None or by_name:
        yield name


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, Enum) else value


def _is_wide(value: Any) -> bool:
    return value is not None and not _MIN_INT <= value <= _MAX_INT
