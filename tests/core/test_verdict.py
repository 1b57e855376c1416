"""The verdict: on samples that leave no doubt, on those that must, on queues with known truth."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailproof.core.queues import mm1_quantile, one_at_a_time
from tailproof.core.recording import LOST, Floats, Recording
from tailproof.core.slo import Availability, Latency, parse
from tailproof.core.verdict import CALIBRATED, Finding, Verdict, judge

RNG_SEED = 23
ROOT = Path(__file__).parents[2]


def recorded(response: Sequence[float] | Floats, status: int = 503) -> Recording:
    """Answered after so many seconds; infinite: a fast answer with `status` that is no good."""
    seconds = np.asarray(response, np.float64)
    intended = np.arange(len(seconds)) / 100.0
    is_good = np.isfinite(seconds)
    return replace(
        Recording.empty(intended),
        sent=intended,
        last=intended + np.where(is_good, seconds, 0.001),
        status=np.where(is_good, 200, status).astype(np.int32),
    )


def verdict(response: Sequence[float] | Floats, slo: str, **options: Any) -> Verdict:
    """Of the one SLO, whatever its availability."""
    return judge(recorded(response), [parse(slo)], **options).findings[0].verdict


def mm1(utilization: float, num: int, rng: np.random.Generator) -> Floats:
    warm_up = 1000
    total = num + warm_up
    arrivals = np.sort(rng.uniform(0.0, total * 0.010 / utilization, total))
    return one_at_a_time(arrivals, rng.exponential(0.010, total))[warm_up:]


# --- no doubt -------------------------------------------------------------------------------------


@pytest.mark.parametrize("slo", ["p50 < 100ms", "p95 < 100ms", "p99 < 100ms", "p99.9 < 100ms"])
def test_always_just_late_is_a_clear_fail_and_always_just_in_time_a_clear_pass(slo: str) -> None:
    """Not 104.9 ms rounded to 100 ms, and no cluster of 3,000 misses that counts as one."""
    assert verdict(np.full(3000, 0.1049), slo) == "FAIL"
    assert verdict(np.full(3000, 0.095), slo) == "PASS"
    assert verdict(np.full(3000, 0.100), slo) == "PASS"  # the edge is inclusive


def half_refused(num: int) -> Floats:
    return np.where(np.random.default_rng(RNG_SEED).random(num) < 0.5, math.inf, 0.02)


def every_other_refused(num: int) -> Floats:
    return np.where(np.arange(num) % 2, math.inf, 0.02)


def overload(num: int) -> Floats:
    """At 1.05 times the capacity: the queue grows until about a third are late."""
    rng = np.random.default_rng(RNG_SEED)
    arrivals = np.sort(rng.uniform(0.0, num / 105.0, num))
    return one_at_a_time(arrivals, rng.exponential(0.010, num))


def drowning_at_the_end(num: int) -> Floats:
    """Well for 70% of the time, then every request is late: one single block."""
    return np.where(np.arange(num) < 0.7 * num, 0.02, 5.0)


@pytest.mark.parametrize(
    "sample", [half_refused, every_other_refused, overload, drowning_at_the_end]
)
@pytest.mark.parametrize("slo", ["p90 < 100ms", "p95 < 100ms", "p99 < 100ms"])
def test_many_misses_are_a_fail_however_they_come(sample: Any, slo: str) -> None:
    response = sample(3000)
    assert np.mean(response > 0.1) > 0.2

    assert verdict(response, slo) == "FAIL"


@pytest.mark.parametrize(
    ("late", "slo", "expected"),
    [
        (0.03, "p95 < 100ms", "PASS"),
        (0.05, "p95 < 100ms", "UNDECIDED"),
        (0.08, "p95 < 100ms", "FAIL"),
        (0.005, "p99 < 100ms", "PASS"),
        (0.02, "p99 < 100ms", "FAIL"),
        (0.4, "p50 < 100ms", "PASS"),
        (0.6, "p50 < 100ms", "FAIL"),
    ],
)
def test_independent_misses_are_counted_in_full(late: float, slo: str, expected: Verdict) -> None:
    """Also those that are within 20 of each other by chance, as 5% are."""
    num = 5000
    response = np.full(num, 0.02)
    where = np.random.default_rng(RNG_SEED).permutation(num)[: round(late * num)]
    response[where] = 0.2

    assert verdict(response, slo) == expected


def test_a_fast_refusal_is_not_a_fast_answer() -> None:
    response = np.where(np.arange(2000) % 10 == 0, math.inf, 0.02)

    found = judge(recorded(response), [parse("p95 < 100ms")])

    assert found.verdict == "FAIL"
    assert found.findings[0].misses == 200
    assert "P95 was a miss" in found.findings[0].reason
    assert "(200 failed)" in found.findings[0].reason


# --- doubt ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("slo", "least"), [("p95 < 100ms", 59), ("p99 < 100ms", 299), ("p99.9 < 100ms", 2995)]
)
def test_without_a_miss_so_many_requests_are_the_least_for_a_pass(slo: str, least: int) -> None:
    assert verdict(np.full(least, 0.05), slo) == "PASS"
    assert verdict(np.full(least - 1, 0.05), slo) == "UNDECIDED"


def test_one_spell_of_misses_is_one_event() -> None:
    """80 late ones together and 80 spread out are the same share, and not the same evidence."""
    together = np.full(5000, 0.02)
    together[2000:2080] = 0.3
    spread = np.full(5000, 0.02)
    spread[np.random.default_rng(RNG_SEED).permutation(5000)[:80]] = 0.3

    assert verdict(spread, "p99 < 100ms") == "FAIL"
    found = judge(recorded(together), [parse("p99 < 100ms")]).findings[0]
    assert found.verdict == "UNDECIDED"
    assert "came in 1 spell)" in found.reason
    assert found.effective_requests is not None
    assert found.effective_requests < 200


def test_undecided_says_about_how_many_more_requests_it_takes() -> None:
    found = judge(recorded(np.full(200, 0.05)), [parse("p99 < 100ms")])

    assert found.verdict == "UNDECIDED"
    assert "about 99 more requests would decide" in found.reason
    assert verdict(np.full(299, 0.05), "p99 < 100ms") == "PASS"


def test_a_sample_on_the_limit_is_too_close_to_tell() -> None:
    response = np.where(np.arange(2000) % 20 == 0, 0.2, 0.02)  # exactly 5%

    assert "too close to the limit" in judge(recorded(response), [parse("p95 < 100ms")]).reason


def test_more_looks_and_more_confidence_ask_for_more() -> None:
    response = np.full(300, 0.05)

    assert verdict(response, "p99 < 100ms") == "PASS"
    assert verdict(response, "p99 < 100ms", looks=2) == "UNDECIDED"
    assert verdict(response, "p99 < 100ms", confidence=0.99) == "UNDECIDED"
    assert "97.5% confidence" in judge(recorded(response), [parse("p99 < 100ms")], looks=2).reason


def test_nothing_measured_is_undecided() -> None:
    found = judge(recorded([]), [parse("p95 < 100ms")])

    assert (found.verdict, found.findings) == ("UNDECIDED", ())
    assert "no request" in found.reason


# --- several SLOs ---------------------------------------------------------------------------------


def test_the_worst_finding_is_the_verdict_and_the_tightest_gives_the_reason() -> None:
    response = np.random.default_rng(RNG_SEED).permutation(np.linspace(0.01, 0.1, 3000))

    def reason(*slos: str) -> tuple[str, str]:
        found = judge(recorded(response), [parse(slo) for slo in slos])
        assert [item.slo for item in found.findings[:-1]] == list(slos)
        return found.verdict, found.reason[:3]

    assert reason("p95 < 200ms", "p50 < 60ms") == ("PASS", "P50")
    assert reason("p50 < 60ms", "p99 < 20ms") == ("FAIL", "P99")
    assert reason("p99.9 < 99.9ms", "p50 < 60ms") == ("UNDECIDED", "P99")
    assert reason("p99.9 < 99.9ms", "p50 < 20ms") == ("FAIL", "P50")


@pytest.mark.parametrize(("failed", "expected"), [(0, "PASS"), (2, "PASS"), (3, "FAIL")])
def test_undeclared_availability_is_asked_of_the_observed_share(
    failed: int, expected: Verdict
) -> None:
    response = np.full(2000, 0.02)
    response[:failed] = math.inf

    found = judge(recorded(response, LOST), [parse("p95 < 100ms")])

    assert found.verdict == expected
    assert found.findings[0].verdict == "PASS"
    assert found.findings[1] == Finding(
        slo="availability > 99.9%",
        misses=failed,
        requests=2000,
        share=failed / 2000,
        allowed=0.001,
        low=None,
        high=None,
        effective_requests=None,
        verdict=expected,
        reason=found.findings[1].reason,
    )


def test_declared_availability_is_inferred() -> None:
    few, many = np.full(2000, 0.02), np.full(3000, 0.02)

    assert verdict(few, "availability > 99.9%") == "UNDECIDED"
    assert verdict(many, "availability > 99.9%") == "PASS"
    many[::100] = math.inf
    found = judge(recorded(many), [Availability(0.999), Latency(95.0, 0.1)])
    assert [item.verdict for item in found.findings] == ["FAIL", "PASS"]
    assert verdict(np.full(3000, 9.0), "availability > 99.9%") == "PASS"  # late is not failed


@pytest.mark.parametrize("slo", ["ttft p95 < 1s", "itl p99 < 50ms", "tpot p50 < 40ms"])
def test_an_slo_about_tokens_cannot_be_judged_here(slo: str) -> None:
    with pytest.raises(ValueError, match="not its tokens"):
        judge(recorded([0.1]), [parse(slo)])


# --- what is written ------------------------------------------------------------------------------


def test_a_reason_is_a_sentence_with_its_figures() -> None:
    response = np.full(7160, 0.06)
    where = np.random.default_rng(RNG_SEED).permutation(7160)
    response[where[:86]] = 0.14
    response[where[86:360]] = 0.087

    found = judge(recorded(response), [parse("p95 < 100ms")])

    assert found.reason == (
        "P95 was 87ms: 1.2% of 7,160 requests were late, at most 5% may be; "
        "with 95% confidence at most 1.5%"
    )


def test_a_value_beside_the_threshold_shows_on_which_side_it_is() -> None:
    assert (
        "P95 was 100.02ms:" in judge(recorded(np.full(500, 0.10002)), [parse("p95 < 100ms")]).reason
    )
    assert "P95 was 100ms:" in judge(recorded(np.full(500, 0.1)), [parse("p95 < 100ms")]).reason


@given(
    st.lists(st.floats(0.001, 1.0) | st.just(math.inf), min_size=1, max_size=300),
    st.sampled_from([50.0, 90.0, 95.0, 99.0]),
    st.floats(0.001, 1.0),
)
def test_bounds_hold_the_observed_share_and_decide(
    response: list[float], percent: float, threshold: float
) -> None:
    found = judge(recorded(response), [Latency(percent, threshold)])

    first = found.findings[0]
    assert first.misses == sum(recorded(response).response > threshold + 1e-9)
    assert first.low is not None
    assert first.high is not None
    assert first.low <= first.share + 1e-9
    assert first.share <= first.high + 1e-9
    assert (first.verdict == "PASS") == (first.high <= first.allowed)
    assert (first.verdict == "FAIL") == (first.low > first.allowed)
    severity = ["PASS", "UNDECIDED", "FAIL"].index
    assert severity(found.verdict) == max(severity(item.verdict) for item in found.findings)


@given(st.lists(st.booleans(), min_size=100, max_size=400))
def test_a_higher_threshold_never_turns_a_pass_into_a_fail(late: list[bool]) -> None:
    response = np.where(late, 0.2, 0.05)

    assert (verdict(response, "p90 < 100ms"), verdict(response, "p90 < 300ms")) != ("PASS", "FAIL")


# --- on queues whose truth is known: benchmarks/verdict.py has the full table --------------------


def shares(percent: float, factor: float, utilization: float, num: int) -> tuple[float, float]:
    """(PASS, FAIL) of 150 runs of M/M/1, for `factor` times the true percentile."""
    rng = np.random.default_rng(31)
    threshold = factor * mm1_quantile(utilization / 0.010, 0.010, percent / 100.0)
    found = [
        judge(recorded(mm1(utilization, num, rng)), [Latency(percent, threshold)]).verdict
        for _ in range(150)
    ]
    return found.count("PASS") / 150, found.count("FAIL") / 150


@pytest.mark.parametrize(
    ("percent", "utilization", "num", "fails", "passes"),
    [(99.0, 0.8, 7178, 0.12, 0.62), (95.0, 0.8, 7178, 0.4, 0.65), (99.0, 0.5, 2331, 0.5, 0.7)],
)
def test_a_service_that_breaks_its_slo_seldom_passes_and_one_that_keeps_it_mostly_does(
    percent: float, utilization: float, num: int, fails: float, passes: float
) -> None:
    broken = shares(percent, 0.8, utilization, num)
    kept = shares(percent, 1.5, utilization, num)

    assert broken[0] <= 0.07
    assert broken[1] >= fails
    assert kept[0] >= passes
    assert kept[1] <= 0.03


def test_on_the_limit_neither_answer_is_given_often() -> None:
    passed, failed = shares(95.0, 1.0, 0.5, 2331)

    assert passed <= 0.14
    assert failed <= 0.10


def test_the_calibrated_rates_are_in_the_documented_table_and_good_enough() -> None:
    line = next(
        line
        for line in (ROOT / "docs/verdict.md").read_text().splitlines()
        if line.startswith("| M/M/1 | 0.8 | 100 rt | 7,178 | P99 |")
    )
    broken, limit, kept = (
        [float(share) / 100.0 for share in cell.split("/")] for cell in line.split(" | ")[5:8]
    )

    assert CALIBRATED["false_pass"] == pytest.approx(broken[0])
    assert CALIBRATED["pass_on_the_limit"] == pytest.approx(limit[0])
    assert CALIBRATED["power"] == pytest.approx(kept[0])
    assert CALIBRATED["false_pass"] <= 0.05
    assert CALIBRATED["power"] >= 0.70
    assert CALIBRATED["runs"] >= 1000
