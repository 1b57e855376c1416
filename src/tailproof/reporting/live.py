"""What a person sees while a load test runs: a line for each step, and how far the present one is.

The lines go where the report goes; the moving one goes to a terminal on stderr, or nowhere.
"""

import sys
from collections.abc import Callable

import click

from tailproof.core.units import format_rate
from tailproof.reporting.console import heading, point_line
from tailproof.reporting.document import Point

WIDTH = 78


class Live:
    """Tells of steps as they happen. `as_json`: stdout is one document, so lines go to stderr, and
    only when that is a terminal."""

    def __init__(self, *, as_json: bool) -> None:
        self._moving = sys.stderr.isatty()
        self._to_stderr = as_json
        self._quiet = as_json and not self._moving
        self._lines = 0

    def say(self, line: str) -> None:
        """A line that stays."""
        if not self._quiet:
            self._clear()
            click.echo(line, err=self._to_stderr)

    def step(
        self, number: int, role: str, rate: float | None, seconds: float
    ) -> Callable[[float, int, int], None] | None:
        """A step begins; the result is told (seconds since then, sent, answered)."""
        if not self._moving:
            return None
        at = "" if rate is None else f" at {format_rate(rate)}"

        def progress(now: float, sent: int, answered: int) -> None:
            line = (
                f"  step {number + 1}, {role}{at}: {min(now, seconds):.0f} of {seconds:.0f} s, "
                f"{sent:,} sent, {answered:,} answered"
            )
            click.echo(f"\r{line[:WIDTH]:{WIDTH}}", err=True, nl=False)

        return progress

    def point(self, point: Point) -> None:
        """It ended."""
        if self._lines == 0:
            self.say(heading())
        self._lines += 1
        self.say(point_line(point))

    def _clear(self) -> None:
        if self._moving:
            click.echo(f"\r{'':{WIDTH}}\r", err=True, nl=False)
