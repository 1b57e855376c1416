"""`--arrivals`: every form is read, gives its schedule, and is refused with a reason."""

import json
import math
import os
from pathlib import Path

import numpy as np
import pytest

from tailproof.core.arrivals import constant, gamma, poisson, ramp, spike, steps
from tailproof.core.errors import ConfigError
from tailproof.core.timeline import Timeline
from tailproof.load import shapes
from tailproof.load.shapes import Trace, parse
from tailproof.telemetry.logs import Log, LogWriter


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("poisson", poisson(50.0, 20.0, 7)),
        ("constant", constant(50.0, 20.0)),
        ("gamma:0.5", gamma(50.0, 20.0, 0.5, 7)),
        ("spike:3x for 5s", spike(50.0, 3.0, 5.0, 20.0, 7)),
    ],
)
def test_shapes_that_are_given_a_rate(text: str, expected: np.ndarray) -> None:
    shape = parse(text)

    assert str(shape) == text
    assert shape.needs_rate
    assert shape.fixed_seconds is None
    assert np.array_equal(shape.schedule(50.0, 20.0, 7), expected)
    with pytest.raises(ConfigError, match="give --rate"):
        shape.schedule(None, 20.0, 7)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ramp:50/s..500/s", ramp(50.0, 500.0, 20.0, 7)),
        ("ramp:500/s..0/s", ramp(500.0, 0.0, 20.0, 7)),
        ("step:100/s,200/s", steps([100.0, 200.0], 20.0, 7)),
    ],
)
def test_shapes_with_rates_of_their_own(text: str, expected: np.ndarray) -> None:
    shape = parse(text)

    assert str(shape) == text
    assert not shape.needs_rate
    assert shape.fixed_seconds is None
    assert np.array_equal(shape.schedule(None, 20.0, 7), expected)
    with pytest.raises(ConfigError, match="leave --rate away"):
        shape.schedule(50.0, 20.0, 7)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "expected one of poisson"),
        ("uniform", "expected one of poisson"),
        ("poisson:3", "expected one of poisson"),
        ("gamma", "expected one of poisson"),
        ("gamma:", "expected one of poisson"),
        ("gamma:x", "shape must be a number"),
        ("gamma:0", "shape must be a number"),
        ("gamma:inf", "shape must be a number"),
        ("gamma:nan", "shape must be a number"),
        ("ramp:50/s", "two rates"),
        ("ramp:50..500", "rate with its unit"),
        ("ramp:0/s..0/s", "above 0"),
        ("step:100/s,,200/s", "rate with its unit"),
        ("step:0/s", "above 0"),
        ("spike:3x", "factor and a duration"),
        ("spike:3x for 5", "duration with its unit"),
        ("spike:0x for 5s", "above 0"),
        ("trace:/nowhere/at/all", "No such file"),
    ],
)
def test_what_is_wrong_is_named(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as caught:
        parse(text)
    assert caught.value.key == "--arrivals"
    assert caught.value.value == text


def test_a_spike_longer_than_the_step_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"shorter than the step \(5s\)"):
        parse("spike:3x for 5s").schedule(50.0, 5.0, 1)


def trace_of(folder: Path, content: str | bytes) -> Trace:
    file = folder / "trace"
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    shape = parse(f"trace:{file}")
    assert isinstance(shape, Trace)
    return shape


@pytest.mark.parametrize(
    "content",
    [
        "1000.5\n1001\n\n1003.5\n",
        "\ufeff1003.5\r\n1000.5\r\n1001\r\n",
        "timestamp\n1000.5\n1001\n1003.5\n",
        'route, Timestamp ,status\n"/a,b",1000.5,200\n/c,1001,200\n/d,1003.5,500\n',
        "timestamp\n1970-01-01T00:16:40.500Z\n1970-01-01 00:16:41\n1970-01-01T01:16:43.5+01:00\n",
    ],
)
def test_files_of_timestamps(tmp_path: Path, content: str) -> None:
    shape = trace_of(tmp_path, content)

    assert shape.times.tolist() == [0.0, 0.5, 3.0]
    assert not shape.needs_rate
    assert shape.rate == pytest.approx(2 / 3)
    assert shape.fixed_seconds == pytest.approx(4.5)
    assert str(shape) == f"trace:{tmp_path / 'trace'}"


def test_a_trace_is_cut_repeated_and_scaled(tmp_path: Path) -> None:
    shape = trace_of(tmp_path, "0\n1\n3\n")  # 2 in 3 s: 4.5 s a round

    assert shape.schedule(None, 3.0, 1).tolist() == [0.0, 1.0]
    assert shape.schedule(None, 4.5, 1).tolist() == [0.0, 1.0, 3.0]
    assert shape.schedule(None, 9.0, 1).tolist() == [0.0, 1.0, 3.0, 4.5, 5.5, 7.5]
    twice_as_fast = shape.schedule(4 / 3, 4.5, 1)
    assert twice_as_fast.tolist() == pytest.approx([0.0, 0.5, 1.5, 2.25, 2.75, 3.75])


def test_our_own_access_log_is_a_trace(tmp_path: Path) -> None:
    """Three requests to a model arrived at 100, 100.4 and 102 s; each ended later."""
    file = tmp_path / "access.jsonl"
    now = 0.0
    with file.open("wb") as stream:
        writer = LogWriter(stream.fileno())
        log = Log(writer, "json", clock=lambda: now)
        for arrived, took, model in (
            (100.4, 0.02, "fraud"),
            (100.0, 0.5, "fraud"),
            (101.0, 0.001, None),
            (102.0, 0.25, "fraud"),
        ):
            now = arrived + took
            log.event("swap", "a new version is served")
            log.access(
                request_id="1",
                method="POST",
                route="/predict" if model else "/health",
                status=200,
                outcome="ok",
                timeline=Timeline(answered=took),
                model=model,
            )
        assert writer.close(timeout=5.0)
        os.fsync(stream.fileno())

    shape = parse(f"trace:{file}")

    assert isinstance(shape, Trace)
    assert shape.times == pytest.approx([0.0, 0.4, 2.0], abs=0.002)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "empty"),
        ("\n  \n", "empty"),
        ("5\n", "two different"),
        ("5\n5\n", "two different"),
        ("1\n2\nthree\n", "line 3: expected a timestamp"),
        ("1\n\nnan\n", "line 3: expected a timestamp"),
        ("time,status\n1,200\n", "line 1: .*column `timestamp`"),
        ("status,timestamp\n200,1\n200\n", "line 3: the column"),
        ("timestamp\n1\nyesterday\n", "line 3: .*ISO 8601"),
        ('{"event.name":"request"\n', "line 1: no access record"),
        (json.dumps({"event.name": "request", "model.name": "m"}) + "\n", "line 1: .*@timestamp"),
        (json.dumps({"event.name": "swap"}) + "\n", "two different"),
        (b"\xff\xfe1\n2\n", "no UTF-8"),
    ],
)
def test_a_bad_trace_is_refused_with_its_line(
    tmp_path: Path, content: str | bytes, problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        trace_of(tmp_path, content)


def test_a_trace_that_is_too_large_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shapes, "MAX_TRACE_BYTES", 2**20)
    with pytest.raises(ConfigError, match="larger than 1 MiB"):
        trace_of(tmp_path, b"1\n" * 2**20)
    assert math.isclose(trace_of(tmp_path, "1\n2\n").rate, 1.0)


def test_only_a_regular_file_is_a_trace(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")  # opening it would wait for a writer, for ever
    (tmp_path / "link").symlink_to("/dev/zero")
    for name in ("fifo", "link"):
        with pytest.raises(ConfigError, match="no regular file"):
            parse(f"trace:{tmp_path / name}")
    (tmp_path / "times").write_text("1\n2\n")
    assert str(parse(f"trace:{tmp_path / 'times'}")).endswith("times")
