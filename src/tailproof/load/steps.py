"""What a step is before and after it is sent."""

from dataclasses import dataclass

import numpy as np

from tailproof.core.arrivals import Schedule
from tailproof.core.recording import Floats, Ints, Recording


@dataclass(frozen=True, slots=True, eq=False)
class StepPlan:
    """Everything about a step, decided before it begins. Times in seconds from its start."""

    intended: Schedule
    """When each request should leave, rising; those before `warm_up` are sent and not measured."""
    warm_up: float
    end: float
    """Where the measured window ends, and the last arrival is before it."""
    payload: Ints
    """Which of the target's requests each of them is."""
    timeout: float = 30.0
    """A request without an answer for so long since its send is TIMED_OUT."""
    drain: float = 2.0
    """How long after `end` answers are waited for; what is missing then is UNANSWERED."""
    ready_connections: int = 1
    """Opened before the first arrival; more are opened whenever all are in use."""
    max_connections: int | None = None
    """A declared cap: requests then wait in the tester, which is its own lag. None: no cap."""
    give_up: tuple[float, float] | None = None
    """(threshold, objective): end the step once more of its measured requests than
    1 - objective can no longer be answered within the threshold."""

    @property
    def num_warm_up(self) -> int:
        return int(np.searchsorted(self.intended, self.warm_up))

    @property
    def offered(self) -> float:
        """Requests a second in the measured window."""
        return (len(self.intended) - self.num_warm_up) / (self.end - self.warm_up)


@dataclass(frozen=True, slots=True, eq=False)
class SenderFacts:
    """What one sending process saw of itself during a step. Seconds."""

    pid: int
    cpu: float
    """User and system time that it used."""
    wall: float
    """Seconds from the step's start to its end, drain included."""
    run_queue_wait: float | None
    """Time it was ready to run and a core was not free (/proc/self/schedstat); None: unknown."""
    loop_lag: Floats
    """How late its loop was: a value for each time it woke for an arrival, or a sample."""
    gc_pauses: Floats
    max_in_flight: int
    num_connections: int
    """Open at the same time, at most."""
    involuntary_switches: int
    cores: tuple[int, ...]
    """Where it may run."""
    num_retried: int = 0
    """Requests sent a second time, because a kept connection was being closed as they left."""


@dataclass(frozen=True, slots=True, eq=False)
class Sent:
    """What came of a step."""

    recording: Recording
    started: float
    """On `core.clock.monotonic`: when second 0 of the recording was."""
    ended: float
    senders: tuple[SenderFacts, ...]
    stopped_at: float | None = None
    """Set when it was given up: the last moment at which the outcome of every request that was due
    a threshold earlier was known. Seconds from its start."""
