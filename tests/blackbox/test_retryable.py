"""P31: errors say whether to try again, in the answer and in the log, and they mean it."""

import asyncio
from dataclasses import dataclass, field

import pytest

from .conftest import Servers
from .history import Attempt
from .http_client import run
from .processes import frozen, kill
from .refusals import not_told_to_come_back, spread_out, told_to_come_back
from .scrape import until_computing, until_inflight, until_waiting
from .server import Server
from .traffic import JSON, Client

SOURCE = "fake:?fixed=40ms&max=4&fail_value=666&load=100ms"
ROOM = 20
FLAGS = ("--max-queue", str(ROOM), "--drain-timeout", "300ms")
WAIT = (("X-Request-Timeout-Ms", "150"),)
PLAIN = (("Content-Type", "text/plain"),)


@dataclass
class Case:
    """Requests that ended badly in one way, and what must have been said of them."""

    name: str
    status: int | None
    """None: the caller did not wait to be told."""
    retryable: bool
    attempts: list[Attempt] = field(default_factory=list)


class ErrorPaths:
    """Walks every way in which a prediction can end badly."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.client = Client(server.port, patience=3.0)
        self.cases: list[Case] = []

    def note(self, name: str, status: int | None, retryable: bool, *attempts: Attempt) -> None:
        """These requests ended in one way."""
        self.cases.append(Case(name, status, retryable, list(attempts)))

    async def walk(self) -> None:
        """All of them. Ends the server."""
        await self._not_ready()
        await self.server.until_ready()
        await self._callers_fault()
        await self._models_fault()
        await self._no_time_no_room()
        await self._lost()
        await self._stopping()

    async def _not_ready(self) -> None:
        live = self.server.until(self._answers, "the server answers", 20.0)
        await live
        early = await self.client.predict()
        self.note("not ready", 503, True, early)

    async def _answers(self) -> bool:
        return (await Client(self.server.port).request("GET", "/health/live")).status == 200

    async def _callers_fault(self) -> None:
        request = self.client.request
        self.note("broken JSON", 400, False, await request("POST", "/predict", b"{"))
        self.note("no deadline", 400, False, await self._terms("X-Request-Timeout-Ms", "soon"))
        self.note("no priority", 400, False, await self._terms("X-Priority", "urgent"))
        self.note("no page", 404, False, await request("GET", "/no/such/page"))
        self.note("wrong method", 405, False, await request("PUT", "/predict", b'{"value": 1}'))
        self.note("too many rows", 413, False, await self.client.predict(4097))
        self.note("text", 415, False, await request("POST", "/predict", b"1", PLAIN))
        self.note("wrong column", 422, False, await request("POST", "/predict", b'{"value": "x"}'))

    async def _terms(self, name: str, value: str) -> Attempt:
        headers = (*JSON, (name, value))
        return await self.client.request("POST", "/predict", b'{"value": 1}', headers)

    async def _models_fault(self) -> None:
        self.note("the model raises", 500, False, await self.client.predict(values=(666.0,)))

    async def _no_time_no_room(self) -> None:
        """One in the worker and one behind it run out of time; the queue fills up; one leaves."""
        client, server = self.client, self.server
        with frozen(server.worker()):
            computed = await client.begin(headers=WAIT, fresh=True)
            await until_computing(server)
            queued = await client.begin(headers=WAIT, fresh=True)
            executed, expired = await client.finish(computed), await client.finish(queued)
            self.note("late, computed", 504, False, executed)
            self.note("late, never computed", 504, True, expired)
            leaving = await client.begin(ROOM, fresh=True)
            await until_waiting(server, ROOM)
            self.note("no room", 429, True, await client.predict())
            await client.leave(leaving, reset=True)
            self.note("left", None, False, leaving.attempt)
            await until_waiting(server, 0)
        assert (await client.predict()).status == 200

    async def _lost(self) -> None:
        with frozen(pid := self.server.worker()):
            held = await self.client.begin(fresh=True)
            await until_inflight(self.server, 1)
            await until_waiting(self.server, 0)
            kill(pid)
        self.note("worker lost", 503, True, await self.client.finish(held))
        await self.server.until_ready()

    async def _stopping(self) -> None:
        """What is still in the worker when the time to drain is over."""
        with frozen(self.server.worker()):
            held = await self.client.begin(fresh=True)
            await until_inflight(self.server, 1)
            self.server.terminate()
            self.note("stopping", 503, True, await self.client.finish(held))
        await self.server.until_exit()


async def errors_say_whether_to_retry(server: Server) -> None:
    """P31: `retryable` only for 429, 503 and 504 before execution; those and no others carry
    `Retry-After`; the log says the same."""
    paths = ErrorPaths(server)
    await paths.walk()
    records = {record["request_id"]: record for record in server.access_records()}
    for case in paths.cases:
        for attempt in case.attempts:
            _judge(case, attempt, records[attempt.request_id].get("retryable"))


def _judge(case: Case, attempt: Attempt, logged: bool | None) -> None:
    told = attempt.status or attempt.trouble
    assert attempt.status == case.status, f"{case.name}: told {told}, not {case.status}"
    try:
        if case.retryable:
            assert case.status is not None
            told_to_come_back(attempt, case.status)
        else:
            not_told_to_come_back(attempt)
    except AssertionError as error:
        raise AssertionError(f"{case.name}: {error}") from None
    assert (logged is True) == case.retryable, f"{case.name}: logged as retryable: {logged}"


@pytest.mark.parametrize("flaw", [None, ""], ids=["tailproof", "flawless"])
def test_errors_say_whether_to_retry(servers: Servers, flaw: str | None) -> None:
    run(errors_say_whether_to_retry(servers.launch(flaw, SOURCE, *FLAGS)))


@pytest.mark.parametrize(
    ("flaw", "complaint"),
    [
        ("no-retry-after", "not ready: a 503 without Retry-After"),
        ("denies-retry", "not ready: logged as retryable: False"),
        ("retries-failures", "the model raises: logged as retryable: True"),
        ("computes-twice", "late, computed: a 504 with Retry-After"),
    ],
)
def test_bad_advice_is_caught(servers: Servers, flaw: str, complaint: str) -> None:
    server = servers.launch(flaw, SOURCE, *FLAGS)
    with pytest.raises(AssertionError, match=complaint):
        run(errors_say_whether_to_retry(server))


async def those_turned_away_do_not_return_together(server: Server, count: int = 60) -> None:
    """The same of 503: a model that is not there yet turns many away at about the same time."""
    client = Client(server.port)

    async def answers() -> bool:
        return (await client.request("GET", "/health/live")).status == 200

    await server.until(answers, "the server answers")
    refused = await asyncio.gather(*(client.predict() for _ in range(count)))
    spread_out([told_to_come_back(attempt, 503) for attempt in refused])


LOADING = "fake:?load=3s"


@pytest.mark.parametrize("flaw", [None, ""], ids=["tailproof", "flawless"])
def test_those_turned_away_do_not_return_together(servers: Servers, flaw: str | None) -> None:
    run(those_turned_away_do_not_return_together(servers.launch(flaw, LOADING)))


def test_turning_everyone_away_for_as_long_is_caught(servers: Servers) -> None:
    server = servers.launch("same-retry", LOADING)
    with pytest.raises(AssertionError, match="everyone is told"):
        run(those_turned_away_do_not_return_together(server))
