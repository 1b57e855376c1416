"""P15: the limits on a batch and on a request count rows, whoever sent them."""

import asyncio
import random
from pathlib import Path

import pytest

from .conftest import Servers
from .http_client import run
from .model_log import batches, executions
from .processes import frozen
from .refusals import not_told_to_come_back
from .scrape import until_computing, until_inflight
from .server import Server
from .traffic import Client

MAX_BATCH = 32
MAX_ROWS = 4096
SOURCE = "fake:?fixed=2ms&per_row=0.02ms"
"""A model that would take any batch."""
FLAGS = ("--max-batch", str(MAX_BATCH), "--max-queue", "100000")


async def batches_count_rows(
    server: Server, log: Path, num_requests: int, num_clients: int = 24, seed: int = 15
) -> None:
    """P15: requests of 1 to 64 rows: the model never sees more rows than it may, larger requests
    are split, each row is computed once, and the callers cannot tell."""
    await server.until_ready()
    clients = [Client(server.port, f"c{n}", 10.0 * server.haste) for n in range(num_clients)]
    draw = random.Random(seed)
    sizes = iter([draw.randint(1, 64) for _ in range(num_requests)])

    async def call(client: Client) -> None:
        for size in sizes:
            await client.predict(size)

    await asyncio.gather(*(call(client) for client in clients))
    for client in clients:
        assert client.judge().clean, str(client.judge())
        assert set(client.judge().counts) <= {"ok"}, str(client.judge())
        reported = [int(attempt.headers["x-batch-size"]) for attempt in client.history]
        assert max(reported, default=0) <= MAX_BATCH, f"an answer out of {max(reported)} rows"
    _no_batch_is_too_large(log)
    computed = executions(log)
    values = [value for client in clients for a in client.history for value in a.values]
    assert all(computed[value] == 1 for value in values), "a row was not computed exactly once"
    full = sum(len(batch.values) == MAX_BATCH for batch in batches(log))
    assert full > num_requests / 4, f"only {full} full batches: this run proves little"


def _no_batch_is_too_large(log: Path) -> None:
    largest = max(len(batch.values) for batch in batches(log))
    assert largest <= MAX_BATCH, f"the model saw {largest} rows at once"


@pytest.mark.parametrize("num_requests", [400, pytest.param(10_000, marks=pytest.mark.soak)])
def test_batches_count_rows(servers: Servers, num_requests: int, tmp_path: Path) -> None:
    log = tmp_path / "model.log"
    server = servers.launch(None, f"{SOURCE}&log={log}", *FLAGS)
    run(batches_count_rows(server, log, num_requests))


def test_the_flawless_server_counts_rows(servers: Servers, tmp_path: Path) -> None:
    log = tmp_path / "model.log"
    server = servers.launch("", f"{SOURCE}&log={log}", *FLAGS)
    run(batches_count_rows(server, log, 200))


async def large_requests_are_split(server: Server, log: Path) -> None:
    """Around every limit: one row less, exactly, one more, several times as much."""
    await server.until_ready()
    client = Client(server.port)
    sizes = [1, 31, 32, 33, 63, 64, 65, 1000, MAX_ROWS - 1, MAX_ROWS]
    with frozen(server.worker()):
        held = [await client.begin(fresh=True)]
        await until_computing(server)
        held += [await client.begin(size, fresh=True) for size in sizes]
        await until_inflight(server, 1 + len(sizes))
    for one in held:
        assert (await client.finish(one)).status == 200
    assert client.judge().clean, str(client.judge())
    _no_batch_is_too_large(log)
    too_large = await client.predict(MAX_ROWS + 1)
    assert too_large.status == 413, f"{MAX_ROWS + 1} rows were told {too_large.status}"
    assert str(MAX_ROWS).encode() in too_large.body, "the limit is not named"
    not_told_to_come_back(too_large)
    assert (await client.predict()).status == 200
    computed = executions(log)
    assert not any(computed[value] for value in too_large.values), "refused and computed"


@pytest.mark.parametrize("flaw", [None, ""], ids=["tailproof", "flawless"])
def test_large_requests_are_split(servers: Servers, flaw: str | None, tmp_path: Path) -> None:
    log = tmp_path / "model.log"
    run(large_requests_are_split(servers.launch(flaw, f"{SOURCE}&log={log}", *FLAGS), log))


@pytest.mark.parametrize(
    ("flaw", "complaint"),
    [
        ("counts-requests", "the model saw .* rows at once"),
        ("takes-any-size", "4097 rows were told 200"),
    ],
)
def test_counting_anything_but_rows_is_caught(
    servers: Servers, flaw: str, complaint: str, tmp_path: Path
) -> None:
    log = tmp_path / "model.log"
    server = servers.launch(flaw, f"{SOURCE}&log={log}", *FLAGS)
    with pytest.raises(AssertionError, match=complaint):
        run(large_requests_are_split(server, log))


def test_a_large_batch_among_small_ones_is_caught(servers: Servers, tmp_path: Path) -> None:
    log = tmp_path / "model.log"
    server = servers.launch("counts-requests", f"{SOURCE}&log={log}", *FLAGS)
    with pytest.raises(AssertionError, match="rows"):
        run(batches_count_rows(server, log, 200))
