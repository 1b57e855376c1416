"""A Locust file, judged as what it is, and its requests sent again as independent users would.

Its users wait for their answers before they ask again, so a slow service gets less to do and its
percentiles look better than they are. That can show a problem, and cannot prove an SLO: the verdict
is UNDECIDED, and beside it stands what the same requests say open loop, at the rate it reached.
"""

from collections.abc import Mapping
from dataclasses import replace
from itertools import chain
from urllib.parse import urlsplit

import numpy as np

from tailproof.core.errors import ConfigError
from tailproof.core.statistics import describe
from tailproof.core.units import format_rate
from tailproof.load import job, locust, prove, shapes, target
from tailproof.load.locust import LocustRun
from tailproof.load.payloads import Payloads
from tailproof.load.prove import Job, Listener
from tailproof.load.settings import LoadSettings, TargetSettings
from tailproof.load.target import Target
from tailproof.reporting.document import ClosedLoop, Document, Percentiles

USERS = 10
RUN_TIME = 60.0
LONGEST = 60.0
"""Seconds of the replay at most."""


def run(
    url: str,
    settings: TargetSettings,
    load: LoadSettings,
    listener: Listener,
    *,
    environ: Mapping[str, str],
    command: str,
) -> Document:
    """Run `load.locustfile` against `url`, then its requests open loop at the rate it reached.

    Raises ConfigError when Locust is not installed, its file does not run, or another rate is asked
    for as well.
    """
    assert load.locustfile is not None
    target.allowed(url, settings.i_may_load_this_host)
    if prove.mode_of(load, shapes.parse(load.arrivals)) != "search":
        raise ConfigError("--locustfile", load.locustfile, "it brings its own rate; give no other")
    users, spawn_rate = load.users or USERS, load.spawn_rate or USERS
    run_time = load.run_time or RUN_TIME
    listener.say(f"[1/2] {users} users of the Locust file for {run_time:g} s")
    found = locust.run(load.locustfile, url, users, spawn_rate, run_time)
    spawned = min(users / spawn_rate, found.seconds / 2.0)
    steady = found.requests.between(spawned, found.seconds)
    rate = len(steady) / (found.seconds - spawned)
    listener.say(f"[2/2] the same requests, open loop, at the {format_rate(rate)} that it reached")
    again = replace(load, rate=rate, seconds=load.seconds or min(LONGEST, run_time))
    loop = ClosedLoop(
        users=found.users,
        requests=len(steady),
        rate=rate,
        response_seconds=Percentiles(**describe(steady.response)),
        warnings=list(found.warnings),
    )
    made = _job(url, settings, again, found, environ=environ, command=command)
    return prove.run(made, listener, loop)


def _job(
    url: str,
    settings: TargetSettings,
    load: LoadSettings,
    found: LocustRun,
    *,
    environ: Mapping[str, str],
    command: str,
) -> Job:
    routes = found.payloads()
    targets = [_target(url, settings, environ, route) for route in routes]
    requests = tuple(chain.from_iterable(one.requests for one in targets))
    rows = tuple(chain.from_iterable(route.payloads.rows for route in routes))
    bodies = tuple(chain.from_iterable(route.payloads.bodies for route in routes))
    sent = found.requests.payload
    made = job.of_target(
        replace(targets[0], requests=requests, url=url),
        Payloads(
            bodies, rows, f"locustfile, {len(routes)} routes", routes[0].payloads.content_type
        ),
        settings,
        load,
        command,
    )
    return replace(made, mix=sent[sent >= 0].astype(np.int32))


def _target(
    url: str, settings: TargetSettings, environ: Mapping[str, str], route: locust.Route
) -> Target:
    parts = urlsplit(url)
    return job.target_of(
        f"{parts.scheme}://{parts.netloc}{route.path}",
        route.payloads,
        replace(settings, method=route.method),
        environ,
    )
