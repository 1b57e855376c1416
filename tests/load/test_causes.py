"""Cold and warm apart, and which step's tail is looked into."""

from dataclasses import replace

import numpy as np
import pytest
from msgspec.structs import replace as changed

from tailproof.core.recording import Recording
from tailproof.load import causes
from tailproof.reporting.runs import StepData

from .test_prove import point


def step(response: list[float], cold: int = 0) -> StepData:
    """Answers at 10/s; the first `cold` of them say that they were."""
    found = Recording.empty(np.arange(len(response)) / 10.0)
    found.sent[:] = found.intended
    found.last[:] = found.intended + np.array(response)
    found.status[:] = 200
    found.connection[:] = 0
    found.cold[:cold] = True
    return StepData(0, found, warm_up=0.0, end=len(response) / 10.0, offered=10.0)


def test_cold_requests_are_kept_out_of_the_warm_ones() -> None:
    found = causes.cold(0.9, [step([0.4, 0.4, *[0.005] * 98], cold=2)])

    assert found is not None
    assert found.first_seconds == 0.9
    assert found.kinds == {"process": 2}
    assert found.requests == 3
    assert found.response_seconds.p50 == 0.4
    assert found.warm_seconds is not None
    assert (found.warm_seconds.p50, found.warm_seconds.max) == pytest.approx((0.005, 0.005))
    assert found.cold_warm_ratio == pytest.approx(180.0)
    assert found.mean_over_both == pytest.approx((0.9 + 0.8 + 98 * 0.005) / 101)


def test_it_says_when_the_answers_became_steady() -> None:
    rng = np.random.default_rng(1)
    slow = (0.2 * rng.uniform(0.9, 1.1, 20)).tolist()
    steady = (0.005 * rng.uniform(0.9, 1.1, 180)).tolist()

    found = causes.cold(0.2, [step([*slow, *steady])])
    never = causes.cold(0.2, [step(list(np.geomspace(1.0, 0.001, 200)))])

    assert found is not None
    assert found.requests_until_steady in (20, 25, 30)  # in fives
    assert never is not None
    assert never.requests_until_steady is None


def test_only_the_lightest_load_says_what_warm_is() -> None:
    found = causes.cold(0.01, [step([0.005] * 50), step([0.5] * 50)])

    assert found is not None
    assert found.warm_seconds is not None
    assert found.warm_seconds.max == pytest.approx(0.005)


def test_without_any_cold_request_there_is_nothing_to_say() -> None:
    assert causes.cold(None, [step([0.005] * 50)]) is None


def test_the_tail_of_the_highest_pass_is_looked_into() -> None:
    points = [
        changed(point(10, "PASS"), index=0, role="base"),
        changed(point(100, "PASS"), index=1),
        changed(point(110, "PASS"), index=2, requests=500),
        changed(point(109, "PASS"), index=3, requests=900),
        changed(point(200, "FAIL"), index=4),
        changed(point(300, "INVALID"), index=5),
    ]

    assert causes.tail_point(points) == 3
    assert causes.tail_point([points[0], points[4]]) == 4
    assert causes.tail_point([points[0], points[5]]) == 0
    assert causes.tail_point([]) is None


def test_the_causes_come_largest_first() -> None:
    rng = np.random.default_rng(2)
    waits = rng.exponential(0.02, 4000)
    data = step((0.005 + waits).tolist())
    told = replace(
        data.recording,
        queue=waits,
        batch=np.zeros(4000),
        infer=np.full(4000, 0.005),
        total=0.005 + waits,
    )

    found = causes.as_causes(causes.of_tail(replace(data, recording=told), seed=1))

    assert found[0].cause == "queueing"
    assert found[0].share > 0.9
    assert [cause.share for cause in found] == sorted((c.share for c in found), reverse=True)
