"""A small server that keeps the promises under test, and breaks the one that `--flaw` names.

It is the negative control: a check that passes on a flawed server checks nothing. It speaks just
enough of the contract for that, with the standard library alone:

    front (HTTP, queue, accounting) -- JSON lines on pipes --> one worker process (sleeps, echoes)
"""

import argparse
import asyncio
import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import urllib.parse
from collections import Counter, deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FLAWS = {
    "dies-on-term": "SIGTERM ends it at once, with everything in flight",
    "closes-first": "SIGTERM closes the listening socket at once",
    "stays-ready": "goes on saying that it is ready while it drains",
    "keeps-alive": "does not tell its callers to leave while it drains",
    "ignores-second-term": "a second SIGTERM changes nothing",
    "waits-for-ever": "waits without a bound for what is in flight",
    "forgets-casualties": "never answers the requests that a dead worker held",
    "late-casualties": "answers them, but seconds later",
    "no-retry-after": "does not say when to come back",
    "leaves-zombies": "does not wait for the worker that died",
    "orphans": "its worker outlives it",
    "ready-too-soon": "says that it is ready while the model still loads",
    "ready-though-failed": "says that it is ready although loading failed",
    "unbounded": "accepts whatever comes",
    "false-gauge": "its queue gauge says 0",
    "computes-cancelled": "computes requests whose callers have left",
    "computes-silently": "the same, and its gauges deny it",
    "leaks-inflight": "its in-flight gauge forgets callers who left",
    "crosses": "now and then gives two callers of one batch each other's answers",
    "miscounts": "does not count every tenth answer",
    "logs-twice": "writes some access records twice",
    "forgets-log": "writes no access record for requests it refuses",
    "torn-lines": "writes a line break inside some records",
    "blocking-log": "writes its log from the event loop",
    "says-200": "answers 200 to everything",
    "closes-silently": "ends the connection after an answer that did not say so",
    "bare": "answers without any header of ours",
    "always-cold": "marks every answer as the first of its replica",
    "poisons-batch": "one failing row fails its whole batch",
}

REASONS = {200: "OK", 429: "Too Many Requests", 503: "Service Unavailable"}


def milliseconds(text: str) -> float:
    """`30ms`, `2s` -> seconds."""
    return float(text[:-2]) / 1000 if text.endswith("ms") else float(text[:-1])


@dataclass
class Settings:
    """The part of the flags and of the `fake:` source that matters here. Seconds and rows."""

    port: int
    flaw: str
    drain_delay: float
    drain_timeout: float
    max_queue: int
    fixed: float = 0.0
    per_row: float = 0.0
    load: float = 0.0
    max_rows: int = 16
    fail_load: str = ""
    fail_value: float | None = None
    hang_value: float | None = None
    log: str = ""


def read_settings(arguments: list[str]) -> Settings:
    """From the command line, as the harness writes it; flags that mean nothing here pass."""
    parser = argparse.ArgumentParser()
    parser.add_argument("source")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--flaw", choices=FLAWS, default="")
    parser.add_argument("--drain-delay", type=milliseconds, default=5.0)
    parser.add_argument("--drain-timeout", type=milliseconds, default=30.0)
    parser.add_argument("--max-queue", type=int, default=10_000)
    flags, _ = parser.parse_known_args(arguments)
    options = vars(flags)
    query = dict(urllib.parse.parse_qsl(options.pop("source").partition("?")[2]))
    for name in ("fixed", "per_row", "load"):
        options[name] = milliseconds(query.get(name, "0s"))
    for name in ("fail_value", "hang_value"):
        options[name] = float(query[name]) if name in query else None
    return Settings(
        **options,
        max_rows=int(query.get("max", "16")),
        fail_load=query.get("fail_load", ""),
        log=query.get("log", ""),
    )


def work(settings: Settings) -> None:
    """The worker process: load, then one batch a line."""
    time.sleep(settings.load)
    print("loaded", flush=True)
    for line in sys.stdin:
        rows = json.loads(line)
        time.sleep(settings.fixed + settings.per_row * len(rows))
        if settings.hang_value in rows:
            time.sleep(3600)
        if settings.log:
            with Path(settings.log).open("a") as log:
                log.write(json.dumps({"rows": len(rows), "values": rows}) + "\n")
        scores = [None if row == settings.fail_value else row for row in rows]
        if settings.flaw == "poisons-batch" and None in scores:
            scores = [None] * len(scores)
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps(scores), flush=True)
    while settings.flaw == "orphans":
        time.sleep(1)


@dataclass(eq=False)
class Job:
    """One prediction in the queue or in a batch."""

    values: list[float]
    answer: "asyncio.Future[list[float | None]]"
    abandoned: bool = False
    cold: bool = False
    batch_rows: int = 0


@dataclass
class Reply:
    """Status, JSON (or text) and headers of one answer."""

    status: int
    content: Any
    headers: dict[str, str] = field(default_factory=dict)


class Log:
    """Writes lines to stdout from a thread of its own, so that a full pipe stops nobody."""

    def __init__(self, flaw: str) -> None:
        self._flaw = flaw
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._count = 0
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not (self._ending.is_set() and self._lines.empty()):
            os.write(1, self._lines.get().encode())

    def write(self, record: dict[str, Any]) -> None:
        """One line a record, but for the flaws."""
        self._count += 1
        line = json.dumps(record) + "\n"
        if self._flaw == "torn-lines" and self._count % 7 == 0:
            line = line.replace(", ", ",\n", 1)
        if self._flaw == "logs-twice" and self._count % 7 == 0:
            line += line
        if self._flaw == "forgets-log" and record["http.response.status_code"] == 429:
            return
        if self._flaw == "blocking-log":
            os.write(1, line.encode())
        else:
            self._lines.put(line)

    async def flush(self) -> None:
        """Give the thread a second to write what is left."""
        self._lines.put("")
        self._ending.set()
        await asyncio.to_thread(self._thread.join, 1.0)


class Front:
    """Queue, batches, worker, accounting."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.flaw = settings.flaw
        self.log = Log(settings.flaw)
        self.waiting: deque[Job] = deque()
        self.batch: list[Job] = []
        self.loaded = False
        self.cold = True
        self.draining = False
        self.inflight = 0
        self.num_batches = 0
        self.received: Counter[str] = Counter()
        self.finished: Counter[tuple[str, str, int, str]] = Counter()
        self.changed = asyncio.Event()
        self.ended = asyncio.Event()
        self.transports: set[asyncio.BaseTransport] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self.worker: subprocess.Popen[bytes] | None = None
        self.buried: list[subprocess.Popen[bytes]] = []

    def start_worker(self) -> None:
        """Start the model process; its lines come to `_read`."""
        self.loaded, self.cold = False, True
        if self.settings.fail_load:
            return
        command = [sys.executable, *sys.argv, "--be-the-worker"]
        self.worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.keep(asyncio.create_task(self._read(self.worker)))

    def keep(self, task: "asyncio.Task[None]") -> None:
        """Hold a task until it is done."""
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _read(self, worker: "subprocess.Popen[bytes]") -> None:
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), worker.stdout
        )
        while line := await reader.readline():
            if line == b"loaded\n":
                self.loaded = True
            else:
                self._finish(json.loads(line))
            self.dispatch()
        await self._bury(worker)

    def _finish(self, scores: list[float | None]) -> None:
        batch, self.batch = self.batch, []
        self.num_batches += 1
        answers = []
        for job in batch:
            answers.append(scores[: len(job.values)])
            del scores[: len(job.values)]
        if self.flaw == "crosses" and self.num_batches % 5 == 0 and len(batch) > 1:
            answers[0], answers[1] = answers[1], answers[0]
        for job, answer in zip(batch, answers, strict=True):
            job.cold = self.cold or self.flaw == "always-cold"
            if not job.answer.done():
                job.answer.set_result(answer)
        self.cold = False

    async def _bury(self, worker: "subprocess.Popen[bytes]") -> None:
        batch, self.batch, self.loaded = self.batch, [], False
        if self.flaw == "late-casualties":
            await asyncio.sleep(4)
        if self.flaw != "forgets-casualties":
            for job in batch:
                job.answer.cancel("worker lost")
        self.buried.append(worker)  # Python itself waits for a child whose object is gone
        if self.flaw != "leaves-zombies":
            await asyncio.to_thread(worker.wait)
        if not self.ended.is_set():
            self.start_worker()

    def dispatch(self) -> None:
        """Hand the next batch to an idle worker."""
        if not self.loaded or self.batch or self.worker is None:
            return
        rows = 0
        while self.waiting and (not rows or rows + len(self.waiting[0].values) <= self.max_rows):
            rows += len(self.waiting[0].values)
            self.batch.append(self.waiting.popleft())
        if rows:
            for job in self.batch:
                job.batch_rows = rows
            line = json.dumps([value for job in self.batch for value in job.values])
            assert self.worker.stdin is not None
            self.worker.stdin.write(line.encode() + b"\n")
            self.worker.stdin.flush()

    @property
    def max_rows(self) -> int:
        """Rows a batch."""
        return self.settings.max_rows

    @property
    def queued_rows(self) -> int:
        """Rows that wait for a batch."""
        return sum(len(job.values) for job in self.waiting if not job.abandoned)

    async def predict(self, body: bytes) -> Reply:
        """Queue a prediction and wait for it. Cancelled when the caller leaves."""
        if self.draining and self.ended.is_set():
            return Reply(503, {"detail": "draining"}, {"Retry-After": "1"})
        rows = json.loads(body)
        values = [row["value"] for row in (rows if isinstance(rows, list) else [rows])]
        if not self.loaded and not self.waiting and self.num_batches == 0:
            return Reply(503, {"detail": "model not loaded"}, {"Retry-After": "1"})
        full = self.queued_rows + len(values) > self.settings.max_queue
        if full and self.waiting and self.flaw != "unbounded":
            return Reply(429, {"detail": "the queue is full"}, {"Retry-After": "1"})
        job = Job(values, asyncio.get_running_loop().create_future())
        self.waiting.append(job)
        self.dispatch()
        try:
            scores = await job.answer
        except asyncio.CancelledError as error:
            if error.args == ("worker lost",):
                return Reply(503, {"detail": "the worker was lost"}, {"Retry-After": "1"})
            if self.flaw == "computes-silently":
                job.abandoned = True
            elif job in self.waiting and self.flaw != "computes-cancelled":
                self.waiting.remove(job)
            raise
        if None in scores:
            return Reply(500, {"detail": "the model raised"})
        content = {"scores": scores} if isinstance(rows, list) else {"score": scores[0]}
        return Reply(200, content, self._headers(job))

    def _headers(self, job: Job) -> dict[str, str]:
        infer = 1000 * (self.settings.fixed + self.settings.per_row * job.batch_rows)
        headers = {
            "Server-Timing": f"queue;dur=0.0, batch;dur=0.0, infer;dur={infer}, total;dur={infer}",
            "X-Batch-Size": str(job.batch_rows),
            "X-Replica": "m-0",
        }
        return headers | ({"X-Cold": "1"} if job.cold else {})

    async def reply(self, method: str, route: str, body: bytes) -> Reply:
        """The answer to one request."""
        if self.flaw == "says-200":
            return Reply(200, {"score": 7.0})
        pages = {
            "/metrics": lambda: Reply(200, self.metrics()),
            "/health": self._health,
            "/health/live": lambda: Reply(200, {"status": "ok"}),
            "/health/ready": self._health,
            "/health/startup": self._health,
        }
        if route in pages:
            return pages[route]()
        if route != "/predict":
            return Reply(404, {"detail": "no such route"})
        if method != "POST":
            return Reply(405, {"detail": "POST only"}, {"Allow": "POST"})
        try:
            return await self.predict(body)
        except (ValueError, KeyError, TypeError):
            return Reply(400, {"detail": "unreadable"})

    def _health(self) -> Reply:
        ready = self.loaded or self.flaw == "ready-too-soon"
        if self.settings.fail_load:
            ready = self.flaw == "ready-though-failed"
        if self.draining and self.flaw != "stays-ready":
            ready = False
        if ready:
            return Reply(200, {"status": "ok"})
        detail = {"detail": "model not loaded", "reason": self.settings.fail_load}
        return Reply(503, detail, {"Retry-After": "1"})

    def metrics(self) -> str:
        """The exposition format, by hand."""
        depth = 0 if self.flaw == "false-gauge" else self.queued_rows
        gauges = {
            "tailproof_inflight_requests": self.inflight,
            "tailproof_queue_rows": depth,
            "tailproof_queue_requests": 0 if self.flaw == "false-gauge" else len(self.waiting),
            "tailproof_queue_capacity_rows": self.settings.max_queue,
        }
        lines = [f'{name}{{model="m"}} {value}' for name, value in gauges.items()]
        lines += [
            f'tailproof_requests_received_total{{model="m",route="{route}"}} {count}'
            for route, count in self.received.items()
        ]
        lines += [
            f'tailproof_requests_total{{model="m",route="{route}",method="{method}",code="{code}",'
            f'outcome="{outcome}"}} {count}'
            for (route, method, code, outcome), count in self.finished.items()
        ]
        shed = sum(n for (_, _, code, _), n in self.finished.items() if code == 429)
        left = sum(n for (_, _, code, _), n in self.finished.items() if code == 499)
        lines.append(f'tailproof_shed_total{{model="m",reason="queue_full"}} {shed}')
        lines.append(f'tailproof_cancelled_total{{model="m",stage="queued"}} {left}')
        return "\n".join(lines) + "\n"

    def account(self, method: str, route: str, status: int, request_id: str) -> None:
        """Count and log one request that has ended."""
        named = {200: "ok", 429: "shed", 499: "cancelled", 504: "timeout"}
        outcome = named.get(status, "failed" if status >= 500 else "client_error")
        counted = sum(self.finished.values()) % 10 or self.flaw != "miscounts"
        if counted or status != 200:
            self.finished[route, method, status, outcome] += 1
        if not (status == 499 and self.flaw == "leaks-inflight"):
            self.inflight -= 1
        self.changed.set()
        self.log.write(
            {
                "event.name": "request",
                "request_id": request_id,
                "http.route": route,
                "http.response.status_code": status,
                "outcome": outcome,
            }
        )

    async def _until_idle(self) -> None:
        while self.inflight:
            self.changed.clear()
            await self.changed.wait()

    async def drain(self, listener: asyncio.Server) -> None:
        """What SIGTERM means."""
        if self.flaw == "dies-on-term":
            os._exit(0)
        self.draining = True
        if self.flaw == "closes-first":
            listener.close()
        await asyncio.sleep(self.settings.drain_delay)
        listener.close()
        bound = None if self.flaw == "waits-for-ever" else self.settings.drain_timeout
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._until_idle(), bound)
        self.ended.set()
        for job in (*self.waiting, *self.batch):
            job.answer.cancel("worker lost")
        self.waiting.clear()
        await asyncio.sleep(0.01)
        await self.log.flush()


class Http(asyncio.Protocol):
    """One connection: requests one after another."""

    def __init__(self, front: Front) -> None:
        self.front = front
        self.buffer = b""
        self.task: asyncio.Task[None] | None = None
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        head, end, rest = self.buffer.partition(b"\r\n\r\n")
        if not end or self.task is not None:
            return
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {line.partition(":")[0].lower(): line.partition(":")[2].strip() for line in lines}
        length = int(headers.get("content-length", "0"))
        if len(rest) >= length:
            self.buffer = rest[length:]
            method, route, _ = first.split(" ")
            self.task = asyncio.create_task(
                self._serve(method, route, rest[:length], headers.get("x-request-id", "none"))
            )
            self.front.keep(self.task)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.task is not None:
            self.task.cancel()

    async def _serve(self, method: str, route: str, body: bytes, request_id: str) -> None:
        front = self.front
        counts = route == "/predict"
        if counts:
            front.received[route] += 1
            front.inflight += 1
        status = 499
        try:
            reply = await front.reply(method, route, body)
            status = reply.status
        finally:
            if counts:
                front.account(method, route, status, request_id)
            self.task = None
        self._write(reply, request_id)

    def _write(self, reply: Reply, request_id: str) -> None:
        front = self.front
        text = reply.content if isinstance(reply.content, str) else json.dumps(reply.content)
        headers = {"Content-Length": str(len(text)), "X-Request-Id": request_id} | reply.headers
        if front.flaw == "no-retry-after":
            headers.pop("Retry-After", None)
        if front.flaw == "bare":
            headers = {"Content-Length": str(len(text))}
        leaves = front.draining and front.flaw != "keeps-alive"
        if leaves:
            headers["Connection"] = "close"
        lines = [f"HTTP/1.1 {reply.status} {REASONS.get(reply.status, 'Status')}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self.transport.write("\r\n".join([*lines, "", text]).encode())
        if leaves or front.flaw == "closes-silently":
            self.transport.close()


async def serve(settings: Settings) -> None:
    """Serve until SIGTERM and the end of the drain."""
    front = Front(settings)
    loop = asyncio.get_running_loop()
    listener = await loop.create_server(
        lambda: Http(front), "127.0.0.1", settings.port, backlog=1024
    )
    front.start_worker()

    def on_term() -> None:
        if not front.draining:
            front.keep(loop.create_task(front.drain(listener)))
        elif settings.flaw != "ignores-second-term":
            front.ended.set()

    loop.add_signal_handler(signal.SIGTERM, on_term)
    await front.ended.wait()
    await asyncio.sleep(0.05)
    if front.worker is not None:
        front.worker.kill()
        front.worker.wait()
    os._exit(0)


if __name__ == "__main__":
    if "--be-the-worker" in sys.argv:
        work(read_settings(sys.argv[1:-1]))
    else:
        asyncio.run(serve(read_settings(sys.argv[1:])))
