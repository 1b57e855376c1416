"""Open-loop traffic at set rates: what each step offered, and what came of it."""

import asyncio
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .history import Attempt
from .http_client import Headers
from .traffic import Client, open_loop, poisson


@dataclass(frozen=True, slots=True)
class Step:
    """The requests of one rate. Seconds, and requests a second."""

    rate: float
    seconds: float
    attempts: tuple[Attempt, ...]

    def answered(self) -> list[float]:
        """Response times of the good answers."""
        return [_seconds(attempt) for attempt in self.attempts if attempt.status == 200]

    def refused(self) -> list[Attempt]:
        """The requests that were told 429."""
        return [attempt for attempt in self.attempts if attempt.status == 429]

    def success(self) -> float:
        """Share of the requests with a good answer, late or not."""
        return len(self.answered()) / len(self.attempts)

    def goodput(self, threshold: float) -> float:
        """Good answers within `threshold`, a second."""
        return sum(seconds <= threshold for seconds in self.answered()) / self.seconds


async def offer(
    client: Client,
    rate: float,
    seconds: float,
    seed: int,
    headers: Callable[[], Headers] = tuple,
) -> Step:
    """Send single rows at `rate` for `seconds`, Poisson, whatever becomes of them; wait for all.

    Raises AssertionError when this process was too slow to send them in time: then nothing was
    shown about the server.
    """
    first = len(client.history)
    arrivals = itertools.takewhile(lambda at: at < seconds, poisson(rate, seed))
    never = asyncio.get_running_loop().create_future()
    await open_loop(lambda: client.predict(headers=headers()), arrivals, until=never)
    attempts = tuple(client.history[first:])
    sent = [attempt.sent for attempt in attempts if attempt.sent is not None]
    took = max(sent) - min(sent)
    assert took < 1.25 * seconds + 0.5, f"{seconds:g} s of traffic took {took:.2f} s to send"
    return Step(rate, seconds, attempts)


def percentile(values: Sequence[float], p: float) -> float:
    """By nearest rank, p in percent. Raises ValueError when there are no values."""
    if not values:
        raise ValueError("no values")
    return sorted(values)[math.ceil(p / 100 * len(values)) - 1]


def _seconds(attempt: Attempt) -> float:
    assert attempt.seconds is not None
    return attempt.seconds
