"""The limits of all contenders as one picture."""

from collections.abc import Sequence
from dataclasses import dataclass

from tailproof.reporting.picture import Canvas, Panel, Scale, standalone, width_of
from tailproof.reporting.words import per_second, plain

WIDTH = 760.0
ROW = 26.0
TOP = 34.0
BELOW = 44.0


@dataclass(frozen=True, slots=True)
class Limits:
    """What the rounds found for one contender: requests a second."""

    label: str
    rates: Sequence[float]
    """Of each round that found a limit."""
    note: str = ""
    """What stands there when no round did."""
    at_least: bool = False
    """The client gave out before the service did."""
    ours: bool = False

    @property
    def median(self) -> float:
        """Of at least one rate."""
        ordered = sorted(self.rates)
        half = len(ordered) // 2
        return (ordered[half] + ordered[~half]) / 2


def picture(contenders: Sequence[Limits], title: str) -> str:
    """SVG: a line for each contender, from its lowest limit to its highest, logarithmic."""
    canvas = Canvas(WIDTH, TOP + ROW * len(contenders) + BELOW, "limits")
    left = max((width_of(one.label) for one in contenders), default=0.0) + 18
    panel = Panel(left, TOP, WIDTH - 24, canvas.height - BELOW)
    across = _scale([rate for one in contenders for rate in one.rates], panel)
    canvas.text(2, 16, title, "title")
    for x in map(across, across.ticks(9)):
        canvas.line((x, panel.top), (x, panel.bottom), "grid")
    panel.x_axis(
        canvas,
        [(across(tick), per_second(tick)) for tick in across.ticks(9)],
        plain("requests a second"),
    )
    for row, one in enumerate(contenders):
        _draw(canvas, one, across, TOP + ROW * (row + 0.5))
    return standalone([canvas], title)


def _scale(rates: Sequence[float], panel: Panel) -> Scale:
    """Whole powers of ten around all rates."""
    low, high = 1.0, 10.0
    while rates and low * 10 <= min(rates):
        low *= 10
    while rates and high < max(rates):
        high *= 10
    return Scale(low, high, panel.left, panel.right, log=True)


def _draw(canvas: Canvas, one: Limits, across: Scale, y: float) -> None:
    kind = "p95" if one.ours else ""
    canvas.text(across.start - 10, y + 4, one.label, "label strong" if one.ours else "label", "end")
    if not one.rates:
        canvas.text(across.start + 8, y + 4, one.note, "label")
        return
    canvas.line((across(min(one.rates)), y), (across(max(one.rates)), y), f"line {kind}")
    for rate in one.rates:
        canvas.line((across(rate), y - 4), (across(rate), y + 4), f"line {kind}")
    canvas.mark(across(one.median), y, "circle", f"marker {kind}")
    text = ("≥ " if one.at_least else "") + per_second(one.median)
    x = across(max(one.rates)) + 10
    if x + width_of(text) > across.end:
        canvas.text(across(min(one.rates)) - 10, y + 4, text, "label strong", "end")
    else:
        canvas.text(x, y + 4, text, "label strong")
