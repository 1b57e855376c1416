import re

import pytest

from tailproof.models.columns import Column, Signature
from tailproof.models.examples import example_row, example_value, pattern_example


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (Column(name="x", type="float"), 1.0),
        (Column(name="x", type="int"), 1),
        (Column(name="x", type="bool"), True),
        (Column(name="x", type="string"), "text"),
        (Column(name="x", type="float", example=182.5), 182.5),
        (Column(name="x", type="float", gt=0), 1.0),
        (Column(name="x", type="float", gt=0, lt=0.5), 0.25),
        (Column(name="x", type="float", le=-3), -4.0),
        (Column(name="x", type="int", ge=0, le=120), 60),
        (Column(name="x", type="int", gt=0, lt=2), 1),
        (Column(name="x", type="int", ge=0.5, le=1.4), 1),
        (Column(name="x", type="int", gt=0.5), 1),
        (Column(name="x", type="string", max_length=2), "te"),
        (Column(name="x", type="string", min_length=6), "textte"),
        (Column(name="x", type="string", max_length=0), ""),
        (Column(name="x", type="string", enum=("b", "a")), "b"),
        (Column(name="x", type="string", enum=("long", "b"), max_length=1), "b"),
        (Column(name="x", type="string", pattern="^(web|app)$"), "web"),
        (Column(name="x", type="string", pattern="^(web|app)$", min_length=4), None),
        (Column(name="x", type="string", pattern="(?=a)b"), None),
    ],
)
def test_an_example_holds_or_there_is_none(column: Column, expected: object) -> None:
    value = example_value(column)
    assert value == expected
    assert type(value) is type(expected)


def test_a_row_leaves_out_what_cannot_be_made() -> None:
    hopeless = Column(name="b", type="string", pattern="(?=a)b")
    signature = Signature(inputs=(Column(name="a", type="int"), hopeless))
    assert example_row(signature) == {"a": 1}


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("", ""),
        ("^(web|app|store|line)$", "web"),
        (r"^[A-Z]{3}-\d{2,4}$", "AAA-11"),
        ("^(?:foo|bar)[.]z$", "foo.z"),
        (r"^\d+\.\d+$", "1.1"),
        (r"^[\w.]+@example\.com$", "a@example.com"),
        ("^[^abc]x?$", "1x"),
        ("^[^ a1_Z-]$", None),
        ("a+b*?", "ab"),
        ("x{0}y{0,3}z{0,}", "yz"),
        ("^((a|b)c){2}$", "acac"),
        ("(?=a)a", None),
        (r"^\p{L}+$", None),
        (r"\bword\b", None),
        ("^a{100000}$", None),
        ("[", None),
        ("(", None),
        ("a)b", None),
        ("*", None),
        ("(" * 5000, None),
    ],
)
def test_a_pattern_gives_a_string_that_it_matches(pattern: str, expected: str | None) -> None:
    made = pattern_example(pattern)
    assert made == expected
    assert made is None or re.search(pattern, made)
