"""Durations, rates, sizes and shares as people write them: `50ms`, `2000/s`, `16MiB`, `99.9%`."""

import re

_NUMBER = r"(?P<number>[0-9]+(?:\.[0-9]+)?)"
_DURATION = re.compile(_NUMBER + r"\s*(?P<unit>us|µs|ms|s|m|h)")
_RATE = re.compile(_NUMBER + r"\s*/\s*(?P<unit>s|m|h)")
_SIZE = re.compile(_NUMBER + r"\s*(?P<unit>B|KiB|MiB|GiB|kB|MB|GB)")

_A_SECOND = {"us": 1e6, "µs": 1e6, "ms": 1e3, "s": 1.0, "m": 1 / 60, "h": 1 / 3600}
"""How many make a second: dividing by a whole number gives 0.009 for 9ms, multiplying does not."""
_BYTES = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "kB": 10**3, "MB": 10**6, "GB": 10**9}


def parse_duration(text: str) -> float:
    """`50ms` -> 0.05 (seconds). Raises ValueError when the unit is missing or unknown."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"expected a duration with its unit, such as 50ms, 2s or 5m; got {text!r}")
    return float(match["number"]) / _A_SECOND[match["unit"]]


def parse_rate(text: str) -> float:
    """`2000/s` -> 2000.0 (a second). Raises ValueError when the unit is missing or unknown."""
    match = _RATE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"expected a rate with its unit, such as 300/s; got {text!r}")
    return float(match["number"]) * _A_SECOND[match["unit"]]


def parse_size(text: str) -> int:
    """`16MiB` -> 16777216 (bytes). Raises ValueError when the unit is missing or unknown."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"expected a size with its unit, such as 16MiB; got {text!r}")
    return int(float(match["number"]) * _BYTES[match["unit"]])


def format_duration(seconds: float) -> str:
    """0.05 -> `50ms`: three significant digits in the unit that a person would choose."""
    for unit, factor in (("us", 1e6), ("ms", 1e3)):
        value = float(f"{seconds * factor:.3g}")
        if abs(value) < 1000:
            return f"{value:g}{unit}"
    return f"{float(f'{seconds:.3g}'):g}s" if abs(seconds) < 999.5 else f"{seconds:.0f}s"


def format_rate(rate: float) -> str:
    """2000.0 -> `2000/s`, 0.25 -> `0.25/s`: whole numbers from 100 on, else three digits."""
    return f"{rate:.0f}/s" if abs(rate) >= 100 else f"{float(f'{rate:.3g}'):g}/s"


def format_size(num_bytes: int) -> str:
    """16777216 -> `16MiB`: the largest binary unit that divides it, so nothing is rounded."""
    for unit in ("GiB", "MiB", "KiB"):
        if num_bytes and num_bytes % _BYTES[unit] == 0:
            return f"{num_bytes // _BYTES[unit]}{unit}"
    return f"{num_bytes}B"
