"""The alarm rings at its instant, never before it, and only for the instant last set."""

import asyncio

import pytest
import uvloop

from tailproof.core.clock import monotonic
from tailproof.load.alarm import Alarm


async def _rings(*instants: float) -> tuple[int, float]:
    """(how often it rang, when first) after it was set to each of these, seconds from now."""
    rung: list[float] = []
    done = asyncio.Event()

    def ring() -> None:
        rung.append(monotonic())
        done.set()

    alarm = Alarm(asyncio.get_running_loop(), ring)
    start = monotonic()
    for instant in instants:
        alarm.set(start + instant)
    async with asyncio.timeout(10.0):
        await done.wait()
    alarm.close()
    return len(rung), rung[0] - start


@pytest.mark.parametrize("after", [0.03, -1.0], ids=["to come", "already past"])
def test_the_alarm_rings_and_never_early(after: float) -> None:
    _, rang = uvloop.run(_rings(after))

    assert rang >= after


def test_an_alarm_that_is_set_again_forgets_the_first_instant() -> None:
    num_rings, rang = uvloop.run(_rings(1000.0, 0.01))

    assert num_rings == 1
    assert 0.01 <= rang < 10.0
