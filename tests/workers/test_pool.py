"""The supervisor, on real worker processes."""

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tailproof.core.clock import monotonic
from tailproof.models.source import ModelSpec
from tailproof.workers import frames
from tailproof.workers.child import warm_up
from tailproof.workers.pool import (
    FAILED_DELAY_LIMIT,
    FIRST_DELAY,
    SERVED_DELAY_LIMIT,
    Pool,
    State,
    Worker,
    restart_delay,
)


class Told:
    """Remembers what the pool says."""

    def __init__(self) -> None:
        self.ready: list[frames.Loaded] = []
        self.failures: list[frames.LoadFailed] = []
        self.lost: list[tuple[str, set[int]]] = []
        self.results: list[frames.Result | frames.Failed] = []
        self.values: list[list[float]] = []
        self.output: list[str] = []
        self.delays: list[float] = []
        self.stages: list[str] = []

    def worker_progress(self, worker: Worker) -> None:
        self.stages.append(worker.stage)

    def worker_ready(self, _worker: Worker, loaded: frames.Loaded) -> None:
        self.ready.append(loaded)

    def worker_load_failed(self, _worker: Worker, failure: frames.LoadFailed) -> None:
        self.failures.append(failure)

    def worker_lost(self, _worker: Worker, reason: str, batch_ids: set[int]) -> None:
        self.lost.append((reason, batch_ids))

    def worker_restarts(self, _worker: Worker, delay: float) -> None:
        self.delays.append(delay)

    def worker_output(self, _worker: Worker, line: str) -> None:
        self.output.append(line)

    def batch_done(
        self, _worker: Worker, frame: frames.Result | frames.Failed, body: memoryview
    ) -> None:
        self.results.append(frame)
        if isinstance(frame, frames.Result):
            self.values.append(frames.unpack(frame.outputs, body)["score"].tolist())


async def until(condition: Callable[[], Any], what: str, seconds: float = 20.0) -> None:
    try:
        async with asyncio.timeout(seconds):
            while not condition():  # noqa: ASYNC110  it looks at processes, too
                await asyncio.sleep(0.005)
    except TimeoutError:
        pytest.fail(f"not within {seconds:g} s: {what}")


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def with_pool(
    source: str, scenario: Callable[[Pool, Told], Awaitable[None]], size: int = 1, **spec: Any
) -> Told:
    """Run `scenario` on a started pool; afterwards none of its processes is left."""
    told = Told()

    async def run() -> None:
        order = frames.Load(ModelSpec(source=source, name="m", **spec), (1, 2), 1.0)
        pool = Pool(order, size, told, monotonic)
        pool.start()
        pids: set[int] = set()
        try:
            await scenario(pool, told)
            pids = {worker.pid for worker in pool.workers}
        finally:
            await pool.stop()
        assert not any(is_alive(pid) for pid in pids)

    asyncio.run(run())
    return told


def batch(batch_id: int, *values: float) -> tuple[frames.Batch, list[bytes]]:
    buffers, body = frames.pack({"value": np.array(values, dtype=np.float64)})
    return frames.Batch(batch_id, len(values), buffers), body


def test_batches_go_out_and_come_back() -> None:
    async def scenario(pool: Pool, told: Told) -> None:
        await until(lambda: pool.num_ready == 1, "ready")
        assert pool.submit(*batch(1, 1.5, 2.5)) is pool.workers[0]
        pool.submit(*batch(2, 3.5))
        assert pool.workers[0].in_flight == {1, 2}
        await until(lambda: len(told.results) == 2, "both batches")
        assert pool.workers[0].in_flight == set()

    told = with_pool("fake:?fixed=1ms", scenario)
    assert told.values == [[1.5, 2.5], [3.5]]
    assert [rows for rows, _, _ in told.ready[0].samples] == [1, 1, 1, 2, 2, 2]
    result = told.results[0]
    assert result.finished - result.started >= 0.001
    assert told.lost == [("stopped", set())]


def test_the_least_busy_worker_gets_the_batch() -> None:
    async def scenario(pool: Pool, told: Told) -> None:
        await until(lambda: pool.num_ready == 2, "two ready")
        takers = {pool.submit(*batch(number, 1.0)).number for number in (1, 2)}
        assert takers == {0, 1}
        await until(lambda: len(told.results) == 2, "both batches")

    with_pool("fake:?fixed=20ms", scenario, size=2)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_killed_worker_is_told_with_its_batches_and_replaced(number: signal.Signals) -> None:
    async def scenario(pool: Pool, told: Told) -> None:
        await until(lambda: pool.num_ready == 1, "ready")
        pid = pool.workers[0].pid
        pool.submit(*batch(7, 668.0))
        os.kill(pid, number)
        await until(lambda: told.lost, "told of the loss", seconds=5.0)
        assert told.lost == [(f"signal {int(number)}", {7})]
        assert pool.num_ready == 0
        await until(lambda: pool.num_ready == 1, "a successor")
        assert pool.workers[0].pid != pid
        assert not is_alive(pid)

    with_pool("fake:?hang_value=668", scenario)


def test_a_worker_that_ends_itself_is_told_by_its_exit_code() -> None:
    async def scenario(pool: Pool, told: Told) -> None:
        await until(lambda: pool.num_ready == 1, "ready")
        pool.submit(*batch(1, 667.0))
        await until(lambda: told.lost, "told of the loss", seconds=5.0)

    told = with_pool("fake:?exit_value=667", scenario)
    assert told.lost[0] == ("exit 3", {1})


def test_a_raising_model_fails_the_batch_and_the_worker_goes_on() -> None:
    async def scenario(pool: Pool, told: Told) -> None:
        await until(lambda: pool.num_ready == 1, "ready")
        pool.submit(*batch(1, 666.0))
        pool.submit(*batch(2, 1.0))
        await until(lambda: len(told.results) == 2, "both batches")

    told = with_pool("fake:?fail_value=666", scenario)
    assert [type(result) for result in told.results] == [frames.Failed, frames.Result]


def test_a_model_that_cannot_be_loaded_is_told_and_tried_again() -> None:
    async def scenario(pool: Pool, told: Told) -> None:
        await until(lambda: len(told.failures) >= 2, "a second attempt")
        assert pool.num_ready == 0

    told = with_pool("fake:?fail_load=broken", scenario)
    assert told.failures[0].message == "broken"
    assert told.failures[0].stack is None  # our own sentence, which may be shown
    assert told.lost[0][0] == "load_failed"
    assert told.delays[0] == FIRST_DELAY


def test_an_error_of_the_model_comes_with_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken.py").write_text(
        "class Model:\n"
        "    def load(self):\n"
        "        raise ValueError('no weights')\n"
        "    def predict(self, columns):\n"
        "        return columns['value']\n"
    )
    monkeypatch.chdir(tmp_path)

    async def scenario(_pool: Pool, told: Told) -> None:
        await until(lambda: told.failures, "told of the failure")

    told = with_pool("python:broken:Model", scenario)
    stack = told.failures[0].stack
    assert stack is not None
    assert "line 3, in load" in stack
    assert "no weights" in stack


def test_what_the_model_prints_is_relayed_line_by_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "chatty.py").write_text(
        "import sys\n"
        "class Model:\n"
        "    columns = [{'name': 'value', 'type': 'float', 'example': 1.0}]\n"
        "    def predict(self, columns):\n"
        "        print('x' * 70_000)\n"
        "        print('to stderr', file=sys.stderr, flush=True)\n"
        "        print('to stdout', flush=True)\n"
        "        return columns['value']\n"
    )
    monkeypatch.chdir(tmp_path)

    async def scenario(pool: Pool, told: Told) -> None:
        await until(lambda: pool.num_ready == 1, "ready")
        await until(lambda: "to stdout" in told.output, "its output")

    told = with_pool("python:chatty:Model", scenario)
    assert "to stderr" in told.output
    assert max(map(len, told.output)) <= 64 * 2**10


FORKING = """
import os, time
class Model:
    columns = [{'name': 'value', 'type': 'float', 'example': 1.0}]
    def predict(self, columns):
        value = columns['value'][0]
        if value == 2.0 and os.fork() == 0:
            time.sleep(60)
        if value == 3.0:
            os._exit(7)
        return columns['value']
"""


def test_the_death_of_a_model_that_forked_is_seen_and_its_child_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "forking.py").write_text(FORKING)
    monkeypatch.chdir(tmp_path)

    async def scenario(pool: Pool, told: Told) -> None:
        await until(lambda: pool.num_ready == 1, "ready")
        pid = pool.workers[0].pid
        pool.submit(*batch(1, 2.0))
        await until(lambda: told.results, "an answer")
        children = children_of(pid)
        assert len(children) == 1
        pool.submit(*batch(2, 3.0))
        await until(lambda: told.lost, "told of the loss", seconds=5.0)
        assert told.lost == [("exit 7", {2})]
        await until(lambda: not is_running(int(children[0])), "the child's end")

    with_pool("python:forking:Model", scenario)


def test_a_worker_that_is_replaced_is_told_as_stalled() -> None:
    async def scenario(pool: Pool, told: Told) -> None:
        await until(lambda: pool.num_ready == 1, "ready")
        worker = pool.submit(*batch(1, 668.0))
        pool.replace(worker)
        await until(lambda: told.lost, "told of the loss", seconds=5.0)
        assert told.lost == [("stalled", {1})]
        await until(lambda: pool.num_ready == 1, "a successor")

    with_pool("fake:?hang_value=668", scenario)


ODD = """
import numpy as np
class Rude(Exception):
    def __str__(self):
        raise RuntimeError('no')
class Model:
    columns = [{'name': 'value', 'type': 'float', 'example': 0.0}]
    def predict(self, columns):
        match int(columns['value'][0]):
            case 1: return {}
            case 2: raise Rude
            case 3: raise ValueError('\\ud800')
            case 4: return {'\\ud800': columns['value']}
            case 5: raise ValueError('x' * (1 << 24))
            case 6: return np.array([1j])
        return columns['value']
"""


def test_whatever_a_model_does_the_batch_fails_and_the_worker_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "odd.py").write_text(ODD.replace("\\\\", "\\"))
    monkeypatch.chdir(tmp_path)

    async def scenario(pool: Pool, told: Told) -> None:
        await until(lambda: pool.num_ready == 1, "ready")
        for number in range(1, 8):
            pool.submit(*batch(number, float(number)))
        await until(lambda: len(told.results) == 7, "all batches")
        assert told.lost == []

    told = with_pool("python:odd:Model", scenario)
    assert [type(result) for result in told.results] == [*[frames.Failed] * 6, frames.Result]


def test_a_worker_outlives_the_signals_of_a_terminal() -> None:
    async def scenario(pool: Pool, told: Told) -> None:
        await until(lambda: pool.num_ready == 1, "ready")
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(pool.workers[0].pid, number)
        pool.submit(*batch(1, 1.0))
        await until(lambda: told.results, "an answer after the signals")
        assert told.lost == []

    with_pool("fake:", scenario)


@pytest.mark.skipif(sys.platform != "linux", reason="needs PR_SET_PDEATHSIG")
def test_a_worker_that_computes_dies_with_its_front(tmp_path: Path) -> None:
    script = tmp_path / "front.py"
    script.write_text(
        "import asyncio, sys\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "from tests.workers.test_pool import *\n"
        "async def main():\n"
        "    spec = ModelSpec(source='fake:?hang_value=668', name='m')\n"
        "    pool = Pool(frames.Load(spec, (1,), 1.0), 1, Told(), monotonic)\n"
        "    pool.start()\n"
        "    await until(lambda: pool.num_ready == 1, 'ready')\n"
        "    pool.submit(*batch(1, 668.0))\n"
        "    print(pool.workers[0].pid, flush=True)\n"
        "    await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    root = str(Path(__file__).parents[2])

    async def scenario() -> None:
        front = await asyncio.create_subprocess_exec(
            sys.executable, str(script), root, stdout=asyncio.subprocess.PIPE
        )
        assert front.stdout is not None
        worker = int(await asyncio.wait_for(front.stdout.readline(), 20))
        front.kill()
        await front.wait()
        await until(lambda: not is_running(worker), "the worker's end", seconds=5.0)

    asyncio.run(scenario())


def children_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def is_running(pid: int) -> bool:
    """Alive and not a zombie that its new parent has yet to collect."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


@pytest.mark.parametrize(
    ("short_lives", "was_ready", "delay"),
    [
        (0, True, 0.0),
        (1, True, FIRST_DELAY),
        (2, True, 2 * FIRST_DELAY),
        (3, True, SERVED_DELAY_LIMIT),
        (1000, True, SERVED_DELAY_LIMIT),
        (1, False, FIRST_DELAY),
        (7, False, FAILED_DELAY_LIMIT),
        (1000, False, FAILED_DELAY_LIMIT),
    ],
    ids=[
        "after a long life",
        "after one short life",
        "after two",
        "one that served comes back soon",
        "always",
        "a first failed load",
        "after many failed loads",
        "no overflow",
    ],
)
def test_restart_delays(short_lives: int, was_ready: bool, delay: float) -> None:
    assert restart_delay(short_lives, was_ready=was_ready) == delay


def test_warm_up_tries_each_size_and_respects_the_models_own_maximum() -> None:
    from tailproof.models.runtimes import load

    spec = ModelSpec(source="fake:?max=4", name="m")
    samples = warm_up(load(spec, lambda _stage: None), (1, 2, 4, 8, 16), 1.0)
    assert sorted({rows for rows, _, _ in samples}) == [1, 2, 4]
    assert all(seconds >= 0.0 <= cpu for _, seconds, cpu in samples)


def test_warm_up_does_not_try_what_no_slo_allows() -> None:
    from tailproof.models.runtimes import load

    spec = ModelSpec(source="fake:?per_row=10ms", name="m")
    samples = warm_up(load(spec, lambda _stage: None), (1, 2, 4, 8, 16), 0.03)
    assert sorted({rows for rows, _, _ in samples}) == [1, 2, 4]  # 4 rows are the first over 30 ms


def test_states_have_the_names_of_the_metric() -> None:
    from tailproof.telemetry.metrics import WORKER_STATES

    assert {state.value for state in State} == set(WORKER_STATES)
