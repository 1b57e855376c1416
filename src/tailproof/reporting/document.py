"""The document that `prove --json` prints: the whole result, without the raw records.

Seconds, and requests a second. Absent is `None` (`null`), never 0. `docs/prove.md` explains every
key; `msgspec.json.encode` writes it.
"""

from typing import Any, Literal

from msgspec import Struct, field

from tailproof.core.attribution import Cause
from tailproof.core.verdict import Finding

Verdict = Literal["PASS", "FAIL", "UNDECIDED", "INVALID"]
Class = Literal["LINEAR", "KNEE", "OVERLOAD"]
Role = Literal["base", "bracket", "bisect", "confirm", "curve", "rate", "split", "replay"]
"""Why a step was run; `rate`: the user asked for this very rate."""


class Percentiles(Struct, kw_only=True, frozen=True):
    """Of one time, by nearest rank over raw values. A percentile whose rank falls on a miss is
    None and named in `infinite`; those the sample resolves are named in `resolved`."""

    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None
    p99_9: float | None = None
    max: float | None = None
    """Of the good answers."""
    mean: float | None = None
    """Of the good answers. Never a headline."""
    resolved: list[str] = []
    infinite: list[str] = []
    intervals: dict[str, tuple[float, float | None]] = {}
    """`p95` -> 95% interval that allows for autocorrelation; no upper end: unbounded."""


class Signal(Struct, kw_only=True, frozen=True):
    """One piece of evidence about the tester or its surroundings."""

    name: str
    """`send_lag`, `shortfall`, `arrivals`, `client_cpu`, `foreign_cpu`, `loop_lag`, ..."""
    value: float | None
    limit: float | None
    unit: Literal["seconds", "ratio", "count", "per_second", "bytes"]
    bad: bool
    invalidates: bool
    """A bad one of these makes the step INVALID; others name the cause or warn."""
    text: str
    """A sentence for people: what it says and what to do."""


class Generator(Struct, kw_only=True, frozen=True):
    """Was the tester in the number?"""

    ok: bool
    signals: list[Signal] = []


class ServerView(Struct, kw_only=True, frozen=True):
    """What could be seen of the server during a step; None: could not be read."""

    source: Literal["metrics", "proc"] | None = None
    cpu_seconds: float | None = None
    busy_cores: float | None = None
    """CPU seconds a second."""
    cpu_seconds_per_request: float | None = None
    resident_bytes: int | None = None


class Point(Struct, kw_only=True, frozen=True):
    """One step of the load."""

    index: int
    role: Role
    offered: float
    """Intended requests a second, in the measured window."""
    achieved: float
    """2xx answers completed inside the measured window, late or not, a second."""
    requests: int
    errors: int
    """Offered requests without a good answer."""
    refused: int
    """429 and 503, also among the errors."""
    statuses: dict[str, int]
    """`200`, `429`, `lost`, `timed out`, ... -> how many."""
    class_: Class | None = field(name="class")
    verdict: Verdict
    reason: str
    advice: str
    findings: list[Finding] = []
    response_seconds: Percentiles
    uncorrected_seconds: Percentiles
    send_lag_seconds: Percentiles
    own_lag_seconds: Percentiles
    """The part of the send lag that the tester caused."""
    warm_up_seconds: float
    measured_seconds: float
    stopped_early: bool
    connections: int
    generator: Generator
    server: ServerView
    mean_in_flight: float | None = None


class Limit(Struct, kw_only=True, frozen=True):
    """The highest rate inside the SLO: `low` is the highest PASS, `high` the lowest FAIL (None:
    none was seen), `rate` the estimate between. `at_least`: the tester gave out first."""

    rate: float | None
    low: float | None
    high: float | None
    at_least: bool
    interval: tuple[float, float] | None = None
    """95% interval of `rate`, by bootstrap over the isotonic fit."""


class Saturation(Struct, kw_only=True, frozen=True):
    """The rate beyond which no more is answered: capacity, the basis for scaling."""

    rate: float
    low: float
    """The highest rate that was not OVERLOAD."""
    high: float | None
    """The lowest that was."""


class Knee(Struct, kw_only=True, frozen=True):
    """Where latency starts to grow faster than load does."""

    rate: float


class Cold(Struct, kw_only=True, frozen=True):
    """Requests that met something for the first time, apart from the warm ones."""

    requests: int
    response_seconds: Percentiles
    kinds: dict[str, int] = {}
    """`process`, `connection`, `idle` ... -> how many."""
    first_seconds: float | None = None
    warm_seconds: Percentiles | None = None
    cold_warm_ratio: float | None = None
    """first / warm p50."""
    requests_until_steady: int | None = None
    """Under the lightest load (MSER-5); None: it was not steady by the end, or too short to say."""
    mean_over_both: float | None = None
    """What an average over cold and warm would have said."""


class ClosedLoop(Struct, kw_only=True, frozen=True):
    """What users saw who wait for each answer before they ask again (a Locust file)."""

    users: int
    requests: int
    rate: float
    """Requests a second that they reached."""
    response_seconds: Percentiles
    """From the send, as such tools count."""
    warnings: list[str] = []


class Environment(Struct, kw_only=True, frozen=True):
    """Where and with what the figures were taken."""

    date: str
    cores: int
    allowed_cores: int
    cpu: str | None
    governor: str | None
    memory_bytes: int | None
    kernel: str
    python: str
    versions: dict[str, str]
    same_host: bool
    """The target runs on this machine."""
    processes: int
    """Senders."""
    seeds: dict[str, int]
    payload: dict[str, Any]
    """Where bodies came from, how many, sizes."""


class Document(Struct, kw_only=True, frozen=True):
    """Everything that a run says."""

    tool: str
    target: str
    slo: list[str]
    verdict: Verdict
    reason: str
    mode: Literal["search", "rate", "ladder", "locust"]
    limit: Limit | None = None
    saturation: Saturation | None = None
    knee: Knee | None = None
    points: list[Point] = []
    cold: Cold | None = None
    tail_causes: list[Cause] = []
    unexplained: float | None = None
    primary_cause: str | None = None
    """The cause with at least half of the excess, if there is one."""
    tail_point: int | None = None
    """Index of the point whose tail was looked into, and whose histogram the report draws."""
    generator: Generator
    warnings: list[str] = []
    unresolved: list[str] = []
    """What the budget did not suffice to say."""
    confidence: dict[str, Any] = {}
    """The calibrated error rates of the verdict (docs/verdict.md)."""
    closed_loop: ClosedLoop | None = None
    required: float | None = None
    """The rate of `--require`."""
    environment: Environment | None = None
    command: str
    """Runs it again. Secrets are left out."""
    seconds: float
    run: str | None = None
    """The run's folder."""
