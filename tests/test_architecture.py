"""Imports go one way, and only the model process ever loads a model library.

cli, config, demo -> {serving, scoring, verify, load, planning, deploy, healthcheck}
                  -> {models, workers, telemetry, reporting} -> core
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import tailproof

PACKAGE = Path(tailproof.__file__).parent

LEVELS = (
    {"core"},
    {"models", "workers", "telemetry", "reporting"},
    {"serving", "scoring", "verify", "load", "planning", "deploy", "healthcheck"},
    {"cli", "config", "demo", "reference", "__main__"},
)
SIDEWAYS = {
    "workers": ("models.manifest", "models.source"),
    "workers.child": ("models.runtimes",),
}
"""The only imports between two groups of one level: the facts that frames carry, and the runtimes
that the model process runs."""

ONLY_CORE_AND_REPORTING = {"load", "planning"}
IMPURE = {
    *("asyncio", "concurrent", "http", "io", "multiprocessing", "os", "pathlib", "queue"),
    *("select", "selectors", "shutil", "signal", "socket", "ssl", "subprocess", "tempfile"),
    *("threading", "time", "urllib", "uvloop", "granian", "fastapi"),
}
MODEL_LIBRARIES = {
    *("mlflow", "sklearn", "skops", "joblib", "pandas", "scipy", "torch", "onnx", "onnxruntime"),
    *("openvino", "vllm", "transformers", "pickle", "cloudpickle", "xgboost", "lightgbm"),
}
MODEL_SIDE = ("models.runtimes", "models.registry", "models.demo", "models.extras")
FRONT = ("serving", "telemetry", "config", "cli")
FRONT_MAY_SEE = ("models.runtimes.base",)
"""Of the modules that may load a model library: the interface, which loads none."""


def sources() -> dict[str, str]:
    """Dotted name below `tailproof` -> source text, of every module."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = path.read_text()
    return found


def imports(module: str, text: str, *, only_top: bool = False) -> set[str]:
    """Everything that a module imports; ours without the leading `tailproof.`."""
    tree = ast.parse(text)
    nodes = _top(tree.body) if only_top else ast.walk(tree)
    return {
        name.removeprefix("tailproof.")
        for node in nodes
        for name in _names(module, node)
        if name != "tailproof"
    }


def _top(body: list[ast.stmt]) -> Iterator[ast.AST]:
    """What runs when the module is imported: everything but the insides of functions."""
    for statement in body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        yield statement
        yield from _top([child for child in ast.iter_child_nodes(statement) if _is_stmt(child)])


def _is_stmt(node: ast.AST) -> bool:
    return isinstance(node, ast.stmt | ast.ExceptHandler)


def _names(module: str, node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            base = ".".join(["tailproof", *module.split(".")[: -node.level], base]).strip(".")
        yield base
        yield from (f"{base}.{alias.name}" for alias in node.names)
    elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
        called = node.func.attr if isinstance(node.func, ast.Attribute) else node.func
        called = called.id if isinstance(called, ast.Name) else called
        if called in ("import_module", "__import__"):
            yield str(node.args[0].value)


def level_of(name: str) -> int | None:
    group = name.partition(".")[0]
    return next((level for level, groups in enumerate(LEVELS) if group in groups), None)


def within(name: str, modules: tuple[str, ...]) -> bool:
    return any(name == item or name.startswith(f"{item}.") for item in modules)


def violations(module: str, text: str) -> list[str]:
    """What a module imports against the rules."""
    found = []
    for name in sorted(imports(module, text)):
        if level_of(name) is not None:
            if not _may_import(module, name):
                found.append(f"{module} imports {name}")
        elif _outside_forbidden(module, name):
            found.append(f"{module} imports {name}")
    return found


def _may_import(module: str, name: str) -> bool:
    ours, theirs = level_of(module), level_of(name)
    group, target = module.partition(".")[0], name.partition(".")[0]
    if module == "":
        return False
    if within(module, FRONT) and within(name, MODEL_SIDE) and not within(name, FRONT_MAY_SEE):
        return False
    if group in ONLY_CORE_AND_REPORTING:
        return target in (group, "core", "reporting")
    if ours == theirs and group != target and ours != len(LEVELS) - 1:
        return within(name, SIDEWAYS.get(group, ()) + SIDEWAYS.get(module, ()))
    return ours is not None and theirs is not None and ours >= theirs


def _outside_forbidden(module: str, name: str) -> bool:
    library = name.partition(".")[0]
    if module.startswith("core") and module != "core.clock" and library in IMPURE:
        return True
    return library in MODEL_LIBRARIES and not within(module, MODEL_SIDE)


def loaded_with(module: str, modules: dict[str, str]) -> set[str]:
    """Every name that is imported, directly or through our modules, when `module` is."""
    seen: set[str] = set()
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        if name in modules:
            waiting.extend(imports(name, modules[name], only_top=True))
            waiting.extend(_packages(name))
    return seen


def _packages(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts))]


def model_libraries(names: set[str]) -> set[str]:
    return {name for name in names if name.partition(".")[0] in MODEL_LIBRARIES}


def test_every_module_belongs_to_a_level() -> None:
    strays = [name for name in sources() if name and level_of(name) is None]

    assert strays == []


def test_imports_follow_the_rules() -> None:
    found = [line for name, text in sources().items() for line in violations(name, text)]

    assert found == []


def test_importing_the_front_loads_no_model_library() -> None:
    modules = sources()
    front = [name for name in modules if within(name, ("serving", "cli", "config", "telemetry"))]

    loaded = {name: model_libraries(loaded_with(name, modules)) for name in front}

    assert front
    assert {name: found for name, found in loaded.items() if found} == {}


@pytest.mark.parametrize(
    ("module", "line", "broken"),
    [
        ("core.slo", "from tailproof.models import source", "models"),
        ("core.slo", "import tailproof.serving.app", "serving.app"),
        ("core.slo", "import socket", "socket"),
        ("core.policy", "from time import monotonic", "time"),
        ("core.policy", "def now():\n    import threading", "threading"),
        ("models.source", "from tailproof.serving import app", "serving"),
        ("models.source", "from tailproof.workers import frames", "workers"),
        ("models.runtimes.mlflow", "from tailproof.telemetry import logs", "telemetry"),
        ("telemetry.logs", "from ..workers import pool", "workers"),
        ("workers.pool", "from tailproof.models.runtimes import load", "models.runtimes"),
        ("workers.frames", "from tailproof.models import registry", "models.registry"),
        ("serving.app", "from tailproof import cli", "cli"),
        ("serving.app", "from tailproof.config import load", "config"),
        ("serving.app", "from tailproof.load import generator", "load"),
        ("serving.app", "def handler():\n    import mlflow", "mlflow"),
        ("serving.app", "import importlib\nimportlib.import_module('sklearn')", "sklearn"),
        ("serving.app", "x = __import__('torch')", "torch"),
        ("serving.app", "from tailproof.models.runtimes import load", "models.runtimes.load"),
        ("serving.app", "def find():\n    import tailproof.models.registry", "models.registry"),
        ("workers.child", "from sklearn.base import clone", "sklearn.base"),
        ("telemetry.logs", "import pickle", "pickle"),
        ("load.generator", "from tailproof.serving import settings", "serving"),
        ("load.generator", "from tailproof.models import manifest", "models"),
        ("planning.fit", "from tailproof.telemetry import metrics", "telemetry"),
        ("", "from tailproof.core import slo", "core"),
    ],
)
def test_each_broken_rule_is_caught(module: str, line: str, broken: str) -> None:
    assert f"{module} imports {broken}" in violations(module, line)


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("core.clock", "import time"),
        ("core.policy", "from tailproof.core.slo import Latency"),
        ("workers.child", "from tailproof.models.runtimes import load"),
        ("workers.frames", "from tailproof.models.manifest import Manifest"),
        ("serving.app", "from tailproof.telemetry import metrics"),
        ("serving.app", "from tailproof.models.runtimes.base import Columns"),
        ("load.generator", "from tailproof.reporting import html"),
        ("models.runtimes.mlflow", "import mlflow"),
        ("models.demo", "def train():\n    from sklearn import pipeline"),
        ("cli", "from tailproof import config, demo"),
    ],
)
def test_what_the_rules_allow_passes(module: str, line: str) -> None:
    assert violations(module, line) == []


def test_a_model_library_behind_two_imports_is_found() -> None:
    modules = {
        "serving": "",
        "serving.app": "from tailproof.models import source",
        "models": "",
        "models.source": "from tailproof.models.registry import find",
        "models.registry": "try:\n    import mlflow.pyfunc\nexcept ImportError:\n    mlflow = None",
    }

    assert model_libraries(loaded_with("serving.app", modules)) == {"mlflow.pyfunc"}


def test_a_model_library_inside_a_function_is_not_loaded_on_import() -> None:
    modules = {
        "serving.app": "from tailproof.models.registry import find",
        "models.registry": "def find():\n    import mlflow",
    }

    assert model_libraries(loaded_with("serving.app", modules)) == set()
