"""Runs inside Locust: writes down every request, a JSON line each.

    {"start": 1764530000.123, "seconds": 0.0123, "method": "POST", "url": "http://...", ...}

`start` is wall-clock time, as Locust tells it; `seconds` comes from its monotonic clock. Nothing of
Locust is imported here: `register` is handed its events.
"""

import os
import time
from base64 import b64encode
from collections.abc import Callable
from typing import Any

import msgspec

FLUSH = 1_000
"""Records that are kept before they are written together."""
MAX_BODY_BYTES = 256 * 2**20
"""Of all bodies together; later ones are not kept."""
MAX_ERROR = 300
_NETWORK = ("geventhttpclient", "gevent", "requests", "urllib3", "ssl", "socket", "http", "zlib")


class Asked(msgspec.Struct, omit_defaults=True):
    """One request, as Locust saw it."""

    start: float
    """Seconds since 1970."""
    seconds: float
    """From the send to the last byte."""
    method: str
    url: str
    status: int = 0
    """0: no answer."""
    length: int = 0
    failed: bool = False
    """By Locust's or the user's own check."""
    error: str = ""
    network: bool = False
    """The error is one of the connection."""
    content_type: str | None = None
    body: str | None = None
    """None: it could not be had (a stream, or too many)."""
    is_base64: bool = False


class Recorder:
    """Appends to `path`. Several processes may: every write is of whole lines."""

    def __init__(self, path: str, clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._clock = clock
        self._encode = msgspec.json.Encoder().encode_lines
        self._waiting: list[Any] = []
        self._bytes_left = MAX_BODY_BYTES

    def mark(self, name: str) -> None:
        """Write down the time of an event."""
        self._waiting.append({"event": name, "time": self._clock()})

    def request(self, **told: Any) -> None:
        """Write down one request: a listener of Locust's `request` event."""
        self._waiting.append(self._asked(told))
        if len(self._waiting) >= FLUSH:
            self.flush()

    def flush(self, **_: Any) -> None:
        """Hand over what waits."""
        waiting, self._waiting = self._waiting, []
        lines = self._encode(waiting)
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            while lines:
                lines = lines[os.write(file, lines) :]
        finally:
            os.close(file)

    def _asked(self, told: dict[str, Any]) -> Asked:
        seconds = float(told.get("response_time") or 0.0) / 1e3
        response, failure = told.get("response"), told.get("exception")
        # The user's own check may hide what happened: the response keeps it.
        error = getattr(response, "error", None) or failure
        sent = _first_request(response)
        headers = getattr(sent, "headers", None) or {}
        body, is_base64 = self._body(sent)
        return Asked(
            start=told.get("start_time") or self._clock() - seconds,
            seconds=seconds,
            method=str(told.get("request_type") or ""),
            url=str(told.get("url") or ""),
            status=int(getattr(response, "status_code", 0) or 0),
            length=int(told.get("response_length") or 0),
            failed=failure is not None,
            error="" if error is None else f"{type(error).__name__}: {error}"[:MAX_ERROR],
            network=_is_network(error),
            content_type=headers.get("content-type"),
            body=body,
            is_base64=is_base64,
        )

    def _body(self, sent: Any) -> tuple[str | None, bool]:
        """The body as text, and whether that is base64."""
        if sent is None:
            return None, False
        body = getattr(sent, "body", None) or getattr(sent, "payload", None) or b""
        body = body.encode() if isinstance(body, str) else body
        if not isinstance(body, bytes) or len(body) > self._bytes_left:
            return None, False
        self._bytes_left -= len(body)
        try:
            return body.decode(), False
        except UnicodeDecodeError:
            return b64encode(body).decode(), True


def register(events: Any, path: str) -> Recorder:
    """Listen to Locust's `events` and write to `path`."""
    recorder = Recorder(path)
    events.test_start.add_listener(lambda **_: recorder.mark("start"))
    events.test_stopping.add_listener(lambda **_: recorder.mark("stop"))
    events.request.add_listener(recorder.request)
    for hook in (events.test_stop, events.quitting, events.quit):
        hook.add_listener(recorder.flush)
    return recorder


def _first_request(response: Any) -> Any:
    """What was sent, before any redirect."""
    history = getattr(response, "history", None)
    return getattr(history[0] if history else response, "request", None)


def _is_network(error: Any) -> bool:
    return isinstance(error, OSError) or type(error).__module__.partition(".")[0] in _NETWORK
