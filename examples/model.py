"""A model of your own, served with: tailproof serve python:examples.model:Flowers

A nearest-centroid classifier for iris flowers: the kind whose typical flower is closest wins. The
typical flowers are the means of Fisher's measurements of 1936, fifty flowers of each kind.
"""

from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

MEASUREMENTS = ("sepal_length", "sepal_width", "petal_length", "petal_width")
CENTROIDS = {
    "setosa": (5.006, 3.428, 1.462, 0.246),
    "versicolor": (5.936, 2.770, 4.260, 1.326),
    "virginica": (6.588, 2.974, 5.552, 2.026),
}
SPREAD = (0.510, 0.336, 0.426, 0.203)
"""Standard deviation within a kind: what differs little between flowers of one kind tells more."""


class Flowers:
    """`columns` says what a row must hold, `load` runs once in the worker process, `predict` for
    every batch."""

    columns: ClassVar[list[dict[str, Any]]] = [
        {"name": name, "type": "float", "gt": 0, "le": 20, "description": "in cm"}
        for name in MEASUREMENTS
    ]
    example: ClassVar[dict[str, float]] = dict(zip(MEASUREMENTS, (5.1, 3.5, 1.4, 0.2), strict=True))

    def load(self) -> None:
        """Whatever takes long belongs here: reading weights, building an index."""
        self._kinds = np.array(list(CENTROIDS))
        self._spread = np.array(SPREAD)
        self._centroids = np.array(list(CENTROIDS.values())) / self._spread

    def predict(self, columns: dict[str, npt.NDArray[np.float64]]) -> npt.NDArray[np.str_]:
        """`columns` holds one array of n numbers for each measurement; returns n kinds."""
        rows = np.column_stack([columns[name] for name in MEASUREMENTS]) / self._spread
        distances = np.linalg.norm(rows[:, None, :] - self._centroids[None, :, :], axis=2)
        kinds: npt.NDArray[np.str_] = self._kinds[distances.argmin(axis=1)]
        return kinds
