"""How long until the first answer, and how much memory is held."""

import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

from closed_loop import keep_busy
from processes import SERVER_CORE, Server, get_json, pinned, started
from tailproof.load.server_view import tree
from tailproof.load.target import Target

LOAD_ALONE = """
import os
from tailproof.models.source import ModelSpec
from tailproof.models.runtimes import load
load(ModelSpec(source={source!r}, name="model"), lambda stage: None)
os._exit(0)
"""


@dataclass(frozen=True, slots=True)
class ColdStart:
    """Seconds of each repeat.

    From process start to ready, the part of it that was warm-up (None: the server does not say),
    and a process that only imports and loads the same model.
    """

    ready_seconds: tuple[float, ...]
    warm_up_seconds: tuple[float | None, ...]
    load_alone_seconds: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """Process start to loaded, over loading alone: medians, warm-up not counted."""
        pairs = zip(self.ready_seconds, self.warm_up_seconds, strict=True)
        loaded = [ready - (warm_up or 0.0) for ready, warm_up in pairs]
        return statistics.median(loaded) / statistics.median(self.load_alone_seconds)


def cold_starts(command: list[str], source: str, repeats: int) -> ColdStart:
    """Server and bare load in turns, `repeats` of each, on the server's core."""
    ready, warm_up, alone = [], [], []
    bare = pinned([sys.executable, "-c", LOAD_ALONE.format(source=source)], SERVER_CORE)
    for _ in range(repeats):
        with started(command, ready_path="/health/ready") as server:
            ready.append(server.cold_seconds)
            about = get_json(server.port, "/model") or {}
            warm_up.append(about.get("warmup_seconds"))
        begun = time.perf_counter()
        subprocess.run(bare, check=True, stdout=subprocess.DEVNULL)
        alone.append(time.perf_counter() - begun)
    return ColdStart(tuple(ready), tuple(warm_up), tuple(alone))


@dataclass(frozen=True, slots=True)
class Resident:
    """Bytes of memory of the front process and of each of its children."""

    front: int
    children: tuple[int, ...]

    @classmethod
    def of(cls, server: Server) -> "Resident":
        front, *children = tree(server.pid)
        return cls(front.resident_bytes, tuple(child.resident_bytes for child in children))


def memory(server: Server, target: Target, seconds: float) -> dict[str, Any]:
    """Resident memory now and after `seconds` of 64 busy connections."""
    before = Resident.of(server)
    busy = keep_busy(target, 64, seconds)
    return {
        "after_start": asdict(before),
        "after_requests": asdict(Resident.of(server)),
        "num_good": busy.num_good,
        "num_requests": busy.num_good + busy.num_bad,
    }
