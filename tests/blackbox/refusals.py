"""What a caller is told whose request may be sent again."""

import json
from collections.abc import Sequence

from .history import Attempt

SPREAD = 1.2 / 0.8
"""Of the longest time to the shortest, when each is within 20% of the same centre."""


def told_to_come_back(attempt: Attempt, status: int = 429) -> float:
    """Seconds after which this caller may try again, as the body says.

    Raises AssertionError unless the refusal is whole: that status, a sentence, `Retry-After` in
    whole seconds from 1, `retry_after_ms` above 0, and both say the same.
    """
    got = attempt.status or attempt.trouble
    assert attempt.status == status, f"was told {got}, not {status}"
    header = attempt.headers.get("retry-after", "")
    assert header.isdigit(), f"a {status} without Retry-After"
    assert int(header) >= 1, f"Retry-After: {header}"
    said = json.loads(attempt.body)
    assert said.get("detail"), f"a {status} without detail"
    milliseconds = said.get("retry_after_ms")
    assert isinstance(milliseconds, int | float), f"a {status} without retry_after_ms"
    assert milliseconds > 0, f"retry_after_ms: {milliseconds}"
    assert abs(int(header) - milliseconds / 1000) <= 1, f"{header} s and {milliseconds} ms"
    return milliseconds / 1000


def not_told_to_come_back(attempt: Attempt) -> None:
    """Raises AssertionError when the answer invites the caller to send the request again."""
    status = attempt.status
    assert "retry-after" not in attempt.headers, f"a {status} with Retry-After"
    assert b"retry_after_ms" not in attempt.body, f"a {status} with retry_after_ms"


def spread_out(seconds: Sequence[float], drift: float = 1.1) -> None:
    """The same advice to many callers at about the same time is jittered by 20% either way.

    `drift`: how far the centre itself may have moved between the first and the last.
    """
    longest, shortest = max(seconds), min(seconds)
    assert longest / shortest > 1.1, f"everyone is told {shortest:g} to {longest:g} s"
    assert len(set(seconds)) > len(seconds) / 3, f"{len(set(seconds))} times for {len(seconds)}"
    ratio = longest / shortest
    assert ratio <= SPREAD * drift, f"told {shortest:g} to {longest:g} s: more than 20% either way"
