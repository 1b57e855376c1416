"""The interface of a runtime: columns in, named arrays out."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tailproof.models.manifest import Manifest
from tailproof.models.source import ModelSpec

Columns = dict[str, npt.NDArray[Any]]
"""One array per input column, all of the same length (rows). float64, int64, bool, or object
arrays of str | None."""

Progress = Callable[[str], None]
"""Told what is being done (`importing`, `loading`, ...), for the log and for people who wait."""


class Runtime(Protocol):
    """A loaded model. Lives in a worker process; is called by one thread, one batch at a time."""

    def predict(self, columns: Columns, num_rows: int) -> Columns:
        """Compute `num_rows` rows: each output's first axis has that length, in the same order.

        Raises whatever the model raises; the worker turns it into a failed batch.
        """
        ...


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """What loading gives: the runtime, its facts, and rows to warm it up with."""

    runtime: Runtime
    manifest: Manifest
    example: Columns
    """At least one row of plausible input, for warm-up. Repeated to the sizes that are tried."""


Loader = Callable[[ModelSpec, Progress], LoadedModel]
"""Each runtime file offers `load(spec, progress) -> LoadedModel`; it raises ModelError."""


def outputs_of(result: Any, num_rows: int, name: str = "score") -> Columns:
    """Give a model's plain result the shape that `predict` owes.

    An array, a sequence or a pandas Series becomes one output called `name`; a mapping or a frame
    one output per key or column. Raises ValueError when a first axis is not `num_rows` long.
    """
    is_series = hasattr(result, "to_numpy") and result.ndim == 1
    if hasattr(result, "items") and not is_series:
        named = {str(key): np.asarray(value) for key, value in result.items()}
    else:
        named = {name: np.asarray(result)}
    for key, array in named.items():
        if array.ndim == 0 or array.shape[0] != num_rows:
            raise ValueError(f"output {key!r} has shape {array.shape}, expected {num_rows} rows")
    return named
