"""The fraud model in Mosec: a Rust front, a Python worker, bodies as JSON.

`max_batch_size=256` like everybody here. `max_wait_time` is how long a worker that has one request
waits for more; 10 ms is what Mosec waits unless told otherwise, and a fifth of the 50 ms target: 4
ms found the same limit, 1 ms a lower one. One worker, since there is one core.
"""

from collections.abc import Mapping
from typing import Any

from fraud import FraudModel
from mosec import Server, Worker


class Fraud(Worker):
    """Loads the model in its own process."""

    def __init__(self) -> None:
        super().__init__()
        self._model = FraudModel()

    def forward(self, data: list[Mapping[str, Any]]) -> list[dict[str, float]]:
        """The answers to the requests of one batch."""
        return [{"score": score} for score in self._model.scores(data)]


if __name__ == "__main__":
    server = Server()  # reads --port and --address from the command line itself
    server.append_worker(Fraud, num=1, max_batch_size=256, max_wait_time=10)
    server.run()
