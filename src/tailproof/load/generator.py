"""Sends the requests of a step from one process or several, and brings back what happened.

    with Generator(target, processes=2, cores=(2, 3)) as generator:
        sent = generator.run(plan)

The sending processes (`load.sender`) live as long as the generator, and so do their connections.
"""

import contextlib
import math
import os
import selectors
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import IO, Any

import numpy as np

from tailproof.core.clock import monotonic
from tailproof.core.errors import TailproofError
from tailproof.core.recording import Recording, columns, joined
from tailproof.load.messages import (
    PREFIX,
    Aim,
    Arrays,
    Done,
    Go,
    Message,
    Prepare,
    Progress,
    Ready,
    Stop,
    decode,
    encode,
)
from tailproof.load.sender import READY_PATIENCE
from tailproof.load.steps import SenderFacts, Sent, StepPlan
from tailproof.load.target import Target

LEAD = 0.05
"""Seconds between the agreement on a start and the start."""
PROGRESS_EVERY = 0.25
PATIENCE = 30.0
"""Seconds beyond what a sender needs before it counts as stuck."""
STOP_PATIENCE = 2.0
_READ_BYTES = 1 << 20


class LoadError(TailproofError):
    """A sending process ended, or hangs. The tester's fault or the machine's, not the target's."""


class Generator:
    """A context manager. Not for several threads."""

    def __init__(
        self, target: Target, processes: int = 1, cores: Sequence[int] | None = None
    ) -> None:
        """`cores`: sender i runs on `cores[i % len(cores)]` alone; None: wherever this process may.

        Raises ValueError for less than one process and for a core that this process may not use.
        """
        if processes < 1:
            raise ValueError(f"at least one sending process is needed; got {processes}")
        if cores is not None and not set(cores) <= os.sched_getaffinity(0):
            raise ValueError(f"this process may not run on all of the cores {tuple(cores)}")
        self._target = target
        self._num = processes
        self._cores = tuple(cores or ())
        self._senders: list[_Sender] = []

    def __enter__(self) -> "Generator":
        try:
            for index in range(self._num):
                core = self._cores[index % len(self._cores)] if self._cores else None
                self._senders.append(_Sender(f"sender {index + 1} of {self._num}", core))
            for sender in self._senders:
                sender.say(Aim(self._target))
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pids(self) -> tuple[int, ...]:
        """Of the sending processes."""
        return tuple(sender.process.pid for sender in self._senders)

    def close(self) -> None:
        """End all senders: at once, in the middle of a step too. A second call changes nothing."""
        senders, self._senders = self._senders, []
        for sender in senders:
            sender.hang_up()
        for sender in senders:
            sender.end()

    def run(
        self, plan: StepPlan, progress: Callable[[float, int, int], None] | None = None
    ) -> Sent:
        """Send one step and wait for its end.

        `progress` is called about four times a second with (seconds since the start, requests sent,
        requests answered). Whatever is raised, KeyboardInterrupt included, ends all senders.

        Raises LoadError when a sender ended or hangs.
        """
        assert self._senders, "a generator runs inside its `with` block"
        try:
            return self._run(plan, progress)
        except BaseException:
            self.close()
            raise

    def _run(self, plan: StepPlan, progress: Callable[[float, int, int], None] | None) -> Sent:
        senders = self._senders[: plan.max_connections or None]
        for index, sender in enumerate(senders):
            sender.say(*_share(plan, index, len(senders)))
        for sender in senders:
            sender.hear_ready(monotonic() + 2 * READY_PATIENCE + PATIENCE)
        start = monotonic() + LEAD
        for sender in senders:
            sender.say(Go(start))
        step = _Running(plan, senders, start, progress)
        parts, stopped_at = step.finish()
        return _sent(parts, start, stopped_at)


def _share(plan: StepPlan, index: int, num: int) -> tuple[Prepare, Arrays]:
    """Every num-th request of a plan, and as much of what is allowed."""
    mine = slice(index, None, num)
    intended = plan.intended[mine]
    cap = plan.max_connections
    prepare = Prepare(
        num_warm_up=int(np.searchsorted(intended, plan.warm_up)),
        end=plan.end,
        timeout=plan.timeout,
        drain=plan.drain,
        ready_connections=_part(plan.ready_connections, index, num),
        max_connections=None if cap is None else _part(cap, index, num),
        threshold=None if plan.give_up is None else plan.give_up[0],
    )
    return prepare, {"intended": intended, "payload": plan.payload[mine]}


def _part(whole: int, index: int, num: int) -> int:
    return whole // num + (index < whole % num)


def _sent(parts: list[tuple[Done, Arrays]], start: float, stopped_at: float | None) -> Sent:
    recordings = [
        _recording(done, arrays, index, len(parts)) for index, (done, arrays) in enumerate(parts)
    ]
    return Sent(
        recording=joined(recordings),
        started=start,
        ended=max(done.ended for done, _ in parts),
        senders=tuple(_facts(done, arrays) for done, arrays in parts),
        stopped_at=stopped_at,
    )


def _recording(done: Done, arrays: Arrays, index: int, num: int) -> Recording:
    """Every sender counts its connections from 0; together the numbers stay different."""
    found: dict[str, Any] = {name: arrays[name] for name in columns()}
    recording = Recording(**found, replicas=done.replicas)
    own = recording.connection
    return replace(recording, connection=np.where(own < 0, own, own * num + index).astype(np.int32))


def _facts(done: Done, arrays: Arrays) -> SenderFacts:
    known = done.facts | {"cores": tuple(done.facts["cores"])}
    return SenderFacts(**known, loop_lag=arrays["loop_lag"], gc_pauses=arrays["gc_pauses"])


class _Running:
    """A step that the senders are busy with."""

    def __init__(
        self,
        plan: StepPlan,
        senders: "list[_Sender]",
        start: float,
        progress: Callable[[float, int, int], None] | None,
    ) -> None:
        self._senders = senders
        self._start = start
        self._progress = progress
        self._last_told = start
        self._heard: dict[_Sender, Progress] = {}
        self._done: dict[_Sender, tuple[Done, Arrays]] = {}
        self._stopped_at: float | None = None
        self._num_allowed = math.inf
        if plan.give_up is not None:
            num_measured = len(plan.intended) - plan.num_warm_up
            self._num_allowed = (1.0 - plan.give_up[1]) * num_measured
        self._deadline = start + plan.end + plan.drain + PATIENCE

    def finish(self) -> tuple[list[tuple[Done, Arrays]], float | None]:
        """What each sender brought, and when the step was given up."""
        with selectors.DefaultSelector() as selector:
            for sender in self._senders:
                selector.register(sender.output, selectors.EVENT_READ, sender)
            while len(self._done) < len(self._senders):
                self._require_time()
                for key, _ in selector.select(PROGRESS_EVERY):
                    self._hear(key.data)
                self._give_up_if_hopeless()
                self._tell()
        return [self._done[sender] for sender in self._senders], self._stopped_at

    def _hear(self, sender: "_Sender") -> None:
        for message, arrays in sender.read():
            if isinstance(message, Progress):
                self._heard[sender] = message
            else:
                assert isinstance(message, Done), "a running sender reports or is done"
                self._done[sender] = message, arrays

    def _give_up_if_hopeless(self) -> None:
        """Each sender tells of misses that are certain, so their sum is certain too."""
        heard = self._heard.values()
        if self._stopped_at is not None or len(heard) < len(self._senders):
            return
        if sum(message.num_missed for message in heard) > self._num_allowed:
            self._stopped_at = min(message.known_until for message in heard)
            for sender in self._senders:
                sender.say(Stop())

    def _tell(self) -> None:
        now = monotonic()
        if self._progress is None or now - self._last_told < PROGRESS_EVERY:
            return
        self._last_told = now
        heard = self._heard.values()
        num_sent = sum(message.num_sent for message in heard)
        num_answered = sum(message.num_answered for message in heard)
        self._progress(now - self._start, num_sent, num_answered)

    def _require_time(self) -> None:
        if monotonic() > self._deadline:
            late = [sender.name for sender in self._senders if sender not in self._done]
            raise LoadError(f"{', '.join(late)}: no word {PATIENCE:g} s after the step's end")


class _Sender:
    """One sending process, seen from its parent."""

    def __init__(self, name: str, core: int | None) -> None:
        self.name = name
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  closed in `end`
        self._buffer = bytearray()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tailproof.load.sender"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,  # Ctrl-C is for the parent, which then ends its senders
        )
        if core is not None:
            os.sched_setaffinity(self.process.pid, {core})
        assert self.process.stdin is not None, "it was asked for"
        assert self.process.stdout is not None, "it was asked for"
        self._input: IO[bytes] = self.process.stdin
        self.output: IO[bytes] = self.process.stdout

    def say(self, message: Message, arrays: Arrays | None = None) -> None:
        """Raises LoadError when the process has ended."""
        try:
            self._input.write(encode(message, arrays))
            self._input.flush()
        except BrokenPipeError:
            raise self._ended() from None

    def hear_ready(self, deadline: float) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self.output, selectors.EVENT_READ)
            while selector.select(max(0.0, deadline - monotonic())):
                for message, _ in self.read():
                    assert isinstance(message, Ready), "it was told to prepare"
                    return
        raise LoadError(f"{self.name}: its connections were not ready in time")

    def read(self) -> list[tuple[Message, Arrays]]:
        """The messages that are complete by now. Raises LoadError when the process has ended."""
        data = os.read(self.output.fileno(), _READ_BYTES)
        if not data:
            raise self._ended()
        self._buffer += data
        found = []
        while (end := self._end_of_frame()) is not None:
            num_header, _ = PREFIX.unpack_from(self._buffer)
            frame = bytes(self._buffer[PREFIX.size : end])
            found.append(decode(frame[:num_header], frame[num_header:]))
            del self._buffer[:end]
        return found

    def _end_of_frame(self) -> int | None:
        if len(self._buffer) < PREFIX.size:
            return None
        end = PREFIX.size + sum(PREFIX.unpack_from(self._buffer))
        return end if end <= len(self._buffer) else None

    def _ended(self) -> LoadError:
        """How it ended, in words."""
        try:
            code = self.process.wait(STOP_PATIENCE)
        except subprocess.TimeoutExpired:
            return LoadError(f"{self.name} closed its pipes and goes on running")
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").splitlines()
        said = [text for line in lines if (text := line.strip(" |+-"))]
        last = f": {said[-1]}" if said else ""
        return LoadError(f"{self.name} was ended {how}{last}")

    def hang_up(self) -> None:
        """Close its pipes, which ends it, whether it reads or writes."""
        with contextlib.suppress(BrokenPipeError):
            self._input.close()
        self.output.close()

    def end(self) -> None:
        """Wait until it is gone; not for ever."""
        try:
            self.process.wait(STOP_PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._errors.close()
