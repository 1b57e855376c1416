"""One request before the load: nobody there, a wrong request, or a first answer."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tailproof.core.errors import ConfigError
from tailproof.load import preflight, target
from tailproof.load.target import Target


class Scripted(BaseHTTPRequestHandler):
    """Answers with the status in the path; /hang: never; /break: hangs up."""

    protocol_version = "HTTP/1.1"
    hung = threading.Event()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        name = self.path.strip("/")
        if name == "hang":
            self.hung.wait(10.0)
        if name in ("hang", "break"):
            self.close_connection = True
            return
        body = b'{"detail": "amount must be   positive"}'
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
