"""The fraud model in LitServe: FastAPI in front, a Python worker behind a queue.

`fast_queue=True` is what its documentation tells to set from 100 requests a second on (it costs
less CPU here, too). `batch_timeout=0.01` waits at most a fifth of the 50 ms target for a batch to
fill; 2 ms costs more CPU a request. One worker, since there is one core; the access log is off.
"""

from typing import Any

import litserve
from fraud import FraudModel
from ports import given_port


class Fraud(litserve.LitAPI):
    """A batch is the list of its requests on the way in, of its scores on the way out."""

    def setup(self, device: str) -> None:
        """In the worker."""
        self._model = FraudModel()

    def batch(self, inputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The default would make arrays of them."""
        return inputs

    def predict(self, x: list[dict[str, Any]]) -> list[float]:
        """The scores of one batch."""
        return self._model.scores(x)

    def unbatch(self, output: list[float]) -> list[float]:
        """One for each request."""
        return output

    def encode_response(self, output: float) -> dict[str, float]:
        """One answer."""
        return {"score": output}


if __name__ == "__main__":
    server = litserve.LitServer(
        Fraud(max_batch_size=256, batch_timeout=0.01),
        accelerator="cpu",
        workers_per_device=1,
        fast_queue=True,
    )
    server.run(
        host="127.0.0.1",
        port=given_port(),
        generate_client_file=False,
        log_level="warning",
        access_log=False,
    )
