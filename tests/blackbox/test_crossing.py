"""P14: answers never cross, are never empty, never come twice."""

import asyncio
import random

import pytest

from .conftest import Servers
from .history import judge
from .http_client import run
from .server import Server
from .traffic import Client

SOURCE = "fake:?fixed=2ms&per_row=0.02ms&max=64"
FLAGS = ("--workers", "2", "--max-queue", "10000")


async def answers_never_cross(
    server: Server, num_requests: int, num_clients: int = 64, seed: int = 14
) -> None:
    """Many callers, each with rows that nobody else has, single or as lists of 1 to 8: each gets
    back exactly his own, in order."""
    await server.until_ready()
    clients = [Client(server.port, f"c{number}") for number in range(num_clients)]

    async def call(client: Client, number: int) -> None:
        draw = random.Random(seed * num_clients + number)
        for _ in range(num_requests // num_clients):
            await client.predict(draw.choice([None, 1, 2, 3, 4, 5, 6, 7, 8]))

    await asyncio.gather(*(call(client, number) for number, client in enumerate(clients)))
    for client in clients:
        await client.close()
    history = [attempt for client in clients for attempt in client.history]
    verdict = judge(history, [extra for client in clients for extra in client.unsolicited])
    assert verdict.clean, str(verdict)
    assert verdict.counts == {"ok": len(history)}, str(verdict)
    assert len(history) == num_requests // num_clients * num_clients


@pytest.mark.parametrize("num_requests", [20_000, pytest.param(100_000, marks=pytest.mark.soak)])
def test_answers_never_cross(servers: Servers, num_requests: int) -> None:
    run(answers_never_cross(servers.launch(None, SOURCE, *FLAGS), num_requests))


def test_the_flawless_server_crosses_none(servers: Servers) -> None:
    run(answers_never_cross(servers.launch("", SOURCE, *FLAGS), 2_000))


def test_crossing_answers_is_caught(servers: Servers) -> None:
    server = servers.launch("crosses", SOURCE, *FLAGS)
    with pytest.raises(AssertionError, match="crossed"):
        run(answers_never_cross(server, 2_000))


def test_a_list_longer_than_a_batch_is_split_and_answered_in_order(servers: Servers) -> None:
    """P15: never more rows in a batch than allowed, and the caller cannot tell."""
    server = servers.launch(None, "fake:?fixed=2ms&per_row=0.1ms&max=16", "--max-queue", "10000")

    async def scenario() -> None:
        await server.until_ready()
        client = Client(server.port)
        sizes = [15, 16, 17, 32, 33, 100, 1000]
        attempts = await asyncio.gather(*(client.predict(size, fresh=True) for size in sizes))
        assert client.judge().clean, str(client.judge())
        assert client.judge().counts == {"ok": len(sizes)}
        for attempt in attempts:
            assert int(attempt.headers["x-batch-size"]) <= 16

    run(scenario())
