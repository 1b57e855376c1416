"""The SLO sentence."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailproof.core.slo import Availability, Latency, Slo, latencies, parse


@pytest.mark.parametrize(
    ("text", "slo"),
    [
        ("p95 < 50ms", Latency(95.0, 0.05)),
        ("p95 <= 50ms", Latency(95.0, 0.05)),
        ("p95<50ms", Latency(95.0, 0.05)),
        ("  p99.9 < 1.5s ", Latency(99.9, 1.5)),
        ("e2e p50 < 1m", Latency(50.0, 60.0)),
        ("ttft p99 < 1s", Latency(99.0, 1.0, "ttft")),
        ("itl p95 < 40ms", Latency(95.0, 0.04, "itl")),
        ("tpot p90 < 50ms", Latency(90.0, 0.05, "tpot")),
        ("availability > 99.5%", Availability(0.995)),
        ("availability >= 99 %", Availability(0.99)),
    ],
)
def test_sentences(text: str, slo: Slo) -> None:
    assert parse(text) == slo


@pytest.mark.parametrize(
    "text",
    [
        "",
        "fast",
        "p95 < 50",
        "p95 > 50ms",
        "p95 < -50ms",
        "p95 < 0ms",
        "p0 < 50ms",
        "p100 < 50ms",
        "P95 < 50ms",
        "mean < 50ms",
        "ttfb p95 < 50ms",
        "p95 < 50ms and p99 < 1s",
        "availability > 100%",
        "availability > 0%",
        "availability > 99.9",
        "availability < 99.9%",
    ],
)
def test_what_is_no_slo_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected|must be"):
        parse(text)


@pytest.mark.parametrize(
    ("slo", "text", "objective"),
    [
        (Latency(95.0, 0.05), "p95 < 50ms", 0.95),
        (Latency(99.9, 1.5, "ttft"), "ttft p99.9 < 1.5s", 0.999),
        (Availability(0.999), "availability > 99.9%", 0.999),
    ],
)
def test_printed_as_written(slo: Slo, text: str, objective: float) -> None:
    assert str(slo) == text
    assert slo.objective == pytest.approx(objective)


@given(
    percentile=st.integers(1, 999).map(lambda tenths: tenths / 10.0),
    milliseconds=st.integers(1, 999),
    signal=st.sampled_from(("e2e", "ttft", "itl", "tpot")),
)
def test_what_is_printed_is_parsed_to_the_same(
    percentile: float, milliseconds: int, signal: str
) -> None:
    slo = Latency(percentile, milliseconds / 1000, signal)  # type: ignore[arg-type]
    assert parse(str(slo)) == slo


def test_latencies_are_the_end_to_end_ones_tightest_first() -> None:
    texts = ("p99 < 250ms", "availability > 99.9%", "ttft p95 < 10ms", "p95 < 100ms")
    found = latencies(tuple(parse(text) for text in texts))
    assert [str(slo) for slo in found] == ["p95 < 100ms", "p99 < 250ms"]
    assert latencies((Availability(0.99),)) == ()
