"""The servers that the load test is judged by do what they say."""

import asyncio
from pathlib import Path

import pytest

from .http_client import Answer, BadAnswer, Connection, NoAnswer, ask, run
from .prove import BODY, Known, known


def _port(server: Known) -> int:
    return int(server.url.rpartition(":")[2].partition("/")[0])


async def _post(server: Known) -> Answer:
    return await ask(_port(server), "POST", "/predict", BODY.encode())


async def _together(server: Known, num: int) -> list[Answer]:
    """`num` requests at the same moment."""
    connections = [await Connection.open(_port(server)) for _ in range(num)]
    asked = (one.request("POST", "/predict", BODY.encode()) for one in connections)
    return list(await asyncio.gather(*asked))


async def _in_turn(server: Known, num: int) -> list[Answer]:
    return [await _post(server) for _ in range(num)]


def test_one_at_a_time(tmp_path: Path) -> None:
    with known("queue", "--service", "10ms", folder=tmp_path) as server:
        answers = sorted(run(_together(server, 20)), key=lambda one: one.last)

        batches = server.records("rows")
        assert [one["rows"] for one in batches] == [1] * 20
        assert min(one["seconds"] for one in batches) >= 0.010
        busy = sum(one["seconds"] for one in batches)
        assert answers[-1].last - answers[0].sent == pytest.approx(busy, abs=0.05)


def test_batches(tmp_path: Path) -> None:
    flags = ("--service", "5ms", "--per-row", "1ms", "--max-rows", "16")
    with known("queue", *flags, folder=tmp_path) as server:
        run(_together(server, 60))

        batches = server.records("rows")
        assert sum(one["rows"] for one in batches) == 60
        assert 16 in {one["rows"] for one in batches}
        for one in batches:
            assert one["rows"] <= 16
            assert one["seconds"] >= 0.005 + 0.001 * one["rows"]


def test_one_stall_at_its_moment(tmp_path: Path) -> None:
    flags = ("--service", "1ms", "--stall", "300ms", "--stall-at", "100ms")
    with known("queue", *flags, folder=tmp_path) as server:
        run(_in_turn(server, 200))

        first = server.records("started")[0]["started"]
        [stall] = server.records("stalled")
        assert 0.1 <= stall["stalled"] - first < 0.2


def test_unlimited_concurrency(tmp_path: Path) -> None:
    with known("constant", "--service", "104.9ms", folder=tmp_path) as server:
        taken = [one.seconds for one in run(_together(server, 30))]

        assert min(taken) >= 0.1049
        assert sorted(taken)[15] < 0.115


def test_log_normal_times_repeat_with_their_seed(tmp_path: Path) -> None:
    taken = []
    for seed in ("3", "3", "4"):
        flags = ("--service", "20ms", "--spread", "1", "--seed", seed)
        with known("plain", *flags, folder=tmp_path) as server:
            taken.append([one.seconds for one in run(_in_turn(server, 10))])

    assert taken[0] == pytest.approx(taken[1], abs=0.02)
    assert taken[0] != pytest.approx(taken[2], abs=0.02)


def test_everything_stops_now_and_then(tmp_path: Path) -> None:
    flags = ("--service", "3ms", "--stall", "150ms", "--stall-every", "300ms")
    with known("gc", *flags, folder=tmp_path) as server:
        taken = [one.seconds for one in run(_in_turn(server, 150))]

        starts = [one["stalled"] for one in server.records("stalled")]
        assert len(starts) >= 2
        assert starts[1] - starts[0] == pytest.approx(0.3, abs=0.1)
        assert max(taken) > 0.1


def test_the_first_is_cold(tmp_path: Path) -> None:
    with known("cold", "--service", "5ms", "--first", "300ms", folder=tmp_path) as server:
        first, *others = run(_in_turn(server, 5))

    assert first.headers["x-cold"] == "1"
    assert first.seconds >= 0.3
    assert all("x-cold" not in one.headers and one.seconds < 0.2 for one in others)


def test_every_other_request_is_refused(tmp_path: Path) -> None:
    with known("refusing", "--every", "2", folder=tmp_path) as server:
        statuses = [one.status for one in run(_in_turn(server, 6))]

        assert statuses == [200, 503] * 3
        assert len(server.records("arrived")) == 6


@pytest.mark.parametrize(
    ("fault", "how"), [("closes", NoAnswer), ("half-body", NoAnswer), ("garbage", BadAnswer)]
)
def test_broken_answers(tmp_path: Path, fault: str, how: type[Exception]) -> None:
    with known("broken", "--fault", fault, folder=tmp_path) as server, pytest.raises(how):
        run(_post(server))


def test_an_answer_that_never_comes(tmp_path: Path) -> None:
    async def wait(server: Known) -> None:
        connection = await Connection.open(_port(server))
        await connection.request("POST", "/predict", BODY.encode(), patience=0.3)

    with (
        known("broken", "--fault", "silent", folder=tmp_path) as server,
        pytest.raises(NoAnswer, match="no answer in"),
    ):
        run(wait(server))


def test_slow_heads_and_failures(tmp_path: Path) -> None:
    with known("broken", "--fault", "slow-headers", folder=tmp_path) as server:
        assert run(_post(server)).seconds >= 0.5
    with known("broken", "--fault", "500", folder=tmp_path) as server:
        assert run(_post(server)).status == 500
