"""The fraud model in MLServer, with its own scikit-learn runtime and adaptive batching.

Requests are of the Open Inference Protocol with the content type `pd`, so that the runtime gets a
DataFrame. `max_batch_time=0.01` waits at most a fifth of the 50 ms target for a batch to fill; 2 ms
costs as much CPU a request. `parallel_workers=0` computes in the server's own process: with one
core, a process more (the default) costs CPU and gains nothing. `debug` off, as for production.
"""

import asyncio

import uvloop
from fraud import model_file
from mlserver import MLServer, ModelSettings, Settings
from mlserver.settings import ModelParameters
from mlserver_sklearn import SKLearnModel
from ports import free_port, given_port


def server_settings(port: int) -> Settings:
    """One process on loopback."""
    folder = model_file().parent / "mlserver"
    return Settings(
        debug=False,
        parallel_workers=0,
        host="127.0.0.1",
        http_port=port,
        grpc_port=free_port(),
        metrics_port=free_port(),
        metrics_dir=str(folder),
        environments_dir=str(folder),
    )


def model_settings() -> ModelSettings:
    """The exported estimator, in batches."""
    return ModelSettings(
        name="fraud",
        implementation=SKLearnModel,
        max_batch_size=256,
        max_batch_time=0.01,
        parameters=ModelParameters(uri=str(model_file())),
    )


async def serve() -> None:
    """Until SIGTERM."""
    await MLServer(server_settings(given_port())).start([model_settings()])


if __name__ == "__main__":
    uvloop.install()  # as its own command does
    asyncio.run(serve())
