"""One request before the load: nobody there, a wrong request, or a first answer."""

import http.client
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tailproof.core.clock import monotonic
from tailproof.core.errors import ConfigError
from tailproof.load import preflight, target
from tailproof.load.target import Target

BODY = b'{"detail": "amount must be   positive"}'


class Scripted(BaseHTTPRequestHandler):
    """Answers with the status in the path; /hang: never; /break: hangs up."""

    protocol_version = "HTTP/1.1"
    hung = threading.Event()
    body = BODY

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        name = self.path.strip("/")
        if name == "hang":
            self.hung.wait(10.0)
        if name in ("hang", "break"):
            self.close_connection = True
            return
        body = self.body
        self.send_response(int(name))
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Cold", "1")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing: the tests look at the answers."""


@pytest.fixture
def port() -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Scripted)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server.server_address[1]
    Scripted.hung.set()
    server.shutdown()
    thread.join()
    server.server_close()
    Scripted.hung.clear()


def at(port: int, path: str) -> Target:
    return target.build(f"http://127.0.0.1:{port}/{path}", [b"{}"])


@pytest.mark.parametrize("status", [200, 429, 500, 503])
def test_the_first_answer_comes_back_good_or_not(port: int, status: int) -> None:
    answer = preflight.check(at(port, str(status)), timeout=5.0)

    assert answer is not None
    assert answer.status == status
    assert answer.headers["x-cold"] == "1"
    assert 0.0 < answer.connect < 5.0
    assert 0.0 < answer.seconds < 5.0


@pytest.mark.parametrize("status", [400, 401, 404, 405, 415, 422])
def test_a_request_that_is_wrong_is_told_in_the_services_words(port: int, status: int) -> None:
    told = f"the first request was answered {status}: .*amount must be positive"
    with pytest.raises(ConfigError, match=told):
        preflight.check(at(port, str(status)), timeout=5.0)


@pytest.mark.parametrize("path", ["hang", "break"])
def test_no_answer_is_for_the_load_test_to_find_out_about(port: int, path: str) -> None:
    assert preflight.check(at(port, path), timeout=0.3) is None


def test_nobody_there(free_port: int) -> None:
    with pytest.raises(ConfigError, match=r"nobody answers there .*is the service running"):
        preflight.check(at(free_port, "x"), timeout=5.0)


@pytest.mark.parametrize("path", ["drip", "drip-head", "endless"])
def test_no_answer_takes_longer_than_its_time(path: str) -> None:
    """A byte now and then, or bytes without end: neither holds us, nor fills memory."""
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000000000\r\n\r\n"
    beginning = {"drip": head, "drip-head": b"HTTP/1.1 200 OK\r\n", "endless": head}[path]
    piece, pause = (b"x" * 65536, 0.0) if path == "endless" else (b"x", 0.02)
    over = threading.Event()

    def serve(listener: socket.socket) -> None:
        with listener.accept()[0] as client, suppress(OSError):
            client.sendall(beginning)
            while not over.wait(pause):
                client.sendall(piece)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        begin = monotonic()
        with pytest.raises((OSError, http.client.HTTPException)):
            preflight.ask(at(listener.getsockname()[1], path), timeout=0.5)
        over.set()
        thread.join()

    assert monotonic() - begin < 3.0


def test_control_characters_of_a_refusal_do_not_reach_the_terminal(port: int) -> None:
    Scripted.body = b'{"detail": "\x1b]0;owned\x07 no"}'
    try:
        with pytest.raises(ConfigError) as caught:
            preflight.check(at(port, "400"), timeout=5.0)
    finally:
        Scripted.body = BODY

    assert "\x1b" not in str(caught.value)
    assert "owned" in str(caught.value)
