"""P7: ready means ready, from the first moment and whatever becomes of the load."""

import time

import pytest

from .conftest import Servers
from .http_client import Answer, NoAnswer, ask, run
from .server import Server
from .traffic import JSON, Client, payload

LOAD = 2.0
LOADING = "fake:?fixed=5ms&load=2s"
REASON = "the-shard-is-missing"
FAILING = f"fake:?fixed=5ms&load=200ms&fail_load={REASON}"
READY_PATHS = ("/health", "/health/ready", "/health/startup")
EVERY = 0.01
"""Seconds between two polls."""


async def _try(server: Server, path: str) -> Answer | None:
    """The answer, or None while nobody listens."""
    try:
        return await ask(server.port, "GET", path)
    except NoAnswer:
        return None


class Poller:
    """Polls every page of readiness, from fork on."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.polls = 0
        self.last: dict[str, Answer] = {}

    async def all_ready(self) -> bool:
        """Poll each page once; a page that says 200 must not say it too early."""
        for path in READY_PATHS:
            answer = await _try(self.server, path)
            if answer is None:
                return False
            self.polls += 1
            self.last[path] = answer
            assert answer.status in (200, 503), f"{path} answered {answer.status}"
        return all(answer.status == 200 for answer in self.last.values())

    async def some_ready(self) -> bool:
        """At least one page says 200."""
        await self.all_ready()
        return any(answer.status == 200 for answer in self.last.values())


async def ready_means_ready(server: Server, load: float = LOAD) -> None:
    """Not one 200 before the model is loaded and warm; predictions are told to come back until
    then; the first 200 is true."""
    poller = Poller(server)
    await server.until(lambda: _try(server, "/health/live"), "the port answers", every=EVERY)
    early = await ask(server.port, "POST", "/predict", payload((7.0,), listed=False), JSON)
    assert early.status == 503, f"a prediction before readiness was told {early.status}"
    assert early.headers.get("retry-after", "").isdigit(), "a 503 without Retry-After"
    assert early.json()["detail"], "a 503 without a reason"
    await server.until(poller.some_ready, "some page says ready", every=EVERY)
    loaded = time.monotonic() - server.forked
    assert loaded >= load, f"said ready {loaded:.3f} s after fork; loading takes {load} s"
    first = await ask(server.port, "POST", "/predict", payload((7.0,), listed=False), JSON)
    assert first.status == 200, f"ready, and the first prediction was told {first.status}"
    await server.until(poller.all_ready, "every page says ready")
    assert poller.polls >= 50, "too few polls to prove anything"


@pytest.mark.parametrize("flaw", [None, ""], ids=["tailproof", "flawless"])
def test_ready_means_ready(servers: Servers, flaw: str | None) -> None:
    run(ready_means_ready(servers.launch(flaw, LOADING)))


def test_saying_ready_too_soon_is_caught(servers: Servers) -> None:
    server = servers.launch("ready-too-soon", LOADING)
    with pytest.raises(AssertionError, match="said ready"):
        run(ready_means_ready(server))


@pytest.mark.soak
def test_ready_means_ready_over_ten_thousand_polls(servers: Servers) -> None:
    async def scenario() -> None:
        polls = 0
        while polls < 10_000:
            server = servers.launch(None, "fake:?fixed=5ms&load=5s")
            poller = Poller(server)
            await server.until(poller.some_ready, "some page says ready", every=EVERY)
            assert time.monotonic() - server.forked >= 5.0
            polls += poller.polls
            server.stop()

    run(scenario())


async def failed_load_is_never_ready(server: Server, polls: int = 300) -> None:
    """A model that cannot be loaded: alive, never ready, and the health page says why."""
    poller = Poller(server)

    async def enough() -> bool:
        assert not await poller.some_ready(), "said ready although loading failed"
        return poller.polls >= polls

    await server.until(enough, f"{polls} polls", every=EVERY)

    async def explained() -> bool:
        answer = await ask(server.port, "GET", "/health")
        assert answer.status == 503
        return REASON.encode() in answer.body

    await server.until(explained, "the health page names the reason", 5.0)
    assert (await ask(server.port, "GET", "/health/live")).status == 200
    assert (await Client(server.port).predict()).status == 503
    assert server.exit_code is None, "a failed load ended the server"


@pytest.mark.parametrize("flaw", [None, ""], ids=["tailproof", "flawless"])
def test_failed_load_is_never_ready(servers: Servers, flaw: str | None) -> None:
    run(failed_load_is_never_ready(servers.launch(flaw, FAILING)))


def test_saying_ready_after_a_failed_load_is_caught(servers: Servers) -> None:
    server = servers.launch("ready-though-failed", FAILING)
    with pytest.raises(AssertionError, match="said ready"):
        run(failed_load_is_never_ready(server))


def test_before_readiness_the_page_says_what_is_missing(servers: Servers) -> None:
    server = servers.launch(None, LOADING)

    async def scenario() -> None:
        await server.until(lambda: _try(server, "/health"), "the port answers", every=EVERY)
        answer = await ask(server.port, "GET", "/health")
        assert (answer.status, answer.json()["detail"]) == (503, "model not loaded")
        await server.until_ready()
        assert (await ask(server.port, "GET", "/health")).json()["status"] == "ok"

    run(scenario())


def test_a_server_without_models_is_not_ready(servers: Servers) -> None:
    """No model at all: either refused as wrong usage, or served and never ready."""
    server = servers.launch(None, "")

    async def scenario() -> None:
        server.may_end = True

        async def decided() -> bool:
            if server.exit_code is not None:
                return True
            answer = await _try(server, "/health")
            return answer is not None

        await server.until(decided, "exits, or answers")
        if server.exit_code is not None:
            assert server.exit_code == 2
        else:
            assert (await ask(server.port, "GET", "/health")).status == 503

    run(scenario())


def test_sigterm_while_loading_ends_it(servers: Servers) -> None:
    """P18: nobody waits for a load that nobody needs any more; no process is left behind."""
    server = servers.launch(None, "fake:?load=60s", "--drain-delay", "0s")

    async def scenario() -> None:
        await server.until(lambda: _try(server, "/health/live"), "the port answers")
        await server.until(server.workers, "a worker was started")
        server.terminate()
        assert await server.until_exit(within=10.0) == 0
        await server.until_orphans_end()

    run(scenario())
