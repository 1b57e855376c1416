"""Request bodies: a seeded list, so that no cache of one answer can help anybody."""

import json

import numpy as np

NUM_BODIES = 500
CHANNELS = ("web", "app", "store", "line")


def fraud_bodies(seed: int, num: int = NUM_BODIES) -> tuple[bytes, ...]:
    """`num` bodies such as `{"amount": 1234.5, "channel": "web", "age": 33}`."""
    rng = np.random.default_rng(seed)
    amounts = rng.lognormal(6.0, 1.0, num).round(2).tolist()
    channels = rng.choice(CHANNELS, num).tolist()
    ages = rng.integers(18, 91, num).tolist()
    rows = zip(amounts, channels, ages, strict=True)
    return tuple(
        json.dumps({"amount": amount, "channel": channel, "age": age}).encode()
        for amount, channel, age in rows
    )
