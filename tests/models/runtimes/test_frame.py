from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailproof.models.runtimes.frame import FrameBuilder, MatrixBuilder

MIXED = {"a": "float64", "s": "object", "n": "int64", "f": "float32", "b": "bool"}
COLUMNS: dict[str, Any] = {
    "a": np.array([1.5, np.nan]),
    "s": np.array(["x", None], dtype=object),
    "n": np.array([1, 2**53 + 1], dtype=np.int64),
    "f": np.array([0.1, 0.2]),
    "b": np.array([True, False]),
}


def test_a_frame_has_the_models_order_and_dtypes() -> None:
    frame = FrameBuilder(MIXED)(dict(reversed(COLUMNS.items())))
    assert list(frame.columns) == list(MIXED)
    assert {name: frame[name].dtype.kind + str(frame[name].dtype.itemsize) for name in "anfb"} == {
        "a": "f8",
        "n": "i8",
        "f": "f4",
        "b": "b1",
    }
    assert frame["n"].tolist() == [1, 2**53 + 1]
    assert frame["s"][0] == "x"
    assert pd.isna(frame["s"][1])


@pytest.mark.parametrize("dtype", ["float64", "float32", "int64", "int32", "bool"])
def test_columns_of_one_dtype_give_the_same_frame_as_one_by_one(dtype: str) -> None:
    columns = {name: np.array([index, index + 1]) for index, name in enumerate("cab")}
    dtypes = dict.fromkeys("abc", dtype)
    expected = pd.DataFrame({name: columns[name].astype(dtype) for name in "abc"})
    pd.testing.assert_frame_equal(FrameBuilder(dtypes)(columns), expected)


def test_strings_alone_are_a_frame_too() -> None:
    columns: dict[str, Any] = {name: np.array(["x", None], dtype=object) for name in "ab"}
    frame = FrameBuilder({"a": "object", "b": "object"})(columns)
    assert frame.shape == (2, 2)


def test_no_rows_are_an_empty_frame() -> None:
    assert FrameBuilder({"a": "float64", "b": "float64"})(
        {"a": np.array([]), "b": np.array([])}
    ).shape == (0, 2)


@given(st.lists(st.tuples(*[st.floats(allow_nan=False)] * 3), min_size=1, max_size=9))
def test_a_matrix_has_a_row_per_row(rows: list[tuple[float, float, float]]) -> None:
    columns = {
        name: np.array(values) for name, values in zip("abc", zip(*rows, strict=True), strict=True)
    }
    shuffled = {name: columns[name] for name in "cab"}
    assert MatrixBuilder(list("abc"), "float64")(shuffled).tolist() == [list(row) for row in rows]


def test_a_matrix_has_the_models_dtype() -> None:
    matrix = MatrixBuilder(["a"], "float32")({"a": np.array([0.1])})
    assert matrix.dtype == np.float32
    assert matrix.shape == (1, 1)
