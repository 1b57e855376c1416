"""Pages of servers that drip, flood, break off or say too much: read within time and size."""

import http.client
import itertools
import socket
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

import pytest

from tailproof.core.clock import monotonic
from tailproof.load import pages

OK = b"HTTP/1.1 200 OK\r\n"
SECONDS = 0.4
MOST = 1000


@contextmanager
def saying(pieces: Iterable[bytes], pause: float = 0.0) -> Iterator[tuple[str, str, int]]:
    """A server that answers the first request with these pieces, a pause after each, and closes."""
    over = threading.Event()

    def answer() -> None:
        connection, _ = listener.accept()
        with connection, suppress(OSError):
            connection.recv(4096)
            for piece in pieces:
                connection.sendall(piece)
                if over.wait(pause):
                    return

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer)
        thread.start()
        try:
            yield "http", "127.0.0.1", listener.getsockname()[1]
        finally:
            over.set()
            thread.join()


@pytest.mark.parametrize(
    "head",
    [
        OK + b"Content-Length: 5\r\n\r\nhello",
        OK + b"Content-Length: 5\r\nConnection: close\r\n\r\nhello",
        OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n",
        OK + b"\r\nhello",
        b"HTTP/1.1 100 Continue\r\n\r\n" + OK + b"Content-Length: 5\r\n\r\nhello",
    ],
)
def test_a_page_is_read_however_its_end_is_told(head: bytes) -> None:
    with saying([head]) as origin:
        assert pages.get(origin, "/x", seconds=5.0, most=MOST) == (200, b"hello")


def test_a_slow_page_is_read_while_there_is_time() -> None:
    with saying([OK, b"Content-Length: 2\r\n\r\n", b"o", b"k"], pause=0.02) as origin:
        assert pages.get(origin, "/x", seconds=5.0, most=MOST) == (200, b"ok")


@pytest.mark.parametrize(
    ("start", "drop"),
    [
        (OK + b"Content-Length: 100000\r\n\r\n", b"x"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n0\r\n", b"t: x\r\n"),
        (OK + b"X: ", b"x"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        (b"", b""),
    ],
)
def test_a_page_that_drips_is_given_up_in_time(start: bytes, drop: bytes) -> None:
    began = monotonic()
    drops = itertools.chain([start], itertools.repeat(drop))
    with saying(drops, pause=0.02) as origin, pytest.raises(TimeoutError):
        pages.get(origin, "/x", seconds=SECONDS, most=10**6)

    assert SECONDS * 0.9 < monotonic() - began < SECONDS + 1.0


@pytest.mark.parametrize("length", [b"", b"Content-Length: %d\r\n"])
def test_a_page_may_be_as_large_as_the_limit_and_no_larger(length: bytes) -> None:
    def page(num: int) -> bytes:
        return OK + (length % num if length else b"") + b"\r\n" + b"x" * num

    with saying([page(MOST)]) as origin:
        assert pages.get(origin, "/x", seconds=5.0, most=MOST) == (200, b"x" * MOST)
    with saying([page(MOST + 1)]) as origin, pytest.raises(OSError, match="larger than 1000B"):
        pages.get(origin, "/x", seconds=5.0, most=MOST)


def test_half_a_page_is_no_page() -> None:
    with (
        saying([OK + b"Content-Length: 5\r\n\r\nhell"]) as origin,
        pytest.raises(http.client.IncompleteRead),
    ):
        pages.get(origin, "/x", seconds=5.0, most=MOST)
