"""How many requests a second one core of the load generator can send on time.

    python benchmarks/generator.py                      # five rounds, about four minutes
    python benchmarks/generator.py --install-locust     # beside Locust, in a throw-away environment

Against the null target, a core each. A rate is reached when P99 of the send lag is at most 1 ms and
the rate that was sent is within 0.1% of the one that was planned; the highest such rate is the
ceiling. It must be at least 12,000/s (median of the rounds). Beside it, in every round: `wrk`, a
closed loop written in C, for what the null target itself can do, and Locust's FastHttpUser. Those
two keep 64 connections busy, so their rate is what they get, not what they were asked for.
"""

import argparse
import json
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from machine import facts, print_facts
from payloads import fraud_bodies
from processes import (
    CLIENT_CORE,
    SERVER_CORE,
    can_pin,
    foreign_work,
    pin_client,
    pinned,
    started,
    stop_cleanly,
    wait_quiet,
)
from tailproof.core.arrivals import poisson
from tailproof.core.units import format_duration, format_rate
from tailproof.load.generator import Generator
from tailproof.load.steps import Sent, StepPlan
from tailproof.load.target import Target, build

GOAL = 12_000.0
LAG_LIMIT = 1e-3
ERROR_LIMIT = 1e-3
GROWTH = 1.2
WARM_UP = 0.5
SECONDS = 2.0
ATTEMPTS = 3
"""A rate is out of reach after so many late steps: others work on this machine too."""
CONNECTIONS = 64
NULL = "import sys; from tailproof.load.null import serve; serve(port=int(sys.argv[-1]), size=70)"
LOCUST_FILE = """
from locust import FastHttpUser, constant, task
BODIES = {bodies!r}
class User(FastHttpUser):
    wait_time = constant(0)
    num = 0
    @task
    def predict(self):
        self.num += 1
        self.client.post("/predict", data=BODIES[self.num % len(BODIES)],
                         headers={{"Content-Type": "application/json"}})
"""


@dataclass(frozen=True, slots=True)
class Step:
    """What one rate gave."""

    planned: float
    sent: float
    lag_p99: float
    cpu_per_request: float
    """Seconds of the sending process, warm-up included."""
    share_good: float
    others: str

    @property
    def on_time(self) -> bool:
        error = abs(self.sent / self.planned - 1.0)
        return self.lag_p99 <= LAG_LIMIT and error <= ERROR_LIMIT and self.share_good == 1.0


@dataclass(frozen=True, slots=True)
class Round:
    """Everything that was measured side by side, requests a second; None: not installed."""

    ceiling: float | None
    steps: list[Step]
    wrk: float | None
    locust: float | None


def one_step(generator: Generator, target: Target, rate: float, seed: int) -> Sent:
    end = WARM_UP + SECONDS
    intended = np.concatenate(
        [poisson(rate, WARM_UP, seed), WARM_UP + poisson(rate, SECONDS, seed + 1)]
    )
    payload = np.random.default_rng(seed + 2).integers(len(target.requests), size=len(intended))
    plan = StepPlan(intended, WARM_UP, end, payload.astype(np.int32), ready_connections=CONNECTIONS)
    return generator.run(plan)


def measure(generator: Generator, target: Target, rate: float, seed: int, server_pid: int) -> Step:
    wait_quiet(5.0)
    begin = time.perf_counter()
    with foreign_work(server_pid) as foreign:
        sent = one_step(generator, target, rate, seed)
    own = sum(one.cpu for one in sent.senders) / (time.perf_counter() - begin)
    foreign.client_core = max(0.0, foreign.client_core - own)
    recording = sent.recording.between(WARM_UP, WARM_UP + SECONDS)
    in_window = (sent.recording.sent >= WARM_UP) & (sent.recording.sent < WARM_UP + SECONDS)
    return Step(
        planned=len(recording) / SECONDS,
        sent=float(in_window.sum()) / SECONDS,
        lag_p99=float(np.percentile(recording.send_lag, 99.0, method="higher")),
        cpu_per_request=sum(one.cpu for one in sent.senders) / len(sent.recording),
        share_good=float(recording.good.mean()),
        others=str(foreign),
    )


def ceiling(
    generator: Generator, target: Target, seed: int, server_pid: int
) -> tuple[float | None, list[Step]]:
    """Rates of growing size until one is out of reach."""
    steps: list[Step] = []
    best, rate, num_late = None, GOAL, 0
    while num_late < ATTEMPTS:
        step = measure(generator, target, rate, seed + 10 * len(steps), server_pid)
        steps.append(step)
        print(describe(step), file=sys.stderr)
        if step.on_time:
            best, rate, num_late = rate, rate * GROWTH, 0
        else:
            num_late += 1
    return best, steps


def describe(step: Step) -> str:
    verdict = "on time" if step.on_time else "late"
    return (
        f"  {format_rate(step.planned):>9}  lag P99 {format_duration(step.lag_p99):>7}  "
        f"rate {step.sent / step.planned - 1.0:+.3%}  {step.cpu_per_request * 1e6:5.1f} us "
        f"a request  {verdict}; {step.others}"
    )


def wrk(url: str, body: bytes) -> float | None:
    """What the null target gives to a closed loop in C."""
    if shutil.which("wrk") is None:
        return None
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
        script.write(
            f'wrk.method = "POST"\nwrk.body = {json.dumps(body.decode())}\n'
            'wrk.headers["Content-Type"] = "application/json"\n'
        )
        script.flush()
        command = ["wrk", "-t1", f"-c{CONNECTIONS}", "-d3s", "-s", script.name, url]
        said = _output(pinned(command, CLIENT_CORE))
    found = re.search(r"Requests/sec:\s+([0-9.]+)", said)
    return float(found[1]) if found else None


def locust(program: str | None, url: str, bodies: tuple[bytes, ...]) -> float | None:
    """What one process of Locust gets from the null target."""
    if program is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "locustfile.py"
        script.write_text(LOCUST_FILE.format(bodies=bodies[:100]))
        table = Path(folder) / "result"
        command = [program, "-f", str(script), "--headless", "--host", url, "--csv", str(table)]
        command += ["-u", str(CONNECTIONS), "-r", str(CONNECTIONS), "-t", "6s", "--only-summary"]
        _output(pinned(command, CLIENT_CORE))
        lines = Path(f"{table}_stats.csv").read_text().splitlines()
    columns = dict(zip(lines[0].split(","), lines[-1].split(","), strict=True))
    return float(columns["Requests/s"])


def _output(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, timeout=60.0, check=True).stdout


@contextmanager
def locust_program(*, install: bool) -> Iterator[str | None]:
    """Where Locust is; None: nowhere."""
    if not install:
        yield shutil.which("locust")
        return
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        pip = [f"{folder}/bin/python", "-m", "pip", "install", "--quiet", "locust"]
        subprocess.run(pip, check=True, timeout=600.0)
        yield f"{folder}/bin/locust"


def one_round(program: str | None, seed: int) -> Round:
    bodies = fraud_bodies(seed)
    with started([sys.executable, "-c", NULL], core=SERVER_CORE) as server:
        url = f"http://127.0.0.1:{server.port}"
        target = build(f"{url}/predict", bodies)
        with Generator(target, cores=(CLIENT_CORE,) if can_pin() else None) as generator:
            best, steps = ceiling(generator, target, seed, server.pid)
        return Round(best, steps, wrk(f"{url}/predict", bodies[0]), locust(program, url, bodies))


def spread(values: list[float]) -> str:
    """Median and extremes."""
    if not values:
        return "not installed"
    extremes = f"{format_rate(min(values))} to {format_rate(max(values))}"
    return f"{format_rate(statistics.median(values))} ({extremes}, {len(values)} rounds)"


def summary(rounds: list[Round]) -> list[str]:
    """The table that goes into the documentation."""
    reached = [found.ceiling or 0.0 for found in rounds]
    at_goal = [step.cpu_per_request for found in rounds for step in found.steps[:1]]
    at_top = [
        step.cpu_per_request
        for found in rounds
        for step in found.steps
        if step.on_time and step.planned >= (found.ceiling or 0.0) * 0.99
    ]

    def known(pick: Callable[[Round], float | None]) -> list[float]:
        return [value for value in map(pick, rounds) if value is not None]

    cost = f"{statistics.median(at_goal) * 1e6:.1f} us at {format_rate(GOAL)}"
    if at_top:
        cost += f", {statistics.median(at_top) * 1e6:.1f} us at the ceiling"
    return [
        f"generator, on time   {spread(reached)}",
        f"  CPU a request      {cost}",
        f"wrk, closed loop     {spread(known(lambda found: found.wrk))}",
        f"Locust, closed loop  {spread(known(lambda found: found.locust))}",
        f"goal of {format_rate(GOAL)}: {'reached' if _reached(rounds) else 'NOT reached'}",
    ]


def _reached(rounds: list[Round]) -> bool:
    return statistics.median(found.ceiling or 0.0 for found in rounds) >= GOAL


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--install-locust", action="store_true", help="into a temporary venv")
    options.add_argument("--json", action="store_true", help="one JSON document on stdout")
    return options


def main() -> None:
    args = parser().parse_args()
    stop_cleanly()
    pin_client()
    known: dict[str, Any] = facts(args.seed)
    print_facts(known)
    rounds = []
    with locust_program(install=args.install_locust) as program:
        for index in range(args.rounds):
            print(f"round {index + 1} of {args.rounds}", file=sys.stderr)
            rounds.append(one_round(program, args.seed + 1000 * index))
    print("\n".join(summary(rounds)), file=sys.stderr if args.json else sys.stdout)
    if args.json:
        document = {"machine": known, "rounds": [asdict(found) for found in rounds]}
        print(json.dumps(document, indent=2))
    sys.exit(0 if _reached(rounds) else 1)


if __name__ == "__main__":
    main()
