"""Was the tester in the number? Two proofs beside the symptoms: a null target, and a split test."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from tailproof.core.arrivals import poisson
from tailproof.core.recording import Recording
from tailproof.core.statistics import percentile
from tailproof.load import selfcheck
from tailproof.load.generator import Generator
from tailproof.load.steps import StepPlan
from tailproof.load.target import Target
from tailproof.reporting.document import Signal

MARGIN = 1.5
"""The tester must reach this many times the limit against a target that does nothing."""
SECONDS = 2.0
SPLIT = 4
"""Stream of random numbers."""
_SERVE_NULL = """
import os, sys, threading
from tailproof.load import null
# it ends with whoever started it, however that ends
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
null.serve(ready=lambda port: print(port, flush=True))
"""


def split_test(
    target: Target, make: Callable[[Generator, int], Recording], processes: int, seed: int
) -> Signal:
    """The same step from `processes` senders and from twice as many: is P99 the same?

    `make` runs a step on a generator; its second argument numbers the step. When the answer
    depends on how many senders there are, it says something about the senders.
    """
    with Generator(target, processes) as one, Generator(target, 2 * processes) as two:
        whole, halves = make(one, 0), make(two, 1)
    return selfcheck.split_agrees(whole, halves, 99.0, np.random.default_rng([seed, SPLIT]))


def null_calibration(
    target: Target, processes: int, rate: float, threshold: float | None, seed: int
) -> Signal:
    """Send the same requests to a null target at 1.5 times `rate`: is the tester on time there?"""
    asked = MARGIN * rate
    intended = poisson(asked, SECONDS, seed)
    plan = StepPlan(
        intended=intended,
        warm_up=0.25 * SECONDS,
        end=SECONDS,
        payload=np.zeros(len(intended), np.int32),
        ready_connections=16,
    )
    with _null() as port:
        there = replace(target, scheme="http", host="127.0.0.1", port=port)
        with Generator(there, processes) as generator:
            recording = generator.run(plan).recording
    measured = recording.between(plan.warm_up, plan.end)
    lag = percentile(measured.own_lag, 99.0)
    late = lag is None or lag > selfcheck.lag_limit(measured, threshold)
    shown = "requests stayed unsent" if lag is None else f"P99 of the send lag {lag * 1e3:.2f} ms"
    return Signal(
        name="null_calibration",
        value=asked,
        limit=rate,
        unit="per_second",
        bad=late,
        invalidates=False,
        text=(
            f"against a target that does nothing the tester is late at {asked:,.0f}/s ({shown}): "
            "give it more --processes or a machine of its own"
            if late
            else f"against a target that does nothing the tester kept {asked:,.0f}/s, "
            f"{MARGIN:g} times the limit ({shown})"
        ),
    )


@contextmanager
def _null() -> Iterator[int]:
    """A null target as a process of its own; its port."""
    process = subprocess.Popen(
        [sys.executable, "-c", _SERVE_NULL],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdin is not None
    others = set(range(os.cpu_count() or 1)) - os.sched_getaffinity(0)
    with contextlib.suppress(OSError):  # a tester that is pinned leaves it the other cores
        os.sched_setaffinity(process.pid, others or os.sched_getaffinity(0))
    try:
        yield int(process.stdout.readline())
    finally:
        process.terminate()
        process.stdin.close()
        process.stdout.close()
        process.wait()
