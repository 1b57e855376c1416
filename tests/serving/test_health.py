"""The probes: when which of them says yes."""

from types import SimpleNamespace

import pytest

from tailproof.models.manifest import Manifest
from tailproof.models.signature import Signature
from tailproof.serving import health
from tailproof.serving.service import State
from tailproof.serving.settings import ModelSettings
from tailproof.workers import pool

MANIFEST = Manifest(name="m", source="s", runtime="r", signature=Signature(inputs=()), version="3")


def service(state: State, *, required: bool = True, reason: str | None = None):
    worker = pool.Worker(0, pid=7, state=pool.State.READY, stage="ready")
    return SimpleNamespace(
        state=state,
        settings=ModelSettings(required=required),
        manifest=MANIFEST if state in {State.READY, State.DOWN} else None,
        reason=reason,
        workers=[worker],
    )


READY, LOADING = service(State.READY), service(State.LOADING)
FAILED, DOWN = service(State.FAILED, reason="no such version"), service(State.DOWN)
OPTIONAL = service(State.LOADING, required=False)


@pytest.mark.parametrize(
    ("services", "draining", "ready", "startup"),
    [
        ([READY], False, 200, 200),
        ([READY], True, 503, 200),
        ([LOADING], False, 503, 503),
        ([FAILED], False, 503, 503),
        ([DOWN], False, 503, 200),
        ([READY, LOADING], False, 503, 503),
        ([READY, OPTIONAL], False, 200, 200),
        ([OPTIONAL], False, 503, 503),
        ([], False, 503, 503),
    ],
    ids=[
        "ready",
        "draining",
        "loading",
        "failed",
        "all workers lost after it had started",
        "one of two is loading",
        "one that is not required is loading",
        "only one that is not required: it is what we are here for",
        "no model at all: nothing is ready",
    ],
)
def test_who_says_yes_when(services, draining, ready, startup):
    by_name = {f"m{number}": item for number, item in enumerate(services)}
    assert health.ready(by_name, draining=draining)[0] == ready
    assert health.whole(by_name, draining=draining)[0] == ready
    assert health.startup(by_name)[0] == startup
    assert health.live()[0] == 200


def test_a_failed_load_says_why():
    _, content = health.whole({"m": FAILED}, draining=False)
    assert content["detail"] == "model not loaded"
    assert content["models"]["m"]["reason"] == "no such version"


def test_ready_says_what_is_served():
    _, content = health.whole({"m": READY}, draining=False)
    assert content["status"] == "ok"
    assert content["models"] == {"m": {"state": "ready", "version": "3", "alias": None}}
    assert content["workers"] == [{"model": "m", "number": 0, "pid": 7, "state": "ready"}]
