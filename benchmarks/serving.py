"""What `tailproof serve` costs and holds, beside a hand-written service and the bare HTTP route.

    python benchmarks/serving.py                # about twelve minutes
    python benchmarks/serving.py --quick        # about two
    python benchmarks/serving.py --rounds 5 --json > serving.json

All processes of a server run on core 0, the client on core 1; servers take turns, one running at a
time. Limits are found by `tailproof prove`; CPU a request comes from a closed loop that keeps the
server busy. Needs Linux; uses `wrk` for the closed loop where it is installed.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import click
import msgspec
import numpy as np

from closed_loop import keep_busy
from coldstart import cold_starts, memory
from findings import SLO, Cost, Findings, Round, document, lines, lone_times
from machine import facts, print_facts
from payloads import fraud_bodies
from processes import Server, foreign_work, pin_client, started, stop_cleanly, wait_quiet
from tailproof.core.arrivals import constant
from tailproof.core.recording import Recording
from tailproof.core.units import parse_duration
from tailproof.load import job, prove
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
"""A second: lone requests come so far apart that each finds an idle server."""
MODEL = "demo:fraud"


@dataclass(frozen=True, slots=True)
class Contender:
    """A service under test: how it is started, and what it answers 200 to when it is ready."""

    name: str
    command: tuple[str, ...]
    ready_path: str | None = None


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


FULL = Effort(rounds=3, budget=60.0, busy=5.0, num_lone=500, cold_repeats=5, used=5.0)
QUICK = Effort(rounds=1, budget=25.0, busy=2.0, num_lone=200, cold_repeats=2, used=5.0)

REGISTER = """
from pathlib import Path
from tailproof.models import demo
trained = demo.train()
demo.register(trained.pipeline, trained.frame, {uri!r}, Path({folder!r}))
"""


def contenders(folder: Path) -> list[Contender]:
    """The three services. The hand-written one loads the same model from a registry in `folder`,
    filled here; where the example is missing it is left out, and said so."""
    serve = (sys.executable, "-m", "tailproof", "serve", MODEL, "--slo", str(SLO))
    found = [Contender("tailproof", (*serve, "--drain-delay", "0s"), "/health/ready")]
    handmade = HERE.parent / "examples" / "handmade.py"
    if handmade.exists():
        uri = f"sqlite:///{folder / 'mlflow.db'}"
        script = REGISTER.format(uri=uri, folder=str(folder / "artifacts"))
        subprocess.run([sys.executable, "-c", script], check=True, stdout=subprocess.DEVNULL)
        command = (sys.executable, str(handmade), "--tracking-uri", uri)
        found.append(Contender("handmade", command, "/health"))
    else:
        print("examples/handmade.py is missing: left out", file=sys.stderr)
    return [*found, Contender("raw", (sys.executable, str(HERE / "raw_route.py")))]


# --- one round ------------------------------------------------------------------------------------


def measure(contender: Contender, effort: Effort, seed: int) -> Round:
    """Start the contender, measure it, stop it."""
    print(f"\n{contender.name}: {' '.join(contender.command[1:])}", file=sys.stderr)
    with started(list(contender.command), ready_path=contender.ready_path) as server:
        target = target_of(server, seed)
        keep_busy(target, CONNECTIONS, 1.0)  # warm-up, not counted
        found = cost(server, target, effort)
        lone = lone_times(asked_alone(target, effort.num_lone))
        wait_quiet(effort.patience)
        with foreign_work(server.pid) as others:
            proof = limit(server, target, effort, seed)
    print(f"{proof.verdict}: {proof.reason}; {others}", file=sys.stderr)
    return Round(proof, found, lone, others)


def target_of(server: Server, seed: int) -> Target:
    """Fraud requests to a running server."""
    return build(f"http://127.0.0.1:{server.port}/predict", fraud_bodies(seed))


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


def limit(server: Server, target: Target, effort: Effort, seed: int) -> Document:
    """The highest rate inside the SLO, as `tailproof prove` finds it for anybody."""
    bodies = fraud_bodies(seed)
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


def run(effort: Effort, seed: int) -> Findings:
    """Interleaved rounds, each starting with another contender; then cold start and memory."""
    with tempfile.TemporaryDirectory() as folder:
        return _run(contenders(Path(folder)), effort, seed)


def _run(services: list[Contender], effort: Effort, seed: int) -> Findings:
    findings = Findings()
    for number in range(effort.rounds):
        turn = number % len(services)
        for contender in services[turn:] + services[:turn]:
            measured = measure(contender, effort, seed + number)
            findings.rounds.setdefault(contender.name, []).append(measured)
    tailproof = services[0]
    command = list(tailproof.command)
    print("\ncold start and memory", file=sys.stderr)
    findings.cold = cold_starts(command, MODEL, effort.cold_repeats)
    with started(command, ready_path=tailproof.ready_path) as server:
        findings.memory = memory(server, target_of(server, seed), effort.used)
    return findings


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    options.add_argument("--quick", action="store_true", help="one short round")
    options.add_argument("--rounds", type=int)
    options.add_argument("--budget", type=parse_duration, help="for the search of one limit")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--json", action="store_true", help="one JSON document on stdout")
    args = options.parse_args()
    effort = QUICK if args.quick else FULL
    effort = replace(
        effort, rounds=args.rounds or effort.rounds, budget=args.budget or effort.budget
    )
    stop_cleanly()
    pin_client()
    known = facts(args.seed)
    print_facts(known)
    print(f"{effort.rounds} rounds; {effort.budget:g} s to find a limit", file=sys.stderr)
    findings = run(effort, args.seed)
    print("\n" + "\n".join(lines(findings)), file=sys.stderr if args.json else sys.stdout)
    if args.json:
        print(json.dumps(document(findings, known, asdict(effort)), indent=2))


if __name__ == "__main__":
    main()
