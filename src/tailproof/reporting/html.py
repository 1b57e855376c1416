"""The report of a run, and of a probe: one HTML file that needs nothing else and loads nothing.

Both languages are in the page; its style shows the one of `<html lang>`. A policy inside the page
forbids every request and every script or style but its own.
"""

import base64
import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any

import msgspec

from tailproof.core.slo import Latency, latencies, parse
from tailproof.core.units import format_size
from tailproof.core.verdict import Finding
from tailproof.reporting import charts, picture
from tailproof.reporting.charts import NamedTime
from tailproof.reporting.console import figure, flat, focus
from tailproof.reporting.document import (
    Cold,
    Document,
    Environment,
    Limit,
    Percentiles,
    Point,
    Saturation,
    Signal,
    Verdict,
)
from tailproof.reporting.picture import Cell, Table
from tailproof.reporting.runs import StepData
from tailproof.reporting.words import (
    LANGUAGES,
    MISS,
    UNRESOLVED,
    Text,
    html_language,
    joined,
    milliseconds,
    named,
    per_second,
    percent,
    percentile_in,
    percentile_name,
    plain,
    say,
    translated,
    with_unit,
)

SHOWN = ("p50", "p90", "p95", "p99", "p99_9", "max", "mean")
"""In the table of percentiles; the mean comes last and is never a headline."""

BARE = ("p50", "p95", "p99")

FAR_APART = 2.0
"""Times the warm P50: a first request that took longer than this is another kind of request."""

VERDICT_SHAPES = {
    "PASS": "M5 13l5 5L20 6",
    "FAIL": "M5 5l14 14M19 5L5 19",
    "UNDECIDED": "M7 8a5 5 0 1 1 7 5c-2 1-2 2-2 3M12 20v.5",
    "INVALID": "M4 12a8 8 0 1 0 16 0a8 8 0 1 0 -16 0M6.5 6.5l11 11",
}


def report(document: Document, step: Callable[[int], StepData | None], lang: str = "en") -> str:
    """The page of a run.

    Args:
        document: What the run says.
        step: The records of a step by its index; None where there are none.
        lang: What the page shows first, `en` or `zh-TW`; it can be changed in the page.

    Raises:
        ConfigError: `lang` is neither.
    """
    point = focus(document)
    data = None if point is None else step(point.index)
    slos = latencies(tuple(parse(text) for text in document.slo))
    sections = [
        ("advice", _advice(document.points)),
        ("distribution", _distribution(point, data, slos)),
        ("percentiles", _percentiles(document, point, data, slos)),
        ("rates", _rates(document, slos)),
        ("points", _points(document.points)),
        ("timeline", _timeline(point, data, slos)),
        ("cold", _cold(document.cold)),
        ("causes", _causes(document)),
        ("generator", _generator(document, point)),
        ("own_errors", _errors(document.points)),
        ("environment", _environment(document)),
        ("confidence", _confidence(document.confidence)),
        ("warnings", _warnings(document)),
        ("command", _command(document.command)),
    ]
    shown = [(key, body) for key, body in sections if body]
    title = say("page_title", verdict=_verdict_name(document.verdict), target=document.target)
    top = _verdict(document, point) + _contents([key for key, _ in shown])
    body = top + "".join(_section(key, body) for key, body in shown)
    about = say("of_target", name=say("report_name"), target=document.target)
    return _page(title, about, body, tool=document.tool, lang=lang)


def probe_page(probe: Mapping[str, Any], lang: str = "en") -> str:
    """The page of a probe: the document that `probe --json` prints, with the seconds of each
    request in order. Raises ConfigError for an unknown language."""
    warm = probe["warm_seconds"]
    heading = say(
        "probe_heading",
        cold=with_unit(probe.get("cold_seconds")) or say("no_answer"),
        warm=with_unit(warm.get("p50")) or say("no_answer"),
    )
    bars = [NamedTime(say("cold_first"), probe.get("cold_seconds"), cold=True)]
    bars += _named_times("warm_p", msgspec.convert(warm, Percentiles))
    body = f'<section class="first"><h1 class="modest">{heading.html()}</h1>'
    body += _ratio(probe.get("cold_warm_ratio"))
    body += charts.times(say("cold_title"), say("probe_about"), bars, name="cold")
    body += (_note("unresolved_mark") if "~" in body else "") + "</section>"
    seconds = probe.get("seconds") or []
    if seconds:
        body += _section("probe_requests", _sequence(seconds).html(), bare=True)
    if probe.get("counters"):
        body += _section("counters", _counters(probe["counters"]).html(), bare=True)
    target = str(probe.get("target", ""))
    title = say("page_title", verdict=say("probe_name"), target=target)
    about = say("of_target", name=say("probe_name"), target=target)
    return _page(title, about, body, tool=str(probe.get("tool", "")), lang=lang)


def _sequence(seconds: Sequence[float | None]) -> Table:
    rows = [
        [str(number), MISS if value is None else milliseconds(value)]
        for number, value in enumerate(seconds, 1)
    ]
    head = [say("request_number"), say("response_ms")]
    return Table("sequence", say("probe_sequence"), head, rows)


def _counters(counters: Mapping[str, float]) -> Table:
    rows = [[name, figure(value)] for name, value in counters.items()]
    return Table("counts", say("counters"), [say("counter"), say("increase")], rows)


# The verdict.


def _verdict(document: Document, point: Point | None) -> str:
    kind = document.verdict.lower()
    chips = "".join(f'<li class="chip">{escape(slo)}</li>' for slo in document.slo)
    if document.required is not None:
        asked = say("required", rate=per_second(document.required))
        chips += f'<li class="chip">{asked.html()}</li>'
    figures = _figures(document, point)
    return (
        f'<section class="first" aria-labelledby="verdict">'
        f'<h1 id="verdict" class="{kind}">{_icon(document.verdict)}'
        f"<span>{_verdict_name(document.verdict).html()}</span></h1>"
        f'<p class="meaning">{say(f"meaning_{kind}").html()}</p>'
        f'<p class="reason">{translated(document.reason).html()}</p>'
        f'<ul class="chips">{chips}</ul>{figures}{_read_first(document)}</section>'
    )


def _verdict_name(verdict: Verdict) -> Text:
    return say(f"verdict_{verdict.lower()}")


def _icon(verdict: Verdict) -> str:
    return (
        '<svg viewBox="0 0 24 24" aria-hidden="true"><path fill="none" stroke="currentColor" '
        f'stroke-width="3" stroke-linecap="round" d="{VERDICT_SHAPES[verdict]}"/></svg>'
    )


def _figures(document: Document, point: Point | None) -> str:
    """What a search found; where one rate was measured, how long requests took at it."""
    if document.mode in ("rate", "locust") and point is not None:
        return _three_times(point)
    return _three_rates(document)


def _three_times(point: Point) -> str:
    times = point.response_seconds
    shown = "".join(_time_figure(times, name, per_second(point.offered)) for name in BARE)
    return f'<dl class="figures">{shown}</dl>'


def _time_figure(times: Percentiles, name: str, rate: str) -> str:
    value = _time(times, name)
    resolved = name in times.resolved or name in times.infinite
    about = [say("at_rate" if resolved else "at_rate_unresolved", rate=rate)]
    if name in times.intervals:
        low, high = times.intervals[name]
        about.append(say("interval_is", span=_interval(low, high)))
    return (
        f'<div class="{name}"><dt>{percentile_name(name)}</dt>'
        f'<dd class="big">{"" if resolved else UNRESOLVED}{with_unit(value) or "&ndash;"}</dd>'
        f"{''.join(f'<dd>{text.html()}</dd>' for text in about)}</div>"
    )


def _three_rates(document: Document) -> str:
    knee = document.knee
    items = [
        ("limit", _limit_rate(document.limit), _limit_words(document.limit)),
        ("knee", _a_second(knee.rate if knee else None), []),
        ("saturation", *_saturation(document.saturation)),
    ]
    shown = "".join(
        _rate(key, rate, words if rate else [say("not_found")]) for key, rate, words in items
    )
    return f'<dl class="figures">{shown}</dl>'


def _rate(key: str, rate: Text | None, words: Sequence[Text]) -> str:
    return (
        f'<div class="{key}"><dt>{say(key).html()}</dt>'
        f'<dd class="big">{rate.html() if rate else "&ndash;"}</dd>'
        f"<dd>{say(f'{key}_about').html()}</dd>"
        f"{''.join(f'<dd>{text.html()}</dd>' for text in words)}</div>"
    )


def _limit_rate(limit: Limit | None) -> Text | None:
    if limit is None:
        return None
    rate = limit.low if limit.at_least or limit.rate is None else limit.rate
    shown = _a_second(rate)
    return say("at_least", rate=shown) if shown and limit.at_least else shown


def _limit_words(limit: Limit | None) -> list[Text]:
    if limit is None:
        return []
    low, high = per_second(limit.low), per_second(limit.high)
    key = "limit_between" if low and high else "limit_passed" if low else "limit_failed"
    words = [say(key, low=low, high=high)] if low or high else []
    if limit.interval is not None:
        low, high = (f"{per_second(rate)}/s" for rate in limit.interval)
        words.append(say("interval_95", low=low, high=high))
    return [*words, say("limit_at_least")] if limit.at_least else words


def _saturation(saturation: Saturation | None) -> tuple[Text | None, list[Text]]:
    if saturation is None:
        return None, []
    key = "saturation_open" if saturation.high is None else "saturation_between"
    low, high = per_second(saturation.low), per_second(saturation.high)
    return _a_second(saturation.rate), [say(key, low=low, high=high)]


def _a_second(rate: float | None) -> Text | None:
    return None if rate is None else plain(f"{per_second(rate)}/s")


def _read_first(document: Document) -> str:
    """Whoever reads no further than the verdict still learns that there is a warning."""
    num_warnings, num_unresolved = len(document.warnings), len(document.unresolved)
    if not num_warnings and not num_unresolved:
        return ""
    text = say("see_warnings", warnings=num_warnings, unresolved=num_unresolved)
    return f'<p class="callout"><a href="#warnings">{text.html()}</a></p>'


# Sections, in the order of the page. Each is empty where the run has nothing to say.


def _advice(points: Sequence[Point]) -> str:
    """Neighbours that get the same advice are one line."""
    groups: list[list[Point]] = []
    for point in sorted(points, key=lambda point: point.offered):
        same = groups and _same_advice(groups[-1][-1], point)
        groups[-1].append(point) if same else groups.append([point])
    lines = "".join(
        f"<li><b>{_span(group).html()}</b>"
        f"<span>{_class_of(group[0]).html()}</span>"
        f"<span>{translated(group[0].advice).html()}</span></li>"
        for group in groups
        if group[0].advice
    )
    return f'<ol class="steps">{lines}</ol>' if lines else ""


def _same_advice(one: Point, other: Point) -> bool:
    return (one.advice, one.class_) == (other.advice, other.class_)


def _span(group: Sequence[Point]) -> Text:
    low, high = per_second(group[0].offered), per_second(group[-1].offered)
    return say("a_second", rate=low) if low == high else say("advice_between", low=low, high=high)


def _class_of(point: Point) -> Text:
    if point.verdict == "INVALID":
        return _verdict_name("INVALID")
    return plain("") if point.class_ is None else named("class", point.class_)


def _distribution(point: Point | None, data: StepData | None, slos: Sequence[Latency]) -> str:
    if point is None:
        return ""
    if data is None or len(data.measured) == 0:
        return _summary(point) + _note("not_recorded")
    times = point.response_seconds
    marks = {"mean": times.mean} | {percentile_name(n): getattr(times, n) for n in BARE}
    return _summary(point) + charts.histogram(data.measured.response, marks, slos)


def _summary(point: Point) -> str:
    text = say(
        "summary_at",
        offered=per_second(point.offered),
        achieved=per_second(point.achieved),
        requests=f"{point.requests:,}",
        index=point.index,
    )
    return f'<p class="about">{text.html()}</p>'


def _percentiles(
    document: Document, point: Point | None, data: StepData | None, slos: Sequence[Latency]
) -> str:
    if point is None:
        return ""
    kinds = [
        (say("response"), point.response_seconds),
        (say("uncorrected"), point.uncorrected_seconds),
    ]
    if (loop := document.closed_loop) is not None:
        label = say("closed_loop", users=f"{loop.users:,}", rate=per_second(loop.rate))
        kinds.append((label, loop.response_seconds))
    rows: list[list[Cell]] = [
        [label, *(percentile_in(times, name) for name in SHOWN)] for label, times in kinds
    ]
    names = [say(n) if n in ("max", "mean") else plain(percentile_name(n)) for n in SHOWN]
    table = Table("times", say("times_in_ms"), [say("time"), *names], rows).html()
    note = _note("unresolved_mark") if _any_marked(rows) else ""
    return table + note + _intervals(point.response_seconds) + _percentile_chart(point, data, slos)


def _any_marked(rows: Sequence[Sequence[Cell]]) -> bool:
    cells = [cell for row in rows for cell in row if isinstance(cell, str)]
    return any(cell.startswith("~") or cell == "miss" for cell in cells)


def _intervals(times: Percentiles) -> str:
    """What the percentiles of another sample like this one might have been."""
    if not times.intervals:
        return ""
    parts = [
        Text(f"{name} {span.en}", f"{name} {span.zh}")
        for key, (low, high) in times.intervals.items()
        for name in [percentile_name(key)]
        for span in [_interval(low, high)]
    ]
    return f'<p class="note">{say("intervals_are", spans=joined(parts)).html()}</p>'


def _interval(low: float, high: float | None) -> Text:
    if high is None or math.isinf(high):
        return say("span_open", low=milliseconds(low))
    return say("span_ms", low=milliseconds(low), high=milliseconds(high))


def _percentile_chart(point: Point, data: StepData | None, slos: Sequence[Latency]) -> str:
    if data is None or len(data.measured) == 0:
        return ""
    curves = [
        charts.Curve(say("response"), data.measured.response, "response"),
        charts.Curve(say("uncorrected"), data.measured.uncorrected, "uncorrected"),
    ]
    return charts.percentile_curve(curves, slos, _resolved_to(point.response_seconds))


def _resolved_to(times: Percentiles) -> float | None:
    """The highest percentile that the sample resolves. None where it resolves all that were asked
    for, or where they fall on misses: nobody knows how much further it would go."""
    if times.infinite:
        return None
    numbers = {name: float(name[1:].replace("_", ".")) for name in SHOWN if name.startswith("p")}
    found = [numbers[name] for name in times.resolved if name in numbers]
    highest = max(found, default=0.0)
    return None if highest == max(numbers.values()) else highest


def _rates(document: Document, slos: Sequence[Latency]) -> str:
    if len(document.points) < 2:
        return ""
    return charts.rate_curve(
        document.points, slos, document.limit, document.knee, document.saturation
    )


def _points(points: Sequence[Point]) -> str:
    if not points:
        return ""
    head = ["step", "role", "offered", "achieved"]
    columns = [*(say(key) for key in head), *(plain(percentile_name(n)) for n in SHOWN[:5])]
    columns += [say(key) for key in ("requests", "errors", "refused", "class", "verdict")]
    ordered = sorted(points, key=lambda point: (point.offered, point.index))
    rows = [_point_row(point) for point in ordered]
    table = Table("steps", say("times_in_ms"), columns, rows)
    note = _note("unresolved_mark") if _any_marked(rows) else ""
    return table.html() + note + _whys(ordered)


def _point_row(point: Point) -> Sequence[Cell]:
    return (
        str(point.index),
        named("role", point.role),
        per_second(point.offered),
        per_second(point.achieved),
        *(percentile_in(point.response_seconds, name) for name in SHOWN[:5]),
        f"{point.requests:,}",
        f"{point.errors:,}",
        f"{point.refused:,}",
        plain("") if point.class_ is None else named("class", point.class_),
        _verdict_name(point.verdict),
    )


def _whys(points: Sequence[Point]) -> str:
    """Reasons and findings, folded away."""
    reasons = Table(
        "reasons",
        say("why"),
        [say("step"), say("verdict"), say("reason")],
        [[str(p.index), _verdict_name(p.verdict), translated(p.reason)] for p in points],
    )
    head = ["step", "slo", "misses", "requests", "observed", "allowed", "bounds", "effective"]
    rows = [_finding_row(point, item) for point in points for item in point.findings]
    findings = Table(
        "findings", say("findings"), [*(say(key) for key in head), say("verdict")], rows
    )
    tables = reasons.html() + (findings.html() if rows else "")
    return f"<details><summary>{say('why').html()}</summary>{tables}</details>"


def _finding_row(point: Point, item: Finding) -> Sequence[Cell]:
    bounds = plain("")
    if item.low is not None and item.high is not None:
        bounds = say("span", low=percent(item.low), high=percent(item.high))
    return (
        str(point.index),
        plain(item.slo),
        f"{item.misses:,}",
        f"{item.requests:,}",
        percent(item.share),
        percent(item.allowed),
        bounds,
        "" if item.effective_requests is None else f"{item.effective_requests:,.0f}",
        _verdict_name(item.verdict),
    )


def _timeline(point: Point | None, data: StepData | None, slos: Sequence[Latency]) -> str:
    if point is None or data is None or len(data.measured) == 0:
        return ""
    return _summary(point) + charts.timeline(data.recording, data.warm_up, data.until, slos)


def _cold(cold: Cold | None) -> str:
    if cold is None:
        return _note("no_cold")
    warm = cold.warm_seconds or Percentiles()
    items = [NamedTime(say("cold_first"), cold.first_seconds, cold=True)]
    items += _named_times("cold_p", cold.response_seconds) + _named_times("warm_p", warm)
    kinds = joined([say("kind_count", name=named("kind", k), num=n) for k, n in cold.kinds.items()])
    told = _ratio(cold.cold_warm_ratio)
    if cold.mean_over_both is not None:
        apart = (cold.cold_warm_ratio or 1.0) >= FAR_APART
        key = "mean_of_neither" if apart else "mean_over_both"
        mean = say(key, mean=with_unit(cold.mean_over_both))
        told += f"<p>{mean.html()}</p>"
    about = say("cold_kinds" if cold.kinds else "cold_count", num=f"{cold.requests:,}", kinds=kinds)
    return told + charts.times(say("cold_title"), about, items, name="cold")


def _named_times(key: str, times: Percentiles) -> list[NamedTime]:
    return [
        NamedTime(
            say(key, name=percentile_name(name)),
            _time(times, name),
            cold=key == "cold_p",
            resolved=name in times.resolved or name in times.infinite,
        )
        for name in BARE
    ]


def _time(times: Percentiles, name: str) -> float | None:
    value: float | None = getattr(times, name)
    return math.inf if value is None and name in times.infinite else value


def _ratio(ratio: float | None) -> str:
    return "" if ratio is None else f"<p>{say('cold_ratio', ratio=f'{ratio:.3g}').html()}</p>"


def _causes(document: Document) -> str:
    if not document.tail_causes and document.unexplained is None:
        return _note("no_causes")
    primary = document.primary_cause
    told = say("no_primary") if primary is None else say("primary", cause=named("cause", primary))
    texts = "".join(
        f"<li>{named('cause', cause.cause).html()}: {translated(cause.text).html()}</li>"
        for cause in document.tail_causes
        if cause.text
    )
    listed = f'<ul class="plain">{texts}</ul>' if texts else ""
    return charts.shares(document.tail_causes, document.unexplained, told, name="causes") + listed


def _generator(document: Document, point: Point | None) -> str:
    kind = "generator_ok" if document.generator.ok else "generator_bad"
    told = f"<p>{say(kind).html()}</p>"
    if point is not None:
        told += _lags(point)
    if not document.generator.signals:
        return told
    head = [say(key) for key in ("signal", "value", "bound", "state", "what_it_says")]
    rows = [_signal_row(signal) for signal in document.generator.signals]
    return told + Table("signals", say("signals"), head, rows).html()


def _lags(point: Point) -> str:
    both = [("send_lag_row", point.send_lag_seconds), ("own_lag_row", point.own_lag_seconds)]
    rows: list[list[Cell]] = [
        [say(key), *(milliseconds(_time(times, name)) for name in (*BARE, "max"))]
        for key, times in both
    ]
    names = [*(plain(percentile_name(name)) for name in BARE), say("max")]
    return Table("lags", say("times_in_ms"), [say("time"), *names], rows).html()


def _signal_row(signal: Signal) -> Sequence[Cell]:
    state = "ok" if not signal.bad else "invalid" if signal.invalidates else "bad"
    return (
        named("signal", signal.name),
        _measured(signal.value, signal.unit),
        _measured(signal.limit, signal.unit),
        say(f"state_{state}"),
        translated(signal.text),
    )


def _measured(value: float | None, unit: str) -> str:
    if value is None:
        return ""
    if unit == "seconds":
        return with_unit(value)
    if unit == "ratio":
        return percent(value)
    if unit == "bytes":
        return format_size(round(value))
    return f"{per_second(value)}/s" if unit == "per_second" else figure(value)


def _errors(points: Sequence[Point]) -> str:
    failed = [point for point in points if point.errors]
    if not failed:
        return _note("no_errors") if points else ""
    names = sorted({n for p in failed for n, num in p.statuses.items() if num and not _is_good(n)})
    head = [say("step"), say("offered"), say("requests"), say("errors")]
    rows = [
        [
            str(point.index),
            per_second(point.offered),
            f"{point.requests:,}",
            f"{point.errors:,}",
            *(f"{point.statuses.get(name, 0):,}" for name in names),
        ]
        for point in sorted(failed, key=lambda point: point.offered)
    ]
    columns = [*head, *(named("status", name) for name in names)]
    return Table("statuses", say("by_status"), columns, rows).html()


def _is_good(status: str) -> bool:
    return status.isdigit() and 200 <= int(status) < 300


def _environment(document: Document) -> str:
    environment = document.environment
    facts = [] if environment is None else _facts(environment)
    facts.append(("seconds", f"{document.seconds:,.1f} s"))
    if document.run is not None:
        facts.append(("run", document.run))
    shown = "".join(
        f"<dt>{say(f'fact_{key}').html()}</dt>"
        f"<dd>{value.html() if isinstance(value, Text) else escape(value)}</dd>"
        for key, value in facts
    )
    return f'<dl class="facts">{shown}</dl>'


def _facts(environment: Environment) -> list[tuple[str, Text | str]]:
    memory = environment.memory_bytes
    cores = say("cores_of", allowed=environment.allowed_cores, cores=environment.cores)
    facts: list[tuple[str, Text | str | None]] = [
        ("date", environment.date),
        ("cpu", environment.cpu),
        ("cores", cores),
        ("governor", environment.governor),
        ("memory", None if memory is None else f"{memory / 2**30:.1f} GiB"),
        ("kernel", environment.kernel),
        ("python", environment.python),
        ("versions", _listed(environment.versions)),
        ("same_host", say("same_host" if environment.same_host else "other_host")),
        ("processes", str(environment.processes)),
        ("seeds", _listed(environment.seeds)),
        ("payload", _listed(environment.payload)),
    ]
    return [(key, value) for key, value in facts if value]


def _listed(found: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {figure(value)}" for name, value in flat(found))


def _confidence(confidence: Mapping[str, Any]) -> str:
    if not confidence:
        return ""
    rows = "".join(
        f"<dt>{named('errs', name).html()}</dt><dd>{escape(_share_or(value))}</dd>"
        for name, value in flat(confidence)
    )
    return f'<p class="about">{say("confidence_about").html()}</p><dl class="facts">{rows}</dl>'


def _share_or(value: Any) -> str:
    return percent(value) if isinstance(value, float) and value <= 1.0 else figure(value)


def _warnings(document: Document) -> str:
    parts = [
        f"<h3>{say(key).html()}</h3>{_items(texts)}"
        for key, texts in (("warning", document.warnings), ("unresolved", document.unresolved))
        if texts
    ]
    return "".join(parts) or _note("none")


def _items(texts: Sequence[str]) -> str:
    items = "".join(f"<li>{translated(text).html()}</li>" for text in texts)
    return f'<ul class="plain">{items}</ul>'


def _command(command: str) -> str:
    return (
        f'<div class="command"><pre><code id="command-line">{escape(command)}</code></pre>'
        f'<button type="button" id="copy" hidden>{say("copy").html()}</button>'
        f'<template id="copied">{say("copied").html()}</template></div>'
    )


# The page around them.


def _note(key: str) -> str:
    return f'<p class="note">{say(key).html()}</p>'


def _section(key: str, body: str, *, bare: bool = False) -> str:
    kind = ' class="bare"' if bare else ""
    return (
        f'<section id="{key}"{kind} aria-labelledby="{key}-heading">'
        f'<h2 id="{key}-heading">{say(key).html()}</h2>{body}</section>'
    )


def _contents(keys: Sequence[str]) -> str:
    links = "".join(f'<li><a href="#{key}">{say(key).html()}</a></li>' for key in keys)
    label = say("contents")
    return (
        f'<nav aria-labelledby="contents"><span id="contents" class="unseen">{label.html()}</span>'
        f"<ul>{links}</ul></nav>"
    )


def _page(title: Text, about: Text, body: str, *, tool: str, lang: str) -> str:
    style, script = picture.style() + _asset("report.css"), _asset("report.js")
    policy = (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; "
        "base-uri 'none'; form-action 'none'"
    )
    language = html_language(lang)
    shown = title.en if lang == "en" else title.zh
    made = say("made_by", tool=tool)
    return f"""<!doctype html>
<html lang="{language}">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<title data-en="{escape(title.en)}" data-zh="{escape(title.zh)}">{escape(shown)}</title>
<style>{style}</style>
</head>
<body>
<a class="skip" href="#report">{say("skip").html()}</a>
<header>
<p class="brand">Tailproof</p>
<p class="about">{about.html()}</p>
<div class="controls" hidden>{_languages(lang)}
<button type="button" id="theme">{say("theme").html()}</button></div>
</header>
<main id="report" tabindex="-1">
{body}
</main>
<footer><p>{say("footer").html()}</p><p>{made.html()}</p></footer>
<script>{script}</script>
</body>
</html>
"""


def _languages(lang: str) -> str:
    names = {"en": "English", "zh-TW": "繁體中文"}
    return "".join(
        f'<button type="button" lang="{code}" data-language="{code}" '
        f'aria-pressed="{"true" if key == lang else "false"}">{names[key]}</button>'
        for key, code in LANGUAGES.items()
    )


@cache
def _asset(name: str) -> str:
    return (files("tailproof") / "web" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
