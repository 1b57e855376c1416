"""What a caller says beside the rows: how long it waits, and how much its request matters."""

import re
from typing import Any, NamedTuple

from tailproof.core.errors import Malformed
from tailproof.core.waiting import Priority

_MILLISECONDS = re.compile(r"\d{1,12}(?:\.\d{1,12})?")
_PRIORITIES = {priority.word: priority for priority in Priority}


class Terms(NamedTuple):
    """Read from the request's headers."""

    timeout: float | None = None
    """Seconds from its arrival after which the caller no longer waits; None: as the server does."""
    priority: Priority = Priority.NORMAL


USUAL = Terms()


def read_terms(headers: Any) -> Terms:
    """`X-Request-Timeout-Ms` and `X-Priority`. Raises Malformed for a value that is none."""
    timeout, priority = headers.get("x-request-timeout-ms"), headers.get("x-priority")
    if timeout is None and priority is None:
        return USUAL
    return Terms(
        None if timeout is None else _seconds(timeout),
        Priority.NORMAL if priority is None else _priority(priority),
    )


def _seconds(text: str) -> float:
    if not text.isascii() or not _MILLISECONDS.fullmatch(text) or not float(text):
        raise Malformed("X-Request-Timeout-Ms must be a number of milliseconds above 0")
    return float(text) / 1e3


def _priority(text: str) -> Priority:
    priority = _PRIORITIES.get(text.strip().lower())
    if priority is None:
        raise Malformed(f"X-Priority must be one of {', '.join(_PRIORITIES)}")
    return priority
