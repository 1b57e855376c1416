"""Real senders against real servers, well behaved and not."""

import asyncio
import contextlib
import os
import resource
import shutil
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uvloop
from scipy import stats

from tailproof.core.arrivals import poisson
from tailproof.core.clock import monotonic
from tailproof.core.queues import one_at_a_time
from tailproof.core.recording import (
    LOST,
    NOT_CONNECTED,
    NOT_HTTP,
    TIMED_OUT,
    UNANSWERED,
    UNSENT,
)
from tailproof.load.generator import Generator, LoadError
from tailproof.load.null import listen
from tailproof.load.sender import RACE_IDLE_SECONDS
from tailproof.load.steps import Sent, StepPlan
from tailproof.load.target import Target, build

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
CLOSING = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok"


# --- servers --------------------------------------------------------------------------------------


class Scripted(asyncio.Protocol):
    """Does `behave(self)` whenever a request is complete. Counts requests."""

    def __init__(self, behave: Callable[["Scripted"], None], arrived: list[float]) -> None:
        self._behave = behave
        self._arrived = arrived
        self._data = b""
        self._is_gone = False
        self.num_here = 0
        """Requests on this connection."""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, end, body = self._data.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0] or 0)
        if not end or len(body) < length:
            return
        self._data = b""
        self.num_here += 1
        self._arrived.append(monotonic())
        self.num_ever = len(self._arrived)
        self._behave(self)

    def write(self, data: bytes) -> None:
        if not self._is_gone:
            self.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_gone = True

    def later(self, seconds: float, do: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_later(seconds, do)


class Served:
    """A server in a thread with a loop of its own."""

    def __init__(
        self,
        behave: Callable[[Scripted], None],
        protocol: type[Scripted] = Scripted,
        **options: Any,
    ) -> None:
        self.arrived: list[float] = []
        self._loop = uvloop.new_event_loop()
        self._server = self._loop.run_until_complete(
            self._loop.create_server(
                lambda: protocol(behave, self.arrived), "127.0.0.1", 0, backlog=4096, **options
            )
        )
        self.port: int = self._server.sockets[0].getsockname()[1]
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    @property
    def starved(self) -> float:
        """Seconds that the server was ready to run and had no core; 0 where no kernel tells."""
        told = Path(f"/proc/self/task/{self._thread.native_id}/schedstat")
        return int(told.read_text().split()[1]) / 1e9 if told.exists() else 0.0

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._server.close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@contextlib.contextmanager
def served(
    behave: Callable[[Scripted], None], protocol: type[Scripted] = Scripted, **options: Any
) -> Iterator[Served]:
    server = Served(behave, protocol, **options)
    try:
        yield server
    finally:
        server.close()


def target(port: int, *bodies: bytes, scheme: str = "http", **options: Any) -> Target:
    return build(f"{scheme}://127.0.0.1:{port}/predict", bodies or (b"{}",), **options)


def plan(intended: Any, **options: Any) -> StepPlan:
    times = np.asarray(intended, np.float64)
    known = {"warm_up": 0.0, "end": float(times[-1]) + 0.01, "payload": np.zeros(len(times), int)}
    known |= {"drain": 1.0} | options
    known["payload"] = np.asarray(known["payload"], np.int32)
    return StepPlan(intended=times, **known)


def every(gap: float, num: int) -> Any:
    return np.arange(num) * gap


def send(
    behave: Callable[[Scripted], None], step: StepPlan, processes: int = 1, **options: Any
) -> Sent:
    """One step against a server of its own."""
    with served(behave) as server, Generator(target(server.port, **options), processes) as senders:
        return senders.run(step)


def answer(connection: Scripted) -> None:
    connection.write(ANSWER)


def statuses(sent: Sent) -> set[int]:
    return set(sent.recording.status.tolist())


# --- arrivals -------------------------------------------------------------------------------------


def rejects_poisson(arrived: list[float], rate: float) -> bool:
    """Kolmogorov-Smirnov, gaps against the exponential distribution, at 0.1%."""
    gaps = np.diff(np.sort(arrived))
    return bool(stats.kstest(gaps, "expon", args=(0, 1 / rate)).pvalue < 0.001)


def test_what_arrives_is_poisson_and_exactly_as_many_as_planned() -> None:
    """The distribution is judged in steps whose two ends had a core whenever they wanted one: in
    others it is the scheduler's."""
    rate, seconds, rejected = 400.0, 0.3, list[bool]()
    with served(answer) as server, Generator(target(server.port)) as senders:
        for seed in range(24):
            server.arrived.clear()
            before = server.starved

            sent = senders.run(plan(poisson(rate, seconds, seed)))

            assert len(server.arrived) == len(sent.recording) == 120
            assert sent.recording.good.all()
            starved = server.starved - before + (sent.senders[0].run_queue_wait or 0.0)
            rejected += [rejects_poisson(server.arrived, rate)] if starved < 0.05 * seconds else []
            if len(rejected) == 8:
                break
        else:
            pytest.skip("others use the cores")

    assert sum(rejected) <= 1


def test_the_test_for_poisson_rejects_what_is_even_and_what_comes_in_lumps() -> None:
    rng = np.random.default_rng(1)

    assert rejects_poisson(every(1 / 400, 120).tolist(), 400.0)
    lumps = np.repeat(np.sort(rng.uniform(0, 0.3, 60)), 2).tolist()
    assert rejects_poisson(lumps, 400.0)


def test_requests_leave_when_the_schedule_says() -> None:
    sent = send(answer, plan(poisson(200.0, 0.5, seed=3), ready_connections=4))

    recording, facts = sent.recording, sent.senders[0]
    assert (recording.woke >= recording.intended).all()
    assert (recording.acquired >= recording.woke).all()
    assert (recording.sent >= recording.acquired).all()
    assert (recording.first_byte >= recording.sent).all()
    assert (recording.last >= recording.first_byte).all()
    assert np.median(recording.send_lag) < 1e-3
    assert len(facts.loop_lag) > 50
    assert np.median(facts.loop_lag) < 1e-3
    assert facts.gc_pauses.size == 0
    assert 0.0 < facts.cpu < facts.wall < 3.0
    assert facts.num_connections >= 4
    assert facts.cores


def test_two_senders_send_the_union_of_the_schedule() -> None:
    num = 200
    bodies = [b"x" * index for index in range(num)]
    step = plan(poisson(400.0, 0.5, seed=5), payload=np.arange(num))
    with served(answer) as server, Generator(target(server.port, *bodies), 2) as senders:
        sent = senders.run(step)

    recording = sent.recording
    requests = target(1, *bodies).requests
    np.testing.assert_array_equal(recording.intended, step.intended)
    np.testing.assert_array_equal(recording.payload, step.payload)
    widths = len(str(server.port)) - len("1")
    assert recording.sent_bytes.tolist() == [len(request) + widths for request in requests]
    assert len(server.arrived) == num
    assert len({facts.pid for facts in sent.senders}) == 2
    odd, even = recording.connection[1::2], recording.connection[::2]
    assert not set(odd.tolist()) & set(even.tolist())


def test_response_times_count_from_the_intended_start_through_a_freeze() -> None:
    """10 ms service, one at a time, one stall of 0.5 s; 50/s for 2 s. A closed loop of one would
    see the stall once, in one request of 100."""
    service = np.full(100, 0.010)
    service[25] += 0.5
    times = every(1 / 50, 100)

    def freeze(connection: Scripted) -> None:
        time.sleep(service[connection.num_ever - 1])
        connection.write(ANSWER)

    sent = send(freeze, plan(times, ready_connections=40))

    expected = one_at_a_time(times, service)
    for percent in (90.0, 95.0, 99.0):
        found, truth = (
            np.percentile(values, percent) for values in (sent.recording.response, expected)
        )
        assert found == pytest.approx(truth, rel=0.1, abs=0.02), percent
    assert np.percentile(sent.recording.own_lag, 90.0) < 0.02
    assert sent.senders[0].max_in_flight > 20


def test_a_cap_on_connections_is_lag_of_the_testers_own() -> None:
    def slowly(connection: Scripted) -> None:
        connection.later(0.1, lambda: connection.write(ANSWER))

    sent = send(slowly, plan(every(0.02, 30), max_connections=1, drain=0.5))

    recording = sent.recording
    num_unsent = int((recording.status == UNSENT).sum())
    assert num_unsent > 10
    assert np.isinf(recording.own_lag[recording.status == UNSENT]).all()
    answered = recording.good
    assert answered.sum() >= 5
    assert recording.own_lag[answered][-1] > 0.2
    assert recording.uncorrected[answered].max() < 0.2 < recording.response[answered][-1]
    assert sent.senders[0].num_connections == 1


def test_a_cap_below_the_number_of_senders_is_kept() -> None:
    sent = send(answer, plan(every(0.01, 20), max_connections=1), processes=2)

    assert sent.recording.good.all()
    assert len(sent.senders) == 1
    assert set(sent.recording.connection.tolist()) == {0}


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 6000:
        pytest.skip("this user may not have so many descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_descriptors")
def test_open_requests_grow_without_a_cap() -> None:
    def only_when_all_are_open(connection: Scripted) -> None:
        connection.later(1.2, lambda: connection.write(ANSWER))

    step = plan(poisson(1400.0, 1.0, seed=1), drain=5.0)
    sent = send(only_when_all_are_open, step)

    assert sent.recording.good.all()
    assert sent.senders[0].max_in_flight == 1400
    assert sent.senders[0].num_connections == 1400
    assert np.percentile(sent.recording.own_lag, 50.0) < 0.01


# --- servers that behave badly --------------------------------------------------------------------


def test_a_server_that_says_that_it_closes_costs_nothing() -> None:
    def close(connection: Scripted) -> None:
        connection.write(CLOSING)
        connection.transport.close()

    sent = send(close, plan(every(0.005, 60)))

    assert statuses(sent) == {200}
    assert sent.recording.fresh.all()
    assert len(set(sent.recording.connection.tolist())) == 60
    assert sent.senders[0].num_retried == 0


def test_a_server_that_closes_without_a_word_costs_nothing() -> None:
    def close(connection: Scripted) -> None:
        connection.write(ANSWER)
        connection.transport.close()

    sent = send(close, plan(every(0.02, 40)))

    assert statuses(sent) == {200}
    assert sent.recording.fresh.all()


def close_used(connection: Scripted) -> None:
    """Closes each second request of a connection, unanswered and at once."""
    if connection.num_here > 1:
        connection.transport.abort()
    else:
        connection.write(ANSWER)


def test_a_quiet_connection_that_ends_as_a_request_leaves_is_replaced_once() -> None:
    sent = send(close_used, plan(every(RACE_IDLE_SECONDS + 0.1, 3)))

    recording = sent.recording
    assert statuses(sent) == {200}
    assert sent.senders[0].num_retried == 2
    assert recording.fresh.all()
    assert np.median(recording.send_lag) < 5e-3  # the first attempt counts


def test_a_busy_connection_that_ends_lost_a_request() -> None:
    """No server gives up a connection that it answered on a moment ago: this one broke it."""
    sent = send(close_used, plan(every(0.02, 20)))

    assert sent.recording.status.tolist() == [200, LOST] * 10
    assert sent.senders[0].num_retried == 0


def test_an_answer_that_the_server_lost_is_not_asked_for_again() -> None:
    """The same, but after it had the request for a while: a worker died."""

    def die_over_used(connection: Scripted) -> None:
        if connection.num_here > 1:
            connection.later(0.1, connection.transport.abort)
        else:
            connection.write(ANSWER)

    with served(die_over_used) as server, Generator(target(server.port)) as senders:
        sent = senders.run(plan(every(0.3, 4)))

    assert sent.recording.status.tolist() == [200, LOST, 200, LOST]
    assert len(server.arrived) == 4
    assert sent.senders[0].num_retried == 0


def test_a_fresh_connection_that_ends_is_a_lost_request() -> None:
    sent = send(lambda connection: connection.transport.abort(), plan(every(0.01, 10)))

    assert statuses(sent) == {LOST}
    assert sent.senders[0].num_retried == 0
    assert np.isinf(sent.recording.response).all()
    assert np.isnan(sent.recording.last).all()


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf", LOST),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhal", LOST),
        (b"HTTP/1.1 2", LOST),
        (b"SSH-2.0-OpenSSH_9.6\r\n", NOT_HTTP),
        (b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", NOT_HTTP),
        (b"HTTP/1.1 200 OK\r\n\r\nuntil I close", 200),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n", 200),
        (b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n", 503),
    ],
)
def test_each_kind_of_answer_has_its_status(data: bytes, status: int) -> None:
    def say(connection: Scripted) -> None:
        connection.write(data)
        connection.transport.close()

    sent = send(say, plan(every(0.02, 5)))

    assert statuses(sent) == {status}
    assert set(sent.recording.received_bytes.tolist()) == {len(data)} or status == NOT_HTTP
    assert np.isfinite(sent.recording.response).any() == (status == 200)


def test_a_port_where_nobody_listens_is_not_connected(free_port: int) -> None:
    with Generator(target(free_port)) as senders:
        sent = senders.run(plan(every(0.01, 20)))

    assert statuses(sent) == {NOT_CONNECTED}
    assert np.isinf(sent.recording.response).all()
    assert (sent.recording.own_lag == 0.0).all()
    assert set(sent.recording.connection.tolist()) == {-1}


def test_a_host_without_an_address_is_not_connected() -> None:
    there = replace(target(80), host="no-such-host.invalid")
    with Generator(there) as senders:
        sent = senders.run(plan(every(0.01, 3)))

    assert statuses(sent) == {NOT_CONNECTED}


def test_a_request_times_out_and_its_connection_is_not_used_again() -> None:
    def only_the_first_not(connection: Scripted) -> None:
        if connection.num_ever > 1:
            connection.write(ANSWER)

    step = plan([0.0, 0.1, 0.5], timeout=0.2, end=1.0)
    sent = send(only_the_first_not, step)

    assert sent.recording.status.tolist() == [TIMED_OUT, 200, 200]
    assert sent.recording.connection.tolist() == [0, 1, 1]
    assert np.isinf(sent.recording.response[0])


def test_an_answer_after_the_timeout_is_a_timeout_too() -> None:
    """It comes before the sender looks for timeouts again."""

    def late(connection: Scripted) -> None:
        connection.later(0.03, lambda: connection.write(ANSWER))

    sent = send(late, plan(every(0.05, 5), timeout=0.02))

    assert statuses(sent) == {TIMED_OUT}


def test_what_is_open_at_the_end_is_unanswered_and_the_next_step_is_clean() -> None:
    def mute_at_first(connection: Scripted) -> None:
        if connection.num_ever > 3:
            connection.write(ANSWER)

    with served(mute_at_first) as server, Generator(target(server.port)) as senders:
        first = senders.run(plan(every(0.01, 3), drain=0.2))
        second = senders.run(plan(every(0.01, 3), drain=0.2))

    assert first.recording.status.tolist() == [UNANSWERED] * 3
    assert first.ended - first.started == pytest.approx(0.23, abs=0.2)
    assert second.recording.status.tolist() == [200] * 3


def test_a_request_that_the_server_reads_slowly_is_sent_when_it_is_read() -> None:
    class Slow(Scripted):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self.later(0.0, transport.pause_reading)  # uvloop begins to read after this call
            self.later(0.3, transport.resume_reading)

    body = b"x" * 20_000_000
    with served(answer, Slow) as server, Generator(target(server.port, body)) as senders:
        sent = senders.run(plan([0.0], drain=10.0, ready_connections=0))

    recording = sent.recording
    assert statuses(sent) == {200}
    assert recording.sent_bytes[0] > len(body)
    assert recording.send_lag[0] > 0.25
    assert recording.own_lag[0] < 0.2


# --- between steps --------------------------------------------------------------------------------


def test_connections_are_kept_for_the_next_step() -> None:
    with served(answer) as server, Generator(target(server.port)) as senders:
        first = senders.run(plan(every(0.02, 5)))
        second = senders.run(plan(every(0.02, 5)))

    assert first.recording.fresh.tolist() == [True] + [False] * 4
    assert not second.recording.fresh.any()
    assert set(second.recording.connection.tolist()) == {0}


def test_a_connection_that_was_closed_while_idle_is_replaced() -> None:
    def close_soon(connection: Scripted) -> None:
        connection.write(ANSWER)
        connection.later(0.05, connection.transport.close)

    with served(close_soon) as server, Generator(target(server.port)) as senders:
        for _ in range(5):
            sent = senders.run(plan([0.15], end=0.2))

            assert sent.recording.status.tolist() == [200]
            assert sent.recording.fresh.all()
            assert sent.senders[0].num_retried == 0


# --- what the server tells, and what the caller is told -------------------------------------------


def test_what_the_server_tells_is_recorded() -> None:
    def tell(connection: Scripted) -> None:
        if connection.num_ever == 3:
            connection.write(ANSWER)
            return
        name = b"b" if connection.num_ever == 2 else b"a"
        connection.write(
            b"HTTP/1.1 200 OK\r\nServer-Timing: queue;dur=1.5, infer;dur=20\r\nX-Batch-Size: 4\r\n"
            b"X-Cold: %d\r\nX-Replica: %b\r\nContent-Length: 0\r\n\r\n"
            % (connection.num_ever == 1, name)
        )

    recording = send(tell, plan(every(0.05, 4))).recording

    np.testing.assert_allclose(recording.queue, [0.0015, 0.0015, np.nan, 0.0015])
    np.testing.assert_allclose(recording.infer, [0.02, 0.02, np.nan, 0.02])
    assert np.isnan(recording.total).all()
    assert recording.batch_size.tolist() == [4, 4, 0, 4]
    assert recording.cold.tolist() == [True, False, False, False]
    assert recording.replicas == ("a", "b")
    assert recording.replica.tolist() == [0, 1, -1, 0]


def test_progress_is_told_about_four_times_a_second() -> None:
    told: list[tuple[float, int, int]] = []
    with served(answer) as server, Generator(target(server.port), 2) as senders:
        senders.run(plan(every(0.01, 150)), lambda *now: told.append(now))

    assert 3 <= len(told) <= 8
    seconds, num_sent, num_answered = (list(column) for column in zip(*told, strict=True))
    assert seconds == sorted(seconds)
    assert num_sent == sorted(num_sent)
    assert 50 < num_sent[-1] <= 150
    assert all(got <= went for got, went in zip(num_answered, num_sent, strict=True))
    assert num_answered[-1] > 50


def test_a_step_that_can_no_longer_pass_is_given_up() -> None:
    def slowly(connection: Scripted) -> None:
        connection.later(0.3, lambda: connection.write(ANSWER))

    step = plan(every(0.02, 500), give_up=(0.1, 0.95), end=10.0)
    sent = send(slowly, step, processes=2)

    assert sent.stopped_at is not None
    assert 0.3 < sent.stopped_at < 3.0
    assert sent.ended - sent.started < 4.0
    known = sent.recording.between(0.0, sent.stopped_at)
    assert len(known) > 15  # of the 25 that may be late, less what one sender knew alone
    assert not (known.status == UNSENT).any()
    assert sent.recording.status[-1] == UNSENT


def test_a_step_that_can_pass_is_not_given_up() -> None:
    """4 of 100 are too late, and 5 may be."""

    def mostly(connection: Scripted) -> None:
        delay = 0.2 if connection.num_ever % 25 == 0 else 0.0
        connection.later(delay, lambda: connection.write(ANSWER))

    sent = send(mostly, plan(every(0.01, 100), give_up=(0.15, 0.95)))

    assert sent.stopped_at is None
    assert sent.recording.good.all()


# --- TLS ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that nobody trusts, and its key."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed")
    folder = tmp_path_factory.mktemp("tls")
    found = folder / "certificate.pem", folder / "key.pem"
    command = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    command += ["-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(
        [*command, "-out", str(found[0]), "-keyout", str(found[1])], check=True, capture_output=True
    )
    return found


@pytest.mark.parametrize(
    ("trusts", "status"),
    [("it", 200), ("anybody", 200), ("the system", NOT_CONNECTED)],
)
def test_https(certificate: tuple[Path, Path], trusts: str, status: int) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    options = {
        "it": {"ca_file": str(certificate[0])},
        "anybody": {"insecure": True},
        "the system": {},
    }[trusts]

    with served(answer, ssl=context) as server:
        there = target(server.port, b"x" * 100_000, scheme="https", **options)
        with Generator(there) as senders:
            sent = senders.run(plan(every(0.02, 10)))

    assert statuses(sent) == {status}
    if status == 200:
        recording = sent.recording
        assert len(server.arrived) == 10
        assert (recording.first_byte >= recording.sent).all()


# --- ends -----------------------------------------------------------------------------------------


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = monotonic() + seconds
    while not condition():
        assert monotonic() < deadline, "it never came true"
        time.sleep(0.01)


def test_a_sender_that_dies_is_an_error_that_says_how() -> None:
    with served(answer) as server, Generator(target(server.port), 2) as senders:
        pids = senders.pids

        def kill(*_: object) -> None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pids[1], signal.SIGKILL)

        with pytest.raises(LoadError, match="sender 2 of 2 was ended by SIGKILL"):
            senders.run(plan(every(0.1, 100)), kill)

        assert not any(is_running(pid) for pid in pids)


def test_a_sender_that_fails_is_an_error_that_says_why() -> None:
    with (
        Generator(target(1)) as senders,
        pytest.raises(LoadError, match="sender 1 of 1 was ended with exit code 1: IndexError"),
    ):
        senders.run(plan([0.0], payload=[7]))


def test_an_interrupt_ends_all_senders() -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with served(answer) as server, Generator(target(server.port), 2) as senders:
        pids = senders.pids
        assert all(is_running(pid) for pid in pids)

        with pytest.raises(KeyboardInterrupt):
            senders.run(plan(every(0.1, 600)), interrupt)

        assert not any(is_running(pid) for pid in pids)


def test_senders_end_with_a_parent_that_is_killed(free_port: int) -> None:
    code = f"""
import numpy as np
from tailproof.load.generator import Generator
from tailproof.load.steps import StepPlan
from tailproof.load.target import build
with Generator(build("http://127.0.0.1:{free_port}/", [b""]), 2) as senders:
    print(*senders.pids, flush=True)
    senders.run(StepPlan(np.array([50.0, 55.0]), 0.0, 60.0, np.zeros(2, np.int32)))
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pids = [int(word) for word in parent.stdout.readline().split()]
        assert all(is_running(pid) for pid in pids)

        parent.kill()
        wait_until(lambda: not any(is_running(pid) for pid in pids))

    assert len(pids) == 2


def test_a_sender_stays_on_its_core() -> None:
    cores = sorted(os.sched_getaffinity(0))
    with served(answer) as server, Generator(target(server.port), 2, cores[:1]) as senders:
        sent = senders.run(plan(every(0.01, 4)))

    assert [facts.cores for facts in sent.senders] == [(cores[0],)] * 2


@pytest.mark.parametrize(("processes", "cores"), [(0, None), (1, [4095])])
def test_what_cannot_be_started_is_refused(processes: int, cores: list[int] | None) -> None:
    with pytest.raises(ValueError, match=r"at least one|may not run"):
        Generator(target(1), processes, cores)


def test_a_null_target_can_be_loaded() -> None:
    loop = uvloop.new_event_loop()
    server = loop.run_until_complete(listen(delay=0.02))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        with Generator(target(server.port)) as senders:
            recording = senders.run(
                plan(poisson(200.0, 0.5, seed=2), ready_connections=8)
            ).recording
    finally:
        loop.call_soon_threadsafe(server.close)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

    assert recording.good.all()
    assert 0.02 <= np.median(recording.uncorrected) < 0.03
    assert (recording.total >= 0.02).all()
