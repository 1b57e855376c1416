"""Columns as the table or matrix that a model was trained on."""

from typing import Any

import numpy as np
import numpy.typing as npt

from tailproof.models.extras import need
from tailproof.models.runtimes.base import Columns


class FrameBuilder:
    """Builds a pandas DataFrame with the model's columns in its order and with its dtypes.

    `dtypes` maps each column to the numpy dtype that it is to have. When they are all the same
    number type the frame is made of one block: 600 columns take 0.1 ms instead of 3 ms.
    """

    def __init__(self, dtypes: dict[str, str]) -> None:
        self._frame = need("pandas").DataFrame
        self._dtypes = {name: np.dtype(dtype) for name, dtype in dtypes.items()}
        self._index = need("pandas").Index(list(dtypes))
        self._matrix = _matrix_builder(dtypes)

    def __call__(self, columns: Columns) -> Any:
        """A frame of as many rows as the columns have, whatever the order of their keys."""
        if self._matrix is not None:
            return self._frame(self._matrix(columns), columns=self._index, copy=False)
        return self._frame(
            {name: columns[name].astype(dtype, copy=False) for name, dtype in self._dtypes.items()}
        )


class MatrixBuilder:
    """Builds one array of shape (rows, columns), for models that know no column names."""

    def __init__(self, names: list[str], dtype: str) -> None:
        self._names = names
        self._dtype = np.dtype(dtype)

    def __call__(self, columns: Columns) -> npt.NDArray[Any]:
        """Shape (rows, columns); each column is contiguous."""
        by_column = np.concatenate([columns[name] for name in self._names])
        matrix = by_column.reshape(len(self._names), -1).T
        return matrix.astype(self._dtype, copy=False)


def _matrix_builder(dtypes: dict[str, str]) -> MatrixBuilder | None:
    kinds = set(dtypes.values())
    if len(kinds) != 1 or kinds == {"object"}:
        return None
    return MatrixBuilder(list(dtypes), kinds.pop())
