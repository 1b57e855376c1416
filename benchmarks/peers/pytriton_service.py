"""The fraud model in PyTriton: Triton with its dynamic batcher, in front of a Python function.

Requests are JSON of the Open Inference Protocol. Triton's documentation says to begin without a
queue delay and to raise it while the latency allows: 2 ms takes a third of the CPU off a request at
16 connections, and 10 ms no more. Triton checks types and shapes by itself.
"""

import os
from typing import Any

import numpy as np
import numpy.typing as npt
from fraud import FraudModel, model_file
from ports import free_port, given_port
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig


def triton_config(port: int) -> TritonConfig:
    """HTTP on `port`, the rest where there is room; loopback alone."""
    return TritonConfig(
        http_address="127.0.0.1",
        http_port=port,
        grpc_address="127.0.0.1",
        grpc_port=free_port(),
        metrics_address="127.0.0.1",
        metrics_port=free_port(),
    )


def bind(triton: Triton, model: FraudModel) -> None:
    """Tell Triton about the model: a row has three tensors of one value each."""

    @batch
    def scores(**tensors: npt.NDArray[Any]) -> dict[str, npt.NDArray[np.float64]]:
        columns = {name: values[:, 0] for name, values in tensors.items()}
        columns["channel"] = [channel.decode() for channel in columns["channel"]]
        return {"score": np.array(model.of_columns(columns))[:, np.newaxis]}

    triton.bind(
        model_name="fraud",
        infer_func=scores,
        inputs=[
            Tensor(name="amount", dtype=np.float64, shape=(1,)),
            Tensor(name="channel", dtype=bytes, shape=(1,)),
            Tensor(name="age", dtype=np.int64, shape=(1,)),
        ],
        outputs=[Tensor(name="score", dtype=np.float64, shape=(1,))],
        config=ModelConfig(
            max_batch_size=256, batcher=DynamicBatcher(max_queue_delay_microseconds=2_000)
        ),
    )


if __name__ == "__main__":
    workspace = model_file().parent / f"pytriton-{os.getpid()}"  # there must be none yet
    with Triton(config=triton_config(given_port()), workspace=workspace) as server:
        bind(server, FraudModel())
        server.serve()
