"""How arrivals are spread over time: what `--arrivals` says, and the schedule that comes of it.

    poisson                   independent users (the default)
    constant                  one every 1 / rate
    gamma:0.5                 bursts below 1, more even than poisson above 1
    spike:3x for 5s           poisson, three times the rate for five seconds in the middle
    ramp:50/s..500/s          poisson, from one rate to the other
    step:100/s,200/s          poisson, equal parts of the time at each of these rates
    trace:FILE                recorded arrivals again

A trace file holds one timestamp in seconds a line, or is CSV with a column `timestamp` (seconds,
or ISO 8601 dates), or is the access log of `tailproof serve` (JSON lines). Its records say when a
request ended and how long it took, so it arrived at `@timestamp` - `duration_ms`, to about a
millisecond. Of a log, the requests that named a model count, not probes and scrapes.
"""

import csv
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol, Self, cast

import msgspec
import numpy as np

from tailproof.core import arrivals
from tailproof.core.arrivals import Schedule
from tailproof.core.errors import ConfigError
from tailproof.core.units import format_duration, format_rate, parse_duration, parse_rate
from tailproof.reporting.files import read_regular

FLAG = "--arrivals"
MAX_TRACE_BYTES = 512 * 2**20
"""A larger trace file is refused: it would have to be held in memory."""
_EXAMPLES = (
    "poisson, constant, gamma:0.5, trace:FILE, ramp:50/s..500/s, step:100/s,200/s, "
    "'spike:3x for 5s'"
)
_SPIKE = re.compile(r"(?P<factor>\d+(?:\.\d+)?)\s*x\s+for\s+(?P<seconds>.+)")


class Shape(Protocol):
    """A way to spread arrivals. `str()` of it is what `parse` reads."""

    @property
    def needs_rate(self) -> bool:
        """Whether a rate has to be given; if not, the shape has rates of its own."""

    @property
    def fixed_seconds(self) -> float | None:
        """How long it takes by itself; None: as long as is asked for."""

    def steady(self) -> "Shape":
        """What comes before the measured window: the same without its event, if it has one."""

    def peak_rate(self, rate: float | None) -> float:
        """The most requests a second that are meant, at a mean of `rate`."""

    def schedule(self, rate: float | None, seconds: float, seed: int) -> Schedule:
        """Arrivals on [0, seconds) at `rate` a second.

        Raises ConfigError when a rate is missing, or given to a shape that has its own.
        """


class _AtARate:
    """A shape that is given its mean rate and lasts as long as is asked for."""

    __slots__ = ()
    needs_rate = True
    fixed_seconds = None

    def steady(self) -> "Shape":
        return cast("Shape", self)

    def peak_rate(self, rate: float | None) -> float:
        return _needed(rate, self)


class _AtItsOwn:
    """A shape that brings its rates and lasts as long as is asked for."""

    __slots__ = ()
    needs_rate = False
    fixed_seconds = None

    def steady(self) -> Self:
        return self


@dataclass(frozen=True, slots=True)
class Poisson(_AtARate):
    """Independent users."""

    def schedule(self, rate: float | None, seconds: float, seed: int) -> Schedule:
        return arrivals.poisson(_needed(rate, self), seconds, seed)

    def __str__(self) -> str:
        return "poisson"


@dataclass(frozen=True, slots=True)
class Constant(_AtARate):
    """A metronome."""

    def schedule(self, rate: float | None, seconds: float, seed: int) -> Schedule:
        return arrivals.constant(_needed(rate, self), seconds)

    def __str__(self) -> str:
        return "constant"


@dataclass(frozen=True, slots=True)
class Gamma(_AtARate):
    """Gaps with a coefficient of variation of 1 / sqrt(shape)."""

    shape: float

    def schedule(self, rate: float | None, seconds: float, seed: int) -> Schedule:
        return arrivals.gamma(_needed(rate, self), seconds, self.shape, seed)

    def __str__(self) -> str:
        return f"gamma:{self.shape:g}"


@dataclass(frozen=True, slots=True)
class Spike(_AtARate):
    """`factor` times the rate for a while in the middle."""

    factor: float
    spike_seconds: float

    def steady(self) -> Shape:
        return Poisson()

    def peak_rate(self, rate: float | None) -> float:
        return _needed(rate, self) * max(1.0, self.factor)

    def schedule(self, rate: float | None, seconds: float, seed: int) -> Schedule:
        if self.spike_seconds >= seconds:
            lasts = format_duration(seconds)
            raise ConfigError(FLAG, str(self), f"the spike must be shorter than the step ({lasts})")
        given = _needed(rate, self)
        return arrivals.spike(given, self.factor, self.spike_seconds, seconds, seed)

    def __str__(self) -> str:
        return f"spike:{self.factor:g}x for {format_duration(self.spike_seconds)}"


@dataclass(frozen=True, slots=True)
class Ramp(_AtItsOwn):
    """From one rate to another."""

    from_rate: float
    to_rate: float

    def peak_rate(self, rate: float | None) -> float:
        return max(self.from_rate, self.to_rate)

    def schedule(self, rate: float | None, seconds: float, seed: int) -> Schedule:
        _not_given(rate, self)
        return arrivals.ramp(self.from_rate, self.to_rate, seconds, seed)

    def __str__(self) -> str:
        return f"ramp:{format_rate(self.from_rate)}..{format_rate(self.to_rate)}"


@dataclass(frozen=True, slots=True)
class Steps(_AtItsOwn):
    """Equal parts of the time at each of several rates."""

    rates: tuple[float, ...]

    def peak_rate(self, rate: float | None) -> float:
        del rate
        return max(self.rates)

    def schedule(self, rate: float | None, seconds: float, seed: int) -> Schedule:
        _not_given(rate, self)
        return arrivals.steps(self.rates, seconds, seed)

    def __str__(self) -> str:
        return "step:" + ",".join(format_rate(rate) for rate in self.rates)


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """Recorded arrivals. Without a rate as fast as they were, else at that mean rate; begun again
    as often as it takes to fill the time, with the mean gap between the rounds."""

    file: str
    times: Schedule
    """Seconds from the first, rising; at least two, not all the same."""
    needs_rate = False

    @property
    def rate(self) -> float:
        """Arrivals a second, as recorded."""
        return (len(self.times) - 1) / float(self.times[-1])

    @property
    def fixed_seconds(self) -> float:
        """From the first arrival to one mean gap after the last."""
        return len(self.times) / self.rate

    def steady(self) -> Shape:
        return self

    def peak_rate(self, rate: float | None) -> float:
        """Of the busiest second."""
        speedup = 1.0 if rate is None else rate / self.rate
        seconds = np.floor(self.times / speedup).astype(np.int64)
        return float(np.max(np.unique(seconds, return_counts=True)[1]))

    def schedule(self, rate: float | None, seconds: float, seed: int) -> Schedule:
        del seed  # nothing is random
        speedup = 1.0 if rate is None else rate / self.rate
        once, lasts = arrivals.trace(self.times, speedup), self.fixed_seconds / speedup
        starts = np.arange(np.ceil(seconds / lasts)) * lasts
        times = (starts[:, None] + once).ravel()
        return times[times < seconds]

    def __str__(self) -> str:
        return f"trace:{self.file}"


def parse(text: str) -> Shape:
    """What `--arrivals` says. Raises ConfigError, with the line number for a trace file."""
    kind, _, value = text.strip().partition(":")
    known: dict[str, Callable[[str], Shape]] = {
        "gamma": _gamma,
        "spike": _spike,
        "ramp": _ramp,
        "step": _step,
        "trace": _trace,
    }
    plain: dict[str, Shape] = {"poisson": Poisson(), "constant": Constant()}
    if text.strip() in plain:
        return plain[text.strip()]
    if kind not in known or not value.strip():
        raise ConfigError(FLAG, text, f"expected one of {_EXAMPLES}")
    try:
        return known[kind](value.strip())
    except ValueError as error:
        raise ConfigError(FLAG, text, str(error)) from None


def _needed(rate: float | None, shape: object) -> float:
    if rate is None:
        raise ConfigError(FLAG, str(shape), "this needs a rate: give --rate")
    return rate


def _not_given(rate: float | None, shape: Shape) -> None:
    if rate is not None:
        raise ConfigError(FLAG, str(shape), "this has rates of its own: leave --rate away")


def _gamma(value: str) -> Shape:
    try:
        shape = float(value)
    except ValueError:
        shape = np.nan
    if not arrivals.MIN_SHAPE <= shape < np.inf:
        raise ValueError(f"the shape must be a number from {arrivals.MIN_SHAPE}, as in gamma:0.5")
    return Gamma(shape)


def _spike(value: str) -> Shape:
    match = _SPIKE.fullmatch(value)
    if match is None:
        raise ValueError("expected a factor and a duration, as in 'spike:3x for 5s'")
    factor, seconds = float(match["factor"]), parse_duration(match["seconds"])
    if factor <= 0 or seconds <= 0:
        raise ValueError("the factor and the duration must be above 0")
    return Spike(factor, seconds)


def _ramp(value: str) -> Shape:
    low, dots, high = value.partition("..")
    if not dots:
        raise ValueError("expected two rates, as in ramp:50/s..500/s")
    rates = parse_rate(low), parse_rate(high)
    if not any(rates):
        raise ValueError("one of the two rates must be above 0")
    return Ramp(*rates)


def _step(value: str) -> Shape:
    rates = tuple(parse_rate(part) for part in value.split(","))
    if not any(rates):
        raise ValueError("one of the rates must be above 0")
    return Steps(rates)


def _trace(value: str) -> Shape:
    moments = list(_moments(_lines(Path(value))))
    if len(moments) < 2 or min(moments) == max(moments):
        raise ValueError("a trace needs at least two different arrival times")
    return Trace(value, arrivals.trace(moments))


def _lines(path: Path) -> list[str]:
    try:
        return read_regular(path, MAX_TRACE_BYTES).decode("utf-8-sig").splitlines()
    except OSError as error:
        raise ValueError(error.strerror or "the file cannot be read") from None
    except UnicodeDecodeError:
        raise ValueError("the file is no UTF-8 text") from None


def _moments(lines: Sequence[str]) -> Iterator[float]:
    """When each request arrived, in seconds; which kind of file it is shows in its first line."""
    numbered = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not numbered:
        raise ValueError("the file is empty")
    first = numbered[0][1].strip()
    if first.startswith("{"):
        read: Callable[[str], float | None] = _arrival
    elif _is_number(first):
        read = _seconds
    else:
        read = _from_column(first)
        del numbered[0]
    for number, line in numbered:
        try:
            moment = read(line.strip())
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
        if moment is not None:
            yield moment


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = np.nan
    if not np.isfinite(seconds):
        raise ValueError("expected a timestamp in seconds")
    return seconds


def _from_column(header: str) -> Callable[[str], float]:
    names = [name.strip().lower() for name in next(csv.reader([header]))]
    if "timestamp" not in names:
        raise ValueError(
            "line 1: expected a timestamp in seconds, a JSON access record, or the header of a CSV "
            "with a column `timestamp`"
        )
    place = names.index("timestamp")

    def moment(line: str) -> float:
        cells = next(csv.reader([line]))
        if len(cells) <= place:
            raise ValueError("the column `timestamp` is missing")
        cell = cells[place].strip()
        return float(cell) if _is_number(cell) and np.isfinite(float(cell)) else _date(cell)

    return moment


def _date(text: str) -> float:
    """Seconds since 1970 of an ISO 8601 date; UTC when it names no zone."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("expected a timestamp in seconds or an ISO 8601 date") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


class _Record(msgspec.Struct):
    """What counts of a line of our own log."""

    event: str | None = msgspec.field(name="event.name", default=None)
    ended: str | None = msgspec.field(name="@timestamp", default=None)
    duration_ms: float = 0.0
    """Absent where a request ended as it came."""
    model: str | None = msgspec.field(name="model.name", default=None)


_decode = msgspec.json.Decoder(_Record).decode


def _arrival(line: str) -> float | None:
    """When the request of an access record arrived; None: another event, or no model's."""
    try:
        record = _decode(line)
    except msgspec.DecodeError as error:
        raise ValueError(f"no access record: {error}") from None
    if record.event != "request" or record.model is None:
        return None
    if record.ended is None:
        raise ValueError("this access record has no @timestamp")
    return _date(record.ended) - record.duration_ms / 1e3
