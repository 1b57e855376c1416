"""The whole road on one machine: train, register, serve, ask, and look at the answers.

Everything is real: an MLflow registry in a folder, a server in its own process, requests over
HTTP. The figures come from a closed loop of a few connections and prove nothing: they show what
the server does, not how much it can take.
"""

import http.client
import io
import json
import math
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, redirect_stderr
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from tailproof import __version__
from tailproof.core.clock import monotonic
from tailproof.core.errors import ConfigError, TailproofError
from tailproof.models import demo as model

NAME = "fraud-model"
ALIAS = "champion"
SLO = "p95 < 50ms"
HOST = "127.0.0.1"
PREFERRED_PORT = 8000

NUM_SINGLE = 5
NUM_REQUESTS = 400
NUM_CONNECTIONS = 4
NUM_LISTED = 16
MAX_REPEATS = 20
READY_SECONDS = 120.0
ANSWER_SECONDS = 30.0
STOP_SECONDS = 30.0

Row = dict[str, Any]
Say = Callable[[str], None]


class DemoFailed(TailproofError):
    """One step of the road did not work; the message says which and where to look."""


@dataclass(frozen=True, slots=True)
class Registered:
    """Where the model is, and payments that it has not seen."""

    tracking_uri: str
    version: str
    rows: list[Row]


@dataclass(frozen=True, slots=True)
class Server:
    """The server that the demo started."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back for one request. `seconds` is from the (first) send to the last byte."""

    status: int
    seconds: float
    body: Any
    batch_size: str | None
    num_refused: int = 0
    """How often it was refused with 429 before, and sent again."""


def run(directory: Path, *, port: int | None, keep: bool, as_json: bool) -> int:
    """Walk the road. `directory` keeps the registry and the server's log.

    `port` None means 8000, or a free one while that is taken. With `keep` the server runs until
    Ctrl-C. With `as_json` stdout is one document and the story goes to stderr.

    Raises:
        ConfigError: somebody listens on `port`.
        DemoFailed: a step did not work. Whatever was started is stopped.
    """

    def say(line: str) -> None:
        click.echo(line, err=as_json)

    chosen = _choose_port(port)
    if port is None and chosen != PREFERRED_PORT:
        say(f"port {PREFERRED_PORT} is taken; the demo uses {chosen}")
    directory = directory.resolve()
    directory.mkdir(parents=True, exist_ok=True)
    with _terminate_like_interrupt():
        registered = _register(directory, say)
        with _serving(directory, registered.tracking_uri, chosen, say) as server:
            _wait_until_ready(server, say)
            report = _document(server, registered) | _ask(server, registered.rows, say)
            say(f"\nLook: {server.url}/ (page)  {server.url}/docs (API)  {server.url}/metrics")
            if as_json:
                click.echo(json.dumps(report, indent=2))
            if keep:
                _keep(server, say)
        say("\n[done] the server has stopped; nothing is left running")
    return 0


def _document(server: Server, registered: Registered) -> dict[str, Any]:
    return {
        "tool": f"tailproof {__version__}",
        "url": server.url,
        "model": {"name": NAME, "alias": ALIAS, "version": registered.version},
        "slo": [SLO],
    }


def _ask(server: Server, rows: Sequence[Row], say: Say) -> dict[str, Any]:
    """Requests of every kind, the story of their answers, and the figures."""
    say(f"\n[3/4] ask: POST {server.url}/predict")
    connection = Connection(server.port)
    with closing(connection):
        singles = [connection.predict(row) for row in rows[:NUM_SINGLE]]
        first = _expect(200, singles[0], "a single transaction")
        say(f"  {json.dumps(rows[0])}\n    -> {first.status} {json.dumps(first.body)}")
        for answer in singles[1:]:
            _expect(200, answer, "a single transaction")
        listed = _expect(200, connection.predict(rows[:NUM_LISTED]), "a list")
        say(f"  a list of {NUM_LISTED} -> {listed.status}, {len(listed.body['scores'])} scores")
        broken = rows[0] | {next(iter(rows[0])): "a lot"}
        refused = _expect(422, connection.predict(broken), "a wrong value")
        say(f"  a wrong value -> {refused.status} {json.dumps(refused.body)}")

    say(f"\n[4/4] {NUM_REQUESTS} requests on {NUM_CONNECTIONS} keep-alive connections")
    answers = _crowd(server.port, rows)
    report = _figures(answers)
    say(_summary(report))
    return report | {
        "single": {"request": rows[0], "answer": first.body},
        "list": {"rows": NUM_LISTED, "answer": listed.body},
        "invalid": {"request": broken, "status": refused.status, "answer": refused.body},
    }


class Connection:
    """One keep-alive HTTP connection."""

    def __init__(self, port: int) -> None:
        self._http = http.client.HTTPConnection(HOST, port, timeout=ANSWER_SECONDS)

    def predict(self, payload: Row | Sequence[Row]) -> Answer:
        """POST one row, or a list of them. Raises DemoFailed when no answer comes."""
        body = json.dumps(payload)
        begin = monotonic()
        try:
            self._http.request("POST", "/predict", body, {"Content-Type": "application/json"})
            response = self._http.getresponse()
            content = json.loads(response.read())
        except (OSError, http.client.HTTPException) as error:
            raise DemoFailed(f"a request got no answer ({type(error).__name__})") from None
        seconds = monotonic() - begin
        return Answer(response.status, seconds, content, response.getheader("X-Batch-Size"))

    def insist(self, row: Row) -> Answer:
        """As `predict`, and once refused ask again when the server says to."""
        begin = monotonic()
        answer, num_refused = self.predict(row), 0
        while answer.status == 429 and num_refused < MAX_REPEATS:
            threading.Event().wait(answer.body["retry_after_ms"] / 1e3)
            answer, num_refused = self.predict(row), num_refused + 1
        return replace(answer, seconds=monotonic() - begin, num_refused=num_refused)

    def close(self) -> None:
        self._http.close()


def _expect(status: int, answer: Answer, what: str) -> Answer:
    if answer.status != status:
        raise DemoFailed(f"{what} was answered with {answer.status} instead of {status}")
    return answer


def _crowd(port: int, rows: Sequence[Row]) -> list[Answer]:
    """One request for each of many rows, from several connections, each its next when answered."""
    share = [rows[start:NUM_REQUESTS:NUM_CONNECTIONS] for start in range(NUM_CONNECTIONS)]

    def work(mine: Sequence[Row]) -> list[Answer]:
        with closing(Connection(port)) as connection:
            return [connection.insist(row) for row in mine]

    with ThreadPoolExecutor(NUM_CONNECTIONS) as pool:
        answers = [answer for answers in pool.map(work, share) for answer in answers]
    for answer in answers:
        if answer.status != 429:
            _expect(200, answer, "one of the requests")
    return answers


def _figures(answers: Sequence[Answer]) -> dict[str, Any]:
    """Counts and percentiles. What was not answered with 200 counts as never answered."""
    seconds = [answer.seconds if answer.status == 200 else math.inf for answer in answers]
    found = {f"p{percent}": nearest_rank(seconds, percent) for percent in (50, 95, 99)}
    return {
        "requests": len(answers),
        "good": sum(answer.status == 200 for answer in answers),
        "refused": sum(answer.num_refused for answer in answers),
        "loop": "closed",
        "connections": NUM_CONNECTIONS,
        "response_seconds": {name: _finite(value) for name, value in found.items()},
        "largest_batch": max((int(answer.batch_size or 1) for answer in answers), default=None),
    }


def nearest_rank(values: Sequence[float], percent: int) -> float:
    """The smallest value that at least `percent` % of `values` do not exceed."""
    return sorted(values)[math.ceil(percent * len(values) / 100) - 1]


def _finite(seconds: float) -> float | None:
    return seconds if math.isfinite(seconds) else None


def _summary(report: dict[str, Any]) -> str:
    figures = [
        f"{name} {'no answer' if value is None else f'{value * 1e3:.1f} ms'}"
        for name, value in report["response_seconds"].items()
    ]
    return (
        f"  {report['good']} good answers; {report['refused']} times 429, then asked again;"
        f" largest batch {report['largest_batch']} rows\n"
        f"  {'   '.join(figures)}   (nearest rank, from the first send)\n"
        "  A quick closed-loop look, not a proof: each connection waits for its answer before it\n"
        "  asks again, so these figures say nothing about a rate that the server must take."
    )


def _register(directory: Path, say: Say) -> Registered:
    """Train, log and register. Every run makes a new version, and the alias moves to it."""
    say("[1/4] train a fraud classifier and register it with MLflow")
    begin = monotonic()
    trained = model.train()
    seconds = monotonic() - begin
    say(f"  trained in {seconds:.1f} s; ROC AUC on unseen payments {trained.roc_auc:.3f}")
    begin = monotonic()
    uri = f"sqlite:///{directory / 'mlflow.db'}"
    with redirect_stderr(io.StringIO()):  # MLflow announces the version there; we do, too
        version = model.register(
            trained.pipeline, trained.frame, uri, directory / "artifacts", name=NAME, alias=ALIAS
        )
    say(f"  {NAME} version {version} is now @{ALIAS} ({monotonic() - begin:.1f} s)")
    unseen = trained.frame[: min(NUM_REQUESTS, model.HELD_OUT)]
    return Registered(uri, version, unseen.to_dict("records"))


@contextmanager
def _serving(directory: Path, tracking_uri: str, port: int, say: Say) -> Iterator[Server]:
    """The server as a process of its own; stopped at the end, whatever happens."""
    command = ["serve", f"models:/{NAME}@{ALIAS}", "--slo", SLO, "--port", str(port)]
    say(f'\n[2/4] tailproof serve models:/{NAME}@{ALIAS} --slo "{SLO}" --port {port} \\')
    say(f"        --tracking-uri {tracking_uri}")
    quiet = {name: value for name, value in os.environ.items() if not name.startswith("TAILPROOF_")}
    log = directory / "server.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "tailproof", *command, "--tracking-uri", tracking_uri),
                *("--host", HOST, "--log-format", "json", "--drain-delay", "0s"),
            ],
            cwd=directory,  # where no tailproof.toml of the user is
            env=quiet,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for the demo, which then stops the server in order
        )
    try:
        yield Server(process, port, log)
    finally:
        _stop(process)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise DemoFailed(f"the server did not stop within {STOP_SECONDS:g} s") from None


def _wait_until_ready(server: Server, say: Say) -> None:
    """Watch the readiness probe until it says yes. Raises DemoFailed when it never will."""
    begin = monotonic()
    told, pause = "", threading.Event()
    while monotonic() - begin < READY_SECONDS:
        if server.process.poll() is not None:
            raise DemoFailed(_last_words(server))
        status, stage = _readiness(server.port)
        if status == 200:
            say(f"  ready after {monotonic() - begin:.1f} s")
            return
        if stage not in ("", told):
            say(f"  /health/ready: {status} ({stage})")
            told = stage
        pause.wait(0.1)
    raise DemoFailed(f"the server was not ready within {READY_SECONDS:g} s: see {server.log}")


def _readiness(port: int) -> tuple[int, str]:
    """Status of the probe and what the model is doing; (0, "") while nobody answers."""
    with closing(http.client.HTTPConnection(HOST, port, timeout=ANSWER_SECONDS)) as connection:
        try:
            connection.request("GET", "/health/ready")
            response = connection.getresponse()
            content = json.loads(response.read())
        except (OSError, http.client.HTTPException):
            return 0, ""
    state = content.get("models", {}).get(NAME, {})
    if state.get("reason"):
        raise DemoFailed(f"the model cannot be loaded: {state['reason']}")
    return response.status, state.get("stage", "")


def _last_words(server: Server) -> str:
    """Why the server ended, as far as it said so."""
    lines = server.log.read_text(errors="replace").splitlines()
    last = f": {lines[-1]}" if lines else ""
    return f"the server ended with {server.process.returncode}{last}"


def _keep(server: Server, say: Say) -> None:
    say("\nThe server keeps running. Ctrl-C stops it.")
    try:
        server.process.wait()
    except KeyboardInterrupt:
        say("")
        return
    raise DemoFailed(_last_words(server))


def _choose_port(wanted: int | None) -> int:
    """The wanted port, or else the preferred one, or else any that is free.

    Raises ConfigError when somebody has the wanted one.
    """
    if wanted is not None:
        if not _bindable(wanted):
            raise ConfigError("--port", wanted, "somebody listens there already")
        return wanted
    return _bindable(PREFERRED_PORT) or _bindable(0)


def _bindable(port: int) -> int:
    """The port, if it is free (0: one that is); 0 when it is not."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return 0
        return int(probe.getsockname()[1])


@contextmanager
def _terminate_like_interrupt() -> Iterator[None]:
    """SIGTERM unwinds like Ctrl-C does, so that the server is stopped before the demo ends."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
