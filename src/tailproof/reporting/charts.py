"""The charts of every report, as HTML figures: SVG by hand, description and data included.

Values are seconds, rates are requests a second; misses (no good answer) are infinite. Nothing here
averages percentiles, and a mean is drawn only to be compared.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from tailproof.core.attribution import Cause
from tailproof.core.recording import Recording
from tailproof.core.slo import Latency
from tailproof.core.statistics import percentile
from tailproof.core.units import format_rate
from tailproof.reporting.document import Knee, Limit, Point, Saturation
from tailproof.reporting.picture import (
    LABEL,
    Anchor,
    Canvas,
    Cell,
    Panel,
    Scale,
    Table,
    apart,
    figure,
    linear,
    rows_of,
    spanning,
    width_of,
)
from tailproof.reporting.words import (
    MISS,
    UNRESOLVED,
    Text,
    milliseconds,
    named,
    per_second,
    percent,
    percentile_name,
    plain,
    say,
    with_unit,
)

Floats = npt.NDArray[np.float64]

MOST_BARS = 60
"""Bars of a histogram, at most."""

SLICES = 60
"""Of a timeline, at most; fewer where a slice would hold less than `SLICE_REQUESTS`."""

SLICE_REQUESTS = 20

ROW = 16.0
"""Height of a row of labels."""

CURVE_PERCENTILES = (50.0, 75.0, 90.0, 95.0, 99.0, 99.9, 99.99, 99.999)

PERCENTILES = ("p50", "p95", "p99")

SHAPE_OF = {"LINEAR": "circle", "KNEE": "diamond", "OVERLOAD": "square", None: "circle"}


@dataclass(frozen=True, slots=True)
class Mark:
    """A value on the x axis that has a name: a percentile, an SLO, a limit."""

    at: float
    label: Text
    kind: str
    """Class of its line."""


def nearest_rank(values: Floats, percent_: float) -> float:
    """`percentile` of at least one value, infinite where that is a miss."""
    found = percentile(values, percent_)
    return math.inf if found is None else found


def slo_marks(slos: Sequence[Latency]) -> list[Mark]:
    return [
        Mark(slo.threshold, plain(f"SLO P{slo.percentile:g} {with_unit(slo.threshold)}"), "slo")
        for slo in slos
    ]


# Histogram.


def histogram(
    values: Floats,
    marks: Mapping[str, float | None],
    slos: Sequence[Latency] = (),
    *,
    name: str = "histogram",
) -> str:
    """How many requests took how long, with mean and percentiles marked.

    Args:
        values: Response times in seconds, at least one; misses are infinite.
        marks: `mean`, `P50`, `P95`, ... -> seconds. None is left out.
        slos: Their thresholds are marked too.
        name: Unique in the page.
    """
    bars = Bars.of(values, marks, slos)
    return figure(
        name,
        say("histogram_title"),
        say("histogram_about", num=f"{len(values):,}"),
        bars.draw,
        heights=(300, 300),
        table=bars.table(),
    )


@dataclass(frozen=True, slots=True)
class Bars:
    """A histogram, counted and ready to be drawn."""

    edges: Floats
    counts: npt.NDArray[np.int64]
    log: bool
    num_beyond: int
    """Answers slower than the last edge."""
    slowest: float
    num_misses: int
    marks: list[Mark]

    @classmethod
    def of(
        cls, values: Floats, marks: Mapping[str, float | None], slos: Sequence[Latency] = ()
    ) -> "Bars":
        """The range ends a little beyond the largest mark, so that a few stragglers do not
        squeeze everything else into the first bar; they are counted beside it."""
        answered = np.sort(values[np.isfinite(values)])
        found = [
            Mark(value, Text(f"{name} {with_unit(value)}", f"{_zh(name)} {with_unit(value)}"), kind)
            for name, value in marks.items()
            if value is not None and math.isfinite(value)
            for kind in [name.lower()]
        ]
        slowest = float(answered[-1]) if len(answered) else 0.0
        top = min(max([mark.at for mark in found], default=slowest) * 1.25, slowest * 1.02)
        thresholds = slo_marks(slos)
        near = [mark.at * 1.05 for mark in thresholds if mark.at < 2 * top or not len(answered)]
        top = max([top, *near]) or 1.0
        lowest = min([*answered[:1], *(mark.at for mark in (*found, *thresholds))], default=0.0)
        edges, log = _edges(answered, float(lowest), top)
        counts, _ = np.histogram(answered, edges)
        return cls(
            edges,
            counts,
            log,
            int((answered > edges[-1]).sum()),
            slowest,
            int(len(values) - len(answered)),
            [*found, *(_within(mark, top) for mark in thresholds)],
        )

    def draw(self, canvas: Canvas) -> None:
        left, right = 46.0, canvas.width - (90 if self.num_misses else 14)
        scale = Scale(float(self.edges[0]), float(self.edges[-1]), left, right, self.log)
        placed = list(_placed(self.marks, scale, right + 2))
        num_rows = 1 + max((row for *_, row in placed), default=0)
        panel = Panel(left, 26 + ROW * num_rows, right, canvas.height - 40)
        tallest = self.counts.max() or self.num_misses
        heights = linear(float(tallest), panel.bottom, panel.top)
        ticks = [(heights(tick), f"{tick:,.0f}") for tick in heights.ticks(5) if tick == int(tick)]
        panel.y_axis(canvas, ticks)
        canvas.text(2, 12, say("requests"), "title")
        for count, (low, high) in zip(self.counts, pairwise(self.edges), strict=True):
            x, y = scale(low), heights(count)
            canvas.rect(x, y, scale(high) - x - 0.6, panel.bottom - y, "bar")
        self._draw_misses(canvas, panel, heights)
        for mark, x, anchor, row in placed:
            y = 26 + ROW * row
            canvas.line((x, y + 4), (x, panel.bottom), f"mark {mark.kind}")
            canvas.text(x, y, mark.label, f"label {mark.kind}", anchor)
        most = 5 if canvas.narrow else 9
        panel.x_axis(canvas, _time_ticks(scale, most), say("response_ms"))
        if self.num_beyond:
            beyond = say(
                "histogram_beyond", num=f"{self.num_beyond:,}", max=milliseconds(self.slowest)
            )
            canvas.text(panel.left, panel.bottom + 34, beyond, "title")

    def _draw_misses(self, canvas: Canvas, panel: Panel, heights: Scale) -> None:
        """Beside the axis: a miss has no time. Where there are more than the tallest bar holds,
        the bar ends at the top and its number says it."""
        if not self.num_misses:
            return
        x, y = canvas.width - 40, heights(self.num_misses)
        canvas.hatched(x, y, 26, panel.bottom - y, "bar missed")
        label = say("histogram_misses", num=f"{self.num_misses:,}")
        canvas.text(canvas.width - 2, y - 6, label, "label missed", "end")

    def table(self) -> Table:
        rows = [
            [milliseconds(low), milliseconds(high), f"{count:,}"]
            for count, (low, high) in zip(self.counts, pairwise(self.edges), strict=True)
        ]
        rows.append(
            [milliseconds(self.edges[-1]), milliseconds(self.slowest), f"{self.num_beyond:,}"]
        )
        rows.append([MISS, "", f"{self.num_misses:,}"])
        head = [say("from_ms"), say("to_ms"), say("requests")]
        return Table("histogram-data", say("histogram_title"), head, rows)


def _within(mark: Mark, top: float) -> Mark:
    """A mark far beyond the right edge becomes a word there that points on."""
    if mark.at <= top:
        return mark
    return Mark(top, Text(f"{mark.label.en} →", f"{mark.label.zh} →"), "slo beyond")


def _zh(name: str) -> str:
    return named("", name).zh if name.startswith("P") else say(name).zh


def _edges(answered: Floats, lowest: float, top: float) -> tuple[Floats, bool]:
    """Edges of bars of a width by Freedman and Diaconis (2 IQR / n^(1/3)), and whether they are
    equal on a logarithmic axis: where the range is more than 20 times the median. The axis starts
    at 0 unless everything, marks included, is in its upper half."""
    if len(answered) and (low := float(answered[0])) > 0 and top > 20 * float(np.median(answered)):
        return np.geomspace(low * 0.999, top, MOST_BARS + 1), True
    if len(answered) == 0:
        return np.linspace(0.0, top, MOST_BARS + 1), False
    start = 0.99 * lowest if lowest > top / 2 else 0.0
    quarters = np.percentile(answered, (25, 75))
    width = 2 * float(quarters[1] - quarters[0]) / len(answered) ** (1 / 3)
    num = min(max(math.ceil((top - start) / width), 12), MOST_BARS) if width > 0 else MOST_BARS
    return np.linspace(start, top, num + 1), False


def _placed(
    marks: Sequence[Mark], scale: Scale, right: float
) -> Iterator[tuple[Mark, float, Anchor, int]]:
    """Each mark with its position, the side of its label, and the row that keeps labels apart."""
    spans, anchors = [], []
    for mark in marks:
        x, width = scale(mark.at), width_of(mark.label) + 4
        anchors.append("start" if x + width <= right else "end")
        spans.append((x, x + width) if anchors[-1] == "start" else (x - width, x))
    for mark, anchor, row in zip(marks, anchors, rows_of(spans), strict=True):
        yield mark, scale(mark.at), anchor, row  # type: ignore[misc]


def _time_ticks(scale: Scale, most: int) -> list[tuple[float, Cell]]:
    return [(scale(tick), f"{tick * 1e3:,.6g}") for tick in scale.ticks(most)]


def _rate_ticks(scale: Scale, most: int) -> list[tuple[float, Cell]]:
    return [(scale(tick), f"{tick:,.6g}") for tick in scale.ticks(most)]


# Percentiles.


@dataclass(frozen=True, slots=True)
class Curve:
    """The values of one line, in seconds, and how it is called and drawn."""

    label: Text
    values: Floats
    kind: str


def percentile_curve(
    curves: Sequence[Curve],
    slos: Sequence[Latency] = (),
    resolved_to: float | None = None,
    *,
    name: str = "percentile",
) -> str:
    """Time by percentile, on an axis that gives 90%, 99%, 99.9% ... equal room.

    Args:
        curves: At least one; each with at least one value, misses infinite.
        slos: Their thresholds are drawn.
        resolved_to: The highest percentile that the sample resolves (0-100); beyond it the chart
            is hatched. None: not known.
        name: Unique in the page.
    """
    chart = PercentileCurves.of(curves, slos, resolved_to)
    about = say("percentiles_about")
    return figure(
        name, say("percentile_title"), about, chart.draw, heights=(340, 320), table=chart.table()
    )


@dataclass(frozen=True, slots=True)
class PercentileCurves:
    """The lines of a percentile curve, ready to be drawn."""

    curves: Sequence[Curve]
    lines: list[list[tuple[float, float]]]
    """(percentile, seconds) of each curve."""
    slos: Sequence[Latency]
    resolved_to: float | None
    evenly: bool
    """The axis gives every percent equal room, instead of 90%, 99%, 99.9%: how steep a tail
    really is, without its detail."""

    @classmethod
    def of(
        cls,
        curves: Sequence[Curve],
        slos: Sequence[Latency] = (),
        resolved_to: float | None = None,
        *,
        evenly: bool = False,
    ) -> "PercentileCurves":
        num = max(len(curve.values) for curve in curves)
        even = np.linspace(0.0, 100.0 - 100.0 / num, 200)
        shown = even if evenly else 100.0 - 100.0 / np.geomspace(1.0, max(num, 10), 81)
        lines = [[(float(p), nearest_rank(curve.values, p)) for p in shown] for curve in curves]
        return cls(curves, lines, slos, resolved_to, evenly)

    @property
    def _num(self) -> int:
        return max(len(curve.values) for curve in self.curves)

    def draw(self, canvas: Canvas) -> None:
        panel = Panel(50, 44, canvas.width - 14, canvas.height - 40)
        across = self._across(panel)
        answered = [value for line in self.lines for _, value in line if math.isfinite(value)]
        thresholds = [slo.threshold for slo in self.slos]
        near = [value for value in thresholds if value < 10 * max(answered, default=math.inf)]
        typical = nearest_rank(self.curves[0].values, 50.0)
        up = spanning([*answered, *near], panel.bottom, panel.top, typical)
        self._draw_unresolved(canvas, panel, across)
        panel.y_axis(canvas, _time_ticks(up, 6), say("response_ms"))
        panel.x_axis(canvas, self._ticks(across), say("percentile"))
        for slo in self.slos:
            if slo.threshold in near:
                _slo_line(canvas, panel, up(slo.threshold), slo)
        for curve, line in zip(self.curves, self.lines, strict=True):
            points = [(self._x(across, p), up(value)) for p, value in line if value < math.inf]
            canvas.path(points, f"line {curve.kind}")
            if points and len(points) < len(line):  # what follows are misses
                canvas.mark(points[-1][0], panel.top, "up", f"marker {curve.kind}")
        _legend(canvas, [(curve.label, curve.kind) for curve in self.curves])

    def _across(self, panel: Panel) -> Scale:
        if self.evenly:
            return Scale(0.0, 100.0, panel.left, panel.right)
        return Scale(1.0, max(float(self._num), 10.0), panel.left, panel.right, log=True)

    def _x(self, across: Scale, percent_: float) -> float:
        return across(percent_ if self.evenly else 100.0 / max(100.0 - percent_, 1e-9))

    def _ticks(self, across: Scale) -> list[tuple[float, Cell]]:
        if self.evenly:
            return [(self._x(across, p), f"{p}%") for p in (0, 25, 50, 75, 95)]
        inside = [p for p in CURVE_PERCENTILES if 100.0 / (100.0 - p) <= across.high]
        return [(self._x(across, p), f"{p:g}%") for p in (0.0, *inside)]

    def _draw_unresolved(self, canvas: Canvas, panel: Panel, across: Scale) -> None:
        if self.resolved_to is None or self.resolved_to >= 100.0 * (1 - 1 / self._num):
            return
        x = self._x(across, self.resolved_to)
        canvas.hatched(x, panel.top, panel.right - x, panel.bottom - panel.top, "unresolved")
        if width_of(say("too_few")) + 8 < panel.right - x:
            canvas.text(panel.right - 4, panel.bottom - 8, say("too_few"), "title", "end")

    def table(self) -> Table:
        shown = [p for p in CURVE_PERCENTILES if self._num * (1.0 - p / 100.0) >= 1.0]
        rows = [
            [f"P{p:g}", *(milliseconds(nearest_rank(curve.values, p)) for curve in self.curves)]
            for p in shown
        ]
        head = [say("percentile"), *(curve.label for curve in self.curves)]
        return Table("percentile-data", say("percentile_title"), head, rows)


def _slo_line(canvas: Canvas, panel: Panel, y: float, slo: Latency) -> None:
    canvas.line((panel.left, y), (panel.right, y), "mark slo")
    label = f"SLO P{slo.percentile:g} {with_unit(slo.threshold)}"
    canvas.text(panel.left + 4, y - 5, label, "label slo")


def _legend(canvas: Canvas, entries: Sequence[tuple[Text, str]]) -> None:
    """From the right, in the row above the panel."""
    x = canvas.width - 14.0
    for label, kind in reversed(entries):
        x -= width_of(label)
        canvas.text(x, 14, label, "label")
        canvas.line((x - 30, 10), (x - 6, 10), f"line {kind}")
        x -= 44


# Rates.


def rate_curve(
    points: Sequence[Point],
    slos: Sequence[Latency] = (),
    limit: Limit | None = None,
    knee: Knee | None = None,
    saturation: Saturation | None = None,
    *,
    name: str = "rates",
) -> str:
    """P50, P95 and P99 against offered rate, and below it what was achieved. Knee, limit and
    saturation are marked; the shape of a mark is the class of its step."""
    chart = RateCurve(
        sorted(points, key=lambda point: point.offered), slos, _rates(limit, knee, saturation)
    )
    return figure(
        name,
        say("rates_title"),
        say("rates_about"),
        chart.draw,
        heights=(540, 520),
        table=chart.table(),
    )


def _rates(limit: Limit | None, knee: Knee | None, saturation: Saturation | None) -> list[Mark]:
    marks = [Mark(knee.rate, say("knee"), "knee")] if knee else []
    if limit and limit.at_least and limit.low is not None:
        marks.append(Mark(limit.low, say("limit_or_more"), "limit"))
    elif limit and limit.rate is not None:
        marks.append(Mark(limit.rate, say("limit"), "limit"))
    return [*marks, Mark(saturation.rate, say("saturation"), "saturation")] if saturation else marks


@dataclass(frozen=True, slots=True)
class RateCurve:
    """Points in order of offered rate, and what is marked."""

    points: Sequence[Point]
    slos: Sequence[Latency]
    marks: list[Mark]

    def draw(self, canvas: Canvas) -> None:
        left, right = 50.0, canvas.width - 40
        across = self._across(left, right)
        placed = list(_placed(self.marks, across, canvas.width - 2))
        num_rows = 1 + max((row for *_, row in placed), default=0)
        latency = Panel(left, 34 + ROW * num_rows, right, canvas.height * 0.58)
        throughput = Panel(left, latency.bottom + 36, right, canvas.height - 40)
        for mark, x, anchor, row in placed:
            y = 34 + ROW * row
            canvas.line((x, y + 4), (x, throughput.bottom), f"mark {mark.kind}")
            canvas.text(x, y, mark.label, f"label {mark.kind}", anchor)
        self._draw_latency(canvas, latency, across)
        self._draw_achieved(canvas, throughput, across)
        self._draw_shapes(canvas)

    def _across(self, left: float, right: float) -> Scale:
        rates = [*(point.offered for point in self.points), *(mark.at for mark in self.marks)]
        squeezed = sum(rate < 0.1 * max(rates) for rate in rates) >= len(rates) / 2
        return spanning(rates, left, right) if squeezed else linear(max(rates), left, right)

    def _draw_latency(self, canvas: Canvas, panel: Panel, across: Scale) -> None:
        thresholds = [slo.threshold for slo in self.slos]
        up = spanning([*self._times(), *thresholds], panel.bottom, panel.top)
        panel.y_axis(canvas, _time_ticks(up, 6))
        canvas.text(2, panel.top - 8, "ms", "title")
        panel.x_axis(canvas, [(x, "") for x, _ in _rate_ticks(across, 9)])
        for slo in self.slos:
            _slo_line(canvas, panel, up(slo.threshold), slo)
        ends = []
        for name in PERCENTILES:
            pieces = self._pieces(name)
            for piece in pieces:
                canvas.path([(across(x), up(value)) for x, value in piece], f"line {name}")
            self._draw_points(canvas, name, across, up)
            ends += [((across(pieces[-1][-1][0]), up(pieces[-1][-1][1])), name)] if pieces else []
        heights = apart([y for (_, y), _ in ends], LABEL + 1, panel.top, panel.bottom)
        for ((x, _), name), y in zip(ends, heights, strict=True):
            canvas.text(x + 9, y + 4, percentile_name(name), f"label {name}")

    def _times(self) -> list[float]:
        found = [getattr(p.response_seconds, name) for p in self.points for name in PERCENTILES]
        return [value for value in found if value is not None]

    def _pieces(self, name: str) -> list[list[tuple[float, float]]]:
        """(rate, seconds), rising: the middle one of the valid steps at (nearly) one rate. A line
        ends where that one is a miss."""
        pieces: list[list[tuple[float, float]]] = [[]]
        for rate, values in self._levels(name):
            middle = sorted(values)[len(values) // 2]
            if math.isfinite(middle):
                pieces[-1].append((rate, middle))
            else:
                pieces.append([])
        return [piece for piece in pieces if piece]

    def _levels(self, name: str) -> list[tuple[float, list[float]]]:
        """The seconds of the valid steps at each rate; misses are infinite."""
        levels: list[tuple[float, list[float]]] = []
        for point in self.points:
            value = _seconds_of(point, name)
            if value is None or point.verdict == "INVALID":
                continue
            if levels and point.offered <= levels[-1][0] * 1.01:
                levels[-1][1].append(value)
            else:
                levels.append((point.offered, [value]))
        return levels

    def _draw_points(self, canvas: Canvas, name: str, across: Scale, up: Scale) -> None:
        for point in self.points:
            value, x = _seconds_of(point, name), across(point.offered)
            if value is not None and math.isfinite(value):
                canvas.mark(x, up(value), _shape_of(point), f"marker {name}")
            elif value is not None:
                canvas.mark(x, up.end, "up", f"marker {name}")

    def _draw_achieved(self, canvas: Canvas, panel: Panel, across: Scale) -> None:
        up = linear(across.high, panel.bottom, panel.top)
        if across.log:
            up = Scale(across.low, across.high, panel.bottom, panel.top, log=True)
        panel.y_axis(canvas, _rate_ticks(up, 5), say("achieved_axis"))
        most = 5 if canvas.narrow else 9
        panel.x_axis(canvas, _rate_ticks(across, most), say("offered_axis"))
        diagonal = np.geomspace if across.log else np.linspace
        rates = diagonal(across.low, across.high, 2).tolist()
        canvas.path([(across(rate), up(rate)) for rate in rates], "line ideal")
        for point in self.points:
            place = across(point.offered), up(point.achieved)
            canvas.mark(*place, _shape_of(point), "marker achieved")

    def _draw_shapes(self, canvas: Canvas) -> None:
        """What the shapes mean; only those that occur."""
        x = 2.0
        for shape, text in (
            ("circle", "LINEAR"),
            ("diamond", "KNEE"),
            ("square", "OVERLOAD"),
            ("cross", "INVALID"),
        ):
            if shape in {_shape_of(point) for point in self.points}:
                label = named("class", text)
                canvas.mark(x + 5, 10, shape, "marker p95")
                canvas.text(x + 14, 14, label, "label")
                x += width_of(label) + 26

    def table(self) -> Table:
        head = [say("offered"), say("achieved"), *(plain(percentile_name(n)) for n in PERCENTILES)]
        rows: list[list[Cell]] = [
            [
                per_second(point.offered),
                per_second(point.achieved),
                *(milliseconds(_seconds_of(point, name)) for name in PERCENTILES),
                named("class", "INVALID" if point.verdict == "INVALID" else point.class_ or ""),
            ]
            for point in self.points
        ]
        return Table("rates-data", say("rates_title"), [*head, say("class")], rows)


def _shape_of(point: Point) -> str:
    return "cross" if point.verdict == "INVALID" else SHAPE_OF[point.class_]


@dataclass(frozen=True, slots=True)
class Service:
    """One of several that were put under the same load test."""

    label: str
    kind: str
    """How its line looks: `p95`, `p99`, ..."""
    points: Sequence[Point]
    limit: Limit | None


@dataclass(frozen=True, slots=True)
class SideBySide:
    """P95 of several services against the offered rate, and the limit of each."""

    services: Sequence[Service]
    slo: Latency

    def draw(self, canvas: Canvas) -> None:
        panel = Panel(50.0, 40.0, canvas.width - 24, canvas.height - 44)
        curves = [(service, RateCurve(_by_rate(service), [], [])) for service in self.services]
        across = spanning([p.offered for one in self.services for p in one.points], 50, panel.right)
        times = [seconds for _, curve in curves for seconds in _finite_p95(curve)]
        up = spanning([*times, self.slo.threshold], panel.bottom, panel.top)
        panel.y_axis(canvas, _time_ticks(up, 6))
        panel.x_axis(canvas, _rate_ticks(across, 9), say("offered_axis"))
        canvas.text(2, panel.top - 10, "P95, ms", "title")
        _slo_line(canvas, panel, up(self.slo.threshold), self.slo)
        for row, (service, curve) in enumerate(curves):
            for piece in curve._pieces("p95"):
                canvas.path([(across(x), up(y)) for x, y in piece], f"line {service.kind}")
            for point in curve.points:
                seconds = _seconds_of(point, "p95")
                if seconds is not None and point.verdict != "INVALID":
                    beyond = not math.isfinite(seconds)
                    place = across(point.offered), up.end if beyond else up(seconds)
                    shape = "up" if beyond else _shape_of(point)
                    canvas.mark(*place, shape, f"marker {service.kind}")
            self._draw_limit(canvas, panel, across, service, row)

    def _draw_limit(
        self, canvas: Canvas, panel: Panel, across: Scale, service: Service, row: int
    ) -> None:
        rate = None if service.limit is None else service.limit.rate
        text = service.label if rate is None else f"{service.label}: {format_rate(rate)}"
        x = panel.left if rate is None else across(rate)
        if rate is not None:
            canvas.line((x, panel.top - 6), (x, panel.bottom), f"mark {service.kind}")
        at_end = x > 0.6 * canvas.width
        place = x - 6 if at_end else x + 6
        y = panel.top - 14 if len(self.services) < 3 else panel.top - 22 + 12 * row
        canvas.text(place, y, text, f"label strong {service.kind}", "end" if at_end else "start")


def _by_rate(service: Service) -> list[Point]:
    return sorted(service.points, key=lambda point: point.offered)


def _finite_p95(curve: RateCurve) -> list[float]:
    found = (_seconds_of(point, "p95") for point in curve.points)
    return [seconds for seconds in found if seconds is not None and math.isfinite(seconds)]


def _seconds_of(point: Point, name: str) -> float | None:
    """A percentile of a step; a miss is infinite."""
    value: float | None = getattr(point.response_seconds, name)
    return math.inf if value is None and name in point.response_seconds.infinite else value


# Time.


def timeline(
    recording: Recording,
    start: float,
    end: float,
    slos: Sequence[Latency] = (),
    *,
    name: str = "timeline",
) -> str:
    """Response time through one step, by intended start, with in-flight requests and misses.

    `recording` holds at least one request with an intended start in [start, end).
    """
    chart = Timeline.of(recording.between(start, end), start, end, slos)
    about = say("timeline_about", num=len(chart.slices))
    return figure(
        name, say("timeline_title"), about, chart.draw, heights=(420, 420), table=chart.table()
    )


@dataclass(frozen=True, slots=True)
class Slice:
    """The requests of one stretch of time."""

    start: float
    end: float
    requests: int
    misses: int
    p50: float | None
    """Infinite where its rank falls on a miss; None: there was no request."""
    p99: float | None
    in_flight: int
    """At most."""


@dataclass(frozen=True, slots=True)
class Timeline:
    slices: list[Slice]
    slos: Sequence[Latency]

    @classmethod
    def of(
        cls, measured: Recording, start: float, end: float, slos: Sequence[Latency]
    ) -> "Timeline":
        num = min(max(len(measured) // SLICE_REQUESTS, 1), SLICES)
        edges = np.linspace(start, end, num + 1)
        places = np.searchsorted(measured.intended, edges)
        response, in_flight = measured.response, measured.in_flight
        return cls(
            [
                _slice(times, response[low:high], in_flight[low:high])
                for times, (low, high) in zip(pairwise(edges), pairwise(places), strict=True)
            ],
            slos,
        )

    def draw(self, canvas: Canvas) -> None:
        left, right = 50.0, canvas.width - 14
        first, last = self.slices[0].start, self.slices[-1].end
        across = Scale(first, last, left, right)
        latency = Panel(left, 44, right, canvas.height * 0.62)
        flight = Panel(left, latency.bottom + 44, right, canvas.height - 40)
        self._draw_latency(canvas, latency, across)
        self._draw_in_flight(canvas, flight, across)
        most = 5 if canvas.narrow else 9
        flight.x_axis(canvas, _rate_ticks(across, most), say("seconds_axis"))
        _legend(canvas, [(plain(percentile_name(name)), name) for name in ("p50", "p99")])

    def _draw_latency(self, canvas: Canvas, panel: Panel, across: Scale) -> None:
        found = [v for item in self.slices for v in (item.p50, item.p99) if v is not None]
        top = max((value for value in found if math.isfinite(value)), default=0.0)
        near = [slo for slo in self.slos if slo.threshold < 10 * top or not top]
        up = spanning([*found, *(slo.threshold for slo in near)], panel.bottom, panel.top)
        panel.y_axis(canvas, _time_ticks(up, 6), say("response_ms"))
        panel.x_axis(canvas, [])
        for slo in near:
            _slo_line(canvas, panel, up(slo.threshold), slo)
        for name in ("p50", "p99"):
            for piece in self._pieces(name):
                canvas.path([(across(x), up(value)) for x, value in piece], f"line {name}")
        for item in self.slices:
            if item.misses:
                x = across(item.start)
                canvas.hatched(x, panel.bottom + 4, across(item.end) - x, 10, "bar missed")
        if any(item.misses for item in self.slices):
            canvas.text(panel.left - 6, panel.bottom + 13, say("misses"), "tick", "end")

    def _pieces(self, name: str) -> Iterator[list[tuple[float, float]]]:
        """Runs of slices with a finite value: a line never bridges what is not there."""
        piece: list[tuple[float, float]] = []
        for item in self.slices:
            value: float | None = getattr(item, name)
            if value is not None and math.isfinite(value):
                piece += [(item.start, value), (item.end, value)]
            elif piece:
                yield piece
                piece = []
        if piece:
            yield piece

    def _draw_in_flight(self, canvas: Canvas, panel: Panel, across: Scale) -> None:
        up = linear(float(max(item.in_flight for item in self.slices)), panel.bottom, panel.top)
        ticks = [(up(tick), f"{tick:,.0f}") for tick in up.ticks(3) if tick == int(tick)]
        panel.y_axis(canvas, ticks, say("in_flight"))
        line = [(x, item.in_flight) for item in self.slices for x in (item.start, item.end)]
        area = [(across(x), up(num)) for x, num in line]
        canvas.path(
            [(area[0][0], panel.bottom), *area, (area[-1][0], panel.bottom)], "area", closed=True
        )

    def table(self) -> Table:
        head = ["from_s", "requests", "misses", "in_flight"]
        rows = [
            [
                f"{item.start:.2f}",
                f"{item.requests:,}",
                f"{item.misses:,}",
                f"{item.in_flight:,}",
                milliseconds(item.p50),
                milliseconds(item.p99),
            ]
            for item in self.slices
        ]
        columns = [*(say(key) for key in head), plain("P50"), plain("P99")]
        return Table("timeline-data", say("timeline_title"), columns, rows)


def _slice(times: tuple[float, float], response: Floats, in_flight: npt.NDArray[np.int32]) -> Slice:
    p50, p99 = (nearest_rank(response, p) if len(response) else None for p in (50, 99))
    return Slice(
        float(times[0]),
        float(times[1]),
        len(response),
        int(np.isinf(response).sum()),
        p50,
        p99,
        int(in_flight.max(initial=0)),
    )


# Bars with names: cold beside warm, causes.


@dataclass(frozen=True, slots=True)
class Bar:
    """A named amount."""

    label: Text
    amount: float
    shown: str
    """The amount as it is printed beside the bar."""
    kind: str = ""
    low: float | None = None
    high: float | None = None
    """Its interval; None: not known."""
    hatched: bool = False


def bars(title: Text, about: Text, items: Sequence[Bar], unit: Text, *, name: str) -> str:
    """Horizontal bars from 0, each with its amount in words."""
    rows: list[list[Cell]] = [[item.label, item.shown] for item in items]
    table = Table(f"{name}-data", title, [say("name"), unit], rows)
    height = 20.0 + 28 * len(items)
    return figure(name, title, about, _NamedBars(items).draw, heights=(height, height), table=table)


@dataclass(frozen=True, slots=True)
class NamedTime:
    """Of a cold or a warm request, or a percentile of such."""

    label: Text
    seconds: float | None
    """Infinite: a miss. None: there is none."""
    cold: bool
    resolved: bool = True
    """The sample resolves this percentile."""


def times(title: Text, about: Text, items: Sequence[NamedTime], *, name: str) -> str:
    """`bars` of times; what is None is left out."""
    found = [
        Bar(
            item.label,
            item.seconds,
            ("" if item.resolved else UNRESOLVED) + with_unit(item.seconds),
            "cold" if item.cold else "warm",
            hatched=item.cold,
        )
        for item in items
        if item.seconds is not None
    ]
    return bars(title, about, found, say("response_ms"), name=name)


def shares(causes: Sequence[Cause], unexplained: float | None, about: Text, *, name: str) -> str:
    """Causes of the tail by their share, and what is left unexplained."""
    ordered = sorted(causes, key=lambda cause: -cause.share)
    items = [
        Bar(named("cause", c.cause), c.share, percent(c.share), "cause", c.low, c.high)
        for c in ordered
    ]
    if unexplained is not None:
        text = percent(unexplained)
        items.append(Bar(say("unexplained"), unexplained, text, "rest", hatched=True))
    return bars(say("causes_title"), about, items, say("share"), name=name)


@dataclass(frozen=True, slots=True)
class _NamedBars:
    items: Sequence[Bar]

    def draw(self, canvas: Canvas) -> None:
        left = min(max((width_of(item.label) for item in self.items), default=0) + 12, 130)
        finite = [item.amount for item in self.items if math.isfinite(item.amount)]
        ends = [*finite, *(item.high for item in self.items if item.high is not None)]
        across = Scale(0.0, max(ends, default=0.0) or 1.0, left, canvas.width - 80)
        for row, item in enumerate(self.items):
            y = 10.0 + 28 * row
            end = across(item.amount)
            canvas.text(left - 8, y + 15, item.label, "label", "end")
            draw = canvas.hatched if item.hatched or math.isinf(item.amount) else canvas.rect
            draw(left, y + 3, end - left, 16, f"bar {item.kind}")
            if item.low is not None and item.high is not None:
                low, end = across(item.low), max(end, across(item.high))
                canvas.line((low, y + 11), (across(item.high), y + 11), "whisker")
            canvas.text(end + 6, y + 15, item.shown, "label strong")
