"""What a terminal shows: a line for each step as it happens, and the verdict at the end.

Lines are plain text with ANSI colours, which `click.echo` takes away where the output is no
terminal; with NO_COLOR set there are none.
"""

import os
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click
import msgspec

from tailproof.reporting.document import ClosedLoop, Document, Percentiles, Point
from tailproof.reporting.words import (
    UNRESOLVED,
    named,
    per_second,
    percent,
    percentile_in,
    percentile_name,
    with_unit,
)

WIDTH = 120
"""Columns. Longer sentences are broken into lines, a longer advice is cut."""

COLOURS = {
    "PASS": "green",
    "FAIL": "red",
    "UNDECIDED": "yellow",
    "INVALID": "magenta",
    "better": "green",
    "worse": "red",
    "undecided": "yellow",
}

SHOWN = ("p50", "p90", "p95", "p99", "p99_9", "max")

_STEP = "{:>8} {:>8} {:>7} {:>7} {:>7} {:>7}  {:<8}"


def heading() -> str:
    """Over the lines of `point_line`. Rates are requests a second, times milliseconds."""
    figures = _STEP.format("offered", "achieved", "P50 ms", "P95 ms", "P99 ms", "errors", "class")
    return f"{figures} {'verdict':<9} advice"


def point_line(point: Point) -> str:
    """One step. `~`: the sample does not resolve that percentile; `miss`: its rank falls on a
    request without a good answer."""
    times = [percentile_in(point.response_seconds, name) for name in ("p50", "p95", "p99")]
    rates = f"{per_second(point.offered)}/s", f"{per_second(point.achieved)}/s"
    figures = _STEP.format(*rates, *times, f"{point.errors:,}", point.class_ or "")
    verdict = _styled(f"{point.verdict:<9}", point.verdict)
    return f"{figures} {verdict} {_clipped(point.advice, WIDTH - len(figures) - 11)}".rstrip()


def verdict_lines(document: Document) -> list[str]:
    """The whole result: verdict, limits, percentiles, and what they rest on."""
    point = focus(document)
    return [
        "",
        f"{_styled(document.verdict, document.verdict)}  {', '.join(document.slo)}",
        *_wrapped(document.reason),
        *_limits(document),
        *([] if point is None else _percentiles(point, document.closed_loop)),
        *_facts(document),
        *_notes("warning", document.warnings),
        *_notes("unresolved", document.unresolved),
        *([] if document.run is None else ["", f"recorded in {document.run}"]),
    ]


def focus(document: Document) -> Point | None:
    """The step whose distribution a report shows: the one whose tail was looked into, else the
    highest rate that passed, else the last. None without any."""
    passed = [point for point in document.points if point.verdict == "PASS"]
    looked = [point for point in document.points if point.index == document.tail_point]
    if looked:
        return looked[0]
    if passed:
        return max(passed, key=lambda point: point.offered)
    return document.points[-1] if document.points else None


def _limits(document: Document) -> list[str]:
    """The three rates; in a measurement of one rate there are none."""
    limit, knee, saturation = document.limit, document.knee, document.saturation
    rows = []
    if limit is not None:
        rate = limit.low if limit.at_least or limit.rate is None else limit.rate
        sign = "at least " if limit.at_least else ""
        passed = [] if limit.low is None else [f"{per_second(limit.low)}/s passed"]
        failed = [] if limit.high is None else [f"{per_second(limit.high)}/s failed"]
        likely = [] if limit.interval is None else [f"95% interval {_span(*limit.interval)}"]
        if rate is not None:
            shown = f"{sign}{per_second(rate)}/s"
            rows.append(("SLO limit", shown, ", ".join(passed + failed + likely)))
    if knee is not None:
        rows.append(("knee", f"{per_second(knee.rate)}/s", "latency grows faster than load"))
    if saturation is not None:
        between = _span(saturation.low, saturation.high)
        rows.append(("saturation", f"{per_second(saturation.rate)}/s", f"within {between}"))
    lines = [f"  {name:<13} {rate:>10}   {about}".rstrip() for name, rate, about in rows]
    return ["", *lines] if lines else []


def _span(low: float, high: float | None) -> str:
    return f"{per_second(low)}/s to {'?' if high is None else per_second(high) + '/s'}"


def _percentiles(point: Point, loop: ClosedLoop | None) -> list[str]:
    title = f"at {per_second(point.offered)}/s, in ms"
    names = "".join(f"{percentile_name(name):>9}" for name in SHOWN)
    lines = ["", f"  {title:<24}{names}"]
    kinds = [
        ("response time", point.response_seconds),
        ("uncorrected (from send)", point.uncorrected_seconds),
    ]
    if loop is not None:
        kinds.append((f"closed loop at {per_second(loop.rate)}/s", loop.response_seconds))
    for label, times in kinds:
        lines.append(f"  {label:<24}{_row(times)}")
    if any(UNRESOLVED in line for line in lines):
        lines.append(f"  {UNRESOLVED} too few requests to resolve it; no verdict uses it")
    return lines


def _row(times: Percentiles) -> str:
    return "".join(f"{percentile_in(times, name):>9}" for name in SHOWN)


def _facts(document: Document) -> list[str]:
    facts = [
        ("cold start", _cold(document)),
        ("tail", _tail(document)),
        ("tester", _tester(document)),
        ("certainty", _certainty(document.confidence)),
    ]
    indent = " " * 16
    lines = [
        line for name, text in facts if text for line in _wrapped(f"  {name:<13} {text}", indent)
    ]
    return ["", *lines] if lines else []


def _cold(document: Document) -> str:
    cold = document.cold
    if cold is None:
        return ""
    first = [] if cold.first_seconds is None else [f"first {with_unit(cold.first_seconds)}"]
    ratio = cold.cold_warm_ratio
    ratios = [] if ratio is None else [f"{ratio:.3g} times the warm P50"]
    until = cold.requests_until_steady
    steady = [f"steady after {until:,} requests"] if until else []
    return ", ".join([*first, *ratios, f"{cold.requests:,} cold requests", *steady])


def _tail(document: Document) -> str:
    causes = sorted(document.tail_causes, key=lambda cause: -cause.share)
    shares = [f"{named('cause', cause.cause).en} {percent(cause.share)}" for cause in causes]
    if document.unexplained is not None:
        shares.append(f"unexplained {percent(document.unexplained)}")
    return ", ".join(shares)


def _tester(document: Document) -> str:
    bad = [signal for signal in document.generator.signals if signal.bad]
    point = focus(document)
    lag = "" if point is None else percentile_in(point.send_lag_seconds, "p99")
    shown = f"send lag P99 {lag} ms" if lag and lag != "miss" else ""
    names = ", ".join(named("signal", signal.name).en for signal in bad if signal.invalidates)
    state = "in order" if document.generator.ok else f"in the number: {names or document.reason}"
    return ", ".join(part for part in (state, shown) if part)


def _certainty(confidence: Mapping[str, Any]) -> str:
    """The calibrated error rates, where the document has them."""
    if not {"false_pass", "false_pass_at", "power", "power_at"} <= set(confidence):
        return ""
    wrong, right = percent(confidence["false_pass"]), percent(confidence["power"])
    return (
        f"wrong PASS in {wrong} of runs (SLO at {confidence['false_pass_at']}), "
        f"right PASS in {right} (at {confidence['power_at']})"
    )


def flat(found: Mapping[str, Any], before: str = "") -> Iterable[tuple[str, Any]]:
    """(`outer inner`, value) of nested mappings."""
    for name, value in found.items():
        label = f"{before} {name}".strip()
        if isinstance(value, Mapping):
            yield from flat(value, label)
        else:
            yield label, value


def figure(value: Any) -> str:
    """Something whose unit nobody told: a number with three digits, anything else as it is."""
    if isinstance(value, float):
        return f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def probe_lines(probe: Mapping[str, Any]) -> list[str]:
    """Of the document that `probe --json` prints."""
    warm = probe["warm_seconds"]
    unresolved = {"p50", "p95", "p99"} - set(warm.get("resolved", []))
    shown = [
        f"{percentile_name(name)} {UNRESOLVED if name in unresolved else ''}{with_unit(warm[name])}"
        for name in ("p50", "p95", "p99")
        if warm.get(name) is not None
    ]
    ratio = probe.get("cold_warm_ratio")
    counters = probe.get("counters") or {}
    errors, connect = probe.get("errors"), probe.get("connect_seconds")
    cold = with_unit(probe.get("cold_seconds")) or "no answer"
    connected = "" if connect is None else f", of which the connection {with_unit(connect)}"
    failed = f"{errors} of {probe.get('requests')} requests got no good answer"
    lines = [
        f"  {'cold':<10} {cold}{connected}",
        f"  {'warm':<10} {', '.join(shown) or 'no answer'}",
        *([] if ratio is None else [f"  {'ratio':<10} {ratio:.3g} times the warm P50"]),
        *([f"  {'errors':<10} {failed}"] if errors else []),
        *(f"  {figure(value):>10} {name}" for name, value in counters.items()),
    ]
    if unresolved and shown:
        lines.append(f"  {UNRESOLVED} too few requests to resolve it")
    return lines


def compare_lines(comparison: Any) -> list[str]:
    """Of the document that `compare --json` prints."""
    found: dict[str, Any] = msgspec.to_builtins(comparison)
    table = "{:>9}  {:<8} {:>10} {:>10}  {:<24} {}"
    titles = table.format("rate", "figure", "before", "after", "change, 95% interval", "outcome")
    rows = [table.format(*_compared(row)) for row in found["rows"]]
    return [
        _styled(found["outcome"], found["outcome"]),
        *(line for reason in found["reasons"] for line in _wrapped(reason)),
        *(["", titles, *rows] if rows else []),
        *_notes("warning", found["warnings"]),
    ]


def _compared(row: Mapping[str, Any]) -> Sequence[str]:
    written = {"seconds": with_unit, "ratio": percent, "per_second": _rate}[row["unit"]]
    return (
        _rate(row["rate"]),
        row["figure"],
        written(row["before"]),
        written(row["after"]),
        _change(row),
        row["outcome"],
    )


def _rate(rate: float | None) -> str:
    return "" if rate is None else f"{per_second(rate)}/s"


def _change(row: Mapping[str, Any]) -> str:
    """The ratio of two times or rates, the difference of two shares."""
    is_share = row["unit"] == "ratio"
    ends = [_end(row[key], is_share=is_share) for key in ("low", "high")]
    interval = "" if ends == ["?", "?"] else f"{ends[0]} to {ends[1]}"
    if is_share:
        return interval
    spread = f" ({interval})" if interval else ""
    return "" if row["ratio"] is None else f"x {row['ratio']:.3g}{spread}"


def _end(value: float | None, *, is_share: bool) -> str:
    if value is None:
        return "?"
    return f"{value * 100:+.2g}%" if is_share else f"{value:.3g}"


def _notes(kind: str, texts: Iterable[str]) -> list[str]:
    return [line for text in texts for line in _wrapped(f"{kind}: {text}", "  ")]


def _wrapped(text: str, indent: str = "") -> list[str]:
    """In lines of at most WIDTH; words such as commands stay whole."""
    return textwrap.wrap(
        text,
        WIDTH,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
        drop_whitespace=True,
    )


def _clipped(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(width - 1, 0)].rstrip() + "…"


def _styled(text: str, verdict: str) -> str:
    if os.environ.get("NO_COLOR"):
        return text
    return click.style(text, fg=COLOURS.get(verdict), bold=True)
