"""One line a request and one line an event, written by a thread that may wait for the reader.

`Log` formats on the event loop and hands whole lines over once per turn; `LogWriter` holds what
its reader has not taken yet, up to a bound, and beyond it drops and counts. Nothing that a client
sends can start a second line: every character that is not printable is escaped.
"""

import math
import os
import select
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from queue import Empty, SimpleQueue
from typing import Any, Literal

import msgspec

from tailproof import __version__
from tailproof.core.clock import wall
from tailproof.core.timeline import Timeline
from tailproof.core.waiting import Priority
from tailproof.telemetry.fault import Fault
from tailproof.telemetry.trace import Trace

MAX_LINE = 8 * 2**10
"""Most bytes in a line, its newline included."""
MAX_STACK_LINES = 40
"""Most lines of a stack in a text log, each indented: no line of ours begins with a space."""
MAX_VALUE = 1024
"""Most characters of a free text, such as an error message, in an access record."""
CUTS = (MAX_LINE, 1024, 256, 64, 16)
"""Characters that are left of every text in a line: the first with which the line fits."""
MOST_FIELDS = 24
"""Fields that are left of an event whose line is too long even so."""
ENOUGH = 2**18
"""Bytes that the writer collects before it writes."""

SERVICE = "tailproof"
Level = Literal["debug", "info", "warning", "error"]

NAMES = {
    "timestamp": "@timestamp",
    "level": "log.level",
    "event": "event.name",
    "service": "service.name",
    "service_version": "service.version",
    "method": "http.request.method",
    "route": "http.route",
    "status": "http.response.status_code",
    "error": "error.type",
    "error_message": "error.message",
    "stack": "error.stack_trace",
    "model": "model.name",
    "version": "model.version",
}
"""Short name -> name in the JSON line (Elastic Common Schema where it has one)."""
OURS = frozenset({"@timestamp", "log.level", "event.name", "service.name", "service.version"})
"""Names whose values are our own words: never cut."""


class Access(msgspec.Struct, omit_defaults=True, gc=False, rename=NAMES):
    """What is written down of one request. What is absent is left out of the line."""

    timestamp: str
    level: Level
    message: str
    event: str
    service: str
    service_version: str
    request_id: str
    method: str
    route: str
    status: int
    outcome: str
    duration_ms: float | None = None
    queue_ms: float | None = None
    batch_ms: float | None = None
    infer_ms: float | None = None
    model: str | None = None
    version: str | None = None
    rows: int | None = None
    batch_rows: int | None = None
    worker: int | None = None
    error: str | None = None
    error_message: str | None = None
    retryable: bool | None = None
    priority: str | None = None
    timeout_ms: float | None = None
    remaining_ms: float | None = None
    slo_budget_left: float | None = None
    slo_margin: float | None = None
    trace_id: str | None = None
    span_id: str | None = None


class LogWriter:
    """Writes lines to a file descriptor in a thread of its own; callers never wait for it.

    Holds at most `max_bytes` and `max_records` that are not written yet. What does not fit, and
    what the descriptor refuses (its reader is gone, the disk is full), is dropped and counted.
    Lines appear whole and in order; only a `close` that runs out of time may end within one.
    """

    def __init__(
        self, fd: int = 1, *, max_bytes: int = 8 * 2**20, max_records: int = 100_000
    ) -> None:
        self.fd = fd
        self._max_bytes = max_bytes
        self._max_records = max_records
        self._queue: SimpleQueue[tuple[int, bytes] | None] = SimpleQueue()
        self._lock = threading.Lock()  # guards the numbers below; never held during a write
        self._held_records = 0
        self._held_bytes = 0
        self._dropped = 0
        self._closed = False
        self._abandoned = False
        self._torn = False  # the last write ended within a line
        self._thread = threading.Thread(target=self._run, name="log-writer", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        """Records that were handed over and will never be written."""
        return self._dropped

    @property
    def held(self) -> int:
        """Records that wait to be written."""
        return self._held_records

    def write(self, lines: bytes) -> None:
        """Hand over whole lines, each with its newline. Never blocks, never raises."""
        num_records = lines.count(b"\n")
        with self._lock:
            if not self._fits(num_records, len(lines)):
                num_records, lines = self._what_fits(lines)
            if num_records:
                self._held_records += num_records
                self._held_bytes += len(lines)
                self._queue.put((num_records, lines))

    def close(self, timeout: float) -> bool:
        """Write what is held, for at most `timeout` seconds; drop the rest.

        Returns whether the time was enough. Lines handed over later are dropped.
        """
        with self._lock:
            if not self._closed:
                self._closed = True
                self._queue.put(None)
        self._thread.join(timeout)
        with self._lock:
            self._abandoned = True
            self._dropped += self._held_records
            written = self._held_records == 0
            self._held_records = self._held_bytes = 0
        return written

    def _fits(self, num_records: int, num_bytes: int) -> bool:
        return (
            not self._closed
            and self._held_records + num_records <= self._max_records
            and self._held_bytes + num_bytes <= self._max_bytes
        )

    def _what_fits(self, lines: bytes) -> tuple[int, bytes]:
        """How many of the first lines fit, and those; the others are counted as dropped."""
        accepted, num_bytes = 0, 0
        offered = lines.split(b"\n")[:-1]
        for line in offered:
            if not self._fits(accepted + 1, num_bytes + len(line) + 1):
                break
            accepted += 1
            num_bytes += len(line) + 1
        self._dropped += len(offered) - accepted
        return accepted, lines[:num_bytes]

    def _run(self) -> None:
        """The writer thread: what has come together goes out in one write."""
        ended = False
        while not ended and not self._abandoned:
            num_records, data, ended = self._take()
            num_lost = self._deliver(data)
            with self._lock:
                if not self._abandoned:
                    self._held_records -= num_records
                    self._held_bytes -= len(data)
                    self._dropped += num_lost

    def _take(self) -> tuple[int, bytes, bool]:
        """Wait for lines; return how many there are, the lines, and whether no more will come."""
        num_records, num_bytes, parts = 0, 0, []
        parcel = self._queue.get()
        while parcel is not None:
            num_records += parcel[0]
            num_bytes += len(parcel[1])
            parts.append(parcel[1])
            if num_bytes >= ENOUGH:
                break
            try:
                parcel = self._queue.get_nowait()
            except Empty:
                break
        return num_records, b"".join(parts), parcel is None

    def _deliver(self, data: bytes) -> int:
        """Write `data`; return how many of its lines did not get out whole."""
        # A fragment is closed first, lest it swallow the next line.
        prefix = b"\n" if self._torn and data else b""
        whole = memoryview(prefix + data)
        sent = 0
        while sent < len(whole) and not self._abandoned:
            try:
                sent += os.write(self.fd, whole[sent:])
            except BlockingIOError:
                self._wait_for_room()
            except OSError:
                break
        if sent:
            self._torn = whole[sent - 1] != ord("\n")
        return data.count(b"\n", max(0, sent - len(prefix)))

    def _wait_for_room(self) -> None:
        poll = select.poll()
        poll.register(self.fd, select.POLLOUT)
        poll.poll(100)  # milliseconds; then look again whether to give up


class Log:
    """Formats records and hands them to a writer.

    Access records are kept until `flush`. With `call_soon` (the event loop's), the first record
    of a turn schedules the flush at the turn's end; without it, each record is flushed at once.
    `log_format` `auto` is text on a terminal, else JSON.
    """

    def __init__(
        self,
        writer: LogWriter,
        log_format: Literal["auto", "json", "text"] = "auto",
        *,
        call_soon: Callable[[Callable[[], None]], object] | None = None,
        clock: Callable[[], float] = wall,
    ) -> None:
        if log_format == "auto":
            log_format = "text" if os.isatty(writer.fd) else "json"
        self._format: _Json | _Text = _Text() if log_format == "text" else _Json()
        self._writer = writer
        self._call_soon = call_soon
        self._clock = clock
        self._pending: list[Access] = []

    def access(
        self,
        *,
        request_id: str,
        method: str,
        route: str,
        status: int,
        outcome: str,
        timeline: Timeline,
        trace: Trace | None = None,
        model: str | None = None,
        version: str | None = None,
        rows: int | None = None,
        batch_rows: int | None = None,
        worker: int | None = None,
        priority: Priority = Priority.NORMAL,
        timeout: float | None = None,
        fault: Fault | None = None,
    ) -> None:
        """Write down one request that has ended. Never its body.

        `timeout`: seconds that its caller gave it; what was left of them at its end is told too.
        `fault` says what was wrong; empty names, 0 rows and a normal priority are left out.
        """
        pending = self._pending
        pending.append(
            Access(
                "",  # all records of a flush get one time
                _level(status, outcome),
                "request",
                "request",
                SERVICE,
                __version__,
                request_id,
                method,
                route,
                status,
                outcome,
                _milliseconds(timeline.answered),
                _milliseconds(timeline.queue_seconds),
                _milliseconds(timeline.batch_seconds),
                _milliseconds(timeline.infer_seconds),
                model or None,
                version or None,
                rows or None,
                batch_rows or None,
                worker,
                *_told(fault),
                None if priority is Priority.NORMAL else priority.word,
                _milliseconds(timeout),
                _remaining(timeout, timeline.answered),
                *((None, None) if fault is None else (fault.budget_left, fault.margin)),
                trace.trace_id if trace is not None else None,
                trace.span_id if trace is not None else None,
            )
        )
        if self._call_soon is None:
            self.flush()
        elif len(pending) == 1:
            self._call_soon(self.flush)

    def flush(self) -> None:
        """Format the pending access records together and hand them over once."""
        if self._pending:
            records, self._pending = self._pending, []
            self._writer.write(self._format.access(records, self._clock()))

    def event(self, name: str, message: str, level: Level = "info", **fields: Any) -> None:
        """Write down something that the server did or saw. Fields that are None are left out;
        `model`, `version`, `error`, ... get their names in `NAMES`."""
        self.flush()
        self._writer.write(self._format.event(name, message, level, fields, self._clock()))


class _Stamps:
    """Wall-clock times as text, formatted once a second."""

    def __init__(self, layout: str) -> None:
        self._layout = layout
        self._second: int | None = None
        self._text = ""

    def __call__(self, now: float) -> str:
        """UTC with milliseconds: the layout, then `.123Z`."""
        second = math.floor(now)
        if second != self._second:
            self._text = time.strftime(self._layout, time.gmtime(second))
            self._second = second
        return f"{self._text}.{int((now - second) * 1e3):03d}Z"


class _Json:
    """One JSON object a line, times by RFC 3339."""

    def __init__(self) -> None:
        encoder = msgspec.json.Encoder()
        self._encode, self._encode_lines = encoder.encode, encoder.encode_lines
        self._stamp = _Stamps("%Y-%m-%dT%H:%M:%S")

    def access(self, records: Sequence[Access], now: float) -> bytes:
        stamp = self._stamp(now)
        for record in records:
            record.timestamp = stamp
        try:
            lines = self._encode_lines(records)
        except UnicodeEncodeError:  # a lone surrogate
            lines = b""
        if lines and _is_printable(lines) and _fit(lines):
            return lines
        return b"".join(self._careful(msgspec.to_builtins(record)) for record in records)

    def event(
        self, name: str, message: str, level: Level, fields: Mapping[str, Any], now: float
    ) -> bytes:
        ours = {
            "@timestamp": self._stamp(now),
            "log.level": level,
            "message": message,
            "event.name": name,
            "service.name": SERVICE,
            "service.version": __version__,
        }
        named = {NAMES.get(key, key): fields[key] for key in fields if fields[key] is not None}
        return self._careful(ours | named)

    def _careful(self, fields: Mapping[str, Any]) -> bytes:
        """A line from any `fields`, whatever is in them: printable, and within `MAX_LINE`."""
        for cut in CUTS:
            short = {
                _cut(key, 64): value if key in OURS else _plain(value, cut)
                for key, value in fields.items()
            }
            line = self._line(short)
            if len(line) <= MAX_LINE:
                return line
        return self._line(dict(list(short.items())[:MOST_FIELDS]))

    def _line(self, fields: dict[str, Any]) -> bytes:
        # A character that is not printable can only be inside a string, where \u is its escape.
        return _printable(self._encode(fields).decode()).encode() + b"\n"


class _Text:
    """One readable line, for terminals."""

    def __init__(self) -> None:
        self._stamp = _Stamps("%H:%M:%S")

    def access(self, records: Sequence[Access], now: float) -> bytes:
        stamp = self._stamp(now)
        return b"".join(_text_line(f"{stamp} {_describe(record)}") for record in records)

    def event(
        self, name: str, message: str, level: Level, fields: Mapping[str, Any], now: float
    ) -> bytes:
        words = [
            f"{key}={value}"
            for key, value in fields.items()
            if value is not None and key != "stack"
        ]
        parts = (self._stamp(now), level.upper(), name, message, *words)
        stack = str(fields.get("stack") or "").splitlines()[-MAX_STACK_LINES:]
        return _text_line(" ".join(parts)) + b"".join(_text_line("    " + s) for s in stack)


def _describe(record: Access) -> str:
    """`200 POST /predict fraud@3 rows=1 total=5.3ms queue=1.2ms infer=3.1ms ok id=4f-1`"""
    model = f" {record.model}@{record.version or '-'}" if record.model else ""
    numbers = (
        ("rows", record.rows, ""),
        ("total", record.duration_ms, "ms"),
        ("queue", record.queue_ms, "ms"),
        ("infer", record.infer_ms, "ms"),
    )
    told = "".join(f" {name}={value}{unit}" for name, value, unit in numbers if value is not None)
    error = "".join(f" {text}" for text in (record.error, record.error_message) if text)
    what = f"{record.status} {record.method} {record.route}{model}{told} {record.outcome}"
    return f"{what}{error} id={record.request_id}"


def _text_line(text: str) -> bytes:
    line = _printable(text[:MAX_LINE]).encode()
    if len(line) >= MAX_LINE:
        line = line[: MAX_LINE - 4].decode(errors="ignore").encode() + b"..."
    return line + b"\n"


def _is_printable(lines: bytes) -> bool:
    """Whether the JSON lines hold no character that should be escaped and is not."""
    if lines.isascii():
        return b"\x7f" not in lines  # JSON itself escapes the other control characters
    return lines.decode().replace("\n", "").isprintable()


def _fit(lines: bytes) -> bool:
    """Whether every line is within `MAX_LINE`: then each such stretch holds a line's end."""
    start = 0
    while start < len(lines):
        newline = lines.rfind(b"\n", start, start + MAX_LINE)
        if newline < 0:
            return False
        start = newline + 1
    return True


def _level(status: int, outcome: str) -> Level:
    """Our own faults are errors; that nobody could answer is a warning."""
    if outcome != "failed":
        return "info"
    return "warning" if status == 503 else "error"


def _told(fault: Fault | None) -> tuple[str | None, str | None, bool | None]:
    """The error's name, its words, and whether to try again."""
    if fault is None:
        return None, None, None
    message = fault.message[:MAX_VALUE] if fault.message else None
    return fault.error or None, message, fault.retryable


def _remaining(timeout: float | None, taken: float | None) -> float | None:
    """Milliseconds that were left of its caller's time; below 0: it came too late."""
    return None if timeout is None or taken is None else round((timeout - taken) * 1e3, 3)


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else int(seconds * 1e6 + 0.5) / 1e3


def _cut(text: str, length: int) -> str:
    """At most `length` characters and a mark, in valid Unicode."""
    short = text if len(text) <= length else text[:length] + "..."
    return short.encode(errors="backslashreplace").decode()


def _plain(value: object, length: int) -> object:
    """`value` as JSON can take it: a number or truth value as it is, anything else as text."""
    if isinstance(value, bool | float) or (isinstance(value, int) and abs(value) < 2**63):
        return value
    if isinstance(value, int):
        return _cut(hex(value), length)  # decimal digits of a huge number cost quadratic time
    if isinstance(value, bytes):
        return _cut(value[: length + 1].decode(errors="backslashreplace"), length)
    return _cut(str(value), length)


def _printable(text: str) -> str:
    """`text` with every character that is not printable (line breaks, escape sequences, marks
    that turn the direction of writing) as its backslash-u escape."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escape(char) for char in text)


def _escape(char: str) -> str:
    code = ord(char)
    if code < 0x10000:
        return f"\\u{code:04x}"
    high, low = divmod(code - 0x10000, 0x400)
    return f"\\u{0xD800 + high:04x}\\u{0xDC00 + low:04x}"
