"""Was the tester in the number? What it saw of itself and of its machine during one step.

What makes a step INVALID, because the figures are then not the service's: requests left late, too
few left, they left in another pattern than planned, or others held the core that the tester waited
for. All else (a busy core, a collector's pause, a shared machine) only names the cause: it may be
there and harm nothing.
"""

import math
import os
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

import numpy as np
from msgspec.structs import replace

from tailproof.core.clock import monotonic
from tailproof.core.recording import NO_SOCKET, UNANSWERED, UNSENT, Floats, Recording
from tailproof.core.statistics import NUM_BATCHES, exponential_p, percentile
from tailproof.core.units import format_duration, format_rate
from tailproof.load.steps import SenderFacts, Sent, StepPlan
from tailproof.reporting.document import Generator, ServerView, Signal

Unit = Literal["seconds", "ratio", "count", "per_second", "bytes"]

SHORTEST_LAG = 1e-3
"""Seconds: a send is never called late below this."""
LAG_OF_SLO = 0.05
LAG_OF_MEDIAN = 0.1
"""Late sends may not be more than this share of the SLO, nor of the median response."""
LEAST_SENT = 0.995
MOST_HELD = 0.001
"""Share of requests that a declared cap on connections may hold back."""
DISTORTED_P = 0.001
DISTORTED_SPREAD, DISTORTED_SIGMAS = 0.1, 3.0
FEWEST_GAPS = 100
"""Arrivals are distorted when chance would hardly make their gaps so uneven and the spread of the
gaps is off by a tenth; fewer gaps than this cannot tell."""

CONTENDED = 0.7
WAIT_OF_WORK = 0.1
"""A sender is starved when others use so much of its cores and it waited for one this long, as a
share of the time that it ran. Measured at 300/s beside a spinning process: 0.17 to 0.5, while P99
of the send lag stayed below 1 ms in half of the runs. A quiet core is never so CONTENDED."""

BUSY_CLIENT = 0.8
LATE_LOOP = 5e-3
RUN_QUEUE_SHARE = 0.05
SWITCHES_A_SECOND = 100.0
FOREIGN_SHARE = 0.3
STEAL_SHARE = 0.02
BANDWIDTH_SHARE = 0.8
TRIP_OF_SLO = 0.2
IDLE_CORES = 0.3
FLAT = 0.95
"""Below this share of the offered rate the throughput counts as flat."""

OWN_CORES = 0.1
"""Share of the tester's cores that others may use while they count as its own."""

SPLIT_DROP = 0.9
"""Two senders that see less than this share of one's percentile prove that the one was late."""
QUIET_WINDOW, QUIET_SHARE = 0.25, 0.2
"""Seconds to look at the cores for, and the share of them that others may use then."""


# --- the machine during a step --------------------------------------------------------------------


def wait_quiet(pids: Sequence[int], patience: float) -> None:
    """Return as soon as others use little of the cores of these processes, or after `patience`
    seconds. A build or a test beside the tester is often over soon."""
    cores = sorted(set().union(*map(_affinity, pids)))
    deadline, pause = monotonic() + patience, threading.Event()
    while monotonic() < deadline:
        with Surroundings(pids) as around:
            pause.wait(QUIET_WINDOW)
        if (around.foreign(cores) or 0.0) < QUIET_SHARE:
            return


@dataclass(frozen=True, slots=True)
class _Snapshot:
    at: float
    busy: dict[int, float]
    """Core -> seconds of work since boot, for anybody, without what a hypervisor took."""
    steal: dict[int, float]
    own: dict[int, float]
    """Process of ours -> its CPU seconds."""
    network: dict[str, tuple[int, int]]
    """Interface -> bytes received and sent."""


class Surroundings:
    """`with Surroundings(pids) as around:` sees what the machine did meanwhile. `pids`: the
    senders; this process counts as ours too. What /proc does not tell is None."""

    def __init__(self, pids: Iterable[int] = (), root: Path = Path("/")) -> None:
        self._pids = (*pids, os.getpid())
        self._root = root
        self._cores = {pid: _affinity(pid) for pid in self._pids}
        self._before = self._after = self._look()

    def __enter__(self) -> Self:
        self._before = self._look()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._after = self._look()

    @property
    def seconds(self) -> float:
        """How long the block took."""
        return self._after.at - self._before.at

    def foreign(self, cores: Sequence[int]) -> float | None:
        """Share (0-1) of the time of these cores that others than us used."""
        busy = [self._increase("busy", core) for core in cores if core in self._before.busy]
        if not busy or self.seconds <= 0:
            return None
        ours = sum(self._increase("own", pid) * self._share_on(pid, cores) for pid in self._pids)
        return min(1.0, max(0.0, (sum(busy) - ours) / (self.seconds * len(busy))))

    def steal(self, cores: Sequence[int]) -> float | None:
        """Share (0-1) of the time of these cores that the hypervisor gave to other machines."""
        taken = [self._increase("steal", core) for core in cores if core in self._before.steal]
        if not taken or self.seconds <= 0:
            return None
        return sum(taken) / (self.seconds * len(taken))

    def busiest_network(self) -> tuple[str, float, float | None] | None:
        """The interface with the most traffic in one direction, its bytes a second there, and how
        many it can carry (None: it does not say, as loopback)."""
        if self.seconds <= 0:
            return None
        before, after = self._before.network, self._after.network
        rates = {
            name: max(now - then for now, then in zip(after[name], before[name], strict=True))
            for name in before.keys() & after.keys()
        }
        name = max(sorted(rates), key=rates.__getitem__, default=None)
        if name is None:
            return None
        return name, rates[name] / self.seconds, self._capacity(name)

    def _look(self) -> _Snapshot:
        busy, steal = _core_times(self._root)
        own = {pid: _cpu_seconds(self._root, pid) for pid in self._pids}
        return _Snapshot(monotonic(), busy, steal, own, _network_bytes(self._root))

    def _increase(self, kind: str, key: int) -> float:
        before, after = getattr(self._before, kind), getattr(self._after, kind)
        return max(0.0, float(after.get(key, 0.0)) - float(before.get(key, 0.0)))

    def _share_on(self, pid: int, cores: Sequence[int]) -> float:
        """What part of a process's time was on `cores`, as far as its affinity tells."""
        allowed = self._cores[pid]
        return len(allowed & set(cores)) / len(allowed) if allowed else 0.0

    def _capacity(self, name: str) -> float | None:
        text = _read(self._root / "sys/class/net" / name / "speed").strip()
        return int(text) * 1e6 / 8 if text.isdecimal() and int(text) > 0 else None


_TICK = 1.0 / os.sysconf("SC_CLK_TCK")


def _core_times(root: Path) -> tuple[dict[int, float], dict[int, float]]:
    busy, steal = {}, {}
    for line in _read(root / "proc/stat").splitlines():
        name, *fields = line.split()
        if name.startswith("cpu") and name[3:].isdecimal() and len(fields) >= 8:
            user, nice, system, _idle, _iowait, irq, softirq, stolen = map(int, fields[:8])
            busy[int(name[3:])] = (user + nice + system + irq + softirq) * _TICK
            steal[int(name[3:])] = stolen * _TICK
    return busy, steal


def _cpu_seconds(root: Path, pid: int) -> float:
    text = _read(root / f"proc/{pid}/stat")
    fields = text[text.rfind(")") + 1 :].split()
    return (int(fields[11]) + int(fields[12])) * _TICK if len(fields) > 12 else 0.0


def _network_bytes(root: Path) -> dict[str, tuple[int, int]]:
    found = {}
    for line in _read(root / "proc/net/dev").splitlines():
        name, colon, rest = line.partition(":")
        fields = rest.split()
        if colon and len(fields) >= 9:
            found[name.strip()] = int(fields[0]), int(fields[8])
    return found


def _affinity(pid: int) -> set[int]:
    with suppress(OSError):
        return os.sched_getaffinity(pid)
    return set()


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


# --- the judgement --------------------------------------------------------------------------------


def check(
    plan: StepPlan,
    sent: Sent,
    threshold: float | None,
    surroundings: Surroundings,
    server: ServerView | None,
) -> Generator:
    """Judge the tester in one step.

    `threshold`: seconds of the tightest latency SLO; None: there is none. The first bad signal
    that invalidates says why, and what the evidence takes for the cause.
    """
    until = plan.end if sent.stopped_at is None else min(plan.end, sent.stopped_at)
    measured = sent.recording.between(plan.warm_up, until)
    on_this_host = server is not None and server.source == "proc"
    evidence = [
        *_of_cores(sent.senders, surroundings, on_this_host),
        *_of_senders(sent.senders, threshold),
        _network(surroundings),
        _round_trip(measured, threshold),
    ]
    if server is not None:
        evidence.append(_idle_server(measured, until, server))
    if on_this_host:
        evidence.append(_same_host(evidence[0].value))
    fatal = [
        _sockets(sent.recording),
        _held_back(measured, plan),
        _shortfall(measured, until, lag_limit(measured, threshold)),
        _send_lag(measured, threshold),
        _arrivals(measured),
        _starved(sent.senders, surroundings),
    ]
    cause = next((signal.text for signal in evidence if signal.bad and signal.name in _CAUSES), "")
    told = [_with_cause(signal, cause) for signal in fatal]
    return Generator(ok=not any(signal.bad for signal in fatal), signals=[*told, *evidence])


def lag_limit(measured: Recording, threshold: float | None) -> float:
    """Seconds that P99 of the tester's own lag may be: 5% of the SLO and 10% of the median
    response, whichever is less, but never below 1 ms."""
    median = percentile(measured.response, 50.0)
    limits = [
        LAG_OF_SLO * threshold if threshold is not None else SHORTEST_LAG,
        LAG_OF_MEDIAN * median if median is not None else math.inf,
    ]
    return max(SHORTEST_LAG, min(limits))


OWN_FAULT = "use more --processes, a lower rate or a machine of its own"
"""What to do when nothing else explains it."""
_CAUSES = ("foreign_cpu", "steal", "client_cpu", "gc_pause", "run_queue", "network")
"""Evidence that explains late sends, the likeliest first."""


def _with_cause(signal: Signal, cause: str) -> Signal:
    if not signal.bad:
        return signal
    return replace(signal, text=f"{signal.text}; {cause or OWN_FAULT}")


def _fatal(
    name: str, value: float | None, limit: float | None, unit: Unit, *, bad: bool, text: str
) -> Signal:
    return Signal(
        name=name, value=value, limit=limit, unit=unit, bad=bool(bad), invalidates=True, text=text
    )


def _sockets(recording: Recording) -> Signal:
    num = int(np.sum(recording.status == NO_SOCKET))
    text = (
        f"{num} requests found no socket: raise the limit of open files (ulimit -n) and of ports, "
        "or lower the rate"
        if num
        else "there was a socket for every request"
    )
    return _fatal("sockets", num, 0, "count", bad=num > 0, text=text)


def _held_back(measured: Recording, plan: StepPlan) -> Signal:
    """Only a declared cap makes a request wait for a connection without the server's doing."""
    waited = measured.acquired - measured.woke - measured.accept_wait > SHORTEST_LAG
    held = (measured.status == UNSENT) | waited
    share = float(np.mean(held)) if plan.max_connections is not None and len(held) else 0.0
    text = (
        f"the cap of {plan.max_connections} connections held back {share:.1%} of the requests: "
        "this is no open loop; raise the cap or leave it away"
        if share > MOST_HELD
        else "no cap on connections held requests back"
    )
    return _fatal("connection_cap", share, MOST_HELD, "ratio", bad=share > MOST_HELD, text=text)


def _shortfall(measured: Recording, until: float, limit: float) -> Signal:
    """What left inside the window, of what should have. Requests that the server did not let in
    count as sent: `own_lag` leaves its part out."""
    if len(measured) == 0:
        return _fatal(
            "shortfall", None, LEAST_SENT, "ratio", bad=False, text="nothing was to be sent"
        )
    share = float(np.mean(measured.intended + measured.own_lag <= until + limit))
    text = (
        f"only {share:.1%} of the planned requests left in time: the tester cannot send this rate; "
        "use more --processes or a machine of its own"
        if share < LEAST_SENT
        else f"{share:.1%} of the planned requests left inside the window"
    )
    return _fatal("shortfall", share, LEAST_SENT, "ratio", bad=share < LEAST_SENT, text=text)


def _send_lag(measured: Recording, threshold: float | None) -> Signal:
    limit = lag_limit(measured, threshold)
    if len(measured) == 0:
        return _fatal("send_lag", None, limit, "seconds", bad=False, text="nothing was to be sent")
    lag = percentile(measured.own_lag, 99.0)
    late = lag is None or lag > limit
    seen = "more than 1% never left" if lag is None else f"P99 of it is {format_duration(lag)}"
    text = (
        f"the tester sent late ({seen}, at most {format_duration(limit)} may be)"
        if late
        else f"requests left on time (P99 of the send lag {format_duration(lag or 0.0)})"
    )
    return _fatal("send_lag", lag, limit, "seconds", bad=late, text=text)


def _arrivals(measured: Recording) -> Signal:
    """Did they leave as unevenly as planned? Asked only of a plan that is Poisson itself, and at
    the scale of the lag that is allowed: what is bunched within that is no bunch to a service."""
    planned = np.diff(measured.intended)
    leaving = np.sort(measured.intended + measured.own_lag)
    leaving = leaving[np.isfinite(leaving)]
    if min(len(planned), len(leaving) - 1) < FEWEST_GAPS or not _is_poisson(planned):
        text = "the pattern of arrivals was not checked: too few, or not Poisson by plan"
        return _fatal("arrivals", None, DISTORTED_SPREAD, "ratio", bad=False, text=text)
    size = max(1, math.ceil(SHORTEST_LAG / float(np.mean(planned))))
    lumps, meant = np.diff(leaving[::size]), np.diff(measured.intended[::size])
    change = _spread(lumps) / _spread(meant) - 1.0
    chance = DISTORTED_SIGMAS / math.sqrt(len(lumps))
    bad = abs(change) > DISTORTED_SPREAD + chance
    text = (
        f"requests did not leave as Poisson arrivals (the spread of their gaps is off by "
        f"{change:+.0%}): the tester sends in bunches"
        if bad
        else "requests left in the planned pattern"
    )
    return _fatal("arrivals", abs(change), DISTORTED_SPREAD + chance, "ratio", bad=bad, text=text)


def _is_poisson(gaps: Floats) -> bool:
    chance = exponential_p(gaps, float(np.mean(gaps))) >= DISTORTED_P
    return chance and abs(_spread(gaps) - 1.0) < 3.0 / math.sqrt(len(gaps)) + 0.05


def _spread(gaps: Floats) -> float:
    """Coefficient of variation."""
    return float(np.std(gaps) / np.mean(gaps))


def _starved(senders: Sequence[SenderFacts], around: Surroundings) -> Signal:
    """Answers are read late, too, by a sender that must wait for its core; the send lag shows only
    half of that."""
    waits = [
        facts.run_queue_wait / facts.cpu
        for facts in senders
        if facts.run_queue_wait is not None
        and facts.cpu > 0
        and (around.foreign(facts.cores) or 0.0) > CONTENDED
    ]
    wait = max(waits, default=None)
    starved = wait is not None and wait > WAIT_OF_WORK
    text = (
        f"a sender waited for its core {wait:.0%} as long as it ran"
        if starved
        else "no sender had to wait for a core that others held"
    )
    return _fatal("starved", wait, WAIT_OF_WORK, "ratio", bad=starved, text=text)


# --- evidence -------------------------------------------------------------------------------------


def _hint(
    name: str,
    value: float | None,
    limit: float | None,
    unit: Unit,
    *,
    fine: str,
    wrong: str,
    bad: bool | None = None,
) -> Signal:
    """Bad when `value` is above `limit`, unless `bad` says; the text is `fine` or `wrong`."""
    if bad is None:
        bad = value is not None and limit is not None and value > limit
    text = wrong if bad else fine if value is not None else f"{fine} (could not be read)"
    return Signal(
        name=name, value=value, limit=limit, unit=unit, bad=bad, invalidates=False, text=text
    )


def _of_cores(senders: Sequence[SenderFacts], around: Surroundings, local: bool) -> list[Signal]:
    places = {facts.cores for facts in senders}
    foreign = _most(around.foreign(cores) for cores in places)
    steal = _most(around.steal(cores) for cores in places)
    others = "others (the server may be among them)" if local else "others"
    return [
        _hint(
            *("foreign_cpu", foreign, FOREIGN_SHARE, "ratio"),
            fine=f"others used {_share(foreign)} of the tester's cores",
            wrong=f"{others} used {_share(foreign)} of the tester's cores: stop them, or give the "
            "tester cores of its own (taskset)",
        ),
        _hint(
            *("steal", steal, STEAL_SHARE, "ratio"),
            fine="the hypervisor took no time away",
            wrong=f"the hypervisor gave {_share(steal)} of the tester's time to other machines: "
            "use a machine that is not overbooked",
        ),
    ]


def _same_host(shared: float | None) -> Signal:
    apart = "and share cores" if shared is not None and shared > OWN_CORES else "on cores apart"
    text = f"tester and server run on one machine {apart}: test from another one to be sure"
    return _hint("same_host", shared, OWN_CORES, "ratio", fine=text, wrong=text, bad=True)


def _of_senders(senders: Sequence[SenderFacts], threshold: float | None) -> list[Signal]:
    cpu = _most(facts.cpu / facts.wall for facts in senders)
    waits = (facts.run_queue_wait for facts in senders)
    waited = _most(
        None if wait is None else wait / facts.wall
        for wait, facts in zip(waits, senders, strict=True)
    )
    switches = _most(facts.involuntary_switches / facts.wall for facts in senders)
    loop = percentile(np.concatenate([*(facts.loop_lag for facts in senders), []]), 99.0)
    pause = _most(float(np.max(facts.gc_pauses, initial=0.0)) for facts in senders)
    pause_limit = LATE_LOOP if threshold is None else max(SHORTEST_LAG, LAG_OF_SLO * threshold)
    return [
        _hint(
            *("client_cpu", cpu, BUSY_CLIENT, "ratio"),
            fine=f"the busiest sender used {_share(cpu)} of a core",
            wrong=f"a sender used {_share(cpu)} of a core: use more --processes",
        ),
        _hint(
            *("gc_pause", pause, pause_limit, "seconds"),
            fine="the tester's collector did not stop it for long",
            wrong=f"the tester's collector stopped it for {_time(pause)}: use more --processes, so "
            "that each has less to keep",
        ),
        _hint(
            *("run_queue", waited, RUN_QUEUE_SHARE, "ratio"),
            fine="senders ran as soon as they were ready",
            wrong=f"a sender was ready and had no core for {_share(waited)} of the time: give it a "
            "core of its own",
        ),
        _hint(
            *("involuntary_switches", switches, SWITCHES_A_SECOND, "per_second"),
            fine="senders were not driven off their cores",
            wrong=f"a sender was driven off its core {format_rate(switches or 0.0)}: give it a "
            "core of its own",
        ),
        _hint(
            *("loop_lag", loop, LATE_LOOP, "seconds"),
            fine="senders woke on time",
            wrong=f"senders woke late (P99 {_time(loop)}): use more --processes",
        ),
    ]


def _network(around: Surroundings) -> Signal:
    found = around.busiest_network()
    name, rate, capacity = found or ("the network", 0.0, None)
    share = rate / capacity if capacity else None
    carried = f"{name} carried {rate / 1e6:.1f} MB/s"
    return _hint(
        *("network", share, BANDWIDTH_SHARE, "ratio"),
        fine=carried,
        wrong=f"{carried}, {_share(share)} of what it can: use smaller bodies, --gzip or a faster "
        "network",
    )


def _round_trip(measured: Recording, threshold: float | None) -> Signal:
    """From the time that new connections took, which is one round trip without TLS."""
    opening = measured.accept_wait[measured.accept_wait > 0]
    trip = percentile(opening, 50.0)
    return _hint(
        *("round_trip", trip, None if threshold is None else TRIP_OF_SLO * threshold, "seconds"),
        fine="a new connection took " + ("no time" if trip is None else _time(trip)),
        wrong=f"a new connection took {_time(trip)}: much of the SLO goes to the way; test from "
        "where the users are, or from beside the server",
    )


def _idle_server(measured: Recording, until: float, server: ServerView) -> Signal:
    """A server that has little to do while answers fall behind is not what limits them, or it
    waits for something else than its CPU."""
    ended = measured.good & (measured.last <= until)
    turned_away = measured.refused | (measured.status < UNANSWERED)
    busy = server.busy_cores
    flat = (
        len(measured) >= FEWEST_GAPS and np.mean(ended) < FLAT and np.mean(turned_away) < 1.0 - FLAT
    )
    shown = f"the server used {busy or 0.0:.2f} cores"
    return _hint(
        *("idle_server", busy, IDLE_CORES, "count"),
        fine=shown,
        wrong=f"throughput is flat while {shown}: look at the tester first, then at what the "
        "server waits for",
        bad=bool(flat) and busy is not None and busy < IDLE_CORES,
    )


def _most(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _share(value: float | None) -> str:
    return f"{value or 0.0:.0%}"


def _time(seconds: float | None) -> str:
    return format_duration(seconds or 0.0)


# --- proofs ---------------------------------------------------------------------------------------


def split_agrees(whole: Recording, halves: Recording, q: float, rng: np.random.Generator) -> Signal:
    """Do two senders at half the rate each see what one saw at the whole rate?

    Args:
        whole: measured requests of one sender.
        halves: those of two senders at the same rate together, joined.
        q: the percentile (0-100) of the response time that is compared.

    The one was in the number when the percentile of the two is smaller by more than a tenth beyond
    chance (95% interval of the ratio, by resampling of whole stretches of time).
    """
    before, after = percentile(whole.response, q), percentile(halves.response, q)
    if before is None or after is None:
        text = f"P{q:g} is a miss: one sender and two could not be compared"
        return _fatal("split", None, SPLIT_DROP, "ratio", bad=False, text=text)
    ratios = _resampled(halves.response, q, rng) / _resampled(whole.response, q, rng)
    high = float(np.nanquantile(ratios, 0.975))
    bad = high < SPLIT_DROP
    shown = (
        f"P{q:g} is {format_duration(after)} with two senders, {format_duration(before)} with one"
    )
    text = (
        f"{shown}: one sender was late; use more --processes" if bad else f"{shown}: no difference"
    )
    return _fatal("split", after / before, SPLIT_DROP, "ratio", bad=bad, text=text)


def _resampled(response: Floats, q: float, rng: np.random.Generator, times: int = 400) -> Floats:
    """The percentile of `times` samples made of stretches drawn with repetition, shape (times,).
    Samples whose percentile is a miss give NaN."""
    stretches = np.array_split(response, min(NUM_BATCHES, len(response)))
    drawn = rng.integers(len(stretches), size=(times, len(stretches)))
    found = [percentile(np.concatenate([stretches[at] for at in row]), q) for row in drawn]
    return np.array([math.nan if value is None else value for value in found])
