"""The first request against the warm ones, on real sockets."""

import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tailproof.core.errors import ConfigError
from tailproof.load import server_view
from tailproof.load.probe import probe
from tailproof.load.target import Target, build

COLD, WARM = 0.25, 0.02


class Service(ThreadingHTTPServer):
    """Answers each POST as `answer(number)` says: (status, seconds, headers)."""

    daemon_threads = True

    def __init__(self, answer: Callable[[int], tuple[int, float, dict[str, str]]]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answer = answer
        self.num_connections = 0
        self.bodies: list[bytes] = []
        self.has_metrics = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that has left is part of these tests."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body in one packet
    server: Service

    def do_POST(self) -> None:
        number = len(self.server.bodies)
        self.server.bodies.append(self.rfile.read(int(self.headers["content-length"])))
        self.server.num_connections += self.is_first
        self.is_first = False
        status, seconds, headers = self.server.answer(number)
        time.sleep(seconds)
        if status == 0:
            self.close_connection = True
            return
        self.respond(status, b'{"score": 0.5}', headers)

    is_first = True

    def do_GET(self) -> None:
        num = len(self.server.bodies)
        lines = (
            f'http_requests_total{{route="/predict"}} {num}',
            "http_request_duration_seconds_sum 3.5",
            f"process_cpu_seconds_total {num / 10}",
            "queue_rows 3",
        )
        self.respond(200 if self.server.has_metrics else 404, "\n".join(lines).encode(), {})

    def respond(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


@contextmanager
def running(
    answer: Callable[[int], tuple[int, float, dict[str, str]]], tls: ssl.SSLContext | None = None
) -> Iterator[Service]:
    service = Service(answer)
    if tls is not None:
        service.socket = tls.wrap_socket(service.socket, server_side=True)
    thread = threading.Thread(target=service.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield service
    finally:
        service.shutdown()
        thread.join()
        service.server_close()


def target_of(service: Service, *bodies: bytes, **options: object) -> Target:
    scheme = "https" if isinstance(service.socket, ssl.SSLSocket) else "http"
    url = f"{scheme}://localhost:{service.server_port}/predict"
    return build(url, bodies or (b"{}",), **options)  # type: ignore[arg-type]


def cold_then_warm(number: int) -> tuple[int, float, dict[str, str]]:
    timing = "queue;dur=0.5, infer;dur=200, total;dur=201.25"
    return 200, WARM if number else COLD, {} if number else {"X-Cold": "1", "Server-Timing": timing}


def test_the_first_is_apart_from_the_warm_ones() -> None:
    with running(cold_then_warm) as service:
        found = probe(target_of(service), 12)

    warm = found["warm_seconds"]
    assert COLD <= found["cold_seconds"] < 2 * COLD
    assert WARM <= warm["p50"] <= warm["p95"] <= warm["p99"] < COLD
    assert found["cold_warm_ratio"] == found["cold_seconds"] / warm["p50"]
    assert found["told_cold"]
    assert found["first_server_seconds"] == {"queue": 0.0005, "infer": 0.2, "total": 0.20125}
    assert found["seconds"][0] == found["cold_seconds"]
    assert len(found["seconds"]) == found["requests"] == 12
    assert (found["errors"], found["statuses"]) == (0, {"200": 12})
    assert 0 < found["connect_seconds"] < COLD


def test_a_service_that_is_never_cold_has_a_ratio_of_one() -> None:
    with running(lambda _: (200, 0.02, {})) as service:
        found = probe(target_of(service), 12)

    assert 0.5 < found["cold_warm_ratio"] < 4
    assert not found["told_cold"]
    assert found["first_server_seconds"] == {}


def test_all_requests_share_one_connection_and_come_one_by_one() -> None:
    done: list[int] = []
    with running(lambda _: (200, 0.0, {})) as service:
        probe(target_of(service, b"1", b"2", b"3"), 7, progress=done.append)

    assert service.num_connections == 1
    assert service.bodies == [b"1", b"2", b"3", b"1", b"2", b"3", b"1"]
    assert done == list(range(1, 8))


def test_few_warm_requests_do_not_resolve_a_tail() -> None:
    with running(lambda _: (200, 0.0, {})) as service:
        found = probe(target_of(service), 20)

    assert "p50" in found["warm_seconds"]["resolved"]
    assert not {"p95", "p99"} & set(found["warm_seconds"]["resolved"])
    assert found["warm_seconds"]["p99"] is not None


def test_only_counters_of_work_that_grew_are_shown() -> None:
    with running(lambda _: (200, 0.0, {})) as service:
        assert probe(target_of(service), 5)["counters"] == {"http_requests_total": 5.0}
        service.has_metrics = False
        assert probe(target_of(service), 5)["counters"] == {}


def test_errors_are_counted_and_never_fast_answers() -> None:
    with running(lambda number: (503 if number % 2 else 200, 0.0, {})) as service:
        found = probe(target_of(service), 10)

    assert (found["errors"], found["statuses"]) == (5, {"200": 5, "503": 5})
    assert found["seconds"][1::2] == [None] * 5
    assert found["warm_seconds"]["p50"] is None  # 5 of 9 warm ones are misses
    assert "p50" in found["warm_seconds"]["infinite"]
    assert found["cold_warm_ratio"] is None


def test_a_first_request_that_fails_leaves_cold_absent() -> None:
    with running(lambda number: (200 if number else 500, 0.0, {})) as service:
        found = probe(target_of(service), 5)

    assert found["cold_seconds"] is found["cold_warm_ratio"] is None
    assert found["seconds"][0] is None
    assert found["warm_seconds"]["p50"] is not None


@pytest.mark.parametrize(
    ("number", "status", "seconds", "headers", "name"),
    [
        (3, 0, 0.0, {}, "lost"),  # the connection ends instead of an answer
        (3, 200, 1.0, {}, "timed out"),
    ],
)
def test_the_next_request_goes_on_after_one_that_broke(
    number: int, status: int, seconds: float, headers: dict[str, str], name: str
) -> None:
    def answer(index: int) -> tuple[int, float, dict[str, str]]:
        return (status, seconds, headers) if index == number else (200, 0.0, {})

    with running(answer) as service:
        found = probe(target_of(service), 8, timeout=0.3)

    assert found["statuses"] == {"200": 7, name: 1}
    assert found["seconds"][number] is None
    assert service.num_connections == 2


def test_a_server_that_closes_after_each_answer_costs_no_request() -> None:
    with running(lambda _: (200, 0.0, {"Connection": "close"})) as service:
        found = probe(target_of(service), 5)

    assert found["statuses"] == {"200": 5}
    assert service.num_connections == 5


def test_nobody_listens() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    with pytest.raises(ConfigError, match=r"no answer to the first request \(Connection refused\)"):
        probe(build(f"http://127.0.0.1:{port}/predict", [b"{}"]))


def test_a_server_that_never_answers_is_named_after_three() -> None:
    with (
        running(lambda _: (0, 0.0, {})) as service,
        pytest.raises(ConfigError, match=r"no answer to the first 3 requests \(lost\)"),
    ):
        probe(target_of(service), 30)
    assert len(service.bodies) == 3


@pytest.mark.parametrize(
    "raw", [b"SSH-2.0-x\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx"]
)
def test_half_an_answer_and_no_http_are_no_answers(raw: bytes) -> None:
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.recv(1 << 16)
                connection.sendall(raw)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        port = listener.getsockname()[1]
        with pytest.raises(
            ConfigError, match=r"no answer to the first 3 requests \((not HTTP|lost)\)"
        ):
            probe(build(f"http://127.0.0.1:{port}/", [b"{}"]), 5, timeout=2.0)
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def test_one_request_is_no_probe() -> None:
    with pytest.raises(ConfigError, match="--requests = 1"):
        probe(build("http://127.0.0.1:1/", [b"{}"]), 1)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes the certificate")
def test_tls_as_the_target_says(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    wanted = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext"
    subprocess.run(
        [
            *("openssl", *wanted.split(), "subjectAltName=DNS:localhost"),
            *("-keyout", str(key), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
        timeout=30,
    )
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)

    with running(cold_then_warm, tls) as service:
        trusting = probe(target_of(service, ca_file=str(certificate)), 4)
        careless = probe(target_of(service, insecure=True), 4)
        with pytest.raises(ConfigError, match="no answer"):
            probe(target_of(service), 4)

    assert trusting["statuses"] == careless["statuses"] == {"200": 4}
    assert trusting["connect_seconds"] > 0
    assert service.num_connections == 2


@pytest.mark.parametrize("beginning", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"])
def test_a_byte_now_and_then_does_not_hold_a_probe(
    beginning: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither in the head nor in the body: the time of a request is for all of it."""
    monkeypatch.setattr(server_view, "PATIENCE", 0.1)
    over = threading.Event()

    def drip(listener: socket.socket) -> None:
        while not over.is_set():
            with suppress(OSError), listener.accept()[0] as client:
                client.sendall(beginning or b"HTTP/1.1 200 OK\r\n")
                while not over.wait(0.02):
                    client.sendall(b"x")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.05)
        thread = threading.Thread(target=drip, args=(listener,))
        thread.start()
        try:
            began = time.monotonic()
            with pytest.raises(ConfigError, match="no answer"):
                probe(build(f"http://127.0.0.1:{listener.getsockname()[1]}/", [b"{}"]), 2, 0.1)
            took = time.monotonic() - began
        finally:
            over.set()
            thread.join()

    assert took < 10.0
