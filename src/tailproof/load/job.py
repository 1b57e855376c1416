"""From what a user wrote to what is sent where: bodies, headers, the complete requests."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np

from tailproof.core.errors import ConfigError
from tailproof.load import payloads, shapes, target
from tailproof.load.connection import tls_context
from tailproof.load.payloads import Payloads
from tailproof.load.prove import Job
from tailproof.load.settings import LoadSettings, TargetSettings
from tailproof.load.target import Target

NUM_DRAWN = 1000
"""Bodies that are drawn from a template or a schema, so that no cache of one answer helps."""
OPENAPI_TIMEOUT = 10.0
BODILESS = ("GET", "HEAD", "DELETE", "OPTIONS")


@dataclass(frozen=True, slots=True)
class Aim:
    """A target, and where its bodies come from."""

    target: Target
    payloads: Payloads


def make(
    url: str,
    settings: TargetSettings,
    load: LoadSettings,
    environ: Mapping[str, str],
    command: str,
) -> Job:
    """A whole test. `command` is what the report says to run it again. Raises ConfigError."""
    of_locust = {
        "--users": load.users,
        "--spawn-rate": load.spawn_rate,
        "--run-time": load.run_time,
    }
    for flag, value in of_locust.items():
        if value is not None:
            problem = "goes with --locustfile; an open loop has a rate: --rate, --steps or a search"
            raise ConfigError(flag, value, problem)
    aimed = aim(url, settings, environ)
    return of_target(aimed.target, aimed.payloads, settings, load, command)


def of_target(
    requests: Target,
    bodies: Payloads,
    settings: TargetSettings,
    load: LoadSettings,
    command: str,
) -> Job:
    """A test of requests that are there already. Raises ConfigError for the arrivals."""
    return Job(
        target=requests,
        payloads=bodies,
        mix=np.arange(len(bodies.bodies), dtype=np.int32),
        shape=shapes.parse(load.arrivals),
        load=load,
        seed=settings.seed,
        timeout=settings.timeout,
        command=command,
        token=secrets.token_hex(2),
        now=datetime.now(UTC),
    )


def aim(url: str, settings: TargetSettings, environ: Mapping[str, str]) -> Aim:
    """Everything about the requests, ready to be sent.

    Raises ConfigError when the URL, a header, a body or the permission to send is wrong or missing.
    """
    target.allowed(url, settings.i_may_load_this_host)
    chosen = _payloads(url, settings, environ)
    return Aim(target_of(url, chosen, settings, environ), chosen)


def target_of(
    url: str, bodies: Payloads, settings: TargetSettings, environ: Mapping[str, str]
) -> Target:
    """The complete requests with these bodies. Raises ConfigError."""
    method = settings.method or ("POST" if any(bodies.bodies) else "GET")
    return target.build(
        url,
        bodies.bodies,
        method=method.upper(),
        headers=[_header(line) for line in settings.header],
        bearer=_bearer(settings, environ),
        content_type=bodies.content_type,
        gzip=settings.gzip,
        ca_file=settings.ca_file,
        insecure=settings.insecure,
    )


def _header(line: str) -> tuple[str, str]:
    name, colon, value = line.partition(":")
    if not colon or not name.strip():
        raise ConfigError("--header", line, "expected 'Name: value'")
    return name.strip(), value.strip()


def _bearer(settings: TargetSettings, environ: Mapping[str, str]) -> str | None:
    if settings.bearer_env is None:
        return None
    token = environ.get(settings.bearer_env, "")
    if not token:
        raise ConfigError("--bearer-env", settings.bearer_env, "this variable is not set")
    return token


def _payloads(url: str, settings: TargetSettings, environ: Mapping[str, str]) -> Payloads:
    given = {
        "--data": settings.data,
        "--template": settings.template,
        "--from-openapi": settings.from_openapi or None,
    }
    named = [name for name, value in given.items() if value is not None]
    if len(named) > 1:
        raise ConfigError(named[1], given[named[1]], f"give either {' or '.join(named)}")
    if settings.data is not None:
        return payloads.from_file(Path(settings.data))
    if settings.template is not None:
        return payloads.from_template(settings.template, NUM_DRAWN, settings.seed)
    if settings.method is not None and settings.method.upper() in BODILESS:
        return Payloads((b"",), (1,), "no body", "")
    sent = [_header(line) for line in settings.header]
    if bearer := _bearer(settings, environ):
        sent.append(("Authorization", f"Bearer {bearer}"))
    asked = target.build(
        url, [b""], method="GET", ca_file=settings.ca_file, insecure=settings.insecure
    )
    document = payloads.fetch_openapi(url, sent, OPENAPI_TIMEOUT, tls_context(asked))
    method = (settings.method or "POST").upper()
    return payloads.from_openapi(document, urlsplit(url).path, method, NUM_DRAWN, settings.seed)
