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
import random
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.parse
from collections import Counter, deque
from dataclasses import dataclass, field
from functools import partial
from math import ceil, inf
from pathlib import Path
from typing import Any, NamedTuple

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
    "blames-another": "names an innocent request when the model raises",
    "blames-nobody": "does not say for whom the model raised",
    "dies-of-poison": "computes nothing any more once the model has raised",
    "ignores-deadlines": "does not look at a caller's own deadline",
    "late-deadlines": "tells a caller that his deadline has passed when it is long past",
    "computes-expired": "computes requests whose deadline has passed",
    "expires-silently": "the same, and its gauges deny it",
    "ignores-terms": "does not look at the headers that say how a caller wants to be treated",
    "gives-up": "refuses whoever has a deadline",
    "keeps-long-deadlines": "lets a caller's deadline replace its own timeout",
    "computes-twice": "says of a request that it computed that it may be sent again",
    "retries-failures": "says the same of a request at which the model raised",
    "denies-retry": "does not say of what it refuses that it may be sent again",
    "counts-requests": "counts requests, not rows, when it fills a batch",
    "takes-any-size": "takes requests of any number of rows",
    "same-retry": "tells everyone to come back after the same time",
    "wild-retry": "tells some to come back at once and some much later",
    "slow-refusals": "takes its time to refuse",
    "computes-refused": "computes what it has refused",
    "stays-shedding": "refuses every second request for ever once it has been overloaded",
    "late-drops": "takes its time to tell those whom it gives up at dispatch",
    "miscounts-drops": "counts them as refused at the door",
    "ignores-priority": "treats all callers alike",
    "refuses-critical": "takes the least important first",
    "starves-batch": "answers nobody of the class `batch`",
    "forgets-waste": "does not count the rows that it computed for nobody",
    "overcounts-waste": "counts rows that it never computed, too",
}

REASONS = {200: "OK", 429: "Too Many Requests", 503: "Service Unavailable"}

MOST_ROWS = 4096
RANKS = {"critical": 0, "normal": 1, "batch": 2}
DEADLINE = re.compile(r"[0-9]+(\.[0-9]*)?|\.[0-9]+")


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
    request_timeout: float
    max_queue: int
    max_batch: int
    slo: list[str]
    fixed: float = 0.0
    per_row: float = 0.0
    load: float = 0.0
    noise: float = 0.0
    fail_load: str = ""
    fail_value: float | None = None
    hang_value: float | None = None
    log: str = ""

    @property
    def threshold(self) -> float:
        """Seconds within which an answer is good; infinite without an SLO."""
        return min((milliseconds(slo.partition("<")[2].strip()) for slo in self.slo), default=inf)

    def seconds(self, rows: int) -> float:
        """What a batch of `rows` rows takes."""
        return self.fixed + self.per_row * rows


def read_settings(arguments: list[str]) -> Settings:
    """From the command line, as the harness writes it; flags that mean nothing here pass."""
    parser = argparse.ArgumentParser()
    parser.add_argument("source")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--flaw", choices=FLAWS, default="")
    parser.add_argument("--drain-delay", type=milliseconds, default=5.0)
    parser.add_argument("--drain-timeout", type=milliseconds, default=30.0)
    parser.add_argument("--request-timeout", type=milliseconds, default=30.0)
    parser.add_argument("--max-queue", type=int, default=10_000)
    parser.add_argument("--max-batch", type=int, default=256)
    parser.add_argument("--slo", action="append", default=[])
    flags, _ = parser.parse_known_args(arguments)
    options = vars(flags)
    query = dict(urllib.parse.parse_qsl(options.pop("source").partition("?")[2]))
    for name in ("fixed", "per_row", "load"):
        options[name] = milliseconds(query.get(name, "0s"))
    for name in ("fail_value", "hang_value"):
        options[name] = float(query[name]) if name in query else None
    options["max_batch"] = min(options["max_batch"], int(query.get("max", "256")))
    return Settings(
        **options,
        noise=float(query.get("noise", "0")),
        fail_load=query.get("fail_load", ""),
        log=query.get("log", ""),
    )


def work(settings: Settings) -> None:
    """The worker process: load, then one batch a line."""
    time.sleep(settings.load)
    print("loaded", flush=True)
    draw = random.Random(0)
    for line in sys.stdin:
        rows = json.loads(line)
        started = time.monotonic()
        time.sleep(settings.seconds(len(rows)) * max(0.0, draw.gauss(1.0, settings.noise)))
        hangs, fails = settings.hang_value in rows, settings.fail_value in rows
        if settings.log:
            batch = {
                "started": started,
                "finished": time.monotonic(),
                "rows": len(rows),
                "values": rows,
                "outcome": "hang" if hangs else "fail" if fails else "ok",
            }
            with Path(settings.log).open("a") as log:
                log.write(json.dumps(batch) + "\n")
        if hangs:
            time.sleep(3600)
        with contextlib.suppress(BrokenPipeError):
            print("null" if fails else json.dumps(rows), flush=True)
    while settings.flaw == "orphans":
        time.sleep(1)


@dataclass
class Reply:
    """Status, JSON (or text) and headers of one answer."""

    status: int
    content: Any
    headers: dict[str, str] = field(default_factory=dict)
    retryable: bool = False


@dataclass(eq=False)
class Job:
    """One prediction in the queue or in a batch. `arrived` and `deadline` are on the clock of
    the event loop."""

    request_id: str
    values: list[float]
    is_list: bool
    rank: int
    arrived: float
    deadline: float
    answer: "asyncio.Future[Reply]"
    taken: int = 0
    """Rows that were handed out in batches."""
    scores: list[float] = field(default_factory=list)
    missing: int = 0
    gone: str = ""
    """Why nobody waits for it any more: `cancelled`, `timeout` or `failed`."""
    abandoned: bool = False
    """It waits although its caller has left, and nobody is to know."""

    @property
    def waiting_rows(self) -> int:
        """Rows that wait for a batch."""
        return len(self.values) - self.taken


class Part(NamedTuple):
    """Rows [start, stop) of one request."""

    job: Job
    start: int
    stop: int

    @property
    def rows(self) -> list[float]:
        """The values of these rows."""
        return self.job.values[self.start : self.stop]


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
        if self._flaw == "forgets-log" and record.get("http.response.status_code") == 429:
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
        self.batch: list[Part] = []
        self.halves: list[list[Part]] = []
        """Of batches in which the model raised: to be computed again, before anything else."""
        self.busy_until = 0.0
        self.loaded = False
        self.cold = True
        self.draining = False
        self.inflight = 0
        self.num_batches = 0
        self.num_refused = 0
        self.last_answered = "none"
        self.received: Counter[str] = Counter()
        self.finished: Counter[tuple[str, str, int, str]] = Counter()
        self.causes: Counter[tuple[str, str, str]] = Counter()
        """(metric, label, its value) -> count."""
        self.changed = asyncio.Event()
        self.ended = asyncio.Event()
        self.transports: set[asyncio.BaseTransport] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self.worker: subprocess.Popen[bytes] | None = None
        self.buried: list[subprocess.Popen[bytes]] = []
        self.random = random.Random(1)
        self.now = asyncio.get_running_loop().time

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
        reader = asyncio.StreamReader(limit=2**24)
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

    # What comes back

    def _finish(self, scores: list[float] | None) -> None:
        """The batch is back; without scores, the model raised."""
        parts, self.batch = self.batch, []
        self.num_batches += 1
        if scores is None:
            self._isolate(parts)
            return
        answers = []
        for part in parts:
            answers.append(scores[: part.stop - part.start])
            del scores[: part.stop - part.start]
        if self.flaw == "crosses" and self.num_batches % 5 == 0 and len(parts) > 1:
            answers[0], answers[1] = answers[1], answers[0]
        num_rows = sum(map(len, answers))
        for part, answer in zip(parts, answers, strict=True):
            job = part.job
            job.scores += answer  # the parts of a job are computed in order
            job.missing -= part.stop - part.start
            if job.missing == 0:
                self._end(job, self._answer(job, num_rows))
                self.last_answered = job.request_id
        self.cold = False

    def _count_waste(self, job: Job) -> None:
        """Of a request that has ended without an answer: what was, or is being, computed of it."""
        rows = len(job.values) if job.taken and self.flaw == "overcounts-waste" else job.taken
        if self.flaw != "forgets-waste":
            self.causes["wasted_rows", "reason", job.gone] += rows

    def _isolate(self, parts: list[Part]) -> None:
        """Halve a failed batch until only the guilty request is left."""
        if self.flaw == "dies-of-poison":
            self.loaded = False
        if len(parts) > 1 and self.flaw != "poisons-batch":
            middle = len(parts) // 2
            self.halves += [parts[:middle], parts[middle:]]
            return
        for job in {part.job for part in parts}:
            self._end(job, _failed(retryable=self.flaw == "retries-failures"), "failed")
        guilty = parts[0].job.request_id
        if self.flaw == "blames-another":
            guilty = self.last_answered
        named = {} if self.flaw == "blames-nobody" else {"request_id": guilty}
        self.log.write({"event.name": "model.raised"} | named)

    def _answer(self, job: Job, batch_rows: int) -> Reply:
        infer = 1000 * self.settings.seconds(batch_rows)
        headers = {
            "Server-Timing": f"queue;dur=0.0, batch;dur=0.0, infer;dur={infer}, total;dur={infer}",
            "X-Batch-Size": str(batch_rows),
            "X-Replica": "m-0",
        }
        if self.cold or self.flaw == "always-cold":
            headers["X-Cold"] = "1"
        content = {"scores": job.scores} if job.is_list else {"score": job.scores[0]}
        return Reply(200, content, headers)

    def _end(self, job: Job, reply: Reply, gone: str = "") -> None:
        """Tell the caller, and let the job leave the queue."""
        if not job.answer.done():
            job.answer.set_result(reply)
        job.gone = job.gone or gone
        if job in self.waiting:
            self.waiting.remove(job)

    async def _bury(self, worker: "subprocess.Popen[bytes]") -> None:
        parts, self.batch, self.loaded = self.batch, [], False
        if self.flaw == "late-casualties":
            await asyncio.sleep(4)
        if self.flaw != "forgets-casualties":
            for part in parts:
                self._end(part.job, self._unavailable("the worker was lost"), "failed")
        self.buried.append(worker)  # Python itself waits for a child whose object is gone
        if self.flaw != "leaves-zombies":
            await asyncio.to_thread(worker.wait)
        if not self.ended.is_set():
            self.start_worker()

    # What goes out

    def dispatch(self) -> None:
        """Hand the next batch to an idle worker."""
        if not self.loaded or self.batch or self.worker is None:
            return
        while self.halves and not self.batch:
            self.batch = [part for part in self.halves.pop(0) if not part.job.gone]
        self.batch = self.batch or self._take()
        if self.batch:
            values = [value for part in self.batch for value in part.rows]
            self.busy_until = self.now() + self.settings.seconds(len(values))
            assert self.worker.stdin is not None
            self.worker.stdin.write(json.dumps(values).encode() + b"\n")
            self.worker.stdin.flush()

    def _take(self) -> list[Part]:
        """The next batch, the most important first, without those for whom it comes too late."""
        now = self.now()
        for job in [job for job in self.waiting if job.deadline <= now]:
            self._expire(job)
        self._drop(now)
        room, parts = self.settings.max_batch, []
        for job in sorted(self.waiting, key=lambda job: job.rank):
            if not room:
                break
            stop = job.taken + min(job.waiting_rows, room)
            room -= 1 if self.flaw == "counts-requests" else stop - job.taken
            if self.flaw == "counts-requests":
                stop = len(job.values)
            parts.append(Part(job, job.taken, stop))
            job.taken = stop
            if job.waiting_rows == 0:
                self.waiting.remove(job)
        return parts

    def _drop(self, now: float) -> None:
        """Give up those whom even the next batch cannot answer in time."""
        if self.flaw == "unbounded":
            return
        finish = now + self.settings.seconds(min(self.queued_rows, self.settings.max_batch))
        late = [job for job in self.waiting if job.arrived + self.settings.threshold < finish]
        for job in [job for job in late if not job.taken]:
            self.waiting.remove(job)
            reason = "queue_full" if self.flaw == "miscounts-drops" else "dropped"
            told = partial(self._end, job, self._shed(reason, 0.1))
            if self.flaw == "late-drops":
                asyncio.get_running_loop().call_later(0.5, told)
            else:
                told()

    @property
    def queued_rows(self) -> int:
        """Rows that wait for a batch."""
        return sum(job.waiting_rows for job in self.waiting if not job.abandoned)

    # What comes in

    async def predict(self, body: bytes, headers: dict[str, str]) -> Reply:
        """Queue a prediction and wait for it. Cancelled when the caller leaves."""
        if self.draining and self.ended.is_set():
            return self._unavailable("draining")
        rows = json.loads(body)
        values = [row["value"] for row in (rows if isinstance(rows, list) else [rows])]
        if not all(isinstance(value, int | float) for value in values):
            return Reply(422, {"detail": "not a number"})
        if len(values) > MOST_ROWS and self.flaw != "takes-any-size":
            return Reply(413, {"detail": f"more than {MOST_ROWS} rows"})
        if not self.loaded and not self.waiting and self.num_batches == 0:
            return self._unavailable("model not loaded")
        job = self._job(values, headers, is_list=isinstance(rows, list))
        if (refusal := self._refusal(job, headers)) is not None:
            if self.flaw == "computes-refused":
                self.waiting.append(job)
            if self.flaw == "slow-refusals":
                await asyncio.sleep(1.0)
            return refusal
        return await self._outcome(job)

    def _job(self, values: list[float], headers: dict[str, str], *, is_list: bool) -> Job:
        """Raises ValueError on a header that cannot be read."""
        request_id = headers.get("x-request-id", "none")
        if self.flaw == "ignores-terms":
            headers = {}
        rank = RANKS[headers.get("x-priority", "normal").lower()]
        seconds = self.settings.request_timeout
        if (text := headers.get("x-request-timeout-ms")) is not None:
            asked = float(text) / 1000 if DEADLINE.fullmatch(text) else -1.0
            if not 0 < asked < inf:
                raise ValueError(text)
            seconds = asked if self.flaw == "keeps-long-deadlines" else min(seconds, asked)
        if self.flaw == "ignores-deadlines":
            seconds = self.settings.request_timeout
        if self.flaw in ("ignores-priority", "refuses-critical"):
            rank = 2 - rank if self.flaw == "refuses-critical" else 1
        return Job(
            request_id=request_id,
            values=values,
            is_list=is_list,
            rank=rank,
            arrived=self.now(),
            deadline=self.now() + seconds,
            answer=asyncio.get_running_loop().create_future(),
            missing=len(values),
        )

    def _refusal(self, job: Job, headers: dict[str, str]) -> Reply | None:
        """What a caller is told whose request is not taken."""
        if self.flaw == "unbounded":
            return None
        excess = self.queued_rows + len(job.values) - self.settings.max_queue
        if (excess > 0 and self.waiting) or self._starves(headers):
            return self._shed("queue_full", max(0.1, self.settings.seconds(max(excess, 0))))
        finish = self._predicted_finish(job)
        looks = self.flaw not in ("late-deadlines", "computes-expired", "expires-silently")
        gives_up = self.flaw == "gives-up" and "x-request-timeout-ms" in headers
        if gives_up or (finish > job.deadline and looks):
            return self._too_late("door", executed=False)
        is_idle = not self.waiting and not self.batch
        late = finish - job.arrived - self.settings.threshold
        if (late > 0 and not is_idle) or self._is_punished():
            self.num_refused += 1
            return self._shed("hopeless", max(0.1, late))
        return None

    def _starves(self, headers: dict[str, str]) -> bool:
        return self.flaw == "starves-batch" and headers.get("x-priority") == "batch"

    def _is_punished(self) -> bool:
        return self.flaw == "stays-shedding" and self.num_refused > 100 and random.random() < 0.5

    def _predicted_finish(self, job: Job) -> float:
        """When it will be answered: behind all that waits and is as important."""
        ahead = sum(other.waiting_rows for other in self.waiting if other.rank <= job.rank)
        largest = self.settings.max_batch
        num_full, rest = divmod(ahead + len(job.values), largest)
        seconds = num_full * self.settings.seconds(largest)
        if rest:
            seconds += self.settings.seconds(rest)
        return max(self.now(), self.busy_until if self.batch else 0.0) + seconds

    async def _outcome(self, job: Job) -> Reply:
        self.waiting.append(job)
        self.dispatch()
        late = 0.3 if self.flaw == "late-deadlines" else 0.0
        timer = asyncio.get_running_loop().call_at(job.deadline + late, self._expire, job)
        try:
            return await job.answer
        except asyncio.CancelledError:
            self._abandon(job)
            raise
        finally:
            timer.cancel()

    def _abandon(self, job: Job) -> None:
        """The caller has left."""
        self.causes["cancelled", "stage", "execute" if job.taken else "queue"] += 1
        job.gone = "cancelled"
        self._count_waste(job)
        if self.flaw == "computes-silently":
            job.abandoned = True
        elif job in self.waiting and self.flaw != "computes-cancelled":
            self.waiting.remove(job)

    def _expire(self, job: Job) -> None:
        """The deadline has passed."""
        if job.answer.done():
            return
        executed = job.taken > 0
        reply = self._too_late("execute" if executed else "queue", executed=executed)
        self._end(job, reply, "timeout")
        self._count_waste(job)
        if self.flaw in ("computes-expired", "expires-silently") and not executed:
            job.deadline = inf
            job.abandoned = self.flaw == "expires-silently"
            self.waiting.append(job)

    # Refusals

    def _shed(self, reason: str, seconds: float) -> Reply:
        self.causes["shed", "reason", reason] += 1
        return self._come_back(Reply(429, {"detail": f"refused: {reason}"}), seconds)

    def _unavailable(self, why: str) -> Reply:
        return self._come_back(Reply(503, {"detail": why}), 1.0)

    def _too_late(self, stage: str, *, executed: bool) -> Reply:
        self.causes["deadline_exceeded", "stage", stage] += 1
        reply = Reply(504, {"detail": "the deadline has passed"})
        if executed and self.flaw != "computes-twice":
            return reply
        return self._come_back(reply, 0.1)

    def _come_back(self, reply: Reply, seconds: float) -> Reply:
        """Say that the request may be sent again, and when."""
        seconds *= {
            "same-retry": 1.0,
            "wild-retry": self.random.uniform(0.2, 3.0),
        }.get(self.flaw, self.random.uniform(0.8, 1.2))
        reply.headers["Retry-After"] = str(max(1, ceil(seconds)))
        reply.content["retry_after_ms"] = round(seconds * 1000)
        reply.retryable = self.flaw != "denies-retry"
        return reply

    # Pages

    async def reply(self, method: str, route: str, body: bytes, headers: dict[str, str]) -> Reply:
        """The answer to one request."""
        if self.flaw == "says-200":
            return Reply(200, {"score": 7.0})
        if route != "/predict":
            return self._page(route)
        if method != "POST":
            return Reply(405, {"detail": "POST only"}, {"Allow": "POST"})
        if headers.get("content-type", "application/json") != "application/json":
            return Reply(415, {"detail": "JSON only"})
        try:
            return await self.predict(body, headers)
        except (ValueError, KeyError, TypeError):
            return Reply(400, {"detail": "unreadable"})

    def _page(self, route: str) -> Reply:
        pages = {
            "/metrics": lambda: Reply(200, self.metrics()),
            "/health": self._health,
            "/health/live": lambda: Reply(200, {"status": "ok"}),
            "/health/ready": self._health,
            "/health/startup": self._health,
        }
        return pages[route]() if route in pages else Reply(404, {"detail": "no such route"})

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
        lines += [
            f'tailproof_{metric}_total{{model="m",{label}="{value}"}} {count}'
            for (metric, label, value), count in self.causes.items()
        ]
        return "\n".join(lines) + "\n"

    def account(self, method: str, route: str, reply: Reply, request_id: str) -> None:
        """Count and log one request that has ended."""
        status = reply.status
        named = {200: "ok", 429: "shed", 499: "cancelled", 504: "timeout"}
        outcome = named.get(status, "failed" if status >= 500 else "client_error")
        if route == "/predict":
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
                "retryable": reply.retryable,
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
        for job in (*self.waiting, *(part.job for part in self.batch)):
            self._end(job, self._unavailable("the server is stopping"), "failed")
        await asyncio.sleep(0.01)
        await self.log.flush()


def _failed(*, retryable: bool) -> Reply:
    return Reply(500, {"detail": "the model raised"}, retryable=retryable)


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
            self.task = asyncio.create_task(self._serve(method, route, rest[:length], headers))
            self.front.keep(self.task)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.task is not None:
            self.task.cancel()

    async def _serve(self, method: str, route: str, body: bytes, headers: dict[str, str]) -> None:
        front, request_id = self.front, headers.get("x-request-id", "none")
        counts = route == "/predict"
        if counts:
            front.received[route] += 1
            front.inflight += 1
        reply = Reply(499, "")
        try:
            reply = await front.reply(method, route, body, headers)
        finally:
            if counts or reply.status >= 400:
                front.account(method, route, reply, request_id)
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
