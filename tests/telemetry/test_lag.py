"""The lag is how late each timer comes, by a clock that the test sets."""

import asyncio
from collections.abc import Callable

import pytest

from tailproof.telemetry.lag import LoopLag


def ticking(*times: float) -> Callable[[], float]:
    return iter(times).__next__


class Timer:
    def __init__(self, delay: float, callback: Callable[[], None]) -> None:
        self.delay = delay
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Loop(asyncio.AbstractEventLoop):
    """An event loop of which only the timers exist; the test lets them come."""

    def __init__(self) -> None:
        self.timers: list[Timer] = []

    def call_later(self, delay: float, callback: Callable[[], None]) -> Timer:  # type: ignore[override]
        self.timers.append(Timer(delay, callback))
        return self.timers[-1]


def test_the_lag_is_how_late_each_timer_comes() -> None:
    loop, told = Loop(), list[float]()
    lag = LoopLag(loop, told.append, interval=0.1, clock=ticking(5.0, 5.1, 5.1, 5.45, 5.45))

    lag.start()
    loop.timers[0].callback()  # due at 5.1, comes at 5.1
    loop.timers[1].callback()  # due at 5.2, comes at 5.45

    assert told == [pytest.approx(0.0), pytest.approx(0.25)]
    assert [timer.delay for timer in loop.timers] == [0.1, 0.1, 0.1]


def test_a_timer_that_comes_early_is_not_late() -> None:
    loop, told = Loop(), list[float]()
    lag = LoopLag(loop, told.append, interval=0.1, clock=ticking(5.0, 5.099, 5.099))

    lag.start()
    loop.timers[0].callback()

    assert told == [0.0]


def test_one_timer_at_a_time_and_none_after_stop() -> None:
    loop = Loop()
    lag = LoopLag(loop, lambda _: None, clock=lambda: 0.0)

    lag.start()
    lag.start()
    loop.timers[0].callback()
    lag.stop()
    lag.stop()

    assert [timer.cancelled for timer in loop.timers] == [False, True]


def test_on_a_real_loop_it_goes_on_by_itself() -> None:
    async def three() -> list[float]:
        told: list[float] = []
        enough = asyncio.Event()

        def report(seconds: float) -> None:
            told.append(seconds)
            if len(told) == 3:
                enough.set()

        lag = LoopLag(asyncio.get_running_loop(), report, interval=0.001)
        lag.start()
        await asyncio.wait_for(enough.wait(), 10)
        lag.stop()
        return told

    told = asyncio.run(three())

    assert len(told) == 3
    assert all(seconds >= 0 for seconds in told)
