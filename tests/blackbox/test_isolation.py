"""P13: one bad request spoils only itself, whoever shares its batch; the log says whose it was."""

import asyncio
import random
from collections import Counter
from pathlib import Path

import pytest

from .conftest import Servers
from .history import Attempt
from .http_client import run
from .model_log import batches
from .processes import frozen
from .refusals import not_told_to_come_back
from .scrape import until_computing, until_waiting
from .server import Server
from .traffic import JSON, Client

POISON = 666.0
SOURCE = "fake:?fixed=4ms&max=32&fail_value=666"
SLOWER = "fake:?fixed=20ms&max=32&fail_value=666"
"""Too slow for a second batch in flight."""
FLAGS = ("--max-queue", "10000")


def blamed(server: Server) -> Counter[str]:
    """The ids of the requests that the log names as those at which the model raised."""
    raised = [record for record in server.records() if record.get("event.name") == "model.raised"]
    return Counter(record["request_id"] for record in raised if "request_id" in record)


async def poison_spoils_only_itself(
    server: Server, log: Path, num_requests: int, num_clients: int = 40, seed: int = 13
) -> None:
    """P13: one request in a hundred makes the model raise, single or in a list, in batches that
    it shares: it gets a 500, everybody else his own answer, and the log names the guilty ones."""
    await server.until_ready()
    patience = 10.0 if server.haste == 1.0 else 1.0
    clients = [Client(server.port, f"c{n}", patience) for n in range(num_clients)]
    draw = random.Random(seed)
    guilty = set(draw.sample(range(num_requests), num_requests // 100))
    poisoned: set[str] = set()
    numbers = iter(range(num_requests))

    async def call(client: Client) -> None:
        for number in numbers:
            rows = draw.choice([None, None, 1, 2, 5])
            values = (*(1.0,) * ((rows or 1) - 1), POISON) if number in guilty else None
            attempt = await client.predict(rows, values=values)
            if values is not None:
                poisoned.add(attempt.request_id)
            if attempt.status is None:
                return

    await asyncio.gather(*(call(client) for client in clients))
    history = [attempt for client in clients for attempt in client.history]
    spoilt = [a for a in history if a.request_id not in poisoned and a.status != 200]
    assert not spoilt, f"{len(spoilt)} innocent requests were told {_statuses(spoilt)}"
    wrong = [a for a in history if a.request_id in poisoned and a.status != 500]
    assert not wrong, f"poison was told {_statuses(wrong)}"
    for client in clients:
        assert client.judge().clean, str(client.judge())
    assert (await clients[0].predict()).status == 200, "the next request was not served"
    failed = [batch for batch in batches(log) if batch.outcome == "fail"]
    shared = [batch for batch in failed if len(batch.values) > 5]
    assert len(shared) > len(guilty) / 2, "hardly any poison shared its batch"
    await server.until(lambda: blamed(server), "somebody is blamed", 3.0)
    assert set(blamed(server)) == poisoned, f"the log blames {set(blamed(server)) - poisoned}"


def _statuses(attempts: list[Attempt]) -> str:
    return str(dict(Counter(attempt.status or attempt.trouble for attempt in attempts)))


@pytest.mark.parametrize("num_requests", [1000, pytest.param(10_000, marks=pytest.mark.soak)])
def test_poison_spoils_only_itself(servers: Servers, num_requests: int, tmp_path: Path) -> None:
    log = tmp_path / "model.log"
    server = servers.launch(None, f"{SOURCE}&log={log}", *FLAGS)
    run(poison_spoils_only_itself(server, log, num_requests))


def test_the_flawless_server_isolates_poison(servers: Servers, tmp_path: Path) -> None:
    log = tmp_path / "model.log"
    server = servers.launch("", f"{SOURCE}&log={log}", *FLAGS)
    run(poison_spoils_only_itself(server, log, 500))


@pytest.mark.parametrize(
    ("flaw", "complaint"),
    [
        ("poisons-batch", "innocent requests were told"),
        ("dies-of-poison", "innocent requests were told .*no answer"),
        ("blames-another", "the log blames"),
        ("blames-nobody", "not within .* somebody is blamed"),
    ],
)
def test_spreading_poison_is_caught(
    servers: Servers, flaw: str, complaint: str, tmp_path: Path
) -> None:
    log = tmp_path / "model.log"
    server = servers.launch(flaw, f"{SOURCE}&log={log}", *FLAGS)
    with pytest.raises(AssertionError, match=complaint):
        run(poison_spoils_only_itself(server, log, 300))


async def a_crowd_of_guilty_is_told_apart(server: Server, log: Path) -> None:
    """One batch, half of it guilty, a list among them; another list goes over two batches. Each
    innocent row is computed once with success, nothing of a guilty request is."""
    await server.until_ready()
    client = Client(server.port)
    with frozen(server.worker()):
        blocker = await client.begin(fresh=True)
        await until_computing(server)
        held = []
        for number in range(12):
            values = (POISON,) if number % 2 else None
            held.append(await client.begin(values=values, fresh=True))
        held.append(await client.begin(3, values=(1.0, POISON, 2.0), fresh=True))
        held.append(await client.begin(40, fresh=True))
        held.append(await client.begin(40, values=(*(3.0,) * 39, POISON), fresh=True))
        await until_waiting(server, 95)
    attempts = [await client.finish(one) for one in (blocker, *held)]
    expected = [200, *(500 if POISON in one.attempt.values else 200 for one in held)]
    statuses = [attempt.status for attempt in attempts]
    assert statuses == expected, f"told {statuses}, not {expected}"
    assert client.judge().clean
    assert (await client.predict()).status == 200
    done = Counter(v for batch in batches(log) if batch.outcome == "ok" for v in batch.values)
    assert not done[POISON]
    innocent = [value for a in attempts if a.status == 200 for value in a.values]
    repeated = [value for value in innocent if done[value] != 1]
    assert not repeated, f"{len(repeated)} innocent rows were not computed exactly once"
    for attempt in attempts:
        if attempt.status == 500:
            not_told_to_come_back(attempt)
            assert b"666" not in attempt.body, "an error repeats the caller's data"


@pytest.mark.parametrize("flaw", [None, ""], ids=["tailproof", "flawless"])
def test_a_crowd_of_guilty_is_told_apart(
    servers: Servers, flaw: str | None, tmp_path: Path
) -> None:
    log = tmp_path / "model.log"
    server = servers.launch(flaw, f"{SLOWER}&log={log}", *FLAGS)
    run(a_crowd_of_guilty_is_told_apart(server, log))


async def many_guilty_are_told_apart(server: Server) -> None:
    """A full large batch, every twentieth guilty: only those fail, and only those are blamed."""
    await server.until_ready()
    client = Client(server.port)
    with frozen(server.worker()):
        held = [await client.begin(fresh=True)]
        await until_computing(server)
        for number in range(240):
            values = (POISON,) if number % 20 == 7 else None
            held.append(await client.begin(values=values, fresh=True))
        await until_waiting(server, 240)
    attempts = [await client.finish(one) for one in held]
    guilty = {a.request_id for a in attempts if a.values == (POISON,)}
    failed = {a.request_id for a in attempts if a.status == 500}
    assert failed == guilty, f"{len(failed)} requests failed, {len(guilty)} are guilty"
    await server.until(lambda: len(blamed(server)) >= len(guilty), "all are blamed", 3.0)
    assert set(blamed(server)) == guilty, f"the log blames {set(blamed(server)) - guilty}"
    assert client.judge().clean


GIVES_UP = pytest.mark.xfail(strict=True, reason="a batch with many guilty requests is given up")


@pytest.mark.parametrize(
    "flaw", [pytest.param(None, marks=GIVES_UP), ""], ids=["tailproof", "flawless"]
)
def test_many_guilty_are_told_apart(servers: Servers, flaw: str | None) -> None:
    source = "fake:?fixed=10ms&max=256&fail_value=666"
    run(many_guilty_are_told_apart(servers.launch(flaw, source, *FLAGS)))


async def what_no_model_takes_never_meets_one(server: Server) -> None:
    """Unreadable requests, among others: a 4xx each, and no batch fails for them."""
    await server.until_ready()
    client = Client(server.port)

    async def bad(body: bytes) -> int | None:
        return (await client.request("POST", "/predict", body, JSON, fresh=True)).status

    bodies = [b"{", b'{"value": "x"}', b'[{"value": 1}, {}]', b'{"value": null}'] * 5
    good = asyncio.gather(*(client.predict(fresh=True) for _ in range(40)))
    statuses = await asyncio.gather(*map(bad, bodies))
    assert all(status is not None and 400 <= status < 500 for status in statuses), str(statuses)
    assert [attempt.status for attempt in await good] == [200] * 40
    assert client.judge().clean


@pytest.mark.parametrize("flaw", [None, ""], ids=["tailproof", "flawless"])
def test_what_no_model_takes_never_meets_one(servers: Servers, flaw: str | None) -> None:
    run(what_no_model_takes_never_meets_one(servers.launch(flaw, SOURCE)))


def test_answering_what_cannot_be_read_is_caught(servers: Servers) -> None:
    server = servers.launch("says-200", SOURCE)
    with pytest.raises(AssertionError, match="200"):
        run(what_no_model_takes_never_meets_one(server))
