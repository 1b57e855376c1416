"""Scales, ticks and labels."""

import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailproof.reporting import picture
from tailproof.reporting.picture import Canvas, Scale, Table, apart, rows_of
from tailproof.reporting.words import Text, plain

POSITIVE = st.floats(1e-6, 1e6)


@given(POSITIVE, st.integers(2, 12))
def test_linear_ticks_are_even_inside_and_no_more_than_asked_for(high: float, most: int) -> None:
    ticks = picture.linear_ticks(0.0, high, most)

    assert 1 <= len(ticks) <= most
    assert all(0.0 <= tick <= high * (1 + 1e-6) for tick in ticks)
    gaps = [later - earlier for earlier, later in pairwise(ticks)]
    assert all(gap == pytest.approx(gaps[0], rel=1e-6) for gap in gaps)


@given(POSITIVE, st.floats(10, 1e5), st.integers(2, 12))
def test_log_ticks_rise_inside_and_are_no_more_than_asked_for(
    low: float, ratio: float, most: int
) -> None:
    ticks = picture.log_ticks(low, low * ratio, most)

    assert 1 <= len(ticks) <= most
    assert all(later > earlier for earlier, later in pairwise(ticks))
    assert all(low * (1 - 1e-6) <= tick <= low * ratio * (1 + 1e-6) for tick in ticks)


def test_ticks_are_round() -> None:
    assert picture.linear_ticks(0, 0.087, 5) == [0.0, 0.02, 0.04, 0.06, 0.08]
    assert picture.log_ticks(0.009, 1.1, 9) == pytest.approx([0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0])
    assert picture.log_ticks(1, 1e6, 4) == pytest.approx([1, 100, 10_000, 1e6])


def test_a_scale_puts_what_is_outside_on_its_end() -> None:
    scale = Scale(1.0, 100.0, 0.0, 200.0, log=True)

    assert scale(10.0) == pytest.approx(100.0)
    assert scale(0.1) == 0.0
    assert scale(1e9) == pytest.approx(200.0)
    assert Scale(0.0, 10.0, 100.0, 0.0)(2.5) == 75.0


def test_a_wide_range_is_logarithmic_a_narrow_one_is_not() -> None:
    assert picture.spanning([0.005, 1.2], 0, 100).log
    assert not picture.spanning([0.005, 0.05], 0, 100).log
    assert not picture.spanning([0.001, 0.05], 0, 100, typical=0.02).log
    assert picture.spanning([], 0, 100)(0.0) == 0.0


@given(st.lists(st.tuples(st.floats(0, 500), st.floats(1, 100)), max_size=12))
def test_labels_of_one_row_never_cover_each_other(found: list[tuple[float, float]]) -> None:
    spans = [(left, left + width) for left, width in found]
    rows = rows_of(spans)

    for row in set(rows):
        taken = sorted(span for span, at in zip(spans, rows, strict=True) if at == row)
        assert all(before[1] <= after[0] for before, after in pairwise(taken))


@given(st.lists(st.floats(0, 100), max_size=6))
def test_positions_are_moved_apart_and_stay_within(positions: list[float]) -> None:
    found = apart(positions, 13.0, 0.0, 100.0)

    assert all(0.0 <= at <= 100.0 for at in found)
    assert all(b - a >= 13.0 - 1e-9 for a, b in pairwise(sorted(found)))


def test_positions_far_enough_apart_stay_where_they_are() -> None:
    assert apart([80.0, 10.0, 45.0], 13.0, 0.0, 100.0) == [80.0, 10.0, 45.0]


def test_a_canvas_is_well_formed_and_escapes_its_text() -> None:
    canvas = Canvas(360, 100, "it")
    canvas.text(1, 2, Text('<script>"', "&"))
    canvas.hatched(0, 0, 10, 10, "bar")
    for shape in picture.SHAPES:
        canvas.mark(5, 5, shape, "marker")

    root = ET.fromstring(canvas.svg("title"))

    assert root.get("viewBox") == "0 0 360 100"
    assert "".join(root.itertext()) == '<script>"&'
    assert root.get("aria-labelledby") == "title"


def test_a_table_has_headings_with_scope_and_a_named_frame() -> None:
    table = Table("t", plain("About"), [plain("step"), plain("ms")], [["0", "<1>"]])

    root = ET.fromstring(table.html())

    assert [cell.get("scope") for cell in root.iter("th")] == ["col", "col", "row"]
    assert root.get("aria-labelledby") == "t-caption"
    assert [cell.text for cell in root.iter("td")] == ["<1>"]


def test_an_empty_table_is_a_table() -> None:
    assert ET.fromstring(Table("t", plain("a"), [plain("b")], []).html()) is not None
