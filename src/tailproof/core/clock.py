"""The only place that reads a clock. Everything else is handed the time."""

import time
from collections.abc import Callable

monotonic: Callable[[], float] = time.monotonic
"""Seconds on the system-wide monotonic clock: comparable between processes of one machine,
unaffected when the wall clock jumps. All intervals come from here."""

wall: Callable[[], float] = time.time
"""Seconds since 1970 (UTC). Only for what a person reads: log and start times."""
