"""P5: a killed worker costs only what it held; nobody hangs, nothing is left behind."""

import asyncio
import random
import time
from dataclasses import dataclass, field

import pytest

from .conftest import Servers
from .history import Attempt
from .http_client import ask, run
from .processes import frozen, kill
from .scrape import scrape, until_computing, until_inflight, until_waiting
from .server import Server
from .traffic import Client, open_loop, poisson

STEADY = "fake:?fixed=60ms&per_row=1ms&max=16&load=500ms"
LOAD = 0.5
RATE = 50.0

RESTART = 2.0
"""Seconds within which a new worker must be up, over the time that loading takes."""
TOLD = 1.0
"""Seconds within which a casualty must be told."""
SLACK = 2
"""Two cores are shared by everything under test."""


@dataclass
class Killer:
    """Kills the worker at random moments and watches what the server makes of it."""

    server: Server
    kills: int
    every: float
    """Mean seconds of service between two kills."""
    seed: int
    times: list[float] = field(default_factory=list)

    async def run(self) -> None:
        """Kill, see it go unready, come back no sooner than it can have loaded, leave no zombie."""
        draw = random.Random(self.seed)
        server = self.server
        for _ in range(self.kills):
            await asyncio.sleep(self.every * draw.uniform(0.5, 1.5))
            pid = server.worker()
            kill(pid)
            killed = time.monotonic()
            self.times.append(killed)
            await server.until(self._unready, "unready after its only worker was killed", 2.0)
            await server.until_ready()
            took = time.monotonic() - killed
            assert took >= LOAD, f"ready {took:.3f} s after the kill; loading takes {LOAD} s"
            bound = SLACK * (RESTART + LOAD)
            assert took < bound, f"ready only {took:.1f} s after the kill"
            assert server.worker() != pid
            await server.until(lambda: not server.zombies(), "no zombie is left", 5.0)
        await asyncio.sleep(self.every * draw.uniform(0.5, 1.5))

    async def _unready(self) -> bool:
        return (await ask(self.server.port, "GET", "/health")).status == 503


def _told_after(attempt: Attempt, kills: list[float]) -> float:
    """Seconds from when the caller could have been told to when he was."""
    assert attempt.sent is not None
    assert attempt.answered is not None
    answered = attempt.answered
    before = [at for at in kills if at <= answered]
    return answered - max([attempt.sent, *before[-1:]])


async def a_killed_worker_costs_only_its_own(
    server: Server, kills: int = 3, every: float = 0.6, seed: int = 5
) -> None:
    """P5: steady traffic, a worker killed at random moments: every caller is answered or told 503
    within a second, a new worker comes up, the metrics say how often."""
    await server.until_ready()
    client = Client(server.port, patience=6.0 * server.haste)
    killer = Killer(server, kills, every, seed)
    killing = asyncio.create_task(killer.run())
    await open_loop(client.predict, poisson(RATE, seed), until=killing)
    await killing
    verdict = client.judge()
    assert verdict.clean, str(verdict)
    assert set(verdict.counts) <= {"ok", "failed"}, str(verdict)
    told = [attempt for attempt in client.history if attempt.status != 200]
    assert told, "no kill hit a request: this run proves nothing"
    for attempt in told:
        assert attempt.status == 503, f"a casualty was told {attempt.status}"
        assert attempt.headers.get("retry-after", "").isdigit(), "a 503 without Retry-After"
        late = _told_after(attempt, killer.times)
        assert late < TOLD * SLACK, f"a casualty was told {late:.2f} s after the kill"
    reading = await scrape(server.port)
    restarts = reading.value("tailproof_worker_restarts_total", model=server.name)
    assert restarts == kills, f"{kills} kills, {restarts:g} restarts counted"
    assert await server.until(lambda: len(server.workers()) == 1, "one worker")


@pytest.mark.parametrize("kills", [3, pytest.param(18, marks=pytest.mark.soak)])
def test_a_killed_worker_costs_only_its_own(servers: Servers, kills: int) -> None:
    every = 0.6 if kills == 3 else 10.0
    server = servers.launch(None, STEADY)
    run(a_killed_worker_costs_only_its_own(server, kills, every))


def test_callers_left_hanging_are_caught(servers: Servers) -> None:
    server = servers.launch("forgets-casualties", STEADY)
    with pytest.raises(AssertionError, match="lost"):
        run(a_killed_worker_costs_only_its_own(server, kills=1, every=0.5))


async def a_casualty_is_told(server: Server) -> None:
    """The sharp form of the same: this request is in the worker when it dies."""
    await server.until_ready()
    client = Client(server.port, patience=(TOLD * SLACK + 1) * server.haste)
    pid = server.worker()
    with frozen(pid):
        held = await client.begin()
        await until_computing(server)
        kill(pid)
        killed = time.monotonic()
    attempt = await client.finish(held)
    assert attempt.status is not None, f"a casualty was told nothing: {attempt.trouble}"
    assert attempt.status == 503, f"a casualty was told {attempt.status}"
    assert attempt.headers.get("retry-after", "").isdigit(), "a 503 without Retry-After"
    late = _told_after(attempt, [killed])
    assert late < TOLD * SLACK, f"a casualty was told {late:.2f} s after the kill"
    await server.until(lambda: server.workers() not in ([], [pid]), "a new worker")
    await server.until(lambda: not server.zombies(), "no zombie is left", 5.0)
    await server.until_ready()
    assert (await client.predict()).status == 200
    assert client.judge().clean


@pytest.mark.parametrize("flaw", [None, ""], ids=["tailproof", "flawless"])
def test_a_casualty_is_told(servers: Servers, flaw: str | None) -> None:
    run(a_casualty_is_told(servers.launch(flaw, STEADY)))


@pytest.mark.parametrize(
    ("flaw", "complaint"),
    [
        ("forgets-casualties", "told nothing"),
        ("late-casualties", "told nothing"),
        ("no-retry-after", "without Retry-After"),
        ("leaves-zombies", "no zombie is left"),
    ],
)
def test_a_forgotten_casualty_is_caught(servers: Servers, flaw: str, complaint: str) -> None:
    server = servers.launch(flaw, STEADY)
    with pytest.raises(AssertionError, match=complaint):
        run(a_casualty_is_told(server))


HANGING = "fake:?fixed=30ms&hang_value=668&max=16"


async def workers_end_with_the_front(server: Server, value: float) -> None:
    """The front is killed outright: its worker ends by itself, idle or deep in the model."""
    await server.until_ready()
    client = Client(server.port, patience=5.0 * server.haste)
    held = await client.begin(values=(value,))
    await until_computing(server)
    assert server.workers()
    server.kill()
    await client.finish(held)
    await server.until_orphans_end(within=3.0)


@pytest.mark.parametrize("value", [1.0, 668.0], ids=["working", "hung"])
def test_workers_end_with_the_front(servers: Servers, value: float) -> None:
    run(workers_end_with_the_front(servers.launch(None, HANGING), value))


def test_a_worker_that_outlives_the_front_is_caught(servers: Servers) -> None:
    server = servers.launch("orphans", HANGING)
    with pytest.raises(AssertionError, match="the worker processes end"):
        run(workers_end_with_the_front(server, 1.0))


def test_a_worker_that_exits_by_itself_is_a_casualty_too(servers: Servers) -> None:
    """The model calls exit: the caller is told 503 and when to come back; the next is served."""
    server = servers.launch(None, "fake:?fixed=5ms&exit_value=667&max=16")

    async def scenario() -> None:
        await server.until_ready()
        client = Client(server.port)
        casualty = await client.predict(values=(667.0,))
        assert casualty.status == 503
        assert casualty.headers.get("retry-after", "").isdigit()
        await server.until_ready()
        assert (await client.predict()).status == 200

    run(scenario())


async def a_failing_row_spoils_only_itself(server: Server) -> None:
    """One batch, one row at which the model raises: 500 for its caller, answers for the others."""
    await server.until_ready()
    client = Client(server.port)
    with frozen(server.worker()):
        blocker = await client.begin()
        await until_computing(server)
        held = [await client.begin(fresh=True) for _ in range(4)]
        held.insert(2, await client.begin(values=(666.0,), fresh=True))
        await until_waiting(server, 5)
    attempts = [await client.finish(one) for one in (blocker, *held)]
    statuses = [attempt.status for attempt in attempts]
    assert statuses == [200, 200, 200, 500, 200, 200], f"one bad row of a batch: {statuses}"
    assert client.judge().clean
    assert b"666" not in attempts[3].body, "an error repeats the caller's data"
    assert (await client.predict()).status == 200


FAILING = "fake:?fixed=100ms&fail_value=666&max=16"


@pytest.mark.parametrize(
    "flaw",
    [None, ""],
    ids=["tailproof", "flawless"],
)
def test_a_failing_row_spoils_only_itself(servers: Servers, flaw: str | None) -> None:
    run(a_failing_row_spoils_only_itself(servers.launch(flaw, FAILING)))


def test_spoiling_the_batch_is_caught(servers: Servers) -> None:
    server = servers.launch("poisons-batch", FAILING)
    with pytest.raises(AssertionError, match="one bad row of a batch"):
        run(a_failing_row_spoils_only_itself(server))


async def a_hung_worker_is_replaced(server: Server) -> None:
    """A model that never comes back costs its caller a 504, and the next one nothing."""
    await server.until_ready()
    client = Client(server.port)
    pid = server.worker()
    hung = await client.predict(values=(668.0,))
    assert hung.status == 504, f"a caller of a hung model: {hung.status}"
    await server.until(lambda: server.workers() not in ([], [pid]), "a successor")
    await server.until_ready()
    assert (await client.predict()).status == 200


def test_a_hung_worker_is_replaced(servers: Servers) -> None:
    source = "fake:?hang_value=668"
    run(a_hung_worker_is_replaced(servers.launch(None, source, "--request-timeout", "1s")))


def test_a_hung_worker_that_stays_is_caught(servers: Servers) -> None:
    server = servers.launch(None, "fake:?hang_value=668", "--request-timeout", "60s")

    async def scenario() -> None:
        await server.until_ready()
        client = Client(server.port)
        held = await client.begin(values=(668.0,), fresh=True)
        await until_inflight(server, 1)
        pid = server.worker()
        with pytest.raises(AssertionError, match="a successor"):
            await server.until(lambda: server.workers() not in ([], [pid]), "a successor", 2.0)
        await client.leave(held, reset=True)

    run(scenario())
