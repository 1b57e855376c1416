"""The null target: the same answer to everything, after the same time."""

import asyncio
import re
import subprocess
import sys
from collections.abc import Awaitable, Callable

import pytest
import uvloop

from tailproof.core.clock import monotonic
from tailproof.load.null import MAX_DELAY, MAX_SIZE, NullServer, listen, serve

GET = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"


def with_server(use: Callable[[NullServer], Awaitable[None]], delay: float, size: int = 5) -> None:
    async def session() -> None:
        server = await listen(delay=delay, size=size)
        try:
            await asyncio.wait_for(use(server), 20.0)
        finally:
            server.close()

    uvloop.run(session())


async def ask(port: int, *pieces: bytes, num_bytes: int | None = None) -> bytes:
    """What comes back to these pieces: all until the end, or the first `num_bytes`."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for piece in pieces:
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(0)
    answer = await (reader.read() if num_bytes is None else reader.readexactly(num_bytes))
    writer.close()
    await writer.wait_closed()
    return answer


@pytest.mark.parametrize("delay", [0.0, 0.002])
def test_an_answer_has_the_size_and_the_server_timing(delay: float) -> None:
    async def use(server: NullServer) -> None:
        answer = await ask(server.port, b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n")
        head, _, body = answer.partition(b"\r\n\r\n")
        told = re.search(rb"total;dur=([0-9.]+)", head)

        assert head.startswith(b"HTTP/1.1 200 OK")
        assert b"Content-Length: 5" in head
        assert b"Connection: close" in head
        assert body == b"00000"
        assert told is not None
        assert delay * 1e3 <= float(told[1]) < delay * 1e3 + 100

    with_server(use, delay)


@pytest.mark.parametrize("delay", [0.0, 0.002])
@pytest.mark.parametrize(
    ("pieces", "num_answers"),
    [
        ((GET,), 1),
        ((GET + GET + GET,), 3),
        ((b"POST / HTTP/1.1\r\nContent-Le", b"ngth: 4\r\n\r\nab", b"cd" + GET), 2),
        ((b"POST / HTTP/1.1\r\ncontent-length: 0\r\n\r\n" + GET,), 2),
    ],
)
def test_every_request_is_answered_once(
    delay: float, pieces: tuple[bytes, ...], num_answers: int
) -> None:
    last = b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n"

    async def use(server: NullServer) -> None:
        answer = await ask(server.port, *pieces, last)

        assert answer.count(b"HTTP/1.1 200 OK") == num_answers + 1

    with_server(use, delay)


@pytest.mark.parametrize(
    "request_",
    [
        *(b"nonsense\r\n\r\n", b"GET / HTTP/2\r\n\r\n", b"x" * 70_000),
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
    ],
)
def test_what_it_does_not_read_is_a_400(request_: bytes) -> None:
    async def use(server: NullServer) -> None:
        assert (await ask(server.port, request_)).startswith(b"HTTP/1.1 400")

    with_server(use, 0.0)


def test_head_is_answered_without_a_body_and_http_1_0_with_a_close() -> None:
    async def use(server: NullServer) -> None:
        head = await ask(server.port, b"HEAD / HTTP/1.1\r\nConnection: close\r\n\r\n")
        old = await ask(server.port, b"GET / HTTP/1.0\r\n\r\n")

        assert head.endswith(b"\r\n\r\n")
        assert old.endswith(b"00000")

    with_server(use, 0.0)


def test_the_delay_is_the_same_for_one_and_for_many_at_once() -> None:
    async def use(server: NullServer) -> None:
        begin = monotonic()
        await asyncio.gather(*(ask(server.port, GET, num_bytes=20) for _ in range(200)))
        seconds = monotonic() - begin

        assert 0.2 <= seconds < 1.0  # one after the other it would be 40

    with_server(use, 0.2)


def test_it_runs_as_a_process_of_its_own_until_it_is_told_to_end() -> None:
    code = (
        "from tailproof.load.null import serve; serve(ready=lambda port: print(port, flush=True))"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        port = int(process.stdout.readline())

        answer = asyncio.run(ask(port, GET, num_bytes=15))
    finally:
        process.terminate()
        process.stdout.close()
        process.wait(10.0)

    assert answer == b"HTTP/1.1 200 OK"


def test_a_port_that_is_taken_is_an_error(taken_port: int) -> None:
    async def session() -> None:
        await listen(port=taken_port, delay=0.01)

    with pytest.raises(OSError, match="in use"):
        uvloop.run(session())


@pytest.mark.parametrize(
    ("beyond", "problem"),
    [
        ({"size": MAX_SIZE + 1}, "at most 1GiB"),
        ({"size": 10**19}, "at most 1GiB"),
        ({"size": -1}, "at most 1GiB"),
        ({"delay": MAX_DELAY + 1}, "at most 86400s"),
        ({"delay": float("inf")}, "at most 86400s"),
        ({"delay": float("nan")}, "at most 86400s"),
    ],
)
def test_an_answer_that_nobody_can_give_is_an_error(beyond: dict[str, float], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        serve(**beyond)  # type: ignore[arg-type]


def test_the_longest_delay_is_none() -> None:
    async def session() -> None:
        (await listen(delay=MAX_DELAY, size=0)).close()

    uvloop.run(session())
