"""Drawing by hand: scales, ticks and a canvas that writes SVG, without any chart library.

Positions are SVG units, which are CSS pixels at full size. Colours and dashes come from classes,
so that a page's style decides on light, dark and print.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from html import escape
from importlib.resources import files
from itertools import pairwise
from typing import Literal

from tailproof.reporting.words import Text, plain, say

WIDE, NARROW = 760.0, 350.0
"""Every picture is drawn for both; the style shows the one that fits, so that labels stay
readable on a phone."""

LABEL = 12.0
"""Size of the letters."""

Anchor = Literal["start", "middle", "end"]
Xy = tuple[float, float]
Cell = Text | str
"""Of a table; a str is a number or a name that needs no translation."""


@dataclass(frozen=True, slots=True)
class Scale:
    """Values from `low` to `high` onto positions from `start` to `end`. A logarithmic scale takes
    positive values only."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """The position; values outside are put on the nearer end."""
        low, high, inside = self.low, self.high, min(max(value, self.low), self.high)
        if self.log:
            low, high, inside = math.log(low), math.log(high), math.log(inside)
        return self.start + (inside - low) / (high - low) * (self.end - self.start)

    def ticks(self, most: int) -> list[float]:
        """At most `most` round values inside."""
        if self.log and self.high / self.low >= 10.0:
            return log_ticks(self.low, self.high, most)
        return linear_ticks(self.low, self.high, most)


def linear_ticks(low: float, high: float, most: int) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten in [low, high], at most `most` (2 or more)."""
    step = _round_up((high - low) / most)
    while math.floor(high / step + 1e-9) - math.ceil(low / step - 1e-9) + 1 > most:
        step = _round_up(step * 1.01)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    digits = max(0, 1 - math.floor(math.log10(step)))
    return [round(index * step, digits) for index in range(first, last + 1)]


def log_ticks(low: float, high: float, most: int) -> list[float]:
    """Powers of ten in [low, high], with 2 and 5 times them or 3 times where `most` allows;
    every second, third ... power where there are too many."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    for factors in ((1, 2, 5), (1, 3), (1,)):
        found = [f * 10.0**power for power in range(first, last + 1) for f in factors]
        inside = [value for value in found if low * (1 - 1e-9) <= value <= high * (1 + 1e-9)]
        if len(inside) <= most:
            return inside
    return inside[:: math.ceil(len(inside) / most)]


def linear(high: float, start: float, end: float) -> Scale:
    """From 0 to a little above `high`."""
    return Scale(0.0, high * 1.06 if high > 0 else 1.0, start, end)


def spanning(
    values: Iterable[float], start: float, end: float, typical: float | None = None
) -> Scale:
    """From 0, or logarithmic where the largest value is more than 20 times the typical one
    (None: the smallest)."""
    found = [value for value in values if 0 < value < math.inf]
    if found and max(found) > 20 * (typical or min(found)):
        return Scale(_round_down(min(found)), _round_up(max(found)), start, end, log=True)
    return linear(max(found, default=0.0), start, end)


def _round_up(value: float) -> float:
    """The next of 1, 2, 5 times a power of ten, at or above `value`."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(f * power for f in (1, 2, 5, 10) if f * power >= value * (1 - 1e-9))


def _round_down(value: float) -> float:
    power = 10.0 ** math.floor(math.log10(value))
    return next(f * power for f in (5, 2, 1) if f * power <= value * (1 + 1e-9))


@dataclass(slots=True)
class Canvas:
    """Collects the parts of one SVG."""

    width: float
    height: float
    name: str
    """Unique in its page: patterns are referred to by it."""
    parts: list[str] = field(default_factory=list)

    @property
    def narrow(self) -> bool:
        return self.width < 500

    def line(self, start: Xy, end: Xy, kind: str) -> None:
        (x1, y1), (x2, y2) = start, end
        place = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
        self.parts.append(f'<line class="{kind}" {place}/>')

    def path(self, points: Sequence[Xy], kind: str, *, closed: bool = False) -> None:
        if points:
            steps = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
            self.parts.append(f'<path class="{kind}" d="M{steps}{"Z" if closed else ""}"/>')

    def rect(self, x: float, y: float, width: float, height: float, kind: str) -> None:
        place = f'x="{x:.1f}" y="{y:.1f}" width="{max(width, 0):.1f}" height="{max(height, 0):.1f}"'
        self.parts.append(f'<rect class="{kind}" {place}/>')

    def hatched(self, x: float, y: float, width: float, height: float, kind: str) -> None:
        """A rectangle told from others by its pattern, not by its colour alone."""
        self.rect(x, y, width, height, kind)
        place = f'x="{x:.1f}" y="{y:.1f}" width="{max(width, 0):.1f}" height="{max(height, 0):.1f}"'
        self.parts.append(f'<rect {place} fill="url(#{self.name}-hatch)"/>')

    def text(
        self, x: float, y: float, text: Text | str, kind: str = "label", anchor: Anchor = "start"
    ) -> None:
        words = text if isinstance(text, Text) else plain(text)
        place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
        self.parts.append(f'<text class="{kind}" {place}>{words.svg()}</text>')

    def mark(self, x: float, y: float, shape: str, kind: str) -> None:
        """One of the `SHAPES`, drawn around a point."""
        self.parts.append(f'<path class="{kind}" d="{_shape(shape, x, y)}"/>')

    def svg(self, labelled_by: str) -> str:
        """The whole picture; `labelled_by` are the ids of what describes it."""
        size = "wide" if not self.narrow else "narrow"
        return (
            f'<svg class="chart {size}" viewBox="0 0 {self.width:g} {self.height:g}" role="img" '
            f'aria-labelledby="{escape(labelled_by)}">{self.inner()}</svg>'
        )

    def inner(self) -> str:
        """The parts with the pattern they refer to."""
        return (
            f'<defs><pattern id="{self.name}-hatch" width="6" height="6" '
            'patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
            '<line class="hatch" x1="0" y1="0" x2="0" y2="6"/></pattern></defs>'
            + "".join(self.parts)
        )


SHAPES = ("circle", "diamond", "square", "cross", "up")


def _shape(shape: str, x: float, y: float) -> str:
    if shape == "circle":
        return f"M{x - 4:.1f} {y:.1f}a4 4 0 1 0 8 0a4 4 0 1 0 -8 0Z"
    if shape == "diamond":
        return f"M{x:.1f} {y - 5.5:.1f}l5.5 5.5l-5.5 5.5l-5.5 -5.5Z"
    if shape == "square":
        return f"M{x - 4:.1f} {y - 4:.1f}h8v8h-8Z"
    if shape == "up":
        return f"M{x:.1f} {y - 1:.1f}l5 8h-10Z"
    assert shape == "cross"
    return f"M{x - 4:.1f} {y - 4:.1f}l8 8M{x + 4:.1f} {y - 4:.1f}l-8 8"


@dataclass(frozen=True, slots=True)
class Panel:
    """The rectangle that a chart's lines are drawn in."""

    left: float
    top: float
    right: float
    bottom: float

    def x_axis(
        self,
        canvas: Canvas,
        ticks: Iterable[tuple[float, Text | str]],
        title: Text | None = None,
    ) -> None:
        """Ticks are (position, label). Labels that would run into their neighbour are left out."""
        canvas.line((self.left, self.bottom), (self.right, self.bottom), "axis")
        free_from = -math.inf
        for x, label in ticks:
            canvas.line((x, self.bottom), (x, self.bottom + 4), "axis")
            half = width_of(label) / 2
            middle = min(x, canvas.width - half)
            if middle - half >= free_from:
                canvas.text(middle, self.bottom + 17, label, "tick", "middle")
                free_from = middle + half + 6
        if title is not None:
            canvas.text(self.right, self.bottom + 34, title, "title", "end")

    def y_axis(
        self, canvas: Canvas, ticks: Iterable[tuple[float, Text | str]], title: Text | None = None
    ) -> None:
        """Ticks are (position, label); each has its line through the panel."""
        for y, label in ticks:
            canvas.line((self.left, y), (self.right, y), "grid")
            canvas.text(self.left - 6, y + 4, label, "tick", "end")
        if title is not None:
            canvas.text(2, self.top - 10, title, "title")


def width_of(text: Text | str) -> float:
    """About how wide a label is, in the language in which it is wider."""
    both = (text.en, text.zh) if isinstance(text, Text) else (text,)
    return max(sum(_em(letter) for letter in words) for words in both) * LABEL


def _em(letter: str) -> float:
    if ord(letter) > 0x2E80:
        return 1.0
    return 0.9 if letter in "%mMwW@" else 0.58


def rows_of(spans: Sequence[tuple[float, float]]) -> list[int]:
    """The row of each label so that none covers another; `spans` are (left, right), in any order.
    Greedy from the left: each takes the first row that is free."""
    rows = [0] * len(spans)
    ends: list[float] = []
    for index in sorted(range(len(spans)), key=lambda index: spans[index]):
        left, right = spans[index]
        row = next((row for row, end in enumerate(ends) if end <= left), len(ends))
        ends[row : row + 1] = [right]
        rows[index] = row
    return rows


def apart(positions: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Positions moved as little as needed so that neighbours are `gap` apart, within [low, high]
    where they fit."""
    order = sorted(range(len(positions)), key=lambda index: positions[index])
    found = [min(max(position, low), high) for position in positions]
    for before, index in pairwise(order):
        found[index] = max(found[index], found[before] + gap)
    limit = high
    for index in reversed(order):
        found[index] = min(found[index], limit)
        limit = found[index] - gap
    return found


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells; the first cell of a row is its heading."""

    name: str
    """Unique in the page."""
    caption: Text
    head: Sequence[Text]
    rows: Sequence[Sequence[Cell]]

    def html(self) -> str:
        """It scrolls in its own frame, so that the page never does."""
        pairs = zip(self.head, self.rows[0] if self.rows else self.head, strict=True)
        head = "".join(f'<th scope="col"{_kind(below)}>{cell.html()}</th>' for cell, below in pairs)
        rows = "".join(f"<tr>{self._row(row)}</tr>" for row in self.rows)
        return (
            f'<div class="scroll" tabindex="0" role="group" aria-labelledby="{self.name}-caption">'
            f'<table><caption id="{self.name}-caption">{self.caption.html()}</caption>'
            f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
        )

    def _row(self, row: Sequence[Cell]) -> str:
        first, *others = row
        return f'<th scope="row"{_kind(first)}>{_cell(first)}</th>' + "".join(
            f"<td{_kind(cell)}>{_cell(cell)}</td>" for cell in others
        )


LONG = 28
"""Letters; longer cells are broken into lines."""


def _cell(cell: Cell) -> str:
    return cell.html() if isinstance(cell, Text) else escape(cell)


def _kind(cell: Cell) -> str:
    if isinstance(cell, Text):
        return ' class="long"' if len(cell.en) > LONG else ""
    return ' class="number"'


def figure(
    name: str,
    title: Text,
    about: Text,
    draw: Callable[[Canvas], None],
    *,
    heights: tuple[float, float],
    table: Table,
) -> str:
    """A chart with its title, description and data. `draw` is called for a wide and a narrow
    canvas, whose heights are `heights`; `name` is unique in the page."""
    pictures = []
    for width, height in zip((WIDE, NARROW), heights, strict=True):
        canvas = Canvas(width, height, f"{name}-{width:.0f}")
        draw(canvas)
        pictures.append(canvas.svg(f"{name}-title {name}-about"))
    return (
        f'<figure class="chart-figure" id="{name}-figure">'
        f'<figcaption id="{name}-title">{title.html()}</figcaption>'
        f'<p class="about" id="{name}-about">{about.html()}</p>{"".join(pictures)}'
        f"<details><summary>{say('chart_data').html()}</summary>{table.html()}</details></figure>"
    )


@cache
def style() -> str:
    """The rules that every chart needs."""
    return (files("tailproof") / "web" / "charts.css").read_text(encoding="utf-8")


def standalone(canvases: Sequence[Canvas], title: str, gap: float = 24.0) -> str:
    """Pictures side by side as one SVG file that needs no page; English."""
    width = sum(canvas.width for canvas in canvases) + gap * (len(canvases) - 1)
    height = max(canvas.height for canvas in canvases)
    parts, x = [], 0.0
    for canvas in canvases:
        size = f'x="{x:g}" width="{canvas.width:g}" height="{canvas.height:g}"'
        parts.append(f"<svg {size}>{canvas.inner()}</svg>")
        x += canvas.width + gap
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart standalone" lang="en" role="img" '
        f'viewBox="0 0 {width:g} {height:g}"><title>{escape(title)}</title>'
        f'<style>{style()}</style><rect class="paper" width="100%" height="100%"/>'
        f"{''.join(parts)}</svg>\n"
    )
