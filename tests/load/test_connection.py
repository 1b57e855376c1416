"""Answers as bytes: whatever the pieces they come in, they are read the same."""

import tracemalloc
from typing import Any

import pytest

from tailproof.core.recording import LOST, NOT_HTTP
from tailproof.load.connection import MAX_HEAD, MAX_MARK, MAX_TIMING, Connection, durations

PLAIN = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"


class Heard:
    """An owner that remembers, and the transport of its connection."""

    def __init__(self, *, bodyless: bool = False) -> None:
        self.answers: list[tuple[int | None, int, int]] = []
        self.ends: list[tuple[int | None, int]] = []
        self.aborted = False
        self.connection = Connection(self, 7, 0.0, bodyless=bodyless)
        self.connection.connection_made(self)
        self.connection.send(3, b"request")

    def feed(self, data: bytes, size: int) -> None:
        """As a socket would hand it over; nothing comes after an abort."""
        for start in range(0, len(data), size):
            if not self.aborted:
                self.connection.data_received(data[start : start + size])

    def close(self) -> None:
        if not self.aborted:
            self.connection.eof_received()
        self.connection.connection_lost(None)

    # the owner

    def connected(self, connection: Connection) -> None:
        pass

    def written(self, connection: Connection, at: float) -> None:
        pass

    def answered(self, connection: Connection, at: float) -> None:
        self.answers.append((connection.request_id, connection.status, connection.received))
        connection.done(at)

    def lost(self, connection: Connection, status: int, at: float) -> None:
        self.ends.append((connection.request_id, status))

    # the transport

    def get_extra_info(self, name: str) -> Any:
        return self if name == "ssl_object" else None

    def set_write_buffer_limits(self, high: int, low: int) -> None:
        pass

    def write(self, data: bytes) -> None:
        pass

    def abort(self) -> None:
        self.aborted = True


CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, Chunked\r\n\r\n"
ANSWERS = {
    "length": (PLAIN, 200, True),
    "nothing": (b"HTTP/1.1 429 Too Many\r\ncontent-LENGTH:0\r\n\r\n", 429, True),
    "same length twice": (
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nhi",
        200,
        True,
    ),
    "chunks": (CHUNKED + b"5\r\nhello\r\n00a;x=y\r\n0123456789\r\n0\r\n\r\n", 200, True),
    "trailers": (CHUNKED + b"1\r\na\r\n0\r\nX-Sum: 1\r\nY: 2\r\n\r\n", 200, True),
    "chunks and a length": (
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        200,
        True,
    ),
    "204": (b"HTTP/1.1 204 No Content\r\n\r\n", 204, True),
    "304 with a length": (b"HTTP/1.1 304 Same\r\nContent-Length: 99\r\n\r\n", 304, True),
    "hints first": (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\nA: b\r\n\r\n" + PLAIN,
        200,
        True,
    ),
    "no reason": (b"HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n", 200, True),
    "close": (b"HTTP/1.1 200 OK\r\nConnection: x, Close\r\nContent-Length: 1\r\n\r\na", 200, False),
    "1.0": (b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\na", 200, False),
    "1.0 kept": (
        b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 1\r\n\r\na",
        200,
        True,
    ),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_is_the_same_in_whatever_pieces(name: str) -> None:
    data, status, stays = ANSWERS[name]
    for size in range(1, len(data) + 1):
        heard = Heard()

        heard.feed(data, size)

        assert heard.answers == [(3, status, len(data))], size
        assert heard.connection.reusable == stays
        assert heard.aborted != stays


@pytest.mark.parametrize("name", sorted(ANSWERS))
def test_an_answer_that_is_cut_off_is_lost(name: str) -> None:
    data, _, _ = ANSWERS[name]
    for length in range(len(data)):
        heard = Heard()

        heard.feed(data[:length], 7)
        heard.close()

        assert (heard.answers, heard.ends) == ([], [(3, LOST)]), length


def test_a_body_without_a_length_ends_with_its_connection() -> None:
    data = b"HTTP/1.1 200 OK\r\n\r\nas long as it takes"
    heard = Heard()

    heard.feed(data, 6)
    assert heard.answers == []
    heard.close()

    assert heard.answers == [(3, 200, len(data))]
    assert heard.ends == [(None, LOST)]
    assert not heard.connection.reusable


def test_a_body_without_a_length_that_is_reset_is_lost() -> None:
    heard = Heard()

    heard.feed(b"HTTP/1.1 200 OK\r\n\r\nas long as", 6)
    heard.connection.connection_lost(ConnectionResetError())

    assert (heard.answers, heard.ends) == ([], [(3, LOST)])


def test_the_answer_to_head_has_no_body() -> None:
    heard = Heard(bodyless=True)

    heard.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", 8)

    assert [status for _, status, _ in heard.answers] == [200]
    assert heard.connection.reusable


@pytest.mark.parametrize(
    "data",
    [
        *(b"garbage", b"\x16\x03\x01\x02", b"HTTP/2 200\r\n\r\n", b"http/1.1 200 OK\r\n\r\n"),
        *(b"HTTP/1.1 20 OK\r\n\r\n", b"HTTP/1.1 2000 OK\r\n\r\n", b"HTTP/1.1 600 X\r\n\r\n"),
        b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1e3\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: \r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1, 2\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n",
        CHUNKED + b"xyz\r\n",
        CHUNKED + b"\r\n",
        CHUNKED + b"-5\r\nhello\r\n",
        CHUNKED + b"5\r\nhello!\r\n0\r\n\r\n",
        CHUNKED + b"1" * (MAX_HEAD + 1),
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * MAX_HEAD + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * (2 * MAX_HEAD),
    ],
)
@pytest.mark.parametrize("size", [997, 1 << 20])
def test_what_is_no_answer_ends_the_connection(data: bytes, size: int) -> None:
    heard = Heard()

    heard.feed(data, size)
    assert heard.aborted
    heard.close()

    assert (heard.answers, heard.ends) == ([], [(3, NOT_HTTP)])


@pytest.mark.parametrize("size", [len(PLAIN), 1 << 20])
def test_bytes_that_nobody_asked_for_end_the_connection_and_not_the_answer(size: int) -> None:
    heard = Heard()

    heard.feed(PLAIN + PLAIN, size)

    assert heard.answers == [(3, 200, len(PLAIN))]
    assert heard.aborted
    assert not heard.connection.reusable


def test_many_hints_are_read_without_end() -> None:
    data = b"HTTP/1.1 103 X\r\n\r\n" * 20_000 + PLAIN
    heard = Heard()

    heard.feed(data, 1 << 20)

    assert heard.answers == [(3, 200, len(data))]


@pytest.mark.parametrize(
    ("head", "piece"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 50000000\r\n\r\n", b"x" * 50_000),
        (CHUNKED, b"C350\r\n" + b"x" * 50_000 + b"\r\n"),
        (b"HTTP/1.1 200 OK\r\n\r\n", b"x" * 50_000),
    ],
)
def test_a_body_is_counted_and_not_kept(head: bytes, piece: bytes) -> None:
    heard = Heard()
    heard.connection.data_received(head)
    tracemalloc.start()

    for _ in range(999):
        heard.connection.data_received(piece)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert heard.connection.received == len(head) + 999 * len(piece)
    assert peak < 500_000


def test_what_the_server_tells_is_kept_as_it_came() -> None:
    head = (
        b"HTTP/1.1 200 OK\r\nserver-timing: queue;dur=1\r\nServer-Timing:infer;dur=2\r\n"
        b"X-Batch-Size: 8\r\nX-COLD: 1\r\nX-Replica: Pod-A\r\nContent-Length: 0\r\n\r\n"
    )
    heard = Heard()

    heard.feed(head, 1 << 20)

    assert heard.connection.timing == b"queue;dur=1,infer;dur=2"
    assert heard.connection.marks == (b"8", b"1", b"Pod-A")
    heard.connection.send(4, b"request")
    heard.feed(PLAIN, 1 << 20)
    assert (heard.connection.timing, heard.connection.marks) == (None, None)


def told(header: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\n" + header + b"\r\nContent-Length: 0\r\n\r\n"


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (b"r" * MAX_MARK, b"r" * MAX_MARK),
        (b"r" * (MAX_MARK + 1), b"r" * MAX_MARK),
        (b"r" * 60_000, b"r" * MAX_MARK),
    ],
)
def test_so_much_of_the_name_of_a_replica_is_kept(value: bytes, kept: bytes) -> None:
    heard = Heard()

    heard.feed(told(b"X-Replica: " + value), 1 << 20)

    assert heard.connection.marks == (None, None, kept)


def entries(num_bytes: int) -> bytes:
    """A `Server-Timing` of that size, whose last entry is `total;dur=12345`."""
    last = b",total;dur=12345"
    return b"a" * (num_bytes - len(last)) + last


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (entries(MAX_TIMING), entries(MAX_TIMING)),
        (entries(MAX_TIMING + 1), b"a" * (MAX_TIMING + 1 - len(b",total;dur=12345"))),
        (b"infer;dur=2," + b"a;dur=1," * 7500, b"infer;dur=2" + b",a;dur=1" * 62),
        (b"infer;dur=2" + b"9" * 600, b""),
        (b'infer;dur=2,a;desc="' + b", queue;dur=9" * 60 + b'"', b"infer;dur=2"),
    ],
)
def test_so_much_of_a_server_timing_is_kept_in_whole_entries(value: bytes, kept: bytes) -> None:
    heard = Heard()

    heard.feed(told(b"Server-Timing: " + value), 1 << 20)

    assert heard.connection.timing == kept


def test_only_the_first_request_of_a_connection_is_fresh() -> None:
    heard = Heard()
    assert heard.connection.fresh

    heard.feed(PLAIN, 1 << 20)

    assert not heard.connection.fresh


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (
            b"queue;dur=1.5, batch;dur=2, infer;dur=30, total;dur=33.5",
            (0.0015, 0.002, 0.03, 0.0335),
        ),
        (b"total ; dur = 7", (None, None, None, 0.007)),
        (b'infer;desc="a, queue;dur=9";dur=3, cdn-cache;desc=HIT', (None, None, 0.003, None)),
        (b'infer;dur="4"', (None, None, 0.004, None)),
        (b"infer;dur=-1, queue;dur=nan, batch, total;dur=", (None, None, None, None)),
        (b"reinfer;dur=1, my-total;dur=2", (None, None, None, None)),
        (b"", (None, None, None, None)),
    ],
)
def test_durations_of_server_timing(value: bytes, told: tuple[float | None, ...]) -> None:
    found = dict(durations(value))

    names = ("queue", "batch", "infer", "total")
    assert tuple(found.get(name) for name in names) == tuple(
        None if seconds is None else pytest.approx(seconds) for seconds in told
    )
