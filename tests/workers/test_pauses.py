"""Pauses are measured from start to end, once each, by a clock that the test sets."""

import gc
from collections.abc import Callable, Iterator

import pytest

from tailproof.workers.pauses import GcPauses


@pytest.fixture(autouse=True)
def _no_collection_of_its_own() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def ticking(*times: float) -> Callable[[], float]:
    return iter(times).__next__


def test_each_collection_is_one_pause() -> None:
    told: list[float] = []
    pauses = GcPauses(told.append, clock=ticking(10.0, 10.5, 20.0, 20.25))

    pauses.attach()
    gc.collect()
    gc.collect()
    pauses.detach()

    assert told == [0.5, 0.25]
    assert (pauses.total_seconds, pauses.num_pauses) == (0.75, 2)


def test_nothing_is_measured_after_detaching() -> None:
    pauses = GcPauses(clock=ticking(1.0, 2.0))
    pauses.attach()
    gc.collect()
    pauses.detach()
    pauses.detach()

    gc.collect()  # the clock has run out: a look at it would raise

    assert (pauses.total_seconds, pauses.num_pauses) == (1.0, 1)


def test_attaching_twice_counts_once() -> None:
    pauses = GcPauses(clock=ticking(1.0, 2.0))
    pauses.attach()
    pauses.attach()

    gc.collect()
    pauses.detach()

    assert pauses.num_pauses == 1


def test_a_collection_whose_start_was_not_seen_is_not_a_pause() -> None:
    pauses = GcPauses(clock=ticking())
    pauses.attach()

    gc.callbacks[-1]("stop", {})
    pauses.detach()

    assert pauses.num_pauses == 0
