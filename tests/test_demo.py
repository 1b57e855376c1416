"""The demo as a user runs it: twice in one folder, stopped in order, with nothing left over."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from tailproof import demo
from tailproof.demo import DemoFailed, Registered, Server
from tailproof.reporting.document import Document, Generator, Limit

ROOT = Path(__file__).parent.parent
PATIENCE = 120.0


def wait_for(condition: Callable[[], Any], what: str) -> Any:
    """The first true value of `condition`."""
    deadline = time.monotonic() + PATIENCE
    pause = threading.Event()
    while time.monotonic() < deadline:
        if value := condition():
            return value
        pause.wait(0.05)
    raise AssertionError(f"{what} did not happen within {PATIENCE:g} s")


def is_listening(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def get(port: int, path: str) -> tuple[int, Any]:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, json.loads(response.read())


def start(*arguments: str, cwd: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *arguments],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )


def readme_requests() -> list[tuple[Any, Any]]:
    """(request, answer) of every curl in the README, as JSON values."""
    text = (ROOT / "README.md").read_text()
    found = re.findall(r"-d '(.*)'\n([{\[].*)", text)
    return [(json.loads(request), json.loads(answer)) for request, answer in found]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where both runs keep their registry."""
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="module")
def kept(folder: Path) -> dict[str, Any]:
    """A first run with --keep, asked and then terminated: what it said, and what was seen."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    line = ["-m", "tailproof", "demo", "--dir", "registry", "--port", str(port), "--keep"]
    line += ["--budget", "8s"]
    process = start(*line, cwd=folder)
    assert process.stdout is not None
    told = []
    for text in process.stdout:
        told.append(text)
        if "Ctrl-C" in text:
            break
    health, shown = {}, []
    if process.poll() is None:
        health = get(port, "/health")[1]
        with closing(demo.Connection(port)) as connection:
            shown = [(answer, connection.predict(row).body) for row, answer in readme_requests()]
    process.send_signal(signal.SIGTERM)
    rest, errors = process.communicate(timeout=PATIENCE)
    return {
        "port": port,
        "story": "".join(told) + rest,
        "errors": errors,
        "code": process.returncode,
        "health": health,
        "shown": shown,
    }


@pytest.fixture(scope="module")
def document(folder: Path, kept: dict[str, Any]) -> dict[str, Any]:
    """A second run in the same folder, with --json and a service beside ours."""
    line = ["-m", "tailproof", "demo", "--dir", "registry", "--port", str(kept["port"]), "--json"]
    line += ["--budget", "12s", "--beside", str(ROOT / "examples/handmade.py")]
    process = start(*line, cwd=folder)
    out, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, errors
    content = json.loads(out)
    assert isinstance(content, dict)
    return content


def test_the_story_has_every_step_and_nothing_of_the_libraries(kept: dict[str, Any]) -> None:
    story = kept["story"]

    assert (kept["code"], kept["errors"]) == (0, "")
    steps = ["[1/4] train", "version 1 is now @champion", "[2/4] tailproof serve models:/"]
    steps += ["ready after", "[3/4] ask", "-> 422", "[4/4] prove", "offered", "report: "]
    steps += ["/docs", "/metrics", "Ctrl-C", "[done]"]
    places = [story.find(step) for step in steps]
    assert -1 not in places
    assert places == sorted(places)


def test_the_server_that_was_kept_served_the_registered_model(kept: dict[str, Any]) -> None:
    assert kept["health"]["models"] == {
        "fraud-model": {"state": "ready", "version": "1", "alias": "champion"}
    }


def test_the_answers_in_the_readme_are_what_the_demo_answers(kept: dict[str, Any]) -> None:
    (scored, score), (refused, refusal) = kept["shown"]

    assert score == scored | {"score": pytest.approx(scored["score"], abs=0.01)}
    assert refusal == refused


def test_nothing_is_left_running(kept: dict[str, Any]) -> None:
    pids = [worker["pid"] for worker in kept["health"]["workers"]]

    assert pids
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    assert not is_listening(kept["port"])


def test_a_second_run_registers_the_next_version(document: dict[str, Any]) -> None:
    assert document["model"] == {"name": "fraud-model", "alias": "champion", "version": "2"}
    assert document["single"]["answer"]["model_version"] == "2"


def test_the_document_holds_real_answers(document: dict[str, Any]) -> None:
    scores = document["list"]["answer"]["scores"]

    assert len(scores) == 16
    assert len(set(scores)) > 8
    assert all(0.0 < score < 1.0 for score in scores)
    assert document["single"]["answer"]["score"] == pytest.approx(scores[0])
    assert document["invalid"]["status"] == 422
    assert document["invalid"]["answer"]["detail"][0]["loc"] == ["amount"]


@pytest.mark.parametrize(("which", "page"), [("prove", "tailproof"), ("beside", "handmade")])
def test_both_services_were_put_under_the_same_load_test(
    folder: Path, document: dict[str, Any], which: str, page: str
) -> None:
    """What it finds is the machine's affair; that it looked is the demo's."""
    found = document[which]

    assert found["slo"] == ["p95 < 50ms"]
    assert found["verdict"] in ("PASS", "FAIL", "UNDECIDED", "INVALID")
    assert found["points"][0]["requests"] > 0
    assert found["points"][0]["statuses"].get("200", 0) > 0
    assert (Path(found["run"]) / "report.json").is_file()
    assert "<html" in (folder / "registry" / f"{page}.html").read_text()


def test_the_handmade_service_gives_the_same_score(
    folder: Path, document: dict[str, Any], free_port: int
) -> None:
    line = [str(ROOT / "examples/handmade.py"), "--port", str(free_port)]
    line += ["--tracking-uri", f"sqlite:///{folder}/registry/mlflow.db"]
    process = start(*line, cwd=folder)
    try:
        wait_for(lambda: process.poll() is not None or is_listening(free_port), "listening")
        assert get(free_port, "/health") == (200, {"status": "ok"})
        with closing(demo.Connection(free_port)) as connection:
            answer = connection.predict(document["single"]["request"])
            refused = connection.predict(document["invalid"]["request"])
    finally:
        process.terminate()
        _, errors = process.communicate(timeout=PATIENCE)

    assert errors == ""
    assert answer.body["score"] == pytest.approx(document["single"]["answer"]["score"])
    assert answer.body["model_version"] == "2"
    assert refused.status == 422


# What can go wrong


def test_a_port_that_somebody_has_is_refused_before_anything_is_done(
    tmp_path: Path, taken_port: int
) -> None:
    line = ["-m", "tailproof", "demo", "--dir", "registry", "--port", str(taken_port)]
    process = start(*line, cwd=tmp_path)
    out, errors = process.communicate(timeout=PATIENCE)

    assert (process.returncode, out) == (2, "")
    assert errors == f"tailproof: --port = {taken_port}: somebody listens there already\n"
    assert not (tmp_path / "registry").exists()


def test_the_preferred_port_gives_way_to_a_free_one(
    taken_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "PREFERRED_PORT", taken_port)

    assert demo._choose_port(None) not in (0, taken_port)


def nothing(_: str) -> None:
    """Where the story goes that nobody reads."""


def server_of(script: str, tmp_path: Path, port: int) -> Server:
    """A server made of a few lines of Python."""
    log = tmp_path / "server.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", script], stdout=output, start_new_session=True
        )
    return Server(process, port, log)


def test_a_server_that_ends_is_reported_with_its_last_line(tmp_path: Path, free_port: int) -> None:
    server = server_of(
        "print('first'); print('no disk left'); raise SystemExit(3)", tmp_path, free_port
    )

    with pytest.raises(DemoFailed, match=r"the server ended with 3: no disk left"):
        demo._wait_until_ready(server, nothing)


def test_a_server_that_does_not_stop_is_killed(
    tmp_path: Path, free_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "STOP_SECONDS", 0.1)
    deaf = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True)"
    )
    server = server_of(f"{deaf}; time.sleep(600)", tmp_path, free_port)
    wait_for(server.log.read_text, "ignoring signals")

    with pytest.raises(DemoFailed, match="did not stop"):
        demo._stop(server.process)

    assert server.process.returncode == -signal.SIGKILL


class Scripted(BaseHTTPRequestHandler):
    """Answers from the server's list of (status, content), one after the other."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        status, content = self.server.script.pop(0)  # type: ignore[attr-defined]
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.do_GET()

    def log_message(self, *_: object) -> None:
        """Nothing: the output belongs to the test."""


@pytest.fixture
def scripted() -> Iterator[HTTPServer]:
    """An HTTP server whose answers are in its attribute `script`."""
    with HTTPServer(("127.0.0.1", 0), Scripted) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_a_model_that_cannot_be_loaded_ends_the_demo(scripted: HTTPServer, tmp_path: Path) -> None:
    state = {"state": "failed", "stage": "failed", "reason": "there is no alias 'champion'"}
    loading = {"state": "loading", "stage": "loading", "reason": None}
    scripted.script = [  # type: ignore[attr-defined]
        (503, {"detail": "model not loaded", "models": {"fraud-model": loading}}),
        (503, {"detail": "model not loaded", "models": {"fraud-model": state}}),
    ]
    server = server_of("import time; time.sleep(600)", tmp_path, scripted.server_port)
    told: list[str] = []
    try:
        with pytest.raises(DemoFailed, match="cannot be loaded: there is no alias 'champion'"):
            demo._wait_until_ready(server, told.append)
    finally:
        demo._stop(server.process)

    assert told == ["  /health/ready: 503 (loading)"]


def test_an_answer_with_another_status_ends_the_demo(scripted: HTTPServer, tmp_path: Path) -> None:
    scripted.script = [(500, {"detail": "the model raised"})] * demo.NUM_SINGLE  # type: ignore[attr-defined]
    rows = [{"amount": 1.0, "channel": "web", "age": 30}]
    server = Server(subprocess.Popen(["true"]), scripted.server_port, tmp_path / "log")
    server.process.wait()

    with pytest.raises(DemoFailed, match="answered with 500 instead of 200"):
        demo._ask(server, rows, nothing)


def test_no_answer_ends_the_demo(free_port: int) -> None:
    with (
        closing(demo.Connection(free_port)) as connection,
        pytest.raises(DemoFailed, match="got no answer"),
    ):
        connection.predict({"amount": 1.0})


# Side by side


def found_limit(rate: float | None, *, at_least: bool = False) -> Document:
    limit = None if rate is None else Limit(rate=rate, low=rate, high=None, at_least=at_least)
    return Document(
        tool="tailproof",
        target="http://127.0.0.1:1/predict",
        slo=[demo.SLO],
        verdict="FAIL" if rate is None else "PASS",
        reason="",
        mode="search",
        limit=limit,
        generator=Generator(ok=True),
        command="tailproof prove",
        seconds=1.0,
    )


def test_two_limits_stand_side_by_side() -> None:
    lines = demo._side_by_side(found_limit(5000.0, at_least=True), found_limit(200.0))

    assert "at least 5000/s" in lines[1]
    assert "200/s" in lines[2]
    assert lines[3].strip() == "25.0 times as much"


def test_a_service_without_a_limit_is_compared_with_nothing() -> None:
    lines = demo._side_by_side(found_limit(5000.0), found_limit(None))

    assert "none" in lines[2]
    assert len(lines) == 3


def test_registered_rows_are_plain_json(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(demo.model, "register", lambda *_, **__: "1")

    found = demo._register(tmp_path, nothing)

    assert isinstance(found, Registered)
    assert len(found.rows) == demo.NUM_LISTED
    assert json.loads(json.dumps(found.rows)) == found.rows
