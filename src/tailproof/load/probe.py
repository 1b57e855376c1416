"""A few requests, one after the other on one connection: what the first one costs a user.

A closed loop of one: nothing ever waits behind anything else, so its figures say what a lone
request takes and nothing about load.
"""

import http.client
import math
import re
import select
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, TypedDict

from tailproof import __version__
from tailproof.core import statistics
from tailproof.core.clock import monotonic
from tailproof.core.errors import ConfigError
from tailproof.core.recording import LOST, NOT_CONNECTED, NOT_HTTP, TIMED_OUT, status_name
from tailproof.load.connection import tls_context
from tailproof.load.pages import Impatient
from tailproof.load.server_view import counters, metrics_page
from tailproof.load.target import Target

WARM_KEYS = ("p50", "p90", "p95", "p99", "max", "resolved", "infinite")
READ_AT_ONCE = 1 << 16
MIN_REQUESTS = 2
MAX_FAILURES = 3
"""Requests in a row without any answer, at the start, after which nobody is there to be probed."""

_TIMING = re.compile(r"(?P<name>[\w-]+)\s*;[^,]*?\bdur=(?P<milliseconds>\d+(\.\d+)?)")


class Probe(TypedDict):
    """The document that `probe --json` prints. Seconds; absent is None."""

    tool: str
    target: str
    requests: int
    errors: int
    """Requests without a 2xx answer, whose speed is in no figure."""
    statuses: dict[str, int]
    cold_seconds: float | None
    """The first request, its connection included. None: it got no good answer."""
    connect_seconds: float | None
    """The part of it that was the connection (TCP, and TLS where there is any)."""
    told_cold: bool
    """The server itself called the first answer cold (`X-Cold: 1`)."""
    first_server_seconds: dict[str, float]
    """`Server-Timing` of the first answer."""
    warm_seconds: dict[str, Any]
    """p50, p95, p99, ... of the good answers after the first, from the send to the last byte."""
    cold_warm_ratio: float | None
    """cold_seconds / warm p50."""
    counters: dict[str, float]
    """How much those counters of the target's `/metrics` grew that count requests or tokens."""
    seconds: list[float | None]
    """Of every request in order; None: no good answer."""


@dataclass(frozen=True, slots=True)
class _Exchange:
    """One request and what came back."""

    status: int
    """HTTP's, or a code of `core.recording` (below 0)."""
    seconds: float
    """From the send to the last byte; of the first request from the connect."""
    connect: float | None = None
    """None: there was a connection already."""
    headers: dict[str, str] = field(default_factory=dict)
    """Names in lower case."""
    problem: str = ""

    @property
    def good_seconds(self) -> float | None:
        return self.seconds if 200 <= self.status < 300 else None


def probe(
    target: Target,
    requests: int = 30,
    timeout: float = 30.0,
    progress: Callable[[int], None] | None = None,
) -> Probe:
    """Send `requests` requests; `progress` is told how many are done.

    A connection that breaks is opened again for the next request, outside its time: only the first
    request pays for its connection.

    Raises ConfigError when `requests` is below 2, or when the first requests get no answer at all.
    """
    if requests < MIN_REQUESTS:
        raise ConfigError("--requests", requests, "expected 2 or more: the first, and a warm one")
    before = metrics_page(target)
    found: list[_Exchange] = []
    with closing(_exchanges(target, requests, timeout)) as exchanges:
        for exchange in exchanges:
            found.append(exchange)
            _require_somebody(target, found, requests)
            if progress is not None:
                progress(len(found))
    return _document(target, found, _increments(before, metrics_page(target)))


# --- sending --------------------------------------------------------------------------------------


def _exchanges(target: Target, requests: int, timeout: float) -> Generator[_Exchange, None, None]:
    """One after the other, on a connection that is kept for as long as it lasts."""
    context = tls_context(target)  # reading certificates takes longer than many an answer
    connection: http.client.HTTPConnection | None = None
    try:
        for index in range(requests):
            began = monotonic()
            connect = None
            try:
                if connection is None or _is_closed(connection.sock):
                    connection = _connected(target, context, timeout)
                    connect = monotonic() - began
                sent = began if index == 0 else monotonic()
                request = target.requests[index % len(target.requests)]
                answer = _answer(connection, request, target.method, sent + timeout)
                yield _Exchange(answer.status, monotonic() - sent, connect, _headers(answer))
                if answer.will_close:
                    connection.close()
            except (OSError, http.client.HTTPException) as error:
                yield _failure(error, monotonic() - began, connecting=connection is None)
                _close(connection)
                connection = None
    finally:
        _close(connection)


def _connected(
    target: Target, context: ssl.SSLContext | None, timeout: float
) -> http.client.HTTPConnection:
    """It connects and reads; the bytes that are sent are the target's own."""
    connection = (
        http.client.HTTPConnection(target.host, target.port, timeout=timeout)
        if context is None
        else http.client.HTTPSConnection(target.host, target.port, timeout=timeout, context=context)
    )
    connection.connect()
    return connection


def _is_closed(connection: socket.socket | None) -> bool:
    """By us, or by the server while it was idle: then there is something to read, its end."""
    return connection is None or bool(select.select([connection], [], [], 0.0)[0])


def _answer(
    connection: http.client.HTTPConnection, request: bytes, method: str, deadline: float
) -> http.client.HTTPResponse:
    """Send, and read to the last byte."""
    impatient: Any = Impatient(connection.sock, deadline)
    impatient.sendall(request)
    with closing(http.client.HTTPResponse(impatient, method=method)) as response:
        response.begin()
        while response.read1(READ_AT_ONCE):
            pass
        if response.length:
            raise http.client.IncompleteRead(b"", response.length)
        return response


def _headers(answer: http.client.HTTPResponse) -> dict[str, str]:
    return {name.lower(): value for name, value in answer.getheaders()}


def _failure(error: Exception, seconds: float, *, connecting: bool) -> _Exchange:
    match error:
        case TimeoutError():
            status = TIMED_OUT
        case OSError() if connecting:
            status = NOT_CONNECTED
        case OSError() | http.client.IncompleteRead():
            status = LOST
        case _:
            status = NOT_HTTP
    problem = str(getattr(error, "strerror", None) or status_name(status))
    return _Exchange(status, seconds, problem=problem)


def _close(connection: http.client.HTTPConnection | None) -> None:
    if connection is not None:
        connection.close()


def _require_somebody(target: Target, found: Sequence[_Exchange], requests: int) -> None:
    """A document about nothing helps nobody. Raises ConfigError."""
    enough = found[0].status == NOT_CONNECTED or len(found) == min(requests, MAX_FAILURES)
    if enough and all(exchange.status <= 0 for exchange in found):
        which = "request" if len(found) == 1 else f"{len(found)} requests"
        problem = f"no answer to the first {which} ({found[-1].problem}): is the service running?"
        raise ConfigError("URL", target.url, problem)


# --- what is told ---------------------------------------------------------------------------------


def _document(target: Target, found: Sequence[_Exchange], grown: dict[str, float]) -> Probe:
    first, seconds = found[0], [exchange.good_seconds for exchange in found]
    warm = statistics.describe([math.inf if took is None else took for took in seconds[1:]])
    p50 = warm["p50"]
    statuses = Counter(status_name(each.status) for each in found)
    return Probe(
        tool=f"tailproof {__version__}",
        target=target.url,
        requests=len(found),
        errors=seconds.count(None),
        statuses=dict(statuses),
        cold_seconds=seconds[0],
        connect_seconds=first.connect,
        told_cold=first.headers.get("x-cold") == "1",
        first_server_seconds=_server_seconds(first.headers.get("server-timing", "")),
        warm_seconds={name: warm[name] for name in WARM_KEYS},
        cold_warm_ratio=None if seconds[0] is None or not p50 else seconds[0] / p50,
        counters=grown,
        seconds=seconds,
    )


def _server_seconds(header: str) -> dict[str, float]:
    return {found["name"]: float(found["milliseconds"]) / 1e3 for found in _TIMING.finditer(header)}


def _increments(before: str | None, after: str | None) -> dict[str, float]:
    """What has grown. A counter that is new has grown from 0; without a page before, all of
    them would seem new."""
    if before is None or after is None:
        return {}
    start = counters(before)
    grown = {name: value - start.get(name, 0.0) for name, value in counters(after).items()}
    return {name: value for name, value in grown.items() if value > 0}
