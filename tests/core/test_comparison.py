"""Same, slower, quicker: on queues whose truth is known, and where a naive test would be wrong."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from tailproof.core import arrivals, queues
from tailproof.core.comparison import MIN_REQUESTS, _tail, compare, compare_misses
from tailproof.core.recording import Floats, Recording

SERVICE = 0.010
BATCHES_PER_SECOND = 16 / 0.021
WARM_UP = 1.0

Server = Callable[[np.random.Generator, float, float, float], Recording]


def recording(response: Floats, status: int = 200) -> Recording:
    """Requests 10 ms apart; an infinite response time is an answer with 503."""
    intended = np.arange(len(response)) * 0.01
    good = np.isfinite(response)
    return replace(
        Recording.empty(intended),
        sent=intended,
        last=intended + np.where(good, response, 0.001),
        status=np.where(good, status, 503).astype(np.int32),
    )


def mm1(
    rng: np.random.Generator, utilization: float, seconds: float, slowness: float = 1.0
) -> Recording:
    """One at a time, exponential services of 10 ms: 50/s at utilization 0.5."""
    at = arrivals.poisson(utilization / SERVICE, WARM_UP + seconds, int(rng.integers(2**31)))
    response = queues.one_at_a_time(at, rng.exponential(SERVICE * slowness, len(at)))
    return recording(response[at >= WARM_UP])


def batched(
    rng: np.random.Generator, utilization: float, seconds: float, slowness: float = 1.0
) -> Recording:
    """5 ms and 1 ms a row, at most 16 rows in a batch: 762/s at utilization 1."""
    rate = utilization * BATCHES_PER_SECOND
    at = arrivals.poisson(rate, WARM_UP + seconds, int(rng.integers(2**31)))
    response = queues.batched(at, lambda rows: slowness * (0.005 + 0.001 * rows), 16)
    return recording(response[at >= WARM_UP])


def independent(rng: np.random.Generator, num: int, median: float = 0.05) -> Recording:
    """Response times that barely vary and know nothing of each other."""
    return recording(median * rng.lognormal(0.0, 0.01, num))


def shuffled(rng: np.random.Generator, part: Recording) -> Recording:
    """The same response times, without the order in which they were."""
    return recording(rng.permutation(part.response))


def test_tail_of_student_agrees_with_scipy() -> None:
    for freedom in (1.0, 2.0, 7.5, 19.0, 38.0, 200.0):
        for t in (-30.0, -2.0, 0.0, 0.3, 2.5, 12.0):
            assert _tail(t, freedom) == pytest.approx(stats.t.sf(t, freedom), rel=1e-9)


@pytest.mark.parametrize(
    ("server", "utilization", "seconds", "found_at_least"),
    [
        (mm1, 0.5, 60.0, 0.9),
        (mm1, 0.8, 30.0, 0.9),
        (batched, 0.5, 5.0, 0.9),
    ],
)
def test_the_same_service_twice_and_one_that_is_slower(
    server: Server, utilization: float, seconds: float, found_at_least: float
) -> None:
    rng = np.random.default_rng(11)
    pairs = 120
    same, slower = Counter[str](), Counter[str]()
    for _ in range(pairs):
        before = server(rng, utilization, seconds, 1.0)
        same[compare([before], [server(rng, utilization, seconds, 1.0)], 95.0).outcome] += 1
        slower[compare([before], [server(rng, utilization, seconds, 1.3)], 95.0).outcome] += 1

    assert same["better"] + same["worse"] <= 0.05 * pairs
    assert slower["worse"] >= found_at_least * pairs
    assert slower["better"] == 0


def test_without_the_order_of_requests_the_same_service_seems_to_differ() -> None:
    """What batches of time are for: a test that takes requests for independent is often wrong."""
    rng = np.random.default_rng(12)
    wrong = 0
    for _ in range(50):
        before, after = (shuffled(rng, mm1(rng, 0.8, 30.0)) for _ in range(2))
        wrong += compare([before], [after], 95.0).outcome in ("better", "worse")

    assert wrong >= 20


@pytest.mark.soak
@pytest.mark.parametrize("percentile", [50.0, 95.0, 99.0])
@pytest.mark.parametrize("utilization", [0.5, 0.8])
@pytest.mark.parametrize(
    ("server", "seconds"), [(mm1, 10.0), (mm1, 30.0), (mm1, 60.0), (batched, 10.0)]
)
def test_calibration(server: Server, seconds: float, utilization: float, percentile: float) -> None:
    rng = np.random.default_rng(13)
    pairs = 1000
    same, slower = Counter[str](), Counter[str]()
    for _ in range(pairs):
        before = server(rng, utilization, seconds, 1.0)
        after, worse = (server(rng, utilization, seconds, slowness) for slowness in (1.0, 1.3))
        same[compare([before], [after], percentile).outcome] += 1
        slower[compare([before], [worse], percentile).outcome] += 1

    print(  # docs/prove.md quotes it
        f"| {server.__name__} | {utilization} | {seconds:.0f} s | P{percentile:.0f} "
        f"| {(same['better'] + same['worse']) / pairs:.1%} | {slower['worse'] / pairs:.0%} |"
    )
    assert same["no difference"] >= 0.95 * pairs
    assert slower["better"] == 0


@pytest.mark.parametrize("factor", [0.5, 1.1, 3.0])
@pytest.mark.parametrize("percentile", [50.0, 95.0, 99.9])
def test_the_interval_holds_a_ratio_that_is_known(factor: float, percentile: float) -> None:
    rng = np.random.default_rng(14)
    before, other = (rng.lognormal(-4.0, 0.4, 20_000) for _ in range(2))

    found = compare([recording(before)], [recording(factor * other)], percentile)

    assert found.low is not None
    assert found.high is not None
    assert found.ratio is not None
    assert found.low < factor < found.high
    assert found.low < found.ratio < found.high
    assert found.ratio == pytest.approx(factor, rel=0.3)


@pytest.mark.parametrize("seed", range(5))
def test_the_other_way_round_it_is_the_opposite(seed: int) -> None:
    rng = np.random.default_rng(seed)
    before, after = mm1(rng, 0.5, 60.0), mm1(rng, 0.5, 60.0, 1.5)

    there, back = compare([before], [after], 95.0), compare([after], [before], 95.0)

    assert (there.outcome, back.outcome) == ("worse", "better")
    assert there.ratio == pytest.approx(1.0 / (back.ratio or 0.0))
    assert there.low == pytest.approx(1.0 / (back.high or 0.0), rel=1e-3)
    assert there.p == pytest.approx(back.p, rel=1e-6)


@pytest.mark.parametrize(
    ("factor", "outcome"),
    [
        (1.015, "no difference"),
        (1 / 1.015, "no difference"),
        (1.05, "worse"),
        (1 / 1.05, "better"),
    ],
)
def test_a_difference_that_nobody_acts_on_is_none_however_sure(factor: float, outcome: str) -> None:
    rng = np.random.default_rng(15)

    found = compare([independent(rng, 5000)], [independent(rng, 5000, median=0.05 * factor)], 50.0)

    assert found.outcome == outcome
    assert found.low is not None
    assert found.high is not None
    assert not found.low < 1.0 < found.high  # all four are significant


def test_constant_times_are_compared_without_any_scatter() -> None:
    before, same, slower = (recording(np.full(500, seconds)) for seconds in (0.1, 0.1, 0.104))

    assert compare([before], [same], 95.0).outcome == "no difference"
    assert compare([before], [slower], 95.0).outcome == "worse"


def test_a_backlog_that_grows_is_worse_although_its_batches_differ_wildly() -> None:
    rng = np.random.default_rng(16)

    found = compare([mm1(rng, 0.8, 30.0)], [mm1(rng, 0.8, 30.0, 1.6)], 99.0)

    assert found.outcome == "worse"
    assert found.ratio is not None
    assert found.ratio > 3


def test_repetitions_narrow_the_interval() -> None:
    """Six times the requests: 1 / sqrt(6) = 0.41 of the width."""
    rng = np.random.default_rng(17)
    narrower = []
    for _ in range(20):
        before, after = ([mm1(rng, 0.5, 20.0) for _ in range(6)] for _ in range(2))
        one, six = compare(before[:1], after[:1], 95.0), compare(before, after, 95.0)
        narrower.append(np.log(six.high / six.low) / np.log(one.high / one.low))  # type: ignore[operator]

    assert 0.3 < np.median(narrower) < 0.6


def test_repetitions_that_disagree_with_each_other_widen_it() -> None:
    """A server that comes up in one of two moods: between the moods there is no telling."""
    rng = np.random.default_rng(18)
    moods = (0.05, 0.1)
    before = [independent(rng, 400, moods[index % 2]) for index in range(20)]
    after = [independent(rng, 400, moods[index // 10]) for index in range(20)]

    assert compare(before, after, 75.0).outcome in ("undecided", "no difference")
    assert compare(before[:1], after[-1:], 75.0).outcome == "worse"  # seen in one of each only


def test_more_misses_are_worse_where_the_percentile_falls_on_misses() -> None:
    rng = np.random.default_rng(19)

    def missing(share: float) -> Recording:
        response = rng.lognormal(-3.0, 0.1, 4000)
        response[rng.random(4000) < share] = np.inf
        return recording(response)

    none, some, many = missing(0.0), missing(0.1), missing(0.4)
    lost, more = compare([none], [some], 95.0), compare([some], [many], 95.0)
    back = compare([some], [none], 95.0)

    assert (lost.outcome, more.outcome, back.outcome) == ("worse", "worse", "better")
    assert lost.before is not None
    assert lost.after is None
    assert lost.ratio is None
    assert (more.before, more.after) == pytest.approx((0.1, 0.4), abs=0.03)  # shares of misses
    assert compare([none], [some], 50.0).outcome == "no difference"


@pytest.mark.parametrize(
    ("before", "after", "outcome"),
    [
        (0, 0, "no difference"),
        (0, 4, "no difference"),  # 0.1% more: what any service may have
        (0, 200, "worse"),
        (200, 0, "better"),
        (2000, 2000, "no difference"),
    ],
)
def test_shares_of_misses(before: int, after: int, outcome: str) -> None:
    rng = np.random.default_rng(20)

    def missing(num: int) -> Recording:
        response = np.full(4000, 0.05)
        response[rng.choice(4000, num, replace=False)] = np.inf
        return recording(response)

    found = compare_misses([missing(before)], [missing(after)])

    assert found.outcome == outcome
    assert (found.before, found.after) == (before / 4000, after / 4000)
    assert found.low is not None
    assert found.high is not None
    assert found.low <= (after - before) / 4000 <= found.high


def test_an_interval_that_reaches_far_says_what_could_not_be_seen() -> None:
    rng = np.random.default_rng(23)
    short, long = (
        compare([mm1(rng, 0.8, seconds)], [mm1(rng, 0.8, seconds)], 95.0)
        for seconds in (10.0, 4000.0)
    )

    assert (short.outcome, long.outcome) == ("no difference", "no difference")
    assert "could not have been seen" in short.reason
    assert "could not have been seen" not in long.reason


def test_misses_that_come_together_are_less_sure_than_misses_that_do_not() -> None:
    """One outage of 60 requests may not come again; 60 scattered misses are a habit."""
    rng = np.random.default_rng(21)
    none = recording(np.full(4000, 0.05))
    outage, habit = np.full(4000, 0.05), np.full(4000, 0.05)
    outage[1000:1060] = np.inf
    habit[rng.choice(4000, 60, replace=False)] = np.inf

    assert compare_misses([none], [recording(outage)]).outcome == "no difference"
    assert compare_misses([none], [recording(habit)]).outcome == "worse"


@pytest.mark.parametrize("num", [0, 1, MIN_REQUESTS - 1])
def test_too_few_requests_say_nothing(num: int) -> None:
    rng = np.random.default_rng(22)
    few, many = independent(rng, num), independent(rng, 1000, median=1.0)

    for found in (compare([few], [many], 95.0), compare_misses([few], [many])):
        assert found.outcome == "undecided"
        assert found.before is found.after is found.ratio is None
    assert compare([], [many], 50.0).outcome == "undecided"
    enough = independent(rng, MIN_REQUESTS)
    assert compare([enough], [many], 50.0).outcome == "worse"


def test_an_empty_repetition_changes_nothing() -> None:
    rng = np.random.default_rng(23)
    before, after = independent(rng, 500), independent(rng, 500)
    empty = recording(np.empty(0))

    assert compare([before, empty], [empty, after], 95.0) == compare([before], [after], 95.0)


def test_the_reason_is_a_sentence_with_the_figures() -> None:
    rng = np.random.default_rng(24)

    found = compare([independent(rng, 2000)], [independent(rng, 2000, median=0.1)], 50.0)

    assert found.reason.startswith("worse: P50 was 50ms, then 100ms (ratio ")
