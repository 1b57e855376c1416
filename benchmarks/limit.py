"""The highest rate at which a running server holds an SLO, found with honest steps."""

import sys
import time
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from closed_loop import ask
from connection import Target
from open_loop import Rules, send
from processes import Foreign, Server, cpu_seconds, foreign_work, wait_quiet
from search import Limit, Plan, highest_rate
from steps import Class, Step, classify, describe, judge, steady
from tailproof.core.slo import Latency

NOISY = 0.05
"""Share of the server's core used by others: a FAIL beside it is repeated before it is believed."""
PATIENCE = 2
"""How often such a FAIL is repeated."""
ENOUGH = 1000
"""Requests in a step of a slow service, if four times the usual length allows it."""
COOL_DOWN = 10.0
"""Seconds at most until a server that was overloaded is as quick as before."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One step, its class, and who worked meanwhile."""

    step: Step
    kind: Class
    cpu_per_request: float | None
    """Seconds of the server's process tree for a good answer, warm-up included; None: no answer."""
    foreign: Foreign

    def to_json(self) -> dict[str, Any]:
        """Plain types, for a document."""
        return asdict(self.step) | {
            "class": self.kind,
            "cpu_seconds_per_request": self.cpu_per_request,
            "others": asdict(self.foreign),
        }


@dataclass(slots=True)
class Stepper:
    """Runs steps of Poisson load against one server, and cools it down after each."""

    server: Server
    target: Target
    slo: Latency
    seconds: float
    warm_up: float
    seed: int
    patience: float = 5.0
    """Seconds that a step may wait for others to finish their work."""
    measured: list[Measured] = field(default_factory=list)

    def __call__(self, rate: float) -> Step:
        """One step at `rate`; a FAIL that others may have caused is repeated."""
        for _ in range(1 + PATIENCE):
            last = self._once(rate)
            if last.step.verdict != "FAIL" or last.foreign.server_core <= NOISY:
                break
        return last.step

    def find(self, guess: float, plan: Plan) -> Limit:
        """The limit, searched from `guess`, after one lightly loaded step to compare with."""
        self._once(0.1 * guess)
        return highest_rate(self, guess, plan)

    def _once(self, rate: float) -> Measured:
        rng = np.random.default_rng([self.seed, len(self.measured)])
        seconds = min(max(self.seconds, ENOUGH / rate), 4.0 * self.seconds)
        schedule = steady("poisson", rate, self.warm_up, seconds, rng)
        wait_quiet(self.patience)
        with foreign_work(self.server.pid) as foreign:
            before = cpu_seconds(self.server.pid)
            recording = send(self.target, schedule, rng, self._rules(rate))
            used = cpu_seconds(self.server.pid) - before
        step, num_good = judge(recording, self.slo), int(np.sum(recording.good))
        cpu = used / num_good if num_good else None
        self.measured.append(Measured(step, self._class(step), cpu, foreign))
        shown = "-" if cpu is None else f"{cpu * 1e6:.0f} us"
        print(f"{describe(step)}; {self.measured[-1].kind}; {shown}; {foreign}", file=sys.stderr)
        self._cool_down()
        return self.measured[-1]

    def _rules(self, rate: float) -> Rules:
        """Ready: as many connections as are in use when every request takes the SLO's time."""
        return Rules(ready_connections=round(rate * self.slo.threshold), give_up=self.slo)

    def _class(self, step: Step) -> Class:
        steps = [entry.step for entry in self.measured]
        lower = [entry for entry in steps if entry.offered < step.offered]
        below = max(lower, key=lambda entry: entry.offered, default=None)
        return classify(step, steps[0] if steps else None, below)

    def _cool_down(self) -> None:
        """Lone requests until they are as quick as under light load."""
        base = self.measured[0].step.response_seconds["p95"]
        quick = 2.0 * (base or self.slo.threshold)
        deadline = time.perf_counter() + COOL_DOWN
        while time.perf_counter() < deadline:
            if all(answer.seconds <= quick for answer in ask(self.target, 5, patience=COOL_DOWN)):
                return
