"""The pages for people and tools: `/` links to them, the documentation knows the real columns."""

import asyncio
import json
import re
from typing import Any

import pytest

from .conftest import Servers
from .http_client import ask, run
from .server import Server


@pytest.fixture(scope="module")
def server(module_servers: Servers) -> Server:
    """One server for all pages."""
    started = module_servers.launch(None, "fake:?fixed=1ms")
    run(started.until_ready())
    return started


def test_the_front_page_links_to_pages_that_exist(server: Server) -> None:
    page = run(ask(server.port, "GET", "/"))
    assert page.status == 200
    assert page.headers["content-type"].startswith("text/html")
    links = set(re.findall(r'href="(/[^"#?]*)', page.body.decode()))
    assert {"/docs", "/metrics"} <= links
    for link in links:
        assert run(ask(server.port, "GET", link)).status == 200, link


def _resolve(schema: Any, document: Any) -> Any:
    """Follow `$ref`s, so that a search sees the whole schema."""
    if isinstance(schema, list):
        return [_resolve(item, document) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        target = document
        for step in schema["$ref"].removeprefix("#/").split("/"):
            target = target[step]
        return _resolve(target, document)
    return {key: _resolve(value, document) for key, value in schema.items()}


def _properties(schema: Any) -> dict[str, Any]:
    """Every object property that a schema mentions."""
    found: dict[str, Any] = {}
    if isinstance(schema, dict):
        found |= schema.get("properties", {})
        for value in schema.values():
            found |= _properties(value)
    elif isinstance(schema, list):
        for item in schema:
            found |= _properties(item)
    return found


def test_the_api_description_knows_the_columns(server: Server) -> None:
    answer = run(ask(server.port, "GET", "/openapi.json"))
    assert answer.status == 200
    document = answer.json()
    assert document["openapi"].startswith("3.")
    operation = document["paths"]["/predict"]["post"]
    body = _resolve(operation["requestBody"]["content"]["application/json"]["schema"], document)
    assert _properties(body)["value"]["type"] == "number"
    assert {"200", "422", "429", "503"} <= set(operation["responses"])
    answered = _resolve(operation["responses"]["200"], document)
    assert {"score", "scores"} & set(_properties(answered))


def test_the_documentation_page_is_there(server: Server) -> None:
    page = run(ask(server.port, "GET", "/docs"))
    assert page.status == 200
    assert "/openapi.json" in page.body.decode()


def test_the_model_page_says_which_model(server: Server) -> None:
    answer = run(ask(server.port, "GET", "/model"))
    assert answer.status == 200
    assert answer.json()["name"] == "m"
    assert "value" in json.dumps(answer.json()["signature"])


@pytest.mark.parametrize("path", ["/health", "/health/live", "/health/ready", "/health/startup"])
def test_the_probes_are_green(server: Server, path: str) -> None:
    assert run(ask(server.port, "GET", path)).status == 200


@pytest.mark.parametrize("path", ["/health", "/health/live", "/metrics", "/"])
def test_head_is_answered_like_get_without_a_body(server: Server, path: str) -> None:
    answer = run(ask(server.port, "HEAD", path))
    assert answer.status in (200, 405)
    assert answer.body == b""


def test_the_metrics_are_prometheus_text(server: Server) -> None:
    answer = run(ask(server.port, "GET", "/metrics"))
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/plain")
    text = answer.body.decode()
    for name in ("requests_received_total", "inflight_requests", "queue_rows", "workers"):
        assert f"\ntailproof_{name}{{" in text, name


def test_the_documentation_needs_no_network_and_its_files_block_nobody(server: Server) -> None:
    page = run(ask(server.port, "GET", "/docs")).body.decode()
    files = set(re.findall(r'(?:src|href)="([^"]+)"', page))
    assert files
    assert not [file for file in files if file.startswith(("http:", "https:", "//"))]

    async def scenario() -> None:
        requests = [ask(server.port, "GET", file) for file in sorted(files) * 5]
        probes = [ask(server.port, "GET", "/health/live") for _ in range(20)]
        async with asyncio.timeout(30):
            answers = await asyncio.gather(*requests, *probes)
        assert {answer.status for answer in answers} == {200}

    run(scenario())


@pytest.mark.parametrize("value", ["bytes=0-0", "bytes=-5", "bytes=0-0,2-3,5-9", "bytes=9-1", "x"])
def test_ranges_of_a_file_are_answered(server: Server, value: str) -> None:
    page = run(ask(server.port, "GET", "/docs")).body.decode()
    file = re.findall(r'src="([^"]+\.js)"', page)[0]
    answer = run(ask(server.port, "GET", file, headers=(("Range", value),)))
    assert answer.status in {200, 206, 400, 416}


@pytest.mark.parametrize(
    "path",
    ["../pyproject.toml", "..%2f..%2fpages.py", "%2e%2e/pages.py", "/etc/passwd", "a%00b"],
)
def test_nothing_but_its_files_is_there(server: Server, path: str) -> None:
    answer = run(ask(server.port, "GET", f"/static-offline-docs/{path}"))
    assert 400 <= answer.status < 500
    assert b"import" not in answer.body
    assert b"root:" not in answer.body
