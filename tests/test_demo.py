"""The demo as a user runs it: the whole road, stopped in order, with nothing left over."""

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
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import IO, Any

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


def start(
    *arguments: str, cwd: Path, stdout: int | IO[str] = subprocess.PIPE
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *arguments],
        cwd=cwd,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )


def readme_requests() -> list[tuple[Any, Any]]:
    """(request, answer) of every curl in the README, as JSON values."""
    text = (ROOT / "README.md").read_text()
    found = re.findall(r"-d '(.*)'\n([{\[].*)", text)
    return [(json.loads(request), json.loads(answer)) for request, answer in found]


@dataclass(frozen=True, slots=True)
class Road:
    """The demo beside the service written by hand, with --keep and --json, asked and then
    terminated: what it said, and what was seen."""

    folder: Path
    """Where it ran."""
    port: int
    code: int
    document: dict[str, Any]
    story: str
    health: dict[str, Any]
    shown: list[tuple[Any, Any]]
    """(answer in the README, answer to the same request)"""


@pytest.fixture(scope="module")
def road(tmp_path_factory: pytest.TempPathFactory) -> Road:
    """Once for all: it takes half a minute. The load tests are just long enough to have steps."""
    folder, port = tmp_path_factory.mktemp("demo"), demo._bindable(0)
    line = ["-m", "tailproof", "demo", "--dir", "registry", "--port", str(port), "--keep", "--json"]
    line += ["--budget", "5s", "--beside", str(ROOT / "examples/handmade.py")]
    out = folder / "document.json"
    with out.open("w") as stdout:  # a pipe that nobody reads meanwhile would soon be full
        process = start(*line, cwd=folder, stdout=stdout)
    told = list(_until_kept(process))
    health, shown = {}, []
    if process.poll() is None:
        health = get(port, "/health")[1]
        with closing(demo.Connection(port)) as connection:
            shown = [(answer, connection.predict(row).body) for row, answer in readme_requests()]
    process.send_signal(signal.SIGTERM)
    _, rest = process.communicate(timeout=PATIENCE)
    story = "".join(told) + rest
    assert out.stat().st_size, story
    document = json.loads(out.read_text())
    return Road(folder, port, process.returncode, document, story, health, shown)


def _until_kept(process: subprocess.Popen[str]) -> Iterator[str]:
    """What it tells until the server is kept running, or until it ends."""
    assert process.stderr is not None
    for line in process.stderr:
        yield line
        if "Ctrl-C" in line:
            return


STEPS = (
    *("[1/4] train", "version 1 is now @champion", "[2/4] tailproof serve models:/"),
    *("ready after", "[3/4] ask", "-> 422", "[4/4] prove", "report: ", "highest rate", "picture: "),
    *("/docs", "/metrics", "Ctrl-C", "[done]"),
)


def _is_in_order(story: str, steps: Sequence[str]) -> bool:
    places = [story.find(step) for step in steps]
    return -1 not in places and places == sorted(places)


def test_the_story_has_every_step_and_nothing_of_the_libraries(road: Road) -> None:
    ours = re.compile(r"  |\[(\d/4|done)\] |Look: |The server keeps running")

    assert road.code == 0, road.story
    assert _is_in_order(road.story, STEPS), road.story
    assert [line for line in road.story.splitlines() if line and not ours.match(line)] == []


def test_the_server_that_was_kept_served_the_registered_model(road: Road) -> None:
    assert road.health["models"] == {
        "fraud-model": {"state": "ready", "version": "1", "alias": "champion"}
    }


def test_the_answers_in_the_readme_are_what_the_demo_answers(road: Road) -> None:
    (scored, score), (refused, refusal) = road.shown

    assert score == scored | {"score": pytest.approx(scored["score"], abs=0.01)}
    assert refusal == refused


def test_nothing_is_left_running(road: Road) -> None:
    pids = [worker["pid"] for worker in road.health["workers"]]

    assert pids
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    assert not is_listening(road.port)


def test_the_document_holds_real_answers(road: Road) -> None:
    document = road.document
    scores = document["list"]["answer"]["scores"]

    assert document["model"] == {"name": "fraud-model", "alias": "champion", "version": "1"}
    assert document["single"]["answer"]["model_version"] == "1"
    assert len(scores) == 16
    assert len(set(scores)) > 8
    assert all(0.0 < score < 1.0 for score in scores)
    assert document["single"]["answer"]["score"] == pytest.approx(scores[0])
    assert document["invalid"]["status"] == 422
    assert document["invalid"]["answer"]["detail"][0]["loc"] == ["amount"]


@pytest.mark.parametrize(("which", "page"), [("prove", "tailproof"), ("beside", "handmade")])
def test_both_services_were_put_under_the_same_load_test(road: Road, which: str, page: str) -> None:
    """What it finds is the machine's affair; that it looked is the demo's."""
    found = road.document[which]

    assert found["slo"] == ["p95 < 50ms"]
    assert found["verdict"] in ("PASS", "FAIL", "UNDECIDED", "INVALID")
    assert found["points"][0]["requests"] > 0
    assert found["points"][0]["statuses"].get("200", 0) > 0
    assert (Path(found["run"]) / "report.json").is_file()
    assert "<html" in (road.folder / "registry" / f"{page}.html").read_text()


def test_the_handmade_service_gives_the_same_score(road: Road, free_port: int) -> None:
    line = [str(ROOT / "examples/handmade.py"), "--port", str(free_port)]
    line += ["--tracking-uri", f"sqlite:///{road.folder}/registry/mlflow.db"]
    process = start(*line, cwd=road.folder)
    try:
        wait_for(lambda: process.poll() is not None or is_listening(free_port), "listening")
        assert get(free_port, "/health") == (200, {"status": "ok"})
        with closing(demo.Connection(free_port)) as connection:
            answer = connection.predict(road.document["single"]["request"])
            refused = connection.predict(road.document["invalid"]["request"])
    finally:
        process.terminate()
        _, errors = process.communicate(timeout=PATIENCE)

    assert errors == ""
    assert answer.body["score"] == pytest.approx(road.document["single"]["answer"]["score"])
    assert answer.body["model_version"] == "1"
    assert refused.status == 422


@pytest.mark.soak
def test_a_second_run_in_words_registers_the_next_version(road: Road) -> None:
    line = ["-m", "tailproof", "demo", "--dir", "registry", "--port", str(road.port)]
    process = start(*line, "--budget", "8s", cwd=road.folder)
    story, errors = process.communicate(timeout=PATIENCE)

    assert (process.returncode, errors) == (0, "")
    assert _is_in_order(story, ("version 2 is now @champion", "[4/4] prove", "offered", "[done]"))


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
