"""One real MLflow registry for the session, with the demo model in it."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from tailproof.models import demo
from tailproof.models.demo import Trained
from tailproof.models.registry import import_mlflow

ARTIFACTS = "/api/2.0/mlflow-artifacts/artifacts"


@dataclass(frozen=True, slots=True)
class Registry:
    """An MLflow registry on this disk: `fraud-model` has version 1 with the alias `champion`."""

    tracking_uri: str
    folder: Path
    """The MLflow model folder of version 1."""
    trained: Trained

    def client(self) -> Any:
        return import_mlflow().MlflowClient(
            tracking_uri=self.tracking_uri, registry_uri=self.tracking_uri
        )

    def register(self, name: str, location: str) -> str:
        """A new version of `name` whose files are at `location`."""
        client = self.client()
        if not client.search_registered_models(f"name = '{name}'"):
            client.create_registered_model(name)
        return str(client.create_model_version(name, source=location).version)


@pytest.fixture(autouse=True)
def _own_mlflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """No MLflow server of the person who runs the tests is asked anything."""
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def trained() -> Trained:
    return demo.train()


@pytest.fixture(scope="session")
def registry(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> Registry:
    directory = tmp_path_factory.mktemp("registry")
    tracking_uri = f"sqlite:///{directory / 'mlflow.db'}"
    version = demo.register(trained.pipeline, trained.frame, tracking_uri, directory / "artifacts")
    assert version == "1"
    (found,) = (directory / "artifacts").rglob("MLmodel")
    return Registry(tracking_uri, found.parent, trained)


class _Artifacts(BaseHTTPRequestHandler):
    """The two requests with which MLflow lists and fetches artifacts."""

    def __init__(self, root: Path, *args: Any) -> None:
        self.root = root
        super().__init__(*args)

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        assert parts.path.startswith(ARTIFACTS)
        rest = unquote(parts.path.removeprefix(ARTIFACTS)).strip("/")
        if rest:
            self._send((self.root / rest).read_bytes())
            return
        folder = self.root / parse_qs(parts.query).get("path", [""])[0]
        files = [
            {"path": item.name, "is_dir": item.is_dir(), "file_size": item.stat().st_size}
            for item in sorted(folder.iterdir() if folder.is_dir() else ())
        ]
        self._send(json.dumps({"files": files}).encode())

    def _send(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        pass


Serve = Callable[[Path], str]


@pytest.fixture
def serve_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """Puts a model folder behind HTTP on loopback; gives the artifact URI that reaches it."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    servers: list[ThreadingHTTPServer] = []

    def serve(folder: Path) -> str:
        server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Artifacts, folder.parent))
        Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}{ARTIFACTS}/{folder.name}"

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


def write_mlmodel(folder: Path, content: dict[str, Any]) -> Path:
    """A folder with an `MLmodel` file; JSON is YAML."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "MLmodel").write_text(json.dumps(content), "utf-8")
    return folder


def signature_of(**types: str) -> dict[str, Any]:
    """The `signature` of an MLmodel file: `signature_of(age="long")`."""
    inputs = [{"type": kind, "name": name, "required": True} for name, kind in types.items()]
    return {"inputs": json.dumps(inputs), "outputs": None, "params": None}


def silent(stage: str) -> None:
    """A progress function for tests that are not about progress."""
