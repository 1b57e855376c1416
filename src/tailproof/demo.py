"""The whole road on one machine: train, register, serve, ask, prove.

Everything is real: an MLflow registry in a folder, servers in processes of their own, requests over
HTTP, and the same load test for our service and for another one beside it.
"""

import http.client
import io
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, redirect_stderr
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import msgspec

from tailproof import __version__
from tailproof.core.clock import monotonic
from tailproof.core.errors import ConfigError, TailproofError
from tailproof.core.slo import Latency, parse
from tailproof.core.units import format_duration, format_rate
from tailproof.load import job, prove
from tailproof.load.settings import LoadSettings, TargetSettings
from tailproof.models import demo as model
from tailproof.reporting import html, runs
from tailproof.reporting.charts import Service, SideBySide
from tailproof.reporting.console import verdict_lines
from tailproof.reporting.document import Document, Limit
from tailproof.reporting.live import Live
from tailproof.reporting.picture import Canvas, standalone

NAME = "fraud-model"
ALIAS = "champion"
SLO = "p95 < 50ms"
HOST = "127.0.0.1"
PREFERRED_PORT = 8000

NUM_SINGLE = 5
NUM_LISTED = 16
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
    """What came back for one request."""

    status: int
    body: Any


@dataclass(frozen=True, slots=True)
class Plan:
    """How the demo is walked. Seconds."""

    directory: Path
    """Keeps the registry, the servers' logs, the records and reports of the load tests."""
    port: int | None
    """None: 8000, or a free one while that is taken."""
    budget: float
    """Time for each load test."""
    beside: Path | None
    """A script that serves the same model and takes --port and --tracking-uri."""
    keep: bool
    """Leave the server running until Ctrl-C."""

    @property
    def server_core(self) -> int | None:
        """Servers and tester get a core each, or the tester would be in the numbers. None: there
        is only one."""
        cores = sorted(os.sched_getaffinity(0))
        return cores[0] if len(cores) > 1 else None

    @property
    def tester_core(self) -> int | None:
        cores = sorted(os.sched_getaffinity(0))
        return cores[1] if len(cores) > 1 else None


@dataclass(frozen=True, slots=True)
class Story:
    """What is told on the way: on stdout, or on stderr when stdout is one document."""

    as_json: bool

    def say(self, line: str) -> None:
        click.echo(line, err=self.as_json)


def run(plan: Plan, *, as_json: bool) -> int:
    """Walk the road.

    Raises:
        ConfigError: somebody listens on the port.
        DemoFailed: a step did not work. Whatever was started is stopped.
    """
    story = Story(as_json)
    chosen = _choose_port(plan.port)
    if plan.port is None and chosen != PREFERRED_PORT:
        story.say(f"port {PREFERRED_PORT} is taken; the demo uses {chosen}")
    plan = replace(plan, directory=plan.directory.resolve())
    plan.directory.mkdir(parents=True, exist_ok=True)
    with _terminate_like_interrupt():
        registered = _register(plan.directory, story.say)
        with _serving(plan, registered.tracking_uri, chosen, story.say) as server:
            _wait_until_ready(server, story.say)
            report = _document(server, registered) | _ask(server, registered.rows, story.say)
            report |= _prove_all(server, registered, plan, story)
            look = f"{server.url}/ (page)  {server.url}/docs (API)  {server.url}/metrics"
            story.say(f"\nLook: {look}")
            if as_json:
                click.echo(json.dumps(report, indent=2))
            if plan.keep:
                _keep(server, story.say)
        story.say("\n[done] the servers have stopped; nothing is left running")
    return 0


def _prove_all(server: Server, registered: Registered, plan: Plan, story: Story) -> dict[str, Any]:
    """The same load test for our service and the one beside it."""
    story.say("\n[4/4] prove: how much does it take within the SLO?")
    ours = _prove(server.port, "tailproof", plan, story)
    found = {"prove": msgspec.to_builtins(ours)}
    if plan.beside is None:
        return found
    with _other_service(plan, registered.tracking_uri) as other:
        story.say(f"\n  and {plan.beside.name}, which computes one request at a time")
        _wait_until_listening(other)
        theirs = _prove(other.port, plan.beside.stem, plan, story)
    for line in _side_by_side(ours, theirs):
        story.say(line)
    picture = plan.directory / "side-by-side.svg"
    picture.write_text(_picture(ours, theirs, plan.beside.name), encoding="utf-8")
    story.say(f"  picture: {picture}")
    return found | {"beside": msgspec.to_builtins(theirs)}


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
    return {
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
        try:
            self._http.request("POST", "/predict", body, {"Content-Type": "application/json"})
            response = self._http.getresponse()
            return Answer(response.status, json.loads(response.read()))
        except (OSError, http.client.HTTPException) as error:
            raise DemoFailed(f"a request got no answer ({type(error).__name__})") from None

    def close(self) -> None:
        self._http.close()


def _expect(status: int, answer: Answer, what: str) -> Answer:
    if answer.status != status:
        raise DemoFailed(f"{what} was answered with {answer.status} instead of {status}")
    return answer


def _prove(port: int, name: str, plan: Plan, story: Story) -> Document:
    """Find the highest rate that holds the SLO, and leave the report in the demo's folder."""
    url = f"http://{HOST}:{port}/predict"
    story.say(f'\n  tailproof prove {url} --slo "{SLO}" --budget {format_duration(plan.budget)}')
    load = LoadSettings(slo=(parse(SLO),), budget=plan.budget, out=str(plan.directory / "runs"))
    command = f'tailproof prove {url} --slo "{SLO}"'
    made = job.make(url, TargetSettings(), load, {}, command)
    with _on(plan.tester_core):
        found = prove.run(made, Live(as_json=story.as_json))
    run = Path(str(found.run))
    page = plan.directory / f"{name}.html"
    page.write_text(html.report(found, lambda index: runs.find_step(run, index)), encoding="utf-8")
    for line in verdict_lines(found):
        story.say(f"  {line}".rstrip())
    story.say(f"  report: {page}")
    return found


def _picture(ours: Document, theirs: Document, name: str) -> str:
    """P95 of both against the rate, as SVG."""
    slo = parse(SLO)
    assert isinstance(slo, Latency)
    services = [
        Service("tailproof serve", "p95", ours.points, ours.limit),
        Service(name, "p99", theirs.points, theirs.limit),
    ]
    canvas = Canvas(760, 380, "side-by-side")
    SideBySide(services, slo).draw(canvas)
    return standalone([canvas], "P95 against offered rate, for both services")


def _side_by_side(ours: Document, theirs: Document) -> list[str]:
    """The two limits, and how many times one is the other."""
    rows = [("this service", ours), ("the other one", theirs)]
    lines = [f"\n  {'highest rate with ' + SLO:34}{'P50':>10}{'P99':>10}  verdict"]
    for title, found in rows:
        limit = "none" if found.limit is None else _rate_of(found.limit)
        times = _times_of(found)
        lines.append(f"  {title:16}{limit:>16}  {times[0]:>10}{times[1]:>10}  {found.verdict}")
    if "INVALID" in (ours.verdict, theirs.verdict):
        lines.append(
            "  INVALID: other programs used these cores, so this says nothing; run it again"
        )
    if ours.limit and theirs.limit and ours.limit.low and theirs.limit.low:
        lines.append(f"  {ours.limit.low / theirs.limit.low:.1f} times as much")
    return lines


def _rate_of(limit: Limit) -> str:
    if limit.rate is None:
        return "none"
    return f"{'at least ' if limit.at_least else ''}{format_rate(limit.rate)}"


def _times_of(found: Document) -> tuple[str, str]:
    """P50 and P99 at the limit."""
    point = next((point for point in found.points if point.index == found.tail_point), None)
    if point is None or found.verdict == "INVALID":
        return "", ""
    seconds = (point.response_seconds.p50, point.response_seconds.p99)
    first, last = ("miss" if value is None else f"{value * 1e3:.1f} ms" for value in seconds)
    return first, last


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
    unseen = trained.frame[: min(NUM_LISTED, model.HELD_OUT)]
    return Registered(uri, version, unseen.to_dict("records"))


@contextmanager
def _serving(plan: Plan, tracking_uri: str, port: int, say: Say) -> Iterator[Server]:
    """Our server as a process of its own; stopped at the end, whatever happens."""
    command = ["serve", f"models:/{NAME}@{ALIAS}", "--slo", SLO, "--port", str(port)]
    say(f'\n[2/4] tailproof serve models:/{NAME}@{ALIAS} --slo "{SLO}" --port {port} \\')
    say(f"        --tracking-uri {tracking_uri}")
    line = [*("-m", "tailproof", *command, "--tracking-uri", tracking_uri), "--host", HOST]
    line += ["--log-format", "json", "--drain-delay", "0s"]
    with _started(line, port, plan.directory / "server.log", plan.server_core) as server:
        yield server


@contextmanager
def _other_service(plan: Plan, tracking_uri: str) -> Iterator[Server]:
    """The script beside ours, on the same core; stopped at the end."""
    assert plan.beside is not None
    port = _bindable(0)
    line = [str(plan.beside.resolve()), "--port", str(port), "--tracking-uri", tracking_uri]
    log = plan.directory / f"{plan.beside.stem}.log"
    with _started(line, port, log, plan.server_core) as server:
        yield server


@contextmanager
def _started(line: Sequence[str], port: int, log: Path, core: int | None) -> Iterator[Server]:
    """A Python process that serves; everything it says goes to `log`."""
    quiet = {name: value for name, value in os.environ.items() if not name.startswith("TAILPROOF_")}
    with log.open("wb") as output, _on(core):
        process = subprocess.Popen(
            [sys.executable, *line],
            cwd=log.parent,  # where no tailproof.toml of the user is
            env=quiet,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for the demo, which then stops it in order
        )
    try:
        yield Server(process, port, log)
    finally:
        _stop(process)


@contextmanager
def _on(core: int | None) -> Iterator[None]:
    """Whatever is started meanwhile runs on this core."""
    before = os.sched_getaffinity(0)
    if core is not None:
        os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


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


def _wait_until_listening(server: Server) -> None:
    """Raises DemoFailed when the process ends instead, or does not listen in time."""
    begin, pause = monotonic(), threading.Event()
    while monotonic() - begin < READY_SECONDS:
        if server.process.poll() is not None:
            raise DemoFailed(_last_words(server))
        with socket.socket() as probe:
            if probe.connect_ex((HOST, server.port)) == 0:
                return
        pause.wait(0.1)
    raise DemoFailed(f"nobody listened within {READY_SECONDS:g} s: see {server.log}")


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
