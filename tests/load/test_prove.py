"""Which test is asked for, what is refused before anything is sent, and the verdict at the end."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace as replaced

from tailproof.core.errors import ConfigError
from tailproof.core.slo import Latency
from tailproof.core.slo import parse as slo
from tailproof.core.verdict import Finding, Judgement
from tailproof.load import outcome, prove, shapes, target
from tailproof.load.payloads import Payloads
from tailproof.load.prove import Job
from tailproof.load.settings import LoadSettings
from tailproof.load.stepper import combine
from tailproof.reporting.document import (
    Generator,
    Limit,
    Percentiles,
    Point,
    ServerView,
    Signal,
    Verdict,
)

P95 = (slo("p95 < 50ms"),)


def job(**load: object) -> Job:
    settings = LoadSettings(**{"slo": P95, **load})  # type: ignore[arg-type]
    return Job(
        target=target.build("http://127.0.0.1:9/x", [b"{}"]),
        payloads=Payloads((b"{}",), (1,), "test", "application/json"),
        mix=np.zeros(1, np.int32),
        shape=shapes.parse(settings.arrivals),
        load=settings,
        seed=1,
        timeout=30.0,
        command="tailproof prove",
        token="ab",
        now=datetime(2026, 1, 1, tzinfo=UTC),
    )


@pytest.mark.parametrize(
    ("load", "mode"),
    [
        ({}, "search"),
        ({"rate": 300.0}, "rate"),
        ({"require": 300.0}, "rate"),
        ({"steps": "100/s,200/s"}, "ladder"),
        ({"arrivals": "ramp:50/s..500/s"}, "rate"),
        ({"arrivals": "constant"}, "search"),
    ],
)
def test_what_is_given_says_which_test_it_is(load: dict[str, object], mode: str) -> None:
    assert prove.check(job(**load)) == mode


@pytest.mark.parametrize(
    ("load", "told"),
    [
        ({"slo": ()}, "--slo: say what must hold"),
        ({"slo": (slo("ttft p95 < 1s"),)}, "--slo = 'ttft p95 < 1s': this target gives whole"),
        ({"rate": 300.0, "require": 300.0}, "--require = '300.0': give either --rate or --require"),
        ({"rate": 300.0, "steps": "1/s"}, "give either --rate or --steps"),
        ({"rate": 3.0, "arrivals": "step:1/s,2/s"}, "give either --rate or --arrivals"),
        ({"slo": (slo("p95 < 31s"),)}, "--timeout = '30s': no answer could be seen to hold p95"),
        ({"seconds": 5.0}, "--for = '5s': a search has --budget"),
        ({"rate": 300.0, "max_rate": 299.0}, "--max-rate = '299/s': up to 300/s are planned"),
        ({"rate": 300.0, "seconds": 10.0, "max_requests": 3599}, "--max-requests = 3599: 3,600"),
        ({"rate": 1.0, "max_time": 31.0}, "--max-time = '31s': 32s are planned"),
        ({"rate": 1.0, "max_time": 31.0, "warm_up": 5.0}, "--max-time = '31s': 35s are planned"),
        ({"arrivals": "ramp:100/s..300/s", "max_rate": 299.0}, "up to 300/s are planned"),
        ({"arrivals": "step:100/s,300/s", "max_rate": 299.0}, "up to 300/s are planned"),
        ({"rate": 100.0, "arrivals": "spike:3x for 5s", "max_rate": 299.0}, "up to 300/s are"),
        (
            {"arrivals": "ramp:100/s..300/s", "seconds": 1.0, "max_requests": 199},
            "--max-requests = 199: 200 requests",
        ),
        ({"budget": 61.0, "max_time": 60.0}, "--max-time = '60s': 61s are planned"),
        ({"steps": "100"}, "--steps = '100': expected a rate with its unit"),
        ({"steps": "1/s,0/s"}, "--steps = '1/s,0/s': expected rates above 0/s"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_sent(
    load: dict[str, object], told: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        prove.check(job(**load))

    assert told in str(caught.value)


@pytest.mark.parametrize(
    "load",
    [
        {"rate": 300.0, "seconds": 10.0, "max_requests": 3600},
        {"rate": 300.0, "max_rate": 300.0},
        {"rate": 1.0, "max_time": 32.0},
        {"arrivals": "ramp:100/s..300/s", "seconds": 1.0, "max_requests": 200},
        {"rate": 100.0, "arrivals": "spike:3x for 5s", "max_rate": 300.0, "max_requests": 4200},
    ],
)
def test_a_cap_that_is_just_enough_is_no_mistake(load: dict[str, object]) -> None:
    assert prove.check(job(**load)) == "rate"


def test_nobody_there_is_told_before_anything_is_recorded(tmp_path: Path, free_port: int) -> None:
    asked = replace(
        job(rate=10.0, out=str(tmp_path)),
        target=target.build(f"http://127.0.0.1:{free_port}/x", [b"{}"]),
    )

    with pytest.raises(ConfigError, match="nobody answers there"):
        prove.run(asked, None)  # type: ignore[arg-type]

    assert list(tmp_path.iterdir()) == []


# The verdict of a search


def point(rate: float, verdict: Verdict, reason: str = "") -> Point:
    nothing = Percentiles()
    return Point(
        index=0,
        role="bisect",
        offered=rate,
        achieved=rate,
        requests=100,
        errors=0,
        refused=0,
        statuses={},
        class_="LINEAR",
        verdict=verdict,
        reason=reason,
        advice="",
        response_seconds=nothing,
        uncorrected_seconds=nothing,
        send_lag_seconds=nothing,
        own_lag_seconds=nothing,
        warm_up_seconds=0.0,
        measured_seconds=1.0,
        stopped_early=False,
        connections=1,
        generator=Generator(ok=verdict != "INVALID"),
        server=ServerView(),
    )


BOUNDED = Limit(rate=105.0, low=100.0, high=110.0, at_least=False)
OPEN = Limit(rate=100.0, low=100.0, high=None, at_least=True)


@pytest.mark.parametrize(
    ("points", "limit", "verdict", "told"),
    [
        ([point(100, "PASS"), point(110, "FAIL")], BOUNDED, "PASS", "the limit is about 105/s"),
        (
            [replaced(point(100, "PASS"), role="bracket"), point(110, "FAIL")],
            BOUNDED,
            "UNDECIDED",
            "no repeat confirmed 100/s",
        ),
        ([point(100, "PASS")], OPEN, "UNDECIDED", "at least 100/s; no higher rate was decided"),
        (
            [point(100, "PASS"), point(200, "INVALID", "it was late")],
            OPEN,
            "UNDECIDED",
            "at least 100/s; above that, it was late",
        ),
        ([point(5, "FAIL", "all late"), point(9, "FAIL")], None, "FAIL", "not even 5/s: all late"),
        (
            [point(5, "UNDECIDED"), point(9, "FAIL")],
            Limit(rate=None, low=None, high=9.0, at_least=False),
            "UNDECIDED",
            "9/s failed, and no lower rate was decided",
        ),
        ([point(5, "INVALID", "it was late")], None, "INVALID", "it was late"),
        ([point(5, "UNDECIDED")], None, "UNDECIDED", "the budget did not suffice"),
    ],
)
def test_a_search_passes_when_its_limit_is_found_and_bounded(
    points: list[Point], limit: Limit | None, verdict: str, told: str
) -> None:
    found = outcome.of_limit(points, limit, ())

    assert found.verdict == verdict
    assert told.replace("not even 5/s: ", "not even 5/s holds: ") in found.reason


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, "INVALID"),
        ({"bad": False}, "PASS"),
        ({"invalidates": False}, "PASS"),
    ],
)
def test_a_proof_against_the_tester_ends_every_other_verdict(
    changes: dict[str, bool], verdict: str
) -> None:
    found = outcome.Outcome("PASS", "the limit is about 105/s", BOUNDED, ("a question",))

    ended = outcome.after_proofs(found, [replaced(LATE, **changes)])

    assert ended.verdict == verdict
    assert ended.unresolved == ("a question",)
    assert (ended.limit is None) == ("load-testing yourself: late" in ended.reason)
    assert (ended.limit is None) == (verdict == "INVALID")


# The verdict of a step


def finding(share: float, verdict: Verdict) -> Finding:
    return Finding(
        slo="p95 < 50ms",
        misses=int(1000 * share),
        requests=1000,
        share=share,
        allowed=0.05,
        low=None,
        high=None,
        effective_requests=10.0,
        verdict=verdict,  # type: ignore[arg-type]
        reason="as it was",
    )


def judged(share: float, verdict: Verdict) -> Judgement:
    return Judgement(verdict, "as it was", (finding(share, verdict),))  # type: ignore[arg-type]


LATE = Signal(
    name="send_lag", value=1.0, limit=0.1, unit="seconds", bad=True, invalidates=True, text="late"
)


@pytest.mark.parametrize("verdict", ["PASS", "FAIL", "UNDECIDED"])
def test_a_tester_in_the_number_comes_before_any_verdict(verdict: Verdict) -> None:
    late = Generator(ok=False, signals=[LATE])

    found = combine(judged(0.5, verdict), "OVERLOAD", late, stopped_early=True)

    assert found == ("INVALID", "you are load-testing yourself: late")


def test_without_a_steady_state_what_was_seen_decides() -> None:
    fine = Generator(ok=True)

    assert combine(judged(0.3, "UNDECIDED"), "OVERLOAD", fine, stopped_early=False)[0] == "FAIL"
    assert combine(judged(0.3, "UNDECIDED"), "KNEE", fine, stopped_early=True)[0] == "FAIL"
    assert combine(judged(0.3, "UNDECIDED"), "KNEE", fine, stopped_early=False)[0] == "UNDECIDED"
    assert combine(judged(0.04, "PASS"), "OVERLOAD", fine, stopped_early=False)[0] == "PASS"


def test_the_keys_of_a_point_are_those_of_the_contract() -> None:
    keys = msgspec.to_builtins(point(1.0, "PASS")).keys()

    assert {"offered", "achieved", "requests", "errors", "class", "verdict"} <= keys
    assert {"response_seconds", "uncorrected_seconds", "send_lag_seconds"} <= keys
    assert isinstance(P95[0], Latency)
