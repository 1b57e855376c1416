"""When requests arrive: schedules that are computed before anything runs, in seconds."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Schedule = npt.NDArray[np.float64]
"""Arrival times in seconds from the start, rising. Shape (number of requests,)."""

MIN_SHAPE = 0.01
"""Smallest shape of gamma gaps: below it most of them are too small for a float."""


def poisson(rate: float, seconds: float, seed: int) -> Schedule:
    """A Poisson process on [0, seconds) given that it has exactly round(rate * seconds) arrivals.

    Such a process is that many uniform times, sorted: independent users, without the noise of
    the count, so that the offered rate is the one that was asked for.

    Raises ValueError when `rate` or `seconds` is not a positive finite number.
    """
    _require_positive(rate=rate, seconds=seconds)
    return _uniform(np.random.default_rng(seed), rate, 0.0, seconds)


def on_off(on: float, off: float, phase: float, seconds: float, seed: int) -> Schedule:
    """Bursts: `phase` seconds at rate `on`, as long at rate `off` (0: silence), and so on.

    Within each phase the arrivals are Poisson with the exact count, as in `poisson`. The last
    phase is cut at `seconds`.

    Raises ValueError when a value is not a positive finite number (`off` may be 0).
    """
    _require_positive(on=on, phase=phase, seconds=seconds)
    _require_not_negative(off=off)
    rng = np.random.default_rng(seed)
    num_phases = int(np.ceil(seconds / phase))
    edges = [min(index * phase, seconds) for index in range(num_phases + 1)]
    rates = [off if index % 2 else on for index in range(num_phases)]
    spans = zip(rates, edges[:-1], edges[1:], strict=True)
    return np.concatenate([_uniform(rng, rate, start, end) for rate, start, end in spans])


def constant(rate: float, seconds: float) -> Schedule:
    """round(rate * seconds) arrivals, one every 1 / rate, the first at 0.

    Raises ValueError when `rate` or `seconds` is not a positive finite number.
    """
    _require_positive(rate=rate, seconds=seconds)
    times: Schedule = np.arange(round(rate * seconds)) / rate
    return times


def gamma(rate: float, seconds: float, shape: float, seed: int) -> Schedule:
    """A renewal process with gamma gaps that has exactly round(rate * seconds) arrivals.

    The gaps have a coefficient of variation of 1 / sqrt(shape): below 1 the arrivals come in
    bursts, 1 is `poisson`, and the larger the shape the more even they are. The exact count comes
    from scaling all gaps, the one after the last arrival included, to fill [0, seconds): for
    shape 1 that is the very distribution of `poisson`. (One scale for the whole step; a scale for
    each second would put an arrival on every second.)

    Raises ValueError when a value is not a positive finite number, or `shape` is below 0.01.
    """
    _require_positive(rate=rate, seconds=seconds, shape=shape)
    if shape < MIN_SHAPE:
        raise ValueError(f"shape must be at least {MIN_SHAPE}; got {shape}")
    gaps = np.random.default_rng(seed).standard_gamma(shape, round(rate * seconds) + 1)
    return _before(seconds, seconds * (np.cumsum(gaps[:-1]) / gaps.sum()))


def ramp(from_rate: float, to_rate: float, seconds: float, seed: int) -> Schedule:
    """Poisson arrivals whose rate grows (or falls) evenly from one rate to the other, given that
    there are exactly round((from_rate + to_rate) / 2 * seconds) of them.

    Time rescaling: with rate r(t) = r0 + g t, its integral L(t) = r0 t + g t^2 / 2 turns the
    arrivals into uniform ones on [0, L(seconds)), and t = 2 L / (r0 + sqrt(r0^2 + 2 g L)).

    Raises ValueError when a rate is negative or not finite, both are 0, or `seconds` is not a
    positive finite number.
    """
    _require_positive(seconds=seconds, rates=from_rate + to_rate)
    _require_not_negative(from_rate=from_rate, to_rate=to_rate)
    total = (from_rate + to_rate) / 2 * seconds
    growth = (to_rate - from_rate) / seconds
    uniform = 1.0 - np.random.default_rng(seed).random(round(total))  # (0, 1]: L is never 0
    area = total * np.sort(uniform)
    root = np.sqrt(np.maximum(from_rate**2 + 2 * growth * area, 0.0))
    return _before(seconds, 2 * area / (from_rate + root))


def steps(rates: Sequence[float], seconds: float, seed: int) -> Schedule:
    """Poisson arrivals with the exact count in each of several equal parts of [0, seconds).

    Raises ValueError when a rate is negative or not finite, all are 0, or `seconds` is not a
    positive finite number.
    """
    _require_positive(seconds=seconds, rates=sum(rates))
    edges = [seconds * index / len(rates) for index in range(len(rates) + 1)]
    return _pieces(rates, edges, seed)


def spike(rate: float, factor: float, spike_seconds: float, seconds: float, seed: int) -> Schedule:
    """Poisson arrivals at `rate`, and at `rate * factor` for `spike_seconds` in the middle of
    [0, seconds). The count is exact before, within and after the spike.

    Raises ValueError when a value is not a positive finite number or the spike does not fit.
    """
    _require_positive(rate=rate, factor=factor, spike_seconds=spike_seconds, seconds=seconds)
    if spike_seconds >= seconds:
        raise ValueError(f"spike_seconds must be below {seconds} (seconds); got {spike_seconds}")
    start = (seconds - spike_seconds) / 2
    edges = [0.0, start, start + spike_seconds, seconds]
    return _pieces([rate, rate * factor, rate], edges, seed)


def trace(timestamps: Sequence[float] | npt.NDArray[np.float64], speedup: float = 1.0) -> Schedule:
    """Recorded arrivals again, `speedup` times as fast: (timestamp - first) / speedup, sorted.

    Raises ValueError when there are none, one is not finite, or `speedup` is not a positive
    finite number.
    """
    _require_positive(speedup=speedup)
    times = np.sort(np.asarray(timestamps, np.float64))
    if not len(times) or not np.isfinite(times).all():
        raise ValueError("timestamps must be finite numbers, at least one")
    moved: Schedule = (times - times[0]) / speedup
    return moved


def _pieces(rates: Sequence[float], edges: Sequence[float], seed: int) -> Schedule:
    """Poisson with the exact count from each edge to the next."""
    rng = np.random.default_rng(seed)
    for rate in rates:
        _require_not_negative(rate=rate)
    spans = zip(rates, edges[:-1], edges[1:], strict=True)
    times = np.concatenate([_uniform(rng, rate, start, end) for rate, start, end in spans])
    return _before(edges[-1], times)


def _before(seconds: float, times: Schedule) -> Schedule:
    """Rounding may put the last of a piece on its end; the schedule's own end is never reached."""
    return np.minimum(times, np.nextafter(seconds, 0.0))


def _uniform(rng: np.random.Generator, rate: float, start: float, end: float) -> Schedule:
    return np.sort(rng.uniform(start, end, round(rate * (end - start))))


def _require_positive(**values: float) -> None:
    for name, value in values.items():
        if not 0.0 < value < np.inf:
            raise ValueError(f"{name} must be a positive finite number; got {value}")


def _require_not_negative(**values: float) -> None:
    for name, value in values.items():
        if not 0.0 <= value < np.inf:
            raise ValueError(f"{name} must be a finite number from 0; got {value}")
