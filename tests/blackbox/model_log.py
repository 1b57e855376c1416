"""What the model itself says it computed: the fake runtime's log, one line an executed batch."""

import json
from collections import Counter
from pathlib import Path


def executions(path: Path) -> Counter[float]:
    """How many times each row value was computed."""
    counts: Counter[float] = Counter()
    for line in path.read_text().splitlines():
        counts.update(json.loads(line)["values"])
    return counts
