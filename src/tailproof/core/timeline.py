"""The record of one request: written by server and tester, read by everything that explains."""

from dataclasses import dataclass


@dataclass(slots=True)
class Timeline:
    """When things happened to one request, in seconds.

    Client stamps (`intended` to `last`) are on the client's monotonic clock. Server stamps are
    durations since `arrived`, so that the clocks of two hosts are never compared. A stamp that
    was not taken is `None`, never 0.
    """

    intended: float | None = None
    """Client: when the request should have gone out."""
    sent: float | None = None
    first_byte: float | None = None
    first_token: float | None = None
    last: float | None = None

    admitted: float | None = None
    """Server: entered the queue."""
    worker_free: float | None = None
    """Server: the worker that computed it could have taken a batch (negative: it was idle)."""
    dispatched: float | None = None
    """Server: left for the worker in a batch."""
    started: float | None = None
    """Worker: the runtime began to compute."""
    finished: float | None = None
    """Worker: the runtime was done."""
    answered: float | None = None
    """Server: the answer was handed to the HTTP library."""

    @property
    def response_time(self) -> float | None:
        """What the user felt: from the intended start to the last byte."""
        return None if self.last is None or self.intended is None else self.last - self.intended

    @property
    def send_lag(self) -> float | None:
        """What the tester added: the send after the intended start."""
        return None if self.sent is None or self.intended is None else self.sent - self.intended

    @property
    def queue_seconds(self) -> float | None:
        """Waiting because every worker was busy: max(0, worker free - admitted)."""
        if self.worker_free is None or self.admitted is None:
            return None
        return max(0.0, self.worker_free - self.admitted)

    @property
    def batch_seconds(self) -> float | None:
        """Waiting for the batch to be formed: dispatched - max(admitted, worker free)."""
        if self.dispatched is None or self.worker_free is None or self.admitted is None:
            return None
        return max(0.0, self.dispatched - max(self.admitted, self.worker_free))

    @property
    def infer_seconds(self) -> float | None:
        """Inside the runtime."""
        if self.started is None or self.finished is None:
            return None
        return self.finished - self.started
