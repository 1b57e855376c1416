"""What HTTP, validation and JSON alone cost: the served route without model, queue or worker.

    python benchmarks/raw_route.py --port 8000

The same HTTP library with the same settings, the same compiled validator over the raw body and the
same shape of answer as `tailproof serve demo:fraud`. The most that any server of this kind can do.
"""

import argparse
import asyncio
import contextlib
import gc
import signal
from typing import Any

import msgspec
import uvloop
from granian.constants import HTTPModes, Interfaces
from granian.server.embed import Server

from tailproof.core.errors import RequestError
from tailproof.models.demo import COLUMNS
from tailproof.models.signature import Column, Signature, Validator

FRAUD = Signature(inputs=tuple(Column(**column) for column in COLUMNS))
HEADERS = [("content-type", "application/json")]


class Answer(msgspec.Struct):
    """What /predict answers for one row."""

    score: float
    model_alias: str | None = None
    model_version: str | None = None


class RawRoute:
    """Callable by granian: validates and answers at once."""

    def __init__(self, signature: Signature) -> None:
        self._rows = Validator.compile(signature, max_rows=4096).rows
        self._encode = msgspec.json.Encoder().encode

    async def __rsgi__(self, scope: Any, proto: Any) -> None:
        """Answer one request; 422 as the real route would."""
        body = await proto()
        try:
            self._rows(body)
        except RequestError as error:
            proto.response_bytes(error.status, HEADERS, self._encode({"detail": error.detail}))
            return
        proto.response_bytes(200, HEADERS, self._encode(Answer(0.123456789012345)))


async def serve(port: int) -> None:
    """Until SIGTERM."""
    server = Server(
        RawRoute(FRAUD),
        port=port,
        interface=Interfaces.RSGI,
        http=HTTPModes.http1,
        websockets=False,
        backlog=2048,  # both as `tailproof serve` sets them
        backpressure=1024,
        log_enabled=False,
    )
    gc.collect()
    gc.freeze()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, server.stop)
    with contextlib.suppress(asyncio.CancelledError):
        await server.serve()


if __name__ == "__main__":
    options = argparse.ArgumentParser(description="HTTP, validation and JSON, and nothing else")
    options.add_argument("--port", type=int, default=8000)
    uvloop.run(serve(options.parse_args().port))
