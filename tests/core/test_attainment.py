"""How many late answers an SLO allows, and how the predictions are corrected."""

import random

import pytest

from tailproof.core.attainment import (
    FEW_SURPRISES,
    GROWTH,
    LEAST_MARGIN,
    MEMORY,
    MOST_MARGIN,
    MOST_SURPRISES,
    RESERVE,
    ROUND,
    SHRINKAGE,
    SPEND,
    Attainment,
)
from tailproof.core.slo import Latency

P95 = Latency(95.0, 0.1)
P99 = Latency(99.0, 0.1)
EARLY, LATE = 0.05, 0.5
"""Seconds, in time for both and late for both."""


def give(target: Attainment, early: int = 0, expected: int = 0, surprises: int = 0) -> None:
    """So many answers of each kind."""
    for _ in range(expected):
        target.answered(LATE, expected_late=True)
    for _ in range(surprises):
        target.answered(LATE, expected_late=False)
    for _ in range(early):
        target.answered(EARLY, expected_late=False)


# --- The budget -----------------------------------------------------------------------------


def test_a_threshold_keeps_a_reserve_for_what_we_do_not_see() -> None:
    target = Attainment([P95])
    assert target.thresholds == (0.1 * RESERVE,)
    assert not target.is_late(0.1 * RESERVE)
    assert target.is_late(0.1 * RESERVE + 1e-9)


@pytest.mark.parametrize(("slo", "most"), [(P95, 25), (P99, 5), (Latency(99.9, 0.1), 0)])
def test_so_many_may_be_late_in_a_row_to_begin_with(slo: Latency, most: int) -> None:
    target = Attainment([slo])
    assert most == int(SPEND * MEMORY * (1 - slo.objective) + 1e-9)
    assert target.allows(0, most)
    assert not target.allows(0, most + 1)
    assert target.budget_left == 1.0


def test_a_late_answer_takes_one_and_the_others_bring_it_back() -> None:
    """p95: half of 5% of each answer, so 40 answers a late one."""
    target = Attainment([P95])
    give(target, expected=10)
    assert target.allows(0, 15)
    assert not target.allows(0, 16)
    assert target.budget_left == pytest.approx((25 - 10 + 0.25 - 0.025) / 25)
    give(target, early=400)
    assert target.budget_left == 1.0
    give(target, early=10_000)
    assert not target.allows(0, 26)  # what nobody used is not kept for ever


@pytest.mark.parametrize("is_expected", [True, False])
def test_a_late_answer_counts_whether_it_was_expected_or_not(is_expected: bool) -> None:
    target = Attainment([P99])
    for _ in range(4):
        target.answered(LATE, expected_late=is_expected)
    assert target.allows(0, 1)
    assert not target.allows(0, 2)
    key = "expected" if is_expected else "surprise"
    assert target.num_late[key] == 4
    assert sum(target.num_late.values()) == 4


def test_a_long_stall_is_not_held_against_us_for_ever() -> None:
    """Ten thousand late answers cost no more than the memory holds."""
    target = Attainment([P99])
    give(target, surprises=10_000)
    assert not target.allows(0, 0)
    assert target.budget_left == 0.0
    give(target, early=2 * MEMORY)
    assert target.budget_left == pytest.approx(1.0)


def test_whoever_spends_all_that_is_allowed_has_half_of_what_the_slo_allows() -> None:
    target = Attainment([P95])
    num_late = 0
    for _ in range(20_000):
        is_late = target.allows(0, 1)
        num_late += is_late
        target.answered(LATE if is_late else EARLY, expected_late=is_late)
    assert num_late / 20_000 == pytest.approx(SPEND * 0.05, rel=0.06)


def test_each_objective_has_a_budget_of_its_own() -> None:
    target = Attainment([Latency(95.0, 0.05), Latency(99.0, 0.1)])
    for _ in range(5):
        target.answered(0.08, expected_late=True)  # late for the first alone
    assert not target.allows(0, 21)
    assert target.allows(1, 5)
    for _ in range(5):
        target.answered(0.2, expected_late=True)
    assert not target.allows(1, 1)
    assert target.budget_left == pytest.approx(0.01, abs=0.01)  # the smaller share of the two


def test_without_an_objective_nothing_is_late_and_nothing_changes() -> None:
    target = Attainment([])
    target.shed()
    give(target, early=ROUND, surprises=ROUND)
    assert target.thresholds == ()
    assert not target.is_late(1e9)
    assert target.budget_left == 1.0
    assert target.margin == 1.0
    assert sum(target.num_late.values()) == 0


# --- The margin -----------------------------------------------------------------------------


def rounds(target: Attainment, num: int, share: float, *, shed: bool = False) -> list[float]:
    """The margin after each of `num` rounds with `share` of the answers late by surprise."""
    margins = []
    for _ in range(num):
        if shed:
            target.shed()
        num_late = round(share * ROUND)
        give(target, early=ROUND - num_late, surprises=num_late)
        margins.append(target.margin)
    return margins


def test_surprises_stretch_the_predictions_until_they_end() -> None:
    target = Attainment([P95])
    assert rounds(target, 3, 0.02) == pytest.approx([GROWTH, GROWTH**2, GROWTH**3])
    assert rounds(target, 100, 0.05)[-1] == MOST_MARGIN


def test_it_goes_back_slowly_when_hardly_any_surprise_is_left() -> None:
    target = Attainment([P95])
    rounds(target, 3, 0.02)
    grown = target.margin
    assert rounds(target, 2, 0.0) == pytest.approx([grown - SHRINKAGE, grown - 2 * SHRINKAGE])
    assert rounds(target, 100, 0.0)[-1] == 1.0


def test_between_few_and_many_it_stays() -> None:
    target = Attainment([Latency(90.0, 0.1)])
    rounds(target, 1, 0.05)
    share = (FEW_SURPRISES + MOST_SURPRISES) / 2 * 0.1
    assert rounds(target, 3, share) == [GROWTH] * 3


def test_what_was_expected_to_be_late_is_no_surprise() -> None:
    target = Attainment([P95])
    give(target, early=ROUND // 2, expected=ROUND // 2)
    assert target.margin == 1.0


def test_below_one_only_while_something_is_shed() -> None:
    target = Attainment([P95])
    assert rounds(target, 5, 0.0) == [1.0] * 5
    lower = rounds(target, 5, 0.0, shed=True)
    assert lower == pytest.approx([1.0 - SHRINKAGE * num for num in range(1, 6)])
    assert rounds(target, 100, 0.0, shed=True)[-1] == LEAST_MARGIN
    back = rounds(target, 3, 0.0)
    assert back == pytest.approx([LEAST_MARGIN + SHRINKAGE * num for num in range(1, 4)])
    assert rounds(target, 100, 0.0)[-1] == 1.0


def test_of_several_objectives_the_worst_decides() -> None:
    target = Attainment([P95, Latency(99.9, 10.0)])
    assert rounds(target, 1, 0.02) == pytest.approx([GROWTH])


def test_a_wrong_prediction_is_corrected_until_few_are_late() -> None:
    """Answers take 90% of the threshold by the predictions, but these are a fifth too low and as
    noisy. Who is predicted to be late is not computed; so the margin must end near 1.2."""
    rng = random.Random(5)
    target = Attainment([P95])
    late: list[bool] = []
    for _ in range(40 * ROUND):
        predicted = rng.uniform(0.5, 1.0) * target.thresholds[0]
        if predicted * target.margin > target.thresholds[0]:
            target.shed()
            continue
        seconds = 1.2 * predicted * rng.gauss(1.0, 0.02)
        late.append(target.is_late(seconds))
        target.answered(seconds, expected_late=False)
    assert 1.1 < target.margin < 1.35
    assert sum(late[-5 * ROUND :]) / (5 * ROUND) < 0.05
    assert sum(late[:ROUND]) / ROUND > 0.2  # before it was corrected
