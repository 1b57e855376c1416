"""Where the microseconds of a request go, on one core.

    python benchmarks/stages.py            # the table
    python benchmarks/stages.py --json     # the same as one JSON document

First each stage of the path by itself, with the real objects and batches of one-row requests; then
the running server under a closed loop, front and worker apart, from /proc. What the front's stages
do not explain is the HTTP library, the event loop and the kernel.
"""

import argparse
import asyncio
import json
import os
import socket
import statistics
import sys
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import numpy as np
from prometheus_client import CollectorRegistry

import processes
from closed_loop import keep_busy
from machine import facts, print_facts
from payloads import fraud_bodies
from tailproof.core import slo
from tailproof.core.clock import monotonic
from tailproof.core.latency_model import LatencyModel
from tailproof.core.policy import Dispatch, Limits, Policy, Queued
from tailproof.core.slo import Latency
from tailproof.load.server_view import tree
from tailproof.load.target import build
from tailproof.models.runtimes import load
from tailproof.models.signature import Validator
from tailproof.models.source import ModelSpec
from tailproof.serving.batcher import Answer
from tailproof.serving.exchange import JSON, Desk, Exchange
from tailproof.serving.predict import server_timing
from tailproof.serving.protocols.native import NativeEncoder
from tailproof.telemetry.logs import Log, LogWriter
from tailproof.telemetry.metrics import Metrics
from tailproof.workers import frames

REPEATS = 9
CORE = 0
CONNECTIONS = 256
SIDES = {
    "parse": "front",
    "validate": "front",
    "admit": "front",
    "frame": "front",
    "transfer": "both",
    "unframe": "worker",
    "model": "worker",
    "reply": "worker",
    "decode": "front",
    "encode": "front",
    "metrics": "front",
    "log": "front",
}


@dataclass(frozen=True, slots=True)
class Spread:
    """Microseconds a request: the median of the repeats, and their range."""

    median: float
    low: float
    high: float


class Silent:
    """Stands in for the HTTP library, whose own cost is in the remainder."""

    def response_bytes(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        """Take the answer."""


class RequestPath:
    """All objects of the request path, for batches of `size` one-row requests."""

    def __init__(self, size: int, seed: int) -> None:
        loaded = load(ModelSpec(source="demo:fraud", name="fraud"), lambda _stage: None)
        manifest = loaded.manifest
        self.size = size
        self.runtime = loaded.runtime
        self.validator = Validator.compile(manifest.signature)
        self.encoder = NativeEncoder(manifest, "score", "scores")
        self.bodies = list(fraud_bodies(seed, size))
        self.rows = [self.validator.rows(body)[0][0] for body in self.bodies]
        self.columns = self.validator.columns(self.rows)
        self.buffers, self.body = frames.pack(self.columns)
        self.wire = b"".join(frames.encode(frames.Batch(1, size, self.buffers), self.body))
        self.outputs = self.runtime.predict(self.columns, size)
        described, data = frames.pack(self.outputs)
        self.result = frames.Result(1, 0.0, 0.01, 0.01, 0.0, described)
        self.result_wire = b"".join(frames.encode(self.result, data))
        self.values = next(iter(self.outputs.values())).tolist()
        self.proto = Silent()
        metrics = Metrics(CollectorRegistry(), ())
        metrics.model("fraud", (slo.parse("p95 < 50ms"),), ("/predict",)).loaded("1")
        self.sink = os.open(os.devnull, os.O_WRONLY)
        self.log = Log(LogWriter(self.sink), "json", call_soon=lambda _flush: None)
        self.desk = Desk(metrics, self.log, monotonic, "replica")
        self.headers = {"content-type": "application/json", "content-length": "48"}
        self.exchanges = [self._exchange() for _ in range(size)]
        self.near, self.far = socket.socketpair()
        self.policy = _warm_policy()
        jitter = np.random.default_rng(seed).normal(0.002, 0.0001, 10_000)
        self.durations = cycle(np.abs(jitter).tolist())

    def _exchange(self) -> Exchange:
        exchange = Exchange(self.desk, self.proto, "POST", "/predict", "fraud")
        exchange.identify(self.headers)
        exchange.version, exchange.rows, exchange.batch_rows = "1", 1, self.size
        timeline = exchange.timeline
        timeline.admitted, timeline.worker_free, timeline.dispatched = 1e-4, 2e-3, 2.1e-3
        timeline.started, timeline.finished, timeline.answered = 2.2e-3, 4e-3, 4.5e-3
        return exchange

    def parse(self) -> None:
        """Make the exchange, count it in, take over request id and trace."""
        for _ in range(self.size):
            self._exchange()

    def validate(self) -> None:
        """Bytes to a checked row."""
        rows = self.validator.rows
        for body in self.bodies:
            rows(body)

    def admit(self) -> None:
        """The policy: let in, form the batch, learn from its end."""
        policy = self.policy
        for _ in range(self.size):
            policy.arrive(Queued(rows=1, arrived=0.0), 0.0)
        decision = policy.next_batch(0.0)
        assert isinstance(decision, Dispatch)
        policy.finished(decision, next(self.durations), 0.002)

    def frame(self) -> None:
        """Rows to column buffers to one frame."""
        buffers, body = frames.pack(self.validator.columns(self.rows))
        b"".join(frames.encode(frames.Batch(1, self.size, buffers), body))

    def transfer(self) -> None:
        """Both frames through a socket pair."""
        for sender, receiver, data in (
            (self.near, self.far, self.wire),
            (self.far, self.near, self.result_wire),
        ):
            sender.sendall(data)
            left = len(data)
            while left:
                left -= len(receiver.recv(left))

    def unframe(self) -> None:
        """In the worker: bytes to arrays."""
        ((batch, body),) = frames.Reader().feed(self.wire)
        assert isinstance(batch, frames.Batch)
        frames.unpack(batch.columns, body)

    def model(self) -> None:
        """The runtime itself."""
        self.runtime.predict(self.columns, self.size)

    def reply(self) -> None:
        """In the worker: outputs to one frame."""
        described, data = frames.pack(self.outputs)
        b"".join(frames.encode(frames.Result(1, 0.0, 0.01, 0.01, 0.0, described), data))

    def decode(self) -> None:
        """In the front: the result's bytes to Python values."""
        ((result, body),) = frames.Reader().feed(self.result_wire)
        assert isinstance(result, frames.Result)
        for array in frames.unpack(result.outputs, body).values():
            array.tolist()

    def encode(self) -> None:
        """Values to the answer's bytes and headers."""
        for exchange, value in zip(self.exchanges, self.values, strict=True):
            answer = Answer({"score": [value]}, self.size, 0, cold=False)
            self.encoder.encode(answer, is_list=False)
            headers = [
                JSON,
                ("server-timing", server_timing(exchange.timeline, 0.0045)),
                ("x-batch-size", str(self.size)),
                ("x-request-id", exchange.request_id),
                self.desk.replica_header,
            ]
            self.proto.response_bytes(200, headers, b"")

    def metrics(self) -> None:
        """Count the ends and observe the histograms."""
        for exchange in self.exchanges:
            exchange.account.answered("POST", 200, "ok", exchange.timeline, version="1", cause="")

    def log_records(self) -> None:
        """One record a request, written once a batch."""
        for exchange in self.exchanges:
            self.log.access(
                request_id=exchange.request_id,
                method="POST",
                route="/predict",
                status=200,
                outcome="ok",
                timeline=exchange.timeline,
                model="fraud",
                version="1",
                rows=1,
                batch_rows=self.size,
                worker=0,
            )
        self.log.flush()

    def stages(self) -> dict[str, Spread]:
        """Each stage, measured."""
        calls = {name: getattr(self, name) for name in SIDES if name != "log"}
        calls["log"] = self.log_records
        return {name: spread(calls[name], self.size) for name in SIDES}


def _warm_policy() -> Policy:
    """With one worker, and batches that took 2 ms whatever their size."""
    times = LatencyModel()
    for power in range(9):
        times.calibrate(1 << power, 0.002)
    policy = Policy(Limits(objectives=(Latency(95.0, 0.05),)), times, lambda: 0.5)
    policy.set_workers(1)
    return policy


def spread(stage: Callable[[], Any], num_requests: int, seconds: float = 0.05) -> Spread:
    """Microseconds a request of one stage: repeats of about `seconds` each."""
    stage()
    begun = time.perf_counter()
    stage()
    rounds = max(1, round(seconds / max(time.perf_counter() - begun, 1e-7)))
    found = []
    for _ in range(REPEATS):
        begun = time.perf_counter()
        for _ in range(rounds):
            stage()
        found.append((time.perf_counter() - begun) / (rounds * num_requests) * 1e6)
    return Spread(statistics.median(found), min(found), max(found))


@dataclass(frozen=True, slots=True)
class Live:
    """The running server under a closed loop."""

    rate: float
    front_microseconds: float
    worker_microseconds: float
    mean_batch_rows: float


def live(source: str, seconds: float, seed: int) -> Live:
    """CPU time a request of front and worker, all on one core, `CONNECTIONS` connections."""
    command = [sys.executable, "-m", "tailproof", "serve", source, "--slo", "p95 < 50ms"]
    with processes.started(command, core=CORE, ready_path="/health/ready") as server:
        target = build(f"http://127.0.0.1:{server.port}/predict", fraud_bodies(seed))
        keep_busy(target, CONNECTIONS, 2.0)
        before, batches = _cpu(server.pid), _batches(server.port)
        busy = keep_busy(target, CONNECTIONS, seconds)
        after, batches_after = _cpu(server.pid), _batches(server.port)
    num = busy.num_good + busy.num_bad
    rows, count = (late - early for early, late in zip(batches, batches_after, strict=True))
    return Live(
        busy.rate,
        (after[0] - before[0]) / num * 1e6,
        (after[1] - before[1]) / num * 1e6,
        rows / count,
    )


def _cpu(pid: int) -> tuple[float, float]:
    front, *workers = tree(pid)
    return front.cpu, sum(worker.cpu for worker in workers)


def _batches(port: int) -> tuple[float, float]:
    """(rows, batches) so far."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        text = answer.read().decode()
    found = {}
    for line in text.splitlines():
        for suffix in ("sum", "count"):
            if line.startswith(f"tailproof_batch_rows_{suffix}"):
                found[suffix] = float(line.rpartition(" ")[2])
    return found["sum"], found["count"]


def report(stages: dict[int, dict[str, Spread]], running: Live) -> None:
    """The table."""
    sizes = list(stages)
    print(f"\nmicroseconds a request, median of {REPEATS} (range), by requests in the batch")
    print(f"{'stage':<10}{'where':<8}" + "".join(f"{size:>24}" for size in sizes))
    for name, side in SIDES.items():
        cells = (stages[size][name] for size in sizes)
        columns = "".join(f"{c.median:>10.2f} ({c.low:.2f}-{c.high:.2f})".rjust(24) for c in cells)
        print(f"{name:<10}{side:<8}{columns}")
    for side in ("front", "worker"):
        sums = (_sum(stages[size], side) for size in sizes)
        print(f"{'sum':<10}{side:<8}" + "".join(f"{total:>24.2f}" for total in sums))
    size = min(sizes, key=lambda size: abs(size - running.mean_batch_rows))
    remainder = running.front_microseconds - _sum(stages[size], "front")
    print(
        f"\nrunning server, one core, {CONNECTIONS} connections: {running.rate:,.0f}/s, "
        f"mean batch {running.mean_batch_rows:.0f} rows\n"
        f"front {running.front_microseconds:.1f} us a request "
        f"(of it {remainder:.1f} outside the stages: HTTP library, event loop, kernel), "
        f"worker {running.worker_microseconds:.1f} us"
    )


def _sum(stages: dict[str, Spread], side: str) -> float:
    return sum(found.median for name, found in stages.items() if SIDES[name] == side)


async def measure(sizes: list[int], seed: int) -> dict[int, dict[str, Spread]]:
    """The stages at each batch size; on a running loop, as in the server."""
    return {size: RequestPath(size, seed).stages() for size in sizes}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 32, 128])
    parser.add_argument("--seconds", type=float, default=5.0, help="of the closed loop")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    known = facts(options.seed)
    print_facts(known)
    affinity = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {CORE})
    stages = asyncio.run(measure(options.sizes, options.seed))
    os.sched_setaffinity(0, affinity)
    processes.pin_client()
    running = live("demo:fraud", options.seconds, options.seed)
    if options.json:
        document = {
            "machine": known,
            "microseconds": {
                str(size): {name: [s.median, s.low, s.high] for name, s in found.items()}
                for size, found in stages.items()
            },
            "running": {name: getattr(running, name) for name in running.__slots__},
        }
        json.dump(document, sys.stdout, indent=1)
        return
    report(stages, running)


if __name__ == "__main__":
    main()
