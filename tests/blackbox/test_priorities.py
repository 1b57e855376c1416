"""P32: under overload what is important survives, and the least important is still served."""

import random
from dataclasses import dataclass
from pathlib import Path

import pytest

from .conftest import Servers
from .history import Attempt
from .http_client import Headers, run
from .model_log import executions
from .refusals import not_told_to_come_back
from .scrape import scrape
from .server import Server
from .steps import offer, percentile
from .traffic import Client

SOURCE = "fake:?fixed=30ms&per_row=1ms&max=16"
CAPACITY = 16 / 0.046
"""Rows a second, in full batches."""
THRESHOLD = 0.120
FLAGS = ("--slo", "p95 < 120ms")
CLASSES = ("critical", "normal", "batch")


@dataclass(frozen=True)
class Mix:
    """How many of a hundred requests each class sends, and what the classes are promised."""

    shares: dict[str, int]
    seconds: float
    success: float
    """Share of the critical requests that are answered."""
    response: float
    """Seconds: the P95 of those answers."""
    load: float = 3.0
    """As a multiple of the capacity."""
    seed: int = 32


def promised(seconds: float) -> Mix:
    """P32 as it stands."""
    return Mix({"critical": 20, "batch": 80}, seconds, success=0.995, response=THRESHOLD)


def with_slack(seconds: float) -> Mix:
    """Two cores are shared by everything under test: in so few seconds one stall of the machine
    costs some 5% of the critical requests. Whoever ignores the class answers a third of them."""
    return Mix({"critical": 20, "batch": 80}, seconds, success=0.85, response=3 * THRESHOLD)


async def the_important_survive(server: Server, log: Path, mix: Mix) -> None:
    """P32: at three times the capacity the critical are answered, and in time; the batch class is
    shed first, and not wholly."""
    await server.until_ready()
    client = Client(server.port, patience=5.0 * server.haste)
    draw = random.Random(mix.seed)
    drawn: list[str] = []

    def headers() -> Headers:
        [name] = draw.choices(list(mix.shares), list(mix.shares.values()))
        drawn.append(name)
        return (("X-Priority", name),)

    await offer(client, mix.load * CAPACITY, mix.seconds, mix.seed, headers)
    by_class: dict[str, list[Attempt]] = {name: [] for name in CLASSES if name in mix.shares}
    for attempt, name in zip(client.history, drawn, strict=True):
        by_class[name].append(attempt)
    critical = by_class["critical"]
    share = answered_share(critical)
    assert share >= mix.success, f"{share:.3f} of the critical requests were answered"
    late = percentile([a.seconds or 0.0 for a in critical if a.status == 200], 95)
    assert late <= mix.response, f"the P95 of the critical answers is {late:.3f} s"
    shares = [answered_share(attempts) for attempts in by_class.values()]
    assert shares == sorted(shares, reverse=True), f"answered, most important first: {shares}"
    assert shares[-1] < 0.5, "hardly any overload: this run proves nothing"
    assert shares[-1] > 0.01, f"the batch class is starved: {shares[-1]:.4f} answered"
    verdict = client.judge()
    assert verdict.clean, str(verdict)
    assert set(verdict.counts) == {"ok", "shed"}, str(verdict)
    await _shed_is_told_and_not_computed(server, client, log)


def answered_share(attempts: list[Attempt]) -> float:
    """Share of the requests with a good answer."""
    return sum(attempt.status == 200 for attempt in attempts) / len(attempts)


async def _shed_is_told_and_not_computed(server: Server, client: Client, log: Path) -> None:
    """What was given up at dispatch is counted as that, told within the threshold and, like what
    was refused at the door, never computed."""
    shed = [attempt for attempt in client.history if attempt.status == 429]
    computed = executions(log)
    wrong = sum(computed[attempt.values[0]] for attempt in shed)
    assert not wrong, f"{wrong} requests were shed and computed"
    reading = await scrape(server.port)
    reasons = reading.by("tailproof_shed_total", "reason", model=server.name)
    assert sum(reasons.values()) == len(shed), f"told {len(shed)}, counted {reasons}"
    waited = sum((attempt.seconds or 0.0) > THRESHOLD / 2 for attempt in shed)
    dropped = reasons.get(("dropped",), 0)
    delayed = 0.02 * len(shed)  # at the door, when this machine was busy elsewhere
    assert dropped >= waited - delayed, f"{waited} waited to be shed, {dropped:g} were dropped"


@pytest.mark.parametrize("flaw", [None, ""], ids=["tailproof", "flawless"])
def test_the_important_survive(servers: Servers, flaw: str | None, tmp_path: Path) -> None:
    log = tmp_path / "model.log"
    server = servers.launch(flaw, f"{SOURCE}&log={log}", *FLAGS)
    run(the_important_survive(server, log, with_slack(2.5)))


CROWDED_OUT = pytest.mark.xfail(
    strict=True, reason="normal callers fill the queue so far that the critical find it full"
)


@pytest.mark.soak
@pytest.mark.parametrize(
    "mix",
    [
        pytest.param(promised(30.0), id="as promised"),
        pytest.param(
            Mix({"critical": 20, "normal": 30, "batch": 50}, 30.0, 0.995, THRESHOLD),
            marks=CROWDED_OUT,
            id="three classes",
        ),
        pytest.param(
            Mix({"critical": 5, "batch": 95}, 30.0, 0.995, THRESHOLD, load=10.0), id="ten times"
        ),
    ],
)
def test_the_important_survive_as_promised(servers: Servers, mix: Mix, tmp_path: Path) -> None:
    log = tmp_path / "model.log"
    server = servers.launch(None, f"{SOURCE}&log={log}", *FLAGS)
    run(the_important_survive(server, log, mix))


@pytest.mark.parametrize(
    ("flaw", "complaint"),
    [
        ("ignores-priority", "of the critical requests were answered"),
        ("refuses-critical", "of the critical requests were answered"),
        ("starves-batch", "the batch class is starved"),
        ("miscounts-drops", "waited to be shed, 0 were dropped"),
    ],
)
def test_forgetting_the_important_is_caught(
    servers: Servers, flaw: str, complaint: str, tmp_path: Path
) -> None:
    log = tmp_path / "model.log"
    server = servers.launch(flaw, f"{SOURCE}&log={log}", *FLAGS)
    with pytest.raises(AssertionError, match=complaint):
        run(the_important_survive(server, log, with_slack(1.0)))


async def only_classes_are_priorities(server: Server) -> None:
    """`critical`, `normal`, `batch`, in any case; anything else is a 400. None is `normal`."""
    await server.until_ready()
    client = Client(server.port)
    for text in (*CLASSES, "CRITICAL", "Normal", "bAtCh"):
        attempt = await client.predict(headers=(("X-Priority", text),))
        assert attempt.status == 200, f"the priority {text!r} was told {attempt.status}"
    for text in ("", "urgent", "1", "0", "critical,batch", "critical batch", "high"):
        attempt = await client.predict(headers=(("X-Priority", text),))
        assert attempt.status == 400, f"the priority {text!r} was told {attempt.status}"
        not_told_to_come_back(attempt)
    assert client.judge().clean


@pytest.mark.parametrize("flaw", [None, ""], ids=["tailproof", "flawless"])
def test_only_classes_are_priorities(servers: Servers, flaw: str | None) -> None:
    run(only_classes_are_priorities(servers.launch(flaw, "fake:?fixed=1ms")))


def test_taking_any_priority_is_caught(servers: Servers) -> None:
    server = servers.launch("ignores-terms", "fake:?fixed=1ms")
    with pytest.raises(AssertionError, match="the priority '' was told 200"):
        run(only_classes_are_priorities(server))
