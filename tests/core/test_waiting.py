"""What waits for a worker: order, shares of the classes, and counts."""

import math
import random
from collections import Counter
from itertools import combinations

import pytest

from tailproof.core.waiting import CLASSES, WEIGHTS, Lane, Part, Priority, Queued

CRITICAL, NORMAL, BATCH = Priority


def put(lane: Lane, priority: Priority, *rows: int, deadline: float = math.inf) -> list[Queued]:
    requests = [Queued(num, 0.0, deadline, priority) for num in rows]
    for request in requests:
        lane.put(request)
    return requests


def rows_by_class(parts: tuple[Part, ...]) -> Counter[Priority]:
    rows: Counter[Priority] = Counter()
    for part in parts:
        rows[part.request.priority] += part.stop - part.start
    return rows


# --- Order ----------------------------------------------------------------------------------


def test_first_in_first_out_and_of_the_last_only_a_part() -> None:
    lane = Lane()
    first, second = put(lane, NORMAL, 2, 5)
    assert lane.take(4) == (4, (Part(first, 0, 2), Part(second, 0, 2)))
    assert (len(lane), lane.rows, second.taken) == (1, 3, 2)
    assert lane.take(99) == (3, (Part(second, 2, 5),))
    assert (len(lane), lane.rows) == (0, 0)
    assert lane.take(99) == (0, ())


def test_a_request_has_one_part_in_a_batch_whoever_competes() -> None:
    lane = Lane()
    put(lane, BATCH, 50)
    put(lane, CRITICAL, 1, 1, 1)
    _, parts = lane.take(20)
    assert len({part.request for part in parts}) == len(parts)
    assert rows_by_class(parts)[BATCH] == 20 - rows_by_class(parts)[CRITICAL]


def test_heads_and_oldest() -> None:
    lane = Lane()
    batch = put(lane, BATCH, 1, 1)
    critical = put(lane, CRITICAL, 1)
    assert list(lane.heads()) == [critical[0], batch[0]]
    assert list(lane.oldest(BATCH, 1)) == batch[:1]
    assert list(lane.oldest(BATCH, 9)) == batch
    assert list(lane.oldest(NORMAL, 9)) == []


@pytest.mark.parametrize("priority", CLASSES)
def test_who_leaves_takes_what_was_not_yet_taken(priority: Priority) -> None:
    lane = Lane()
    first, second, third = put(lane, priority, 4, 1, 2)
    lane.take(3)
    assert lane.remove(second) == 1
    assert lane.remove(first) == 1
    assert lane.remove(first) == 0  # has left already
    assert lane.remove(Queued(9, 0.0, priority=priority)) == 0  # was never here
    assert (len(lane), lane.rows) == (1, 2)
    assert lane.take(9)[1] == (Part(third, 0, 2),)


def test_deadlines_are_counted() -> None:
    lane = Lane()
    put(lane, NORMAL, 1)
    first, second, _third = put(lane, NORMAL, 1, 1, 9, deadline=5.0)
    assert lane.num_deadlines == 3
    lane.remove(second)
    assert lane.num_deadlines == 2
    lane.take(2)
    assert first.taken == 1
    assert lane.num_deadlines == 1
    lane.take(8)  # a part of the third is left
    assert lane.num_deadlines == 1
    lane.take(1)
    assert lane.num_deadlines == 0


@pytest.mark.parametrize("seed", range(200))
def test_counts_and_order_agree_with_plain_lists(seed: int) -> None:
    rng = random.Random(seed)
    lane = Lane()
    lists: dict[Priority, list[Queued]] = {priority: [] for priority in CLASSES}
    for _ in range(60):
        kind = rng.random()
        waiting = [request for line in lists.values() for request in line]
        if kind < 0.6:
            priority = rng.choice(CLASSES)
            deadline = rng.choice((1.0, math.inf))
            lists[priority] += put(lane, priority, rng.randrange(1, 6), deadline=deadline)
        elif kind < 0.7 and waiting:
            gone = rng.choice(waiting)
            assert lane.remove(gone) == gone.rows - gone.taken
            lists[gone.priority].remove(gone)
        elif kind > 0.8:
            most = rng.randrange(1, 12)
            expected = min(most, sum(request.rows - request.taken for request in waiting))
            rows, parts = lane.take(most)
            assert rows == expected == sum(part.stop - part.start for part in parts)
            for request, start, stop in parts:
                line = lists[request.priority]
                assert line[0] is request
                assert 0 <= start < stop == request.taken
                if stop == request.rows:
                    del line[0]
        waiting = [request for line in lists.values() for request in line]
        assert len(lane) == len(waiting)
        assert lane.rows == sum(request.rows - request.taken for request in waiting)
        assert lane.num_deadlines == sum(request.deadline < math.inf for request in waiting)


# --- Shares ---------------------------------------------------------------------------------


def contend(
    lane: Lane, rng: random.Random, *, largest: int, most: int, num_batches: int
) -> list[Counter[Priority]]:
    """Rows by class of each batch, while more of every class waits than is taken."""
    rows: list[Counter[Priority]] = []
    for _ in range(num_batches):
        for priority in CLASSES:
            while lane._rows[priority] < 2 * most:
                put(lane, priority, rng.randrange(1, largest + 1))
        rows.append(rows_by_class(lane.take(most)[1]))
    return rows


@pytest.mark.parametrize(("largest", "most"), [(1, 1), (1, 16), (5, 16), (40, 16), (1, 256)])
def test_classes_that_all_wait_share_by_weight(largest: int, most: int) -> None:
    batches = contend(
        Lane(), random.Random(1), largest=largest, most=most, num_batches=8000 // most
    )
    total = sum(batches, Counter())
    for priority in CLASSES:
        share = total[priority] / total.total()
        assert share == pytest.approx(WEIGHTS[priority] / sum(WEIGHTS), rel=0.15)


def unfairness(batches: list[Counter[Priority]]) -> float:
    """The most by which two classes ever differ in rows over weight, between any two moments."""
    worst = 0.0
    for one, other in combinations(CLASSES, 2):
        lead = low = high = 0.0
        for rows in batches:
            lead += rows[one] / WEIGHTS[one] - rows[other] / WEIGHTS[other]
            low, high = min(low, lead), max(high, lead)
        worst = max(worst, (high - low) / (1 / WEIGHTS[one] + 1 / WEIGHTS[other]))
    return worst


def strict(lane: Lane) -> None:
    """Let the most important class always go first."""
    lane._served = [0.0, 1e9, 2e9]


@pytest.mark.parametrize("seed", range(10))
def test_no_class_is_ever_behind_by_more_than_one_part_each(seed: int) -> None:
    """Start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM '96): of two classes that wait all
    the time, |W_i / w_i - W_j / w_j| <= r_i / w_i + r_j / w_j with the largest part r."""
    rng = random.Random(seed)
    batches = contend(Lane(), rng, largest=8, most=8, num_batches=400)
    assert unfairness(batches) <= 8.0 + 1e-9
    lane = Lane()
    strict(lane)
    assert unfairness(contend(lane, rng, largest=8, most=8, num_batches=400)) > 100.0


def test_a_class_that_was_absent_claims_nothing_and_is_served_at_once() -> None:
    """For 1000 batches only normal requests came; then one batch request does."""
    lane = Lane()
    for _ in range(1000):
        put(lane, NORMAL, *[1] * 9)
        lane.take(8)
    put(lane, BATCH, *[1] * 100)
    rows = [rows_by_class(lane.take(8)[1])[BATCH] for _ in range(20)]
    assert rows[0] >= 1
    assert sum(rows) < 20 * 8 / 3  # a fifth of what is taken, not all


@pytest.mark.parametrize(
    ("waiting", "priority", "rows", "before", "why"),
    [
        ((0, 0, 0), NORMAL, 5, 0, "nobody waits"),
        ((3, 4, 5), BATCH, 1, 12, "a batch request waits for all"),
        ((3, 4, 5), NORMAL, 1, 8, "4 + 1 rows of ours entitle batch to a quarter: 1"),
        ((3, 4, 5), CRITICAL, 1, 4, "3 + 1 rows entitle normal to 1, batch to none"),
        ((31, 4, 9), CRITICAL, 1, 37, "32 rows entitle normal to 8 (4 wait) and batch to 2"),
        ((0, 0, 9), CRITICAL, 160, 9, "not more than there are"),
    ],
)
def test_rows_before(
    waiting: tuple[int, ...], priority: Priority, rows: int, before: int, why: str
) -> None:
    lane = Lane()
    for one, num in zip(CLASSES, waiting, strict=True):
        put(lane, one, *[1] * num)
    assert lane.rows_before(priority, rows) == before, why


@pytest.mark.parametrize(
    ("waiting", "priority", "exceeds", "why"),
    [
        ((0, 0, 2), BATCH, False, "alone it has a claim on all"),
        ((1, 0, 2), BATCH, True, "1 of 3 rows would be left, and its claim is 1 of 17"),
        ((16, 0, 1), BATCH, False, "of its only one nothing would be left"),
        ((33, 0, 2), BATCH, False, "1 of 35 would be left: below 1 of 17"),
        ((32, 0, 3), BATCH, False, "2 of 35 are a little below 1 of 17"),
        ((31, 0, 3), BATCH, True, "2 of 34 are just that"),
        ((10, 10, 0), NORMAL, True, "9 of 20 are above 4 of 20"),
        ((10, 2, 0), NORMAL, False, "1 of 12 is below"),
    ],
)
def test_who_has_more_than_its_share(
    waiting: tuple[int, ...], priority: Priority, exceeds: bool, why: str
) -> None:
    lane = Lane()
    for one, num in zip(CLASSES, waiting, strict=True):
        put(lane, one, *[1] * num)
    assert lane.exceeds_share(priority) == exceeds, why


def test_what_is_half_computed_is_not_in_excess() -> None:
    lane = Lane()
    put(lane, BATCH, 5, 5, 5)
    assert lane.take(2)[0] == 2
    put(lane, CRITICAL, 1)
    assert not lane.exceeds_share(BATCH)
    assert lane.take(4)[0] == 4  # with the rest of the first one
    put(lane, CRITICAL, 1)
    assert lane.exceeds_share(BATCH)


def test_an_empty_lane_has_nothing() -> None:
    lane = Lane()
    assert not lane
    assert (lane.rows, lane.num_deadlines, list(lane.heads())) == (0, 0, [])
