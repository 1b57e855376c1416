"""How long will a batch of n rows take? Learned online from the batches that ran."""

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

_FEW = 3
"""From so many samples on, the slowest alone is not believed: a cold start or one pause of the
machine looks like the tail, and only a second one shows that it is."""


class _Sample(NamedTuple):
    """One batch. Sorts by its duration."""

    seconds: float
    rows: int
    ordinal: int
    """Which batch it was, counted over all sizes."""


class _Knot(NamedTuple):
    """A point of the curve."""

    rows: int
    seconds: float
    num_samples: int
    is_fresh: bool


class _Ring:
    """The recent samples of one size class, by age and by duration."""

    __slots__ = ("by_age", "by_seconds")

    def __init__(self) -> None:
        self.by_age: deque[_Sample] = deque()
        self.by_seconds: list[_Sample] = []

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


class LatencyModel:
    """Predicts the `q`-quantile of the seconds that a batch of n rows takes.

    **Classes.** A ring of the last `window` samples for each size up to 8 rows, then for four
    classes an octave (9-10, 11-12, ..., 17-20, ...). Each class gives one knot: the sample at
    the nearest rank of `q`, at the rows of that very sample.

    **Between classes.** The knots are made monotone by pooling adjacent violators, weighted with
    the number of samples. A running maximum would let one thinly observed class lift every
    larger one. Knots are joined by straight lines; below the smallest the curve is flat.

    **Beyond the largest knot (x, y)** the curve goes on with the slope seen over its upper half,
    at most y/x, up to 2x; from there in proportion to the rows. So what nobody has measured is
    never predicted to cost less per row than at 2x: a few cheap small batches do not promise
    that huge ones are free, and each doubling of the size asks for new evidence.

    **Change.** A class follows a slowdown after two batches of its size, a speed-up after
    `window` batches of its size, or after two of its size once `horizon` batches of any size
    have passed. A class without a batch for `horizon` batches is stale: kept for its shape, but
    held between what the fresh ones allow (more rows never take less, nor more than in
    proportion), so that an old bad time cannot keep its size from being tried for ever.

    Costs O(log window) comparisons a batch and a binary search a question. The curve is rebuilt
    only after a knot has moved, and that is when stale classes are noticed; a class that is in
    use has a new knot every `window` batches at least.
    """

    def __init__(self, q: float = 0.99, *, window: int = 100, horizon: int = 512) -> None:
        """Raises ValueError when `q` is not in (0, 1], `window` or `horizon` below 3."""
        if not 0.0 < q <= 1.0:
            raise ValueError(f"q must be above 0 and at most 1; got {q}")
        if window < _FEW or horizon < _FEW:
            raise ValueError(f"window and horizon must be at least {_FEW}")
        self.version = 0
        """Changes whenever predictions may have changed."""
        self._q, self._window, self._horizon = q, window, horizon
        self._rings: dict[int, _Ring] = {}
        self._count = 0
        self._built = 0
        self._rows: list[int] = []
        self._seconds: list[float] = []
        self._slope = 0.0

    def observe(self, rows: int, seconds: float) -> None:
        """A batch of `rows` rows (at least 1) took `seconds`. Warm-up batches come here too."""
        assert rows >= 1, rows
        assert 0.0 <= seconds < math.inf, seconds
        self._count += 1
        ring = self._rings.setdefault(_class_of(rows), _Ring())
        before = ring.quantile(self._q) if ring.by_age else None
        ring.add(_Sample(seconds, rows, self._count), self._window, self._horizon)
        if ring.quantile(self._q) is not before:
            self.version += 1

    def quantile_of(self, rows: int) -> float | None:
        """Seconds that a batch of `rows` rows takes at the quantile; None before any batch."""
        if self._built != self.version:
            self._rebuild()
        xs, ys = self._rows, self._seconds
        if not xs:
            return None
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

    def _rebuild(self) -> None:
        self._built = self.version
        knots = [self._knot(ring) for _, ring in sorted(self._rings.items())]
        self._rows = [knot.rows for knot in knots]
        self._seconds = _reconciled(_monotone(knots))
        x, y = self._rows[-1], self._seconds[-1]
        half = max(bisect_left(self._rows, x // 2 + 1) - 1, 0)
        rise, run = y - self._seconds[half], x - self._rows[half]
        self._slope = min(rise / run, y / x) if run else y / x

    def _knot(self, ring: _Ring) -> _Knot:
        sample = ring.quantile(self._q)
        is_fresh = ring.by_age[-1].ordinal > self._count - self._horizon
        return _Knot(sample.rows, sample.seconds, len(ring.by_age), is_fresh)


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
