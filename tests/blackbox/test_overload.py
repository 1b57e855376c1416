"""P10: nothing waits without a bound, the refusal says when to come back, the gauge is true."""

import pytest

from .conftest import Servers
from .history import Attempt
from .http_client import run
from .processes import frozen
from .scrape import Scrape, scrape, until_inflight, until_waiting
from .server import Server
from .traffic import Client

CAPACITY = 20
SOURCE = "fake:?fixed=100ms&max=4"
FLAGS = ("--max-queue", str(CAPACITY))


def _told_to_come_back(attempt: Attempt) -> None:
    assert attempt.status == 429, f"a row too many was told {attempt.status or attempt.trouble}"
    assert attempt.headers.get("retry-after", "").isdigit(), "a 429 without Retry-After"
    assert int(attempt.headers["retry-after"]) >= 1


def _depth(reading: Scrape, server: Server) -> tuple[float | None, float | None, float | None]:
    names = ("tailproof_queue_rows", "tailproof_queue_requests", "tailproof_queue_capacity_rows")
    rows, requests, capacity = (reading.find(name, model=server.name) for name in names)
    return rows, requests, capacity


async def queue_is_bounded(server: Server) -> None:
    """The queue takes exactly what it was given room for, counted in rows; a list is taken or
    refused whole; what was refused is never computed and what was taken is."""
    await server.until_ready()
    client = Client(server.port, patience=5.0 * server.haste)
    with frozen(server.worker()):
        blocker = await client.begin(fresh=True)
        await until_inflight(server, 1)
        await until_waiting(server, 0)
        held = [await client.begin(fresh=True) for _ in range(CAPACITY - 5)]
        held.append(await client.begin(3, fresh=True))
        await until_waiting(server, CAPACITY - 2)
        _told_to_come_back(await client.predict(3))
        held.append(await client.begin(2, fresh=True))
        full = await until_waiting(server, CAPACITY)
        assert _depth(full, server) == (CAPACITY, CAPACITY - 3, CAPACITY)
        for rows in (None, 1, 2, CAPACITY + 1):
            _told_to_come_back(await client.predict(rows))
        assert _depth(await scrape(server.port), server) == (CAPACITY, CAPACITY - 3, CAPACITY)
    for one in (blocker, *held):
        await client.finish(one)
    verdict = client.judge()
    assert verdict.clean, str(verdict)
    assert verdict.counts == {"ok": len(held) + 1, "shed": 5}, str(verdict)
    empty = await until_waiting(server, 0)
    assert empty.value("tailproof_shed_total", model=server.name) == 5
    assert (await client.predict()).status == 200


@pytest.mark.parametrize("flaw", [None, ""], ids=["tailproof", "flawless"])
def test_queue_is_bounded(servers: Servers, flaw: str | None) -> None:
    run(queue_is_bounded(servers.launch(flaw, SOURCE, *FLAGS)))


@pytest.mark.parametrize(
    ("flaw", "complaint"),
    [
        ("unbounded", "a row too many was told no answer"),
        ("false-gauge", "tailproof_queue_rows stayed at 0"),
        ("no-retry-after", "a 429 without Retry-After"),
    ],
)
def test_a_queue_without_a_bound_is_caught(servers: Servers, flaw: str, complaint: str) -> None:
    server = servers.launch(flaw, SOURCE, *FLAGS)
    with pytest.raises(AssertionError, match=complaint):
        run(queue_is_bounded(server))


def test_a_request_larger_than_the_bound_is_taken_alone(servers: Servers) -> None:
    """Into an empty queue it goes, and is answered in order; behind it nothing fits."""
    server = servers.launch(None, SOURCE, *FLAGS)

    async def scenario() -> None:
        await server.until_ready()
        client = Client(server.port)
        with frozen(server.worker()):
            blocker = await client.begin(fresh=True)
            await until_inflight(server, 1)
            await until_waiting(server, 0)
            large = await client.begin(CAPACITY + 1, fresh=True)
            await until_waiting(server, CAPACITY + 1)
            _told_to_come_back(await client.predict())
        for one in (blocker, large):
            assert (await client.finish(one)).status == 200
        assert client.judge().clean

    run(scenario())
