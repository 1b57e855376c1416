"""One HTTP request and its answer: answered, counted and logged exactly once."""

import asyncio
import random
from collections.abc import Callable
from typing import Any

import msgspec

from tailproof.core.errors import RequestError
from tailproof.core.policy import spread
from tailproof.core.timeline import Timeline
from tailproof.core.waiting import Priority
from tailproof.telemetry.fault import Fault
from tailproof.telemetry.logs import Log
from tailproof.telemetry.metrics import Metrics
from tailproof.telemetry.trace import RequestIds, Trace, parse_traceparent

Headers = list[tuple[str, str]]

JSON = ("content-type", "application/json")


class Desk:
    """What all exchanges of this process share."""

    def __init__(
        self,
        metrics: Metrics,
        log: Log,
        clock: Callable[[], float],
        replica: str,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """`jitter` returns uniform numbers from [0, 1)."""
        self.metrics = metrics
        self.log = log
        self.clock = clock
        self.request_ids = RequestIds()
        self.replica_header = ("x-replica", replica)
        self._jitter = jitter
        self.draining = False
        """The process ends soon: every answer asks its client to close the connection."""

    def retry_after(self, error: RequestError) -> float | None:
        """Seconds after which to come back, where that helps. What the policy says is spread
        already; what is the same for all while nothing can be served is spread here."""
        seconds = error.retry_after
        if seconds is None or error.status != 503:
            return seconds
        return spread(seconds, self._jitter())


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
        "priority",
        "proto",
        "request_id",
        "route",
        "rows",
        "timeline",
        "timeout",
        "trace",
        "unread",
        "version",
        "wasted_rows",
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
        self.priority = Priority.NORMAL
        self.timeout: float | None = None
        """Seconds that its caller gave it."""
        self.rows = 0
        self.wasted_rows = 0
        """Rows of it that were computed for nothing."""
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

    def refuse(self, error: RequestError, headers: Headers | None = None) -> None:
        """Answer with an error of ours, in the native envelope."""
        headers = [JSON, *(headers or [])]
        content: dict[str, Any] = {"detail": error.detail}
        if (seconds := self.desk.retry_after(error)) is not None:
            headers.append(("retry-after", str(max(1, round(seconds)))))
            content["retry_after_ms"] = round(seconds * 1e3)
        message = error.detail if isinstance(error.detail, str) else None
        fault = Fault(
            error.reason,
            error.stage or error.reason,
            message,
            error.retryable,
            error.budget_left,
            error.margin,
        )
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
            priority=self.priority,
            wasted_rows=self.wasted_rows,
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
            priority=self.priority,
            timeout=self.timeout,
            fault=fault,
        )
        if self.done is not None and not self.done.done():
            self.done.set_result(None)
