"""Where a model comes from: one string, read once.

The front process checks it before it binds a port, so nothing here imports a model library.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from tailproof.core.errors import ConfigError
from tailproof.models.fake import FakeOptions

EXPECTED = (
    "expected models:/name@alias, models:/name/3, a folder that holds an MLmodel file, "
    "python:module:attr, demo:fraud or fake:?fixed=5ms"
)
DEMOS = ("fraud",)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_REGISTRY = re.compile(r"models:/(?P<name>[^/@:]+)(?:@(?P<alias>[^/@]+)|/(?P<version>[1-9][0-9]*))")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_LATER_SUFFIXES = (".onnx", ".skops", ".joblib", ".pkl", ".gguf")


class ModelSpec(msgspec.Struct, frozen=True, kw_only=True):
    """All that a worker needs in order to load one model. Travels in the first frame."""

    source: str
    """As the user wrote it: `models:/fraud-model@champion`, `demo:fraud`, `fake:?fixed=5ms`..."""
    name: str
    method: str | None = None
    """What to call instead of the model's own choice: `predict`, `predict_proba`, ..."""
    class_index: int | None = None
    """With `predict_proba`: which column is the answer. None: 1 when there are two, else all."""
    trust: tuple[str, ...] = ()
    """`sha256:<hex>` digests of models that may run code when they are loaded."""
    tracking_uri: str | None = None
    """MLflow tracking and registry server; None: MLflow's own environment and defaults."""
    columns: tuple[dict[str, Any], ...] = ()
    """The user's table of constraints, `{"name": ..., "ge": ...}`, merged into the signature."""
    class_columns: tuple[dict[str, Any], ...] = ()
    """The fields of the user's own class: the columns of a model that declares none itself."""


@dataclass(frozen=True, slots=True)
class Registered:
    """`models:/name@alias` or `models:/name/3`: a version in an MLflow registry."""

    name: str
    alias: str | None = None
    version: str | None = None


@dataclass(frozen=True, slots=True)
class Folder:
    """An MLflow model folder on this disk."""

    path: Path


@dataclass(frozen=True, slots=True)
class PythonObject:
    """`python:module:attr`: the user's own class or object."""

    module: str
    attr: str


@dataclass(frozen=True, slots=True)
class Demo:
    """`demo:fraud`: a model that is trained on the spot."""

    name: str


@dataclass(frozen=True, slots=True)
class Fake:
    """`fake:?fixed=5ms`: a model that only takes its time."""

    options: FakeOptions


Source = Registered | Folder | PythonObject | Demo | Fake


def parse(source: str) -> Source:
    """Read a source string. Raises ConfigError (`model = '...': expected ...`)."""
    match source.partition(":")[0]:
        case "models":
            return _registered(source)
        case "python":
            return _python(source)
        case "demo":
            return _demo(source)
        case "fake":
            return _fake(source)
        case "runs":
            raise _later(source)
    return _folder(source)


def default_name(source: str) -> str:
    """The name that a model has unless the user gives one: `demo:fraud` -> `fraud`.

    Raises ConfigError when the source is wrong or its own name cannot stand in a URL.
    """
    match parse(source):
        case Registered(name=name) | Demo(name=name):
            found = name
        case Folder(path=path):
            found = path.resolve().name
        case PythonObject(attr=attr):
            found = attr.rpartition(".")[2]
        case Fake():
            found = "fake"
    return check_name(found)


def check_name(name: str) -> str:
    """The name itself, if it can stand in a URL, a metric and a log. Raises ConfigError."""
    if _NAME.fullmatch(name) is None:
        raise ConfigError(
            "name",
            name,
            "expected up to 128 letters, digits, '.', '_' and '-', a letter or digit first",
        )
    return name


def check_trust(digests: Iterable[str]) -> None:
    """Raises ConfigError for a `trust` value that is not `sha256:` and 64 hex digits."""
    for value in digests:
        if _DIGEST.fullmatch(value) is None:
            raise ConfigError("trust", value, "expected sha256: and 64 lower-case hex digits")


def _later(source: str) -> ConfigError:
    return ConfigError("model", source, f"not supported by this version; {EXPECTED}")


def _registered(source: str) -> Registered:
    match = _REGISTRY.fullmatch(source)
    if match is None:
        raise ConfigError("model", source, "expected models:/name@alias or models:/name/3")
    return Registered(match["name"], match["alias"], match["version"])


def _python(source: str) -> PythonObject:
    parts = source.split(":")
    valid = len(parts) == 3 and all(
        word.isidentifier() for part in parts[1:] for word in part.split(".")
    )
    if not valid:
        raise ConfigError("model", source, "expected python:module:attr")
    return PythonObject(parts[1], parts[2])


def _demo(source: str) -> Demo:
    name = source.removeprefix("demo:")
    if name == "gpt":
        raise _later(source)
    if name not in DEMOS:
        raise ConfigError("model", source, "there is no such demo; expected demo:fraud")
    return Demo(name)


def _fake(source: str) -> Fake:
    rest = source.removeprefix("fake:")
    if rest and not rest.startswith("?"):
        raise ConfigError("model", source, "expected fake: or fake:?fixed=5ms&per_row=1ms")
    return Fake(FakeOptions.parse(rest.removeprefix("?")))


def _folder(source: str) -> Folder:
    path = Path(source)
    if source and (path / "MLmodel").is_file():
        return Folder(path)
    if source.endswith(_LATER_SUFFIXES):
        raise _later(source)
    problem = "it holds no MLmodel file" if source and path.exists() else "there is no such folder"
    raise ConfigError("model", source, f"{problem}; {EXPECTED}")
