"""Who asked: trace context (W3C) and request ids, taken from the caller only when well-formed."""

import re
import secrets
from itertools import count
from typing import NamedTuple

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(-.*)?")
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_LONGEST_TRACEPARENT = 512


class Trace(NamedTuple):
    """The caller's place in a distributed trace, in lower-case hex."""

    trace_id: str
    span_id: str


def parse_traceparent(value: str) -> Trace | None:
    """The trace that a `traceparent` header names; None when it is not a valid one.

    Version 00 has exactly four fields; later versions may add some, which are ignored.
    """
    match = _TRACEPARENT.fullmatch(value) if len(value) <= _LONGEST_TRACEPARENT else None
    if match is None:
        return None
    version, trace_id, span_id, more = match.groups()
    if version == "ff" or (version == "00" and more is not None):
        return None
    if not trace_id.strip("0") or not span_id.strip("0"):
        return None
    return Trace(trace_id, span_id)


class RequestIds:
    """Hands out request ids that are unique in this process and, in practice, everywhere.

    `prefix` tells processes apart; by default it is random.
    """

    def __init__(self, prefix: str | None = None) -> None:
        self._prefix = f"{prefix or secrets.token_hex(6)}-"
        self._numbers = count(1)

    def new(self) -> str:
        """The next id."""
        return self._prefix + format(next(self._numbers), "x")

    def accept(self, offered: str | None) -> str:
        """The caller's own id when it is 1 to 64 of `A-Za-z0-9._-`, else a new one."""
        if offered is not None and _REQUEST_ID.fullmatch(offered):
            return offered
        return self.new()
