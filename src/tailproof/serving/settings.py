"""Everything that can be set about serving, once: flag, environment name, TOML key and help text
are all derived from these fields (see `tailproof.config`)."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from msgspec import Meta

from tailproof.core.setting import setting
from tailproof.core.slo import Slo

Text = Annotated[str, Meta(min_length=1, description="some text")]
Count = Annotated[int, Meta(ge=1, description="a whole number from 1")]
Processes = Annotated[int, Meta(ge=1, le=1024, description="a whole number from 1 to 1024")]
Connections = Annotated[int, Meta(ge=1, le=10**6, description="a whole number from 1 to 1,000,000")]
Index = Annotated[int, Meta(ge=0, description="a whole number from 0")]
Port = Annotated[int, Meta(ge=1, le=65535, description="a port from 1 to 65535")]
Seconds = Annotated[float, Meta(ge=0, le=86400, description="a duration up to 24h")]
Timeout = Annotated[float, Meta(gt=0, le=86400, description="a duration above 0, up to 24h")]
BodySize = Annotated[int, Meta(ge=1, description="a size from 1B")]
HeaderSize = Annotated[int, Meta(ge=8192, description="a size from 8KiB")]
ModelName = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z",
        description="up to 128 letters, digits, '.', '_' and '-', a letter or digit first",
    ),
]
Digest = Annotated[
    str,
    Meta(
        pattern=r"^sha256:[0-9a-f]{64}\Z",
        description="sha256: and 64 lower-case hex digits",
    ),
]


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerSettings:
    """The front process: address, limits, log. Seconds and bytes."""

    host: Text = setting("127.0.0.1", "address to listen on (0.0.0.0: every interface)")
    port: Port = setting(8000, "port to listen on")
    log_format: Literal["auto", "json", "text"] = setting(
        "auto", "one JSON object a line, or text; auto: text on a terminal, else JSON"
    )
    drain_delay: Seconds = setting(
        5.0, "after SIGTERM: keep answering this long while not ready", unit="duration"
    )
    drain_timeout: Seconds = setting(
        30.0, "then wait at most this long for the requests in flight", unit="duration"
    )
    request_timeout: Timeout = setting(
        30.0, "answer 504 to a request that is older than this", unit="duration"
    )
    header_timeout: Timeout = setting(
        75.0,
        "close a connection that sends no whole request header for so long; longer than a load "
        "balancer in front keeps idle connections",
        unit="duration",
    )
    body_timeout: Timeout = setting(30.0, "answer 408 to a body that takes longer", unit="duration")
    max_body: BodySize = setting(16 * 2**20, "answer 413 to a body over this size", unit="size")
    max_header: HeaderSize = setting(
        32 * 2**10,
        "answer 431 to a request header over this size (exact to a factor of 2)",
        unit="size",
    )
    max_connections: Connections = setting(1024, "accept at most this many connections at a time")


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSettings:
    """One served model."""

    source: Text = setting("", "where the model comes from", flag=False)
    name: ModelName = setting("", "name in URLs, metrics and logs; default: the source's own name")
    slo: tuple[Slo, ...] = setting(
        (), "what must hold, e.g. 'p95 < 50ms'; may be repeated", unit="slo"
    )
    required: bool = setting(True, "/health waits for this model", flag=False)
    workers: Processes = setting(1, "worker processes for the model")
    method: Text | None = setting(None, "method to call instead of the model's own choice")
    class_index: Index | None = setting(
        None, "with predict_proba: the column that is the answer", key="class"
    )
    output: Text = setting("score", "name of the value in a /predict answer", flag=False)
    output_list: Text = setting("scores", "its name when a list was asked", flag=False)
    columns: dict[str, dict[str, Any]] | str | None = setting(
        None, "constraints of each column, or 'module:PydanticModel'", flag=False
    )
    trust: tuple[Digest, ...] = setting(
        (), "sha256:DIGEST of a model that may run code when loaded; may be repeated"
    )
    tracking_uri: Text | None = setting(None, "MLflow tracking server; default: MLflow's own")
    max_batch: Count | None = setting(None, "most rows in a batch; default: from model and SLO")
    max_wait: Seconds = setting(
        0.0, "hold a batch this long for company although a worker is idle", unit="duration"
    )
    max_queue: Count | None = setting(None, "most rows waiting; default: from model and SLO")
