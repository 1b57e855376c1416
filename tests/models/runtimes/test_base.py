from typing import Any

import numpy as np
import pandas as pd
import pytest

from tailproof.models.runtimes.base import outputs_of

FRAME = pd.DataFrame({"a": [1, 2], "b": ["x", "y"]})


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (np.array([1.0, 2.0]), {"score": [1.0, 2.0]}),
        ([1, 2], {"score": [1, 2]}),
        ([[1, 2], [3, 4]], {"score": [[1, 2], [3, 4]]}),
        (FRAME["a"], {"score": [1, 2]}),
        (FRAME["a"].set_axis(["p", "q"]), {"score": [1, 2]}),
        (FRAME, {"a": [1, 2], "b": ["x", "y"]}),
        ({"x": [1, 2], 3: FRAME["b"]}, {"x": [1, 2], "3": ["x", "y"]}),
    ],
)
def test_every_plain_result_becomes_named_arrays(result: Any, expected: dict[str, Any]) -> None:
    outputs = outputs_of(result, 2)
    assert {name: array.tolist() for name, array in outputs.items()} == expected


@pytest.mark.parametrize("result", [1.0, [1], [1, 2, 3], {"a": [1, 2], "b": [1]}, None])
def test_another_number_of_rows_is_an_error(result: Any) -> None:
    with pytest.raises(ValueError, match="expected 2 rows"):
        outputs_of(result, 2)
