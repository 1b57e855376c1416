"""The last steps that every loader shares: try the model once, and say what it gives."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tailproof.core.errors import ModelError
from tailproof.models.arrays import Arranger
from tailproof.models.columns import Kind, Output, Signature
from tailproof.models.examples import example_row
from tailproof.models.runtimes.base import Columns, Runtime

_KINDS: dict[str, Kind] = {"f": "float", "i": "int", "u": "int", "b": "bool"}


@dataclass(frozen=True, slots=True)
class Opened:
    """A runtime, and what it was set up with."""

    runtime: Runtime
    kind: str
    """The runtime's name in the manifest, e.g. `sklearn`."""
    engine: str
    parameters: dict[str, Any]


def example_columns(signature: Signature, own: Mapping[str, Any] | None = None) -> Columns:
    """One row to warm up with: the model's own example where it has one, else a made-up one.

    Raises ModelError naming the columns for which no value can be made.
    """
    row = {**example_row(signature), **{k: v for k, v in (own or {}).items() if v is not None}}
    missing = [c.name for c in signature.inputs if c.required and c.name not in row]
    if missing:
        raise ModelError(
            f"no example can be made for the column {missing[0]!r}: declare its `example`"
        )
    row = {column.name: row.get(column.name) for column in signature.inputs}
    try:
        return Arranger(signature).arrays([row])
    except (TypeError, ValueError, OverflowError):
        if own is None:
            raise ModelError("an `example` is not of the type of its column") from None
        return example_columns(signature)


def with_outputs(signature: Signature, runtime: Runtime, example: Columns) -> Signature:
    """The signature with the outputs that the model really gives, from one run on the example.

    Raises ModelError when the model raises.
    """
    try:
        result = runtime.predict(example, 1)
    except Exception as error:
        raise ModelError(
            f"the model raised {type(error).__name__} on its example row; declare an `example` "
            "for its columns that it can compute"
        ) from error
    outputs = tuple(_output(name, array) for name, array in result.items())
    return Signature(inputs=signature.inputs, outputs=outputs)


def _output(name: str, array: npt.NDArray[np.generic]) -> Output:
    kind = _KINDS.get(array.dtype.kind, "string")
    return Output(name=name, type=kind, shape=tuple(array.shape[1:]))
