"""What every answer carries: timing, request id, batch size, replica, the mark of a cold one."""

import asyncio
import re

import pytest

from .conftest import Servers
from .http_client import ask, run
from .processes import frozen, kill
from .scrape import until_computing, until_waiting
from .server import Server
from .traffic import JSON, Client

SOURCE = "fake:?fixed=50ms&max=16"
TIMING = re.compile(r"(\w+);dur=([0-9.]+)")


async def answers_carry_their_headers(server: Server) -> None:
    """`Server-Timing` with the four parts, the id, the batch's size, the replica."""
    await server.until_ready()
    client = Client(server.port)
    with frozen(server.worker()):
        blocker = await client.begin(fresh=True)
        await until_computing(server)
        held = [await client.begin(rows, fresh=True) for rows in (None, None, 3)]
        await until_waiting(server, 5)
    attempts = [await client.finish(one) for one in (blocker, *held)]
    for attempt, batch_size in zip(attempts, (1, 5, 5, 5), strict=True):
        headers = attempt.headers
        timing = {name: float(ms) for name, ms in TIMING.findall(headers.get("server-timing", ""))}
        assert set(timing) == {"queue", "batch", "infer", "total"}, f"Server-Timing: {timing}"
        assert timing["infer"] >= 50, f"the model takes 50 ms: {timing}"
        assert attempt.seconds is not None
        assert timing["total"] <= 1000 * attempt.seconds + 1, f"longer than it took: {timing}"
        parts = timing["queue"] + timing["batch"] + timing["infer"]
        assert parts <= timing["total"] + 1, f"the parts are more than the whole: {timing}"
        assert headers.get("x-request-id") == attempt.request_id
        assert headers.get("x-batch-size") == str(batch_size)
        assert headers.get("x-replica"), "no X-Replica"
    assert len({attempt.headers["x-replica"] for attempt in attempts}) == 1


@pytest.mark.parametrize("flaw", [None, ""], ids=["tailproof", "flawless"])
def test_answers_carry_their_headers(servers: Servers, flaw: str | None) -> None:
    run(answers_carry_their_headers(servers.launch(flaw, SOURCE)))


def test_bare_answers_are_caught(servers: Servers) -> None:
    server = servers.launch("bare", SOURCE)
    with pytest.raises(AssertionError, match="Server-Timing"):
        run(answers_carry_their_headers(server))


async def the_first_batch_is_cold(server: Server) -> None:
    """`X-Cold: 1` on all of a replica's first batch, and on nothing after it."""
    await server.until_ready()
    client = Client(server.port)
    for life in range(2):
        statuses = [(await client.predict()).headers.get("x-cold") for _ in range(5)]
        assert statuses == ["1", None, None, None, None], f"life {life}: X-Cold {statuses}"
        pid = server.worker()
        kill(pid)
        await server.until(lambda pid=pid: server.workers() not in ([], [pid]), "a new worker")
        await server.until_ready()


COLD = "fake:?fixed=5ms&load=300ms&max=16"


@pytest.mark.parametrize("flaw", [None, ""], ids=["tailproof", "flawless"])
def test_the_first_batch_is_cold(servers: Servers, flaw: str | None) -> None:
    run(the_first_batch_is_cold(servers.launch(flaw, COLD)))


def test_a_false_mark_of_cold_is_caught(servers: Servers) -> None:
    server = servers.launch("always-cold", COLD)
    with pytest.raises(AssertionError, match="X-Cold"):
        run(the_first_batch_is_cold(server))


def test_each_worker_is_cold_once(servers: Servers) -> None:
    server = servers.launch(None, "fake:?fixed=20ms&max=1", "--workers", "2")

    async def scenario() -> None:
        await server.until_ready()
        await server.until(lambda: len(server.workers()) == 2, "two workers")
        client = Client(server.port)
        attempts = await asyncio.gather(*(client.predict() for _ in range(40)))
        assert len({a.headers["x-replica"] for a in attempts}) == 1
        assert sum(a.headers.get("x-cold") == "1" for a in attempts) == 2

    run(scenario())


GOOD_IDS = ("a", "0", "A-1", "f" * 64, "01234567-89ab-cdef-0123-456789abcdef")
BAD_IDS = ("f" * 65, "a b", "a;b", "a%0d%0ab", "<script>", "é", "a,b", "'", "f" * 5000)


@pytest.fixture(scope="module")
def server(module_servers: Servers) -> Server:
    """One server for the ids."""
    started = module_servers.launch(None, "fake:?fixed=1ms")
    run(started.until_ready())
    return started


@pytest.mark.parametrize("request_id", GOOD_IDS)
def test_a_valid_request_id_is_kept(server: Server, request_id: str) -> None:
    headers = (*JSON, ("X-Request-Id", request_id))
    for body, status in ((b'{"value": 7}', 200), (b"{", 400)):
        answer = run(ask(server.port, "POST", "/predict", body, headers))
        assert (answer.status, answer.headers["x-request-id"]) == (status, request_id)


@pytest.mark.parametrize("request_id", BAD_IDS)
def test_an_invalid_request_id_is_replaced(server: Server, request_id: str) -> None:
    headers = (*JSON, ("X-Request-Id", request_id))
    for body, status in ((b'{"value": 7}', 200), (b"{", 400)):
        answer = run(ask(server.port, "POST", "/predict", body, headers))
        assert answer.status == status
        made = answer.headers["x-request-id"]
        assert re.fullmatch(r"[A-Za-z0-9_.:-]{1,64}", made)
        assert made != request_id


def test_every_request_gets_an_id_of_its_own(server: Server) -> None:
    answers = [run(ask(server.port, "POST", "/predict", b'{"value": 7}', JSON)) for _ in range(20)]
    assert len({answer.headers["x-request-id"] for answer in answers}) == 20


def test_the_id_of_the_answer_is_the_id_in_the_log(servers: Servers) -> None:
    server = servers.launch(None, "fake:?fixed=1ms")

    async def scenario() -> str:
        await server.until_ready()
        answer = await ask(server.port, "POST", "/predict", b'{"value": 7}', JSON)
        server.terminate()
        await server.until_exit()
        return answer.headers["x-request-id"]

    made = run(scenario())
    assert [r["request_id"] for r in server.access_records()].count(made) == 1
