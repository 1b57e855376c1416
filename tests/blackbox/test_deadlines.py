"""P11: a caller's own deadline is kept: told in time, never computed after it."""

import asyncio
import random
from dataclasses import dataclass
from pathlib import Path

import pytest

from .conftest import Servers
from .history import Attempt
from .http_client import Headers, run
from .model_log import executions, first_starts
from .processes import frozen
from .refusals import not_told_to_come_back, told_to_come_back
from .scrape import until_computing, until_gauge, until_inflight, until_waiting
from .server import Server
from .traffic import Client, open_loop

TOLD = 0.050
"""Seconds after the deadline within which the caller must have heard."""
SLACK = 5
"""Two cores are shared by everything under test."""


def deadline(milliseconds: float) -> Headers:
    """A caller who waits so long."""
    return (("X-Request-Timeout-Ms", f"{milliseconds:g}"),)


def told_in_time(attempt: Attempt, seconds: float, slack: int = SLACK) -> None:
    """The caller who waits `seconds` has an answer, of whatever kind, soon after at most."""
    assert attempt.seconds is not None, f"was told nothing: {attempt.trouble}"
    late = attempt.seconds - seconds
    assert late <= TOLD * slack, f"told {late:.3f} s after a deadline of {seconds:g} s"


FROZEN = "fake:?fixed=40ms&max=16"


async def expired_work_is_not_done(server: Server, log: Path) -> None:
    """While the worker computes, those behind it run out of time: each is told 504 by then, may
    try again and is never computed. The one in the worker may not: it was computed."""
    await server.until_ready()
    client = Client(server.port, patience=3.0 * server.haste)
    waits = [0.02, 0.1, 0.3, 0.45, 0.6, 0.6]
    with frozen(server.worker()):
        running = await client.begin(headers=deadline(500), fresh=True)
        await until_computing(server)
        held = [
            await client.begin(rows, headers=deadline(1000 * wait), fresh=True)
            for rows, wait in zip((None, 1, None, 3, None, 20), waits, strict=True)
        ]
        attempts = await asyncio.gather(*(client.finish(one) for one in (running, *held)))
        for attempt, wait in zip(attempts, (0.5, *waits), strict=True):
            told_in_time(attempt, wait)
        await until_inflight(server, 0, within=3.0)
        await until_waiting(server, 0, within=3.0)
    assert (await client.predict()).status == 200, "the next request was not served"
    for attempt in attempts[1:]:
        told_to_come_back(attempt, status=504)
    assert attempts[0].status == 504
    not_told_to_come_back(attempts[0])
    computed = executions(log)
    wrong = [value for attempt in attempts[1:] for value in attempt.values if computed[value]]
    assert not wrong, f"{len(wrong)} rows were computed after their deadline"
    assert computed[attempts[0].values[0]] == 1
    reading = await until_gauge(server, "tailproof_wasted_rows_total", 1, 3.0, reason="timeout")
    stages = reading.by("tailproof_deadline_exceeded_total", "stage")
    assert stages.pop(("execute",)) == 1
    assert sum(stages.values()) == len(waits), f"by stage: {stages}"
    assert client.judge().clean


@pytest.mark.parametrize("flaw", [None, ""], ids=["tailproof", "flawless"])
def test_expired_work_is_not_done(servers: Servers, flaw: str | None, tmp_path: Path) -> None:
    log = tmp_path / "model.log"
    run(expired_work_is_not_done(servers.launch(flaw, f"{FROZEN}&log={log}"), log))


@pytest.mark.parametrize(
    ("flaw", "complaint"),
    [
        ("ignores-deadlines", "was told nothing"),
        ("late-deadlines", "after a deadline of"),
        ("computes-expired", "tailproof_queue_rows stayed at"),
        ("expires-silently", "rows were computed after their deadline"),
        ("computes-twice", "a 504 with Retry-After"),
        ("no-retry-after", "a 504 without Retry-After"),
        ("forgets-waste", "tailproof_wasted_rows_total stayed at"),
    ],
)
def test_a_deadline_that_is_not_kept_is_caught(
    servers: Servers, flaw: str, complaint: str, tmp_path: Path
) -> None:
    log = tmp_path / "model.log"
    server = servers.launch(flaw, f"{FROZEN}&log={log}")
    with pytest.raises(AssertionError, match=complaint):
        run(expired_work_is_not_done(server, log))


@dataclass(frozen=True)
class Crowd:
    """Callers with deadlines between `shortest` and `longest`, spread evenly on a log scale, who
    come to a model of `fixed` seconds at nine tenths of its capacity."""

    num: int
    fixed: float
    shortest: float
    longest: float
    slack: int = SLACK
    seed: int = 11

    @property
    def source(self) -> str:
        """The model."""
        return f"fake:?fixed={1000 * self.fixed:g}ms&max=16"


async def deadlines_are_kept(server: Server, log: Path, crowd: Crowd) -> None:
    """P11: whatever the deadline, an answer comes by then or a 504 does, and nothing begins to be
    computed after it. Who can wait long is answered."""
    await server.until_ready()
    client = Client(server.port, patience=10.0 * server.haste)
    draw = random.Random(crowd.seed)
    given: dict[str, float] = {}

    async def send() -> Attempt:
        wait = crowd.shortest * (crowd.longest / crowd.shortest) ** draw.random()
        attempt = await client.predict(headers=deadline(round(1000 * wait, 3)))
        given[attempt.request_id] = wait
        return attempt

    never = asyncio.get_running_loop().create_future()
    rate = 0.9 * 16 / crowd.fixed
    await open_loop(send, iter([number / rate for number in range(crowd.num)]), until=never)
    assert (await client.predict()).status == 200
    starts = first_starts(log)
    executed = {a.request_id for a in client.history if a.values[0] in starts}
    for attempt in client.history[:-1]:
        wait = given[attempt.request_id]
        told_in_time(attempt, wait, crowd.slack)
        assert attempt.status in (200, 504), f"was told {attempt.status}"
        assert attempt.sent is not None
        begun = starts.get(attempt.values[0], 0.0) - attempt.sent
        assert begun <= wait + TOLD, f"begun {begun:.3f} s after it came, with {wait:.3f} s to live"
        if attempt.status == 504 and attempt.request_id in executed:
            not_told_to_come_back(attempt)
        elif attempt.status == 504:
            told_to_come_back(attempt, status=504)
    long = 3 * crowd.fixed + crowd.slack * TOLD
    patient = [a for a in client.history[:-1] if given[a.request_id] > long]
    failed = [attempt for attempt in patient if attempt.status != 200]
    assert len(patient) >= 10
    assert not failed, f"{len(failed)} of {len(patient)} who could wait long were told 504"
    verdict = client.judge()
    assert verdict.clean, str(verdict)
    assert verdict.counts["timeout"], "no deadline passed: this run proves nothing"


@pytest.mark.parametrize("flaw", [None, ""], ids=["tailproof", "flawless"])
def test_deadlines_are_kept(servers: Servers, flaw: str | None, tmp_path: Path) -> None:
    log = tmp_path / "model.log"
    crowd = Crowd(num=200, fixed=0.06, shortest=0.003, longest=2.0)
    run(deadlines_are_kept(servers.launch(flaw, f"{crowd.source}&log={log}"), log, crowd))


@pytest.mark.soak
def test_two_thousand_deadlines_are_kept(servers: Servers, tmp_path: Path) -> None:
    log = tmp_path / "model.log"
    crowd = Crowd(num=2000, fixed=0.5, shortest=0.02, longest=2.0, slack=1)
    run(deadlines_are_kept(servers.launch(None, f"{crowd.source}&log={log}"), log, crowd))


def test_refusing_whoever_has_a_deadline_is_caught(servers: Servers, tmp_path: Path) -> None:
    log = tmp_path / "model.log"
    crowd = Crowd(num=60, fixed=0.05, shortest=0.002, longest=4.0)
    server = servers.launch("gives-up", f"{crowd.source}&log={log}")
    with pytest.raises(AssertionError, match="who could wait long were told 504"):
        run(deadlines_are_kept(server, log, crowd))


HANGING = "fake:?fixed=5ms&hang_value=668"
TIMEOUT = 0.4
FLAGS = ("--request-timeout", "400ms")


async def no_deadline_outlives_the_servers(server: Server, slack: int = SLACK) -> None:
    """A caller who waits longer than the server does is told when the server's time is over."""
    await server.until_ready()
    client = Client(server.port, patience=2.0 * server.haste)
    attempt = await client.predict(values=(668.0,), headers=deadline(60_000))
    assert attempt.status == 504, f"was told {attempt.status or attempt.trouble}"
    assert attempt.seconds is not None
    assert attempt.seconds >= TIMEOUT, "told before its time was over"
    late = attempt.seconds - TIMEOUT
    assert late <= TOLD * slack, f"told {late:.3f} s after the server's own timeout"


@pytest.mark.parametrize("flaw", [None, ""], ids=["tailproof", "flawless"])
def test_no_deadline_outlives_the_servers(servers: Servers, flaw: str | None) -> None:
    run(no_deadline_outlives_the_servers(servers.launch(flaw, HANGING, *FLAGS)))


@pytest.mark.soak
@pytest.mark.parametrize("number", range(8))
def test_the_servers_own_timeout_is_told_as_exactly(servers: Servers, number: int) -> None:
    run(no_deadline_outlives_the_servers(servers.launch(None, HANGING, *FLAGS), slack=1))


def test_a_deadline_that_outlives_the_servers_is_caught(servers: Servers) -> None:
    server = servers.launch("keeps-long-deadlines", HANGING, *FLAGS)
    with pytest.raises(AssertionError, match="was told no answer"):
        run(no_deadline_outlives_the_servers(server))


NO_DEADLINES = ("", "0", "0.0", "-5", "nan", "inf", "1e999", "soon", "1_000", "0x10", "5 ms", "1,5")
DEADLINES = ("60000", "2500.75", "10000.0")


async def only_numbers_are_deadlines(server: Server) -> None:
    """A positive finite number of milliseconds, decimals allowed; anything else is a 400, and is
    not computed."""
    await server.until_ready()
    client = Client(server.port)
    for text in DEADLINES:
        attempt = await client.predict(headers=(("X-Request-Timeout-Ms", text),))
        assert attempt.status == 200, f"the deadline {text!r} was told {attempt.status}"
    for text in NO_DEADLINES:
        attempt = await client.predict(headers=(("X-Request-Timeout-Ms", text),))
        assert attempt.status == 400, f"the deadline {text!r} was told {attempt.status}"
        not_told_to_come_back(attempt)
    assert client.judge().clean


@pytest.mark.parametrize("flaw", [None, ""], ids=["tailproof", "flawless"])
def test_only_numbers_are_deadlines(servers: Servers, flaw: str | None) -> None:
    run(only_numbers_are_deadlines(servers.launch(flaw, "fake:?fixed=1ms")))


def test_taking_any_deadline_is_caught(servers: Servers) -> None:
    server = servers.launch("ignores-terms", "fake:?fixed=1ms")
    with pytest.raises(AssertionError, match="the deadline '' was told 200"):
        run(only_numbers_are_deadlines(server))
