"""Nothing that a caller sends becomes an id of ours unless it is well-formed."""

import pytest

from tailproof.telemetry.trace import RequestIds, Trace, parse_traceparent

TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
SPAN_ID = "00f067aa0ba902b7"


@pytest.mark.parametrize(
    "value",
    [
        f"00-{TRACE_ID}-{SPAN_ID}-01",
        f"00-{TRACE_ID}-{SPAN_ID}-00",
        f"cc-{TRACE_ID}-{SPAN_ID}-01",
        f"cc-{TRACE_ID}-{SPAN_ID}-01-what-the-future-adds",
    ],
)
def test_a_valid_traceparent_names_its_trace(value: str) -> None:
    assert parse_traceparent(value) == Trace(TRACE_ID, SPAN_ID)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("", "nothing"),
        ("garbage", "not the form"),
        (f"00-{'0' * 32}-{SPAN_ID}-01", "an all-zero trace id is invalid"),
        (f"00-{TRACE_ID}-{'0' * 16}-01", "an all-zero span id is invalid"),
        (f"ff-{TRACE_ID}-{SPAN_ID}-01", "version ff is forbidden"),
        (f"00-{TRACE_ID}-{SPAN_ID}-01-more", "version 00 has four fields"),
        (f"00-{TRACE_ID}-{SPAN_ID}", "no flags"),
        (f"00-{TRACE_ID.upper()}-{SPAN_ID}-01", "upper case"),
        (f"00-{TRACE_ID[:-1]}-{SPAN_ID}-01", "a short trace id"),
        (f"00-{TRACE_ID}0-{SPAN_ID}-01", "a long trace id"),
        (f"00-{TRACE_ID[:-1]}g-{SPAN_ID}-01", "not hexadecimal"),
        (f"00-{TRACE_ID[:-1]}٣-{SPAN_ID}-01", "a digit that is not ASCII"),
        (f" 00-{TRACE_ID}-{SPAN_ID}-01", "a leading blank"),
        (f"00-{TRACE_ID}-{SPAN_ID}-01\n", "a line break"),
        pytest.param(f"cc-{TRACE_ID}-{SPAN_ID}-01-{'a' * 65536}", "too long", id="64 KB"),
    ],
)
def test_anything_else_is_no_trace(value: str, why: str) -> None:
    assert parse_traceparent(value) is None, why


def test_the_longest_traceparent_is_512_characters() -> None:
    start = f"cc-{TRACE_ID}-{SPAN_ID}-01-"

    assert parse_traceparent(start.ljust(512, "a")) is not None
    assert parse_traceparent(start.ljust(513, "a")) is None


@pytest.mark.parametrize("offered", ["a", "A1.b_c-d", "7" * 64])
def test_a_well_formed_request_id_is_kept(offered: str) -> None:
    assert RequestIds("p").accept(offered) == offered


@pytest.mark.parametrize(
    "offered",
    [
        None,
        "",
        "7" * 65,
        "a b",
        "a\n",
        "a\r\nSet-Cookie: x=1",
        "a\x00",
        "a\x1b[31m",
        "é",
        "\u0661",  # a digit, but not an ASCII one
        "a\u2028b",
        "%0d%0a",
        '"}',
        "../../etc/passwd",
        "\ud800",
        pytest.param("a" * 65536, id="64 KB"),
    ],
)
def test_any_other_request_id_is_replaced(offered: str | None) -> None:
    assert RequestIds("p").accept(offered) == "p-1"


def test_new_ids_differ_and_are_acceptable_themselves() -> None:
    ids, others = RequestIds(), RequestIds()

    new = [ids.new() for _ in range(1000)] + [others.new() for _ in range(1000)]

    assert len(set(new)) == len(new)
    assert all(RequestIds("p").accept(request_id) == request_id for request_id in new)
