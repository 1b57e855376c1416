"""The judge: each wrong that a server can do to a client, doctored into a clean history."""

import json
from collections import Counter

import pytest

from .history import Attempt, judge, outcome


def answered(number: int, *, rows: int | None = None, status: int = 200) -> Attempt:
    """A request that got what it asked for."""
    values = tuple(float(100 * number + row) for row in range(rows or 1))
    body = {"score": values[0]} if rows is None else {"scores": list(values)}
    return Attempt(
        f"r-{number}",
        values=values,
        listed=rows is not None,
        sent=float(number),
        answered=number + 0.5,
        status=status,
        headers={"x-request-id": f"r-{number}"},
        body=json.dumps(body if status == 200 else {"detail": "no"}).encode(),
    )


def clean_history() -> list[Attempt]:
    return [answered(1), answered(2, rows=1), answered(3, rows=8), answered(4, status=429)]


def test_a_clean_history_is_clean() -> None:
    verdict = judge(clean_history())
    assert verdict.clean
    assert verdict.counts == Counter(ok=3, shed=1)


def test_an_answer_that_never_came_is_lost() -> None:
    history = clean_history()
    history[1].status = history[1].answered = None
    verdict = judge(history)
    assert verdict.lost == ("r-2",)
    assert verdict.counts["lost"] == 1
    assert not verdict.clean


def test_a_request_that_was_never_accepted_is_refused_not_lost() -> None:
    verdict = judge([Attempt("r-1", values=(1.0,), trouble="ConnectionRefusedError")])
    assert verdict.clean
    assert verdict.counts == Counter(refused=1)


def test_a_client_that_left_is_owed_nothing() -> None:
    verdict = judge([Attempt("r-1", values=(1.0,), sent=1.0, cut=2.0)])
    assert verdict.clean
    assert verdict.counts == Counter(cancelled=1)


def test_an_answer_that_beat_the_cut_counts_as_the_answer() -> None:
    attempt = answered(1)
    attempt.cut = 9.0
    assert outcome(attempt) == "ok"


def test_anothers_value_is_crossed() -> None:
    history = clean_history()
    history[0].body, history[1].body = b'{"score": 200.0}', b'{"scores": [100.0]}'
    assert judge(history).crossed == ("r-1", "r-2")


@pytest.mark.parametrize(
    "body",
    [
        b'{"scores": [300.0, 301.0, 302.0, 303.0, 304.0, 305.0, 307.0, 306.0]}',
        b'{"scores": [300.0]}',
        b'{"scores": []}',
        b'{"scores": null}',
        b'{"score": 300.0}',
        b"{}",
        b"[]",
        b"",
        b'{"scores": [300.0, 301.0',
    ],
    ids=["order", "short", "empty", "null", "single", "none", "list", "blank", "torn"],
)
def test_a_list_without_exactly_the_callers_rows_is_crossed(body: bytes) -> None:
    history = clean_history()
    history[2].body = body
    assert judge(history).crossed == ("r-3",)


def test_anothers_request_id_is_crossed_and_duplicated() -> None:
    history = clean_history()
    history[0].headers["x-request-id"] = "r-2"
    verdict = judge(history)
    assert verdict.crossed == ("r-1",)
    assert verdict.duplicated == ("r-2",)


def test_a_second_answer_that_nobody_asked_for_is_duplicated() -> None:
    assert judge(clean_history(), unsolicited=["r-3"]).duplicated == ("r-3",)


def test_an_error_answer_need_not_carry_the_value() -> None:
    assert judge([answered(1, status=503)]).crossed == ()


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (200, "ok"),
        (400, "client_error"),
        (408, "client_error"),
        (413, "client_error"),
        (422, "client_error"),
        (429, "shed"),
        (500, "failed"),
        (503, "failed"),
        (504, "timeout"),
    ],
)
def test_each_status_has_its_outcome(status: int, expected: str) -> None:
    assert outcome(answered(1, status=status)) == expected


def test_the_verdict_names_the_wronged() -> None:
    history = clean_history()
    history[3].status = None
    assert "lost 1 (first: r-4)" in str(judge(history))
