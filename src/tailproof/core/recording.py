"""What happened to every request of a load step: the columns of many `Timeline`s.

One entry per planned request, in order of intended start. Times are seconds since the step began,
on the tester's monotonic clock; server durations are seconds, as the server told them. What did
not happen, or was not told, is NaN, never 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]

UNANSWERED = 0
"""Status of a request without an answer when its step ended."""
LOST = -1
"""Its connection ended before the answer was complete."""
NOT_CONNECTED = -2
"""The server did not take the connection."""
NO_SOCKET = -3
"""The tester had no descriptor or port left: its own fault, not the server's."""
UNSENT = -4
"""It never left: a cap on connections held it back until the step ended."""
TIMED_OUT = -5
"""No answer within the request timeout; its connection was closed."""
NOT_HTTP = -6
"""What came back is no HTTP/1 answer."""
REJECTED = -7
"""A 2xx answer that the user's own check did not accept."""

STATUS_NAMES = {
    UNANSWERED: "unanswered",
    LOST: "lost",
    NOT_CONNECTED: "not connected",
    NO_SOCKET: "no socket",
    UNSENT: "unsent",
    TIMED_OUT: "timed out",
    NOT_HTTP: "not HTTP",
    REJECTED: "rejected",
}


def status_name(status: int) -> str:
    """`200`, `429`, `lost`, `timed out`, ...: as reports print it."""
    return STATUS_NAMES.get(status, str(status))


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    """Columns of equal length, one entry per planned request."""

    intended: Floats
    """When the schedule said, rising."""
    woke: Floats
    """When the sender turned to it."""
    acquired: Floats
    """When it had a connection."""
    sent: Floats
    """When its last byte was handed to the kernel."""
    first_byte: Floats
    last: Floats
    """When the last byte of its answer was read."""
    status: Ints
    """HTTP's, or one of the codes above (0 and below)."""
    sent_bytes: Ints
    received_bytes: Ints
    payload: Ints
    """Which of the target's requests it was."""
    connection: Ints
    """Number of the connection that carried it; -1: none did."""
    fresh: Bools
    """It was the first on its connection."""
    accept_wait: Floats
    """Part of the send lag in which the server took a new connection: not the tester's fault. 0
    where there was none."""
    queue: Floats
    """Server: waiting for a worker (`Server-Timing: queue`)."""
    batch: Floats
    infer: Floats
    total: Floats
    batch_size: Ints
    """`X-Batch-Size`; 0: not told."""
    cold: Bools
    """`X-Cold: 1`."""
    replica: Ints
    """Index into `replicas` (`X-Replica`); -1: not told."""
    replicas: tuple[str, ...] = ()

    @classmethod
    def empty(cls, intended: Floats) -> "Recording":
        """Nothing has happened yet to the requests of a schedule."""
        num = len(intended)
        kinds = {"status": UNSENT, "connection": -1, "replica": -1}
        found: dict[str, Any] = {name: np.full(num, np.nan) for name in _TIMES}
        found |= {name: np.full(num, kinds.get(name, 0), np.int32) for name in _INTS}
        found |= {name: np.zeros(num, np.bool_) for name in ("fresh", "cold")}
        return cls(**found, intended=intended, accept_wait=np.zeros(num))

    def __len__(self) -> int:
        return len(self.intended)

    def take(self, which: slice | Ints | Bools) -> "Recording":
        """Some of the requests, as a recording of their own."""
        return replace(self, **{name: getattr(self, name)[which] for name in columns()})

    def between(self, start: float, end: float) -> "Recording":
        """The requests whose intended start lies in [start, end)."""
        first, beyond = np.searchsorted(self.intended, (start, end))
        return self.take(slice(int(first), int(beyond)))

    @property
    def good(self) -> Bools:
        """Answered with 2xx."""
        return (self.status >= 200) & (self.status < 300)

    @property
    def refused(self) -> Bools:
        """Answered 429 or 503: the server chose not to."""
        return np.isin(self.status, (429, 503))

    @property
    def response(self) -> Floats:
        """Seconds from the intended start to the last byte: what the user felt. A miss (no good
        answer) is infinite, so that a fast error is not a fast answer."""
        return np.where(self.good, self.last - self.intended, np.inf)

    @property
    def uncorrected(self) -> Floats:
        """Seconds from the send to the last byte, as closed-loop tools count. Misses: infinite."""
        return np.where(self.good, self.last - self.sent, np.inf)

    @property
    def send_lag(self) -> Floats:
        """Seconds from the intended start to the send; infinite for what was never sent."""
        return np.where(np.isnan(self.sent), np.inf, self.sent - self.intended)

    @property
    def own_lag(self) -> Floats:
        """The part of the send lag that the tester caused. What was never sent because the server
        took no connection has none; what the tester itself held back is infinite."""
        lag = self.send_lag - self.accept_wait
        return np.where(np.isin(self.status, (NOT_CONNECTED, UNANSWERED)) & np.isinf(lag), 0.0, lag)

    @property
    def in_flight(self) -> Ints:
        """How many earlier requests were unfinished at each intended start. One that broke off at
        an unknown time counts as over at once."""
        waits = np.isin(self.status, (UNANSWERED, TIMED_OUT))
        unknown = np.where(waits, np.inf, self.intended)
        ended = np.where(np.isnan(self.last), unknown, self.last)
        num_ended = np.searchsorted(np.sort(ended), self.intended)
        return (np.arange(len(self)) - num_ended).clip(min=0).astype(np.int32)


_TIMES = (
    *("woke", "acquired", "sent", "first_byte", "last"),
    *("queue", "batch", "infer", "total"),
)
_INTS = (
    *("status", "sent_bytes", "received_bytes", "payload", "connection"),
    *("batch_size", "replica"),
)


def columns() -> tuple[str, ...]:
    """The names of the columns, `replicas` apart."""
    return tuple(item.name for item in fields(Recording) if item.name != "replicas")


def joined(parts: Sequence[Recording]) -> Recording:
    """Recordings of one step, taken by several senders on one clock, as one in order of intended
    start. Raises ValueError without any part."""
    if not parts:
        raise ValueError("no recording to join")
    replicas = tuple(dict.fromkeys(name for part in parts for name in part.replicas))
    place = {name: index for index, name in enumerate(replicas)}
    renamed = [_renamed(part, place) for part in parts]
    order = np.argsort(np.concatenate([part.intended for part in parts]), kind="stable")
    found = {
        name: np.concatenate([getattr(part, name) for part in renamed])[order] for name in columns()
    }
    return Recording(**found, replicas=replicas)


def _renamed(part: Recording, place: dict[str, int]) -> Recording:
    table = np.array([*(place[name] for name in part.replicas), -1], np.int32)
    return replace(part, replica=table[part.replica])
