"""The OpenAPI document: the hot routes are not FastAPI's, and are described all the same."""

from typing import Any

import msgspec

from tailproof.core.waiting import Priority
from tailproof.models.manifest import Manifest
from tailproof.models.signature import MAX_ROWS, Output
from tailproof.serving.service import ModelService

_ERRORS = {
    "400": "the body is not JSON",
    "408": "the body came too slowly",
    "413": "too many bytes or rows",
    "415": "not JSON by its Content-Type",
    "429": "refused: it could not be answered in time; Retry-After says when to come back",
    "500": "the model raised",
    "503": "not ready, draining, or the worker was lost; Retry-After says when to come back",
    "504": "no answer in time",
}


def facts(service: ModelService) -> dict[str, Any]:
    """The content of `/model`: what is known about the served version; absent stays absent."""
    content: dict[str, Any] = {
        "name": service.name,
        "state": service.state.value,
        "slo": [str(item) for item in service.settings.slo],
        "load_seconds": service.load_seconds,
        "warmup_seconds": service.warmup_seconds,
    }
    if service.manifest is not None:
        content = {**msgspec.to_builtins(service.manifest), **content}
    return content


def with_hot_routes(document: dict[str, Any], services: dict[str, ModelService]) -> dict[str, Any]:
    """Add `/predict`, the probes and `/metrics` to FastAPI's document."""
    paths: dict[str, Any] = {}
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    schemas["Problem"] = _PROBLEM
    for name, service in services.items():
        if service.manifest is None:
            continue
        schemas[name] = service.validator.json_schema()
        path = "/predict" if len(services) == 1 else f"/models/{name}/predict"
        paths[path] = {"post": _predict(service, service.manifest)}
    for path, summary in _PROBES.items():
        paths[path] = {"get": {"tags": ["operation"], "summary": summary, "responses": _PROBE}}
    paths["/metrics"] = {
        "get": {
            "tags": ["operation"],
            "summary": "Metrics for Prometheus",
            "responses": {"200": {"description": "text exposition"}},
        }
    }
    document["paths"] = {**paths, **document["paths"]}
    return document


_TERMS = [
    {
        "name": "X-Request-Timeout-Ms",
        "in": "header",
        "description": "milliseconds from the request's arrival after which you no longer wait",
        "schema": {"type": "number", "exclusiveMinimum": 0},
    },
    {
        "name": "X-Priority",
        "in": "header",
        "description": "how much this request matters",
        "schema": {
            "type": "string",
            "enum": [priority.word for priority in Priority],
            "default": Priority.NORMAL.word,
        },
    },
]


def _predict(service: ModelService, manifest: Manifest) -> dict[str, Any]:
    row = {"$ref": f"#/components/schemas/{service.name}"}
    many = {"type": "array", "items": row, "minItems": 1, "maxItems": MAX_ROWS}
    example = service.validator.example()
    value = _example_value(manifest.signature.outputs)
    one = service.encoder.example(value, is_list=False)
    many_values = service.encoder.example(value, is_list=True)
    errors = {code: _problem(text) for code, text in _ERRORS.items()}
    return {
        "tags": ["predict"],
        "summary": f"Ask {service.name} about one row, or a list of rows",
        "operationId": f"predict_{service.name}",
        "parameters": _TERMS,
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {
                    "schema": {"anyOf": [row, many]},
                    "examples": {
                        "one": {"summary": "one row", "value": example},
                        "list": {"summary": "a list", "value": [example, example]},
                    },
                }
            },
        },
        "responses": {
            "200": {
                "description": "the answer",
                "content": {
                    "application/json": {
                        "schema": {"anyOf": [_answer(one), _answer(many_values)]},
                        "examples": {"one": {"value": one}, "list": {"value": many_values}},
                    }
                },
            },
            "422": _problem("valid JSON with wrong columns or values: each with its path"),
            **errors,
        },
    }


def _answer(example: dict[str, Any]) -> dict[str, Any]:
    """The schema of an answer: the value first (whatever the model gives), then who gave it."""
    value, *identity = example
    properties = {value: {}, **{name: {"type": ["string", "null"]} for name in identity}}
    return {"type": "object", "properties": properties, "required": list(example)}


def _example_value(outputs: tuple[Output, ...]) -> Any:
    values = {"float": 0.5, "int": 1, "bool": True, "string": "label"}
    if not outputs:
        return 0.5
    value: Any = values[outputs[0].type]
    for size in reversed(outputs[0].shape):
        value = [value] * size
    return value


def _problem(description: str) -> dict[str, Any]:
    schema = {"$ref": "#/components/schemas/Problem"}
    return {"description": description, "content": {"application/json": {"schema": schema}}}


_PROBES = {
    "/health": "Ready, and what is served",
    "/health/live": "Is the process alive",
    "/health/ready": "May traffic come",
    "/health/startup": "Has it been ready once",
}
_PROBE = {"200": {"description": "yes"}, "503": {"description": "no, and why"}}

_PROBLEM = {
    "type": "object",
    "properties": {
        "detail": {
            "anyOf": [
                {"type": "string"},
                {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "properties": {
                            "loc": {
                                "type": "array",
                                "items": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
                            },
                            "msg": {"type": "string"},
                            "type": {"type": "string"},
                        },
                    },
                },
            ]
        },
        "retry_after_ms": {"type": "integer"},
    },
    "required": ["detail"],
}
