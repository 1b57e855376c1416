import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailproof.models.arrays import Arranger
from tailproof.models.columns import Column, Signature

WIDE = Signature(
    inputs=(
        Column(name="a", type="float"),
        Column(name="s", type="string", required=False),
        Column(name="b", type="float", required=False),
        Column(name="i", type="int"),
        Column(name="j", type="int", required=False),
        Column(name="k", type="int"),
        Column(name="p", type="bool"),
        Column(name="q", type="bool", required=False),
    )
)
ROW = {"a": 1, "s": None, "b": None, "i": 2**63 - 1, "j": None, "k": -3, "p": True, "q": True}


def test_each_kind_of_column_has_its_dtype() -> None:
    arrays = Arranger(WIDE).arrays([ROW])
    assert {name: array.dtype.str for name, array in arrays.items()} == {
        "a": "<f8",
        "s": "|O",
        "b": "<f8",
        "i": "<i8",
        "j": "<f8",
        "k": "<i8",
        "p": "|b1",
        "q": "<f8",
    }
    assert arrays["i"].tolist() == [2**63 - 1], "int64 is exact to its end"
    assert np.isnan(arrays["b"]).all()
    assert np.isnan(arrays["j"]).all()
    assert arrays["s"].tolist() == [None]
    assert arrays["q"].tolist() == [1.0]


def test_the_order_is_the_signatures_whatever_that_of_the_keys() -> None:
    shuffled = dict(reversed(ROW.items()))
    arrays = Arranger(WIDE).arrays([shuffled, ROW])
    assert list(arrays) == list(ROW)
    assert arrays["k"].tolist() == [-3, -3]


def test_no_rows_are_empty_columns() -> None:
    assert {array.shape for array in Arranger(WIDE).arrays([]).values()} == {(0,)}


def test_a_row_that_lacks_a_column_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        Arranger(WIDE).arrays([{"a": 1.0}])


@given(st.lists(st.lists(st.floats(allow_nan=False), min_size=5, max_size=5), max_size=9))
def test_many_columns_read_together_keep_every_value_in_its_place(rows: list[list[float]]) -> None:
    names = ["e", "d", "c", "b", "a"]
    signature = Signature(inputs=tuple(Column(name=name, type="float") for name in names))
    arrays = Arranger(signature).arrays([dict(zip(names, row, strict=True)) for row in rows])
    assert [list(row) for row in zip(*(a.tolist() for a in arrays.values()), strict=True)] == rows
