"""A stdout that nobody reads stalls nobody, and does not hold the end."""

import asyncio

import pytest

from .conftest import Servers
from .http_client import ask, run
from .server import Server
from .traffic import Client

SOURCE = "fake:?fixed=1ms&max=64"
PIPE = 64 * 2**10
"""Bytes that Linux keeps in a pipe before a writer must wait."""
SMALLEST_RECORD = 100
"""No access record is shorter than this many bytes."""


async def blocked_stdout_stalls_nobody(server: Server) -> None:
    """Three pipes' worth of access records, and not one read: every request is answered, the
    probes too, and SIGTERM ends the process."""
    await server.until_ready()
    client = Client(server.port, patience=10.0 * server.haste)
    num_requests = 3 * PIPE // SMALLEST_RECORD
    share = num_requests // 16

    async def call() -> None:
        for _ in range(share):
            attempt = await client.predict()
            assert attempt.status == 200, f"stalled: {attempt.status or attempt.trouble}"

    await asyncio.gather(*(call() for _ in range(16)))
    assert client.judge().clean
    assert client.judge().counts == {"ok": 16 * share}
    assert (await ask(server.port, "GET", "/health")).status == 200
    server.terminate()
    await server.until_exit(within=15.0)


@pytest.mark.parametrize("flaw", [None, ""], ids=["tailproof", "flawless"])
def test_blocked_stdout_stalls_nobody(servers: Servers, flaw: str | None) -> None:
    run(blocked_stdout_stalls_nobody(servers.launch(flaw, SOURCE, unread_stdout=True)))


def test_a_log_that_blocks_is_caught(servers: Servers) -> None:
    server = servers.launch("blocking-log", SOURCE, unread_stdout=True)
    with pytest.raises(AssertionError, match="stalled"):
        run(blocked_stdout_stalls_nobody(server))
