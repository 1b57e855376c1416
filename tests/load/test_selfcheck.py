"""The tester in the number is found, a healthy one is not accused; every signal has its control."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tailproof.core.arrivals import poisson
from tailproof.core.queues import one_at_a_time
from tailproof.core.recording import (
    NO_SOCKET,
    NOT_CONNECTED,
    TIMED_OUT,
    UNANSWERED,
    UNSENT,
    Floats,
    Recording,
)
from tailproof.load import selfcheck
from tailproof.load.generator import Generator as Senders
from tailproof.load.selfcheck import Surroundings, check, lag_limit, split_agrees
from tailproof.load.steps import SenderFacts, Sent, StepPlan
from tailproof.load.target import build
from tailproof.reporting.document import Generator, ServerView, Signal

RATE, WARM_UP, END = 500.0, 0.5, 5.5
SLO = 0.100


def planned(seed: int = 1, rate: float = RATE, **known: Any) -> StepPlan:
    intended = poisson(rate, END, seed)
    return StepPlan(intended, WARM_UP, END, np.zeros(len(intended), np.int32), **known)


def sent_with(plan: StepPlan, lag: Floats, service: float = 0.010) -> Recording:
    """Every request was sent `lag` late and answered."""
    sent = plan.intended + lag
    return replace(
        Recording.empty(plan.intended),
        woke=sent,
        acquired=sent,
        sent=sent,
        first_byte=sent + service,
        last=sent + service,
        status=np.full(len(sent), 200, np.int32),
    )


def on_time(plan: StepPlan, service: float = 0.010) -> Recording:
    rng = np.random.default_rng(0)
    return sent_with(plan, rng.exponential(50e-6, len(plan.intended)), service)


def facts(**known: Any) -> SenderFacts:
    healthy: dict[str, Any] = {
        "pid": 1,
        "cpu": 0.3,
        "wall": 5.5,
        "run_queue_wait": 0.01,
        "loop_lag": np.full(100, 50e-6),
        "gc_pauses": np.array([]),
        "max_in_flight": 20,
        "num_connections": 20,
        "involuntary_switches": 3,
        "cores": (0,),
    }
    return SenderFacts(**(healthy | known))


def judged(
    plan: StepPlan,
    recording: Recording,
    *,
    threshold: float | None = SLO,
    surroundings: Surroundings | None = None,
    server: ServerView | None = None,
    stopped_at: float | None = None,
    **known: Any,
) -> Generator:
    sent = Sent(recording, 0.0, END, (facts(**known),), stopped_at)
    around = surroundings or Surroundings(root=Path("/nowhere"))
    return check(plan, sent, threshold, around, server)


def bad(found: Generator) -> set[str]:
    return {signal.name for signal in found.signals if signal.bad}


def signal(found: Generator, name: str) -> Signal:
    return next(one for one in found.signals if one.name == name)


# --- what makes a step invalid --------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_a_healthy_tester_is_not_accused(seed: int) -> None:
    plan = planned(seed)

    found = judged(plan, on_time(plan))

    assert found.ok
    assert bad(found) == set()


@pytest.mark.parametrize(
    ("share_late", "lag", "threshold", "service", "ok"),
    [
        (0.02, 0.003, 0.100, 0.010, False),  # above 1 ms, and above 2% of the median
        (0.02, 0.0009, 0.100, 0.010, True),  # a lag below 1 ms never counts
        (0.005, 0.050, 0.100, 0.010, True),  # fewer than 1% are late
        (0.02, 0.003, 0.100, 0.200, True),  # 2% of the median is 4 ms
        (0.02, 0.006, 0.100, 1.000, False),  # 5% of the SLO is 5 ms, whatever the median is
        (0.02, 0.003, None, 1.000, False),  # without an SLO 1 ms is the limit
    ],
)
def test_late_sends(
    share_late: float, lag: float, threshold: float | None, service: float, ok: bool
) -> None:
    plan = planned()
    late = np.random.default_rng(2).random(len(plan.intended)) < share_late
    recording = sent_with(plan, np.where(late, lag, 50e-6), service)

    found = judged(plan, recording, threshold=threshold)

    assert found.ok == ok
    assert signal(found, "send_lag").bad == (not ok)
    assert signal(found, "send_lag").limit == lag_limit(recording, threshold)


def test_lag_in_the_warm_up_does_not_count() -> None:
    plan = planned()
    late = np.where(plan.intended < WARM_UP, 0.1, 50e-6)

    assert judged(plan, sent_with(plan, late)).ok


def test_time_in_which_the_server_took_a_connection_is_not_the_testers() -> None:
    plan = planned()
    recording = sent_with(plan, np.full(len(plan.intended), 0.020))
    theirs = replace(recording, accept_wait=np.full(len(recording), 0.0199))

    assert not judged(plan, recording).ok
    assert judged(plan, theirs, threshold=1.0).ok


def test_requests_that_never_left_are_a_shortfall() -> None:
    plan = planned()
    recording = on_time(plan)
    lost = np.random.default_rng(3).random(len(recording)) < 0.02
    recording = _missing(recording, lost, UNSENT)

    found = judged(plan, recording)

    assert not found.ok
    assert {"shortfall", "send_lag"} <= bad(found)


@pytest.mark.parametrize("status", [NOT_CONNECTED, UNANSWERED])
def test_a_server_that_lets_nobody_in_is_no_shortfall(status: int) -> None:
    plan = planned()
    refused = np.arange(len(plan.intended)) % 2 == 0

    found = judged(plan, _missing(on_time(plan), refused, status))

    assert found.ok


def _missing(recording: Recording, which: Any, status: int) -> Recording:
    nan = {
        name: np.where(which, np.nan, getattr(recording, name))
        for name in ("acquired", "sent", "first_byte", "last")
    }
    return replace(recording, status=np.where(which, status, 200).astype(np.int32), **nan)


def test_a_slow_tester_that_catches_up_after_the_window_falls_short() -> None:
    """It sends all, at 90% of the rate."""
    plan = planned()

    found = judged(plan, sent_with(plan, 0.1 * plan.intended))

    assert "shortfall" in bad(found)
    assert signal(found, "shortfall").value == pytest.approx(0.9, abs=0.03)


def test_a_server_that_times_out_is_not_the_testers_fault() -> None:
    plan = planned()
    recording = on_time(plan)
    hung = np.arange(len(recording)) % 3 == 0
    status = np.where(hung, TIMED_OUT, 200).astype(np.int32)

    found = judged(plan, replace(recording, status=status))

    assert found.ok


def test_bunches_are_no_poisson_arrivals() -> None:
    """Each request waits for the next tick of 0.9 ms: never late, and yet another load."""
    plan = planned(rate=4000.0)
    tick = 0.0009
    recording = sent_with(plan, np.ceil(plan.intended / tick) * tick - plan.intended)

    found = judged(plan, recording)

    assert bad(found) == {"arrivals"}
    assert not found.ok


def test_a_plan_that_is_not_poisson_is_not_asked_for_poisson_gaps() -> None:
    plan = replace(planned(), intended=np.arange(0.0, END, 0.002))
    plan = replace(plan, payload=np.zeros(len(plan.intended), np.int32))

    found = judged(plan, on_time(plan))

    assert found.ok
    assert signal(found, "arrivals").value is None


def test_one_request_without_a_socket_is_one_too_many() -> None:
    plan = planned()
    recording = on_time(plan)
    status = recording.status.copy()
    status[-1] = NO_SOCKET

    found = judged(plan, replace(recording, status=status))

    assert bad(found) == {"sockets"}
    assert not found.ok
    assert "ulimit" in signal(found, "sockets").text


def test_a_cap_on_connections_that_holds_requests_back_is_no_open_loop() -> None:
    plan = planned(max_connections=4)
    recording = on_time(plan)
    held = np.arange(len(recording)) % 200 == 0
    woke = recording.woke - np.where(held, 0.0015, 0.0)

    found = judged(plan, replace(recording, woke=woke))
    without_cap = judged(planned(), replace(recording, woke=woke))

    assert bad(found) == {"connection_cap"}
    assert not found.ok
    assert without_cap.ok


def test_a_step_that_was_given_up_is_judged_until_then() -> None:
    plan = planned()
    recording = _missing(on_time(plan), plan.intended > 3.0, UNSENT)

    assert judged(plan, recording, stopped_at=2.9).ok
    assert not judged(plan, recording).ok


def test_a_step_without_requests_has_nothing_to_say() -> None:
    plan = StepPlan(np.array([]), 0.0, 1.0, np.array([], np.int32))

    assert judged(plan, Recording.empty(plan.intended)).ok


# --- evidence -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("client_cpu", {"cpu": 5.0}),
        ("run_queue", {"run_queue_wait": 1.0}),
        ("involuntary_switches", {"involuntary_switches": 5000}),
        ("loop_lag", {"loop_lag": np.full(100, 0.02)}),
        ("gc_pause", {"gc_pauses": np.array([0.001, 0.030])}),
    ],
)
def test_evidence_is_shown_and_invalidates_nothing_alone(name: str, known: dict[str, Any]) -> None:
    plan = planned()

    found = judged(plan, on_time(plan), **known)

    assert bad(found) == {name}
    assert found.ok
    assert ":" in signal(found, name).text  # what it says: what to do


def test_the_evidence_names_the_cause_of_late_sends() -> None:
    plan = planned()

    found = judged(plan, sent_with(plan, np.full(len(plan.intended), 0.01)), cpu=5.4)

    assert "98% of a core" in signal(found, "send_lag").text


def test_unknown_is_none_and_not_bad() -> None:
    plan = planned()

    found = judged(plan, on_time(plan), run_queue_wait=None)

    assert signal(found, "run_queue").value is None
    assert signal(found, "foreign_cpu").value is None
    assert found.ok


def test_an_idle_server_behind_a_flat_throughput() -> None:
    plan = planned()
    slow = on_time(plan)
    behind = replace(slow, last=slow.last + plan.intended)
    refusing = replace(behind, status=np.full(len(behind), 503, np.int32))
    idle, busy = ServerView(source="metrics", busy_cores=0.2), ServerView(busy_cores=0.98)

    assert bad(judged(plan, behind, server=idle)) == {"idle_server"}
    assert bad(judged(plan, behind, server=busy)) == set()
    assert bad(judged(plan, slow, server=idle)) == set()
    assert bad(judged(plan, refusing, server=idle)) == set()
    assert bad(judged(plan, behind, server=ServerView())) == set()


def test_one_machine_for_both_is_a_warning() -> None:
    plan = planned()

    found = judged(plan, on_time(plan), server=ServerView(source="proc", busy_cores=0.5))

    assert bad(found) == {"same_host"}
    assert found.ok


def test_a_long_way_to_the_server() -> None:
    plan = planned()
    recording = on_time(plan)
    far = np.where(np.arange(len(recording)) % 50 == 0, 0.030, 0.0)
    recording = replace(recording, accept_wait=far, sent=recording.sent + far)

    assert "round_trip" in bad(judged(plan, recording))
    assert "round_trip" not in bad(judged(plan, recording, threshold=None))


# --- the machine ----------------------------------------------------------------------------------

STAT = "cpu  0 0 0 0 0 0 0 0 0 0\ncpu0 {0} 0 0 0 0 0 0 {2} 0 0\ncpu1 {1} 0 0 0 0 0 0 0 0 0\n"
NET = (
    "Inter-| Receive\n face |bytes\n  eth0: {0} 0 0 0 0 0 0 0 {1} 0\n    lo: 5 0 0 0 0 0 0 0 5 0\n"
)


@contextmanager
def machine(
    root: Path, monkeypatch: pytest.MonkeyPatch, *, own: int = 0, **during: tuple[int, ...]
) -> Iterator[Surroundings]:
    """One second on a machine of two cores; times in ticks of the kernel, 100 of them."""
    monkeypatch.setattr(selfcheck, "_TICK", 0.01)
    monkeypatch.setattr(selfcheck, "monotonic", iter([0.0, 10.0, 11.0]).__next__)
    monkeypatch.setattr(selfcheck, "_affinity", lambda pid: {0})
    pid = os.getpid()
    (root / f"proc/{pid}").mkdir(parents=True)
    (root / "proc/net").mkdir()
    (root / "sys/class/net/eth0").mkdir(parents=True)
    (root / "sys/class/net/eth0/speed").write_text("1000\n")

    def write(busy: tuple[int, ...], network: tuple[int, ...], used: int) -> None:
        (root / "proc/stat").write_text(STAT.format(*busy))
        (root / "proc/net/dev").write_text(NET.format(*network))
        (root / f"proc/{pid}/stat").write_text(f"{pid} (a b) S" + " 0" * 10 + f" {used} 0 0 0")

    write((1000, 1000, 1000), (1000, 1000), 500)
    with Surroundings(root=root) as around:
        busy = during.get("busy", (0, 0, 0))
        network = during.get("network", (0, 0))
        write(tuple(1000 + one for one in busy), tuple(1000 + one for one in network), 500 + own)
    yield around


def test_work_of_others_is_told_from_our_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with machine(tmp_path, monkeypatch, own=40, busy=(90, 30, 10)) as around:
        assert around.seconds == 1.0
        assert around.foreign((0,)) == pytest.approx(0.5)
        assert around.foreign((1,)) == pytest.approx(0.3)
        assert around.foreign((0, 1)) == pytest.approx(0.4)
        assert around.steal((0,)) == pytest.approx(0.1)
        assert around.foreign((7,)) is None


def test_our_own_work_alone_is_not_foreign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with machine(tmp_path, monkeypatch, own=95, busy=(95, 0, 0)) as around:
        assert around.foreign((0,)) == pytest.approx(0.0)


def test_the_busiest_interface_beside_what_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = planned()
    with machine(tmp_path, monkeypatch, network=(1_000_000, 110_000_000)) as around:
        assert around.busiest_network() == ("eth0", 110e6, 125e6)

        found = judged(plan, on_time(plan), surroundings=around)

    assert bad(found) == {"network"}
    assert found.ok


def test_a_busy_neighbour_and_a_hypervisor_are_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = planned()
    with machine(tmp_path, monkeypatch, busy=(80, 0, 10)) as around:
        assert bad(judged(plan, on_time(plan), surroundings=around)) == {"foreign_cpu", "steal"}
        assert bad(judged(plan, on_time(plan), surroundings=around, cores=(1,))) == set()


@pytest.mark.parametrize(
    ("busy", "waited", "ok"),
    [(95, 0.15, False), (95, 0.03, True), (50, 0.15, True), (95, None, True)],
)
def test_a_core_that_others_hold_is_fatal_to_who_waits_for_it(
    busy: int,
    waited: float | None,
    ok: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = planned()
    with machine(tmp_path, monkeypatch, busy=(busy, 0, 0)) as around:
        found = judged(plan, on_time(plan), surroundings=around, run_queue_wait=waited)

    assert found.ok == ok
    assert signal(found, "starved").bad == (not ok)


def test_a_machine_that_tells_nothing() -> None:
    with Surroundings(root=Path("/nowhere")) as around:
        pass

    assert around.foreign((0,)) is None
    assert around.steal((0,)) is None
    assert around.busiest_network() is None


# --- proofs ---------------------------------------------------------------------------------------


def queue_at(seed: int, seconds: float = 30.0) -> Recording:
    arrivals = poisson(100.0, seconds, seed)
    service = np.random.default_rng(seed).exponential(0.005, len(arrivals))
    last = arrivals + one_at_a_time(arrivals, service)
    status = np.full(len(arrivals), 200, np.int32)
    return replace(Recording.empty(arrivals), sent=arrivals, last=last, status=status)


def test_two_senders_that_see_the_same_agree_with_one() -> None:
    found = [
        split_agrees(queue_at(seed), queue_at(1000 + seed), 99.0, np.random.default_rng(seed))
        for seed in range(20)
    ]

    assert sum(one.bad for one in found) <= 1


def test_one_sender_that_was_late_is_found() -> None:
    one, two = queue_at(1), queue_at(2)
    late = replace(one, last=one.last + 0.020)

    assert split_agrees(late, two, 99.0, np.random.default_rng(1)).bad


def test_a_percentile_that_is_a_miss_cannot_be_compared() -> None:
    one = queue_at(1)
    refused = replace(one, status=np.full(len(one), 503, np.int32))

    found = split_agrees(refused, one, 99.0, np.random.default_rng(1))

    assert not found.bad
    assert found.value is None


# --- for real -------------------------------------------------------------------------------------

SPINNER = (
    "import time\nprint('spinning', flush=True)\n"
    "end = time.monotonic() + 120\nwhile time.monotonic() < end: pass"
)
NULL = (
    "from tailproof.load.null import serve\n"
    "serve('127.0.0.1', 0, 0.010, 64, ready=lambda port: print(port, flush=True))"
)
HERE, THERE = 1, 0
"""The core of the tester, and of the server."""

two_cores = pytest.mark.skipif(
    not {HERE, THERE} <= os.sched_getaffinity(0), reason="needs two cores to pin to"
)


@contextmanager
def pinned(core: int, code: str) -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    )
    os.sched_setaffinity(process.pid, {core})
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def steps(num: int, seconds: float) -> list[Generator]:
    """What the tester says of itself in `num` steps against a null target of 10 ms."""
    found = []
    with pinned(THERE, NULL) as server:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        target = build(f"http://127.0.0.1:{port}/predict", [b"{}"])
        with Senders(target, 1, cores=(HERE,)) as senders:
            for seed in range(num):
                intended = poisson(300.0, seconds, seed)
                payload = np.zeros(len(intended), np.int32)
                plan = StepPlan(intended, 0.3, seconds, payload, drain=1.0, ready_connections=16)
                with Surroundings(senders.pids) as around:
                    sent = senders.run(plan)
                found.append(check(plan, sent, SLO, around, None))
    return found


@two_cores
@pytest.mark.soak
def test_a_tester_beside_a_spinner_knows() -> None:
    with pinned(HERE, SPINNER) as spinner:
        assert spinner.stdout is not None
        spinner.stdout.readline()
        found = steps(3, 2.0)[1:]  # the first begins while everything still starts

    assert [one.ok for one in found] == [False, False]
    assert all(signal(one, "foreign_cpu").bad for one in found)
    assert all("taskset" in signal(one, "foreign_cpu").text for one in found)


@two_cores
@pytest.mark.soak
def test_a_tester_beside_a_spinner_always_knows_and_one_alone_is_trusted() -> None:
    """20 of 20, and at most 1 of 20. Needs a machine without other work."""
    with pinned(HERE, SPINNER) as spinner:
        assert spinner.stdout is not None
        spinner.stdout.readline()
        beside = steps(20, 3.0)
    alone = steps(20, 3.0)

    assert sum(one.ok for one in beside) == 0
    assert sum(not one.ok for one in alone) <= 1
