"""Why the slowest requests were slow: shares of their excess over the usual response time.

The slowest 5% of the good answers are compared with the middle ones (between the 40th and the 60th
percentile). What a slow request took beyond the median is split among causes, in this order, each
taking no more than the ones before have left: what is measured directly (the tester's own lag),
what happened to all requests together (a cold start, a stall), what typically comes with a request
(its size, its replica), and at last its way through the service. The way is read from
`Server-Timing` where the server tells it; else waiting is read from how long the requests ahead
stayed. What none of these explains is unexplained, and said to be.

Times are seconds, shares 0-1.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from tailproof.core.recording import Bools, Floats, Ints, Recording
from tailproof.core.units import format_duration

Name = Literal[
    "the generator",
    "cold start",
    "GC or stall",
    "large input",
    "replica",
    "queueing",
    "batch mates",
    "starved CPU",
    "network",
]
Indices = npt.NDArray[np.intp]

TAIL = 95.0
"""Percentile above which a request is slow."""
FEWEST_SLOW = 20
"""Fewer slow requests than this are no sample to explain."""
MOST_SLOW = 4000
"""So many are looked into; a random choice when there are more."""
WORTH_NAMING = 0.1
"""A tail whose mean excess is below this share of the median is the usual scatter."""

NUM_BLOCKS = 40
"""Stretches of consecutive requests that are drawn together for the intervals, since slow requests
come together."""
NUM_SAMPLES = 400
LEAST_SHARE = 0.01
"""A cause of less is not named."""
NUM_STRETCHES = 20
SURE = 3.0
"""Standard deviations that a group must be away from the others to be called slower."""
FEWEST_IN_GROUP = 10
SIZE_STEP = 1.25
"""Requests are of one size when they differ by less than about this factor."""

STALL_MARGIN = 5.0
"""exp(-5): how rarely an ordinary gap between completions, of all that there were, is as long as
what is called a stall."""
FEWEST_HELD = 2
WAIT_CORRELATION = 0.15
"""Above what chance gives when waiting has nothing to do with it (0.07 in 1,500 requests)."""
NUM_FITTED = 1500
NUMS_OF_SERVERS = (1, 2, 4, 8, 16, 32, 64)
MATES = 0.02
"""Answers within this share of a request's time are of one batch."""
PERIODIC = 0.15
"""Pauses are periodic when every distance between two is within this share of a multiple of one."""


@dataclass(frozen=True, slots=True)
class Cause:
    """One cause, the share of the excess that it explains with a 95% interval, and a sentence."""

    cause: Name
    share: float
    low: float | None = None
    high: float | None = None
    text: str = ""


@dataclass(frozen=True, slots=True)
class Attribution:
    """`causes`, largest share first; with `unexplained` their shares make 1. `primary`: the cause
    of at least half of the excess, surely above none. `tail_from`: seconds from which on a request
    counted as slow; None without any good answer."""

    causes: tuple[Cause, ...]
    unexplained: float
    primary: Name | None
    tail_from: float | None


def attribute(
    recording: Recording,
    *,
    gc_pauses: Sequence[tuple[float, float]] = (),
    rng: np.random.Generator,
) -> Attribution:
    """Explain the slowest of the measured requests.

    Args:
        recording: the requests of the measured window. Misses have no response time to explain and
            are left out.
        gc_pauses: (start, end) of known pauses of the server, on the recording's clock.
        rng: for the intervals, and for the choice where there are very many requests.
    """
    told = recording.take(recording.good & np.isfinite(recording.last))
    response = told.last - told.intended
    if len(told) == 0:
        return Attribution((), 1.0, None, None)
    tail_from = float(np.percentile(response, TAIL, method="inverted_cdf"))
    slow = _chosen(np.flatnonzero(response > tail_from), MOST_SLOW, rng)
    view = _View(told, response, slow)
    if len(slow) < FEWEST_SLOW or np.mean(view.excess[slow]) < WORTH_NAMING * view.usual:
        return Attribution((), 1.0, None, tail_from)
    ledger = _Ledger(view.excess.copy())
    large = _levels(_sizes(told), view)
    _own_lag(view, ledger)
    _together(view, ledger, _stalls(view, recording, large, gc_pauses))
    _groups(view, ledger, large)
    _way(view, ledger, large, rng)
    return _summed(view, ledger, tail_from, rng)


def cold_requests(
    recording: Recording, *, first_of_run: bool = False, idle: float = 1.0
) -> dict[str, Bools]:
    """Which requests met something for the first time, by kind; one may be of several kinds.

    `process`: the server said `X-Cold`, or `first_of_run` says that its first request is the very
    first that the service got. `connection`: the first on its connection. `idle`: nothing was sent
    or in flight for `idle` seconds, and for ten times the mean gap, before it.
    """
    process = recording.cold.copy()
    if first_of_run and len(recording):
        process[0] = True
    return {"process": process, "connection": recording.fresh, "idle": _after_idle(recording, idle)}


def _after_idle(recording: Recording, idle: float) -> Bools:
    found = np.zeros(len(recording), np.bool_)
    if len(recording) > 1:
        ended = np.where(np.isnan(recording.last), recording.intended, recording.last)
        quiet = recording.intended[1:] - np.maximum.accumulate(ended)[:-1]
        mean_gap = (recording.intended[-1] - recording.intended[0]) / (len(recording) - 1)
        found[1:] = quiet > max(idle, 10.0 * mean_gap)
    return found


# --- what is compared -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _View:
    """Good answers in order of intended start, and which of them are `slow` (indices)."""

    told: Recording
    response: Floats
    slow: Indices

    @property
    def usual(self) -> float:
        return float(np.median(self.response))

    @property
    def excess(self) -> Floats:
        return np.maximum(self.response - self.usual, 0.0)

    @property
    def middle(self) -> Bools:
        low, high = np.percentile(self.response, (40.0, 60.0))
        found: Bools = (self.response >= low) & (self.response <= high)
        return found

    def beyond_usual(self, values: Floats) -> Floats:
        """Of each request, how much more it had than the middle ones."""
        return values - float(np.median(values[self.middle]))


@dataclass(slots=True, eq=False)
class _Ledger:
    """`left`: the excess of each request that no cause has taken yet."""

    left: Floats
    taken: dict[Name, Floats] = field(default_factory=dict)
    texts: dict[Name, str] = field(default_factory=dict)

    def take(self, cause: Name, amount: Floats, text: str) -> None:
        """At most what is left of each request."""
        amount = np.clip(amount, 0.0, self.left)
        self.left = self.left - amount
        self._add(cause, amount, text)

    def split(self, amounts: dict[Name, tuple[Floats, str]], excess: Floats) -> None:
        """Parts that were measured: above and below the usual cancel out, or noise would be called
        a cause. Each in proportion to what is left of its request."""
        rest = np.divide(self.left, excess, out=np.zeros_like(excess), where=excess > 0)
        for cause, (amount, text) in amounts.items():
            self._add(cause, rest * amount, text)

    def _add(self, cause: Name, amount: Floats, text: str) -> None:
        self.taken[cause] = self.taken.get(cause, 0.0) + amount
        self.texts.setdefault(cause, text)


# --- the tester, and what happens to all together -------------------------------------------------


def _own_lag(view: _View, ledger: _Ledger) -> None:
    ledger.take(
        "the generator",
        view.beyond_usual(view.told.own_lag),
        "the tester sent them late: see the generator's signals",
    )


class _Stall(NamedTuple):
    """From `start` to `end` nothing was answered; `until`: its backlog was gone."""

    start: float
    end: float
    until: float
    cause: Name


def _together(view: _View, ledger: _Ledger, stalls: Sequence[_Stall]) -> None:
    """A stall delays a request by its own length at most, be it in it or in the queue after it."""
    told, response = view.told, view.response
    cold = "they met a process that was not warm yet: send some requests before traffic comes"
    ledger.take("cold start", np.where(told.cold, response, 0.0), cold)
    texts: dict[Name, str] = {
        "GC or stall": _story([stall for stall in stalls if stall.cause == "GC or stall"]),
        "cold start": cold,
        "the generator": "the tester stood still: see the generator's signals",
    }
    for stall in stalls:
        hit = (told.last >= stall.end) & (told.intended < stall.until)
        ledger.take(stall.cause, np.where(hit, stall.end - stall.start, 0.0), texts[stall.cause])


def _stalls(
    view: _View,
    recording: Recording,
    large: Floats,
    gc_pauses: Sequence[tuple[float, float]],
) -> list[_Stall]:
    """Gaps between completions, with requests in flight, that are too long to be ordinary ones.

    Ordinary gaps are at their widest exponential: of n of them the longest exceeds
    scale * (ln n + m) with a chance below exp(-m). Half of the busy time lies in gaps below 1.678
    scales, a median that batches (many gaps of nothing) do not move.
    """
    traffic = _Traffic.of(recording)
    starts, ends = traffic.gaps()
    lengths = ends - starts
    if len(lengths) < FEWEST_SLOW:
        return []
    scale = min(_weighted_median(lengths) / 1.678, view.usual / math.log(2.0))
    long = lengths > scale * (math.log(len(lengths)) + STALL_MARGIN)
    for start, end in gc_pauses:
        overlap = np.minimum(ends, end) - np.maximum(starts, start)
        long |= overlap > 0.5 * (end - start)
    found = []
    for start, end in zip(starts[long], ends[long], strict=True):
        cause = _cause_of(view, large, float(start), float(end))
        if cause is not None and traffic.in_flight_before(end) >= FEWEST_HELD:
            found.append(_Stall(float(start), float(end), traffic.calm_after(end), cause))
    return found


def _cause_of(view: _View, large: Floats, start: float, end: float) -> Name | None:
    """None: what was answered first after the gap is large enough to have taken so long."""
    told, length = view.told, end - start
    first = (told.last >= end) & (told.last <= end + 0.05 * length) & (told.intended < end)
    if np.any(large[first] > 0.5 * length):
        return None
    if np.any(told.cold[first]):
        return "cold start"
    due = (told.intended >= start) & (told.intended < end)
    sent_after = due & (told.own_lag > np.maximum(0.5 * (end - told.intended), 0.05 * length))
    num_due, num_late = int(due.sum()), int(sent_after.sum())
    return "the generator" if 2 * num_late > max(1, num_due) else "GC or stall"


@dataclass(frozen=True, slots=True, eq=False)
class _Traffic:
    """When requests left and came back, good or not, each sorted."""

    sent: Floats
    ended: Floats

    @classmethod
    def of(cls, recording: Recording) -> "_Traffic":
        both = np.isfinite(recording.sent) & np.isfinite(recording.last)
        return cls(np.sort(recording.sent[both]), np.sort(recording.last[both]))

    def gaps(self) -> tuple[Floats, Floats]:
        """(starts, ends) of the times without a completion; idle time is not part of them, nor what
        comes after the last send, when only the slowest are left and gaps are wide."""
        before = np.concatenate([[-np.inf], self.ended])[: len(self.ended)]
        num_sent = np.searchsorted(self.sent, before, side="right")
        in_flight = num_sent - np.arange(len(self.ended))
        following = self.sent[np.minimum(num_sent, len(self.sent) - 1)]
        starts = np.where(in_flight > 0, before, following)
        loaded = self.ended <= self.sent[-1]
        return starts[loaded], self.ended[loaded]

    def in_flight_before(self, at: float) -> int:
        return int(np.searchsorted(self.sent, at) - np.searchsorted(self.ended, at))

    def calm_after(self, at: float) -> float:
        """The first moment from `at` on with no more in flight than usual."""
        in_flight = np.searchsorted(self.sent, self.ended, "right") - np.arange(
            1, len(self.ended) + 1
        )
        calm = (in_flight <= np.median(in_flight)) & (self.ended >= at)
        return float(self.ended[np.argmax(calm)]) if np.any(calm) else math.inf


def _weighted_median(lengths: Floats) -> float:
    """Half of the whole time lies in stretches no longer than this."""
    ordered = np.sort(lengths)
    total = np.cumsum(ordered)
    return float(ordered[np.searchsorted(total, 0.5 * total[-1])])


def _story(stalls: Sequence[_Stall]) -> str:
    if not stalls:
        return ""
    longest = format_duration(max(stall.end - stall.start for stall in stalls))
    period = _period(np.array([stall.start for stall in stalls]))
    often = f"{len(stalls)} times" if period is None else f"every {format_duration(period)}"
    return (
        f"the service stood still for up to {longest}, {often}: all requests in flight were late "
        "together; look at its collector, its locks and what else runs there"
    )


def _period(starts: Floats) -> float | None:
    """Seconds between pauses that come regularly (some may be missing)."""
    if len(starts) < 4:
        return None
    apart = np.diff(np.sort(starts))
    period = float(np.median(apart))
    times = apart / period
    regular = np.abs(times - np.round(times)) <= PERIODIC
    return period if np.all(regular & (np.round(times) >= 1)) else None


# --- what comes with a request --------------------------------------------------------------------


_LARGE = "larger bodies take longer, and so does what waits behind them: limit or separate them"


def _groups(view: _View, ledger: _Ledger, large: Floats) -> None:
    ledger.take("large input", large, _LARGE)
    names, levels = view.told.replicas, _levels(view.told.replica, view)
    worst = int(view.told.replica[np.argmax(levels)])
    named = f" {names[worst]}" if 0 <= worst < len(names) else ""
    ledger.take("replica", levels, f"replica{named} is slower than the others: see its machine")


def _sizes(told: Recording) -> Ints:
    """A number for each class of body sizes; one too rare to judge counts with the next smaller."""
    classes = np.round(np.log(np.maximum(told.sent_bytes, 1)) / math.log(SIZE_STEP))
    values, counts = np.unique(classes, return_counts=True)
    common = values[counts >= FEWEST_IN_GROUP]
    if len(common) == 0:
        return np.zeros(len(told), np.int32)
    place = np.searchsorted(common, classes, side="right") - 1
    return place.clip(min=0).astype(np.int32)


def _levels(groups: Ints, view: _View) -> Floats:
    """What a request of its group typically takes beyond the usual; 0 where the group is not
    surely slower than the others. Negative groups are unknown."""
    found = np.zeros(len(groups))
    values, counts = np.unique(groups[groups >= 0], return_counts=True)
    for value in values[(counts >= FEWEST_IN_GROUP) & (counts < len(groups))]:
        inside = groups == value
        if _is_slower(inside, view.response):
            found[inside] = max(0.0, float(np.median(view.response[inside])) - view.usual)
    return found


def _is_slower(inside: Bools, response: Floats) -> bool:
    """Sign test over stretches of time: how the load was then is the same for both sides."""
    stretches = np.array_split(np.arange(len(response)), NUM_STRETCHES)
    wins = []
    for stretch in stretches:
        ours, theirs = stretch[inside[stretch]], stretch[~inside[stretch]]
        if len(ours) and len(theirs):
            wins.append(bool(np.median(response[ours]) > np.median(response[theirs])))
    num = len(wins)
    return num > 0 and (2 * sum(wins) - num) / math.sqrt(num) > SURE


# --- the way through the service ------------------------------------------------------------------

_BEHIND = "they waited for the requests ahead of them: more machines, or a lower rate"
_MATES = "they shared their batch with more rows than usual: smaller batches, or more machines"
_STARVED = "the server had them and did not work on them: its front was busy or had no core"
_OUTSIDE = "the time passed between tester and server: connections, sockets, the network"


def _way(view: _View, ledger: _Ledger, large: Floats, rng: np.random.Generator) -> None:
    """As far as the server tells its stages they are read from it, else from the outside."""
    told = view.told
    waiting, servers = _waiting(view, ledger, rng)
    behind = np.clip(_behind(view, large) / servers, 0.0, np.maximum(waiting, 0.0))
    parts: dict[Name, tuple[Floats, str]] = {
        "queueing": (waiting - behind, _BEHIND),
        "large input": (behind, _LARGE),
        "batch mates": (_of_batch(view), _MATES),
    }
    outside = told.accept_wait
    if _known(told.total):
        outside = outside + (told.last - told.sent - told.total)
        if _known(told.queue) and _known(told.infer):
            stages = told.queue + told.infer + np.nan_to_num(told.batch)
            parts["starved CPU"] = (view.beyond_usual(told.total - stages), _STARVED)
    parts["network"] = (view.beyond_usual(outside), _OUTSIDE)
    ledger.split(parts, view.excess)


def _known(values: Floats) -> bool:
    return bool(np.all(np.isfinite(values)))


def _of_batch(view: _View) -> Floats:
    """Waiting for a batch to be formed, and what more rows in it take to compute."""
    told = view.told
    found = view.beyond_usual(told.batch) if _known(told.batch) else np.zeros(len(told))
    sizes = told.batch_size.astype(np.float64)
    if _known(told.infer) and np.all(sizes > 0):
        found = found + max(0.0, _slope(sizes, told.infer)) * view.beyond_usual(sizes)
    return found


def _waiting(view: _View, ledger: _Ledger, rng: np.random.Generator) -> tuple[Floats, int]:
    """How much of each slow response was waiting for the requests ahead, beyond the usual, and the
    number of servers that they wait for.

    With c servers a request waits until fewer than c of those ahead are unfinished. The c that
    explains the response times best (or the waiting that the server tells) is taken; independent
    services give no c at all, since what the requests ahead do then says nothing about the next.
    """
    is_told = _known(view.told.queue)
    wanted = view.told.queue if is_told else view.response
    settled = np.flatnonzero(ledger.left >= view.excess - 1e-9)
    fitted = _chosen(settled, NUM_FITTED, rng)
    waits = _waits(view.told, fitted)
    scores = [_correlation(column, wanted[fitted]) for column in waits.T]
    best = int(np.argmax(scores))
    servers = NUMS_OF_SERVERS[best] if scores[best] >= WAIT_CORRELATION else 0
    if is_told:
        return view.beyond_usual(wanted), max(1, servers)
    if servers == 0:
        return np.zeros(len(view.told)), 1
    slope = min(1.0, _slope(waits[:, best], wanted[fitted]))
    middle = _chosen(np.flatnonzero(view.middle), NUM_FITTED, rng)
    usual = float(np.median(_waits(view.told, middle)[:, best]))
    found = np.zeros(len(view.told))
    found[view.slow] = slope * (_waits(view.told, view.slow)[:, best] - usual)
    return found, servers


def _behind(view: _View, large: Floats) -> Floats:
    """Of each slow request, the seconds that larger bodies ahead of it took because they are."""
    found = np.zeros(len(view.told))
    if not np.any(large):
        return found
    for index, ahead in _ahead(view.told, view.slow):
        rest = view.told.last[ahead] - view.told.sent[index]
        found[index] = np.sum(np.minimum(large[ahead], rest))
    return found


def _ahead(told: Recording, which: Indices) -> Iterator[tuple[int, Indices]]:
    """For each of some requests, those before it that were unfinished when it was sent. Those
    that were answered at the same moment as it rode with it and were not ahead."""
    longest = float(np.max(told.last - told.intended))
    firsts = np.searchsorted(told.intended, told.sent[which] - longest)
    for index, first in zip(which.tolist(), firsts.tolist(), strict=True):
        ended, sent, last = told.last[first:index], told.sent[index], told.last[index]
        with_it = np.abs(ended - last) <= MATES * (last - sent)
        yield index, first + np.flatnonzero((ended > sent) & ~with_it)


def _waits(told: Recording, which: Indices) -> Floats:
    """Of some requests (n indices): seconds from the send until fewer than c of the requests ahead
    were unfinished, shape (n, number of `NUMS_OF_SERVERS`)."""
    found = np.zeros((len(which), len(NUMS_OF_SERVERS)))
    for row, (index, ahead) in enumerate(_ahead(told, which)):
        ended = np.sort(told.last[ahead])
        for column, servers in enumerate(NUMS_OF_SERVERS):
            if len(ended) >= servers:
                found[row, column] = ended[-servers] - told.sent[index]
    return found


def _slope(x: Floats, y: Floats) -> float:
    spread = float(np.var(x))
    return float(np.mean((x - x.mean()) * (y - y.mean()))) / spread if spread > 0 else 0.0


def _correlation(x: Floats, y: Floats) -> float:
    both = float(np.std(x) * np.std(y)) if len(x) else 0.0
    return float(np.mean((x - x.mean()) * (y - y.mean()))) / both if both > 0 else 0.0


# --- the sum --------------------------------------------------------------------------------------


def _summed(
    view: _View, ledger: _Ledger, tail_from: float, rng: np.random.Generator
) -> Attribution:
    """Shares of the whole excess. A cause is named when its interval is above 0."""
    names = list(ledger.taken)
    amounts = np.array([ledger.taken[name][view.slow] for name in names]).T
    shares, low, high = _bootstrap(amounts, view, rng)
    causes = [
        Cause(name, float(shares[at]), float(low[at]), float(high[at]), ledger.texts[name])
        for at, name in enumerate(names)
        if low[at] > 0.0 and shares[at] >= LEAST_SHARE
    ]
    causes.sort(key=lambda cause: -cause.share)
    unexplained = max(0.0, 1.0 - sum(cause.share for cause in causes))
    primary = causes[0].cause if causes and causes[0].share >= 0.5 else None
    return Attribution(tuple(causes), unexplained, primary, tail_from)


def _bootstrap(
    amounts: Floats, view: _View, rng: np.random.Generator
) -> tuple[Floats, Floats, Floats]:
    """Shares (number of causes,) with their 95% interval, from blocks of neighbours drawn with
    repetition. Cold requests stay in every sample: each repetition of a run would begin with them.
    """
    slow, excess = view.slow, view.excess[view.slow]
    block = np.where(view.told.cold[slow], NUM_BLOCKS, slow * NUM_BLOCKS // len(view.told))
    sums = np.zeros((NUM_BLOCKS + 1, amounts.shape[1] + 1))
    np.add.at(sums, block, np.column_stack([amounts, excess]))
    weights = rng.multinomial(NUM_BLOCKS, np.full(NUM_BLOCKS, 1.0 / NUM_BLOCKS), NUM_SAMPLES)
    drawn = _shares(weights @ sums[:-1] + sums[-1])
    low, high = np.nanpercentile(drawn, (2.5, 97.5), axis=0)
    return _shares(sums.sum(axis=0)[None])[0], low, high


def _shares(sums: Floats) -> Floats:
    """Each cause's sum over the excess (last column); together at most 1, none below 0. NaN where
    there is no excess: a sample without slow requests says nothing of their causes."""
    parts = np.maximum(sums[:, :-1], 0.0)
    whole = np.maximum(sums[:, -1], parts.sum(axis=1))
    found: Floats = parts / np.where(sums[:, -1] > 0, whole, np.nan)[:, None]
    return found


def _chosen(indices: Indices, most: int, rng: np.random.Generator) -> Indices:
    if len(indices) <= most:
        return indices
    return np.sort(rng.choice(indices, most, replace=False))
