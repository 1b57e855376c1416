"""The `tailproof` command: one function a command, each a thin face of the package.

Exit codes: 0 done, or the answer is yes; 1 the answer is no; 2 wrong usage or configuration;
3 undecided. An expected error is one line on stderr. Commands import what they run, so that
`--help` stays quick.
"""

import os
import sys
from pathlib import Path
from types import TracebackType
from typing import NoReturn

import click

from tailproof import __version__, config
from tailproof.core.errors import ConfigError, TailproofError
from tailproof.core.units import parse_duration
from tailproof.serving.settings import ModelSettings, ServerSettings

OK, NO, USAGE, INTERRUPTED = 0, 1, 2, 130


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run one command and leave with its exit code."""
    _open_standard_streams()
    if not os.environ.get("TAILPROOF_DEBUG"):
        sys.excepthook = _one_line
    try:
        code = cli.main(arguments, prog_name="tailproof", standalone_mode=False)
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
    try:
        seconds = parse_duration(timeout)
    except ValueError as error:
        raise ConfigError("--timeout", timeout, str(error)) from None
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
    help="where its registry and log are kept  [default: .tailproof/demo]",
)
@click.option("--port", metavar="INTEGER", help="default: 8000, or a free one")
@click.option("--keep", is_flag=True, help="leave the server running until Ctrl-C")
@click.option("--json", "as_json", is_flag=True, help="print one JSON document")
def demo(directory: Path, port: str | None, keep: bool, as_json: bool) -> int:
    """The whole road on one machine: train, register, serve, ask.

    Trains a small fraud classifier, registers it in a local MLflow registry, serves it with
    --slo "p95 < 50ms" and sends it some four hundred requests.
    """
    from tailproof import demo as road

    flags = config.from_flags(ServerSettings, {"port": port})
    wanted = config.build(ServerSettings, flags).port if port else None
    return road.run(directory, port=wanted, keep=keep, as_json=as_json)


def _complain(message: str, code: int) -> int:
    click.echo(f"tailproof: {message}", err=True)
    return code


def _one_line(kind: type[BaseException], error: BaseException, _: TracebackType | None) -> None:
    """Takes the place of the traceback when something fails that nobody expected."""
    problem = f"unexpected {kind.__name__}: {error}".splitlines()[0]
    click.echo(f"tailproof: {problem} (set TAILPROOF_DEBUG=1 for the stack)", err=True)


if __name__ == "__main__":
    main()
