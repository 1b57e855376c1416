"""What `tailproof serve` costs and holds, beside a hand-written service and the bare HTTP route.

    python benchmarks/serving.py                # about ten minutes
    python benchmarks/serving.py --quick        # about two
    python benchmarks/serving.py --rounds 5 --json > serving.json

All processes of a server run on core 0, the client on core 1; servers take turns, one running at a
time. Limits come from open-loop steps (see open_loop.py); CPU a request from a closed loop that
keeps the server busy. Needs Linux; uses `wrk` for the closed loop where it is installed.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from closed_loop import ask, keep_busy
from coldstart import cold_starts, memory
from connection import Target
from findings import SLO, Cost, Findings, Round, document, lines, lone_times
from limit import Stepper
from machine import facts, print_facts
from payloads import fraud_bodies
from processes import Server, foreign_work, pin_client, started, stop_cleanly, tree, wait_quiet
from search import Plan
from steps import HEADING
from tailproof.core.units import parse_duration

HERE = Path(__file__).parent
CONNECTIONS = 256
"""Of the closed loop that keeps the server busy."""
GUESS = 0.7
"""The search begins at this share of the closed-loop rate."""
CLIENT_CEILING = 20_000.0
"""A second: well below what `open_loop.py --ceiling` shows; limits beyond are "at least"."""
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
    step: float
    warm_up: float
    busy: float
    num_lone: int
    cold_repeats: int
    num_requests: int
    plan: Plan
    patience: float = 5.0
    """How long a measurement waits for others to finish their work."""


FULL = Effort(
    rounds=3,
    step=4.0,
    warm_up=1.0,
    busy=5.0,
    num_lone=500,
    cold_repeats=5,
    num_requests=20_000,
    plan=Plan(growth=1.3, tolerance=1.03, confirmations=2, highest=CLIENT_CEILING),
)
QUICK = Effort(
    rounds=1,
    step=2.0,
    warm_up=0.5,
    busy=2.0,
    num_lone=200,
    cold_repeats=2,
    num_requests=20_000,
    plan=Plan(growth=1.4, tolerance=1.08, confirmations=1, highest=CLIENT_CEILING),
)


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
        target = Target.of(f"http://127.0.0.1:{server.port}/predict", fraud_bodies(seed))
        keep_busy(target, CONNECTIONS, 1.0)  # warm-up, not counted
        found = cost(server, target, effort)
        lone = lone_times(ask(target, effort.num_lone))
        print(HEADING, file=sys.stderr)
        stepper = Stepper(server, target, SLO, effort.step, effort.warm_up, seed, effort.patience)
        limit = stepper.find(max(GUESS * found.busy.rate, effort.plan.lowest), effort.plan)
        return Round(limit, found, lone, stepper.measured)


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
        target = Target.of(f"http://127.0.0.1:{server.port}/predict", fraud_bodies(seed))
        findings.memory = memory(server, target, effort.num_requests)
    return findings


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    options.add_argument("--quick", action="store_true", help="one short round")
    options.add_argument("--rounds", type=int)
    options.add_argument("--step", type=parse_duration, help="measured part of a load step")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--json", action="store_true", help="one JSON document on stdout")
    args = options.parse_args()
    effort = QUICK if args.quick else FULL
    effort = replace(effort, rounds=args.rounds or effort.rounds, step=args.step or effort.step)
    stop_cleanly()
    pin_client()
    known = facts(args.seed)
    print_facts(known)
    print(f"steps of {effort.step:g} s after {effort.warm_up:g} s of warm-up", file=sys.stderr)
    findings = run(effort, args.seed)
    print("\n" + "\n".join(lines(findings)), file=sys.stderr if args.json else sys.stdout)
    if args.json:
        print(json.dumps(document(findings, known, asdict(effort)), indent=2))


if __name__ == "__main__":
    main()
