"""P25, P27: the server's accounts are the client's accounts: metrics and access records name every
request exactly once, with the outcome that the caller saw."""

import json
from collections import Counter
from typing import Any

import pytest

from .conftest import Servers
from .history import Attempt, outcome
from .http_client import run
from .processes import frozen, kill
from .scrape import scrape, until_computing, until_inflight, until_waiting
from .server import Server
from .traffic import JSON, Client

CAPACITY = 20
SOURCE = "fake:?fixed=100ms&per_row=1ms&max=16&fail_value=666&exit_value=667"
FLAGS = ("--max-queue", str(CAPACITY), "--max-body", "64KiB")

BAD_REQUESTS = (
    ("POST", "/predict", b"{", JSON),
    ("POST", "/predict", b"", JSON),
    ("POST", "/predict", b'{"value": "x"}', JSON),
    ("POST", "/predict", b'[{"value": 1}, {}]', JSON),
    ("POST", "/predict", b"value=1", (("Content-Type", "application/x-www-form-urlencoded"),)),
    ("POST", "/predict", b" " * (64 * 2**10 + 1), JSON),
    ("GET", "/predict", b"", ()),
    ("DELETE", "/predict", b"", ()),
    ("GET", "/no/such/page", b"", ()),
    ("POST", "/models/nobody/predict", b'{"value": 1}', JSON),
)


async def every_kind_of_request(server: Server, client: Client) -> None:
    """Good ones, bad ones, a raising model, shed ones, callers who leave, a kill."""
    for rows in (None, 1, 5, 16, 40):
        await client.predict(rows)
    await client.predict(values=(666.0,))
    for method, route, body, headers in BAD_REQUESTS:
        await client.request(method, route, body, headers)
    pid = server.worker()
    with frozen(pid):
        held = [await client.begin(fresh=True)]
        await until_computing(server)
        leaving = [await client.begin(rows, fresh=True) for rows in (None, 2, 4)]
        await until_waiting(server, 7)
        for number, one in enumerate(leaving):
            await client.leave(one, reset=bool(number % 2))
        await until_waiting(server, 0)
        held += [await client.begin(4, fresh=True) for _ in range(CAPACITY // 4)]
        await until_waiting(server, CAPACITY)
        for rows in (None, 2, 8):
            await client.predict(rows)
        kill(pid)
    for one in held:
        if one.attempt.status is None:
            await client.finish(one)
    await server.until_ready()
    for rows in (None, 3):
        await client.predict(rows)


def _code(attempt: Attempt) -> str:
    return "499" if attempt.status is None else str(attempt.status)


async def accounts_are_exact(server: Server) -> None:
    """Metrics and log against the history of a run with every kind of ending."""
    await server.until_ready()
    client = Client(server.port, patience=10.0 * server.haste)
    await every_kind_of_request(server, client)
    verdict = client.judge()
    assert verdict.clean, str(verdict)
    kinds = {"ok", "client_error", "shed", "cancelled", "failed"}
    assert set(verdict.counts) == kinds, f"the run lacks a kind of ending: {verdict}"
    await client.close()
    await _judge_metrics(server, client.history)
    server.terminate()
    await server.until_exit()
    _judge_records(server, client.history)


async def _judge_metrics(server: Server, history: list[Attempt]) -> None:
    expected = Counter((_code(a), outcome(a)) for a in history if a.route == "/predict")
    reading = await until_inflight(server, 0)
    counted = reading.by("tailproof_requests_total", "code", "outcome", route="/predict")
    assert counted == expected, f"metrics {counted}, callers {dict(expected)}"
    received = reading.value("tailproof_requests_received_total", route="/predict")
    assert received == expected.total(), f"received {received:g}, sent {expected.total()}"
    shed = reading.value("tailproof_shed_total", model=server.name)
    assert shed == expected["429", "shed"], f"shed {shed:g}, told {expected['429', 'shed']}"
    cancelled = reading.value("tailproof_cancelled_total", model=server.name)
    assert cancelled == expected["499", "cancelled"]
    everywhere = await scrape(server.port)
    total = everywhere.value("tailproof_requests_received_total")
    ended = everywhere.value("tailproof_requests_total")
    assert total - ended <= 1, f"received {total:g}, ended {ended:g}, only this scrape in flight"


def _judge_records(server: Server, history: list[Attempt]) -> dict[str, dict[str, Any]]:
    """Exactly one record a request, with what its caller was told; returns them by request id."""
    records: dict[str, list[dict[str, Any]]] = {}
    for record in server.access_records():
        records.setdefault(record["request_id"], []).append(record)
    for attempt in history:
        found = records.get(attempt.request_id, [])
        assert len(found) == 1, f"{len(found)} access records of {attempt.request_id}: {attempt}"
        told = (found[0]["http.response.status_code"], found[0]["outcome"])
        assert told == (int(_code(attempt)), outcome(attempt)), f"{found[0]} of {attempt}"
    ours = {attempt.request_id for attempt in history}
    others = [r for request_id, rs in records.items() if request_id not in ours for r in rs]
    invented = [record for record in others if record["http.route"] == "/predict"]
    assert not invented, f"access records of requests that nobody sent: {invented}"
    return {request_id: found[0] for request_id, found in records.items()}


def _judge_details(record: dict[str, Any], attempt: Attempt, server: Server) -> None:
    """What a record says about an answered prediction, beside how it ended."""
    assert record["http.route"] == "/predict"
    assert record["rows"] == len(attempt.values)
    assert record["model.name"] == server.name
    assert "model.version" in record
    assert 1 <= record["batch_rows"] <= 16
    for key in ("queue_ms", "batch_ms", "infer_ms", "duration_ms"):
        assert record[key] >= 0, f"{key} of {record}"
    assert attempt.seconds is not None
    longer = record["duration_ms"] - 1000 * attempt.seconds
    assert longer < 1, f"says {longer} ms more than the caller waited: {record}"
    assert record["infer_ms"] >= 100, f"the model takes 100 ms: {record}"


def test_accounts_are_exact(servers: Servers) -> None:
    run(accounts_are_exact(servers.launch(None, SOURCE, *FLAGS)))


async def simple_accounts_are_exact(server: Server) -> None:
    """The same judges over the kinds of ending that the small server knows."""
    await server.until_ready()
    client = Client(server.port, patience=10.0 * server.haste)
    for _ in range(25):
        await client.predict()
    for _ in range(10):
        await client.request("POST", "/predict", b"{")
    with frozen(server.worker()):
        held = [await client.begin(fresh=True)]
        await until_computing(server)
        held.append(await client.begin(CAPACITY, fresh=True))
        await until_waiting(server, CAPACITY)
        for _ in range(10):
            await client.predict()
    for one in held:
        await client.finish(one)
    await _judge_metrics(server, client.history)
    server.terminate()
    await server.until_exit()
    _judge_records(server, client.history)


SMALL_SOURCE = "fake:?fixed=20ms&max=16"


def test_accounts_of_the_flawless_server_are_exact(servers: Servers) -> None:
    run(simple_accounts_are_exact(servers.launch("", SMALL_SOURCE, *FLAGS)))


@pytest.mark.parametrize(
    ("flaw", "complaint"),
    [
        ("miscounts", "metrics .* callers"),
        ("logs-twice", "2 access records of"),
        ("forgets-log", "0 access records of"),
        ("torn-lines", "is not JSON"),
    ],
)
def test_false_accounts_are_caught(servers: Servers, flaw: str, complaint: str) -> None:
    server = servers.launch(flaw, SMALL_SOURCE, *FLAGS)
    with pytest.raises(AssertionError, match=complaint):
        run(simple_accounts_are_exact(server))


def test_a_line_of_the_log_cannot_be_forged(servers: Servers) -> None:
    """P28: line breaks, escapes and bad UTF-8 in what the caller sends end inside one record."""
    server = servers.launch(None, SMALL_SOURCE)

    async def scenario() -> None:
        await server.until_ready()
        client = Client(server.port)
        forged = json.dumps({"event.name": "request", "request_id": "forged"})
        for path in ("/%0a" + forged.replace(" ", "%20"), "/%1b%5b31m", "/%ff%fe", "/%e2%80%a8"):
            await client.request("GET", path.replace('"', "%22"))
        server.terminate()
        await server.until_exit()
        assert all(record["request_id"] != "forged" for record in server.access_records())
        assert len([r for r in server.access_records() if r["request_id"] in _ids(client)]) == 4

    run(scenario())


def _ids(client: Client) -> set[str]:
    return {attempt.request_id for attempt in client.history}
