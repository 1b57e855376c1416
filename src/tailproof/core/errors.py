"""Everything that can go wrong, as one tree.

    TailproofError
    ├── ConfigError            the user's configuration names something impossible: exit 2
    ├── ModelError             a model cannot be found, trusted, loaded or warmed
    │   └── UntrustedModel     loading it would run code that nobody vouched for
    └── RequestError           one request cannot be answered; carries its HTTP status
        ├── Malformed          400  the caller's bytes are not what the route reads
        ├── NotFound           404  no such model or route
        ├── MethodNotAllowed   405
        ├── BodyTimeout        408  the body came too slowly
        ├── TooLarge           413  a limit of ours, named in the message
        ├── UnsupportedType    415
        ├── Invalid            422  readable, but not what the model takes
        ├── Shed               429  refused or dropped, never executed
        ├── ModelFailed        500  the model raised
        ├── Unavailable        503  not ready, draining, or the worker was lost
        └── DeadlineExceeded   504  retryable when it was never executed

Messages name the rule that was broken: never a path, a stack, or anybody's data.
"""

from typing import Any, ClassVar


class TailproofError(Exception):
    """Base of every error that this package raises on purpose."""


class ConfigError(TailproofError):
    """A setting is wrong. The user's fault; the message names the key and the value."""

    def __init__(self, key: str, value: object, problem: str) -> None:
        said = key if value is None else f"{key} = {value!r}"
        super().__init__(f"{said}: {problem}")
        self.key = key
        self.value = value
        self.problem = problem


class ModelError(TailproofError):
    """A model cannot be found, loaded or warmed. The operator's fault or the model's."""


class UntrustedModel(ModelError):
    """Loading this model would run code from a place that the operator has not vouched for."""


class RequestError(TailproofError):
    """One request cannot be answered.

    `detail` is a sentence, or the list of `{loc, msg, type}` of a validation.
    """

    status: ClassVar[int] = 500
    outcome: ClassVar[str] = "client_error"
    retryable: bool = False
    stage = ""
    """How far the request had come, where that says why it ended (`telemetry.metrics.STAGES`)."""
    budget_left: float | None = None
    """Of a request that was shed: the share of the SLO's late answers that was left."""
    margin: float | None = None
    """... and the factor on the predicted batch time."""

    def __init__(self, detail: str | list[dict[str, Any]], *, reason: str = "") -> None:
        super().__init__(detail if isinstance(detail, str) else "invalid request")
        self.detail = detail
        self.reason = reason or type(self).__name__
        self.retry_after: float | None = None


class Malformed(RequestError):
    """The caller's bytes cannot be read as what the route takes."""

    status = 400


class NotFound(RequestError):
    """No such route or model."""

    status = 404


class MethodNotAllowed(RequestError):
    """The route exists and does not take this method."""

    status = 405


class BodyTimeout(RequestError):
    """The caller announced a body and did not send it in time."""

    status = 408


class TooLarge(RequestError):
    """The body or the number of rows is over a limit."""

    status = 413


class UnsupportedType(RequestError):
    """The Content-Type or Content-Encoding is not one that the route reads."""

    status = 415


class Invalid(RequestError):
    """Well-formed, but wrong columns or values: `detail` lists each with its path."""

    status = 422


class Shed(RequestError):
    """Refused at the door, or dropped from the queue, because it could not be answered in time.
    Never executed."""

    status = 429
    outcome = "shed"
    retryable = True

    def __init__(self, detail: str, *, reason: str, retry_after: float) -> None:
        super().__init__(detail, reason=reason)
        self.retry_after = retry_after


class ModelFailed(RequestError):
    """The model raised while it computed this request. The model's fault."""

    status = 500
    outcome = "failed"


class Unavailable(RequestError):
    """No worker can answer: not loaded yet, draining, or the worker died with the request."""

    status = 503
    outcome = "failed"
    retryable = True

    def __init__(self, detail: str, *, reason: str, retry_after: float = 1.0) -> None:
        super().__init__(detail, reason=reason)
        self.retry_after = retry_after


class DeadlineExceeded(RequestError):
    """The request's time passed before an answer was there, or certainly would have.

    `stage`: how far it had come. It may be tried again when it was never executed.
    """

    status = 504
    outcome = "timeout"

    def __init__(self, detail: str, *, stage: str, retry_after: float = 1.0) -> None:
        super().__init__(detail)
        self.stage = stage
        self.retryable = stage in ("door", "queue")
        self.retry_after = retry_after if self.retryable else None
