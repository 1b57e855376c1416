"""What may be spent, to the last unit and not one further."""

import pytest

from tailproof.load.payloads.budget import Budget, Exhausted, Undrawable


def test_work_is_spent_to_the_last_unit() -> None:
    budget = Budget(work=10)
    budget.spend(4)
    budget.spend(6)
    with pytest.raises(Exhausted, match="too large to draw"):
        budget.spend(1)


def test_given_values_count_as_they_are_written() -> None:
    budget = Budget(max_bytes=12)
    assert budget.give([1, 2]) == [1, 2]
    assert budget.give("words") == "words"
    with pytest.raises(Exhausted, match="too large to hold"):
        budget.give(0)


def test_who_asks_for_too_much_has_said_nothing_drawable() -> None:
    assert issubclass(Exhausted, Undrawable)
