"""How long will a batch of n rows take? Learned online from the batches that ran."""

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

Sample = tuple[int, float, float | None]
"""A batch: rows, seconds, CPU seconds (None: unknown)."""

_FEW = 3
"""From so many samples on, the slowest alone is not believed: a cold start or one pause of the
machine looks like the tail, and only a second one shows that it is."""

_TOLERANCE = 0.05
"""Share by which what is known must differ from what is told before that changes: whoever computes
something from the predictions need not do so again after every batch."""

_RECENT = 32
"""Batches of any size from which the stretch is taken: a fraction of a second under load."""

_GRAIN = 0.003
"""Seconds. About what a scheduler gives a process at a time, and what waking and noticing cost: a
batch much shorter than this waits for a turn as long as one of this length does."""

_CALIBRATIONS = 8
"""Kept of each size class."""

_WAITS = 0.1
"""Share of its own time above which a model is known to wait by itself (GPU, network, sleep)."""

_SAMPLES_KEPT = 16
"""Of each size class, for the next start."""


class _Sample(NamedTuple):
    """One batch, as if nobody else had used the machine. Sorts by its duration."""

    seconds: float
    rows: int
    ordinal: int
    """Which batch it was, counted over all sizes."""
    cpu_seconds: float | None


class _Knot(NamedTuple):
    """A point of the curve."""

    rows: int
    seconds: float
    num_samples: int
    is_fresh: bool


class _Ring:
    """The recent samples of one size class, by age and by duration."""

    __slots__ = ("by_age", "by_seconds", "told")

    def __init__(self) -> None:
        self.by_age: deque[_Sample] = deque()
        self.by_seconds: list[_Sample] = []
        self.told: tuple[float, float] | None = None
        """Seconds of its knots in the curves."""

    def add(self, sample: _Sample, window: int, horizon: int) -> None:
        """Keep `sample`; forget what is beyond the window, or old when there is newer."""
        self.by_age.append(sample)
        insort(self.by_seconds, sample)
        while len(self.by_age) > window or (
            len(self.by_age) > _FEW and self.by_age[0].ordinal <= sample.ordinal - horizon
        ):
            del self.by_seconds[bisect_left(self.by_seconds, self.by_age.popleft())]

    def quantile(self, q: float) -> _Sample:
        """Nearest rank; of three samples or more never the slowest one alone."""
        num = len(self.by_seconds)
        rank = math.ceil(q * num)
        return self.by_seconds[(min(rank, num - 1) if num >= _FEW else rank) - 1]

    def quantiles(self, qs: tuple[float, float]) -> tuple[float, float]:
        """Seconds at two quantiles."""
        return self.quantile(qs[0]).seconds, self.quantile(qs[1]).seconds


class _Curve:
    """Seconds over rows at one quantile: straight lines between the knots."""

    __slots__ = ("_rows", "_seconds", "_slope")

    def __init__(self, knots: Sequence[_Knot]) -> None:
        self._rows = [knot.rows for knot in knots]
        self._seconds = _reconciled(_monotone(knots))
        x, y = self._rows[-1], self._seconds[-1]
        half = max(bisect_left(self._rows, x // 2 + 1) - 1, 0)
        rise, run = y - self._seconds[half], x - self._rows[half]
        self._slope = min(rise / run, y / x) if run else y / x

    def at(self, rows: int) -> float:
        """Seconds of a batch of `rows` rows."""
        xs, ys = self._rows, self._seconds
        right = bisect_left(xs, rows)
        if right == len(xs):
            return self._beyond(rows)
        if right == 0 or xs[right] == rows:
            return ys[right]
        x, y = xs[right - 1], ys[right - 1]
        return y + (ys[right] - y) * (rows - x) / (xs[right] - x)

    def _beyond(self, rows: int) -> float:
        x, y = self._rows[-1], self._seconds[-1]
        if rows <= 2 * x:
            return y + self._slope * (rows - x)
        return (y + self._slope * x) * rows / (2 * x)


class _Need(NamedTuple):
    """What a batch of one size needs of an idle machine."""

    rows: int
    parallel: float
    """CPU seconds a second while it computes, at least 1."""
    off: float
    """Seconds in which it waits by itself: GPU, network, sleep."""

    def own_seconds(self, seconds: float, cpu_seconds: float) -> float:
        """What a batch that took so much would have taken on an idle machine."""
        return min(cpu_seconds / self.parallel + self.off, seconds)


class _Calibration:
    """What the calibrated sizes need; sizes in between by straight lines.

    Below the smallest as that one; beyond the largest, waiting by itself grows with the rows.
    """

    __slots__ = ("_by_class", "_needs", "_samples")

    def __init__(self) -> None:
        self._samples: dict[int, deque[tuple[float, float, float, int]]] = {}
        self._by_class: dict[int, _Need] = {}
        self._needs: list[_Need] = []

    def add(self, rows: int, seconds: float, cpu_seconds: float) -> None:
        """Of the recent ones of a size the second most busy counts: others may have shared the
        machine after all (a worker that is replaced under load), the busiest may have been cold."""
        size = _class_of(rows)
        samples = self._samples.setdefault(size, deque(maxlen=_CALIBRATIONS))
        samples.append((seconds / max(cpu_seconds, 1e-9), seconds, cpu_seconds, rows))
        _, wall, cpu, at_rows = sorted(samples)[min(1, len(samples) - 1)]
        self._by_class[size] = _Need(at_rows, max(1.0, cpu / max(wall, 1e-9)), max(0.0, wall - cpu))
        self._needs = [need for _, need in sorted(self._by_class.items())]

    def of(self, rows: int) -> _Need | None:
        """What a batch of `rows` rows needs; None: nothing is known."""
        needs = self._needs
        if not needs:
            return None
        right = bisect_left(needs, (rows,))
        if right == len(needs):
            return needs[-1]._replace(off=needs[-1].off * rows / needs[-1].rows)
        high, low = needs[right], needs[max(right - 1, 0)]
        share = (rows - low.rows) / (high.rows - low.rows) if right else 1.0
        parallel = low.parallel + (high.parallel - low.parallel) * share
        return _Need(rows, parallel, low.off + (high.off - low.off) * share)


class _Contention:
    """What batches of any size waited of late for a core that others used.

    As a rate: seconds of waiting for each second of their own time and one `_GRAIN`.
    """

    __slots__ = ("_by_age", "_by_rate", "tail", "typical")

    def __init__(self) -> None:
        self._by_age = deque([(0.0, 1.0)] * _RECENT)  # rate, own seconds
        self._by_rate = [0.0] * _RECENT
        self.tail = self.typical = 0.0

    def add(self, own: float, seconds: float) -> bool:
        """A batch that alone takes `own` took `seconds`. True: what is told has changed."""
        rate = (seconds - own) / (own + _GRAIN)
        del self._by_rate[bisect_left(self._by_rate, self._by_age.popleft()[0])]
        self._by_age.append((rate, own))
        insort(self._by_rate, rate)
        tail, typical = self._by_rate[-2], self._by_rate[_RECENT // 2]
        if not _differs(1.0 + tail, 1.0 + self.tail) and not _differs(
            1.0 + typical, 1.0 + self.typical
        ):
            return False
        self.tail, self.typical = tail, typical
        return True

    @property
    def stretch(self) -> float:
        """How many times their own time the recent batches took: the median."""
        times = [1.0 + rate * (1.0 + _GRAIN / max(own, 1e-9)) for rate, own in self._by_age]
        return sorted(times)[_RECENT // 2]

    def without(self, seconds: float) -> float:
        """What is left of `seconds` without the waiting of a batch at the recent tail."""
        return (seconds - self._by_rate[-2] * _GRAIN) / (1.0 + self._by_rate[-2])


class LatencyModel:
    """Predicts how long a batch of n rows takes, at two quantiles: `tail` and `typical`.

    **Own time and waiting.** A batch takes its own time, and waits while others (the front, above
    all) use its core. Own time is what it would take on an idle machine:

        own = cpu / k(n) + off(n), at most the measured seconds

    cpu = its CPU seconds, k = how many cores the model keeps busy, off = how long it waits by
    itself (GPU, network, sleep); k and off come from the calibrated batches of about its size.
    Own times have a long memory, by size. Waiting has a short one, of `_RECENT` batches of any
    size: it comes and goes with the load, and an overload must not be believed in long after. A
    batch is predicted to take

        own(n) + r (own(n) + g)

    where own(n) is the quantile of own times, g = `_GRAIN`, and r the rate of waiting over the
    recent batches: the highest but one for the tail, the median for the typical batch. Without
    CPU seconds, or before any calibration, all measured time is own and r is 0.

    **Classes.** A ring of the last `window` own times for each size up to 8 rows, then for four
    classes an octave (9-10, 11-12, ..., 17-20, ...). Each class gives one knot a quantile: the
    sample at its nearest rank, at the rows of that very sample.

    **Between classes.** The knots are made monotone by pooling adjacent violators, weighted with
    the number of samples. A running maximum would let one thinly observed class lift every
    larger one. Knots are joined by straight lines; below the smallest the curve is flat.

    **Beyond the largest knot (x, y)** the curve goes on with the slope seen over its upper half,
    at most y/x, up to 2x; from there in proportion to the rows. So what nobody has measured is
    never predicted to cost less per row than at 2x: a few cheap small batches do not promise
    that huge ones are free, and each doubling of the size asks for new evidence.

    **Change.** A class follows a slowdown of its computing after two batches of its size, a
    speed-up after `window` batches of its size, or after two of its size once `horizon` batches
    of any size have passed. A class without a batch for `horizon` batches is stale: kept for its
    shape, but held between what the fresh ones allow (more rows never take less, nor more than in
    proportion), so that an old bad time cannot keep its size from being tried for ever. A model
    that waits by itself may wait longer than it was calibrated: while two of the recent batches
    say so, that counts as waiting; beyond, as own time.

    Costs O(log window) comparisons a batch and a binary search a question. What is told changes
    only when it is off by `_TOLERANCE`, or after `window` batches; the curves are rebuilt when they
    are next asked.
    """

    def __init__(
        self, tail: float = 0.99, typical: float = 0.5, *, window: int = 100, horizon: int = 512
    ) -> None:
        """Raises ValueError when a quantile is not in (0, 1], `window` or `horizon` below 3."""
        for name, q in (("tail", tail), ("typical", typical)):
            if not 0.0 < q <= 1.0:
                raise ValueError(f"{name} must be above 0 and at most 1; got {q}")
        if window < _FEW or horizon < _FEW:
            raise ValueError(f"window and horizon must be at least {_FEW}")
        self.version = 0
        """Changes whenever predictions may have changed."""
        self._quantiles, self._window, self._horizon = (tail, typical), window, horizon
        self._calibration = _Calibration()
        self._contention = _Contention()
        self._rings: dict[int, _Ring] = {}
        self._count = 0
        self._count_built = 0
        self._curves: tuple[_Curve, _Curve] | None = None

    def calibrate(self, rows: int, seconds: float, cpu_seconds: float | None = None) -> None:
        """A batch of `rows` rows took `seconds` while the machine was otherwise idle: a warm-up's.

        It says how the model uses a machine, and is a sample of its own time.
        """
        if cpu_seconds is not None:
            self._calibration.add(rows, seconds, cpu_seconds)
        self._learn(rows, seconds, cpu_seconds, is_service=False)

    def observe(self, rows: int, seconds: float, cpu_seconds: float | None = None) -> None:
        """A batch of `rows` rows (at least 1) of the running service took `seconds`.

        `cpu_seconds`: of the whole worker process meanwhile; None: unknown.
        """
        self._learn(rows, seconds, cpu_seconds, is_service=True)

    def tail_of(self, rows: int) -> float | None:
        """Seconds that a batch of `rows` rows takes at the tail quantile; None before any batch."""
        if not self._rings:
            return None
        self._curves = tail, _ = self._curves or self._build()
        return _contended(tail.at(rows), self._contention.tail)

    def typical_of(self, rows: int) -> float | None:
        """The same at the typical quantile."""
        if not self._rings:
            return None
        self._curves = _, typical = self._curves or self._build()
        return _contended(typical.at(rows), self._contention.typical)

    @property
    def stretch(self) -> float:
        """How many times longer batches take at present than on an idle machine. 1.0: no longer."""
        return self._contention.stretch

    def samples(self) -> list[Sample]:
        """What is known, for `restore`: own times with their CPU seconds, evenly from the ring of
        each size, at most `_SAMPLES_KEPT`."""
        return [
            (sample.rows, sample.seconds, sample.cpu_seconds)
            for _, ring in sorted(self._rings.items())
            for sample in _thinned(ring.by_seconds)
        ]

    def restore(self, samples: Iterable[Sample]) -> None:
        """Know again what `samples` said, also that of another process."""
        for rows, seconds, cpu_seconds in samples:
            self.calibrate(rows, seconds, cpu_seconds)

    def _learn(
        self, rows: int, seconds: float, cpu_seconds: float | None, *, is_service: bool
    ) -> None:
        assert rows >= 1, rows
        assert 0.0 <= seconds < math.inf, seconds
        assert cpu_seconds is None or 0.0 <= cpu_seconds < math.inf, cpu_seconds
        own = seconds
        need = self._calibration.of(rows)
        if need is not None and cpu_seconds is not None:
            own = need.own_seconds(seconds, cpu_seconds)
            if is_service and self._contention.add(own, seconds):
                self.version += 1
            if need.off > _WAITS * own:
                own = max(own, self._contention.without(seconds))
        self._count += 1
        ring = self._rings.setdefault(_class_of(rows), _Ring())
        ring.add(_Sample(own, rows, self._count, cpu_seconds), self._window, self._horizon)
        if self._curves is None or self._is_outdated(ring):
            self._curves = None
            self.version += 1

    def _is_outdated(self, ring: _Ring) -> bool:
        if ring.told is None or self._count - self._count_built >= self._window:
            return True
        return any(map(_differs, ring.quantiles(self._quantiles), ring.told))

    def _build(self) -> tuple[_Curve, _Curve]:
        self._count_built = self._count
        rings = [ring for _, ring in sorted(self._rings.items())]
        for ring in rings:
            ring.told = ring.quantiles(self._quantiles)
        tail, typical = self._quantiles
        return self._curve(rings, tail), self._curve(rings, typical)

    def _curve(self, rings: Iterable[_Ring], q: float) -> _Curve:
        return _Curve([self._knot(ring, q) for ring in rings])

    def _knot(self, ring: _Ring, q: float) -> _Knot:
        sample = ring.quantile(q)
        is_fresh = ring.by_age[-1].ordinal > self._count - self._horizon
        return _Knot(sample.rows, sample.seconds, len(ring.by_age), is_fresh)


def _contended(own: float, rate: float) -> float:
    return own + rate * (own + _GRAIN)


def _differs(now: float, told: float) -> bool:
    return abs(now - told) > _TOLERANCE * told


def _thinned(samples: list[_Sample]) -> list[_Sample]:
    """At most `_SAMPLES_KEPT`: the slowest, and others evenly spread up to the slowest but one.

    So the nearest ranks of the usual quantiles are the same samples as before.
    """
    most = _SAMPLES_KEPT - 1
    if len(samples) <= most:
        return samples
    last = len(samples) - 2
    return [samples[index * last // (most - 1)] for index in range(most)] + samples[-1:]


def _class_of(rows: int) -> int:
    """The largest size in the class of `rows`: itself up to 8, then 10, 12, 14, 16, 20, ..."""
    width = 1 << max((rows - 1).bit_length() - 3, 0)
    return -(-rows // width) * width


def _monotone(knots: Sequence[_Knot]) -> list[_Knot]:
    """Pool adjacent violators among the fresh knots: the closest rising curve, weighted."""
    blocks: list[tuple[float, int, int]] = []  # mean seconds, samples, knots
    for knot in knots:
        if not knot.is_fresh:
            continue
        seconds, weight, length = knot.seconds, knot.num_samples, 1
        while blocks and blocks[-1][0] > seconds:
            other, other_weight, other_length = blocks.pop()
            seconds = (seconds * weight + other * other_weight) / (weight + other_weight)
            weight, length = weight + other_weight, length + other_length
        blocks.append((seconds, weight, length))
    pooled = iter([seconds for seconds, _, length in blocks for _ in range(length)])
    return [knot._replace(seconds=next(pooled)) if knot.is_fresh else knot for knot in knots]


def _reconciled(knots: Sequence[_Knot]) -> list[float]:
    """The seconds of each knot, the stale ones held between what their neighbours allow."""
    following: list[_Knot | None] = []  # the next fresh knot above each
    above: _Knot | None = None
    for knot in reversed(knots):
        following.append(above)
        above = knot if knot.is_fresh else above
    following.reverse()

    seconds: list[float] = []
    for index, (knot, fresh) in enumerate(zip(knots, following, strict=True)):
        value = knot.seconds
        if not knot.is_fresh:
            if fresh is not None:
                value = min(max(value, fresh.seconds * knot.rows / fresh.rows), fresh.seconds)
            if seconds:
                smallest, rows = seconds[-1], knots[index - 1].rows
                value = min(max(value, smallest), smallest * knot.rows / rows)
        seconds.append(value)
    return seconds
