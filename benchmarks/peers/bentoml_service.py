"""The fraud model in BentoML, with its adaptive batching. Started by `bentoml serve`.

`max_latency_ms` is the time in which a request is to be answered: the target itself, 50 ms. What it
expects to take longer, it refuses with 503, which is a miss; with 100 ms, 200 ms or 1 s it refuses
less and held a fifth to a third more in single runs. Typed rows (pydantic), as its documentation
shows. One worker, since there is one core; the access log is off.
"""

import bentoml
from fraud import FraudModel
from pydantic import BaseModel


class Payment(BaseModel):
    """One row."""

    amount: float
    channel: str
    age: int


@bentoml.service(workers=1, logging={"access": {"enabled": False}})
class Fraud:
    """Requests carry lists of rows, and BentoML joins the lists of several requests."""

    def __init__(self) -> None:
        self._model = FraudModel()

    @bentoml.api(batchable=True, max_batch_size=256, max_latency_ms=50)
    def predict(self, rows: list[Payment]) -> list[float]:
        """One score for each row."""
        return self._model.scores([row.model_dump() for row in rows])
