"""The server seen from outside: real sockets, real processes, real pages; nothing is an error."""

import http.server
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from tailproof.load import server_view
from tailproof.load.server_view import (
    LARGEST,
    LONGEST_LINE,
    Observer,
    counters,
    find,
    is_local,
    metrics_page,
    samples,
    tree,
)
from tailproof.load.target import Target

NOBODY = "192.0.2.1"
"""An address that is kept for documents."""

LISTENER = """
import os, socket, sys, time
listener = socket.create_server(("127.0.0.1", 0))
is_worker = any(os.fork() == 0 for _ in range({num_workers}))
end = time.monotonic() + {busy}
while is_worker and time.monotonic() < end:
    pass
if not is_worker:
    print(listener.getsockname()[1], flush=True)
sys.stdin.read()
"""


@contextmanager
def listening(
    num_workers: int = 0, busy: float = 0.0
) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process that listens, with children that share its socket and work for `busy` seconds."""
    code = LISTENER.format(num_workers=num_workers, busy=busy)
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        yield process, int(process.stdout.readline())
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@contextmanager
def serving(answer: Callable[[str], tuple[int, str]]) -> Iterator[int]:
    """A small HTTP server in this process; `answer(path)` gives (status, text)."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, text = answer(self.path)
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def target(port: int, host: str = "127.0.0.1") -> Target:
    return Target(f"http://{host}:{port}/predict", "http", host, port, (b"",))


# --- which process --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.8.9.1", True),
        ("localhost", True),
        ("::1", True),
        (NOBODY, False),
        ("no-such-host.invalid", False),
        ("", False),
        ("a" * 300, False),
    ],
)
def test_which_hosts_are_this_machine(host: str, expected: bool) -> None:
    assert is_local(host) == expected


def test_the_process_that_listens_is_found() -> None:
    with listening() as (process, port):
        assert find("127.0.0.1", port) == process.pid
        assert find("localhost", port) == process.pid


def test_of_a_master_and_its_workers_the_master_is_found() -> None:
    with listening(num_workers=2) as (process, port):
        assert find("127.0.0.1", port) == process.pid
        assert len(tree(process.pid)) == 3


@pytest.mark.parametrize("address", ["::", "::1"])
def test_a_listener_on_version_6_is_found(address: str) -> None:
    with socket.create_server((address, 0), family=socket.AF_INET6) as listener:
        assert find("::1", listener.getsockname()[1]) == os.getpid()


def test_a_listener_on_all_addresses_is_found_by_each() -> None:
    with socket.create_server(("0.0.0.0", 0)) as listener:
        assert find("127.0.0.1", listener.getsockname()[1]) == os.getpid()


def test_nobody_listens_or_it_is_another_machine(free_port: int, taken_port: int) -> None:
    assert find("127.0.0.1", free_port) is None
    assert find(NOBODY, taken_port) is None
    assert find("no-such-host.invalid", taken_port) is None


def test_a_listener_on_another_address_is_not_the_server() -> None:
    with socket.create_server(("127.0.0.2", 0)) as listener:
        assert find("127.0.0.1", listener.getsockname()[1]) is None


def test_a_process_that_is_gone_has_no_tree() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()

    assert tree(process.pid) == ()


# --- before and after -----------------------------------------------------------------------------


def test_the_work_of_children_counts() -> None:
    with listening(num_workers=1, busy=0.5) as (process, port):
        observer = Observer(target(port))
        before = observer.read()
        deadline = time.monotonic() + 20.0
        while sum(one.cpu for one in tree(process.pid)) < (before.cpu or 0.0) + 0.2:
            assert time.monotonic() < deadline
            time.sleep(0.02)

        found = observer.since(before, requests=10)

    assert observer.pid == process.pid
    assert found.source == "proc"
    assert found.cpu_seconds is not None
    assert found.cpu_seconds >= 0.2
    assert found.cpu_seconds_per_request == pytest.approx(found.cpu_seconds / 10)
    assert found.busy_cores is not None
    assert 0.0 < found.busy_cores <= 1.2
    assert found.resident_bytes is not None
    assert found.resident_bytes > 1 << 20


def test_the_page_is_read_where_no_process_can_be_seen() -> None:
    cpu = iter([10.0, 11.5])

    def page(path: str) -> tuple[int, str]:
        assert path == "/metrics"
        text = "process_cpu_seconds_total {}\ntailproof_batch_cpu_seconds_total{{model="
        text += '"a"}} 2\nprocess_resident_memory_bytes 5e7\n'
        return 200, text.format(next(cpu))

    with serving(page) as port:
        observer = Observer(target(port), pid=2**22 + 1)  # above the highest there can be
        found = observer.since(observer.read(), requests=3)

    assert found.source == "metrics"
    assert found.cpu_seconds == pytest.approx(1.5)
    assert found.cpu_seconds_per_request == pytest.approx(0.5)
    assert found.resident_bytes == 50_000_000


def test_a_server_that_was_replaced_has_a_clock_of_its_own() -> None:
    cpu = iter(["100", "1"])

    with serving(lambda path: (200, f"process_cpu_seconds_total {next(cpu)}\n")) as port:
        observer = Observer(target(port), pid=2**22 + 1)
        found = observer.since(observer.read(), requests=3)

    assert found.cpu_seconds is None
    assert found.busy_cores is None


def test_a_page_that_is_not_there_is_asked_for_once() -> None:
    asked: list[str] = []

    def page(path: str) -> tuple[int, str]:
        asked.append(path)
        return 404, "no"

    with serving(page) as port:
        observer = Observer(target(port), pid=2**22 + 1)
        found = observer.since(observer.read(), requests=3)

    assert found.source is None
    assert found.cpu_seconds is None
    assert asked == ["/metrics"]


def test_nobody_there_is_no_error(free_port: int) -> None:
    observer = Observer(target(free_port))

    found = observer.since(observer.read(), requests=0)

    assert (found.source, found.cpu_seconds, found.resident_bytes) == (None, None, None)
    assert metrics_page(target(free_port, "no-such-host.invalid")) is None


def test_what_is_no_http_is_no_page() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"SSH-2.0-nothing\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        assert metrics_page(target(listener.getsockname()[1])) is None
        thread.join()


# --- counters -------------------------------------------------------------------------------------

PAGE = r"""# HELP tailproof_requests_total Requests that ended.
# TYPE tailproof_requests_total counter
tailproof_requests_total{model="a",route="/predict",code="200"} 40.0
tailproof_requests_total{model="a",route="/odd}\"path",code="422"} 2.0 1700000000
tailproof_requests_received_total 43 # {trace_id="x"} 1.0
http_requests_total{method="post"} 7
bentoml_service_request_total{endpoint="p"} 5
vllm:generation_tokens_total{model_name="m"} 123.0
nv_inference_request_success{model="m"} 9
tokens_generated 77
http_request_duration_seconds_sum 1.5
http_request_duration_seconds_count 7
http_requests_created 1.7e9
http_request_size_bytes_total 9000
process_cpu_seconds_total 3.25
broken line here
not_a_number NaNN
"""


def test_the_counts_of_work_are_picked_from_a_page() -> None:
    assert counters(PAGE) == {
        "tailproof_requests_total": 42.0,
        "tailproof_requests_received_total": 43.0,
        "http_requests_total": 7.0,
        "bentoml_service_request_total": 5.0,
        "vllm:generation_tokens_total": 123.0,
        "nv_inference_request_success": 9.0,
        "tokens_generated": 77.0,
    }


def test_all_samples_can_be_read_and_the_rest_is_left_out() -> None:
    found = samples(PAGE)

    assert found["process_cpu_seconds_total"] == 3.25
    assert "not_a_number" not in found
    assert "broken" not in found


@pytest.mark.parametrize("text", ["", "\x00\xff", "{", 'a{b="c', "# TYPE x counter"])
def test_no_page_has_no_counters(text: str) -> None:
    assert counters(text) == {}


# --- pages that are no help -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "request" + "_request" * 40_000 + " 1\n",
        "request" + "_request" * 7_000 + " 1\n",
        "a{" + "x" * 4_000_000 + "\n",
        "a{" + 'b="",' * 12_000 + "\n",
        ("a{" + '"' * 60_000 + "\n") * 60,
        ("a" + " \t" * 30_000 + "\n") * 60,
        ("a " + "1" * 65_000 + "\n") * 60,
    ],
)
def test_no_page_takes_long_to_read(text: str) -> None:
    began = time.perf_counter()
    counters(text)
    assert time.perf_counter() - began < 1.0


def test_a_line_may_be_as_long_as_the_limit_and_no_longer() -> None:
    end = "_requests_total 5"
    longest = "a" * (LONGEST_LINE - len(end)) + end
    assert list(counters(longest).values()) == [5.0]
    assert counters("a" + longest) == {}


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        *(("requests_total", True), ("a:b_requests_total", True), ("request_a_b_total", True)),
        *(("requests_a1_total", False), ("requests_A_total", False), ("my requests_total", False)),
        *(("requests:a_total", False), ("subrequests_total", False), ("total", False)),
        *(
            ("a_seconds_total", False),
            ("requests_seconds_total", False),
            ("requests__total", False),
        ),
        *(("inference_count", True), ("ainference_count", False), ("a:request_success", True)),
        *(("requests", False), ("requests_total_sum", False), ("request_success_total", True)),
    ],
)
def test_which_names_count_work(name: str, counts: bool) -> None:
    assert bool(counters(f"{name} 1")) == counts


@pytest.mark.parametrize("value", ["NaN", "Inf", "-Inf", "1e400"])
def test_a_sum_that_is_no_finite_number_is_left_out(value: str) -> None:
    text = f'x_requests_total{{a="1"}} 3\nx_requests_total{{a="2"}} {value}\ny_requests_total 4\n'
    assert counters(text) == {"y_requests_total": 4.0}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        *(("5e7", 50_000_000), ("0", 0), (f"{LARGEST:.0f}", int(LARGEST))),
        *(("1e16", None), ("-1", None), ("NaN", None), ("Inf", None), ("1e400", None)),
    ],
)
def test_memory_that_nothing_can_have_is_none(value: str, expected: int | None) -> None:
    with serving(lambda path: (200, f"process_resident_memory_bytes {value}\n")) as port:
        found = Observer(target(port), pid=2**22 + 1).read()

    assert found.source == "metrics"
    assert found.resident_bytes == expected


@pytest.mark.parametrize("value", ["NaN", "Inf", "-5", "1e308"])
def test_time_that_nothing_can_have_used_is_none(value: str) -> None:
    with serving(lambda path: (200, f"process_cpu_seconds_total {value}\n")) as port:
        observer = Observer(target(port), pid=2**22 + 1)
        found = observer.since(observer.read(), requests=3)

    assert (found.cpu_seconds, found.busy_cores) == (None, None)


def test_a_page_may_be_as_large_as_the_limit_and_no_larger(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server_view, "LARGEST_PAGE", 1000)
    with serving(lambda path: (200, "#" * 1000)) as port:
        assert metrics_page(target(port)) == "#" * 1000
    with serving(lambda path: (200, "#" * 1001)) as port:
        assert metrics_page(target(port)) is None


def test_a_page_that_drips_is_given_up_and_not_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server_view, "PATIENCE", 0.3)
    asked = []
    over = threading.Event()

    def drip() -> None:
        connection, _ = listener.accept()
        asked.append(connection.recv(4096))
        with connection, suppress(OSError):
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
            while not over.wait(0.02):
                connection.sendall(b"x")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=drip)
        thread.start()
        observer = Observer(target(listener.getsockname()[1]), pid=2**22 + 1)
        began = time.perf_counter()
        found = observer.since(observer.read(), requests=3)
        seconds = time.perf_counter() - began
        over.set()
        thread.join()

    assert found.source is None
    assert len(asked) == 1
    assert 0.25 < seconds < 2.0
