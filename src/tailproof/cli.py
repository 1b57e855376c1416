"""The `tailproof` command: one function a command, each a thin face of the package.

Exit codes: 0 done, or the answer is yes; 1 the answer is no; 2 wrong usage or configuration;
3 undecided, or the measurement is invalid; 70 a bug of ours. An expected error is one line on
stderr. Commands import what they run, so that `--help` stays quick.
"""

import os
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from tailproof import __version__, config
from tailproof.core.errors import ConfigError, TailproofError
from tailproof.core.units import parse_duration, parse_size
from tailproof.load.settings import LoadSettings, TargetSettings
from tailproof.serving.settings import ModelSettings, ServerSettings

if TYPE_CHECKING:
    from tailproof.reporting.document import Document

OK, NO, USAGE, UNDECIDED, BROKEN, INTERRUPTED = 0, 1, 2, 3, 70, 130
EXIT_CODES = {"PASS": OK, "FAIL": NO, "UNDECIDED": UNDECIDED, "INVALID": UNDECIDED}
COMPARED = {"better": OK, "no difference": OK, "worse": NO, "undecided": UNDECIDED}


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run one command and leave with its exit code."""
    _open_standard_streams()
    try:
        given = sys.argv[1:] if arguments is None else arguments
        code = cli.main(given, prog_name="tailproof", standalone_mode=False, obj=given)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        code = USAGE
    except click.ClickException as error:
        code = _complain(error.format_message(), error.exit_code)
    except ConfigError as error:
        code = _complain(str(error), USAGE)
    except TailproofError as error:
        code = _complain(str(error), NO)
    except (click.Abort, KeyboardInterrupt):
        code = INTERRUPTED
    except Exception as error:
        if os.environ.get("TAILPROOF_DEBUG"):
            raise
        code = _complain(_unexpected(error), BROKEN)
    sys.exit(code or OK)


def _open_standard_streams() -> None:
    """Whoever closed one of them would find a socket in its place, and log into it."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free: this one


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="%(prog)s %(version)s")
def cli() -> None:
    """From a registered model to a service that proves its P99."""


_config_option = click.option(
    "--config",
    "file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="file with the settings  [default: ./tailproof.toml, if there is one]",
)


@cli.command(
    params=[
        *config.options(ServerSettings),
        *config.options(ModelSettings),
    ],
    epilog="Durations and sizes carry units: 50ms, 2s, 5m; 64KiB, 16MiB. Every option can also be "
    "set in the environment (--max-body: TAILPROOF_MAX_BODY) or in tailproof.toml.",
)
@click.argument("models", nargs=-1, metavar="[MODEL]...")
@_config_option
def serve(models: tuple[str, ...], file: Path | None, **flags: object) -> int:
    """Serve models: those named here, or those of the file.

    A MODEL is models:/name@alias, models:/name/3, an MLflow model folder, python:module:Class,
    demo:fraud, or fake:?fixed=5ms for trying things out.
    """
    # a user's own classes are found where the command is run, as with `python -m`
    sys.path.append(str(Path.cwd()))
    settings = config.load(models, flags, os.environ, file)

    from tailproof.serving.server import run

    return run(settings.server, list(settings.models))


@dataclass(frozen=True, slots=True)
class Wanted:
    """The forms in which a report is wanted."""

    as_json: bool
    html: Path | None
    junit: Path | None
    lang: str


def _report_options(*, junit: bool = True) -> list[click.Option]:
    path = click.Path(path_type=Path, dir_okay=False)
    options = [
        click.Option(["--json", "as_json"], is_flag=True, help="print one JSON document"),
        click.Option(["--html"], metavar="FILE", type=path, help="write one self-contained page"),
        click.Option(
            ["--lang"],
            type=click.Choice(["en", "zh-TW"]),
            default="en",
            help="language that the page opens in  [default: en]",
        ),
    ]
    if junit:
        options.append(
            click.Option(["--junit"], metavar="FILE", type=path, help="write JUnit XML, for CI")
        )
    return options


@cli.command(
    params=[
        *config.options(LoadSettings),
        *config.options(TargetSettings),
        *_report_options(),
    ],
    epilog="Durations and rates carry units: 50ms, 30s, 5m; 300/s. Every option can also be set in "
    "the environment (--budget: TAILPROOF_PROVE_BUDGET) or in tailproof.toml, under [prove].",
)
@click.argument("url")
@_config_option
@click.pass_obj
def prove(given: list[str], /, url: str, file: Path | None, **flags: Any) -> int:
    """Load-test the service at URL and judge it: PASS, FAIL, UNDECIDED or INVALID.

    Without --rate, --require or --steps it searches for the highest rate that holds the SLO.
    Requests leave when the schedule says, whatever the service does, and are timed from then.
    Exit code: 0 PASS, 1 FAIL, 3 UNDECIDED or INVALID.
    """
    found = config.load_test(flags, os.environ, file)
    wanted = _wanted(flags)

    from tailproof.load import job, prove, replay
    from tailproof.reporting.live import Live

    live, again = Live(as_json=wanted.as_json), _again(given)
    if found.load.locustfile is not None:
        document = replay.run(
            url, found.target, found.load, live, environ=os.environ, command=again
        )
    else:
        document = prove.run(job.make(url, found.target, found.load, os.environ, again), live)
    return _deliver(document, Path(str(document.run)), wanted)


@cli.command(params=[*config.options(TargetSettings), *_report_options(junit=False)])
@click.argument("url")
@click.option(
    "--requests",
    metavar="INTEGER",
    type=click.IntRange(2, 10_000),
    default=30,
    help="how many, one after the other  [default: 30]",
)
@_config_option
def probe(url: str, requests: int, file: Path | None, **flags: Any) -> int:
    """A few requests to URL, one by one: the first against the warm ones, and the counters.

    A closed loop of one: it says how long a lone request takes, and nothing about load.
    """
    found = config.load_test(flags, os.environ, file)
    wanted = _wanted(flags)

    from tailproof.load import job
    from tailproof.load.probe import probe as ask
    from tailproof.reporting import html
    from tailproof.reporting.console import probe_lines

    aim = job.aim(url, found.target, os.environ)
    result = ask(aim.target, requests, found.target.timeout)
    if wanted.html is not None:
        _write("--html", wanted.html, html.probe_page(result, wanted.lang))
    _print(result, probe_lines(result), as_json=wanted.as_json)
    return OK


@cli.command(params=_report_options())
@click.argument("run", type=click.Path(path_type=Path))
def report(run: Path, **flags: Any) -> int:
    """The report of a recorded RUN, such as runs/latest, again or in another form.

    The exit code is that of the verdict, as in prove.
    """
    from tailproof.reporting import runs

    found = runs.read(run)
    return _deliver(found.document, found.path, _wanted(flags))


@cli.command()
@click.argument("before", type=click.Path(path_type=Path))
@click.argument("after", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="print one JSON document")
def compare(before: Path, after: Path, as_json: bool) -> int:
    """Is the run AFTER better or worse than BEFORE, or is there no difference?

    Exit code: 0 better or no difference, 1 worse, 3 cannot tell.
    """
    from tailproof.load.compare import compare_runs
    from tailproof.reporting import runs
    from tailproof.reporting.console import compare_lines

    found = compare_runs(runs.read(before), runs.read(after))
    _print(found, compare_lines(found), as_json=as_json)
    return COMPARED[found.outcome]


@cli.command()
@click.option("--host", default="127.0.0.1", help="[default: 127.0.0.1]")
@click.option("--port", type=click.IntRange(0, 65535), default=8090, help="[default: 8090]")
@click.option("--delay", metavar="DURATION", default="0ms", help="[default: 0ms]")
@click.option("--size", metavar="SIZE", default="70B", help="of each answer  [default: 70B]")
def null(host: str, port: int, delay: str, size: str) -> int:
    """A service that does nothing, to measure a load tester with: each request is answered after
    a set delay."""
    seconds = _read("--delay", delay, parse_duration)
    num_bytes = _read("--size", size, parse_size)

    from tailproof.load.null import serve

    def ready(port: int) -> None:
        click.echo(f"answering on http://{host}:{port} after {delay}")

    try:
        serve(host, port, seconds, num_bytes, ready)
    except ValueError as error:
        raise ConfigError("--size, --delay", f"{size}, {delay}", str(error)) from None
    except OSError as error:
        problem = error.strerror or "cannot be listened on"
        raise ConfigError("--port", port, problem) from None
    return OK


@cli.command()
@click.argument("probe", type=click.Choice(["live", "ready", "startup"]), default="ready")
@click.option("--url", metavar="URL", help="the server, such as http://10.0.0.7:8000")
@click.option("--port", metavar="INTEGER", help="or its port here; default: that of serve")
@click.option("--timeout", metavar="DURATION", default="2s", help="[default: 2s]")
@_config_option
def healthcheck(
    probe: str, url: str | None, port: str | None, timeout: str, file: Path | None
) -> int:
    """Ask a probe of a running server: exit 0 when it says yes, 1 when it does not.

    For container and Kubernetes probes of the kind exec. Host and port come from tailproof.toml
    and TAILPROOF_HOST, TAILPROOF_PORT, as in serve.
    """
    from tailproof.healthcheck import ask, local_url

    if url and port:
        raise ConfigError("--port", port, "give either --url or --port")
    if not url:
        server = config.load_server({"port": port}, os.environ, file)
        url = local_url(server.host, server.port)
    seconds = _read("--timeout", timeout, parse_duration)
    try:
        yes, heard = ask(url, probe, seconds)
    except ValueError as error:
        raise ConfigError("--url", url, str(error)) from None
    click.echo(f"{probe}: {heard}", err=not yes)
    return OK if yes else NO


@cli.command()
@click.option(
    "--dir",
    "directory",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(".tailproof/demo"),
    help="where its registry, logs and reports are kept  [default: .tailproof/demo]",
)
@click.option("--port", metavar="INTEGER", help="default: 8000, or a free one")
@click.option(
    "--budget", metavar="DURATION", default="50s", help="time for each load test  [default: 50s]"
)
@click.option(
    "--beside",
    metavar="SCRIPT",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="prove this Python service, too; it takes --port and --tracking-uri",
)
@click.option("--keep", is_flag=True, help="leave the server running until Ctrl-C")
@click.option("--json", "as_json", is_flag=True, help="print one JSON document")
def demo(
    *,
    directory: Path,
    port: str | None,
    budget: str,
    beside: Path | None,
    keep: bool,
    as_json: bool,
) -> int:
    """The whole road on one machine: train, register, serve, ask, prove.

    Trains a small fraud classifier, registers it in a local MLflow registry, serves it with
    --slo "p95 < 50ms" and finds out how many requests a second it takes within that.
    """
    from tailproof import demo as road

    seconds = _read("--budget", budget, parse_duration)
    flags = config.from_flags(ServerSettings, {"port": port})
    wanted = config.build(ServerSettings, flags).port if port else None
    plan = road.Plan(directory, port=wanted, budget=seconds, beside=beside, keep=keep)
    return road.run(plan, as_json=as_json)


T = TypeVar("T")


def _read(flag: str, text: str, parse: Callable[[str], T]) -> T:
    try:
        return parse(text)
    except (ValueError, OverflowError) as error:
        raise ConfigError(flag, text, str(error)) from None


def _wanted(flags: dict[str, Any]) -> Wanted:
    """Raises ConfigError when a report could not be written later."""
    for name in ("html", "junit"):
        file = flags.get(name)
        if file is not None and not os.access(file if file.exists() else file.parent, os.W_OK):
            raise ConfigError(f"--{name}", str(file), "cannot be written there")
    return Wanted(flags["as_json"], flags["html"], flags.get("junit"), flags["lang"])


def _deliver(document: "Document", run: Path, wanted: Wanted) -> int:
    """The report of a run in every form that is wanted; the exit code of its verdict."""
    from tailproof.reporting import html, runs
    from tailproof.reporting.console import verdict_lines
    from tailproof.reporting.junit import junit

    _print(document, verdict_lines(document), as_json=wanted.as_json)
    if wanted.html is not None:
        page = html.report(document, lambda index: runs.find_step(run, index), wanted.lang)
        _write("--html", wanted.html, page)
    if wanted.junit is not None:
        _write("--junit", wanted.junit, junit(document))
    return EXIT_CODES[document.verdict]


def _print(document: object, lines: Sequence[str], *, as_json: bool) -> None:
    import msgspec

    encoded = msgspec.json.format(msgspec.json.encode(document), indent=2)
    click.echo(encoded if as_json else "\n".join(lines))


def _write(flag: str, file: Path, text: str) -> None:
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(flag, str(file), error.strerror or "cannot be written") from None


_QUERY_VALUE = re.compile(r"(?<==)[^&#]+(?=[^#]*)")
_USER = re.compile(r"//[^/?#]*@")


def _again(given: Sequence[str]) -> str:
    """The command that runs this again, without what somebody must not read in a report: the
    values of headers, and user, password and query values of a URL."""
    shown = [_shown(before, word) for before, word in zip(["", *given], given, strict=False)]
    text = shlex.join(["tailproof", *shown])
    return text.encode("utf-8", "replace").decode("utf-8")


def _shown(before: str, word: str) -> str:
    flag, equals, value = word.partition("=")
    if before == "--header":
        return f"{word.partition(':')[0]}: ..."
    if flag == "--header" and equals:
        return f"--header={value.partition(':')[0]}: ..."
    if "://" not in word or word.startswith("-"):
        return word
    address, mark, query = _USER.sub("//", word).partition("?")
    return f"{address}{mark}{_QUERY_VALUE.sub('...', query)}"


def _complain(message: str, code: int) -> int:
    click.echo(f"tailproof: {message}", err=True)
    return code


def _unexpected(error: Exception) -> str:
    """Takes the place of the traceback when something fails that nobody expected."""
    problem = f"unexpected {type(error).__name__}: {error}".splitlines()[0]
    return f"{problem} (set TAILPROOF_DEBUG=1 for the stack)"


if __name__ == "__main__":
    main()
