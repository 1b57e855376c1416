"""Columns of many requests: what counts as good, late, the tester's fault, and in flight."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailproof.core import recording
from tailproof.core.recording import Recording, joined


def answered(intended: list[float], response: list[float], status: int = 200) -> Recording:
    """Requests that were sent on time and answered."""
    found = Recording.empty(np.array(intended))
    found.sent[:] = found.intended
    found.last[:] = found.intended + np.array(response)
    found.status[:] = status
    return found


def test_what_was_never_sent_is_a_miss_that_the_tester_caused() -> None:
    found = Recording.empty(np.arange(3.0))

    assert np.isinf(found.response).all()
    assert np.isinf(found.own_lag).all()
    assert not found.good.any()


def test_a_fast_error_is_not_a_fast_answer() -> None:
    found = answered([0.0, 1.0, 2.0], [0.5, 0.001, 0.5])
    found.status[1] = 503

    assert found.response.tolist() == [0.5, np.inf, 0.5]
    assert found.uncorrected.tolist() == [0.5, np.inf, 0.5]
    assert found.refused.tolist() == [False, True, False]


def test_response_counts_from_the_intended_start() -> None:
    found = answered([0.0], [0.3])
    found.sent[0] = 0.2

    assert found.response[0] == pytest.approx(0.3)
    assert found.uncorrected[0] == pytest.approx(0.1)
    assert found.send_lag[0] == pytest.approx(0.2)


def test_the_time_a_server_takes_to_accept_is_not_the_testers_lag() -> None:
    found = answered([0.0, 1.0], [0.3, 0.3])
    found.sent[:] += 0.2
    found.accept_wait[0] = 0.15

    assert found.own_lag.tolist() == pytest.approx([0.05, 0.2])


def test_a_connection_that_was_not_taken_is_not_the_testers_lag_but_a_missing_socket_is() -> None:
    found = Recording.empty(np.arange(3.0))
    found.status[:] = (recording.NOT_CONNECTED, recording.NO_SOCKET, recording.UNSENT)

    assert found.own_lag.tolist() == [0.0, np.inf, np.inf]


def test_in_flight_counts_the_earlier_requests_that_are_unfinished() -> None:
    found = answered([0.0, 1.0, 2.0, 3.0], [1.5, 5.0, 0.5, 0.1])

    assert found.in_flight.tolist() == [0, 1, 1, 1]


def test_what_never_came_back_is_in_flight_and_what_broke_off_is_not() -> None:
    found = Recording.empty(np.arange(4.0))
    found.status[:] = (recording.UNANSWERED, recording.LOST, recording.TIMED_OUT, recording.UNSENT)

    assert found.in_flight.tolist() == [0, 1, 1, 2]


@given(
    st.lists(st.tuples(st.floats(0, 10), st.floats(0, 3)), min_size=1, max_size=40),
)
def test_in_flight_agrees_with_counting_one_by_one(drawn: list[tuple[float, float]]) -> None:
    drawn.sort()
    found = answered([at for at, _ in drawn], [seconds for _, seconds in drawn])

    counted = [
        sum(found.last[earlier] >= found.intended[index] for earlier in range(index))
        - sum(found.last[later] < found.intended[index] for later in range(index, len(found)))
        for index in range(len(found))
    ]
    assert found.in_flight.tolist() == [max(0, count) for count in counted]


def test_between_takes_the_half_open_window_of_intended_starts() -> None:
    found = Recording.empty(np.array([0.0, 1.0, 2.0, 3.0]))

    assert found.between(1.0, 3.0).intended.tolist() == [1.0, 2.0]


def test_parts_of_several_senders_join_in_order_with_their_replicas() -> None:
    first, second = answered([0.0, 2.0], [0.1, 0.1]), answered([1.0, 3.0], [0.2, 0.2])
    first.replica[:] = (0, -1)
    second.replica[:] = (0, 1)
    whole = joined(
        [
            recording.replace(first, replicas=("a",)),
            recording.replace(second, replicas=("b", "a")),
        ]
    )

    names = [None if index < 0 else whole.replicas[index] for index in whole.replica]
    assert whole.intended.tolist() == [0.0, 1.0, 2.0, 3.0]
    assert names == ["a", "b", None, "a"]
    assert whole.response.tolist() == pytest.approx([0.1, 0.2, 0.1, 0.2])


def test_nothing_cannot_be_joined() -> None:
    with pytest.raises(ValueError, match="no recording"):
        joined([])
