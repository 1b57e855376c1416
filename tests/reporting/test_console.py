"""What a terminal shows."""

import click
import msgspec
import pytest

from tailproof.reporting import console
from tailproof.reporting.document import ClosedLoop, Generator, Limit, Percentiles, Signal
from tests.reporting import made


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")


def document() -> "made.Document":
    return made.document(
        [made.point(made.step(index, rate)) for index, rate in enumerate((40.0, 580.0, 840.0))]
    )


def whole(lines: list[str]) -> str:
    return "\n".join(lines)


def test_lines_stand_under_their_headings() -> None:
    head = console.heading()
    lines = [console.point_line(point) for point in document().points]

    for line in lines:
        assert len(line) <= console.WIDTH
        for column in ("class", "verdict", "advice"):
            at = head.index(column)
            assert line[at - 1] == " "
            assert line[at] != " "
        assert line[: head.index("achieved")].strip().endswith("/s")


def test_unresolved_and_missed_percentiles_are_marked() -> None:
    point = made.point(made.step(0, 100.0))
    times = Percentiles(p50=0.01, p95=0.02, resolved=["p50"], infinite=["p99"])

    line = console.point_line(msgspec.structs.replace(point, response_seconds=times))

    assert line.split()[2:5] == ["10.0", "~20.0", "miss"]


def test_a_long_advice_is_cut_to_the_line() -> None:
    point = msgspec.structs.replace(made.point(made.step(0, 100.0)), advice="so " * 100)

    line = console.point_line(point)

    assert len(line) <= console.WIDTH
    assert line.endswith("…")


def test_colours_only_without_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    point = made.point(made.step(0, 100.0))
    plain = console.point_line(point)
    monkeypatch.delenv("NO_COLOR")

    coloured = console.point_line(point)

    assert coloured != plain
    assert click.unstyle(coloured) == plain


def test_the_end_says_verdict_limits_percentiles_and_what_they_rest_on() -> None:
    found = msgspec.structs.replace(document(), tail_point=1, run="runs/x")

    text = whole(console.verdict_lines(found))

    assert text.strip().startswith("PASS  p95 < 33.3ms")
    for part in (
        "SLO limit          611/s   580/s passed, 640/s failed, 95% interval 592/s to 628/s",
        "knee               431/s",
        "saturation         758/s   within 700/s to 840/s",
        "at 580/s, in ms",
        "uncorrected (from send)",
        "cold start    first 812 ms, 114 times the warm P50",
        "tail          queueing 62%, batch mates 21%, unexplained 17%",
        "certainty     wrong PASS in 2.1% of runs (SLO at 0.8 x the true P99), right PASS in 78%",
        "tester        in order, send lag P99",
        "warning: Tester and target",
        "unresolved: P99.9",
        "recorded in runs/x",
    ):
        assert part in text, part


def test_long_sentences_are_broken_into_lines_without_losing_a_word() -> None:
    reason = "the tester sent late; use more --processes " * 12
    found = msgspec.structs.replace(document(), reason=reason.strip(), warnings=[reason.strip()])

    lines = console.verdict_lines(found)

    assert max(len(line) for line in lines) <= console.WIDTH
    assert whole(lines).replace("\n", " ").count("--processes") == 24


def test_a_lower_bound_is_never_given_as_the_limit() -> None:
    limit = Limit(rate=700.0, low=600.0, high=None, at_least=True)
    found = msgspec.structs.replace(document(), limit=limit)

    (line,) = [line for line in console.verdict_lines(found) if "SLO limit" in line]

    assert "at least 600/s" in line
    assert "700" not in line


def test_the_fault_of_the_tester_is_named() -> None:
    signals = [
        Signal(
            name="send_lag",
            value=0.04,
            limit=0.001,
            unit="seconds",
            bad=True,
            invalidates=True,
            text="sent late",
        ),
        Signal(
            name="same_host",
            value=1,
            limit=0,
            unit="count",
            bad=True,
            invalidates=False,
            text="one host",
        ),
    ]
    found = msgspec.structs.replace(made.invalid(), generator=Generator(ok=False, signals=signals))

    text = whole(console.verdict_lines(found))

    assert "tester        in the number: send lag, " in text
    assert "one host" not in text


def test_a_run_that_measured_nothing_can_be_told() -> None:
    found = msgspec.structs.replace(made.invalid(), points=[])

    assert console.focus(found) is None
    assert "INVALID" in whole(console.verdict_lines(found))


def test_the_focus_is_the_point_that_was_looked_into_else_the_highest_pass() -> None:
    found = document()

    assert console.focus(msgspec.structs.replace(found, tail_point=2)).index == 2  # type: ignore[union-attr]
    assert console.focus(msgspec.structs.replace(found, tail_point=None)).index == 1  # type: ignore[union-attr]
    assert console.focus(made.invalid()).index == 0  # type: ignore[union-attr]


def test_probe_lines() -> None:
    probe = {
        "cold_seconds": 0.812,
        "warm_seconds": {"p50": 0.0071, "p95": 0.0093, "p99": None, "resolved": ["p50"]},
        "cold_warm_ratio": 114.4,
        "counters": {"requests_total": 30.0},
        "connect_seconds": 0.002,
        "errors": 2,
        "requests": 30,
    }

    text = whole(console.probe_lines(probe))

    assert "cold       812 ms, of which the connection 2.00 ms" in text
    assert "2 of 30 requests got no good answer" in text
    assert "P50 7.10 ms, P95 ~9.30 ms" in text
    assert "P99" not in text
    assert "114 times the warm P50" in text
    assert "30 requests_total" in text


def test_a_probe_without_answers() -> None:
    text = whole(console.probe_lines({"cold_seconds": None, "warm_seconds": {"resolved": []}}))

    assert text.count("no answer") == 2


def test_compare_lines() -> None:
    row = {
        "figure": "P95",
        "unit": "seconds",
        "rate": 500.0,
        "before": 0.02,
        "after": 0.026,
        "ratio": 1.3,
        "low": 1.2,
        "high": None,
        "outcome": "worse",
    }
    misses = {
        "figure": "misses",
        "unit": "ratio",
        "rate": 500.0,
        "before": 0.001,
        "after": 0.02,
        "ratio": 20.0,
        "low": 0.01,
        "high": 0.03,
        "outcome": "worse",
    }
    limit = {
        "figure": "limit",
        "unit": "per_second",
        "rate": None,
        "before": 600.0,
        "after": None,
        "ratio": None,
        "low": None,
        "high": None,
        "outcome": "undecided",
    }
    found = {
        "outcome": "worse",
        "reasons": ["P95 is slower"],
        "rows": [row, misses, limit],
        "warnings": ["other CPU"],
    }

    lines = console.compare_lines(found)

    assert lines[:2] == ["worse", "P95 is slower"]
    assert "x 1.3 (1.2 to ?)" in lines[4]
    assert "+1% to +3%" in lines[5]
    assert "600/s" in lines[6]
    assert lines[-1] == "warning: other CPU"


def test_a_closed_loop_stands_beside_the_open_one() -> None:
    times = Percentiles(p50=0.011, p95=0.012, resolved=["p50", "p95"])
    loop = ClosedLoop(users=10, requests=900, rate=88.0, response_seconds=times)

    lines = console.verdict_lines(msgspec.structs.replace(document(), closed_loop=loop))

    (line,) = [line for line in lines if "closed loop at 88/s" in line]
    assert line.split()[-2:] == ["11.0", "12.0"]
