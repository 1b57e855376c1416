"""Locust files, run unchanged, and judged as what they are: a closed loop.

Locust itself runs in a process of its own (`python -m locust`); a listener beside the user's file
writes down every request. Its users wait for their answers, so a slow server slows the load down
and its percentiles look better than what independent users would feel: the same requests can be
sent again, open loop, at the rate that was reached.
"""

import importlib.util
import math
import subprocess
import sys
import tempfile
from base64 import b64decode
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import numpy as np

from tailproof.core import recording as codes
from tailproof.core.errors import ConfigError
from tailproof.core.recording import Floats, Recording
from tailproof.load.locust_listener import Asked
from tailproof.load.payloads import JSON, Payloads, num_rows

FLAG = "--locustfile"
STOP_TIMEOUT = 10
"""Seconds in which requests under way at the end may still be answered; Locust would drop them,
and they are the slowest."""
START_TIMEOUT = 60.0
"""Seconds for Locust to start and to write its results, beyond the run."""
MAX_BODIES = 100_000
_LISTENER = """from locust import events
from tailproof.load import locust_listener
locust_listener.register(events, {path!r})
"""


@dataclass(frozen=True, slots=True)
class Route:
    """The distinct bodies that were sent to one path."""

    method: str
    path: str
    """With its query."""
    payloads: Payloads


@dataclass(frozen=True, slots=True, eq=False)
class LocustRun:
    """What a Locust file sent and what came back."""

    requests: Recording
    """In order of their start. A closed loop has no schedule: `intended` is when each was sent.
    `payload` numbers the bodies of all routes one after the other; -1: the body could not be had.
    """
    routes: tuple[Route, ...]
    """The most asked first."""
    seconds: float
    """From the start to when it was told to end."""
    users: int
    """As asked for."""
    warnings: tuple[str, ...] = ()

    @property
    def measured(self) -> Recording:
        """The requests that were sent before the end."""
        return self.requests.between(0.0, self.seconds)

    @property
    def rate(self) -> float:
        """Requests a second that the users sent."""
        return len(self.measured) / self.seconds

    @property
    def achieved(self) -> float:
        """2xx answers before the end, a second."""
        done = self.measured.good & (self.measured.last < self.seconds)
        return int(np.count_nonzero(done)) / self.seconds

    def percentile(self, percent: float) -> float:
        """Seconds, by nearest rank over raw values, not rounded; infinite where the rank falls on
        a request without a good answer. Raises ValueError unless 0 < percent <= 100."""
        if not 0 < percent <= 100:
            raise ValueError(f"percent must be above 0 and at most 100; got {percent}")
        response: Floats = np.sort(self.measured.response)
        return float(response[max(0, math.ceil(percent / 100 * len(response)) - 1)])

    def payloads(self) -> tuple[Route, ...]:
        """The mix to send again: its bodies by route, of which `requests.payload` says which was
        sent when. Raises ConfigError when no body could be had."""
        if not self.routes:
            raise ConfigError(FLAG, None, "no request could be written down in a way to repeat it")
        return self.routes


def run(
    locustfile: Path | str,
    host: str,
    users: int,
    spawn_rate: float,
    run_time: float,
) -> LocustRun:
    """Run a Locust file against `host` (scheme, name and port) for `run_time` seconds, which
    Locust rounds to whole ones.

    Raises ConfigError when Locust is not installed, the file is not there or does not run, or it
    asks nothing.
    """
    file = Path(locustfile)
    _require(file, users, spawn_rate, run_time)
    options = {
        "--host": host,
        "--users": f"{users}",
        "--spawn-rate": f"{spawn_rate:g}",
        "--run-time": f"{max(1, round(run_time))}s",
    }
    limit = run_time + users / spawn_rate + STOP_TIMEOUT + START_TIMEOUT
    with tempfile.TemporaryDirectory(prefix="tailproof-locust-") as name:
        folder = Path(name)
        _run(_command(file, folder, options), folder / "log", file, limit)
        found = read(_lines(folder / "requests.jsonl"), host, users, run_time, file.name)
        return _counted(found, folder / "stats.json")


def read(
    lines: Sequence[bytes], host: str, users: int, run_time: float, name: str = "locustfile"
) -> LocustRun:
    """A run from the lines of its listener. Raises ConfigError when there is no HTTP request."""
    marks, everything = _parsed(lines)
    asked = sorted((each for each in everything if _is_http(each)), key=lambda each: each.start)
    if not asked:
        raise ConfigError(FLAG, name, "it sent no HTTP request")
    start = min([asked[0].start, *marks.get("start", ())])
    seconds = max(marks["stop"]) - start if "stop" in marks else run_time
    if asked[0].start - start >= seconds:
        raise ConfigError(FLAG, name, "it sent no HTTP request before the end")
    routes, numbers = _routes(asked, host, f"Locust file {name}")
    return LocustRun(
        requests=_recording(asked, start, numbers),
        routes=routes,
        seconds=seconds,
        users=users,
        warnings=tuple(_warnings(asked, len(everything) - len(asked), numbers)),
    )


def _require(file: Path, users: int, spawn_rate: float, run_time: float) -> None:
    if importlib.util.find_spec("locust") is None:
        problem = "Locust is not installed: pip install 'tailproof[locust]'"
        raise ConfigError(FLAG, str(file), problem)
    if not file.is_file():
        raise ConfigError(FLAG, str(file), "no such file")
    for flag, value in (("--users", users), ("--spawn-rate", spawn_rate), ("--run-time", run_time)):
        if not 0 < value < math.inf:
            raise ConfigError(flag, value, "must be a number above 0")


def _command(file: Path, folder: Path, options: dict[str, str]) -> list[str]:
    listener = folder / "tailproof_listener.py"
    listener.write_text(_LISTENER.format(path=str(folder / "requests.jsonl")))
    options = {
        "-f": f"{file.absolute()},{listener}",
        **options,
        "--stop-timeout": f"{STOP_TIMEOUT}",
        "--exit-code-on-error": "0",
        "--json-file": str(folder / "stats.json"),
        "--loglevel": "WARNING",
    }
    flags = [part for option in options.items() for part in option]
    return [sys.executable, "-m", "locust", *flags, "--headless", "--only-summary"]


def _run(command: list[str], log: Path, file: Path, limit: float) -> None:
    """Wait for Locust to end by itself. Raises ConfigError with its last words."""
    with (
        log.open("wb") as output,
        _ending(
            subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )
        ) as process,
    ):
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            problem = f"Locust did not end within {limit:.0f}s"
            raise ConfigError(FLAG, str(file), problem) from None
    if code != 0:
        words = " | ".join(_last_words(log)) or "without a word"
        raise ConfigError(FLAG, str(file), f"Locust ended with code {code}: {words}")


@contextmanager
def _ending(process: "subprocess.Popen[bytes]") -> Iterator["subprocess.Popen[bytes]"]:
    """The process does not outlive us, whatever happens."""
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _last_words(log: Path) -> list[str]:
    lines = log.read_text(errors="replace").splitlines()
    return [line.strip() for line in lines if line.strip()][-3:]


def _lines(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines() if path.exists() else []


def _parsed(lines: Sequence[bytes]) -> tuple[dict[str, list[float]], list[Asked]]:
    """When the test began and was told to end (seconds since 1970), and its requests."""
    marks: dict[str, list[float]] = {}
    asked = []
    decode = msgspec.json.Decoder().decode
    for line in lines:
        value = decode(line)
        if "event" in value:
            marks.setdefault(value["event"], []).append(value["time"])
        else:
            asked.append(msgspec.convert(value, Asked))
    return marks, asked


def _is_http(asked: Asked) -> bool:
    """Users of other protocols fire the same event."""
    return urlsplit(asked.url).scheme in ("http", "https") or bool(asked.status)


def _recording(asked: Sequence[Asked], start: float, numbers: Sequence[int]) -> Recording:
    begun = np.array([each.start for each in asked]) - start
    ended = begun + [each.seconds for each in asked]
    status = np.array([_status(each) for each in asked], np.int32)
    return replace(
        Recording.empty(begun),
        sent=begun,
        last=np.where(status == codes.UNANSWERED, np.nan, ended),
        status=status,
        received_bytes=np.array([each.length for each in asked], np.int32),
        sent_bytes=np.array([len(_body(each) or b"") for each in asked], np.int32),
        payload=np.array(numbers, np.int32),
    )


def _status(asked: Asked) -> int:
    """HTTP's status, or why there is no good answer."""
    is_good = 200 <= asked.status < 300
    if asked.status and not (is_good and asked.failed):
        return asked.status
    if is_good and not asked.network:
        return codes.REJECTED
    words = asked.error.lower()
    if "refused" in words or "newconnectionerror" in words:
        return codes.NOT_CONNECTED
    return codes.TIMED_OUT if "timeout" in words or "timed out" in words else codes.LOST


def _routes(asked: Sequence[Asked], host: str, source: str) -> tuple[tuple[Route, ...], list[int]]:
    """The routes with their distinct bodies, and for each request the number of its body."""
    ours = urlsplit(host).netloc.rpartition("@")[2]
    keys = [_repeatable(each, ours) for each in asked]
    counts = Counter(key[:3] for key in keys if key is not None)
    rank = {route: place for place, (route, _) in enumerate(counts.most_common())}
    distinct = list(dict.fromkeys(key for key in keys if key is not None))[:MAX_BODIES]
    distinct.sort(key=lambda key: rank[key[:3]])
    number = {key: place for place, key in enumerate(distinct)}
    routes = tuple(
        Route(method, path, _as_payloads(tuple(key[3] for key in alike), source, kind))
        for (method, path, kind), alike in groupby(distinct, lambda key: key[:3])
    )
    return routes, [-1 if key is None else number.get(key, -1) for key in keys]


def _repeatable(asked: Asked, ours: str) -> tuple[str, str, str, bytes] | None:
    """Method, path, content type and body of a request to the target; None: it cannot be sent
    again."""
    body = _body(asked)
    if body is None or urlsplit(asked.url).netloc.rpartition("@")[2] != ours:
        return None
    return asked.method, _path(asked.url), asked.content_type or "", body


def _as_payloads(bodies: tuple[bytes, ...], source: str, content_type: str) -> Payloads:
    is_json = content_type.partition(";")[0].strip() == JSON
    rows = tuple(_rows(body) if is_json else 1 for body in bodies)
    return Payloads(bodies, rows, source, content_type)


def _rows(body: bytes) -> int:
    try:
        return num_rows(msgspec.json.decode(body))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return 1


def _body(asked: Asked) -> bytes | None:
    if asked.body is None:
        return None
    return b64decode(asked.body) if asked.is_base64 else asked.body.encode()


def _path(url: str) -> str:
    parts = urlsplit(url)
    return (parts.path or "/") + (f"?{parts.query}" if parts.query else "")


def _warnings(asked: Sequence[Asked], num_other: int, numbers: Sequence[int]) -> Iterator[str]:
    yield (
        "Locust is a closed loop: its users wait for answers, so a slow server slows the load down "
        "and the percentiles are too good"
    )
    if num_other:
        yield f"{num_other:,} events were no HTTP requests and are left out"
    kept = sum(not each.failed and not 200 <= each.status < 300 for each in asked)
    if kept:
        yield f"{kept:,} answers that the Locust file accepts are not 2xx: here they are errors"
    if missing := sum(number < 0 for number in numbers):
        yield f"{missing:,} requests cannot be sent again: their bodies or targets are not known"


def _counted(found: LocustRun, stats: Path) -> LocustRun:
    """With a warning when Locust counted other requests than its listener wrote down."""
    try:
        entries: list[dict[str, Any]] = msgspec.json.decode(stats.read_bytes())
        counted = sum(int(entry["num_requests"]) for entry in entries)
    except (OSError, msgspec.DecodeError, KeyError, TypeError):
        return found
    if counted == len(found.requests):
        return found
    said = f"Locust counts {counted:,} requests, its listener saw {len(found.requests):,}"
    return replace(found, warnings=(*found.warnings, said))
