"""The probes: three questions, three answers, computed afresh each time.

`live` is about this process alone; `ready` is about sending it traffic; `startup` is about having
been ready once. None of them waits for anything.
"""

from typing import Any

from tailproof.serving.service import ModelService, State

Reply = tuple[int, dict[str, Any]]
"""HTTP status and JSON content."""


def live() -> Reply:
    """The event loop answers: that is what liveness means here. No model, no queue."""
    return 200, {"status": "ok"}


def ready(services: dict[str, ModelService], *, draining: bool) -> Reply:
    """May traffic come? All required models have a ready worker, and no shutdown has begun."""
    problem = _problem(services, draining=draining)
    return (200, {"status": "ok"}) if problem is None else (503, problem)


def startup(services: dict[str, ModelService]) -> Reply:
    """Has every required model been ready once?"""
    if _expected(services) and all(item.manifest is not None for item in _expected(services)):
        return 200, {"status": "ok"}
    return 503, _not_loaded(services)


def whole(services: dict[str, ModelService], *, draining: bool) -> Reply:
    """`/health`: `ready`, and what is being served."""
    problem = _problem(services, draining=draining)
    if problem is not None:
        return 503, problem
    manifests = {
        name: item.manifest for name, item in services.items() if item.manifest is not None
    }
    first = next(iter(manifests.values()))
    return 200, {
        "status": "ok",
        "device": first.device,
        "parameters": first.parameters,
        "models": {
            name: {
                "state": services[name].state.value,
                "version": manifest.version,
                "alias": manifest.alias,
            }
            for name, manifest in manifests.items()
        },
        "workers": [
            {"model": name, "number": worker.number, "pid": worker.pid, "state": worker.state.value}
            for name, item in services.items()
            for worker in item.workers
        ],
    }


def _problem(services: dict[str, ModelService], *, draining: bool) -> dict[str, Any] | None:
    if draining:
        return {"detail": "draining"}
    expected = _expected(services)
    # `all` of nothing is true: a server without a model is not ready
    if expected and all(item.state is State.READY for item in expected):
        return None
    return _not_loaded(services)


def _expected(services: dict[str, ModelService]) -> list[ModelService]:
    required = [item for item in services.values() if item.settings.required]
    return required or list(services.values())


def _not_loaded(services: dict[str, ModelService]) -> dict[str, Any]:
    models = {
        name: {"state": item.state.value, "stage": item.workers[0].stage, "reason": item.reason}
        for name, item in services.items()
    }
    return {"detail": "model not loaded", "models": models}
