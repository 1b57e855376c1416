"""What an MLflow model folder says about itself. Read without MLflow, whose import costs a second.

A folder may carry constraints for its own columns, so that every server of the model knows them:

    mlflow.sklearn.log_model(..., metadata={"tailproof.columns": [{"name": "age", "ge": 0}]})

and the facts `training_data` and `licence` (or `license`) in the same metadata.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tailproof.core.errors import ConfigError, ModelError
from tailproof.models.columns import Column, Kind, Signature, Table
from tailproof.models.constraints import merge, table_of
from tailproof.models.extras import need

COLUMNS_KEY = "tailproof.columns"

_KINDS: dict[str, Kind] = {
    "double": "float",
    "float": "float",
    "long": "int",
    "integer": "int",
    "boolean": "bool",
    "string": "string",
}
_DTYPES = {
    "double": "float64",
    "float": "float32",
    "long": "int64",
    "integer": "int32",
    "boolean": "bool",
    "string": "object",
}
_INT32 = (float(-(2**31)), float(2**31 - 1))
_TENSOR_KINDS: dict[str, Kind] = {"f": "float", "i": "int", "u": "int", "b": "bool"}


@dataclass(frozen=True, slots=True)
class ModelInput:
    """One input as the model declares it: `dtype` is the numpy dtype that it was trained with."""

    column: Column
    dtype: str


@dataclass(frozen=True, slots=True)
class MLmodel:
    """The parts of an `MLmodel` file that matter for serving."""

    folder: Path
    flavors: Mapping[str, Mapping[str, Any]]
    inputs: tuple[ModelInput, ...] | None
    """None: the model has no signature."""
    is_tensor: bool
    """The model takes one matrix, not a table with names. Its columns are called x0, x1, ..."""
    metadata: Mapping[str, Any]
    example_file: str | None

    def signature(self, table: Table, fallback: Table | None = None) -> Signature:
        """The columns with the model's own constraints, and the user's `table` on top.

        `fallback` stands in for the table of a model without a signature.
        Raises ModelError when the model's metadata is wrong or there is neither a signature nor a
        table, ConfigError when the table is wrong.
        """
        own = None
        if self.inputs is not None:
            own = Signature(inputs=tuple(item.column for item in self.inputs))
        declared = self._declared()
        if declared:
            try:
                own = merge(own, declared)
            except ConfigError as error:
                raise ModelError(f"the model's own {COLUMNS_KEY} are wrong: {error}") from None
        if own is None and not table:
            table = fallback or {}
        if own is None and not table:
            raise ModelError(
                "the model has no signature: log it with one, or declare its columns with their "
                "types in the configuration"
            )
        return merge(own, table)

    def dtypes(self, signature: Signature) -> dict[str, str]:
        """The numpy dtype of each column, in order. A number that may be missing is a float."""
        own = {item.column.name: item.dtype for item in self.inputs or ()}
        plain = {"float": "float64", "int": "int64", "bool": "bool", "string": "object"}
        found: dict[str, str] = {}
        for column in signature.inputs:
            dtype = own.get(column.name, plain[column.type])
            is_missing_possible = not column.required and column.type in ("int", "bool")
            found[column.name] = "float64" if is_missing_possible else dtype
        return found

    def example(self) -> dict[str, Any] | None:
        """The first row of the input example that was logged with the model, if it has one."""
        if self.example_file is None or self.inputs is None:
            return None
        try:
            saved = json.loads(inside(self.folder, self.example_file).read_text("utf-8"))
            return self._first_row(saved)
        except (OSError, ValueError, LookupError, TypeError, ModelError):
            return None  # an example is a kindness; one that cannot be read is none

    def declared_fact(self, *keys: str) -> str | None:
        """The first of these metadata keys that is set."""
        return next((str(self.metadata[key]) for key in keys if self.metadata.get(key)), None)

    def _declared(self) -> Table:
        declared = self.metadata.get(COLUMNS_KEY)
        if not declared:
            return {}
        if isinstance(declared, Mapping):
            return declared
        try:
            return table_of(declared)
        except (ConfigError, TypeError):
            raise ModelError(f"the model's own {COLUMNS_KEY} are not a list of columns") from None

    def _first_row(self, saved: Any) -> dict[str, Any]:
        names = [item.column.name for item in self.inputs or ()]
        if isinstance(saved, dict) and "data" in saved:
            given = saved.get("columns") or names
            row = dict(zip(given, saved["data"][0], strict=True))
        else:
            matrix = saved["inputs"] if isinstance(saved, dict) else saved
            row = dict(zip(names, matrix[0], strict=True))
        return {name: row.get(name) for name in names}


def read(folder: Path) -> MLmodel:
    """Read the `MLmodel` file of a folder. Raises ModelError when it cannot be understood."""
    yaml = need("yaml")
    try:
        text = (folder / "MLmodel").read_text("utf-8")
        content = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (OSError, UnicodeDecodeError):
        raise ModelError("the folder holds no readable MLmodel file") from None
    except yaml.YAMLError:
        raise ModelError("the MLmodel file is not YAML") from None
    if not isinstance(content, dict) or not _is_table_of_tables(content.get("flavors")):
        raise ModelError("the MLmodel file names no flavors")
    inputs, is_tensor = _inputs(content.get("signature"))
    metadata, example = content.get("metadata"), content.get("saved_input_example_info")
    return MLmodel(
        folder=folder,
        flavors=content["flavors"],
        inputs=inputs,
        is_tensor=is_tensor,
        metadata=metadata if isinstance(metadata, dict) else {},
        example_file=example.get("artifact_path") if isinstance(example, dict) else None,
    )


def _is_table_of_tables(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(conf, dict) for conf in value.values())


def inside(folder: Path, relative: str) -> Path:
    """A file of the model. Raises ModelError when the name leads out of the folder."""
    path = (folder / relative).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise ModelError("the MLmodel file names a file outside of its folder")
    return path


def _inputs(signature: Any) -> tuple[tuple[ModelInput, ...] | None, bool]:
    if not isinstance(signature, dict) or not signature.get("inputs"):
        return None, False
    try:
        fields = json.loads(signature["inputs"])
        is_matrix = len(fields) == 1 and fields[0]["type"] == "tensor" and not fields[0].get("name")
        if is_matrix:
            return _of_matrix(fields[0]["tensor-spec"]), True
        return tuple(_of_column(field) for field in fields), False
    except (ValueError, LookupError, TypeError, AttributeError):
        raise ModelError("the MLmodel file has a signature that cannot be read") from None


def _of_column(field: Mapping[str, Any]) -> ModelInput:
    name, kind = field.get("name"), field["type"]
    if not isinstance(name, str) or not name:
        raise ModelError("the model's signature has a column without a name")
    if kind not in _KINDS:
        raise ModelError(
            f"column {name!r} has the type {kind}, which this version cannot serve; "
            f"it can serve {', '.join(_KINDS)}"
        )
    low, high = _INT32 if kind == "integer" else (None, None)
    required = bool(field.get("required", not field.get("optional", False)))
    column = Column(name=name, type=_KINDS[kind], required=required, ge=low, le=high)
    return ModelInput(column, _DTYPES[kind])


def _of_matrix(spec: Mapping[str, Any]) -> tuple[ModelInput, ...]:
    """A nameless matrix of n columns: x0 ... x(n-1), as scikit-learn calls them."""
    dtype, shape = str(spec["dtype"]), spec["shape"]
    kind = _TENSOR_KINDS.get(np.dtype(dtype).kind)
    if kind is None or len(shape) != 2 or shape[0] != -1 or shape[1] < 1:
        raise ModelError(
            f"the model takes a {dtype} tensor of shape {tuple(shape)}; this version can serve "
            "tables and number matrices of shape (-1, n)"
        )
    return tuple(
        ModelInput(Column(name=f"x{index}", type=kind), dtype) for index in range(shape[1])
    )
