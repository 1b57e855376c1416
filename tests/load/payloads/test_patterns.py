"""Texts for patterns: `re` agrees that they match, and no pattern takes long."""

import re
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailproof.load.payloads.budget import Budget, Exhausted
from tailproof.load.payloads.patterns import MAX_PATTERN, Unknown, draw, matches

HARMLESS = (
    *(r"^abc$", r"a|b", r"^[a-c]+x?$", r"^(ab|a)(c|bcd)$", r"\d{2,4}-\w", r"^[^ab]*$", r"a{3}"),
    *(r"^(?=.*\d)(?=.*[a-z])\w{3,}$", r"^(?!ab)[abc]+$", r"(?<=a)b", r"^a.c$", r"x*", r"\Bb"),
    *(r"(?i)^a[B-C]+$", r"(?i)^[^a]b$", r"(?i:A)b", r"(?s)a.b", r"(?m)^a$", r"^a\b", r"^\s?\S+$"),
    *(r"^(a|b)*?c", r"^(|a)+$", r"^(a*)*$", r"", r"^[\w-]+@\D+$", r"(?x) a b", r"(?<!a)b"),
)


@given(st.sampled_from(HARMLESS), st.text(alphabet="abcdxABC1 -@_", max_size=8))
def test_a_match_is_what_the_standard_library_finds(pattern: str, text: str) -> None:
    assert matches(pattern, text, Budget()) == (re.match(pattern, text) is not None)


@pytest.mark.parametrize(("text", "expected"), [("a\n", True), ("a", True), ("b\na", False)])
def test_lines_end_where_they_may(text: str, expected: bool) -> None:
    assert matches(r"(?m)^a$", text, Budget()) == expected
    assert matches(r"^a$", text, Budget()) == (text == "a")  # as JSON Schema has it


@pytest.mark.parametrize("pattern", HARMLESS)
def test_what_is_drawn_matches_in_most_cases(pattern: str) -> None:
    rng, budget = np.random.default_rng(3), Budget()
    drawn = [draw(pattern, rng, budget, most=40) for _ in range(400)]
    found = [text for text in drawn if text is not None and matches(pattern, text, budget)]
    assert found or pattern in (r"(?<=a)b", r"\Bb")  # nothing stands before the first character
    assert [text for text in found if re.search(pattern, text) is None] == []


def test_a_text_may_be_as_long_as_the_limit_and_no_longer() -> None:
    rng = np.random.default_rng(1)
    assert draw("^a{40}$", rng, Budget(), most=40) == "a" * 40
    assert draw("^a{40}$", rng, Budget(), most=39) is None


def test_a_pattern_may_be_as_long_as_the_limit_and_no_longer() -> None:
    rng = np.random.default_rng(1)
    assert draw("a" * MAX_PATTERN, rng, Budget()) == "a" * MAX_PATTERN
    with pytest.raises(Unknown, match="too long"):
        draw("a" * (MAX_PATTERN + 1), rng, Budget())


@pytest.mark.parametrize(
    "pattern", [r"(a)\1", "(?a)x", "(?>a)", "a*+", "(" * 2000 + ")" * 2000, "[^\x00-\uffff]"]
)
def test_what_we_cannot_draw_is_unknown(pattern: str) -> None:
    with pytest.raises(Unknown):
        draw(pattern, np.random.default_rng(1), Budget())


def test_a_look_behind_is_of_one_length() -> None:
    assert matches(r"ab(?<=ab)c", "abc", Budget())
    with pytest.raises((Unknown, re.error)):
        matches(r"ab(?<=a|bc)c", "abc", Budget())


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (r"^(a|a)*b$", "a" * 40),
        (r"^(a+)+$", "a" * 40 + "b"),
        (r"^((a*)*)*$", "a" * 40 + "b"),
        (r"^(.*a){20}$", "a" * 40 + "b"),
        (r"^(?=(a+)+b)", "a" * 40),
        (r"^(|a){1000000000}$", "b"),
    ],
)
def test_what_keeps_others_busy_for_years_is_seen_at_once(pattern: str, text: str) -> None:
    began = time.perf_counter()
    assert not matches(pattern, text, Budget())
    assert time.perf_counter() - began < 1.0


@pytest.mark.parametrize(
    "pattern",
    ["^((((a{99}){99}){99}){99}){99}$", "(|a){1000000000}", "([\x00-\uffff]{99}){9999}"],
)
def test_a_text_without_end_exhausts_the_budget(pattern: str) -> None:
    with pytest.raises(Exhausted):
        draw(pattern, np.random.default_rng(1), Budget(work=100_000))
