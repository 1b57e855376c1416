"""The guilty requests of a failed batch are found, and nobody else suffers."""

import random
from collections.abc import Sequence

import pytest

from tailproof.core.isolation import MOST_RUNS, Case, Isolation
from tailproof.core.waiting import Part, Queued


def batch(num: int, rows: int = 1) -> tuple[Part, ...]:
    return tuple(Part(Queued(rows, 0.0), 0, rows) for _ in range(num))


def find(
    parts: tuple[Part, ...], guilty: set[Queued]
) -> tuple[list[Queued], list[Queued], list[list[Queued]]]:
    """Runs a batch and what comes of it until nothing waits: who failed, who was computed, and the
    batches after the first."""
    isolation = Isolation()
    failed: list[Queued] = []
    computed: list[Queued] = []
    runs: list[list[Queued]] = []
    case: Case | None = None
    while True:
        requests = [part.request for part in parts]
        if guilty & set(requests):
            failed += isolation.failed(parts, case)
        else:
            computed += requests
        suspects = isolation.next()
        if suspects is None:
            return failed, computed, runs
        parts, case = suspects.parts, suspects.case
        runs.append([part.request for part in parts])


@pytest.mark.parametrize("num", [1, 2, 3, 7, 8, 100, 256])
def test_a_single_guilty_request_is_found_wherever_it_is(num: int) -> None:
    """At the cost of two batches a halving."""
    for position in {0, num // 3, num // 2, num - 1}:
        parts = batch(num)
        culprit = parts[position].request
        failed, computed, runs = find(parts, {culprit})
        assert failed == [culprit]
        assert computed == [part.request for part in parts if part.request is not culprit]
        assert len(runs) <= 2 * (num - 1).bit_length()


def test_the_halves_run_in_order_and_before_what_was_split_earlier() -> None:
    parts = batch(4)
    names = {part.request: name for part, name in zip(parts, "abcd", strict=True)}
    _, _, runs = find(parts, {parts[0].request})
    assert ["".join(map(names.__getitem__, run)) for run in runs] == ["ab", "a", "b", "cd"]


@pytest.mark.parametrize("num_guilty", range(6))
def test_so_many_guilty_are_found_among_256_wherever_they_are(num_guilty: int) -> None:
    """Spread as evenly as possible they cost the most: each has its halvings to itself."""
    rng = random.Random(num_guilty)
    spread = [index * 256 // max(num_guilty, 1) for index in range(num_guilty)]
    for positions in (spread, *(rng.sample(range(256), num_guilty) for _ in range(20))):
        parts = batch(256)
        guilty = {parts[position].request for position in positions}
        failed, computed, runs = find(parts, guilty)
        assert set(failed) == guilty
        assert len(failed) + len(computed) == 256
        assert len(runs) <= MOST_RUNS


def test_with_one_more_some_innocents_fail_too() -> None:
    """The price of a bound: what is still suspected at the end is given up."""
    parts = batch(256)
    guilty = {parts[index * 256 // 6].request for index in range(6)}
    failed, computed, runs = find(parts, guilty)
    assert guilty < set(failed)
    assert len(failed) + len(computed) == 256
    assert len(runs) == MOST_RUNS


def test_a_model_that_always_fails_is_not_asked_for_ever() -> None:
    """All fail, each once, and after a bounded number of batches."""
    parts = batch(256)
    failed, computed, runs = find(parts, {part.request for part in parts})
    assert sorted(map(id, failed)) == sorted(id(part.request) for part in parts)
    assert computed == []
    assert len(runs) <= MOST_RUNS


def test_each_failed_batch_has_runs_of_its_own() -> None:
    isolation = Isolation()
    for parts in (batch(256), batch(256)):
        case = Case(runs_left=0)
        assert len(isolation.failed(parts, case)) == 256
        assert isolation.failed(parts, None) == ()
    assert isolation.rows == 512


def test_the_part_of_a_large_request_stays_whole() -> None:
    """Rows of one request are never told apart: it fails as one."""
    large, small = Queued(100, 0.0), Queued(1, 0.0)
    parts = (Part(large, 60, 100), Part(small, 0, 1))
    failed, computed, runs = find(parts, {large})
    assert (failed, computed) == ([large], [small])
    assert len(runs) == 2


@pytest.mark.parametrize(("gone", "left"), [((0,), [1, 2]), ((0, 1, 2), []), ((), [0, 1, 2])])
def test_who_has_left_is_not_among_the_suspects(gone: Sequence[int], left: list[int]) -> None:
    isolation = Isolation()
    parts = batch(3)
    isolation.failed(parts, None)
    for index in gone:
        parts[index].request.left = True
    found = []
    while (suspects := isolation.next()) is not None:
        found += [parts.index(part) for part in suspects.parts]
    assert found == left
    assert len(isolation) == 0


def test_rows_and_runs_are_counted() -> None:
    isolation = Isolation()
    isolation.failed(batch(3, rows=5), None)
    assert (len(isolation), isolation.rows, isolation.num_runs) == (2, 15, 0)
    isolation.next()
    assert (len(isolation), isolation.rows, isolation.num_runs) == (1, 10, 1)
