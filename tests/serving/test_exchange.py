"""A request is answered, counted and logged once, whatever is tried."""

import json
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from tailproof.core.errors import DeadlineExceeded, Invalid, RequestError, Shed, Unavailable
from tailproof.serving.exchange import JSON, Desk, Exchange
from tailproof.telemetry.logs import Log
from tailproof.telemetry.metrics import Metrics

MISSING = [{"loc": ["age"], "msg": "Field required", "type": "missing"}]


class Kept:
    """A log writer that keeps its lines."""

    fd = 1

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def write(self, lines: bytes) -> None:
        self.lines += [json.loads(line) for line in lines.splitlines()]


class Client:
    """granian's protocol object: what the client sees."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, dict[str, str], bytes]] = []

    def response_bytes(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        self.answers.append((status, dict(headers), body))


class Scene:
    """One request at one desk."""

    def __init__(self, headers: dict[str, str] | None = None) -> None:
        self.log, self.client = Kept(), Client()
        self.metrics = Metrics(CollectorRegistry(), ("/predict",))
        self.desk = Desk(
            self.metrics,
            Log(self.log, "json"),  # type: ignore[arg-type]
            lambda: 1.0,
            "replica",
            lambda: 0.5,
        )
        self.exchange = Exchange(self.desk, self.client, "POST", "/predict")
        self.exchange.identify(headers or {})

    @property
    def ended(self) -> list[tuple[str, str, str, int]]:
        (account,) = [a for a in self.metrics.accounts() if a.route == "/predict"]
        assert account.num_received == 1
        return [end for end in account.ended() if end[3]]


@pytest.mark.parametrize("later", ["answer", "refuse", "client_left"])
@pytest.mark.parametrize("first", ["answer", "refuse", "client_left"])
def test_only_the_first_end_counts(first: str, later: str) -> None:
    scene = Scene()
    ends = {
        "answer": lambda: scene.exchange.answer(200, b"{}", [JSON]),
        "refuse": lambda: scene.exchange.refuse(DeadlineExceeded("too late", stage="queue")),
        "client_left": scene.exchange.client_left,
    }
    ends[first]()
    ends[later]()

    code = {"answer": 200, "refuse": 504, "client_left": 499}[first]
    assert [line["http.response.status_code"] for line in scene.log.lines] == [code]
    assert [(end[1], end[3]) for end in scene.ended] == [(str(code), 1)]
    assert len(scene.client.answers) == (first != "client_left")


@pytest.mark.parametrize(
    ("error", "status", "outcome", "retry_after"),
    [
        (Invalid(MISSING), 422, "client_error", None),
        (Shed("full", reason="queue_full", retry_after=0.02), 429, "shed", "1"),
        (Shed("full", reason="queue_full", retry_after=2.6), 429, "shed", "3"),
        (Unavailable("no worker", reason="worker_lost"), 503, "failed", "1"),
        (DeadlineExceeded("late", stage="execute"), 504, "timeout", None),
        (DeadlineExceeded("late", stage="queue", retry_after=2.6), 504, "timeout", "3"),
    ],
    ids=[
        "invalid",
        "shed",
        "shed for longer",
        "unavailable",
        "deadline",
        "deadline, never executed",
    ],
)
def test_refusals(error: RequestError, status: int, outcome: str, retry_after: str | None) -> None:
    scene = Scene()
    scene.exchange.refuse(error)
    ((sent, headers, body),) = scene.client.answers
    content = json.loads(body)
    assert (sent, scene.log.lines[0]["outcome"]) == (status, outcome)
    assert content["detail"] == error.detail
    assert headers.get("retry-after") == retry_after
    if retry_after is not None:
        assert content["retry_after_ms"] == round((error.retry_after or 0) * 1e3)


@pytest.mark.parametrize(
    ("headers", "read", "draining", "closes"),
    [
        ({"content-length": "5"}, True, False, False),
        ({"content-length": "5"}, False, False, True),
        ({"transfer-encoding": "chunked"}, False, False, True),
        ({"content-length": "0"}, False, False, False),
        ({}, False, False, False),
        ({}, False, True, True),
    ],
    ids=["body read", "body unread", "chunks unread", "empty body", "no body", "draining"],
)
def test_a_connection_that_cannot_go_on_is_announced(
    headers: dict[str, str], read: bool, draining: bool, closes: bool
) -> None:
    scene = Scene(headers)
    if read:
        scene.exchange.unread = False
    scene.desk.draining = draining
    scene.exchange.answer(200, b"{}", [JSON])
    ((_, sent, _),) = scene.client.answers
    assert (sent.get("connection") == "close") == closes


def test_a_good_id_is_taken_over_and_a_bad_one_replaced() -> None:
    assert Scene({"x-request-id": "a-1"}).exchange.request_id == "a-1"
    forged = Scene({"x-request-id": "a\r\nset-cookie: b"}).exchange.request_id
    assert forged.isascii()
    assert "\n" not in forged
