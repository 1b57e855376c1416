"""The policy's decisions one by one, on batch times that are known exactly."""

import gc
import math
import random
import time
import weakref
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailproof.core.attainment import RESERVE
from tailproof.core.latency_model import LatencyModel
from tailproof.core.policy import (
    DOOR,
    MOST_QUEUE_ROWS,
    SHORT_BATCH,
    TRY_AGAIN,
    Admit,
    Dispatch,
    Limits,
    Part,
    Policy,
    Priority,
    Queued,
    Refuse,
    Wait,
)
from tailproof.core.slo import Latency
from tailproof.core.waiting import WEIGHTS

FOREVER = Wait(math.inf)
CRITICAL, NORMAL, BATCH = Priority


def tight(seconds: float) -> tuple[Latency, ...]:
    """Leaves so many seconds for waiting and computing, and allows no late answer on purpose."""
    return (Latency(99.9, seconds / RESERVE),)


def loose(seconds: float) -> tuple[Latency, ...]:
    """As `tight`, but 25 late answers are allowed to begin with."""
    return (Latency(95.0, seconds / RESERVE),)


class Payload:
    """Something that can be seen to go."""


class Known(LatencyModel):
    """Seconds by rows, told to it; it learns nothing by itself."""

    version = 0

    def __init__(
        self, typical: Callable[[int], float], tail: Callable[[int], float] | None = None
    ) -> None:
        self._typical, self._tail = typical, tail or typical
        self.observed: list[tuple[int, float, float | None]] = []

    def become(self, typical: Callable[[int], float]) -> None:
        self._typical = self._tail = typical
        self.version += 1

    def observe(self, rows: int, seconds: float, cpu_seconds: float | None = None) -> None:
        self.observed.append((rows, seconds, cpu_seconds))

    def typical_of(self, rows: int) -> float:
        return self._typical(rows)

    def tail_of(self, rows: int) -> float:
        return self._tail(rows)


def ten_plus(rows: int) -> float:
    """10 ms and 1 ms a row."""
    return 0.010 + 0.001 * rows


def policy(
    model: LatencyModel | None = None, workers: int = 1, jitter: float = 0.5, **limits: object
) -> Policy:
    """`jitter` 0.5: Retry-After is neither lengthened nor shortened. All buckets are alike."""
    model = model or LatencyModel()
    made = Policy(Limits(**limits), model, lambda: jitter, lambda: model)  # type: ignore[arg-type]
    made.set_workers(workers)
    return made


def admit(
    target: Policy,
    *rows: int,
    now: float = 0.0,
    priority: Priority = NORMAL,
    bucket: str | None = None,
    deadline: float = math.inf,
) -> list[Queued]:
    requests = [Queued(num, now, deadline, priority, bucket) for num in rows]
    for request in requests:
        assert target.arrive(request, now) == Admit()
    return requests


def take(target: Policy, now: float = 0.0) -> Dispatch:
    decision = target.next_batch(now)
    assert isinstance(decision, Dispatch), decision
    return decision


def requests_of(dispatch: Dispatch) -> list[Queued]:
    return [part.request for part in dispatch.parts]


def dropped_by(decision: Dispatch | Wait, reason: str = "dropped") -> list[Queued]:
    return [drop.request for drop in decision.dropped if drop.reason == reason]


def spend_budget(target: Policy) -> None:
    """Late answers until none is allowed any more."""
    while target.attainment.allows(0, 1):
        target.attainment.answered(9.0, expected_late=True)


# --- Late binding ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("workers", "waiting", "sizes", "why"),
    [
        (1, (), [], "nobody waits"),
        (1, (1,), [1], "idle worker, lone request: run now"),
        (1, (1, 1, 1), [3], "all that waits goes in one batch"),
        (2, (1, 1, 1), [3], "also when a second worker is idle"),
        (1, (3, 1), [4], "exactly the largest batch"),
        (1, (3, 2), [4], "one row past it: cut, the rest waits for the worker"),
        (2, (3, 2), [4, 1], "the rest goes to the second worker"),
        (2, (20,), [4, 4], "a large request in parts, one for each worker"),
        (0, (1,), [], "no worker, no batch"),
    ],
)
def test_batches_at_one_moment(
    workers: int, waiting: tuple[int, ...], sizes: list[int], why: str
) -> None:
    target = policy(workers=workers, max_batch_rows=4)
    admit(target, *waiting)
    for size in sizes:
        assert take(target).rows == size, why
    assert target.next_batch(0.0) == FOREVER, why
    assert target.in_flight == len(sizes)
    assert target.queued_rows == sum(waiting) - sum(sizes)


def test_a_batch_forms_when_the_worker_is_free_not_when_requests_come() -> None:
    target = policy()
    admit(target, 1)
    first = take(target)
    assert first.rows == 1
    admit(target, 1, 1, now=0.1)
    assert target.next_batch(0.1) == FOREVER
    admit(target, 1, now=0.2)
    target.finished(first, 0.3, 0.3)
    assert take(target, 0.3).rows == 3


def test_parts_of_a_large_request_follow_each_other_and_share_the_last_batch() -> None:
    target = policy(max_batch_rows=4)
    large, small = admit(target, 6, 1)
    first = take(target)
    assert first.parts == (Part(large, 0, 4),)
    assert (target.queued_requests, target.queued_rows) == (2, 3)
    target.finished(first, 0.01, 0.01)
    assert take(target, 0.01).parts == (Part(large, 4, 6), Part(small, 0, 1))
    assert (target.queued_requests, target.queued_rows) == (0, 0)


def test_predicted_seconds_come_with_the_batch() -> None:
    target = policy(Known(ten_plus, lambda rows: 2 * ten_plus(rows)))
    target.attainment.margin = 1.5
    admit(target, 3)
    assert take(target).predicted == pytest.approx(0.013 * 2 * 1.5)
    unknowing = policy()
    admit(unknowing, 3)
    assert take(unknowing).predicted is None


@pytest.mark.parametrize(
    ("seconds", "max_in_flight", "num_batches", "why"),
    [
        (SHORT_BATCH, 2, 1, "not shorter than 5 ms"),
        (SHORT_BATCH * 0.999, 2, 2, "just shorter: a second one hides the way there and back"),
        (0.0001, 3, 2, "never more than two"),
        (0.0001, 1, 1, "unless the limit is one"),
        (None, 2, 1, "nothing is known: one"),
    ],
)
def test_batches_in_flight_for_one_worker(
    seconds: float | None, max_in_flight: int, num_batches: int, why: str
) -> None:
    model = LatencyModel() if seconds is None else Known(lambda _rows: seconds)
    target = policy(model, max_batch_rows=1, max_in_flight=max_in_flight)
    admit(target, 1, 1, 1)
    for _ in range(num_batches):
        take(target)
    assert target.next_batch(0.0) == FOREVER, why


@pytest.mark.parametrize(("first", "second"), [(1, 2), (2, 1)])
def test_both_batches_of_a_worker_are_short(first: int, second: int) -> None:
    """One row takes 1 ms, two take 5 ms. A second batch would only freeze too early."""
    target = policy(Known(lambda rows: SHORT_BATCH if rows > 1 else 0.001))
    admit(target, first)
    take(target)
    admit(target, second)
    assert target.next_batch(0.0) == FOREVER


@pytest.mark.parametrize(
    ("rows", "now", "expected", "why"),
    [
        (1, 1.0, 1.25, "held until the oldest is max_wait old"),
        (1, 1.2499, 1.25, "not a moment less"),
        (1, 1.25, 1, "and not a moment more"),
        (7, 1.0, 1.25, "one row is missing"),
        (8, 1.0, 8, "full: nothing to hold for"),
    ],
)
def test_max_wait(rows: int, now: float, expected: float, why: str) -> None:
    target = policy(max_wait=0.25, max_batch_rows=8)
    admit(target, rows, now=1.0)
    decision = target.next_batch(now)
    got = decision.until if isinstance(decision, Wait) else decision.rows
    assert got == expected, why


def test_a_full_queue_is_not_held_for_a_batch_that_it_cannot_fill() -> None:
    target = policy(max_wait=0.25, max_batch_rows=8, max_queue_rows=3)
    admit(target, 1, 2)
    assert take(target).rows == 3


def test_max_wait_of_one_bucket_does_not_hold_another() -> None:
    """The critical request is the most urgent and has only begun to wait."""
    target = policy(max_wait=0.25, max_batch_rows=8)
    (old,) = admit(target, 1, bucket="a", now=1.0)
    admit(target, 1, bucket="b", now=1.2, priority=CRITICAL)
    assert target.next_batch(1.2) == Wait(1.25)
    first = take(target, 1.25)
    assert requests_of(first) == [old]
    target.finished(first, 0.01, 1.26)
    assert target.next_batch(1.26) == Wait(1.45)
    admit(target, 8, bucket="a", now=1.27)
    assert take(target, 1.27).bucket == "a"  # full, though it came last


# --- The queue's bound ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("workers", "max_batch_rows", "capacity", "why"),
    [
        (1, 256, 40, "l(40) = 50 ms"),
        (2, 256, 80, "and as much on the second worker"),
        (0, 256, 40, "no worker as yet: as for one"),
        (1, 8, 20, "8 + 8 rows in 36 ms, and 14 ms are left for 4 rows"),
        (1, 5, 15, "three times 5 rows in 45 ms, and nothing fits in 5 ms"),
        (4, 8, 68, "two rounds of 4 * 8 rows; one more batch of 4"),
    ],
)
def test_bound_is_what_is_computed_in_time(
    workers: int, max_batch_rows: int, capacity: int, why: str
) -> None:
    # A hair more than 50 ms, since sums of floats are not exact.
    objectives = tight(0.050001)
    target = policy(Known(ten_plus), workers, max_batch_rows=max_batch_rows, objectives=objectives)
    assert target.capacity_rows == capacity, why


def last_end(rows: int, seconds: Callable[[int], float], workers: int, most: int) -> float:
    """When the last of `rows` waiting rows is computed, batch by batch."""
    free = [0.0] * workers
    while rows > 0:
        worker = min(range(workers), key=free.__getitem__)
        free[worker] += seconds(min(rows, most))
        rows -= most
    return max(free)


@given(
    fixed=st.floats(0.0, 0.1),
    per_row=st.floats(1e-4, 0.01),
    workers=st.integers(1, 8),
    max_batch_rows=st.integers(1, 64),
    threshold=st.floats(0.001, 1.0),
)
def test_bound_is_the_largest_queue_that_is_computed_in_time(
    *, fixed: float, per_row: float, workers: int, max_batch_rows: int, threshold: float
) -> None:
    model = Known(lambda rows: fixed + per_row * rows)
    target = policy(model, workers, max_batch_rows=max_batch_rows, objectives=tight(threshold))
    capacity = target.capacity_rows
    most = next(
        (n for n in range(max_batch_rows, 0, -1) if model.typical_of(n) <= threshold),
        max_batch_rows,
    )

    def end(rows: int) -> float:
        return last_end(rows, model.typical_of, workers, most)

    assert capacity == 1 or end(capacity) <= threshold * (1 + 1e-9)
    assert capacity == MOST_QUEUE_ROWS or end(capacity + 1) > threshold * (1 - 1e-9)


@pytest.mark.parametrize(
    ("limits", "known", "capacity", "why"),
    [
        ({}, True, 1024, "no SLO"),
        ({"objectives": tight(0.05)}, False, 1024, "nothing is known of the batch time"),
        ({"max_batch_rows": 256}, True, 1024, "four full batches are just as many"),
        ({"max_batch_rows": 257}, True, 1028, "and more from here on"),
        ({"objectives": tight(0.001)}, True, 1, "not even one row is in time: one may wait"),
        ({"objectives": tight(0.05), "max_queue_rows": 3}, True, 3, "as the user says"),
        ({"objectives": tight(1e6)}, True, MOST_QUEUE_ROWS, "memory is bounded"),
        ({"objectives": tight(0.02) + tight(0.0501)}, True, 40, "the loosest SLO counts"),
    ],
)
def test_bound_in_other_cases(
    limits: dict[str, object], known: bool, capacity: int, why: str
) -> None:
    model = Known(ten_plus) if known else LatencyModel()
    assert policy(model, **limits).capacity_rows == capacity, why


def test_a_model_that_takes_no_time_has_a_bounded_queue() -> None:
    assert policy(Known(lambda _: 0.0), objectives=tight(1)).capacity_rows == MOST_QUEUE_ROWS


def test_bound_follows_what_is_learned_and_the_workers() -> None:
    model = Known(ten_plus)
    target = policy(model, objectives=tight(0.050001))
    assert target.capacity_rows == 40
    model.become(lambda rows: 2 * ten_plus(rows))
    assert target.capacity_rows == 15
    target.set_workers(4)
    assert target.capacity_rows == 60


def test_new_limits_hold_from_now_on_for_those_who_wait_already() -> None:
    target = policy(Known(ten_plus), max_queue_rows=100)
    admit(target, 9)
    target.set_limits(Limits(max_batch_rows=4, max_queue_rows=5))
    assert target.capacity_rows == 5
    assert isinstance(target.arrive(Queued(1, 0.0), 0.0), Refuse)
    assert take(target).rows == 4


def test_the_budget_stays_when_the_objectives_do() -> None:
    target = policy(objectives=loose(0.05))
    spend_budget(target)
    target.set_limits(Limits(max_batch_rows=4, objectives=loose(0.05)))
    assert target.attainment.budget_left < 0.05
    target.set_limits(Limits(objectives=loose(0.06)))
    assert target.attainment.budget_left == 1.0


# --- The door -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("waiting", "arriving", "admitted", "why"),
    [
        ((), 4, True, "as many as the bound"),
        ((), 5, True, "more than the bound, but nobody waits: it would never fit"),
        ((3,), 1, True, "fills the queue"),
        ((3,), 2, False, "one row too many: refused whole, not in part"),
        ((4,), 1, False, "full"),
        ((1,), 5, False, "more than the bound, and somebody waits"),
        ((9,), 1, False, "behind one that is larger than the bound"),
    ],
)
def test_door(waiting: tuple[int, ...], arriving: int, admitted: bool, why: str) -> None:
    target = policy(workers=0, max_queue_rows=4)
    admit(target, *waiting, priority=CRITICAL)
    decision = target.arrive(Queued(arriving, 0.0, priority=CRITICAL), 0.0)
    assert isinstance(decision, Admit) == admitted, why
    assert target.queued_rows == sum(waiting) + (arriving if admitted else 0)
    if isinstance(decision, Refuse):
        assert decision.reason == "queue_full"


@pytest.mark.parametrize("priority", Priority)
@pytest.mark.parametrize("bucket", [None, "another"])
def test_each_class_fills_the_queue_up_to_its_share(priority: Priority, bucket: str | None) -> None:
    """Whoever it is that waits there already."""
    target = policy(workers=0, max_queue_rows=100)
    admit(target, *[1] * 30, priority=BATCH)
    num = 30
    while isinstance(target.arrive(Queued(1, 0.0, math.inf, priority, bucket), 0.0), Admit):
        num += 1
    assert num == round(DOOR[priority] * 100)


def test_a_giant_does_not_wait_for_the_workers_only_for_the_queue() -> None:
    target = policy(max_queue_rows=4, max_batch_rows=4)
    admit(target, 1)
    take(target)
    admit(target, 9)


@pytest.mark.parametrize(
    ("now", "rows", "admitted", "why"),
    [
        (0.0, 1, False, "40 + 11 ms are more than 50"),
        (0.0009, 1, False, "still 0.1 ms late"),
        (0.0011, 1, True, "just in time"),
        (0.0011, 2, False, "with a second row it would be late"),
        (0.0021, 2, True, "a moment later it is not"),
        (0.0789, 1, True, "the batch is 38.9 ms late, and will be as late again: just in time"),
    ],
)
def test_hopeless_behind_a_long_batch(now: float, rows: int, admitted: bool, why: str) -> None:
    """A batch of 30 rows is in flight until 40 ms; the SLO is 50 ms."""
    target = policy(Known(ten_plus), objectives=tight(0.05))
    admit(target, 30)
    take(target)
    decision = target.arrive(Queued(rows, now), now)
    assert isinstance(decision, Admit) == admitted, why
    if isinstance(decision, Refuse):
        assert decision.reason == "hopeless"
        assert decision.retry_after == pytest.approx(0.04 - now)  # when the batch ends


def test_time_before_the_door_counts() -> None:
    """Its body took 15 ms to come: 30 + 11 ms more are too much for 50."""
    target = policy(Known(ten_plus), objectives=tight(0.05))
    admit(target, 20)
    take(target)
    assert isinstance(target.arrive(Queued(1, -0.015), 0.0), Refuse)
    assert target.arrive(Queued(1, -0.005), 0.0) == Admit()


def test_hopeless_counts_the_worker_that_is_free_first() -> None:
    target = policy(Known(ten_plus), workers=2, objectives=tight(0.05))
    admit(target, 30)
    take(target)
    admit(target, 1)
    take(target)
    assert target.arrive(Queued(1, 0.0), 0.0) == Admit()  # 11 + 11 ms, on the second worker


@pytest.mark.parametrize(("seconds", "hopeless"), [(0.0281, False), (0.0279, True)])
def test_hopeless_sends_the_batches_ahead_to_the_workers_in_turn(
    seconds: float, hopeless: bool
) -> None:
    """Batches of at most 4 rows. One worker is free after 11 ms and takes the 4 rows that wait;
    the other is free after 14 ms, and needs 14 more for the 4 rows that arrive."""
    limits: dict[str, object] = {"max_batch_rows": 4, "max_queue_rows": 9, "max_in_flight": 1}
    target = policy(Known(ten_plus), 2, objectives=tight(seconds), **limits)
    for rows in (4, 1):
        admit(target, rows)
        take(target)
    admit(target, 4)
    decision = target.arrive(Queued(4, 0.0), 0.0)
    assert isinstance(decision, Refuse) == hopeless


def test_hopeless_counts_both_batches_of_a_worker() -> None:
    """4 ms each: its own would end after 12 ms."""
    for seconds, hopeless in ((0.0119, True), (0.0121, False)):
        limits: dict[str, object] = {"max_batch_rows": 1, "max_queue_rows": 9}
        target = policy(Known(lambda _: 0.004), objectives=tight(seconds), **limits)
        for _ in range(2):
            admit(target, 1)
            take(target)
        decision = target.arrive(Queued(1, 0.0), 0.0)
        assert isinstance(decision, Refuse) == hopeless


def test_a_batch_that_ended_early_is_not_waited_for() -> None:
    """30 rows were to take 40 ms and took 5. 10 rows take 20 ms; the next batch is held."""
    target = policy(Known(ten_plus), objectives=tight(0.05), max_wait=1.0)
    admit(target, 30)
    first = take(target, 1.0)
    admit(target, 1, now=1.002)
    assert isinstance(target.arrive(Queued(9, 1.002), 1.002), Refuse)
    target.finished(first, 0.005, 1.005)
    assert target.arrive(Queued(9, 1.005), 1.005) == Admit()


def test_hopeless_counts_the_full_batches_ahead() -> None:
    """Of 4 rows, 14 ms each, with one in flight: the third batch ends after 14 + 14 + 14 + 14."""
    target = policy(Known(ten_plus), objectives=tight(0.05), max_batch_rows=4, max_queue_rows=100)
    admit(target, 4)
    take(target)
    admit(target, *[1] * 8)
    decision = target.arrive(Queued(1, 0.0), 0.0)
    assert isinstance(decision, Refuse)
    assert decision.reason == "hopeless"
    assert target.arrive(Queued(1, 0.006), 0.006) == Admit()  # 6 ms later: 50 - 1 ms for 1 row


def test_hopeless_counts_a_batch_of_each_other_bucket() -> None:
    for others, hopeless in ((2, False), (3, True)):  # 11 in flight, 11 of its own, 11 for each
        target = policy(Known(ten_plus), objectives=tight(0.0451), max_queue_rows=100)
        admit(target, 1)
        take(target)
        admit(target, 1, bucket="a")
        admit(target, *[1] * (1 if others == 2 else 0), bucket="b")
        if others == 3:
            admit(target, 4, bucket="b")
        assert isinstance(target.arrive(Queued(1, 0.0), 0.0), Refuse) == hopeless


def test_a_critical_request_does_not_count_those_who_would_be_dropped_for_it() -> None:
    """20 batch rows wait behind a batch of 20 ms. With them it would be late, so they are dropped
    at dispatch; another batch request is hopeless behind them."""
    for priority, hopeless in ((CRITICAL, False), (BATCH, True)):
        target = policy(Known(ten_plus), objectives=tight(0.0501), max_queue_rows=100)
        admit(target, 10)
        first = take(target)
        admit(target, *[1] * 20, priority=BATCH)
        request = Queued(1, 0.0, priority=priority)
        assert isinstance(target.arrive(request, 0.0), Refuse) == hopeless
        target.finished(first, 0.02, 0.02)
        assert (request in requests_of(take(target, 0.02))) == (not hopeless)


def test_an_idle_system_takes_what_it_cannot_answer_in_time() -> None:
    """One batch of one row takes 1 s, the SLO is 50 ms: but nobody else is asking."""
    for workers in (1, 2):
        target = policy(Known(lambda _: 1.0), workers, objectives=tight(0.05))
        for _ in range(workers):
            admit(target, 1)
            take(target)
        assert isinstance(target.arrive(Queued(1, 0.0), 0.0), Refuse)


def test_nothing_is_hopeless_without_workers_or_predictions() -> None:
    admit(policy(Known(lambda _: 1.0), workers=0, objectives=tight(0.05)), 1)
    unknowing = policy(objectives=tight(0.05))
    admit(unknowing, 1)
    take(unknowing)
    admit(unknowing, 1)


def test_nothing_is_hopeless_while_late_answers_are_allowed() -> None:
    target = policy(Known(ten_plus), objectives=loose(0.05), max_queue_rows=100)
    admit(target, 30)
    take(target)
    assert target.arrive(Queued(1, 0.0), 0.0) == Admit()
    spend_budget(target)
    refused = target.arrive(Queued(1, 0.0), 0.0)
    assert isinstance(refused, Refuse)
    assert refused.reason == "hopeless"


def test_rare_stalls_do_not_close_the_door() -> None:
    """Typically 3 ms, of which the machine made 60 ms three times in 30."""
    model = LatencyModel()
    for rows in (1, 8, 64, 256):
        for number in range(30):
            model.observe(rows, 0.06 if number % 10 == 9 else 0.003)
    assert (model.tail_of(256) or 0.0) > 0.05  # by the tail nothing is in time
    target = policy(model, objectives=tight(0.05))
    assert target.capacity_rows >= 10 * 256
    admit(target, *[1] * 2000)


def test_behind_a_batch_that_has_stalled_nobody_waits_in_vain() -> None:
    target = policy(Known(lambda _rows: 0.003), objectives=tight(0.05), max_in_flight=1)
    admit(target, 1)
    take(target)
    admit(target, 1, now=0.004)  # a little late: what of it

    refused = target.arrive(Queued(1, 1.0), 1.0)  # late by a second: as much again, one expects

    assert isinstance(refused, Refuse)
    assert refused.reason == "hopeless"
    assert refused.retry_after > 0.5


@pytest.mark.parametrize(
    ("objectives", "rows", "why"),
    [
        (tight(0.0481), 38, "l(38) = 48 ms"),
        (tight(0.005), 64, "not even one row is in time: full batches, for throughput"),
        ((), 64, "no SLO"),
        (tight(0.02) + tight(0.0481), 38, "the loosest SLO bounds the batch"),
    ],
)
def test_parts_of_a_giant(objectives: tuple[Latency, ...], rows: int, why: str) -> None:
    target = policy(Known(ten_plus), max_batch_rows=64, objectives=objectives)
    admit(target, 1000)
    assert take(target).rows == rows, why


# --- Retry-After ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("waiting", "arriving", "jitter", "expected", "why"),
    [
        (4, 1, 0.5, 0.014, "a row leaves in 3.5 ms; but at least until the batch in flight ends"),
        (4, 4, 0.5, 0.014, "four rows leave in 14 ms"),
        (12, 4, 0.5, 0.042, "twelve rows do in 42 ms"),
        (12, 5, 0.5, 0.042, "for what never fits the whole queue must leave"),
        (4, 1, 0.0, 0.8 * 0.014, "jitter, shortest"),
        (4, 1, 0.999999, 1.2 * 0.014, "jitter, longest"),
    ],
)
def test_retry_after(
    *, waiting: int, arriving: int, jitter: float, expected: float, why: str
) -> None:
    """At most 4 rows a batch, 14 ms each, and 4 rows in the queue; a batch has just begun."""
    target = policy(Known(ten_plus), jitter=jitter, max_batch_rows=4, max_queue_rows=4)
    admit(target, 4)
    take(target)
    admit(target, waiting)
    decision = target.arrive(Queued(arriving, 0.0), 0.0)
    assert isinstance(decision, Refuse)
    assert decision.retry_after == pytest.approx(expected, rel=1e-5), why


def test_retry_after_shortens_with_more_workers() -> None:
    """12 rows too many, 4 in 14 ms and worker."""
    for workers, expected in ((1, 0.042), (3, 0.014)):
        target = policy(Known(ten_plus), workers, max_batch_rows=4, max_queue_rows=12)
        admit(target, *[4] * (workers - 1), 4, priority=CRITICAL)
        for _ in range(workers):
            take(target)
        admit(target, 12, priority=CRITICAL)
        decision = target.arrive(Queued(12, 0.0, priority=CRITICAL), 0.0)
        assert isinstance(decision, Refuse)
        assert decision.retry_after == pytest.approx(expected)


@pytest.mark.parametrize("workers", [0, 1])
def test_retry_after_when_nothing_is_known(workers: int) -> None:
    target = policy(LatencyModel(), workers, max_queue_rows=1)
    admit(target, 1)
    decision = target.arrive(Queued(1, 0.0), 0.0)
    assert decision == Refuse("queue_full", 1.0)


def test_retry_after_is_above_zero_for_an_overdue_batch() -> None:
    target = policy(Known(lambda _: 0.0), max_queue_rows=1, max_in_flight=1)
    admit(target, 1)
    take(target)
    admit(target, 1, now=9.0)
    decision = target.arrive(Queued(1, 9.0), 9.0)
    assert isinstance(decision, Refuse)
    assert decision.retry_after == pytest.approx(0.001)


# --- Dropping what is late ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ages", "kept", "why"),
    [
        ((30, 30), 2, "12 ms more: in time"),
        ((39, 30), 1, "39 + 12 ms: without it the other is in time"),
        ((36, 36, 36, 35), 4, "36 + 14 ms: just in time"),
        ((37, 37, 37, 37), 3, "37 + 14 ms are too much, with three it is just right"),
        ((49, 48, 47, 10, 10), 2, "three could not be in time anyhow"),
        ((49, 48), 1, "both would be late: one is computed all the same"),
        ((90,), 1, "alone it keeps nobody else from being in time"),
    ],
)
def test_the_oldest_are_dropped_until_the_rest_is_in_time(
    ages: tuple[int, ...], kept: int, why: str
) -> None:
    """Milliseconds; the SLO is 50, and no late answer is allowed."""
    target = policy(Known(ten_plus), 0, objectives=tight(0.0500001), max_queue_rows=99)
    requests = [admit(target, 1, now=1.0 - age / 1000)[0] for age in sorted(ages, reverse=True)]
    target.set_workers(1)
    dispatch = take(target, 1.0)
    assert requests_of(dispatch) == requests[len(ages) - kept :], why
    assert dropped_by(dispatch) == requests[: len(ages) - kept], why
    assert all(request.left for request in dropped_by(dispatch))
    assert target.queued_requests == target.queued_rows == 0


def test_a_batch_is_not_made_smaller_for_its_oldest() -> None:
    """With 2 ms left for the oldest, the other 30 go without it rather than later."""
    target = policy(Known(ten_plus), 0, objectives=tight(0.05), max_queue_rows=99)
    (old,) = admit(target, 1, now=0.962)
    admit(target, *[1] * 30, now=0.995)
    target.set_workers(1)
    dispatch = take(target, 1.0)
    assert dropped_by(dispatch) == [old]
    assert dispatch.rows == 30


def test_the_tail_times_the_margin_decides() -> None:
    """The request is 20 ms old and the SLO 50 ms: 30 ms are left."""
    for margin, num_dropped in ((1.0, 0), (1.2, 1)):
        model = Known(lambda _: 0.001, lambda _: 0.028)
        target = policy(model, 0, objectives=tight(0.05))
        target.attainment.margin = margin
        admit(target, 1, now=0.98)
        admit(target, 1, now=1.0)
        target.set_workers(1)
        assert len(take(target, 1.0).dropped) == num_dropped


def test_late_answers_are_given_while_the_budget_lasts() -> None:
    """95% of 1000 answers, and half of the rest on purpose: 25."""
    target = policy(Known(ten_plus), 0, objectives=loose(0.05), max_queue_rows=999)
    old = admit(target, *[1] * 25, now=0.9)
    new = admit(target, 1, now=1.0)
    target.set_workers(1)
    dispatch = take(target, 1.0)
    assert requests_of(dispatch) == old + new
    assert [request.expected_late for request in old + new] == [True] * 25 + [False]

    admit(target, 1, now=1.0)
    admit(target, 1, now=1.001)
    target.finished(dispatch, 0.035, 1.1)
    for request in old + new:
        target.attainment.answered(1.1 - request.arrived, expected_late=request.expected_late)
    assert len(dropped_by(take(target, 1.1))) == 1  # the budget is spent


def test_those_in_flight_are_counted_against_the_budget() -> None:
    target = policy(Known(ten_plus), 0, objectives=loose(0.05), max_queue_rows=999)
    admit(target, *[1] * 20, now=0.9)
    target.set_workers(2)
    take(target, 1.0)
    admit(target, *[1] * 10, now=0.9)
    assert len(dropped_by(take(target, 1.0))) == 5


def test_the_objective_that_is_broken_decides() -> None:
    """A loose one at 50 ms with budget, a tight one at 100 ms without."""
    objectives = loose(0.05) + tight(0.1)
    target = policy(Known(ten_plus), 0, objectives=objectives, max_queue_rows=99)
    (hopeless,) = admit(target, 1, now=0.9)
    (late,) = admit(target, 1, now=0.95)
    admit(target, 1, now=1.0)
    target.set_workers(1)
    dispatch = take(target, 1.0)
    assert dropped_by(dispatch) == [hopeless]
    assert late.expected_late


def test_one_that_is_late_alone_says_nothing_about_the_predictions() -> None:
    """A model that is too slow for its SLO by far, and known to be: no surprise."""
    target = policy(Known(lambda _: 0.2), objectives=tight(0.05))
    (request,) = admit(target, 1)
    take(target)
    assert request.expected_late


def test_rows_that_follow_those_already_computed_are_not_dropped() -> None:
    target = policy(Known(ten_plus), max_batch_rows=4, objectives=tight(0.05))
    (large,) = admit(target, 8)
    first = take(target)
    target.finished(first, 0.1, 0.1)
    admit(target, 1, now=0.099)
    second = take(target, 0.1)
    assert second.dropped == ()
    assert requests_of(second) == [large]
    assert large.expected_late


def test_less_important_classes_go_first_even_in_time_down_to_their_share() -> None:
    """The critical request has 13 ms left: 3 rows. Beside it each batch row has a claim of one in
    17, so all but one are dropped; and the newest stays."""
    target = policy(Known(ten_plus), 0, objectives=tight(0.0500001), max_queue_rows=99)
    (critical,) = admit(target, 1, now=0.963, priority=CRITICAL)
    batch = [admit(target, 1, now=0.99 + num / 1000, priority=BATCH)[0] for num in range(8)]
    target.set_workers(1)
    dispatch = take(target, 1.0)
    assert dropped_by(dispatch) == batch[:6]
    assert set(requests_of(dispatch)) == {critical, *batch[6:]}


def test_a_class_at_its_share_is_not_dropped_for_a_more_important_one() -> None:
    """32 critical rows have a claim on 16 of 17, and 1 batch row is less than the rest."""
    target = policy(Known(ten_plus), 0, objectives=tight(0.05), max_queue_rows=99)
    critical = admit(target, *[1] * 32, now=0.98, priority=CRITICAL)
    (batch,) = admit(target, 1, now=0.999, priority=BATCH)
    target.set_workers(1)
    dispatch = take(target, 1.0)
    assert set(dropped_by(dispatch)) <= set(critical)
    assert dropped_by(dispatch) == critical[: len(dropped_by(dispatch))] != []
    assert batch in requests_of(dispatch)


def test_of_those_late_the_least_important_go_first() -> None:
    """All have waited 45 ms; a single one cannot be in time either."""
    target = policy(Known(ten_plus), 0, objectives=tight(0.05), max_queue_rows=99)
    waiting = [admit(target, 1, now=0.955, priority=one)[0] for one in (BATCH, NORMAL, CRITICAL)]
    target.set_workers(1)
    dispatch = take(target, 1.0)
    assert dropped_by(dispatch) == waiting[:2]
    assert requests_of(dispatch) == waiting[2:]


def test_a_less_important_class_never_costs_a_more_important_one() -> None:
    """The batch request would be late, the critical ones are not."""
    target = policy(Known(ten_plus), 0, objectives=tight(0.05), max_queue_rows=99)
    (batch,) = admit(target, 1, now=0.955, priority=BATCH)
    critical = admit(target, *[1] * 3, now=1.0, priority=CRITICAL)
    target.set_workers(1)
    dispatch = take(target, 1.0)
    assert dropped_by(dispatch) == [batch]
    assert requests_of(dispatch) == critical


def dropped_plainly(
    requests: Sequence[Queued], now: float, limits: Limits, left: Sequence[int]
) -> list[Queued]:
    """The rule in its plainest form: as long as more than `left[i]` are late by an objective, drop
    one and look at all of them again."""
    waiting, dropped = list(requests), []
    while len(waiting) > 1:
        rows = sum(one.rows - one.taken for one in waiting)
        finish = now + ten_plus(min(rows, limits.max_batch_rows))
        for objective, most in zip(limits.objectives, left, strict=True):
            latest = finish - objective.threshold * RESERVE
            late = [one for one in waiting if one.arrived < latest and not one.taken]
            if len(late) > most:
                break
        else:
            break
        victim = _victim_of(waiting, rows, late)
        waiting.remove(victim)
        dropped.append(victim)
    return dropped


def _victim_of(waiting: Sequence[Queued], rows: int, late: Sequence[Queued]) -> Queued:
    present = sum(WEIGHTS[one] for one in {request.priority for request in waiting})
    for priority in (BATCH, NORMAL):
        mates = [one for one in waiting if one.priority == priority]
        if priority <= min(one.priority for one in late) or len(mates) < 2 or mates[0].taken:
            continue
        kept = sum(one.rows - one.taken for one in mates[1:])
        if kept / rows >= WEIGHTS[priority] / present - 1e-12:
            return mates[0]
    lowest = max(one.priority for one in late)
    return next(one for one in late if one.priority == lowest)


@pytest.mark.parametrize("seed", range(300))
def test_whom_the_policy_drops_is_whom_the_plain_rule_drops(seed: int) -> None:
    rng = random.Random(seed)
    objectives = rng.choice((tight(0.05), loose(0.05), loose(0.03) + tight(0.08)))
    limits = Limits(rng.choice((4, 16, 64)), 10_000, objectives=objectives)
    target = Policy(limits, Known(ten_plus), lambda: 0.5)
    times = sorted(rng.uniform(0.85, 1.0) for _ in range(rng.randrange(1, 60)))
    requests = [
        Queued(rng.choice((1, 1, 1, 3)), t, priority=rng.choice(list(Priority))) for t in times
    ]
    for request in requests:
        assert target.arrive(request, 0.0) == Admit()
    target.set_workers(1)
    left = [int(budget.left) for budget in target.attainment._budgets]
    expected = dropped_plainly(requests, 1.0, limits, left)

    decision = target.next_batch(1.0)

    assert dropped_by(decision) == expected


def test_dropping_a_whole_queue_takes_time_in_proportion() -> None:
    """After a stall everybody is late: the queue must be emptied before the next ones are, too."""

    def seconds(num: int) -> float:
        target = policy(Known(lambda _: 0.001), 0, objectives=tight(0.05), max_queue_rows=99_999)
        for _ in range(num):
            target.arrive(Queued(1, 0.0), 0.0)
        target.set_workers(1)
        begun = time.process_time()
        assert len(take(target, 1.0).dropped) == num - 1
        return time.process_time() - begun

    small, large = (min(seconds(num) for _ in range(3)) for num in (500, 8000))
    assert large < 5 * 16 * small  # 256 times as long if it were quadratic


# --- Clients' own deadlines -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("deadline", "admitted", "why"),
    [
        (0.0311, True, "20 + 11 ms: just in time"),
        (0.0309, False, "just not"),
        (0.0, False, "has passed"),
        (-1.0, False, "long ago"),
    ],
)
def test_a_deadline_at_the_door(deadline: float, admitted: bool, why: str) -> None:
    target = policy(Known(ten_plus))
    admit(target, 10)
    take(target)
    decision = target.arrive(Queued(1, 0.0, deadline), 0.0)
    assert isinstance(decision, Admit) == admitted, why
    if isinstance(decision, Refuse):
        assert decision.reason == "deadline"
        assert decision.retry_after == pytest.approx(0.02)  # when the batch ends


def test_a_deadline_binds_though_late_answers_are_allowed_and_the_system_is_idle() -> None:
    target = policy(Known(ten_plus), objectives=loose(0.05))
    admit(target, 1)
    target.finished(take(target), 0.011, 0.011)
    refused = target.arrive(Queued(1, 0.011, 0.02), 0.011)
    assert isinstance(refused, Refuse)
    assert refused.reason == "deadline"


def test_after_a_rest_what_is_predicted_to_miss_is_tried() -> None:
    """A wrong prediction must be put right some time."""
    target = policy(Known(ten_plus))
    admit(target, 1)
    target.finished(take(target), 0.011, 0.011)
    now = 0.011 + TRY_AGAIN * 1.001
    (request,) = admit(target, 1, now=now, deadline=now + 0.001)
    assert requests_of(take(target, now)) == [request]


@pytest.mark.parametrize(
    ("deadline", "is_dropped", "why"),
    [(1.0121, False, "12 ms for both: just in time"), (1.0119, True, "just not")],
)
def test_a_deadline_at_dispatch(deadline: float, is_dropped: bool, why: str) -> None:
    target = policy(Known(ten_plus, lambda _: 9.0))  # the typical time decides
    admit(target, 5, now=0.99)
    first = take(target, 0.99)
    request = Queued(1, 0.99, deadline)
    admit_late(target, request, Queued(1, 0.99))
    target.finished(first, 0.01, 1.0)
    dispatch = take(target, 1.0)
    assert (request in dropped_by(dispatch, "deadline")) == is_dropped, why
    assert (request in requests_of(dispatch)) == (not is_dropped), why


def admit_late(target: Policy, *requests: Queued) -> None:
    """While no worker is there, so that nothing is predicted."""
    target.set_workers(0)
    for request in requests:
        assert target.arrive(request, request.arrived) == Admit()
    target.set_workers(1)


def test_who_moves_up_behind_the_expired_is_looked_at_too() -> None:
    target = policy(Known(ten_plus), max_batch_rows=1)
    admit(target, 1)
    first = take(target)
    gone = [Queued(1, 0.0, 0.02 + num / 1000) for num in range(3)]
    stays = Queued(1, 0.0, 1.0)
    admit_late(target, *gone, stays)
    target.finished(first, 0.011, 0.1)
    dispatch = take(target, 0.1)
    assert dropped_by(dispatch, "deadline") == gone
    assert requests_of(dispatch) == [stays]


def test_who_moves_up_behind_the_late_is_looked_at_too() -> None:
    target = policy(Known(ten_plus), max_batch_rows=1, objectives=tight(0.05), max_queue_rows=9)
    admit(target, 1)
    first = take(target)
    late, gone, stays = Queued(1, 0.0), Queued(1, 0.08, 0.101), Queued(1, 0.09, 1.0)
    admit_late(target, late, gone, stays)
    target.finished(first, 0.011, 0.1)
    dispatch = take(target, 0.1)
    assert dropped_by(dispatch) == [late]
    assert dropped_by(dispatch, "deadline") == [gone]
    assert requests_of(dispatch) == [stays]


def test_when_all_of_a_bucket_have_expired_another_is_asked_at_once() -> None:
    target = policy(Known(ten_plus))
    admit(target, 1)
    first = take(target)
    gone, other = Queued(1, 0.0, 0.02, bucket="a"), Queued(1, 0.001, bucket="b")
    admit_late(target, gone, other)
    target.finished(first, 0.011, 0.1)
    decision = target.next_batch(0.1)
    assert decision == Wait(0.1, decision.dropped)
    assert dropped_by(decision, "deadline") == [gone]
    assert requests_of(take(target, 0.1)) == [other]
    assert target.queued_requests == 0


def test_when_all_have_expired_there_is_nothing_to_run() -> None:
    target = policy(Known(ten_plus))
    admit(target, 1)
    first = take(target)
    admit_late(target, Queued(1, 0.0, 0.02))
    target.finished(first, 0.011, 0.1)
    decision = target.next_batch(0.1)
    assert (decision, len(decision.dropped)) == (Wait(math.inf, decision.dropped), 1)


# --- Shapes ---------------------------------------------------------------------------------


def test_requests_of_different_buckets_never_share_a_batch_nor_cut_one() -> None:
    target = policy(workers=2)
    short = admit(target, 1, bucket="short")
    long = admit(target, 1, bucket="long")
    short += admit(target, 1, bucket="short")
    first, second = take(target), take(target)
    assert (first.bucket, requests_of(first)) == ("short", short)
    assert (second.bucket, requests_of(second)) == ("long", long)


@pytest.mark.parametrize(
    ("old", "new", "age", "first", "why"),
    [
        (NORMAL, NORMAL, 0.001, "old", "the oldest goes first"),
        (NORMAL, CRITICAL, 0.049, "new", "a critical one is due after half the time"),
        (NORMAL, CRITICAL, 0.051, "old", "but is not always first"),
        (BATCH, NORMAL, 0.099, "new", "a batch request is due after twice the time"),
        (BATCH, NORMAL, 0.101, "old", "and then it is"),
    ],
)
def test_the_most_urgent_bucket_goes_first(
    old: Priority, new: Priority, age: float, first: str, why: str
) -> None:
    """The SLO is 100 ms."""
    target = policy(workers=0, objectives=tight(0.1))
    admit(target, 1, bucket="old", priority=old, now=1.0 - age)
    admit(target, 1, bucket="new", priority=new, now=1.0)
    target.set_workers(1)
    assert take(target, 1.0).bucket == first, why


def test_a_deadline_makes_a_bucket_urgent() -> None:
    target = policy(workers=0, objectives=tight(0.1))
    admit(target, 1, bucket="old", now=0.99)
    admit(target, 1, bucket="new", now=1.0, deadline=1.05)
    target.set_workers(1)
    assert take(target, 1.0).bucket == "new"


def test_each_bucket_has_a_batch_time_of_its_own() -> None:
    known = Known(ten_plus)
    target = Policy(Limits(), LatencyModel(), lambda: 0.5, lambda: known)
    target.set_workers(1)
    admit(target, 1, bucket="a")
    batch = take(target)
    assert batch.predicted == pytest.approx(0.011)
    target.finished(batch, 0.25, 1.0, cpu=0.125)
    assert known.observed == [(1, 0.25, 0.125)]
    assert target.model_of("a") is known
    assert target.model_of(None).typical_of(1) is None


def test_padding_is_what_the_longest_costs_the_others() -> None:
    target = policy(max_batch_rows=3)
    for length, rows in ((10, 1), (5, 1), (2, 2)):
        target.arrive(Queued(rows, 0.0, length=length), 0.0)
    assert take(target).padding == pytest.approx(1 - (10 + 5 + 2) / 30)


# --- Leaving --------------------------------------------------------------------------------


def test_a_cancelled_request_leaves_and_is_never_computed() -> None:
    target = policy(workers=0)
    first, second, third = admit(target, 1, 2, 3)
    assert target.cancel(second) == 2
    assert second.left
    assert (target.queued_requests, target.queued_rows) == (2, 4)
    target.set_workers(1)
    assert requests_of(take(target)) == [first, third]


def test_cancelling_one_half_dispatched_saves_the_rest() -> None:
    target = policy(max_batch_rows=4)
    (request,) = admit(target, 9)
    first = take(target)
    assert target.cancel(request) == 5
    assert request.left
    target.finished(first, 0.01, 0.01)
    assert target.next_batch(0.01) == FOREVER


def test_cancelling_again_or_too_late_or_what_never_entered_changes_nothing() -> None:
    target = policy(max_queue_rows=4)
    gone, running = admit(target, 1, 1)
    assert target.cancel(gone) == 1
    take(target)
    admit(target, 4)
    refused = Queued(1, 0.0)
    assert isinstance(target.arrive(refused, 0.0), Refuse)
    for request in (gone, running, refused):
        assert target.cancel(request) == 0
    assert (target.queued_requests, target.queued_rows, target.in_flight) == (1, 4, 1)


def test_a_cancelled_payload_is_let_go_at_once() -> None:
    """Even from the middle of a queue that does not move."""
    target = policy(workers=0)
    payload = Payload()
    admit(target, 1)
    request = Queued(1, 0.0, payload=payload)
    target.arrive(request, 0.0)
    admit(target, 1)
    watched = weakref.ref(payload)
    target.cancel(request)
    del request, payload
    gc.collect()
    assert watched() is None


def test_room_that_a_cancelled_request_leaves_is_given_again() -> None:
    target = policy(workers=0, max_queue_rows=2)
    for number in range(1000):
        first, second = admit(target, 1, 1, bucket=str(number % 3))
        target.cancel(first)
        target.cancel(second)
    assert target.queued_requests == 0


# --- Batches that end -----------------------------------------------------------------------


def test_what_finished_is_learned_what_failed_is_not() -> None:
    model = Known(ten_plus)
    target = policy(model)
    admit(target, 2)
    target.finished(take(target), None, 1.0)
    assert model.observed == []
    admit(target, 2)
    target.finished(take(target), 0.25, 2.0, cpu=0.2)
    assert model.observed == [(2, 0.25, 0.2)]
    assert target.in_flight == 0


def test_a_lost_worker_takes_its_slot_with_it() -> None:
    target = policy(workers=2, max_batch_rows=1)
    admit(target, 1, 1, 1)
    first, second = take(target), take(target)
    target.set_workers(1)
    target.finished(first, None, 0.0)
    assert target.next_batch(0.0) == FOREVER  # the other one is still busy
    target.finished(second, 0.01, 0.01)
    assert take(target, 0.01).rows == 1


def test_halves_of_a_failed_batch_go_first_until_the_guilty_is_found() -> None:
    target = policy()
    requests = admit(target, 1, 2, 1, 1)
    runs: list[list[int]] = []
    guilty: tuple[Queued, ...] = ()
    while target.queued_requests or len(runs) < 5:
        batch = take(target)
        admit(target, *[1] * (not runs))  # comes while the first one runs, and waits for the halves
        requests += [one for one in requests_of(batch) if one not in requests]
        runs.append([requests.index(one) for one in requests_of(batch)])
        raises = requests[2] in requests_of(batch)
        target.finished(batch, None if raises else 0.01, 0.0)
        guilty += target.failed(batch) if raises else ()
    assert guilty == (requests[2],)
    assert runs == [[0, 1, 2, 3], [0, 1], [2, 3], [2], [3], [4]]
    assert target.isolated_batches == 4


def test_suspects_who_have_left_are_not_computed_again() -> None:
    target = policy()
    first, second, third = admit(target, 1, 1, 1)
    batch = take(target)
    target.finished(batch, None, 0.0)
    assert target.failed(batch) == ()
    target.cancel(first)
    target.cancel(second)
    assert requests_of(take(target)) == [third]


def test_suspects_do_not_wait_behind_a_running_batch() -> None:
    """They may take long, and nobody knows what they do to it."""
    target = policy(Known(lambda _: 0.001))
    admit(target, 1, 1)
    batch = take(target)
    target.finished(batch, None, 0.0)
    target.failed(batch)
    admit(target, 1)
    assert take(target).case is not None
    assert target.next_batch(0.0) == FOREVER


@pytest.mark.parametrize(
    ("limits", "name"),
    [
        ({"max_batch_rows": 0}, "max_batch_rows"),
        ({"max_queue_rows": 0}, "max_queue_rows"),
        ({"max_in_flight": 0}, "max_in_flight"),
        ({"max_wait": -0.001}, "max_wait"),
        ({"max_wait": math.inf}, "max_wait"),
        ({"max_wait": math.nan}, "max_wait"),
    ],
)
def test_limits_that_admit_nothing_are_refused(limits: dict[str, float], name: str) -> None:
    with pytest.raises(ValueError, match=name):
        Limits(**limits)  # type: ignore[arg-type]
    Limits(max_batch_rows=1, max_queue_rows=1, max_in_flight=1, max_wait=0.0)
