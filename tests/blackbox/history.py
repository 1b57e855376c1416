"""What the client did and what it was told: one record a request, judged after the event."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class Attempt:
    """One request as the client saw it. Stamps are seconds on the client's monotonic clock;
    a stamp that was not taken is None."""

    request_id: str
    route: str = "/predict"
    values: tuple[float, ...] = ()
    """The rows that were sent; the model echoes them. Unique to this request."""
    listed: bool = False
    """Sent as a list of rows, so that the answer owes `scores` instead of `score`."""
    sent: float | None = None
    """The whole request was handed to a connection that the server had accepted."""
    answered: float | None = None
    """The last byte of a complete answer."""
    cut: float | None = None
    """The client went away on purpose."""
    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    trouble: str = ""
    """Why there is no complete answer, in the client's words."""

    @property
    def seconds(self) -> float | None:
        """From the send to the last byte."""
        if self.sent is None or self.answered is None:
            return None
        return self.answered - self.sent


@dataclass(frozen=True, slots=True)
class Verdict:
    """Ids of the requests that were wronged, and how many requests ended in which way."""

    lost: tuple[str, ...]
    """Sent, the connection accepted, the client still there: no complete answer."""
    duplicated: tuple[str, ...]
    """The same request was answered more than once."""
    crossed: tuple[str, ...]
    """Answered with another caller's id or value, or with none, or with rows out of order."""
    counts: Counter[str]

    @property
    def clean(self) -> bool:
        """Nobody was wronged."""
        return not (self.lost or self.duplicated or self.crossed)

    def __str__(self) -> str:
        wrongs = (
            f"{name} {len(ids)} (first: {', '.join(ids[:5])})"
            for name, ids in (
                ("lost", self.lost),
                ("duplicated", self.duplicated),
                ("crossed", self.crossed),
            )
            if ids
        )
        return "; ".join([*wrongs, f"counts {dict(self.counts)}"])


def outcome(attempt: Attempt) -> str:
    """How the request ended: one of the server's six outcomes, `refused` (never accepted) or
    `lost`. An answer that arrived before the client left counts as that answer."""
    if attempt.status is None:
        if attempt.sent is None:
            return "refused"
        return "lost" if attempt.cut is None else "cancelled"
    if attempt.status < 400:
        return "ok"
    return {429: "shed", 504: "timeout"}.get(
        attempt.status, "failed" if attempt.status >= 500 else "client_error"
    )


def judge(attempts: Sequence[Attempt], unsolicited: Iterable[str] = ()) -> Verdict:
    """The verdict over a whole history.

    `unsolicited` are the ids of answers that arrived on a connection where nothing was owed.
    """
    outcomes = [outcome(attempt) for attempt in attempts]
    told = Counter(
        attempt.headers["x-request-id"]
        for attempt in attempts
        if attempt.status is not None and "x-request-id" in attempt.headers
    )
    told.update(unsolicited)
    return Verdict(
        lost=tuple(
            a.request_id for a, how in zip(attempts, outcomes, strict=True) if how == "lost"
        ),
        duplicated=tuple(sorted(request_id for request_id, times in told.items() if times > 1)),
        crossed=tuple(a.request_id for a in attempts if a.status is not None and _crossed(a)),
        counts=Counter(outcomes),
    )


def _crossed(attempt: Attempt) -> bool:
    if attempt.headers.get("x-request-id", attempt.request_id) != attempt.request_id:
        return True
    if attempt.status != 200 or not attempt.values:
        return False
    try:
        answer = json.loads(attempt.body)
        scores = answer["scores"] if attempt.listed else [answer["score"]]
    except (ValueError, KeyError, TypeError):
        return True
    return not isinstance(scores, list) or tuple(scores) != attempt.values
