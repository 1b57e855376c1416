"""The fraud model in Ray Serve: HAProxy in front of one replica that batches.

RAY_SERVE_ENABLE_HA_PROXY and RAY_SERVE_THROUGHPUT_OPTIMIZED are what its documentation tells to set
for high throughput: without them a request costs ten times the CPU or more. `max_ongoing_requests`
must be above the batch size, since its default of 5 would be the largest batch.
`batch_wait_timeout_s` is left at Ray's default of 10 ms, a fifth of the 50 ms target. One replica,
since there is one core.
"""

import os
import signal
import threading
from pathlib import Path
from typing import Any

import ray
from fraud import FraudModel, model_file
from ports import free_port, given_port
from ray import serve
from starlette.requests import Request


@serve.deployment(num_replicas=1, max_ongoing_requests=1024)
class Fraud:
    """The replica: requests come one by one and are computed together."""

    def __init__(self) -> None:
        self._model = FraudModel()

    @serve.batch(max_batch_size=256, batch_wait_timeout_s=0.01)
    async def scores(self, rows: list[dict[str, Any]]) -> list[float]:
        """Of one batch."""
        return self._model.scores(rows)

    async def __call__(self, request: Request) -> dict[str, float]:
        return {"score": await self.scores(await request.json())}


def haproxy_variables(folder: Path) -> dict[str, str]:
    """Free ports, files in `folder`, and as many threads as there are cores: one."""
    prefix = "RAY_SERVE_HAPROXY"
    return {
        f"{prefix}_NBTHREAD": "1",
        f"{prefix}_METRICS_PORT": str(free_port()),
        f"{prefix}_STATS_PORT": str(free_port()),
        f"{prefix}_SERVER_STATE_BASE": str(folder),
        f"{prefix}_SERVER_STATE_FILE": str(folder / "server-state"),
        f"{prefix}_CONFIG_FILE_LOC": str(folder / "haproxy.cfg"),
        f"{prefix}_SOCKET_PATH": str(folder / "admin.sock"),
        f"{prefix}_METRICS_SOCKET_PATH": str(folder / "metrics.sock"),
    }


def serve_until(stop: threading.Event, port: int) -> None:
    """A cluster of one node on loopback, and the replica in it."""
    folder = model_file().parent
    os.environ |= haproxy_variables(folder / "haproxy")  # read by the processes that Ray starts
    ray.init(
        num_cpus=1,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=100 * 2**20,
        _node_ip_address="127.0.0.1",
        _temp_dir=str(folder / "ray"),
    )
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    serve.run(Fraud.bind(), route_prefix="/predict")
    stop.wait()
    serve.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    stopped = threading.Event()
    given = given_port()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    serve_until(stopped, given)
