"""Why a request got no good answer: what metrics count and the log tells."""

from typing import NamedTuple


class Fault(NamedTuple):
    """One way in which a request ended badly."""

    error: str
    """Short name of what happened."""
    cause: str
    """Why it was shed, or the stage in which it ended (see `telemetry.metrics`)."""
    message: str | None = None
    """In words that may be shown."""
    retryable: bool | None = None
    budget_left: float | None = None
    """Share of the SLO's late answers that was left when it was shed."""
    margin: float | None = None
    """By which the predicted batch time was multiplied then."""
