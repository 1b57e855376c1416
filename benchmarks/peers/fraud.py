"""What every peer serves: the demo's estimator, called by all of them in the same way.

Imported by the scripts beside it, each in the environment of its own server. serving.py exports the
estimator and says in the variable FRAUD_MODEL where it lies.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import joblib
import pandas as pd

COLUMNS = ("amount", "channel", "age")


def model_file() -> Path:
    """The exported estimator. Its folder is there for whatever a server writes, and goes after
    the run."""
    return Path(os.environ["FRAUD_MODEL"])


class FraudModel:
    """The fitted estimator. All rows of a batch are computed in one call."""

    def __init__(self) -> None:
        self._estimator = joblib.load(model_file())

    def scores(self, rows: Sequence[Mapping[str, Any]]) -> list[float]:
        """How likely each payment (amount, channel, age) is fraud, 0-1."""
        return self.of_columns({name: [row[name] for row in rows] for name in COLUMNS})

    def of_columns(self, columns: Mapping[str, Any]) -> list[float]:
        """The same from columns of n values each."""
        found: list[float] = self._estimator.predict_proba(pd.DataFrame(columns))[:, 1].tolist()
        return found
