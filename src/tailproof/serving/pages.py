"""What people look at, and what is rare: FastAPI behind the hot routes."""

import asyncio
from collections.abc import MutableMapping
from html import escape
from string import Template
from typing import Any

import msgspec
from fastapi import FastAPI, Response
from fastapi.openapi.utils import get_openapi
from fastapi.responses import HTMLResponse
from fastapi_offline import FastAPIOffline

import tailproof
from tailproof.serving import openapi
from tailproof.serving.exchange import Headers
from tailproof.serving.paths import BY_NAME, FIXED, STATIC
from tailproof.serving.service import ModelService
from tailproof.telemetry.metrics import UNMATCHED


class Pages:
    """The pages of one server, as (status, headers, body) of a request."""

    def __init__(self, services: dict[str, ModelService]) -> None:
        self._services = services
        self._app = _build(services)

    def template(self, path: str) -> str:
        """The route of a path, for metrics and logs: from a closed set, whatever is asked for."""
        if path in FIXED:
            return path
        if path.startswith("/static-offline-docs/"):
            return STATIC
        if path.startswith("/models/") and path.removeprefix("/models/") in self._services:
            return BY_NAME
        return UNMATCHED

    async def render(self, scope: Any) -> tuple[int, Headers, bytes]:
        """Run FastAPI on a request without a body, and collect its whole answer."""
        status, headers, chunks = 500, [], []
        messages = iter(({"type": "http.request", "body": b"", "more_body": False},))
        answered = asyncio.Event()

        async def receive() -> dict[str, Any]:
            for message in messages:
                return message
            await answered.wait()  # whoever asks again waits for the client to leave
            return {"type": "http.disconnect"}

        async def send(message: MutableMapping[str, Any]) -> None:
            nonlocal status, headers
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = [
                    (k.decode("latin-1"), v.decode("latin-1")) for k, v in message["headers"]
                ]
            elif message["type"] == "http.response.body":
                chunks.append(message.get("body", b""))
                if not message.get("more_body", False):
                    answered.set()

        await self._app(_asgi_scope(scope), receive, send)
        kept = [(key, value) for key, value in headers if key != "content-length"]
        return status, kept, b"".join(chunks)


def _asgi_scope(scope: Any) -> dict[str, Any]:
    """granian's RSGI scope as an ASGI one."""
    path: str = scope.path
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": scope.http_version,
        "method": "GET" if scope.method == "HEAD" else scope.method,  # granian drops the body
        "scheme": scope.scheme,
        "path": path,
        "raw_path": path.encode(),
        "query_string": scope.query_string.encode(),
        "root_path": "",
        "headers": [
            (key.encode("latin-1"), value.encode("latin-1", "replace"))
            for key, value in scope.headers.items()
        ],
        "server": None,
        "client": None,
        "state": {},
    }


def _build(services: dict[str, ModelService]) -> FastAPI:
    app: FastAPI = FastAPIOffline(title="Tailproof", version=tailproof.__version__, redoc_url=None)

    @app.get("/", include_in_schema=False)
    async def index() -> HTMLResponse:
        return HTMLResponse(_index(services))

    @app.get("/model", tags=["about"], summary="Which model is this")
    async def model() -> Response:
        if len(services) == 1:
            (service,) = services.values()
            return _facts(service)
        everything = {name: openapi.facts(service) for name, service in services.items()}
        return _json(200, {"models": everything})

    @app.get("/models/{name}", tags=["about"], summary="Which model is this, by name")
    async def model_by_name(name: str) -> Response:
        service = services.get(name)
        if service is None:
            return _json(404, {"detail": "no model of this name is served"})
        return _facts(service)

    def document() -> dict[str, Any]:
        pages = get_openapi(title=app.title, version=app.version, routes=app.routes)
        return openapi.with_hot_routes(pages, services)

    app.openapi = document  # type: ignore[method-assign]
    return app


def _facts(service: ModelService) -> Response:
    facts = openapi.facts(service)
    return _json(200, facts) if service.manifest else _json(503, {"detail": "model not loaded"})


def _json(status: int, content: Any) -> Response:
    body = msgspec.json.encode(content)
    return Response(body, status_code=status, media_type="application/json")


def _index(services: dict[str, ModelService]) -> str:
    rows = "".join(_index_row(service) for service in services.values())
    return _INDEX.substitute(version=escape(tailproof.__version__), rows=rows)


def _index_row(service: ModelService) -> str:
    manifest = service.manifest
    version = manifest.version if manifest and manifest.version else "-"
    alias = f" @{manifest.alias}" if manifest and manifest.alias else ""
    slo = ", ".join(str(item) for item in service.settings.slo) or "none"
    cells = (service.name, f"{version}{alias}", service.state.value, slo, service.settings.source)
    return "<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in cells) + "</tr>"


_INDEX = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Tailproof</title>
<style>
:root { color-scheme: light dark; --line: #8884; --quiet: light-dark(#555, #aaa); }
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem; }
h1 { margin: 0 0 .25rem; font-size: 1.6rem; }
p { color: var(--quiet); margin: 0 0 1.5rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .5rem .75rem; border-bottom: 1px solid var(--line); }
th { font-weight: 600; white-space: nowrap; }
ul { padding: 0; list-style: none; display: flex; flex-wrap: wrap; gap: .5rem 1.5rem; }
</style>
</head>
<body>
<h1>Tailproof</h1>
<p>version $version</p>
<main>
<div class="scroll">
<table>
<thead><tr><th>Model</th><th>Version</th><th>State</th><th>SLO</th><th>Source</th></tr></thead>
<tbody>$rows</tbody>
</table>
</div>
<nav aria-label="Pages">
<ul>
<li><a href="/docs">/docs</a> try a request</li>
<li><a href="/model">/model</a> which model is this</li>
<li><a href="/health">/health</a> is it ready</li>
<li><a href="/metrics">/metrics</a> for Prometheus</li>
<li><a href="/openapi.json">/openapi.json</a></li>
</ul>
</nav>
</main>
</body>
</html>
""")
