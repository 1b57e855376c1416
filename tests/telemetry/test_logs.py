"""One line a record, whole, in order, whatever is in it; and a caller that never waits."""

import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailproof import __version__
from tailproof.core.timeline import Timeline
from tailproof.core.waiting import Priority
from tailproof.telemetry import logs
from tailproof.telemetry.fault import Fault
from tailproof.telemetry.logs import MAX_LINE, MAX_STACK_LINES, Log, LogWriter
from tailproof.telemetry.trace import Trace

NOON = 1_700_000_000.5  # 2023-11-14T22:13:20.500Z
TIMELINE = Timeline(
    admitted=0.001,
    worker_free=0.002,
    dispatched=0.0025,
    started=0.003,
    finished=0.005,
    answered=0.0053,
)


class Kept(LogWriter):
    """A writer that keeps the lines instead of writing them."""

    def __init__(self) -> None:
        self.fd = -1
        self.handed: list[bytes] = []

    def write(self, lines: bytes) -> None:
        self.handed.append(lines)


def written(log_format: str, act: Callable[[Log], None]) -> bytes:
    """What one log writes when `act` uses it."""
    kept = Kept()
    act(Log(kept, log_format, clock=lambda: NOON))  # type: ignore[arg-type]
    return b"".join(kept.handed)


def access(log: Log, **changes: Any) -> None:
    fields: dict[str, Any] = {
        "request_id": "p-1",
        "method": "POST",
        "route": "/predict",
        "status": 200,
        "outcome": "ok",
        "timeline": TIMELINE,
    }
    told = {key: changes.pop(key) for key in ("error", "message", "retryable") if key in changes}
    if told:
        fields["fault"] = Fault(told.pop("error", ""), "", **told)
    log.access(**fields | changes)


# What a record says


def test_an_access_record_says_everything_once() -> None:
    line = written(
        "json",
        lambda log: access(
            log,
            status=503,
            outcome="failed",
            trace=Trace("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"),
            model="fraud",
            version="3",
            rows=2,
            batch_rows=32,
            worker=0,
            priority=Priority.CRITICAL,
            timeout=0.005,
            fault=Fault("worker_lost", "worker_lost", "the worker was lost", True, 0.25, 1.05),
        ),
    )

    assert json.loads(line) == {
        "@timestamp": "2023-11-14T22:13:20.500Z",
        "log.level": "warning",
        "message": "request",
        "event.name": "request",
        "service.name": "tailproof",
        "service.version": __version__,
        "request_id": "p-1",
        "http.request.method": "POST",
        "http.route": "/predict",
        "http.response.status_code": 503,
        "outcome": "failed",
        "duration_ms": 5.3,
        "queue_ms": 1.0,
        "batch_ms": 0.5,
        "infer_ms": 2.0,
        "model.name": "fraud",
        "model.version": "3",
        "rows": 2,
        "batch_rows": 32,
        "worker": 0,
        "error.type": "worker_lost",
        "error.message": "the worker was lost",
        "retryable": True,
        "priority": "critical",
        "timeout_ms": 5.0,
        "remaining_ms": -0.3,
        "slo_budget_left": 0.25,
        "slo_margin": 1.05,
        "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736",
        "span_id": "00f067aa0ba902b7",
    }


def test_what_is_absent_is_left_out() -> None:
    line = written(
        "json", lambda log: access(log, timeline=Timeline(), model="", version=None, rows=0)
    )

    assert list(json.loads(line)) == [
        "@timestamp",
        "log.level",
        "message",
        "event.name",
        "service.name",
        "service.version",
        "request_id",
        "http.request.method",
        "http.route",
        "http.response.status_code",
        "outcome",
    ]


def test_zero_and_false_are_not_absent() -> None:
    line = written(
        "json", lambda log: access(log, timeline=Timeline(answered=0.0), worker=0, retryable=False)
    )

    record = json.loads(line)
    assert (record["duration_ms"], record["worker"], record["retryable"]) == (0.0, 0, False)


@pytest.mark.parametrize(
    ("outcome", "level"),
    [("ok", "info"), ("client_error", "info"), ("shed", "info"), ("failed", "error")],
)
def test_only_our_own_failures_are_errors(outcome: str, level: str) -> None:
    line = written("json", lambda log: access(log, outcome=outcome))

    assert json.loads(line)["log.level"] == level


def test_an_event_says_what_it_was_told() -> None:
    line = written(
        "json",
        lambda log: log.event(
            "worker.lost", "signal 9", "warning", model="fraud", worker=1, error=None, share=0.5
        ),
    )

    assert json.loads(line) == {
        "@timestamp": "2023-11-14T22:13:20.500Z",
        "log.level": "warning",
        "message": "signal 9",
        "event.name": "worker.lost",
        "service.name": "tailproof",
        "service.version": __version__,
        "model.name": "fraud",
        "worker": 1,
        "share": 0.5,
    }


def test_text_is_one_readable_line() -> None:
    assert written("text", lambda log: access(log, model="fraud", version="3", rows=1)) == (
        b"22:13:20.500Z 200 POST /predict fraud@3 rows=1 total=5.3ms queue=1.0ms infer=2.0ms ok"
        b" id=p-1\n"
    )
    assert written(
        "text",
        lambda log: access(
            log,
            status=429,
            outcome="shed",
            timeline=Timeline(answered=0.001),
            error="queue_full",
            message="the queue is full",
        ),
    ) == (b"22:13:20.500Z 429 POST /predict total=1.0ms shed queue_full the queue is full id=p-1\n")
    assert written(
        "text", lambda log: log.event("model.ready", "warm", model="fraud", pid=None)
    ) == (b"22:13:20.500Z INFO model.ready warm model=fraud\n")


@pytest.mark.parametrize(
    ("now", "text"),
    [
        (0.0, "1970-01-01T00:00:00.000Z"),
        (NOON, "2023-11-14T22:13:20.500Z"),
        (1_700_000_000.9996, "2023-11-14T22:13:20.999Z"),
        (1_700_000_001.0, "2023-11-14T22:13:21.000Z"),
        (1_709_164_800.0, "2024-02-29T00:00:00.000Z"),
        (-0.25, "1969-12-31T23:59:59.750Z"),
    ],
)
def test_times_are_utc_with_milliseconds(now: float, text: str) -> None:
    kept = Kept()

    Log(kept, "json", clock=lambda: now).event("e", "m")

    assert json.loads(kept.handed[0])["@timestamp"] == text


def test_a_clock_that_jumps_is_followed() -> None:
    kept = Kept()
    log = Log(kept, "json", clock=iter((NOON, NOON + 3600, NOON)).__next__)

    for _ in range(3):
        log.event("e", "m")

    stamps = [json.loads(line)["@timestamp"][11:19] for line in kept.handed]
    assert stamps == ["22:13:20", "23:13:20", "22:13:20"]


# When records are handed over


def test_the_records_of_one_turn_are_handed_over_once() -> None:
    kept, scheduled = Kept(), list[Callable[[], None]]()
    log = Log(kept, "json", call_soon=scheduled.append, clock=lambda: NOON)

    for number in range(32):
        access(log, request_id=f"p-{number}")
    assert kept.handed == []
    assert len(scheduled) == 1
    scheduled[0]()

    assert len(kept.handed) == 1
    ids = [json.loads(line)["request_id"] for line in kept.handed[0].splitlines()]
    assert ids == [f"p-{number}" for number in range(32)]


def test_the_next_turn_schedules_again_and_an_early_flush_leaves_nothing() -> None:
    kept, scheduled = Kept(), list[Callable[[], None]]()
    log = Log(kept, "json", call_soon=scheduled.append, clock=lambda: NOON)

    access(log)
    log.flush()
    scheduled[0]()  # finds nothing
    access(log)
    scheduled[1]()

    assert len(kept.handed) == 2


def test_without_a_loop_each_record_is_handed_over_at_once() -> None:
    kept = Kept()
    log = Log(kept, "json", clock=lambda: NOON)

    access(log)
    access(log)

    assert len(kept.handed) == 2


def test_an_event_does_not_overtake_the_requests_before_it() -> None:
    kept = Kept()
    log = Log(kept, "json", call_soon=lambda _: None, clock=lambda: NOON)

    access(log)
    log.event("drain", "no more requests")

    names = [json.loads(line)["event.name"] for line in b"".join(kept.handed).splitlines()]
    assert names == ["request", "drain"]


@pytest.mark.parametrize(
    ("status", "outcome", "level"),
    [
        (200, "ok", "info"),
        (422, "client_error", "info"),
        (429, "shed", "info"),
        (500, "failed", "error"),
        (503, "failed", "warning"),
    ],
)
def test_only_our_own_faults_are_errors(status: int, outcome: str, level: str) -> None:
    line = written("json", lambda log: access(log, status=status, outcome=outcome))
    assert json.loads(line)["log.level"] == level


# Forged lines

FORGED = {
    "newline": 'x\n{"log.level":"error","message":"forged"}',
    "carriage return": "x\r\nforged",
    "quote and brace": '"}\n{"a":"',
    "backslash": "\\",
    "ansi": "\x1b[2J\x1b[31mred",
    "c1 control": "\x9b31m\x85",
    "nul": "a\x00b",
    "delete": "a\x7fb",
    "line separator": "a\u2028b\u2029c",
    "right to left": "a\u202eb\u2066c",
    "byte order mark": "\ufeffa",
    "language tag": "\U000e0041",
    "lone surrogate": "a\ud800b",
    "invalid utf-8": b"a\xff\xfeb".decode(errors="surrogateescape"),
    "not a character": "\uffff",
    "one megabyte": "a" * 2**20,
    "one megabyte of escapes": "\x00" * 2**20,
    "one megabyte of four bytes": "\U0001f600" * 2**18,
    "one megabyte of newlines": "\n" * 2**20,
}
ACCESS_FIELDS = (
    *("request_id", "method", "route", "outcome", "model", "version", "error", "message"),
    "trace",
)


def assert_one_safe_line(line: bytes) -> None:
    assert line.endswith(b"\n")
    assert len(line) <= MAX_LINE
    text = line[:-1].decode()
    assert text.isprintable()
    assert len(text.splitlines()) == 1


@pytest.mark.parametrize("log_format", ["json", "text"])
@pytest.mark.parametrize("field", ACCESS_FIELDS)
@pytest.mark.parametrize("forged", FORGED.values(), ids=FORGED)
def test_no_value_of_an_access_record_makes_a_second_line(
    forged: str, field: str, log_format: str
) -> None:
    value = Trace(forged, forged) if field == "trace" else forged

    line = written(log_format, lambda log: access(log, **{field: value}))

    assert_one_safe_line(line)
    if log_format == "json":
        record = json.loads(line)
        assert record["log.level"] == "info"
        assert record["message"] == "request"
        assert record["http.response.status_code"] == 200


@pytest.mark.parametrize("log_format", ["json", "text"])
@pytest.mark.parametrize("forged", FORGED.values(), ids=FORGED)
def test_no_value_of_an_event_makes_a_second_line(forged: str, log_format: str) -> None:
    fields = {"odd key": forged} | ({"stack": forged} if log_format == "json" else {})

    line = written(log_format, lambda log: log.event("e", forged, **fields))

    assert_one_safe_line(line)
    if log_format == "json":
        assert json.loads(line)["event.name"] == "e"


@pytest.mark.parametrize("forged", FORGED.values(), ids=FORGED)
def test_a_stack_in_a_text_log_is_indented_lines_that_begin_nothing(forged: str) -> None:
    lines = written("text", lambda log: log.event("e", "raised", stack=forged)).splitlines(True)

    assert len(lines) <= 1 + MAX_STACK_LINES
    for line in lines:
        assert_one_safe_line(line)
    assert not lines[0].startswith(b" ")
    assert all(line.startswith(b"    ") for line in lines[1:])


def test_a_stack_in_a_text_log_can_be_read() -> None:
    stack = 'File "model.py", line 3, in load\n    weights[0]\nIndexError: no weights'
    text = written("text", lambda log: log.event("e", "raised", stack=stack)).decode()
    assert text.splitlines()[1:] == ["    " + line for line in stack.splitlines()]


def test_one_hostile_record_spoils_only_itself() -> None:
    kept = Kept()
    log = Log(kept, "json", call_soon=lambda _: None, clock=lambda: NOON)

    access(log, request_id="before")
    access(log, route="\ud800\n\x1b", model="\u2028" * 100_000)
    access(log, request_id="after")
    log.flush()

    lines = kept.handed[0].splitlines(keepends=True)
    for line in lines:
        assert_one_safe_line(line)
    assert [json.loads(line)["request_id"] for line in lines] == ["before", "p-1", "after"]
    assert lines[0] == written("json", lambda log: access(log, request_id="before"))


@given(
    st.text(st.characters(exclude_categories=())),
    st.dictionaries(st.text(min_size=1), st.integers() | st.floats() | st.text() | st.binary()),
)
def test_whatever_an_event_is_told_it_is_one_line_of_json(
    message: str, fields: dict[str, Any]
) -> None:
    clean = {f"x_{key}": value for key, value in fields.items()}

    line = written("json", lambda log: log.event("e", message, **clean))

    assert_one_safe_line(line)
    assert json.loads(line)["event.name"] == "e"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("naïve café 模型", "naïve café 模型"),  # what people write stays as it is
        ("a\nb\x1b", "a\nb\x1b"),  # JSON gives back what was escaped
        ("a\u2028b\u202e\x7f", "a\u2028b\u202e\x7f"),
        ("\U0001f600\U000e0041", "\U0001f600\U000e0041"),
        ("a\ud800", "a\\ud800"),  # no JSON parser would take it otherwise
    ],
)
def test_json_gives_back_what_was_logged(text: str, told: str) -> None:
    for act in (
        lambda log: log.event("e", "m", error_message=text),
        lambda log: access(log, message=text),
    ):
        assert json.loads(written("json", act))["error.message"] == told


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (True, True),
        (-1, -1),
        (1.5, 1.5),
        (float("nan"), None),
        (2**63 - 1, 2**63 - 1),
        (2**63, "0x8000000000000000"),
        pytest.param(16**2000, "0x1" + "0" * 2000, id="2000 digits"),
        (b"a\xff", "a\\xff"),
        ([1, 2], "[1, 2]"),
        (OSError("no"), "no"),
    ],
)
def test_any_value_has_a_form(value: object, told: object) -> None:
    line = written("json", lambda log: log.event("e", "m", value=value))

    assert json.loads(line)["value"] == told


def test_a_line_of_exactly_the_limit_is_kept_whole_and_one_more_is_cut() -> None:
    short = len(written("json", lambda log: log.event("e", "")))
    fits, over = "a" * (MAX_LINE - short), "a" * (MAX_LINE - short + 1)

    kept = written("json", lambda log: log.event("e", fits))
    cut = written("json", lambda log: log.event("e", over))

    assert len(kept) == MAX_LINE
    assert json.loads(kept)["message"] == fits
    assert len(cut) < MAX_LINE
    assert json.loads(cut)["message"] == "a" * 1024 + "..."


def test_an_access_line_of_exactly_the_limit_is_kept_whole_and_one_more_is_cut() -> None:
    short = len(written("json", lambda log: access(log, route="")))
    fits, over = "a" * (MAX_LINE - short), "a" * (MAX_LINE - short + 1)

    assert json.loads(written("json", lambda log: access(log, route=fits)))["http.route"] == fits
    cut = json.loads(written("json", lambda log: access(log, route=over)))
    assert cut["http.route"] == "a" * 1024 + "..."


def test_a_text_line_of_exactly_the_limit_is_kept_whole_and_one_more_is_cut() -> None:
    short = len(written("text", lambda log: log.event("e", "")))
    fits, over = "a" * (MAX_LINE - short), "a" * (MAX_LINE - short + 1)

    kept = written("text", lambda log: log.event("e", fits))
    cut = written("text", lambda log: log.event("e", over))

    assert len(kept) == len(cut) == MAX_LINE
    assert kept.endswith(b"aaaa\n")
    assert cut.endswith(b"a...\n")


def test_a_thousand_fields_are_cut_to_the_first_ones() -> None:
    fields = {f"field_{number}": "\x00" * 100 for number in range(1000)}

    name = "a.name.of.more.than.sixteen.characters"

    line = written("json", lambda log: log.event(name, "message", **fields))

    assert_one_safe_line(line)
    record = json.loads(line)
    assert len(record) == logs.MOST_FIELDS
    assert record["message"] == "message"
    assert record["@timestamp"] == "2023-11-14T22:13:20.500Z"
    assert record["event.name"] == name


def test_a_message_of_an_access_record_is_cut_at_its_limit() -> None:
    fits = "a" * logs.MAX_VALUE

    for message in (fits, fits + "b"):
        line = written("json", lambda log, m=message: access(log, message=m))  # type: ignore[misc]
        assert json.loads(line)["error.message"] == fits


# Where lines go


@pytest.mark.parametrize(
    ("log_format", "terminal", "is_json"),
    [
        ("auto", False, True),
        ("auto", True, False),
        ("json", True, True),
        ("text", False, False),
    ],
)
def test_auto_is_text_on_a_terminal_and_json_elsewhere(
    log_format: Any, terminal: bool, is_json: bool
) -> None:
    reader, fd = os.openpty() if terminal else os.pipe()
    try:
        writer = LogWriter(fd)
        Log(writer, log_format, clock=lambda: NOON).event("e", "m")
        assert writer.close(10)
        line = os.read(reader, 4096)
    finally:
        os.close(fd)
        os.close(reader)

    assert line.startswith(b"{") == is_json


class Pipe:
    """A pipe whose reader the test is."""

    def __init__(self, *, blocking: bool) -> None:
        self.reader, self.fd = os.pipe()
        os.set_blocking(self.fd, blocking)
        self.open = {self.reader, self.fd}
        self.writers: list[LogWriter] = []

    def writer(self, **limits: int) -> LogWriter:
        self.writers.append(LogWriter(self.fd, **limits))
        return self.writers[-1]

    def fill(self) -> int:
        """Fill it to the last byte with empty lines; return how many."""
        blocking = os.get_blocking(self.fd)
        os.set_blocking(self.fd, False)
        total = 0
        for chunk in (b"\n" * 4096, b"\n"):
            try:
                while True:
                    total += os.write(self.fd, chunk)
            except BlockingIOError:
                pass
        os.set_blocking(self.fd, blocking)
        return total

    def read_all(self) -> list[bytes]:
        """Close the writing end and read the lines until there are no more."""
        self.close(self.fd)
        data = b"".join(iter(lambda: os.read(self.reader, 65536), b""))
        assert data.endswith(b"\n") or not data
        return data.split(b"\n")[:-1]

    def close(self, *fds: int) -> None:
        for fd in fds or tuple(self.open):
            if fd in self.open:
                self.open.remove(fd)
                os.close(fd)


@pytest.fixture(params=[True, False], ids=["blocking", "non-blocking"])
def pipe(request: pytest.FixtureRequest) -> Iterator[Pipe]:
    made = Pipe(blocking=request.param)
    yield made
    made.close(made.reader)  # wakes a writer that waits for it
    for writer in made.writers:
        assert writer.close(10)
    made.close()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "waited 10 s"
        threading.Event().wait(0.001)


def test_lines_arrive_in_order(pipe: Pipe) -> None:
    writer = pipe.writer()
    for number in range(1000):
        writer.write(b"%d\n%d\n" % (2 * number, 2 * number + 1))

    assert writer.close(10)

    assert pipe.read_all() == [b"%d" % number for number in range(2000)]
    assert (writer.dropped, writer.held) == (0, 0)


def test_nobody_waits_for_a_blocked_reader_and_drops_are_counted_exactly(pipe: Pipe) -> None:
    """Far more than pipe and buffer hold: a caller that waited would wait for ever here."""
    writer = pipe.writer(max_bytes=100_000)
    accepted = []
    for number in range(10_000):
        before = writer.dropped
        line = b"%06d %s" % (number, b"x" * 93)
        writer.write(line + b"\n")
        if writer.dropped == before:
            accepted.append(line)
    assert 900 < len(accepted) < 5_000
    assert writer.dropped == 10_000 - len(accepted)

    received: list[bytes] = []
    reader = threading.Thread(target=lambda: received.extend(read_lines(pipe, len(accepted))))
    reader.start()
    assert writer.close(10)
    reader.join(10)

    assert received == accepted
    assert writer.dropped == 10_000 - len(accepted)


def read_lines(pipe: Pipe, count: int) -> list[bytes]:
    data = b""
    while data.count(b"\n") < count:
        data += os.read(pipe.reader, 65536)
    return data.split(b"\n")[:-1]


@pytest.mark.parametrize(
    ("limits", "num_fit"),
    [
        ({"max_records": 5}, 5),
        ({"max_bytes": 50}, 5),
        ({"max_bytes": 59}, 5),
        ({"max_bytes": 60}, 6),
    ],
)
def test_the_buffer_takes_exactly_its_limit(
    pipe: Pipe, limits: dict[str, int], num_fit: int
) -> None:
    num_empty = pipe.fill()
    writer = pipe.writer(**limits)

    writer.write(b"line 00 0\n" * num_fit)
    assert (writer.held, writer.dropped) == (num_fit, 0)
    writer.write(b"line 00 1\n")
    assert (writer.held, writer.dropped) == (num_fit, 1)

    assert read_lines(pipe, num_empty + num_fit)[num_empty:] == [b"line 00 0"] * num_fit
    until(lambda: writer.held == 0)
    writer.write(b"there is room again\n" if "max_records" in limits else b"room\n")
    assert writer.close(10)
    assert writer.dropped == 1
    assert len(pipe.read_all()) == 1


def test_of_lines_that_do_not_all_fit_the_first_are_taken(pipe: Pipe) -> None:
    num_empty = pipe.fill()
    writer = pipe.writer(max_records=3)

    writer.write(b"1\n2\n3\n4\n5\n")

    assert (writer.held, writer.dropped) == (3, 2)
    assert read_lines(pipe, num_empty + 3)[num_empty:] == [b"1", b"2", b"3"]


def test_close_gives_up_in_time_and_counts_what_is_lost(pipe: Pipe) -> None:
    pipe.fill()
    writer = pipe.writer()
    writer.write(b"1\n2\n3\n")

    assert not writer.close(0.01)

    assert (writer.held, writer.dropped) == (0, 3)
    writer.write(b"4\n")
    assert (writer.held, writer.dropped) == (0, 4)


def test_closing_twice_loses_nothing(pipe: Pipe) -> None:
    writer = pipe.writer()
    writer.write(b"1\n")

    assert writer.close(10)
    assert writer.close(10)

    assert pipe.read_all() == [b"1"]
    assert writer.dropped == 0


def test_when_the_reader_is_gone_records_are_counted_and_nothing_dies(pipe: Pipe) -> None:
    writer = pipe.writer()
    pipe.close(pipe.reader)

    writer.write(b"1\n2\n")
    until(lambda: writer.held == 0)
    assert writer.dropped == 2
    writer.write(b"3\n")
    until(lambda: writer.held == 0)

    assert writer.dropped == 3
    assert writer.close(10)


def test_a_full_disk_is_survived() -> None:
    fd = os.open("/dev/full", os.O_WRONLY)
    try:
        writer = LogWriter(fd)
        writer.write(b"1\n2\n")
        assert writer.close(10)
    finally:
        os.close(fd)

    assert writer.dropped == 2


NO_SPACE = OSError("no space left on device")


@pytest.mark.parametrize(
    ("script", "arrived", "num_dropped"),
    [
        ([5, NO_SPACE], [b"1", b"234", b"9", b"10"], 2),
        ([5, NO_SPACE, NO_SPACE], [b"1", b"234", b"10"], 3),
        ([5, NO_SPACE, 1, NO_SPACE], [b"1", b"234", b"10"], 3),
        ([5, NO_SPACE, 2, NO_SPACE], [b"1", b"234", b"9", b"10"], 3),  # 9 without its newline
        ([5, NO_SPACE, 3, NO_SPACE], [b"1", b"234", b"9"], 3),  # 9 is whole, 10 is lost
    ],
)
def test_a_line_cut_by_an_error_does_not_swallow_the_next(
    monkeypatch: pytest.MonkeyPatch,
    pipe: Pipe,
    script: list[int | OSError],
    arrived: list[bytes],
    num_dropped: int,
) -> None:
    """The disk takes so many bytes, is full, and has room again."""
    real, steps = os.write, iter(script)

    def write(fd: int, data: memoryview) -> int:
        step = next(steps, None) if fd == pipe.fd else None
        if isinstance(step, OSError):
            raise step
        return real(fd, data[:step])

    monkeypatch.setattr(os, "write", write)
    writer = pipe.writer()

    for lines in (b"1\n234567\n8\n", b"9\n", b"10\n"):
        writer.write(lines)
        until(lambda: writer.held == 0)
    assert writer.close(10)

    assert pipe.read_all() == arrived
    assert writer.dropped == num_dropped


def test_lines_from_many_threads_stay_whole(pipe: Pipe) -> None:
    writer = pipe.writer()

    def write(name: int) -> None:
        for number in range(200):
            writer.write(b"%d-%d\n" % (name, number))

    threads = [threading.Thread(target=write, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert writer.close(10)

    lines = pipe.read_all()
    assert sorted(lines) == sorted(b"%d-%d" % (n, i) for n in range(4) for i in range(200))
    for name in range(4):
        mine = [int(m[1]) for line in lines if (m := re.fullmatch(rb"%d-(\d+)" % name, line))]
        assert mine == list(range(200))


def test_a_log_and_its_writer_lose_no_record(pipe: Pipe) -> None:
    writer = pipe.writer()
    scheduled: list[Callable[[], None]] = []
    log = Log(writer, call_soon=scheduled.append)

    for turn in range(20):
        for number in range(5):
            access(log, request_id=f"{turn}-{number}")
        scheduled.pop()()
    assert writer.close(10)

    ids = [json.loads(line)["request_id"] for line in pipe.read_all()]
    assert ids == [f"{turn}-{number}" for turn in range(20) for number in range(5)]
