"""`POST /predict`: one row or a list of them, validated, batched, answered."""

import asyncio
import math
from typing import Any

from tailproof.core.errors import DeadlineExceeded, RequestError, Unavailable
from tailproof.core.timeline import Timeline
from tailproof.serving.admission import BodyReader
from tailproof.serving.batcher import Answer, Row
from tailproof.serving.exchange import JSON, Exchange, Headers
from tailproof.serving.service import ModelService
from tailproof.serving.terms import Terms, read_terms


class Prediction:
    """One /predict request between its validation and its answer: the batcher's ticket."""

    __slots__ = (
        "arrived",
        "deadline",
        "exchange",
        "is_list",
        "priority",
        "rows",
        "service",
        "timeline",
    )

    def __init__(
        self,
        service: ModelService,
        exchange: Exchange,
        rows: list[Row],
        terms: Terms,
        *,
        is_list: bool,
    ) -> None:
        self.service = service
        self.exchange = exchange
        self.rows = rows
        self.is_list = is_list
        self.arrived = exchange.arrived
        self.deadline = math.inf if terms.timeout is None else self.arrived + terms.timeout
        self.priority = terms.priority
        self.timeline: Timeline = exchange.timeline

    @property
    def request_id(self) -> str:
        """As in its answer and its log record."""
        return self.exchange.request_id

    def completed(self, answer: Answer) -> None:
        """The rows are computed: send the answer, right from the batch's turn of the loop."""
        exchange = self.exchange
        exchange.batch_rows, exchange.worker = answer.batch_rows, answer.worker
        body = self.service.encoder.encode(answer, is_list=self.is_list)
        headers: Headers = [
            JSON,
            ("server-timing", server_timing(self.timeline, exchange.desk.clock() - self.arrived)),
            ("x-batch-size", str(answer.batch_rows)),
        ]
        if answer.cold:
            headers.append(("x-cold", "1"))
        exchange.answer(200, body, headers)

    def failed(self, error: RequestError) -> None:
        """They will never be computed."""
        self.exchange.refuse(error)

    def client_left(self, watch: Any) -> None:
        """The watch on the connection ended: by its client, unless we cancelled it."""
        if not watch.cancelled() and not self.exchange.closed:
            self.exchange.client_left(self._withdraw())

    def expire(self, seconds: float) -> None:
        """No answer within its time: leave the queue, and say so."""
        if not self.exchange.closed:
            message = f"no answer within {seconds:g} s"
            self.exchange.refuse(DeadlineExceeded(message, stage=self._withdraw()))

    def end(self, error: RequestError) -> None:
        """The server's time is over."""
        self._withdraw()
        self.exchange.refuse(error)

    def _withdraw(self) -> str:
        """Leave the queue; how far it had come."""
        stage, self.exchange.wasted_rows = self.service.withdraw(self)
        return stage


class Predictor:
    """The route. Keeps the open requests in order of arrival, for their common deadline."""

    def __init__(self, bodies: BodyReader, request_timeout: float) -> None:
        self._bodies = bodies
        self._timeout = request_timeout
        self._open: dict[Prediction, None] = {}

    async def predict(
        self, service: ModelService, exchange: Exchange, headers: Any, proto: Any
    ) -> None:
        """Handle one request to its answer. Raises RequestError, ClientLeft."""
        terms = read_terms(headers)
        exchange.priority, exchange.timeout = terms.priority, terms.timeout
        body = await self._bodies.read_json(headers, proto)
        exchange.unread = False
        rows, is_list = service.validator.rows(body)
        exchange.rows = len(rows)
        exchange.version = service.version
        prediction = Prediction(service, exchange, rows, terms, is_list=is_list)
        service.submit(prediction)
        loop = asyncio.get_running_loop()
        exchange.done = loop.create_future()
        watch = proto.client_disconnect()
        watch.add_done_callback(prediction.client_left)
        self._open[prediction] = None
        alarm = self._alarm(prediction, terms, loop)
        try:
            await exchange.done
        finally:
            del self._open[prediction]
            watch.cancel()
            if alarm is not None:
                alarm.cancel()

    def _alarm(
        self, prediction: Prediction, terms: Terms, loop: asyncio.AbstractEventLoop
    ) -> asyncio.TimerHandle | None:
        """Rings at its caller's own deadline, when that comes before ours."""
        if terms.timeout is None or terms.timeout >= self._timeout:
            return None
        left = prediction.deadline - prediction.exchange.desk.clock()
        return loop.call_later(max(left, 0.0), prediction.expire, terms.timeout)

    def abandon(self) -> int:
        """Answer 503 to every request that is still open: the process ends. Returns how many."""
        still_open = [one for one in self._open if not one.exchange.closed]
        for prediction in still_open:
            prediction.end(Unavailable("the server is stopping", reason="draining"))
        return len(still_open)

    def sweep(self, now: float) -> None:
        """Answer 504 to every request that is over the timeout."""
        late = []
        for prediction in self._open:
            if now - prediction.arrived < self._timeout:
                break
            late.append(prediction)
        for prediction in late:
            prediction.expire(self._timeout)


def server_timing(timeline: Timeline, total: float) -> str:
    """The Server-Timing header: where the time went, in milliseconds."""
    queue = (timeline.queue_seconds or 0.0) * 1e3
    batch = (timeline.batch_seconds or 0.0) * 1e3
    infer = (timeline.infer_seconds or 0.0) * 1e3
    return (
        f"queue;dur={queue:.3f}, batch;dur={batch:.3f}, infer;dur={infer:.3f}, "
        f"total;dur={total * 1e3:.3f}"
    )
