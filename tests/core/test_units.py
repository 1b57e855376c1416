"""Durations, rates and sizes as people write them."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailproof.core.units import format_duration, parse_duration, parse_rate, parse_size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("250us", 250e-6),
        ("250µs", 250e-6),
        ("50ms", 0.05),
        ("1.5s", 1.5),
        ("5m", 300.0),
        ("2h", 7200.0),
        (" 50 ms ", 0.05),
        ("0s", 0.0),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "per_second"), [("2000/s", 2000.0), ("90/m", 1.5), ("7200 / h", 2.0), ("0.5/s", 0.5)]
)
def test_rates(text: str, per_second: float) -> None:
    assert parse_rate(text) == pytest.approx(per_second)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0B", 0),
        ("512B", 512),
        ("16MiB", 16 * 2**20),
        ("1.5KiB", 1536),
        ("2GiB", 2 * 2**30),
        ("1kB", 1000),
        ("3MB", 3_000_000),
        ("1GB", 10**9),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("parse", [parse_duration, parse_rate, parse_size])
@pytest.mark.parametrize(
    "text", ["", "50", "ms", "-5ms", "5 parsecs", "1e3s", "nans", "5ms5ms", "1/x", "1KB", ".5s"]
)
def test_what_has_no_unit_or_another_is_refused_and_quoted(
    parse: Callable[[str], float], text: str
) -> None:
    with pytest.raises(ValueError, match="expected a") as caught:
        parse(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0us"),
        (12.34e-6, "12.3us"),
        (0.00099, "990us"),
        (0.001, "1ms"),
        (0.05, "50ms"),
        (0.0504, "50.4ms"),
        (1.0, "1s"),
        (1.499, "1.5s"),
        (12345.6, "12346s"),
        (-0.05, "-50ms"),
    ],
)
def test_durations_are_printed_in_the_unit_that_a_person_would_choose(
    seconds: float, text: str
) -> None:
    assert format_duration(seconds) == text


@given(unit=st.sampled_from((1e-6, 1e-3, 1.0)), number=st.floats(1.0, 999.0))
def test_what_is_printed_can_be_read_back(unit: float, number: float) -> None:
    seconds = number * unit
    assert parse_duration(format_duration(seconds)) == pytest.approx(seconds, rel=0.005)


@pytest.mark.parametrize("seconds", [999.6e-6, 0.9996, 999.6])
def test_what_rounds_up_to_the_next_unit_can_be_read_back(seconds: float) -> None:
    assert parse_duration(format_duration(seconds)) == pytest.approx(seconds, rel=0.005)
