"""The batcher carries out the policy's decisions: rows out, values back to their owners."""

import asyncio
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tailproof.core.errors import ModelFailed, RequestError, Shed, Unavailable
from tailproof.core.latency_model import LatencyModel
from tailproof.core.policy import Limits, Policy, Priority
from tailproof.core.timeline import Timeline
from tailproof.serving.batcher import Answer, Batcher
from tailproof.workers import frames
from tailproof.workers.pool import Worker


class Asked:
    """A request that remembers how it ended."""

    def __init__(self, *values: float) -> None:
        self.rows = [{"value": value} for value in values]
        self.arrived = 0.0
        self.deadline = math.inf
        self.priority = Priority.NORMAL
        self.request_id = "of a test"
        self.timeline = Timeline()
        self.answer: Answer | None = None
        self.error: RequestError | None = None
        self.num_ends = 0

    def completed(self, answer: Answer) -> None:
        self.answer = answer
        self.num_ends += 1

    def failed(self, error: RequestError) -> None:
        self.error = error
        self.num_ends += 1


class Workers:
    """Stands in for the pool: keeps the batches until the test lets them come back."""

    def __init__(self, size: int) -> None:
        self.workers = [Worker(number) for number in range(size)]
        self.num_ready = size
        self.sent: list[tuple[Worker, frames.Batch, bytes]] = []

    def submit(self, batch: frames.Batch, body: list[bytes]) -> Worker:
        worker = min(self.workers, key=lambda worker: len(worker.in_flight))
        worker.in_flight.add(batch.batch_id)
        self.sent.append((worker, batch, b"".join(body)))
        return worker


class Ignored:
    """Nobody watches the batches."""

    def batch(self, *_: Any) -> None: ...

    def batch_failed(self, *_: Any) -> None: ...

    def bug(self, *_: Any) -> None: ...


class Bench:
    """A batcher on a clock that stands still, with workers that echo `value` on command."""

    def __init__(self, workers: int = 1, **limits: Any) -> None:
        self.now = 1.0
        self.workers = Workers(workers)
        policy = Policy(Limits(**limits), LatencyModel(), lambda: 0.5)
        self.batcher = Batcher(
            policy,
            self.workers,  # type: ignore[arg-type]
            lambda rows: {"value": np.array([row["value"] for row in rows], dtype=np.float64)},
            Ignored(),
            lambda: self.now,
        )
        self.batcher.workers_changed()

    async def ask(self, *values: float) -> Asked:
        asked = Asked(*values)
        self.batcher.submit(asked)
        await self.turn()
        return asked

    async def turn(self) -> None:
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    async def finish(self, index: int = 0) -> list[float]:
        """The batch at `index` of those in flight comes back; its values."""
        worker, batch, body = self.workers.sent.pop(index)
        worker.in_flight.discard(batch.batch_id)
        arrays = frames.unpack(batch.columns, memoryview(body))
        described, data = frames.pack({"score": arrays["value"]})
        result = frames.Result(batch.batch_id, 1.0, 1.0, 0.0, 0.0, described)
        self.batcher.done(worker, result, memoryview(b"".join(data)))
        await self.turn()
        return list(arrays["value"].tolist())

    async def fail(self, index: int = 0) -> None:
        worker, batch, _ = self.workers.sent.pop(index)
        worker.in_flight.discard(batch.batch_id)
        failed = frames.Failed(
            batch.batch_id, 1.0, 1.0, "ValueError", "of the model's own", "a stack"
        )
        self.batcher.done(worker, failed, memoryview(b""))
        await self.turn()

    def die(self, index: int = 0) -> None:
        worker, batch, _ = self.workers.sent.pop(index)
        worker.in_flight.clear()
        self.workers.num_ready -= 1
        self.batcher.lost({batch.batch_id})
        self.batcher.workers_changed()


def on_a_loop(scenario: Callable[[], Any]) -> None:
    asyncio.run(scenario())


def test_what_arrives_while_the_worker_is_busy_goes_together() -> None:
    async def scenario() -> None:
        bench = Bench()
        first = await bench.ask(1)
        others = [await bench.ask(number) for number in (2, 3, 4)]
        assert len(bench.workers.sent) == 1
        assert await bench.finish() == [1]
        assert await bench.finish() == [2, 3, 4]
        assert [a.answer.outputs for a in (first, *others) if a.answer] == [
            {"score": [number]} for number in (1, 2, 3, 4)
        ]
        assert [a.answer.batch_rows for a in (first, *others) if a.answer] == [1, 3, 3, 3]
        assert [a.answer.cold for a in (first, *others) if a.answer] == [True, *[False] * 3]

    on_a_loop(scenario)


@settings(
    max_examples=200,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=8),
    picks=st.lists(st.integers(0, 7), min_size=60, max_size=60),
    workers=st.integers(1, 4),
)
def test_values_return_to_their_rows_in_whatever_order_batches_end(
    sizes: list[int], picks: list[int], workers: int
) -> None:
    async def scenario() -> None:
        bench = Bench(workers, max_batch_rows=4, max_queue_rows=1000)
        first = [1000.0 * number for number in range(len(sizes))]
        asked = [
            await bench.ask(*(start + row for row in range(size)))
            for start, size in zip(first, sizes, strict=True)
        ]
        for pick in picks:
            if bench.workers.sent:
                await bench.finish(pick % len(bench.workers.sent))
        for one in asked:
            assert one.num_ends == 1
            assert one.answer is not None
            assert one.answer.outputs["score"] == [row["value"] for row in one.rows]

    on_a_loop(scenario)


def test_a_raising_model_fails_its_batch_and_no_other() -> None:
    async def scenario() -> None:
        bench = Bench(max_batch_rows=2)
        bad = await bench.ask(1, 2, 3)  # its first two rows fail; the third never runs
        good = await bench.ask(4)
        await bench.fail()
        assert isinstance(bad.error, ModelFailed)
        assert "own" not in str(bad.error.detail)  # the model's words are for the log
        assert await bench.finish() == [4]
        assert good.answer is not None
        assert bad.num_ends == 1

    on_a_loop(scenario)


def test_an_answer_that_cannot_be_written_leaves_nobody_waiting() -> None:
    async def scenario() -> None:
        bench = Bench()
        first = await bench.ask(1)
        unwritable, other = await bench.ask(2), await bench.ask(3)

        def broken(_answer: Answer) -> None:
            raise TypeError

        unwritable.completed = broken  # type: ignore[method-assign]
        await bench.finish()
        await bench.finish()
        assert first.answer is not None
        assert isinstance(unwritable.error, ModelFailed)
        assert other.num_ends == 1

    on_a_loop(scenario)


def test_a_batch_that_does_not_come_back_is_noticed() -> None:
    async def scenario() -> None:
        bench = Bench()
        await bench.ask(1)
        assert bench.batcher.stalled(0.5) == set()
        bench.now = 1.5
        assert bench.batcher.stalled(0.5) == set()
        bench.now = 1.6
        assert bench.batcher.stalled(0.5) == {bench.workers.workers[0]}
        await bench.finish()
        assert bench.batcher.stalled(0.5) == set()

    on_a_loop(scenario)


def test_a_dead_worker_fails_what_it_had_and_what_nobody_is_left_to_do() -> None:
    async def scenario() -> None:
        bench = Bench()
        in_flight, waiting = await bench.ask(1), await bench.ask(2)
        bench.die()
        assert isinstance(in_flight.error, Unavailable)
        assert isinstance(waiting.error, Unavailable)
        assert in_flight.error.retryable

    on_a_loop(scenario)


def test_a_worker_that_dies_before_the_turn_leaves_nobody_in_between() -> None:
    async def scenario() -> None:
        bench = Bench()
        asked = Asked(1)
        bench.batcher.submit(asked)
        bench.workers.num_ready = 0  # seen by the pool, not told yet
        await bench.turn()
        assert bench.workers.sent == []
        bench.batcher.workers_changed()
        assert isinstance(asked.error, Unavailable)

    on_a_loop(scenario)


def test_another_worker_takes_what_had_not_left_yet() -> None:
    async def scenario() -> None:
        bench = Bench(workers=2)
        first, second = await bench.ask(1), await bench.ask(2)
        waiting = await bench.ask(3)
        bench.die()
        await bench.turn()
        assert isinstance(first.error, Unavailable)
        assert waiting.num_ends == second.num_ends == 0
        await bench.finish()
        assert await bench.finish() == [3]
        assert waiting.answer is not None

    on_a_loop(scenario)


def test_one_who_has_left_is_not_computed() -> None:
    async def scenario() -> None:
        bench = Bench()
        await bench.ask(1)
        left, stays = await bench.ask(2, 3), await bench.ask(4)
        assert bench.batcher.withdraw(left) == ("queue", 0)
        assert bench.batcher.withdraw(left) == ("door", 0)
        await bench.finish()
        assert await bench.finish() == [4]
        assert left.num_ends == 0
        assert stays.num_ends == 1

    on_a_loop(scenario)


def test_one_who_leaves_while_computed_is_not_answered() -> None:
    async def scenario() -> None:
        bench = Bench()
        left = await bench.ask(1)
        assert bench.batcher.withdraw(left) == ("execute", 1)
        await bench.finish()
        assert left.num_ends == 0

    on_a_loop(scenario)


def test_a_full_queue_sheds_with_the_time_to_come_back() -> None:
    async def scenario() -> None:
        bench = Bench(max_queue_rows=2)
        await bench.ask(1)
        await bench.ask(2, 3)
        with pytest.raises(Shed) as refused:
            await bench.ask(4)
        assert refused.value.reason == "queue_full"
        assert refused.value.retry_after is not None
        assert refused.value.retry_after > 0
        assert await bench.finish() == [1]
        assert await bench.finish() == [2, 3]

    on_a_loop(scenario)


def test_stamps_say_where_the_time_went() -> None:
    async def scenario() -> None:
        bench = Bench()
        asked = await bench.ask(1)
        await bench.finish()
        timeline = asked.timeline
        assert timeline.admitted == timeline.dispatched == timeline.finished == 1.0
        assert timeline.queue_seconds == timeline.batch_seconds == 0.0

    on_a_loop(scenario)
