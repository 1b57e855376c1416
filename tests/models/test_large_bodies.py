"""Bodies that cannot be rows of the model are refused before anything is made of them."""

import json
import tracemalloc

import pytest

from tailproof.core.errors import Invalid, Malformed, RequestError, TooLarge
from tailproof.models import signature as module
from tailproof.models.signature import Column, Signature, Validator

MAX_ROWS = 100
VALIDATOR = Validator.compile(
    Signature(inputs=(Column(name="text", type="string"), Column(name="number", type="float"))),
    max_rows=MAX_ROWS,
)
LARGE = module.LARGE_BODY


def refused(body: bytes) -> RequestError:
    with pytest.raises(RequestError) as error:
        VALIDATOR.rows(body)
    return error.value


def test_good_rows_at_the_limit_pass_whatever_their_strings_hold() -> None:
    odd = '[{,"\\' * 200
    rows = [{"text": odd, "number": 1.0} for _ in range(MAX_ROWS)]
    body = json.dumps(rows).encode()
    assert len(body) > LARGE
    assert VALIDATOR.rows(body)[0] == rows


def test_one_row_more_is_too_large() -> None:
    rows = [{"text": "x" * 1000, "number": 1.0}] * (MAX_ROWS + 1)
    assert isinstance(refused(json.dumps(rows).encode()), TooLarge)


@pytest.mark.parametrize(
    "body",
    [
        b"[" + b"[]," * LARGE + b"[]]",
        b"[" + b"{}," * LARGE + b"{}]",
        b"[" + b"1," * LARGE + b"1]",
        b'{"text": "x", ' + b'"k": 1, ' * LARGE + b'"number": 1}',
        b"[" * LARGE + b"]" * LARGE,
    ],
    ids=["lists", "objects", "numbers", "keys", "depth"],
)
def test_a_flood_of_small_values_costs_no_memory(body: bytes) -> None:
    tracemalloc.start()
    try:
        error = refused(body)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert isinstance(error, TooLarge)
    assert peak < 8 * len(body)  # made into objects, each of them takes 50 bytes and more


@pytest.mark.parametrize("body", [b"[" * (LARGE + 1), b'{"a":' * LARGE, b"]" * (LARGE + 1)])
def test_brackets_that_do_not_match_are_no_json(body: bytes) -> None:
    assert isinstance(refused(body), Malformed)


def test_the_flood_that_is_not_counted_costs_much_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LARGE_BODY", 1 << 40)
    body = b"[" + b"[]," * LARGE + b"[]]"
    tracemalloc.start()
    try:
        refused(body)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak > 10 * len(body)


@pytest.mark.parametrize(
    "body",
    [
        b'"' + b'\\"' * LARGE,
        b'"' + b"\\\\" * LARGE,
        b'{"text": "' + b"x" * 2 * LARGE,
        b'"' * (2 * LARGE + 1),
    ],
    ids=[
        "escaped quotes without an end",
        "escapes without an end",
        "a string without an end",
        "quotes",
    ],
)
def test_strings_without_an_end_are_no_json(body: bytes) -> None:
    assert isinstance(refused(body), Malformed)


def test_a_large_string_is_judged_as_any_other() -> None:
    body = json.dumps({"text": "x" * 2 * LARGE, "number": "y"}).encode()
    error = refused(body)
    assert isinstance(error, Invalid)
    assert error.detail == [
        {"loc": ["number"], "msg": "Input should be a valid number", "type": "float_type"}
    ]
