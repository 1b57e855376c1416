"""P12: work whose caller has gone is not done, and leaves nothing behind."""

import asyncio
import json
import random
from pathlib import Path

import pytest

from .conftest import Servers
from .http_client import Connection, encode, run
from .model_log import executions
from .processes import frozen
from .scrape import scrape, until_computing, until_gauge, until_inflight, until_waiting
from .server import Server
from .traffic import JSON, Client, payload

FLAGS = ("--max-queue", "10000", "--max-connections", "4096")
SLACK = 5
"""The gauge must fall within a second; two cores are shared by everything under test."""


def source(log: Path) -> str:
    """A model that says what it computed."""
    return f"fake:?fixed=20ms&max=16&log={log}"


async def queued_cancels_are_not_computed(server: Server, log: Path, count: int = 200) -> None:
    """Callers leave while they are queued behind a batch: none of their rows is computed, the
    gauges forget them, the accounts name them, and the next caller is served."""
    await server.until_ready()
    client = Client(server.port)
    with frozen(server.worker()):
        blocker = await client.begin(fresh=True)
        await until_computing(server)
        held = await asyncio.gather(*(client.begin(fresh=True) for _ in range(count)))
        await until_inflight(server, count + 1)
        await asyncio.gather(*(client.leave(one, reset=bool(n % 2)) for n, one in enumerate(held)))
        await until_inflight(server, 1, within=SLACK)
        await until_waiting(server, 0, within=SLACK)
    assert (await client.finish(blocker)).status == 200
    after = await client.predict()
    assert after.status == 200, "the next request was not served"
    reading = await until_inflight(server, 0)
    assert client.judge().counts == {"cancelled": count, "ok": 2}
    assert client.judge().clean
    computed = executions(log)
    wasted = [value for one in held for value in one.attempt.values if computed[value]]
    assert not wasted, f"{len(wasted)} rows were computed for callers who had left"
    assert computed[blocker.attempt.values[0]] == computed[after.values[0]] == 1
    outcomes = reading.by("tailproof_requests_total", "code", "outcome", route="/predict")
    assert outcomes == {("499", "cancelled"): count, ("200", "ok"): 2}
    assert reading.value("tailproof_cancelled_total", model=server.name) == count


@pytest.mark.parametrize("flaw", [None, ""], ids=["tailproof", "flawless"])
def test_queued_cancels_are_not_computed(
    servers: Servers, flaw: str | None, tmp_path: Path
) -> None:
    log = tmp_path / "model.log"
    run(queued_cancels_are_not_computed(servers.launch(flaw, source(log), *FLAGS), log))


@pytest.mark.soak
def test_a_thousand_queued_cancels_are_not_computed(servers: Servers, tmp_path: Path) -> None:
    log = tmp_path / "model.log"
    run(queued_cancels_are_not_computed(servers.launch(None, source(log), *FLAGS), log, 1000))


@pytest.mark.parametrize(
    ("flaw", "complaint"),
    [
        ("computes-cancelled", "tailproof_queue_rows stayed at"),
        ("computes-silently", "were computed for callers who had left"),
        ("leaks-inflight", "tailproof_inflight_requests stayed at"),
    ],
)
def test_computing_for_nobody_is_caught(
    servers: Servers, flaw: str, complaint: str, tmp_path: Path
) -> None:
    log = tmp_path / "model.log"
    server = servers.launch(flaw, source(log), *FLAGS)
    with pytest.raises(AssertionError, match=complaint):
        run(queued_cancels_are_not_computed(server, log, count=20))


async def leaving_anywhere_leaves_nothing(server: Server, count: int = 120, seed: int = 12) -> None:
    """Callers leave at random points: connected, in the header, in the body, queued, in a batch.
    Everything returns to zero, received = the sum of the outcomes, the next caller is served."""
    await server.until_ready()
    draw = random.Random(seed)
    whole = encode("POST", "/predict", payload((1.0, 2.0, 3.0), listed=True), JSON)

    async def one(size: int, wait: float, reset: bool) -> None:
        connection = await Connection.open(server.port)
        if size:
            connection.send(whole[:size])
        await asyncio.sleep(wait)
        await (connection.reset() if reset else connection.close())

    await asyncio.gather(
        *(
            one(
                draw.choice([0, draw.randrange(len(whole)), len(whole), len(whole)]),
                draw.uniform(0.0, 0.3),
                draw.random() < 0.5,
            )
            for _ in range(count)
        )
    )
    await until_inflight(server, 0, within=SLACK)
    await until_waiting(server, 0, within=SLACK)
    assert (await Client(server.port).predict()).status == 200

    async def balanced() -> bool:
        reading = await scrape(server.port)
        received, ended = (
            reading.value(f"tailproof_requests_{name}", route="/predict")
            for name in ("received_total", "total")
        )
        return received == ended

    await server.until(balanced, "received = the sum of the outcomes", SLACK)


async def waste_is_counted(server: Server, log: Path) -> None:
    """Callers leave while their batch is computed, others while they wait behind it: wasted are
    the rows that the model computed for those who had left, and no others."""
    await server.until_ready()
    client = Client(server.port)
    with frozen(server.worker()):
        leaving = [await client.begin(20, fresh=True)]  # of which 16 make the batch
        await until_inflight(server, 1)
        await until_waiting(server, 4)
        leaving += [await client.begin(rows, fresh=True) for rows in (None, 2, 30)]
        await until_waiting(server, 37)
        staying = await client.begin(3, fresh=True)
        await until_waiting(server, 40)
        for number, one in enumerate(leaving):
            await client.leave(one, reset=bool(number % 2))
        await until_inflight(server, 1)
        await until_waiting(server, 3)
    assert (await client.finish(staying)).status == 200
    assert (await client.predict()).status == 200
    computed = executions(log)
    wasted = sum(computed[value] for one in leaving for value in one.attempt.values)
    assert wasted == 16, f"{wasted} rows were computed for callers who had left"
    name, within = "tailproof_wasted_rows_total", 3.0
    await until_gauge(server, name, wasted, within, reason="cancelled")
    stages = (await scrape(server.port)).by("tailproof_cancelled_total", "stage")
    assert stages == {("execute",): 1, ("queue",): 3}, f"left by stage: {stages}"
    verdict = client.judge()
    assert verdict.clean, str(verdict)
    assert verdict.counts == {"cancelled": 4, "ok": 2}


WASTING = "fake:?fixed=20ms&max=16"


@pytest.mark.parametrize("flaw", [None, ""], ids=["tailproof", "flawless"])
def test_waste_is_counted(servers: Servers, flaw: str | None, tmp_path: Path) -> None:
    log = tmp_path / "model.log"
    run(waste_is_counted(servers.launch(flaw, f"{WASTING}&log={log}", *FLAGS), log))


@pytest.mark.parametrize(
    ("flaw", "complaint"),
    [
        ("forgets-waste", "tailproof_wasted_rows_total stayed at None"),
        ("overcounts-waste", "tailproof_wasted_rows_total stayed at 20"),
        ("computes-silently", "53 rows were computed for callers who had left"),
    ],
)
def test_a_false_account_of_waste_is_caught(
    servers: Servers, flaw: str, complaint: str, tmp_path: Path
) -> None:
    log = tmp_path / "model.log"
    server = servers.launch(flaw, f"{WASTING}&log={log}", *FLAGS)
    with pytest.raises(AssertionError, match=complaint):
        run(waste_is_counted(server, log))


async def the_waste_of_a_crowd_is_counted(server: Server, log: Path, count: int) -> None:
    """Callers of 1 to 20 rows come steadily and half of them leave at a random moment: wasted are
    as many rows as the model computed of their requests."""
    await server.until_ready()
    client = Client(server.port)
    draw = random.Random(12)

    async def one() -> None:
        held = await client.begin(draw.randint(1, 20), fresh=True)
        if draw.random() < 0.5:
            await client.finish(held)
            return
        await asyncio.sleep(draw.uniform(0.0, 0.1))
        await client.leave(held, reset=draw.random() < 0.5)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(count):
            tasks.create_task(one())
            await asyncio.sleep(0.015)
    reading = await until_inflight(server, 0)
    assert (await client.predict()).status == 200
    left = reading.value("tailproof_cancelled_total", model=server.name)
    assert left > count / 8, f"only {left:g} left before their answer: this run proves little"
    # Who left when his answer was under way has got it, as far as the server can know.
    told = {record["request_id"]: record["outcome"] for record in server.access_records()}
    computed = executions(log)
    wasted = sum(
        computed[value]
        for attempt in client.history
        if told.get(attempt.request_id) == "cancelled"
        for value in attempt.values
    )
    await until_gauge(server, "tailproof_wasted_rows_total", wasted, 3.0, reason="cancelled")


@pytest.mark.soak
def test_the_waste_of_a_crowd_is_counted(servers: Servers, tmp_path: Path) -> None:
    log = tmp_path / "model.log"
    server = servers.launch(None, f"{WASTING}&log={log}", *FLAGS)
    run(the_waste_of_a_crowd_is_counted(server, log, 2000))


@pytest.mark.soak
@pytest.mark.parametrize("flaw", ["", "overcounts-waste"])
def test_a_false_account_of_a_crowd_is_caught(servers: Servers, flaw: str, tmp_path: Path) -> None:
    """And a true one is not."""
    log = tmp_path / "model.log"
    server = servers.launch(flaw, f"{WASTING}&log={log}", *FLAGS)
    scenario = the_waste_of_a_crowd_is_counted(server, log, 60)
    if not flaw:
        run(scenario)
        return
    with pytest.raises(AssertionError, match="tailproof_wasted_rows_total stayed at"):
        run(scenario)


@pytest.mark.parametrize("flaw", [None, ""], ids=["tailproof", "flawless"])
def test_leaving_anywhere_leaves_nothing(servers: Servers, flaw: str | None) -> None:
    run(leaving_anywhere_leaves_nothing(servers.launch(flaw, "fake:?fixed=50ms&max=16", *FLAGS)))


def test_a_leak_by_leaving_is_caught(servers: Servers) -> None:
    server = servers.launch("leaks-inflight", "fake:?fixed=50ms&max=16", *FLAGS)
    with pytest.raises(AssertionError, match="tailproof_inflight_requests stayed at"):
        run(leaving_anywhere_leaves_nothing(server, count=40))


def test_the_log_of_the_model_is_what_it_computed(servers: Servers, tmp_path: Path) -> None:
    """The instrument itself: three predictions, each row exactly once in the model's log."""
    log = tmp_path / "model.log"
    server = servers.launch(None, source(log))

    async def scenario() -> None:
        await server.until_ready()
        client = Client(server.port)
        for rows in (None, 1, 5):
            assert (await client.predict(rows)).status == 200
        computed = executions(log)
        sent = [value for attempt in client.history for value in attempt.values]
        assert [computed[value] for value in sent] == [1] * 7
        for line in log.read_text().splitlines():
            batch = json.loads(line)
            assert batch["rows"] == len(batch["values"])
            assert batch["started"] <= batch["finished"]

    run(scenario())
