"""The least that HTTP allows: one fixed answer to every request, to measure clients against.

python benchmarks/null_server.py --port 8000
"""

import argparse
import asyncio
from typing import Any

import uvloop

BODY = b'{"score": 0.123456789012345, "model_alias": null, "model_version": "1"}'
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (
    len(BODY),
    BODY,
)


class NullProtocol(asyncio.Protocol):
    """Answers each read that completes a request; sound for clients that do not pipeline."""

    __slots__ = ("_buffer", "_transport")

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._buffer = b""

    def data_received(self, data: bytes) -> None:
        data = self._buffer + data if self._buffer else data
        head_end = data.find(b"\r\n\r\n")
        at = data.find(b"Content-Length: ")
        length = int(data[at + 16 : data.find(b"\r\n", at)]) if 0 <= at < head_end else 0
        if head_end < 0 or len(data) < head_end + 4 + length:
            self._buffer = data
            return
        self._buffer = b""
        self._transport.write(ANSWER)


async def serve(port: int) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(NullProtocol, "127.0.0.1", port, backlog=4096)
    await server.serve_forever()


if __name__ == "__main__":
    options = argparse.ArgumentParser(description="one fixed answer to every request")
    options.add_argument("--port", type=int, default=8000)
    uvloop.run(serve(options.parse_args().port))
