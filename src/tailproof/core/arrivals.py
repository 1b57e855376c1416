"""When requests arrive: schedules that are computed before anything runs, in seconds."""

import numpy as np
import numpy.typing as npt

Schedule = npt.NDArray[np.float64]
"""Arrival times in seconds from the start, rising. Shape (number of requests,)."""


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
    if not 0.0 <= off < np.inf:
        raise ValueError(f"off must be a finite number from 0; got {off}")
    rng = np.random.default_rng(seed)
    num_phases = int(np.ceil(seconds / phase))
    edges = [min(index * phase, seconds) for index in range(num_phases + 1)]
    rates = [off if index % 2 else on for index in range(num_phases)]
    spans = zip(rates, edges[:-1], edges[1:], strict=True)
    return np.concatenate([_uniform(rng, rate, start, end) for rate, start, end in spans])


def _uniform(rng: np.random.Generator, rate: float, start: float, end: float) -> Schedule:
    return np.sort(rng.uniform(start, end, round(rate * (end - start))))


def _require_positive(**values: float) -> None:
    for name, value in values.items():
        if not 0.0 < value < np.inf:
            raise ValueError(f"{name} must be a positive finite number; got {value}")
