"""The test client's own parser and connection, against bytes whose meaning is known."""

import asyncio

import pytest

from .http_client import BadAnswer, Connection, NoAnswer, Refused, ask, encode, parse, run
from .server import free_port

LENGTH = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-A: 1\r\n\r\nhello"
CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2;ext=1\r\nlo\r\n0\r\n\r\n"
)
CONTINUED = b"HTTP/1.1 100 Continue\r\n\r\n" + LENGTH


@pytest.mark.parametrize("data", [LENGTH, CHUNKED, CONTINUED], ids=["length", "chunked", "100"])
def test_an_answer_is_complete_at_its_last_byte_and_not_before(data: bytes) -> None:
    for size in range(len(data)):
        assert parse(data[:size], ended=False) is None
        assert parse(data[:size], ended=True) is None
    message = parse(data + b"HTTP/1.1 ", ended=False)
    assert message is not None
    assert (message.status, message.body, message.num_bytes) == (200, b"hello", len(data))


def test_without_a_length_the_end_of_the_connection_completes_the_body() -> None:
    data = b"HTTP/1.1 200 OK\r\n\r\nhello"
    assert parse(data, ended=False) is None
    message = parse(data, ended=True)
    assert message is not None
    assert message.body == b"hello"


@pytest.mark.parametrize("status", [204, 304])
def test_some_statuses_have_no_body(status: int) -> None:
    message = parse(b"HTTP/1.1 %d X\r\n\r\nHTTP/1.1" % status, ended=False)
    assert message is not None
    assert message.body == b""


def test_the_answer_to_head_has_no_body() -> None:
    message = parse(LENGTH[:-5], ended=False, without_body=True)
    assert message is not None
    assert message.body == b""


def test_header_names_are_lowered_and_repeats_joined() -> None:
    message = parse(b"HTTP/1.1 204 X\r\nA: 1\r\na: 2\r\n\r\n", ended=False)
    assert message is not None
    assert message.headers == {"a": "1, 2"}


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.0 200 OK\r\n\r\n",
        b"<html>\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabcd",
    ],
    ids=["version", "html", "header", "chunk"],
)
def test_what_is_not_an_answer_is_said_so(data: bytes) -> None:
    with pytest.raises(BadAnswer):
        parse(data, ended=False)


def test_a_request_is_encoded_with_its_length() -> None:
    assert encode("POST", "/p", b"{}", [("A", "b")]) == (
        b"POST /p HTTP/1.1\r\nHost: 127.0.0.1\r\nA: b\r\nContent-Length: 2\r\n\r\n{}"
    )


Seen = asyncio.Queue[bytes]


async def _listen(port: int, answer: bytes, seen: Seen) -> asyncio.Server:
    """A server that answers every read with the same bytes, and tells what it read."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                seen.put_nowait(data)
                writer.write(answer)
        except ConnectionResetError:
            seen.put_nowait(b"reset")
        else:
            seen.put_nowait(b"closed")
        writer.close()

    return await asyncio.start_server(serve, "127.0.0.1", port)


def test_a_kept_connection_answers_twice_with_stamps_in_order() -> None:
    async def scenario() -> None:
        port = free_port()
        async with await _listen(port, LENGTH, Seen()):
            connection = await Connection.open(port)
            for _ in range(2):
                answer = await connection.request("GET", "/")
                assert answer.body == b"hello"
                assert answer.sent <= answer.first_byte <= answer.last
            assert connection.reusable
            await connection.close()

    run(scenario())


def test_a_second_answer_is_seen_as_unsolicited() -> None:
    async def scenario() -> None:
        port = free_port()
        async with await _listen(port, LENGTH + LENGTH, Seen()):
            connection = await Connection.open(port)
            await connection.request("GET", "/")
            assert connection.unsolicited == LENGTH
            assert not connection.reusable
            await connection.close()

    run(scenario())


@pytest.mark.parametrize("reset", [True, False], ids=["reset", "close"])
def test_the_server_can_tell_a_reset_from_a_close(reset: bool) -> None:
    async def scenario() -> None:
        port, seen = free_port(), Seen()
        async with await _listen(port, b"", seen):
            connection = await Connection.open(port)
            connection.send(b"half a requ")
            assert await seen.get() == b"half a requ"
            await (connection.reset() if reset else connection.close())
            assert await seen.get() == (b"reset" if reset else b"closed")
            with pytest.raises(NoAnswer):
                connection.send(b"more")

    run(scenario())


def test_half_an_answer_and_silence_are_no_answer() -> None:
    async def scenario() -> None:
        port = free_port()
        async with await _listen(port, LENGTH[:-1], Seen()):
            connection = await Connection.open(port)
            connection.send(encode("GET", "/"))
            with pytest.raises(NoAnswer, match="no answer in"):
                await connection.answer(patience=0.05)
            await connection.close()

    run(scenario())


def test_nobody_listening_is_refused() -> None:
    with pytest.raises(Refused):
        run(ask(free_port(), "GET", "/"))
