"""What the model itself says it computed: the fake runtime's log, one line an executed batch."""

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Batch:
    """One executed batch. Times are monotonic seconds, on the clock of every process here."""

    started: float
    finished: float
    values: tuple[float, ...]
    outcome: str
    """`ok`, or the fault that one of the values asked for."""


def batches(path: Path) -> list[Batch]:
    """Every batch that has ended, oldest first; none when there is no log yet."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [
        Batch(read["started"], read["finished"], tuple(read["values"]), read["outcome"])
        for read in map(json.loads, lines)
    ]


def executions(path: Path) -> Counter[float]:
    """How many times each row value was computed."""
    return Counter(value for batch in batches(path) for value in batch.values)


def first_starts(path: Path) -> dict[float, float]:
    """When each row value began to be computed, for the first time."""
    starts: dict[float, float] = {}
    for batch in batches(path):
        for value in batch.values:
            starts[value] = min(batch.started, starts.get(value, batch.started))
    return starts
