"""Charts show what is in the data, and say it in words and tables."""

import math
import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from tailproof.core.attribution import Cause
from tailproof.core.recording import Recording
from tailproof.core.slo import Latency
from tailproof.reporting import charts
from tailproof.reporting.charts import Bars, Curve, NamedTime, PercentileCurves, RateCurve, Timeline
from tailproof.reporting.document import Knee, Limit, Percentiles, Point, Saturation
from tailproof.reporting.picture import Canvas
from tailproof.reporting.words import plain
from tests.reporting import made

SLOS = (Latency(95.0, 0.0333),)


def seconds(num: int = 4000) -> np.ndarray:
    return np.random.default_rng(3).lognormal(-4.0, 0.5, num)


def drawn(chart: object, width: float = 760) -> ET.Element:
    canvas = Canvas(width, 400, "test")
    chart.draw(canvas)  # type: ignore[attr-defined]
    return ET.fromstring(canvas.svg("label"))


def texts(root: ET.Element) -> list[str]:
    """In English: of a text in two languages the first part."""
    return [next(iter(node.itertext()), "") for node in root.iter("text")]


def of_class(root: ET.Element, kind: str) -> list[ET.Element]:
    return [node for node in root.iter() if set(kind.split()) <= set(node.get("class", "").split())]


def points() -> list[Point]:
    return [made.point(made.step(index, rate)) for index, rate in enumerate((100.0, 500.0, 840.0))]


def test_every_request_is_in_exactly_one_bar() -> None:
    values = np.concatenate([seconds(), [np.inf] * 7])

    bars = Bars.of(values, {"P99": 0.05}, SLOS)

    assert int(bars.counts.sum()) + bars.num_beyond + bars.num_misses == len(values)
    assert bars.num_misses == 7
    assert bars.num_beyond == int((seconds() > bars.edges[-1]).sum()) > 0


def test_marks_stand_where_their_values_are() -> None:
    values = seconds()
    bars = Bars.of(values, {"mean": 0.02, "P50": 0.018, "P95": None, "P99": math.inf}, SLOS)
    root = drawn(bars)
    ticks = {
        text: float(node.get("x"))
        for text, node in zip(texts(root), root.iter("text"), strict=True)
    }

    (mean,) = of_class(root, "mark mean")
    low, high = ticks["10"], ticks["20"]

    assert float(mean.get("x1")) == pytest.approx(low + (high - low) * 1.0, abs=0.2)
    assert of_class(root, "mark p50")
    assert of_class(root, "mark slo")
    assert not of_class(root, "mark p95")
    assert not of_class(root, "mark p99")


def test_the_bars_are_as_high_as_their_counts() -> None:
    bars = Bars.of(seconds(), {"P99": 0.05})
    heights = [float(node.get("height")) for node in of_class(drawn(bars), "bar")]

    tallest = int(np.argmax(bars.counts))

    assert len(heights) == len(bars.counts)
    assert np.allclose(
        np.array(heights) / heights[tallest], bars.counts / bars.counts[tallest], atol=0.01
    )


def test_a_freeze_is_drawn_on_a_logarithmic_axis() -> None:
    frozen = np.concatenate([np.full(950, 0.010), np.linspace(0.05, 2.0, 50)])

    assert Bars.of(frozen, {"P99": 1.86}).log
    assert not Bars.of(seconds(), {"P99": 0.05}).log


def test_an_slo_far_beyond_the_data_is_named_without_squeezing_them() -> None:
    bars = Bars.of(seconds(), {"P99": 0.05}, (Latency(95.0, 10.0),))

    assert bars.edges[-1] < 0.2
    assert "SLO P95 10,000 ms →" in texts(drawn(bars))


def test_the_axis_starts_where_something_is() -> None:
    steady = 0.1049 + np.random.default_rng(1).exponential(1e-4, 500)

    alone = Bars.of(steady, {"P50": 0.105})
    beside = Bars.of(steady, {"P50": 0.105}, (Latency(95.0, 0.1),))

    assert 0.1 < alone.edges[0] <= steady.min()
    assert 0.09 < beside.edges[0] < 0.1
    assert int(alone.counts.sum()) + alone.num_beyond == len(steady)


def test_all_equal_and_all_missed_can_be_drawn() -> None:
    for values in (np.full(50, 0.01), np.full(50, np.inf), np.array([0.02])):
        root = drawn(Bars.of(values, {"P50": None}, SLOS), 350)
        assert ("50 misses" in texts(root)) == bool(np.isinf(values).all())


@pytest.mark.parametrize("width", [760, 350])
def test_labels_of_marks_do_not_cover_each_other(width: float) -> None:
    marks = {"mean": 0.0195, "P50": 0.0190, "P95": 0.0196, "P99": 0.0199}
    root = drawn(Bars.of(seconds(), marks, SLOS), width)
    labels = [node for node in of_class(root, "label") if node.tag == "text"]
    boxes = []
    for node in labels:
        x, wide = float(node.get("x")), 6.5 * len(next(iter(node.itertext())))
        left = x - wide if node.get("text-anchor") == "end" else x
        boxes.append((float(node.get("y")), left, left + wide))

    assert len(boxes) == 5
    for index, (y, left, right) in enumerate(boxes):
        assert left >= 0
        assert right <= width + 8
        for other_y, other_left, other_right in boxes[index + 1 :]:
            assert y != other_y or right <= other_left + 8 or other_right <= left + 8


def test_a_percentile_curve_passes_through_the_percentiles() -> None:
    values = seconds(10_000)
    chart = PercentileCurves.of([Curve(plain("it"), values, "response")])
    for percent, time in chart.lines[0]:
        assert (values <= time).mean() >= percent / 100 - 1e-9
        assert (values < time).mean() < percent / 100 + 1e-9

    assert len(chart.lines[0]) > 50
    assert "99.9%" in texts(drawn(chart))


def test_equal_room_for_every_percent_or_for_every_nine() -> None:
    chart = PercentileCurves.of([Curve(plain("it"), seconds(10_000), "response")])
    even = PercentileCurves.of([Curve(plain("it"), seconds(10_000), "response")], evenly=True)
    where = []
    for one in (chart, even):
        root = drawn(one)
        where.append(
            {t: float(n.get("x")) for t, n in zip(texts(root), root.iter("text"), strict=True)}
        )

    nines, percents = where

    assert nines["99%"] - nines["90%"] == pytest.approx(nines["99.9%"] - nines["99%"], abs=0.3)
    assert percents["50%"] - percents["25%"] == pytest.approx(
        percents["25%"] - percents["0%"], abs=0.3
    )


def test_misses_end_the_curve_with_an_arrow() -> None:
    values = np.concatenate([seconds(980), np.full(20, np.inf)])
    chart = PercentileCurves.of([Curve(plain("it"), values, "response")])

    root = drawn(chart)

    assert len(of_class(root, "marker response")) == 1
    whole = drawn(PercentileCurves.of([Curve(plain("it"), seconds(980), "response")]))
    assert not of_class(whole, "marker response")


def test_what_is_not_resolved_is_hatched() -> None:
    curve = Curve(plain("it"), seconds(1000), "response")

    assert of_class(drawn(PercentileCurves.of([curve], SLOS, 99.0)), "unresolved")
    assert not of_class(drawn(PercentileCurves.of([curve], SLOS, None)), "unresolved")


def test_shapes_follow_the_class_and_invalid_is_crossed_out() -> None:
    first, second, third = points()
    broken = msgspec.structs.replace(second, verdict="INVALID")
    names = texts(drawn(RateCurve([first, broken, third], SLOS, [])))

    assert {"LINEAR", "INVALID", "OVERLOAD"} <= set(names)
    assert "KNEE" not in names


def test_an_invalid_step_is_no_part_of_a_line_and_a_miss_ends_it() -> None:
    first, second, third = points()
    broken = msgspec.structs.replace(second, verdict="INVALID")
    missed = msgspec.structs.replace(
        second, response_seconds=Percentiles(p50=0.02, infinite=["p99"])
    )

    whole = RateCurve([first, second, third], SLOS, [])._pieces("p99")
    skipped = RateCurve([first, broken, third], SLOS, [])._pieces("p99")
    split = RateCurve([first, missed, third], SLOS, [])._pieces("p99")

    assert [[rate for rate, _ in piece] for piece in whole] == [[100.0, 500.0, 840.0]]
    assert [[rate for rate, _ in piece] for piece in skipped] == [[100.0, 840.0]]
    assert [[rate for rate, _ in piece] for piece in split] == [[100.0], [840.0]]


def test_repetitions_at_one_rate_give_their_middle() -> None:
    first = points()[0]
    repeated = [
        msgspec.structs.replace(first, offered=100.0 + tiny, response_seconds=Percentiles(p99=p99))
        for tiny, p99 in ((0.0, 0.030), (0.1, 0.010), (0.2, 0.020))
    ]

    assert RateCurve(repeated, SLOS, [])._pieces("p99") == [[(100.0, 0.020)]]


def test_limit_knee_and_saturation_are_marked_where_they_are() -> None:
    chart = charts.rate_curve(
        points(),
        SLOS,
        Limit(rate=611.0, low=600.0, high=640.0, at_least=False),
        Knee(rate=431.0),
        Saturation(rate=758.0, low=700.0, high=840.0),
    )
    wide = re.search(r"<svg.*?</svg>", chart, re.DOTALL)
    assert wide
    root = ET.fromstring(wide[0])

    xs = [float(of_class(root, f"mark {k}")[0].get("x1")) for k in ("knee", "limit", "saturation")]

    assert (xs[1] - xs[0]) / (xs[2] - xs[0]) == pytest.approx((611 - 431) / (758 - 431), abs=0.01)


def test_a_lower_bound_is_marked_as_one() -> None:
    limit = Limit(rate=700.0, low=500.0, high=None, at_least=True)

    assert "SLO limit or more" in charts.rate_curve(points(), SLOS, limit)
    assert "SLO limit or more" not in charts.rate_curve(
        points(), SLOS, msgspec.structs.replace(limit, at_least=False)
    )


def test_rates_are_logarithmic_only_where_most_would_be_squeezed() -> None:
    first = points()[0]

    def log_of(*rates: float) -> bool:
        found = [msgspec.structs.replace(first, offered=rate) for rate in rates]
        return RateCurve(found, SLOS, [])._across(0, 100).log

    assert log_of(1, 10, 100, 1000)
    assert not log_of(10, 400, 600, 800, 1000)


def test_slices_hold_every_request_once_and_name_their_misses() -> None:
    data = made.step(0, 400.0, refused=0.05)
    chart = Timeline.of(data.measured, data.warm_up, data.until, SLOS)

    assert sum(item.requests for item in chart.slices) == len(data.measured)
    assert sum(item.misses for item in chart.slices) == int((~data.measured.good).sum()) > 0
    assert max(item.in_flight for item in chart.slices) == data.measured.in_flight.max()


def test_a_stall_is_where_it_was_and_nowhere_else() -> None:
    intended = np.arange(0.0, 10.0, 0.005)
    recording = Recording.empty(intended)
    stalled = (intended >= 4.0) & (intended < 4.5)
    recording = replace(
        recording,
        sent=intended,
        last=np.where(stalled, 4.5, intended) + 0.005,
        status=np.full(len(intended), 200, np.int32),
    )

    slices = Timeline.of(recording, 0.0, 10.0, SLOS).slices

    slow = [item for item in slices if item.p99 is not None and item.p99 > 0.1]
    assert slow
    assert all(item.end >= 4.0 and item.start <= 4.5 for item in slow)


def test_a_line_never_bridges_a_slice_without_requests() -> None:
    recording = Recording.empty(np.concatenate([np.linspace(0, 1, 60), np.linspace(9, 10, 60)]))
    recording.status[:] = 200
    recording.last[:] = recording.intended + 0.01

    chart = Timeline.of(recording, 0.0, 10.001, SLOS)

    assert len(list(chart._pieces("p50"))) == 2
    assert any(item.p50 is None for item in chart.slices)


def test_bars_are_as_long_as_their_times() -> None:
    items = [
        NamedTime(plain("first"), 0.8, cold=True),
        NamedTime(plain("warm"), 0.2, cold=False, resolved=False),
        NamedTime(plain("nothing"), None, cold=False),
    ]
    chart = charts.times(plain("t"), plain("a"), items, name="cold")
    root = ET.fromstring(re.findall(r"<svg.*?</svg>", chart, re.DOTALL)[0])

    first, warm = (float(node.get("width")) for node in of_class(root, "bar"))

    assert warm / first == pytest.approx(0.25, abs=0.01)
    assert "~200 ms" in texts(root)


def test_causes_are_in_order_and_the_unexplained_comes_last() -> None:
    causes = [
        Cause(cause="network", share=0.1),
        Cause(cause="queueing", share=0.6, low=0.5, high=0.7),
    ]

    chart = charts.shares(causes, 0.3, plain("about"), name="causes")
    root = ET.fromstring(re.findall(r"<svg.*?</svg>", chart, re.DOTALL)[0])

    shown = [text for text in texts(root) if "%" not in text]
    assert shown == ["queueing", "network", "unexplained"]
    assert len(of_class(root, "whisker")) == 1


def test_every_chart_has_a_title_a_description_and_its_data() -> None:
    chart = charts.histogram(seconds(), {"P99": 0.05}, SLOS)
    root = ET.fromstring(chart)
    ids = {node.get("id") for node in root.iter()}

    svgs = list(root.iter("svg"))

    assert len(svgs) == 2
    for svg in svgs:
        assert svg.get("role") == "img"
        assert set(svg.get("aria-labelledby", "").split()) <= ids
    assert len(list(root.iter("tr"))) > 10
