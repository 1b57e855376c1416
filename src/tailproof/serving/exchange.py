"""One HTTP request and its answer: answered, counted and logged exactly once."""

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from tailproof.core.errors import RequestError
from tailproof.core.timeline import Timeline
from tailproof.telemetry.logs import Log
from tailproof.telemetry.metrics import Metrics
from tailproof.telemetry.trace import RequestIds, Trace, parse_traceparent

Headers = list[tuple[str, str]]

JSON = ("content-type", "application/json")


class Fault(NamedTuple):
    """Why a request got no good answer, for metrics and log."""

    error: str
    """Short name of what happened."""
    cause: str
    """Why it was shed, or the stage in which it ended (see `telemetry.metrics`)."""
    message: str | None = None
    retryable: bool | None = None


class Desk:
    """What all exchanges of this process share."""

    def __init__(
        self, metrics: Metrics, log: Log, clock: Callable[[], float], replica: str
    ) -> None:
        self.metrics = metrics
        self.log = log
        self.clock = clock
        self.request_ids = RequestIds()
        self.replica_header = ("x-replica", replica)
        self.draining = False
        """The process ends soon: every answer asks its client to close the connection."""


class Exchange:
    """One request, from the moment the application has it until the answer is handed back."""

    __slots__ = (
        "account",
        "arrived",
        "batch_rows",
        "closed",
        "desk",
        "done",
        "method",
        "model",
        "proto",
        "request_id",
        "route",
        "rows",
        "timeline",
        "trace",
        "unread",
        "version",
        "worker",
    )

    def __init__(self, desk: Desk, proto: Any, method: str, route: str, model: str = "") -> None:
        self.desk = desk
        self.proto = proto
        self.method = method
        self.route = route
        self.model = model
        self.version: str | None = None
        self.arrived = desk.clock()
        self.timeline = Timeline()
        self.rows = 0
        self.batch_rows = 0
        self.worker: int | None = None
        self.closed = False
        self.done: asyncio.Future[None] | None = None
        self.request_id = ""
        self.trace: Trace | None = None
        self.unread = False
        """The request has a body that nobody has read: its connection cannot be used again."""
        self.account = desk.metrics.received(model, route)

    def identify(self, headers: Any) -> None:
        """Take over the caller's request id and trace, where they are well-formed."""
        self.request_id = self.desk.request_ids.accept(headers.get("x-request-id"))
        traceparent = headers.get("traceparent")
        if traceparent is not None:
            self.trace = parse_traceparent(traceparent)
        self.unread = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers

    def answer(
        self,
        status: int,
        body: bytes,
        headers: Headers,
        *,
        outcome: str = "ok",
        fault: Fault | None = None,
    ) -> None:
        """Send the one answer. Later calls do nothing: the request has been accounted for."""
        if self.closed:
            return
        desk = self.desk
        self.timeline.answered = desk.clock() - self.arrived
        headers.append(("x-request-id", self.request_id))
        headers.append(desk.replica_header)
        if desk.draining or self.unread:
            headers.append(("connection", "close"))
        self.proto.response_bytes(status, headers, body)
        self._close(status, outcome, fault)

    def refuse(
        self, error: RequestError, headers: Headers | None = None, *, cause: str = ""
    ) -> None:
        """Answer with an error of ours, in the native envelope."""
        headers = [JSON, *(headers or [])]
        content: dict[str, Any] = {"detail": error.detail}
        if error.retry_after is not None:
            headers.append(("retry-after", str(max(1, round(error.retry_after)))))
            content["retry_after_ms"] = round(error.retry_after * 1e3)
        message = error.detail if isinstance(error.detail, str) else None
        fault = Fault(error.reason, cause or error.reason, message, error.retryable)
        body = msgspec.json.encode(content)
        self.answer(error.status, body, headers, outcome=error.outcome, fault=fault)

    def client_left(self, stage: str = "door") -> None:
        """The client closed its connection: nobody to answer; still counted and logged.

        `stage`: how far it had come, one of `telemetry.metrics.STAGES`.
        """
        if not self.closed:
            self.timeline.answered = self.desk.clock() - self.arrived
            self._close(499, "cancelled", Fault("ClientLeft", stage))

    def _close(self, status: int, outcome: str, fault: Fault | None) -> None:
        self.closed = True
        self.account.answered(
            self.method,
            status,
            outcome,
            self.timeline,
            version=self.version,
            rows=self.rows,
            cause="" if fault is None else fault.cause,
        )
        self.desk.log.access(
            request_id=self.request_id,
            method=self.method,
            route=self.route,
            status=status,
            outcome=outcome,
            timeline=self.timeline,
            trace=self.trace,
            model=self.model,
            version=self.version,
            rows=self.rows,
            batch_rows=self.batch_rows,
            worker=self.worker,
            error=None if fault is None else fault.error,
            message=None if fault is None else fault.message,
            retryable=None if fault is None else fault.retryable,
        )
        if self.done is not None and not self.done.done():
            self.done.set_result(None)
