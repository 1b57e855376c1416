"""What `tailproof serve` costs and holds, beside a hand-written service, the bare HTTP route, and
other model servers.

    python benchmarks/serving.py                # about twelve minutes
    python benchmarks/serving.py --quick        # about two
    python benchmarks/serving.py --rounds 5 --json > serving.json
    python benchmarks/serving.py --peers all --overload --picture peers.svg

All processes of a server run on core 0, the client on core 1; servers take turns, one running at a
time. Each must first give the scores of the model itself. Limits are found by `tailproof prove`;
CPU a request comes from a closed loop that keeps the server busy. Peers are installed into
environments of their own the first time. Needs Linux; uses `wrk` for the closed loop where it is
installed.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from http.client import HTTPException
from pathlib import Path

import click
import msgspec
import numpy as np

import tailproof
from closed_loop import keep_busy
from coldstart import cold_starts, memory
from findings import (
    SLO,
    Cost,
    Findings,
    Overload,
    Round,
    document,
    drawn,
    lines,
    lone_times,
    side_by_side,
)
from machine import facts, print_facts
from payloads import fraud_bodies
from peers.contenders import PEERS, Contender, Row
from peers.environments import DEFAULT_FOLDER, NotInstalled, ready
from peers.leftovers import adopt_orphans, nothing_left
from processes import (
    NotStarted,
    Server,
    foreign_work,
    pin_client,
    started,
    stop_cleanly,
    wait_quiet,
)
from tailproof.core.arrivals import constant, poisson
from tailproof.core.recording import Recording
from tailproof.core.units import parse_duration
from tailproof.load import job, preflight, prove, selfcheck
from tailproof.load.generator import Generator
from tailproof.load.payloads import JSON, Payloads
from tailproof.load.server_view import tree
from tailproof.load.settings import LoadSettings, TargetSettings
from tailproof.load.steps import StepPlan
from tailproof.load.target import Target, build
from tailproof.reporting.console import heading, point_line
from tailproof.reporting.document import Document, Point

HERE = Path(__file__).parent
CONNECTIONS = 256
"""Of the closed loop that keeps the server busy."""
MAX_RATE = 20_000.0
"""A second: about what one core of the client can send on time (see generator.py). A limit beyond
is "at least"."""
LONE_RATE = 100.0
"""A second: lone requests come so far apart that each finds an idle server; where an answer takes
longer, the next request waits for it."""
OVERLOAD = 2.0
"""Times the limit."""
CLIENT_PATIENCE = 1.0
"""Seconds: a client of an overload that has no answer by then goes away."""
START_PATIENCE = 90.0
"""Seconds until a service is ready, and again until its first good answer."""
NUM_CHECKED = 20
"""Answers that must be right before anything is measured."""
TOLERANCE = 1e-9
MODEL = "demo:fraud"


class WrongAnswer(Exception):
    """A service does not answer what its model says."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How long everything takes: seconds, counts."""

    rounds: int
    budget: float
    """For the search of one limit."""
    busy: float
    num_lone: int
    cold_repeats: int
    used: float
    """Of busy connections before memory is looked at again."""
    patience: float = 5.0
    """How long a measurement waits for others to finish their work."""
    overload: float = 0.0
    """Of OVERLOAD times the limit; 0: none."""


FULL = Effort(rounds=3, budget=60.0, busy=5.0, num_lone=500, cold_repeats=5, used=5.0)
QUICK = Effort(rounds=1, budget=25.0, busy=2.0, num_lone=200, cold_repeats=2, used=5.0)


# --- who takes part -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Check:
    """A row, and the score that the model gives it."""

    row: Row
    score: float


@dataclass(frozen=True, slots=True)
class Model:
    """The model in all its forms, in a folder of this run: `mlflow.db` is a registry that holds
    it, `model.joblib` the estimator."""

    folder: Path
    checks: tuple[Check, ...]

    @property
    def registry(self) -> str:
        """The tracking URI."""
        return f"sqlite:///{self.folder / 'mlflow.db'}"

    @classmethod
    def prepare(cls, folder: Path, seed: int) -> "Model":
        """Train it, register it and export it."""
        rows = fraud_rows(seed)[:NUM_CHECKED]
        command = [sys.executable, str(HERE / "peers" / "export.py"), str(folder)]
        done = subprocess.run(
            command, input=json.dumps(rows), check=True, stdout=subprocess.PIPE, text=True
        )
        return cls(folder, tuple(map(Check, rows, json.loads(done.stdout))))


def fraud_rows(seed: int) -> list[Row]:
    """What the seeded bodies say."""
    return [json.loads(body) for body in fraud_bodies(seed)]


def ours(model: Model) -> list[Contender]:
    """Tailproof, a service written by hand around the registered model, and the bare route."""
    serve = (sys.executable, "-m", "tailproof", "serve", MODEL, "--slo", str(SLO))
    example = str(HERE.parent / "examples" / "handmade.py")
    by_hand = (sys.executable, example, "--tracking-uri", model.registry)
    return [
        Contender(
            "tailproof",
            (*serve, "--drain-delay", "0s"),
            "/health/ready",
            title=f"Tailproof {tailproof.__version__}",
        ),
        Contender("handmade", by_hand, "/health", title="FastAPI by hand"),
        Contender("raw", (sys.executable, str(HERE / "raw_route.py")), score_of=None),
    ]


@dataclass(frozen=True, slots=True)
class Wish:
    """Which peers are to be compared, and where their environments are."""

    peers: tuple[str, ...] = ()
    environments: Path = DEFAULT_FOLDER


def theirs(wish: Wish, model: Model, findings: Findings) -> list[Contender]:
    """The peers that are wished for, installed; for one that cannot be, the findings say why."""
    found = []
    for peer in PEERS:
        if peer.name in wish.peers:
            try:
                environment = ready(peer.name, wish.environments)
            except NotInstalled as error:
                findings.titles[peer.name], findings.faults[peer.name] = peer.title, str(error)
            else:
                found.append(peer.contender(environment, model.folder, model.registry))
    return found


# --- one round ------------------------------------------------------------------------------------


def measure(contender: Contender, effort: Effort, seed: int, checks: Sequence[Check] = ()) -> Round:
    """Start the contender, measure it, stop it. What a measurement leaves behind in a server (a
    queue, an estimate) must not reach the next, so the heavier ones come later.

    Raises NotStarted, WrongAnswer, LoadError.
    """
    print(f"\n{contender.name}: {contender.shown}", file=sys.stderr)
    with running(contender, checks) as (server, ready_seconds):
        target = target_of(server, contender, fraud_rows(seed))
        asked_alone(target, NUM_CHECKED)  # warm-up, not counted
        lone = lone_times(asked_alone(target, effort.num_lone))
        wait_quiet(effort.patience)
        with foreign_work(server.pid) as others:
            proof = limit(server, target, effort, seed)
        print(f"{proof.verdict}: {proof.reason}; {others}", file=sys.stderr)
        settle(target, effort.patience)
        found = cost(server, target, effort)
        overload = None
        if effort.overload and (rate := reached(proof)) is not None:
            settle(target, effort.patience)
            overload = overloaded(target, OVERLOAD * rate, effort.overload, seed)
            print(f"overload: {overload}", file=sys.stderr)
    return Round(proof, found, lone, others, ready_seconds, overload)


@contextmanager
def running(contender: Contender, checks: Sequence[Check]) -> Iterator[tuple[Server, float]]:
    """The service, and the seconds until its first good answer. Nothing of it is left afterwards.

    Raises NotStarted, WrongAnswer.
    """
    command, ready_path = list(contender.command), contender.ready_path
    with (
        nothing_left(),
        started(command, ready_path=ready_path, timeout=START_PATIENCE) as server,
    ):
        begun = time.perf_counter()
        if checks and contender.score_of is not None:
            target = target_of(server, contender, [check.row for check in checks])
            wait_good(target)
            ready_seconds = server.cold_seconds + time.perf_counter() - begun
            check_answers(target, contender, checks)
        else:
            ready_seconds = server.cold_seconds
        yield server, ready_seconds


def wait_good(target: Target) -> None:
    """Ask until the answer is a 200: what a server calls ready may come before that.

    Raises NotStarted.
    """
    deadline = time.perf_counter() + START_PATIENCE
    while time.perf_counter() < deadline:
        with suppress(OSError, HTTPException):
            if preflight.ask(target, START_PATIENCE).status == 200:
                return
        time.sleep(0.01)
    raise NotStarted("the server was ready, and gave no good answer in time")


def check_answers(target: Target, contender: Contender, checks: Sequence[Check]) -> None:
    """Does it say what the model says? A wrong server is no competitor. Raises WrongAnswer."""
    assert contender.score_of is not None
    for which, check in enumerate(checks):
        answer = preflight.ask(target, START_PATIENCE, which)
        if answer.status != 200:
            raise WrongAnswer(f"answered {answer.status} to a good request")
        found = contender.score_of(json.loads(answer.body))
        if abs(found - check.score) > TOLERANCE:
            raise WrongAnswer(f"answered {found!r} where the model says {check.score!r}")


def reached(proof: Document) -> float | None:
    """Requests a second: the limit, where the client got beyond it."""
    return None if proof.limit is None or proof.limit.at_least else proof.limit.rate


def target_of(server: Server, contender: Contender, rows: Sequence[Row]) -> Target:
    """Requests about these rows to a running server."""
    url = f"http://127.0.0.1:{server.port}{contender.route}"
    return build(url, [contender.encode(row) for row in rows])


def settle(target: Target, patience: float) -> None:
    """Wait until the server has done what it was asked before, and the machine is quiet."""
    with suppress(OSError, HTTPException):
        preflight.ask(target, START_PATIENCE)
    wait_quiet(patience)


def cost(server: Server, target: Target, effort: Effort) -> Cost:
    """CPU time of the server while it is always busy."""
    wait_quiet(effort.patience)
    with foreign_work(server.pid) as others:
        before = tree(server.pid)
        busy = keep_busy(target, CONNECTIONS, effort.busy)
        after = tree(server.pid)
    front = after[0].cpu - before[0].cpu
    whole = sum(one.cpu for one in after) - sum(one.cpu for one in before)
    found = Cost(front, whole, busy, others)
    print(
        f"closed loop ({busy.tool}, {CONNECTIONS} connections): {found}; {others}", file=sys.stderr
    )
    return found


def asked_alone(target: Target, num: int) -> Recording:
    """`num` requests, one at a time on one connection that is kept."""
    plan = StepPlan(
        intended=constant(LONE_RATE, num / LONE_RATE),
        warm_up=0.0,
        end=num / LONE_RATE,
        payload=np.arange(num, dtype=np.int32) % len(target.requests),
        drain=30.0,
        max_connections=1,
    )
    with Generator(target) as generator:
        return generator.run(plan).recording


def overloaded(target: Target, rate: float, seconds: float, seed: int) -> Overload:
    """What is still answered in time when `rate` requests a second come for `seconds`."""
    seeds = np.random.SeedSequence(seed).generate_state(2).tolist()
    intended = poisson(min(rate, MAX_RATE), seconds, seeds[0])
    choice = np.random.default_rng(seeds[1]).integers(len(target.requests), size=len(intended))
    plan = StepPlan(
        intended=intended,
        warm_up=0.0,
        end=seconds,
        payload=choice.astype(np.int32),
        timeout=CLIENT_PATIENCE,
        drain=CLIENT_PATIENCE,
        ready_connections=64,
    )
    with (
        Generator(target) as generator,
        selfcheck.Surroundings(generator.pids) as surroundings,
    ):
        sent = generator.run(plan)
    client = selfcheck.check(plan, sent, SLO.threshold, surroundings, server=None)
    return Overload.of(sent.recording, seconds, client_ok=client.ok)


def limit(server: Server, target: Target, effort: Effort, seed: int) -> Document:
    """The highest rate inside the SLO, as `tailproof prove` finds it for anybody."""
    bodies = fraud_bodies(seed)  # as a report names them; what is sent stands in the target
    payloads = Payloads(bodies, (1,) * len(bodies), "benchmarks/payloads.py", JSON, seed)
    with tempfile.TemporaryDirectory() as folder:
        load = LoadSettings(
            slo=(SLO,),
            budget=effort.budget,
            max_rate=MAX_RATE,
            server_pid=server.pid,
            out=folder,
        )
        test = job.of_target(
            target, payloads, TargetSettings(seed=seed), load, "benchmarks/serving.py"
        )
        proof = prove.run(test, OnStderr())
    return msgspec.structs.replace(proof, run=None)  # its folder is gone


class OnStderr:
    """Listens to a load test and prints a line for each step."""

    def __init__(self) -> None:
        self.say(heading())

    def say(self, line: str) -> None:
        click.echo(line, err=True)  # it leaves colours out where there is no terminal

    def step(self, number: int, role: str, rate: float | None, seconds: float) -> None:
        """How far it is would be too much."""

    def point(self, point: Point) -> None:
        self.say(point_line(point))


# --- all rounds -----------------------------------------------------------------------------------


def run(effort: Effort, seed: int, wish: Wish, findings: Findings) -> None:
    """Interleaved rounds, each starting with another contender; then cold start and memory."""
    with tempfile.TemporaryDirectory() as folder:
        model = Model.prepare(Path(folder), seed)
        services = [*ours(model), *theirs(wish, model, findings)]
        for one in services:
            findings.titles[one.name], findings.versions[one.name] = one.title, dict(one.versions)
        for number in range(effort.rounds):
            turn = number % len(services)
            for contender in services[turn:] + services[:turn]:
                entry = attempt(contender, effort, seed + number, model.checks, findings)
                findings.rounds.setdefault(contender.name, []).append(entry)
    print("\ncold start and memory", file=sys.stderr)
    first = services[0]
    command = list(first.command)
    findings.cold = cold_starts(command, MODEL, effort.cold_repeats)
    with started(command, ready_path=first.ready_path) as server:
        target = target_of(server, first, fraud_rows(seed))
        findings.memory = memory(server, target, effort.used)


def attempt(
    contender: Contender, effort: Effort, seed: int, checks: Sequence[Check], findings: Findings
) -> Round | None:
    """One round. None: it failed, and the findings say why."""
    try:
        return measure(contender, effort, seed, checks)
    except Exception as error:  # noqa: BLE001  whatever one does to us, the others are measured
        traceback.print_exc()
        findings.faults[contender.name] = last_line(str(error)) or type(error).__name__
        return None


def last_line(text: str) -> str:
    """Where a program that ended says why."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")[:200]


def peer_names(text: str) -> tuple[str, ...]:
    """`all`, or names with commas between. Raises ArgumentTypeError."""
    known = tuple(peer.name for peer in PEERS)
    names = known if text == "all" else tuple(filter(None, text.split(",")))
    for name in names:
        if name not in known:
            raise argparse.ArgumentTypeError(f"{name} is none of {', '.join(known)}")
    return names


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    options.add_argument("--quick", action="store_true", help="one short round")
    options.add_argument("--rounds", type=int)
    options.add_argument("--budget", type=parse_duration, help="for the search of one limit")
    options.add_argument("--peers", type=peer_names, default=(), help="'all', or mosec,ray,...")
    options.add_argument(
        "--environments", type=Path, default=DEFAULT_FOLDER, help="folder for what peers need"
    )
    options.add_argument(
        "--overload", action="store_true", help=f"also {OVERLOAD:g} times each limit for 10 s"
    )
    options.add_argument("--picture", type=Path, help="write the limits here, as SVG")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--json", action="store_true", help="one JSON document on stdout")
    args = options.parse_args()
    effort = QUICK if args.quick else FULL
    effort = replace(
        effort,
        rounds=args.rounds or effort.rounds,
        budget=args.budget or effort.budget,
        overload=10.0 if args.overload else 0.0,
    )
    stop_cleanly()
    adopt_orphans()
    pin_client()
    known = facts(args.seed)
    print_facts(known)
    print(f"{effort.rounds} rounds; {effort.budget:g} s to find a limit", file=sys.stderr)
    findings = Findings()
    try:
        run(effort, args.seed, Wish(args.peers, args.environments), findings)
    finally:  # what was measured before the end of a long run is not lost
        table = [*lines(findings), "", *side_by_side(findings)]
        print("\n" + "\n".join(table), file=sys.stderr if args.json else sys.stdout)
        if args.json:
            print(json.dumps(document(findings, known, asdict(effort)), indent=2))
        if args.picture is not None:
            args.picture.write_text(drawn(findings), encoding="utf-8")


if __name__ == "__main__":
    main()
