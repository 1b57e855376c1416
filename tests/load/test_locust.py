"""Locust files: what the listener writes down, what is read from it, and Locust itself where it
is installed."""

import asyncio
import importlib.util
import json
import math
import os
import sys
import textwrap
from base64 import b64encode
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tailproof.core import recording as codes
from tailproof.core.errors import ConfigError
from tailproof.load import locust, locust_listener
from tailproof.load.locust import LocustRun, read, run
from tailproof.load.locust_listener import Recorder, register

from ..blackbox.server import Server, free_port

HOST = "http://target:8000"
EXAMPLE = Path(__file__).parents[2] / "examples" / "locustfile.py"
needs_locust = pytest.mark.skipif(
    importlib.util.find_spec("locust") is None, reason="Locust is not installed"
)


# --- the listener, told what Locust tells it


class Hook:
    """One of Locust's events."""

    def __init__(self) -> None:
        self.listeners: list[Callable[..., None]] = []

    def add_listener(self, listener: Callable[..., None]) -> None:
        self.listeners.append(listener)

    def fire(self, **told: Any) -> None:
        for listener in self.listeners:
            listener(**told)


def locust_events() -> SimpleNamespace:
    names = ("request", "test_start", "test_stopping", "test_stop", "quitting", "quit")
    return SimpleNamespace(**{name: Hook() for name in names})


def answer(status: int, body: Any = b"", kind: str | None = None, **more: Any) -> SimpleNamespace:
    headers = {} if kind is None else {"content-type": kind}
    request = SimpleNamespace(body=body, headers=headers)
    return SimpleNamespace(status_code=status, request=request, **more)


def told(response: Any, **more: Any) -> dict[str, Any]:
    """What Locust's clients say about a request."""
    found = {
        "request_type": "POST",
        "name": "/predict",
        "response_time": 12.5,
        "response_length": 40,
        "response": response,
        "exception": None,
        "context": {},
        "start_time": 1000.25,
        "url": f"{HOST}/predict",
    }
    return {**found, **more}


def written(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def test_the_listener_writes_every_request_and_the_marks(tmp_path: Path) -> None:
    events, path = locust_events(), tmp_path / "requests.jsonl"
    register(events, str(path))

    events.test_start.fire(environment=None)
    events.request.fire(**told(answer(200, b'{"a": 1}', "application/json")))
    events.test_stopping.fire(environment=None)
    events.quitting.fire(environment=None)

    start, asked, stop = written(path)
    assert start["event"] == "start"
    assert stop["event"] == "stop"
    assert asked == {
        "start": 1000.25,
        "seconds": 0.0125,
        "method": "POST",
        "url": f"{HOST}/predict",
        "status": 200,
        "length": 40,
        "content_type": "application/json",
        "body": '{"a": 1}',
    }


def listened(tmp_path: Path, **event: Any) -> dict[str, Any]:
    recorder = Recorder(str(tmp_path / "one"), clock=lambda: 2000.0)
    recorder.request(**event)
    recorder.flush()
    return written(tmp_path / "one")[-1]


@pytest.mark.parametrize(
    ("body", "expected", "is_base64"),
    [
        (None, "", False),
        ("größe", "größe", False),
        (b"\xff\x00", b64encode(b"\xff\x00").decode(), True),
        (iter([b"a"]), None, False),
    ],
)
def test_bodies_as_the_clients_hold_them(
    tmp_path: Path, body: Any, expected: str | None, is_base64: bool
) -> None:
    found = listened(tmp_path, **told(answer(200, body)))
    assert (found.get("body"), found.get("is_base64", False)) == (expected, is_base64)


def test_the_other_clients_request_and_the_first_of_a_redirect(tmp_path: Path) -> None:
    fast = SimpleNamespace(payload="fast", headers={})
    response = SimpleNamespace(status_code=200, request=fast, history=[])
    assert listened(tmp_path, **told(response))["body"] == "fast"
    redirected = answer(200, b"", history=[answer(307, b"first")])
    assert listened(tmp_path, **told(redirected))["body"] == "first"


def test_an_error_and_a_missing_start(tmp_path: Path) -> None:
    found = listened(
        tmp_path,
        **told(None, exception=ConnectionRefusedError("refused"), start_time=None),
    )
    assert found["start"] == 2000.0 - 0.0125
    assert found["failed"]
    assert found["network"]
    assert found["error"] == "ConnectionRefusedError: refused"
    assert "status" not in found


def test_a_users_check_does_not_hide_a_lost_connection(tmp_path: Path) -> None:
    response = answer(0, b"", error=ConnectionRefusedError("refused"))
    found = listened(tmp_path, **told(response, exception=ValueError("not liked")))
    assert found["failed"]
    assert found["network"]
    assert found["error"] == "ConnectionRefusedError: refused"
    found = listened(tmp_path, **told(response, exception=None))
    assert "failed" not in found
    assert found["error"] == "ConnectionRefusedError: refused"


def test_bodies_beyond_the_bound_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locust_listener, "MAX_BODY_BYTES", 5)
    recorder = Recorder(str(tmp_path / "one"))
    for body in (b"1234", b"56"):
        recorder.request(**told(answer(200, body)))
    recorder.flush()
    assert [each.get("body") for each in written(tmp_path / "one")] == ["1234", None]


def test_two_processes_may_write_and_nothing_waits_for_the_end(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    one, other = Recorder(str(path)), Recorder(str(path))
    for _ in range(locust_listener.FLUSH):
        one.request(**told(answer(200)))
        other.request(**told(answer(500)))
    statuses = [each["status"] for each in written(path)]
    assert statuses.count(200) == statuses.count(500) == locust_listener.FLUSH


# --- reading


def line(start: float, seconds: float = 0.01, **more: Any) -> bytes:
    found = {"start": start, "seconds": seconds, "method": "POST", "url": f"{HOST}/predict"}
    found |= {"status": 200, "length": 7, "body": '{"a": 1}', "content_type": "application/json"}
    return json.dumps({**found, **more}).encode()


def mark(event: str, time: float) -> bytes:
    return json.dumps({"event": event, "time": time}).encode()


def read_all(*lines: bytes) -> LocustRun:
    return read(lines, HOST, users=3, run_time=10.0)


def test_a_run_is_read_in_order_of_its_starts() -> None:
    found = read_all(
        mark("start", 100.0),
        line(101.0, 2.0, body="[1, 2]"),
        line(100.5, 0.25),
        line(109.0, 3.0),
        mark("stop", 110.0),
        line(110.5, 0.1),
    )

    requests = found.requests
    assert requests.intended.tolist() == [0.5, 1.0, 9.0, 10.5]
    assert np.array_equal(requests.sent, requests.intended)
    assert requests.last.tolist() == [0.75, 3.0, 12.0, 10.6]
    assert requests.payload.tolist() == [0, 1, 0, 0]
    assert requests.sent_bytes.tolist() == [8, 6, 8, 8]
    assert requests.received_bytes.tolist() == [7] * 4
    assert found.seconds == 10.0
    assert len(found.measured) == 3
    assert found.rate == pytest.approx(0.3)
    assert found.achieved == pytest.approx(0.2), "one answer came after the end"
    assert found.users == 3
    assert [found.percentile(percent) for percent in (1, 34, 100)] == [0.25, 2.0, 3.0]
    assert "closed loop" in found.warnings[0]


@pytest.mark.parametrize(
    ("more", "status"),
    [
        ({}, 200),
        ({"status": 503, "failed": True}, 503),
        ({"status": 404}, 404),
        ({"failed": True, "error": "CatchResponseError: wrong score"}, codes.REJECTED),
        ({"failed": True, "error": "ValueError: timed out"}, codes.REJECTED),
        ({"failed": True, "network": True, "error": "ConnectionResetError: reset"}, codes.LOST),
        ({"status": 0, "failed": True, "error": "ConnectionRefusedError: x"}, codes.NOT_CONNECTED),
        ({"status": 0, "failed": True, "error": "ReadTimeout: ..."}, codes.TIMED_OUT),
        ({"status": 0, "failed": True, "error": "HTTPConnectionClosed"}, codes.LOST),
    ],
)
def test_errors_are_misses_never_fast_answers(more: dict[str, Any], status: int) -> None:
    found = read_all(line(1.0, **more), line(2.0))

    assert found.requests.status.tolist() == [status, 200]
    assert math.isinf(found.percentile(100)) == (status != 200)
    assert found.percentile(50) == pytest.approx(0.01)


def test_the_mix_can_be_sent_again() -> None:
    found = read_all(
        line(1.0, body="a", url=f"{HOST}/other?x=1", method="PUT", content_type=None),
        line(2.0, body="[1, 2]"),
        line(3.0, body="[3]"),
        line(4.0, body="[1, 2]"),
        line(5.0, body=None),
        line(6.0, url="http://elsewhere/predict"),
        line(7.0, body=b64encode(b"\xff").decode(), is_base64=True, content_type="image/png"),
    )

    first, second, third = found.payloads()
    assert (first.method, first.path) == ("POST", "/predict")
    assert first.payloads.bodies == (b"[1, 2]", b"[3]")
    assert first.payloads.rows == (2, 1)
    assert first.payloads.content_type == "application/json"
    assert (second.method, second.path, second.payloads.bodies) == ("PUT", "/other?x=1", (b"a",))
    assert third.payloads.bodies == (b"\xff",)
    assert found.requests.payload.tolist() == [2, 0, 1, 0, -1, -1, 3]
    assert any(warning.startswith("2 requests cannot be sent again") for warning in found.warnings)


def test_more_bodies_than_the_bound_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locust, "MAX_BODIES", 2)
    found = read_all(*(line(float(n), body=str(n)) for n in (1, 2, 3)), line(4.0, body="1"))
    assert found.requests.payload.tolist() == [0, 1, -1, 0]


def test_what_is_odd_is_told() -> None:
    grpc = line(1.0, url="", status=0, method="grpc", content_type=None)
    found = read_all(grpc, line(2.0, status=404))
    assert len(found.requests) == 1
    assert any("no HTTP requests" in warning for warning in found.warnings)
    assert any("1 answers that the Locust file accepts" in warning for warning in found.warnings)
    with pytest.raises(ConfigError, match="sent no HTTP request"):
        read_all(grpc)
    with pytest.raises(ConfigError, match="before the end"):
        read_all(mark("start", 1.0), mark("stop", 2.0), line(3.0))
    with pytest.raises(ConfigError, match="repeat"):
        read_all(line(1.0, body=None)).payloads()
    with pytest.raises(ValueError, match="percent"):
        found.percentile(0)


# --- the process: a stand-in for Locust that does what its locustfile says

STAND_IN = """
import sys
import runpy
from types import SimpleNamespace

class Hook(list):
    add_listener = list.append
    def fire(self, **told):
        for listener in self:
            listener(**told)

names = ("request", "test_start", "test_stopping", "test_stop", "quitting", "quit")
events = SimpleNamespace(**{name: Hook() for name in names})
"""
STAND_IN_MAIN = """
import argparse, json, runpy
import locust
parser = argparse.ArgumentParser()
for flag in ("-f", "--host", "--users", "--spawn-rate", "--run-time", "--stop-timeout",
             "--exit-code-on-error", "--json-file", "--loglevel"):
    parser.add_argument(flag, required=True)
parser.add_argument("--headless", action="store_true", required=True)
parser.add_argument("--only-summary", action="store_true")
options = parser.parse_args()
user, listener = options.f.split(",")
runpy.run_path(listener)
asked = runpy.run_path(user, {"options": options}).get("num_requests", 1)
locust.events.quitting.fire()
with open(options.json_file, "w") as file:
    json.dump([{"num_requests": asked}], file)
"""


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package `locust` that this process and its children find first; returns a locustfile."""
    package = tmp_path / "packages" / "locust"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(STAND_IN)
    (package / "__main__.py").write_text(STAND_IN_MAIN)
    kept = sys.modules.pop("locust", None)
    monkeypatch.syspath_prepend(str(package.parent))
    monkeypatch.setenv("PYTHONPATH", str(package.parent), prepend=os.pathsep)
    yield tmp_path / "locustfile.py"
    if kept is not None:
        sys.modules["locust"] = kept


ASKS = """
from locust import events
assert (options.host, options.users, options.spawn_rate) == ("http://target:8000", "4", "2")
assert (options.run_time, options.exit_code_on_error) == ("3s", "0")
for start in (1.0, 2.0):
    events.request.fire(request_type="GET", response_time=5.0, url=options.host + "/x",
                        start_time=start, response=None, exception=None, response_length=0)
"""


def test_locust_is_run_beside_the_listener(stand_in: Path) -> None:
    stand_in.write_text(ASKS + "num_requests = 2")

    found = run(stand_in, HOST, users=4, spawn_rate=2.0, run_time=3.0)

    assert len(found.requests) == 2
    assert found.seconds == 3.0, "without a mark, the time that was asked for"
    assert not any("counts" in warning for warning in found.warnings)


def test_a_count_that_differs_is_told(stand_in: Path) -> None:
    stand_in.write_text(ASKS + "num_requests = 3")
    found = run(stand_in, HOST, 4, 2.0, 3.0)
    assert found.warnings[-1] == "Locust counts 3 requests, its listener saw 2"


def test_a_file_that_does_not_run_gives_locusts_last_words(stand_in: Path) -> None:
    stand_in.write_text("raise ImportError('no module named shop')")
    with pytest.raises(ConfigError, match=r"ended with code 1: .*no module named shop"):
        run(stand_in, HOST, 4, 2.0, 3.0)


def test_a_locust_that_does_not_end_is_ended(
    stand_in: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(locust, "STOP_TIMEOUT", 1)
    monkeypatch.setattr(locust, "START_TIMEOUT", 0.0)
    stand_in.write_text(
        textwrap.dedent(f"""
            import os, signal, time
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            open({str(tmp_path / "pid")!r}, "w").write(str(os.getpid()))
            time.sleep(600)
        """)
    )
    with pytest.raises(ConfigError, match="did not end within"):
        run(stand_in, HOST, 1, 10.0, 0.1)
    pid = int((tmp_path / "pid").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_what_is_missing_is_named(stand_in: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        run(stand_in, HOST, 1, 1.0, 1.0)
    stand_in.write_text("")
    for values, flag in (((0, 1.0, 1.0), "--users"), ((1, 0.0, 1.0), "--spawn-rate")):
        with pytest.raises(ConfigError, match=flag):
            run(stand_in, HOST, *values)
    with pytest.raises(ConfigError, match="sent no HTTP request"):
        run(stand_in, HOST, 1, 1.0, 1.0)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"pip install 'tailproof\[locust\]'"):
        run(stand_in, HOST, 1, 1.0, 1.0)


# --- Locust itself


@needs_locust
def test_the_example_against_our_server(tmp_path: Path) -> None:
    server = Server(tmp_path, "demo:fraud")
    try:
        asyncio.run(server.until_ready())
        found = run(EXAMPLE, f"http://127.0.0.1:{server.port}", 4, 4.0, 3.0)
    finally:
        server.stop()

    answered = [each for each in server.access_records() if each["http.route"] == "/predict"]
    assert len(found.requests) == len(answered), "every request was written down"
    assert found.requests.good.all()
    assert 2.0 < found.seconds < 4.0
    assert 0 < found.percentile(50) <= found.percentile(95) < 3.0
    (route,) = found.payloads()
    assert (route.method, route.path) == ("POST", "/predict")
    assert max(route.payloads.rows) > 1
    assert sum(each["rows"] for each in answered) == sum(
        route.payloads.rows[place] for place in found.requests.payload
    )


PLAIN = """
from locust import HttpUser, constant, task

class Plain(HttpUser):
    wait_time = constant(0.05)

    @task
    def all_kinds(self):
        self.client.post("/predict", json={"amount": 5, "channel": "web", "age": 30})
        self.client.post("/predict", data=b"{", headers={"content-type": "application/json"})
        with self.client.get("/health", catch_response=True) as answer:
            answer.failure("not liked")
        with self.client.get("/nowhere", catch_response=True) as answer:
            answer.success()
"""


@needs_locust
def test_the_other_client_with_errors_and_checks(tmp_path: Path) -> None:
    file = tmp_path / "plain.py"
    file.write_text(PLAIN)
    server = Server(tmp_path, "demo:fraud")
    try:
        asyncio.run(server.until_ready())
        found = run(file, f"http://127.0.0.1:{server.port}", 1, 1.0, 2.0)
    finally:
        server.stop()
    told = run_of_nobody(file)

    assert {200, 400, codes.REJECTED, 404} == set(found.requests.status.tolist())
    assert {(route.method, route.path) for route in found.payloads()} == {
        ("POST", "/predict"),
        ("GET", "/health"),
        ("GET", "/nowhere"),
    }
    assert any("accepts are not 2xx" in warning for warning in found.warnings)
    assert set(told.requests.status.tolist()) == {codes.NOT_CONNECTED}


def run_of_nobody(file: Path) -> LocustRun:
    """Against a port where nobody listens."""
    return run(file, f"http://127.0.0.1:{free_port()}", 1, 1.0, 1.0)
