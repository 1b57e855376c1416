"""The command line: quick help, exit codes, one line for an error, and the health probe."""

import os
import subprocess
import sys
import threading
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

import tailproof
from tailproof import cli, config
from tailproof.core.errors import ModelError
from tailproof.serving.settings import ModelSettings, ServerSettings

HEAVY = {"numpy", "pydantic", "fastapi", "granian", "uvloop", "mlflow", "sklearn", "pandas"}
FRAUD = '[models.fraud]\nsource = "demo:fraud"\n'
DIGEST = "sha256:" + "0123456789abcdef" * 4

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command in this process, in an empty folder: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as caught:
            cli.main(list(arguments))
        assert isinstance(caught.value.code, int)
        return caught.value.code, *capsys.readouterr()

    return run


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[ServerSettings, list[ModelSettings]]]:
    """Takes the place of the server: what `serve` would have started."""
    calls: list[tuple[ServerSettings, list[ModelSettings]]] = []

    def serve(server: ServerSettings, models: list[ModelSettings]) -> int:
        calls.append((server, models))
        return 0

    module = types.ModuleType("tailproof.serving.server")
    module.run = serve  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tailproof.serving.server", module)
    return calls


def process(*arguments: str, cwd: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run the command as a real process."""
    return subprocess.run(
        [sys.executable, "-m", "tailproof", *arguments],
        cwd=cwd,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


# help and version


@pytest.mark.parametrize("line", [["--help"], ["--version"], ["serve", "--help"], ["demo", "-h"]])
def test_help_loads_nothing_heavy(line: list[str], tmp_path: Path) -> None:
    script = (
        "import sys\nfrom tailproof.cli import main\n"
        f"try:\n    main({line!r})\nexcept SystemExit as end:\n    code = end.code\n"
        f"print(code, sorted({HEAVY!r} & set(sys.modules)), file=sys.stderr)"
    )

    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True
    )

    assert done.stderr == "0 []\n"
    assert done.stdout


def test_help_names_every_command_and_no_other(run: Run) -> None:
    code, out, _ = run("--help")

    listed = [line.split()[0] for line in out.partition("Commands:")[2].splitlines() if line]
    assert code == 0
    commands = "compare demo healthcheck null probe prove report serve"
    assert listed == commands.split()


def test_help_of_serve_has_every_flag_with_its_words(run: Run) -> None:
    _, out, _ = run("serve", "--help")

    flat = " ".join(out.split())
    for cls in (ServerSettings, ModelSettings):
        for setting in config.settings_of(cls):
            if setting.flag:
                assert f"{setting.flag} " in flat
                assert setting.help in flat


def test_version(run: Run) -> None:
    assert run("--version") == (0, f"tailproof {tailproof.__version__}\n", "")


def test_without_a_command_the_help_is_shown(run: Run) -> None:
    code, out, _ = run()

    assert code == 2
    assert "serve" in out


# serve


def test_serve_starts_what_it_was_told(
    run: Run, started: list[tuple[ServerSettings, list[ModelSettings]]]
) -> None:
    line = ["demo:fraud", "--slo", "p95 < 50ms", "--slo", "p99 < 1s", "--port", "8123"]

    assert run("serve", *line, "--class", "1") == (0, "", "")

    (server, models), *others = started
    assert (server.port, others) == (8123, [])
    assert [str(slo) for slo in models[0].slo] == ["p95 < 50ms", "p99 < 1s"]
    assert models[0].class_index == 1


def test_serve_finds_a_user_s_classes_where_it_is_run(
    run: Run, started: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))

    run("serve", "demo:fraud")

    assert sys.path[-1] == str(tmp_path)


def test_the_exit_code_of_serve_is_the_server_s(
    run: Run, started: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["tailproof.serving.server"], "run", lambda *_: 1)

    assert run("serve", "demo:fraud")[0] == 1


@dataclass(frozen=True)
class Broken:
    """One configuration that must be refused, in words, and what the error has to name."""

    words: str
    key: str
    value: str
    line: list[str] = field(default_factory=lambda: ["demo:fraud"])
    toml: str | None = None
    environ: dict[str, str] = field(default_factory=dict)


def line(words: str, key: str, value: str, *arguments: str) -> Broken:
    return Broken(words, key, value, line=list(arguments))


def flag(words: str, name: str, value: str) -> Broken:
    return Broken(words, name, value, line=["demo:fraud", f"{name}={value}"])


def variable(words: str, name: str, value: str) -> Broken:
    return Broken(words, name, value, environ={name: value})


def server(words: str, key: str, toml: str, value: str) -> Broken:
    text = f"[server]\n{key} = {toml}\n{FRAUD}"
    return Broken(words, f"server.{key}", value, line=[], toml=text)


def model(words: str, key: str, toml: str, value: str) -> Broken:
    text = f"{FRAUD}{key} = {toml}\n"
    return Broken(words, f"models.fraud.{key}", value, line=[], toml=text)


def document(words: str, toml: str, key: str, value: str) -> Broken:
    return Broken(words, key, value, line=[], toml=toml)


BROKEN = [
    # flags
    flag("port too high", "--port", "65536"),
    flag("port 0", "--port", "0"),
    flag("negative port", "--port", "-1"),
    flag("port in words", "--port", "http"),
    flag("port with a fraction", "--port", "80.5"),
    flag("port with blanks", "--port", " 80"),
    flag("empty host", "--host", ""),
    flag("unknown log format", "--log-format", "xml"),
    flag("duration without unit", "--drain-delay", "5"),
    flag("duration in an unknown unit", "--drain-timeout", "5d"),
    flag("negative duration", "--drain-delay", "-5s"),
    flag("no time for a request", "--request-timeout", "0s"),
    flag("no time for a header", "--header-timeout", "0ms"),
    flag("duration that is not a number", "--body-timeout", "nans"),
    flag("size without unit", "--max-body", "1024"),
    flag("size in an unknown unit", "--max-body", "1TB"),
    flag("body of nothing", "--max-body", "0B"),
    flag("header under what HTTP needs", "--max-header", "1KiB"),
    flag("no connection", "--max-connections", "0"),
    flag("no worker", "--workers", "0"),
    flag("half a worker", "--workers", "1.5"),
    flag("batch of nothing", "--max-batch", "0"),
    flag("negative queue", "--max-queue", "-1"),
    flag("negative class", "--class", "-1"),
    flag("waiting without unit", "--max-wait", "2"),
    flag("SLO without unit", "--slo", "p95 < 50"),
    flag("SLO in the wrong direction", "--slo", "p95 > 50ms"),
    flag("SLO of everything", "--slo", "p100 < 50ms"),
    flag("SLO of no time", "--slo", "p95 < 0ms"),
    flag("SLO on a mean", "--slo", "mean < 50ms"),
    flag("availability without a way to fail", "--slo", "availability > 100%"),
    flag("name with a slash", "--name", "a/b"),
    flag("name that climbs", "--name", "../fraud"),
    flag("name too long", "--name", "a" * 129),
    flag("digest of another kind", "--trust", "md5:00"),
    flag("digest too short", "--trust", DIGEST[:-1]),
    line("no model at all", "MODEL", "None"),
    line("empty model", "MODEL", "''", ""),
    line("no such folder", "MODEL", "models/fraud", "models/fraud"),
    line("registry without alias or version", "MODEL", "models:/fraud", "models:/fraud"),
    line("version that is no number", "MODEL", "models:/fraud/x", "models:/fraud/x"),
    line("demo that does not exist", "MODEL", "demo:cat", "demo:cat"),
    line("python without attribute", "MODEL", "python:model", "python:model"),
    line("fake with a wrong parameter", "MODEL", "fake:?fixd=5ms", "fake:?fixd=5ms"),
    line("the same model twice", "MODEL", "demo:fraud", "demo:fraud", "demo:fraud"),
    line("one name for two", "--name", "x", "demo:fraud", "models:/a@b", "--name", "x"),
    line("no such file", "--config", "nowhere.toml", "--config", "nowhere.toml"),
    line("a folder for a file", "--config", "/", "--config", "/"),
    # environment
    variable("port in words", "TAILPROOF_PORT", "http"),
    variable("port too high", "TAILPROOF_PORT", "70000"),
    variable("SLO without unit", "TAILPROOF_SLO", "p95 < 50"),
    variable("duration without unit", "TAILPROOF_REQUEST_TIMEOUT", "30"),
    variable("misspelt", "TAILPROOF_MAX_BDOY", "1MiB"),
    variable("misspelt", "TAILPROOF_PROT", "8000"),
    # file: server
    server("text for a number", "port", '"8000"', "8000"),
    server("yes for a number", "port", "true", "True"),
    server("number for a duration", "drain_delay", "5", "5"),
    server("number for a size", "max_body", "1024", "1024"),
    server("number for a text", "host", "1", "1"),
    server("list for a number", "port", "[8000]", "[8000]"),
    server("unknown key", "prot", "8000", "8000"),
    server("flag spelling in the file", "max-body", '"1MiB"', "1MiB"),
    # file: models
    model("second of two SLOs broken", "slo", '["p95 < 1s", "p99"]', "p99"),
    model("number for an SLO", "slo", "50", "50"),
    model("text for a yes or no", "required", '"yes"', "yes"),
    model("unknown key", "sloo", '"p95 < 1s"', "p95 < 1s"),
    model("name inside the table", "name", '"other"', "other"),
    model("field name instead of the key", "class_index", "1", "1"),
    model("empty output", "output", '""', "''"),
    model("number for columns", "columns", "5", "5"),
    model("columns that are no class", "columns", '"schema"', "schema"),
    model("unknown rule of a column", "columns", "{ age = { gee = 0 } }", "gee"),
    model("text for a bound", "columns.age", '{ ge = "0" }', "0"),
    model("unknown type of a column", "columns.age", '{ type = "double" }', "double"),
    model("broken pattern", "columns.channel", '{ pattern = "(" }', "("),
    document("wrong source", '[models.x]\nsource = "demo:cat"', "models.x.source", "demo:cat"),
    document("no source", "[models.fraud]\nworkers = 1", "models.fraud.source", "None"),
    document("name of a model", '[models."a b"]\nsource = "demo:fraud"', "models.a b", "a b"),
    document("model that is no table", '[models]\nfraud = "demo:fraud"', "models.fraud", "demo"),
    document("models that are no table", "models = 1", "models", "1"),
    document("server that is no table", f"server = 1\n{FRAUD}", "server", "1"),
    document("unknown table", f"[sever]\nport = 1\n{FRAUD}", "sever", "port"),
    document("no model in the file", "[server]\nport = 8000", "MODEL", "None"),
    document("the same table twice", FRAUD + FRAUD, "--config", "tailproof.toml"),
    document("not TOML", "port: 8000", "--config", "tailproof.toml"),
]


@pytest.mark.parametrize("case", BROKEN, ids=lambda case: f"{case.key} {case.words}")
def test_a_broken_configuration_is_one_line_and_exit_2(
    case: Broken, run: Run, started: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    if case.toml is not None:
        Path("tailproof.toml").write_text(case.toml)
    for name, value in case.environ.items():
        monkeypatch.setenv(name, value)

    code, out, err = run("serve", *case.line)

    assert (code, out, started) == (2, "", [])
    assert err.startswith(f"tailproof: {case.key}")
    assert case.value in err or case.value == "None"
    assert err.count("\n") == 1


def test_a_file_that_is_not_utf_8(run: Run, started: list[object]) -> None:
    Path("tailproof.toml").write_bytes(b'[server]\nhost = "\xff"\n')

    code, _, err = run("serve")

    assert (code, started) == (2, [])
    assert err == "tailproof: --config = 'tailproof.toml': is not UTF-8 text\n"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["serve", "demo:fraud", "--prot", "8000"], "--prot"),
        (["serve", "demo:fraud", "--port"], "--port"),
        (["sreve"], "sreve"),
        (["healthcheck", "alive"], "alive"),
        (["demo", "extra"], "extra"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_2(run: Run, arguments: list[str], named: str) -> None:
    code, out, err = run(*arguments)

    assert (code, out) == (2, "")
    assert named in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "case",
    [
        flag("SLO without unit", "--slo", "p95 < 50"),
        flag("size without unit", "--max-body", "1"),
        variable("duration without unit", "TAILPROOF_DRAIN_DELAY", "5"),
        server("number for a text", "host", "1", "1"),
        document("not TOML", "[server", "--config", "tailproof.toml"),
        line("no such source", "MODEL", "nowhere", "nowhere"),
    ],
    ids=lambda case: f"{case.key} {case.words}",
)
def test_a_process_with_a_broken_configuration_never_binds_its_port(
    case: Broken, taken_port: int, tmp_path: Path
) -> None:
    # the port is ours: had the process tried to bind it, it would complain about that instead
    if case.toml is not None:
        (tmp_path / "tailproof.toml").write_text(case.toml)

    arguments = ["serve", *case.line, "--port", str(taken_port)]
    done = process(*arguments, cwd=tmp_path, **case.environ)

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"tailproof: {case.key} = ")
    assert case.value in done.stderr
    assert done.stderr.count("\n") == 1


# errors


def test_an_expected_error_is_one_line(
    run: Run, started: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> int:
        raise ModelError("no model is called so")

    monkeypatch.setattr(sys.modules["tailproof.serving.server"], "run", fail)

    assert run("serve", "demo:fraud") == (1, "", "tailproof: no model is called so\n")


CRASH = """
import sys
from tailproof import cli, config
def crash(*_): raise RuntimeError("first line\\nsecond line")
config.load = crash
cli.main(["serve", "demo:fraud"])
"""


@pytest.mark.parametrize("debug", ["", "1"])
def test_an_unexpected_error_shows_its_stack_only_when_asked(tmp_path: Path, debug: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CRASH],
        cwd=tmp_path,
        env={**os.environ, "TAILPROOF_DEBUG": debug},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == (1 if debug else cli.BROKEN)
    assert ("Traceback" in done.stderr) == bool(debug)
    if not debug:
        assert done.stderr == (
            "tailproof: unexpected RuntimeError: first line (set TAILPROOF_DEBUG=1 for the stack)\n"
        )


# healthcheck


class Probe(BaseHTTPRequestHandler):
    """Live and not ready; startup never says anything."""

    def do_GET(self) -> None:
        if self.path.endswith("/health/startup"):
            self.server.asked.wait(60)  # type: ignore[attr-defined]
            return
        self.send_response(200 if self.path.endswith("/health/live") else 503)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing: the output belongs to the test."""


@pytest.fixture
def probes() -> Iterator[int]:
    """Port of a server with the probes above."""
    with HTTPServer(("127.0.0.1", 0), Probe) as server:
        server.asked = threading.Event()  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.asked.set()  # type: ignore[attr-defined]
        server.shutdown()
        thread.join()


def test_a_probe_that_says_yes(run: Run, probes: int) -> None:
    assert run("healthcheck", "live", "--port", str(probes)) == (0, "live: 200 OK\n", "")


def test_a_probe_that_says_no(run: Run, probes: int) -> None:
    expected = (1, "", "ready: 503 Service Unavailable\n")

    assert run("healthcheck", "--url", f"http://127.0.0.1:{probes}/") == expected


def test_a_probe_that_says_nothing(run: Run, probes: int) -> None:
    code, _, err = run("healthcheck", "startup", "--port", str(probes), "--timeout", "50ms")

    assert (code, err) == (1, "startup: no answer (TimeoutError)\n")


def test_a_probe_of_nobody(run: Run, free_port: int) -> None:
    code, _, err = run("healthcheck", "--port", str(free_port))

    assert (code, err) == (1, "ready: no answer (ConnectionRefusedError)\n")


def test_a_probe_finds_the_server_of_the_same_settings(
    run: Run, probes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("tailproof.toml").write_text(f'[server]\nhost = "0.0.0.0"\nport = {probes}\n')
    assert run("healthcheck", "live")[0] == 0

    monkeypatch.setenv("TAILPROOF_PORT", "1")
    assert run("healthcheck", "live")[0] == 1


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--url", "https://127.0.0.1"], "--url = 'https://127.0.0.1'"),
        (["--url", "127.0.0.1:8000"], "--url = '127.0.0.1:8000'"),
        (["--url", "http://127.0.0.1:x"], "--url = 'http://127.0.0.1:x'"),
        (["--port", "0"], "--port = '0'"),
        (["--timeout", "1"], "--timeout = '1'"),
        (["--url", "http://h", "--port", "1"], "--port = '1'"),
    ],
)
def test_a_wrong_question_is_exit_2(run: Run, arguments: list[str], named: str) -> None:
    code, _, err = run("healthcheck", *arguments)

    assert code == 2
    assert err.startswith(f"tailproof: {named}: ")


# What a report may show


def test_the_command_of_a_report_holds_no_secret() -> None:
    given = [
        *("prove", "http://user:pw5@10.0.0.7/p?token=q5&x=y5", "--header", "X-Auth: h5"),
        *("--header=apikey: h6", "--template", '{"a": 5}', "--slo", "p95 < 50ms"),
    ]

    shown = cli._again(given)

    assert not any(secret in shown for secret in ("user", "pw5", "q5", "y5", "h5", "h6"))
    for kept in ("http://10.0.0.7/p?token=...&x=...", "X-Auth: ...", "apikey: ...", "p95 < 50ms"):
        assert kept in shown


def test_the_command_of_a_report_is_text_whatever_was_typed() -> None:
    assert cli._again(["prove", "--out", "r\udcff"]).encode()


@pytest.mark.parametrize("flag", ["--html", "--junit"])
def test_a_report_that_cannot_be_written_is_told_before_anything_is_sent(
    run: Run, flag: str, tmp_path: Path
) -> None:
    nowhere = tmp_path / "nowhere" / "report"

    code, out, err = run(
        *("prove", "http://127.0.0.1:9/x", "--slo", "p95 < 1s", "--rate", "1/s"),
        *("--template", "{}", flag, str(nowhere)),
    )

    assert (code, out) == (2, "")
    assert err == f"tailproof: {flag} = {str(nowhere)!r}: cannot be written there\n"
