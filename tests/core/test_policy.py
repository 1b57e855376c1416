"""The policy's decisions one by one, on batch times that are known exactly."""

import gc
import math
import weakref
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailproof.core.latency_model import LatencyModel
from tailproof.core.policy import (
    MARGIN,
    MOST_QUEUE_ROWS,
    SHORT_BATCH,
    Admit,
    Dispatch,
    Limits,
    Part,
    Policy,
    Queued,
    Refuse,
    Wait,
    worst_response,
)

FOREVER = Wait(math.inf)
SLO = 0.05 / MARGIN  # seconds; leaves exactly 50 ms for waiting and computing


class Payload:
    """Something that can be seen to go."""


def exact(seconds: Callable[[int], float], largest: int = 64) -> LatencyModel:
    """A model that knows the batch time of every size up to `largest`."""
    model = LatencyModel()
    for rows in range(1, largest + 1):
        model.observe(rows, seconds(rows))
    return model


def ten_plus(rows: int) -> float:
    """10 ms and 1 ms a row."""
    return 0.010 + 0.001 * rows


def policy(
    model: LatencyModel | None = None, workers: int = 1, jitter: float = 0.5, **limits: object
) -> Policy:
    """`jitter` 0.5: Retry-After is neither lengthened nor shortened."""
    made = Policy(Limits(**limits), model or LatencyModel(), lambda: jitter)  # type: ignore[arg-type]
    made.set_workers(workers)
    return made


def admit(target: Policy, *rows: int, now: float = 0.0) -> list[Queued]:
    requests = [Queued(num, now) for num in rows]
    for request in requests:
        assert target.arrive(request, now) == Admit()
    return requests


def take(target: Policy, now: float = 0.0) -> Dispatch:
    decision = target.next_batch(now)
    assert isinstance(decision, Dispatch), decision
    return decision


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
    assert take(target).rows == 1
    admit(target, 1, 1, now=0.1)
    assert target.next_batch(0.1) == FOREVER
    admit(target, 1, now=0.2)
    target.finished(1, 0.3, 0.3)
    assert take(target, 0.3).rows == 3


def test_parts_of_a_large_request_follow_each_other_and_share_the_last_batch() -> None:
    target = policy(max_batch_rows=4)
    large, small = admit(target, 6, 1)
    assert take(target).parts == (Part(large, 0, 4),)
    assert (target.queued_requests, target.queued_rows) == (2, 3)
    target.finished(4, 0.01, 0.01)
    assert take(target, 0.01).parts == (Part(large, 4, 6), Part(small, 0, 1))
    assert (target.queued_requests, target.queued_rows) == (0, 0)


def test_predicted_seconds_come_with_the_batch() -> None:
    target = policy(exact(ten_plus))
    admit(target, 3)
    assert take(target).predicted == pytest.approx(0.013)
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
    model = LatencyModel() if seconds is None else exact(lambda rows: seconds, 1)
    target = policy(model, max_batch_rows=1, max_in_flight=max_in_flight)
    admit(target, 1, 1, 1)
    for _ in range(num_batches):
        take(target)
    assert target.next_batch(0.0) == FOREVER, why


@pytest.mark.parametrize(("first", "second"), [(1, 2), (2, 1)])
def test_both_batches_of_a_worker_are_short(first: int, second: int) -> None:
    """One row takes 1 ms, two take 5 ms. A second batch would only freeze too early."""
    target = policy(exact(lambda rows: SHORT_BATCH if rows > 1 else 0.001))
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


# --- The queue's bound ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("workers", "in_flight", "capacity", "why"),
    [
        (1, 1, 15, "2 l(15) = 50 ms"),
        (2, 1, 23, "1.5 l(23) = 49.5 ms"),
        (4, 1, 30, "1.25 l(30) = 50 ms"),
        (1, 2, 15, "batches are long: a second slot changes nothing"),
        (0, 1, 15, "no worker as yet: as for one"),
    ],
)
def test_bound_for_a_request_that_just_missed_a_batch(
    workers: int, in_flight: int, capacity: int, why: str
) -> None:
    # A hair more than 50 ms, since 2 * 0.025 need not be 0.05 in floating point.
    target = policy(exact(ten_plus), workers, threshold=SLO * 1.0001, max_in_flight=in_flight)
    assert target.capacity_rows == capacity, why


@pytest.mark.parametrize(
    ("rows", "workers", "max_in_flight", "seconds", "why"),
    [
        (1, 1, 1, 0.022, "the batch just missed, and its own: 2 l(1)"),
        (8, 1, 1, 0.036, "2 l(8)"),
        (9, 1, 1, 0.054, "one past a full batch: another full one goes before"),
        (16, 1, 1, 0.054, "up to two full batches"),
        (17, 1, 1, 0.072, "and so on"),
        (8, 4, 1, 0.0225, "(1 + 1/4) l(8)"),
        (17, 4, 1, 0.0315, "two full ones ahead, four at a time: (1 + 3/4) l(8)"),
        (8, 1, 2, 0.036, "18 ms are longer than two short batches"),
        (8, 4, 2, 0.02425, "5 ms (1 + 1/4) are longer than 18 / 4 ms"),
    ],
)
def test_worst_response(
    rows: int, workers: int, max_in_flight: int, seconds: float, why: str
) -> None:
    limits = Limits(max_batch_rows=8, max_in_flight=max_in_flight)
    assert worst_response(rows, ten_plus, workers, limits) == pytest.approx(seconds), why


@given(
    fixed=st.floats(0.0, 0.1),
    per_row=st.floats(1e-6, 0.01),
    workers=st.integers(1, 8),
    max_batch_rows=st.integers(1, 64),
    max_in_flight=st.integers(1, 2),
    threshold=st.floats(0.001, 1.0),
)
@settings(derandomize=True, deadline=None)
def test_bound_is_the_largest_that_is_in_time(
    *,
    fixed: float,
    per_row: float,
    workers: int,
    max_batch_rows: int,
    max_in_flight: int,
    threshold: float,
) -> None:
    limits = Limits(max_batch_rows, threshold=threshold, max_in_flight=max_in_flight)
    model = exact(lambda rows: fixed + per_row * rows)
    target = Policy(limits, model, lambda: 0.0)
    target.set_workers(workers)

    def response(rows: int) -> float:
        return worst_response(rows, lambda n: model.quantile_of(n) or 0.0, workers, limits)

    capacity = target.capacity_rows
    assert capacity == 1 or response(capacity) <= threshold * MARGIN
    assert capacity == MOST_QUEUE_ROWS or response(capacity + 1) > threshold * MARGIN


def test_new_limits_hold_from_now_on_for_those_who_wait_already() -> None:
    target = policy(exact(ten_plus), max_queue_rows=100)
    admit(target, 9)
    target.set_limits(Limits(max_batch_rows=4, max_queue_rows=5))
    assert target.capacity_rows == 5
    assert isinstance(target.arrive(Queued(1, 0.0), 0.0), Refuse)
    assert take(target).rows == 4


@pytest.mark.parametrize(
    ("limits", "known", "capacity", "why"),
    [
        ({}, True, 1024, "no SLO"),
        ({"threshold": 0.05}, False, 1024, "nothing is known of the batch time"),
        ({"max_batch_rows": 256}, True, 1024, "four full batches are just as many"),
        ({"max_batch_rows": 257}, True, 1028, "and more from here on"),
        ({"threshold": 0.001}, True, 1, "not even one row is in time: one may wait"),
        ({"threshold": 0.05, "max_queue_rows": 3}, True, 3, "as the user says"),
        ({"threshold": 1e6}, True, MOST_QUEUE_ROWS, "memory is bounded"),
    ],
)
def test_bound_in_other_cases(
    limits: dict[str, object], known: bool, capacity: int, why: str
) -> None:
    model = exact(ten_plus) if known else LatencyModel()
    assert policy(model, **limits).capacity_rows == capacity, why


def test_bound_follows_what_is_learned() -> None:
    model = exact(ten_plus)
    target = policy(model, threshold=SLO * 1.0001)
    assert target.capacity_rows == 15
    for rows in range(1, 65):
        for _ in range(3):
            model.observe(rows, 2 * ten_plus(rows))
    assert target.capacity_rows == 2  # 2 l(2) = 48 ms
    target.set_workers(4)
    assert target.capacity_rows == 10  # 1.25 l(10) = 50 ms


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
    admit(target, *waiting)
    decision = target.arrive(Queued(arriving, 0.0), 0.0)
    assert isinstance(decision, Admit) == admitted, why
    assert target.queued_rows == sum(waiting) + (arriving if admitted else 0)
    if isinstance(decision, Refuse):
        assert decision.reason == "queue_full"


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
    target = policy(exact(ten_plus), threshold=0.05)
    admit(target, 30)
    take(target)
    decision = target.arrive(Queued(rows, now), now)
    assert isinstance(decision, Admit) == admitted, why
    if isinstance(decision, Refuse):
        assert decision.reason == "hopeless"
        assert decision.retry_after == pytest.approx(0.04 - now)  # when the batch ends


def test_hopeless_counts_the_worker_that_is_free_first() -> None:
    target = policy(exact(ten_plus), workers=2, threshold=0.05)
    admit(target, 30)
    take(target)
    admit(target, 1)
    take(target)
    assert target.arrive(Queued(1, 0.0), 0.0) == Admit()  # 11 + 11 ms, on the second worker


@pytest.mark.parametrize(("threshold", "hopeless"), [(0.0281, False), (0.0279, True)])
def test_hopeless_sends_the_batches_ahead_to_the_workers_in_turn(
    threshold: float, hopeless: bool
) -> None:
    """Batches of at most 4 rows. One worker is free after 11 ms and takes the 4 rows that wait;
    the other is free after 14 ms, and needs 14 more for the 4 rows that arrive."""
    target = policy(
        exact(ten_plus), 2, threshold=threshold, max_batch_rows=4, max_queue_rows=9, max_in_flight=1
    )
    admit(target, 4)
    take(target)
    admit(target, 1)
    take(target)
    admit(target, 4)
    decision = target.arrive(Queued(4, 0.0), 0.0)
    assert isinstance(decision, Refuse) == hopeless


def test_hopeless_counts_both_batches_of_a_worker() -> None:
    """4 ms each: its own would end after 12 ms."""
    model = exact(lambda rows: 0.004)
    for threshold, hopeless in ((0.0119, True), (0.0121, False)):
        target = policy(model, threshold=threshold, max_batch_rows=1, max_queue_rows=9)
        admit(target, 1)
        take(target)
        admit(target, 1)
        take(target)
        decision = target.arrive(Queued(1, 0.0), 0.0)
        assert isinstance(decision, Refuse) == hopeless


def test_a_batch_that_ended_early_is_not_waited_for() -> None:
    """30 rows were to take 40 ms and took 5. 10 rows take 20 ms; the next batch is held."""
    target = policy(exact(ten_plus), threshold=0.05, max_wait=1.0)
    admit(target, 30)
    target.next_batch(1.0)
    admit(target, 1, now=1.002)
    assert isinstance(target.arrive(Queued(9, 1.002), 1.002), Refuse)
    target.finished(30, 0.005, 1.005)
    assert target.arrive(Queued(9, 1.005), 1.005) == Admit()


def test_hopeless_counts_the_full_batches_ahead() -> None:
    """Of 4 rows, 14 ms each, with one in flight: the third batch ends after 14 + 14 + 14 + 14."""
    target = policy(exact(ten_plus), threshold=0.05, max_batch_rows=4, max_queue_rows=100)
    admit(target, 4)
    take(target)
    admit(target, *[1] * 8)
    decision = target.arrive(Queued(1, 0.0), 0.0)
    assert isinstance(decision, Refuse)
    assert decision.reason == "hopeless"
    assert target.arrive(Queued(1, 0.006), 0.006) == Admit()  # 6 ms later: 50 - 1 ms for 1 row


@pytest.mark.parametrize("workers", [1, 2])
def test_an_idle_system_takes_what_it_cannot_answer_in_time(workers: int) -> None:
    """One batch of one row takes 1 s, the SLO is 50 ms: but nobody else is asking."""
    target = policy(exact(lambda rows: 1.0, 1), workers, threshold=0.05)
    for _ in range(workers):
        admit(target, 1)
        take(target)
    assert isinstance(target.arrive(Queued(1, 0.0), 0.0), Refuse)


def test_nothing_is_hopeless_without_workers_or_predictions() -> None:
    admit(policy(exact(lambda rows: 1.0), workers=0, threshold=0.05), 1)
    unknowing = policy(threshold=0.05)
    admit(unknowing, 1)
    take(unknowing)
    admit(unknowing, 1)


@pytest.mark.parametrize(
    ("threshold", "rows", "why"),
    [
        (0.05, 38, "l(38) = 48 ms; 39 rows would be past 97% of 50 ms"),
        (0.005, 64, "not even one row is in time: full batches, for throughput"),
        (None, 64, "no SLO"),
    ],
)
def test_parts_of_a_giant(threshold: float | None, rows: int, why: str) -> None:
    target = policy(exact(ten_plus), max_batch_rows=64, threshold=threshold)
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
    target = policy(exact(ten_plus), jitter=jitter, max_batch_rows=4, max_queue_rows=4)
    admit(target, 4)
    take(target)
    admit(target, waiting)
    decision = target.arrive(Queued(arriving, 0.0), 0.0)
    assert isinstance(decision, Refuse)
    assert decision.retry_after == pytest.approx(expected, rel=1e-5), why


def test_retry_after_shortens_with_more_workers() -> None:
    """12 rows too many, 4 in 14 ms and worker."""
    model = exact(ten_plus)
    for workers, expected in ((1, 0.042), (3, 0.014)):
        target = policy(model, workers, max_batch_rows=4, max_queue_rows=12)
        admit(target, *[4] * workers)
        for _ in range(workers):
            take(target)
        admit(target, 12)
        decision = target.arrive(Queued(12, 0.0), 0.0)
        assert isinstance(decision, Refuse)
        assert decision.retry_after == pytest.approx(expected)


@pytest.mark.parametrize("workers", [0, 1])
def test_retry_after_when_nothing_is_known(workers: int) -> None:
    target = policy(LatencyModel(), workers, max_queue_rows=1)
    admit(target, 1)
    decision = target.arrive(Queued(1, 0.0), 0.0)
    assert decision == Refuse("queue_full", 1.0)


def test_retry_after_is_above_zero_for_an_overdue_batch() -> None:
    target = policy(exact(lambda rows: 0.0), max_queue_rows=1, max_in_flight=1)
    admit(target, 1)
    take(target)
    admit(target, 1, now=9.0)
    decision = target.arrive(Queued(1, 9.0), 9.0)
    assert isinstance(decision, Refuse)
    assert decision.retry_after == pytest.approx(0.001)


# --- Leaving --------------------------------------------------------------------------------


def test_a_cancelled_request_leaves_and_is_never_computed() -> None:
    target = policy(workers=0)
    first, second, third = admit(target, 1, 2, 3)
    assert target.cancel(second) == 2
    assert second.left
    assert (target.queued_requests, target.queued_rows) == (2, 4)
    target.set_workers(1)
    assert [part.request for part in take(target).parts] == [first, third]


def test_cancelling_one_half_dispatched_saves_the_rest() -> None:
    target = policy(max_batch_rows=4)
    (request,) = admit(target, 9)
    take(target)
    assert target.cancel(request) == 5
    assert request.left
    target.finished(4, 0.01, 0.01)
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
    request = Queued(1, 0.0, payload)
    target.arrive(request, 0.0)
    admit(target, 1)
    watched = weakref.ref(payload)
    target.cancel(request)
    del request, payload
    gc.collect()
    assert watched() is None


def test_room_that_a_cancelled_request_leaves_is_given_again() -> None:
    target = policy(workers=0, max_queue_rows=2)
    for _ in range(1000):
        first, second = admit(target, 1, 1)
        target.cancel(first)
        target.cancel(second)
    assert target.queued_requests == 0


# --- Batches that end -----------------------------------------------------------------------


def test_what_finished_is_learned_what_failed_is_not() -> None:
    model = LatencyModel()
    target = policy(model)
    admit(target, 2)
    take(target)
    target.finished(2, None, 1.0)
    assert model.quantile_of(2) is None
    admit(target, 2)
    take(target)
    target.finished(2, 0.25, 2.0)
    assert model.quantile_of(2) == 0.25
    assert target.in_flight == 0


def test_a_lost_worker_takes_its_slot_with_it() -> None:
    target = policy(workers=2, max_batch_rows=1)
    admit(target, 1, 1, 1)
    take(target)
    take(target)
    target.set_workers(1)
    target.finished(1, None, 0.0)
    assert target.next_batch(0.0) == FOREVER  # the other one is still busy
    target.finished(1, 0.01, 0.01)
    assert take(target, 0.01).rows == 1


@pytest.mark.parametrize(
    ("limits", "name"),
    [
        ({"max_batch_rows": 0}, "max_batch_rows"),
        ({"max_queue_rows": 0}, "max_queue_rows"),
        ({"max_in_flight": 0}, "max_in_flight"),
        ({"max_wait": -0.001}, "max_wait"),
        ({"max_wait": math.inf}, "max_wait"),
        ({"threshold": 0.0}, "threshold"),
        ({"threshold": math.nan}, "threshold"),
    ],
)
def test_limits_that_admit_nothing_are_refused(limits: dict[str, float], name: str) -> None:
    with pytest.raises(ValueError, match=name):
        Limits(**limits)  # type: ignore[arg-type]
    Limits(max_batch_rows=1, max_queue_rows=1, max_in_flight=1, max_wait=0.0, threshold=1e-9)


# A tail of rare stalls


def stalling() -> tuple[LatencyModel, LatencyModel]:
    """Tail and middle of a batch time of 3 ms that the machine made 60 ms three times in 30."""
    tail, typical = LatencyModel(), LatencyModel(0.5)
    for rows in (1, 8, 64, 256):
        for number in range(30):
            seconds = 0.06 if number % 10 == 9 else 0.003
            tail.observe(rows, seconds)
            typical.observe(rows, seconds)
    return tail, typical


def test_rare_stalls_do_not_close_the_door() -> None:
    tail, typical = stalling()
    limits = Limits(threshold=0.05)
    policy = Policy(limits, tail, lambda: 0.5, typical)
    policy.set_workers(1)

    assert policy.capacity_rows >= 256
    assert all(isinstance(policy.arrive(Queued(1, 0.0), 0.0), Admit) for _ in range(256))

    by_the_tail_alone = Policy(limits, tail, lambda: 0.5)
    by_the_tail_alone.set_workers(1)
    assert by_the_tail_alone.capacity_rows == 1  # why the typical time is asked at all


def test_behind_a_batch_that_has_stalled_nobody_waits_in_vain() -> None:
    target = policy(exact(lambda _rows: 0.003), threshold=SLO)
    admit(target, 1)
    assert isinstance(target.next_batch(0.0), Dispatch)
    admit(target, 1, now=0.004)  # a little late: what of it

    refused = target.arrive(Queued(1, 1.0), 1.0)  # late by a second: as much again, one expects

    assert isinstance(refused, Refuse)
    assert refused.reason == "hopeless"
    assert refused.retry_after > 0.5


def test_what_is_hopeless_even_by_the_typical_time_is_refused() -> None:
    tail, typical = stalling()
    policy = Policy(Limits(threshold=0.05, max_queue_rows=100_000), tail, lambda: 0.5, typical)
    policy.set_workers(1)
    num_admitted = 0
    while isinstance(policy.arrive(Queued(1, 0.0), 0.0), Admit):
        num_admitted += 1
        policy.next_batch(0.0)

    assert 256 * 10 < num_admitted < 256 * 20  # about 16 full batches of 3 ms in 50 ms
