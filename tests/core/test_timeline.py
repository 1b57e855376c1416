"""Durations derived from the stamps of one request."""

import pytest

from tailproof.core.timeline import Timeline


def test_the_user_waits_from_the_intended_start_whoever_was_late() -> None:
    line = Timeline(intended=1.0, sent=1.5, last=2.0)
    assert line.response_time == 1.0
    assert line.send_lag == 0.5


@pytest.mark.parametrize(
    ("admitted", "worker_free", "dispatched", "queue", "batch", "why"),
    [
        (0.1, 0.4, 0.4, 0.3, 0.0, "the worker was busy: all of it is queueing"),
        (0.1, 0.1, 0.1, 0.0, 0.0, "free at that very moment: no waiting at all"),
        (0.1, -5.0, 0.35, 0.0, 0.25, "idle for long: all of it is batching"),
        (0.1, 0.2, 0.35, 0.1, 0.15, "first the one, then the other"),
        (0.4, 0.4, 0.3, 0.0, 0.0, "never negative"),
    ],
)
def test_waiting_is_for_a_worker_or_for_company(
    *, admitted: float, worker_free: float, dispatched: float, queue: float, batch: float, why: str
) -> None:
    line = Timeline(admitted=admitted, worker_free=worker_free, dispatched=dispatched)
    assert line.queue_seconds == pytest.approx(queue), why
    assert line.batch_seconds == pytest.approx(batch), why


def test_time_inside_the_runtime() -> None:
    assert Timeline(started=0.25, finished=1.0).infer_seconds == 0.75


@pytest.mark.parametrize(
    "line",
    [
        Timeline(),
        Timeline(intended=1.0, admitted=1.0, started=1.0),
        Timeline(sent=1.0, last=1.0, worker_free=1.0, finished=1.0),
    ],
)
def test_what_was_not_stamped_is_absent_not_zero(line: Timeline) -> None:
    assert line.response_time is None
    assert line.send_lag is None
    assert line.queue_seconds is None
    assert line.batch_seconds is None
    assert line.infer_seconds is None
