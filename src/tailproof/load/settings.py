"""Everything that can be set about a load test, once: flag, variable, TOML key and help text are
all derived from these fields (see `tailproof.config`)."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from tailproof.core.setting import setting
from tailproof.core.slo import Slo

Text = Annotated[str, Meta(min_length=1, description="some text")]
Rate = Annotated[float, Meta(gt=0, le=10**6, description="a rate above 0/s, up to 1,000,000/s")]
Timeout = Annotated[float, Meta(gt=0, le=3600, description="a duration above 0, up to 1h")]
Length = Annotated[float, Meta(ge=1, le=86400, description="a duration from 1s to 24h")]
WarmUp = Annotated[float, Meta(ge=0, le=3600, description="a duration up to 1h")]
Seed = Annotated[int, Meta(ge=0, le=2**32 - 1, description="a whole number from 0 to 4294967295")]
Count = Annotated[int, Meta(ge=1, le=10**9, description="a whole number from 1")]
Senders = Annotated[int, Meta(ge=1, le=64, description="a whole number from 1 to 64")]
Method = Annotated[
    str, Meta(pattern=r"^[A-Za-z]{1,20}\Z", description="an HTTP method, such as POST")
]
Variable = Annotated[
    str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]*\Z", description="the name of a variable")
]
Language = Literal["en", "zh-TW"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetSettings:
    """What is sent, and how: for `prove` and `probe`."""

    table: ClassVar[str] = "prove"
    """Its table in the file, and the part of its variables after TAILPROOF_."""

    data: Text | None = setting(None, "file with one request body a line")
    template: Text | None = setting(
        None, "a body with {{uniform 1 100}}, {{int 1 9}}, {{choice a b}}, ... drawn for each"
    )
    from_openapi: bool = setting(
        False, "draw bodies from the target's /openapi.json (so it is without --data, --template)"
    )
    method: Method | None = setting(None, "HTTP method; default: POST with a body, else GET")
    header: tuple[Text, ...] = setting((), "'Name: value' to send; may be repeated")
    bearer_env: Variable | None = setting(
        None, "variable that holds a bearer token, so that it stands in no command line"
    )
    gzip: bool = setting(False, "compress the bodies")
    insecure: bool = setting(False, "do not check the certificate of an https target")
    ca_file: Text | None = setting(None, "certificates to trust, as PEM")
    timeout: Timeout = setting(
        30.0, "an answer that takes longer is a miss, and its connection is closed", unit="duration"
    )
    seed: Seed = setting(1, "of arrivals, choice and drawn bodies; printed in the report")
    i_may_load_this_host: bool = setting(
        False, "the target is neither on this machine nor in a private network, and you may"
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadSettings:
    """The load of `prove`, and its limits."""

    table: ClassVar[str] = "prove"

    slo: tuple[Slo, ...] = setting(
        (),
        "what must hold, e.g. 'p95 < 50ms'; may be repeated",
        unit="slo",
        variable="TAILPROOF_SLO",
    )
    rate: Rate | None = setting(None, "judge this one rate, e.g. 300/s", unit="rate")
    require: Rate | None = setting(None, "the same, as a gate: exit 1 on FAIL", unit="rate")
    steps: Text | None = setting(None, "judge these rates, e.g. 100/s,200/s,400/s")
    seconds: Length | None = setting(
        None,
        "measured time of each rate (default 30s with --rate and --require, 5s with --steps)",
        unit="duration",
        key="for",
    )
    budget: Length = setting(120.0, "time for the whole search", unit="duration")
    arrivals: Text = setting(
        "poisson",
        "poisson, constant, gamma:SHAPE, ramp:50/s..500/s, step:100/s,200/s, 'spike:3x for 5s', "
        "trace:FILE",
    )
    warm_up: WarmUp | None = setting(
        None, "sent before each measured window and not judged", unit="duration"
    )
    processes: Senders = setting(1, "sending processes; one reaches some 10,000/s")
    max_connections: Count | None = setting(
        None, "cap of open connections; requests that wait for one count as late"
    )
    max_rate: Rate | None = setting(None, "never send faster", unit="rate")
    max_requests: Count = setting(10**7, "never send more, all steps together")
    max_time: Length = setting(3600.0, "never load the target for longer", unit="duration")
    server_pid: Count | None = setting(
        None, "process of the server, to watch its CPU; default: who listens on that port here"
    )
    split_test: bool = setting(
        False, "repeat the limit with twice the senders: does the tester change the answer?"
    )
    locustfile: Text | None = setting(
        None, "run this Locust file first (a closed loop), then its requests at the rate it reached"
    )
    users: Count | None = setting(None, "of the Locust file (default 10)")
    spawn_rate: Count | None = setting(None, "users that it adds a second (default 10)")
    run_time: Length | None = setting(None, "of the Locust file (default 60s)", unit="duration")
    out: Text = setting("runs", "folder for the records of runs; OUT/latest is the newest")
