"""The user's own class or object: `python:module:attr`.

    class Model:
        columns = [{"name": "amount", "type": "float", "gt": 0}]   # or in the configuration

        def load(self): ...                      # optional: whatever takes long
        def predict(self, columns):              # {"amount": array of n float64}
            return columns["amount"] * 2         # n answers, or a dictionary of them

Optional attributes (or methods without arguments): `columns`, `example` (one row), `max_rows`.
"""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tailproof.core.errors import ConfigError, ModelError
from tailproof.models.columns import Signature
from tailproof.models.constraints import merge, table_of
from tailproof.models.manifest import Manifest, files_of
from tailproof.models.runtimes.base import Columns, LoadedModel, Progress, outputs_of
from tailproof.models.runtimes.loaded import example_columns, with_outputs
from tailproof.models.source import ModelSpec, PythonObject, parse


class PythonRuntime:
    """Hands columns to the user's `predict`."""

    def __init__(self, predict: Callable[[Columns], Any]) -> None:
        self._predict = predict

    def predict(self, columns: Columns, num_rows: int) -> Columns:
        return outputs_of(self._predict(columns), num_rows)


def load(spec: ModelSpec, progress: Progress) -> LoadedModel:
    """Import, instantiate and load the user's object. Raises ModelError."""
    source = parse(spec.source)
    assert isinstance(source, PythonObject)
    progress("importing")
    model = _object(source)
    progress("loading")
    if callable(getattr(model, "load", None)):
        _run("load()", model.load)
    method = _method_of(model, spec)
    runtime = PythonRuntime(getattr(model, method))
    signature = _signature_of(model, spec)
    example = example_columns(signature, _attribute(model, "example"))
    manifest = Manifest(
        name=spec.name,
        source=spec.source,
        runtime="python",
        signature=with_outputs(signature, runtime, example),
        engine=f"Python {sys.version.partition(' ')[0]}",
        files=_files_of(source.module),
        parameters={"method": method},
        max_rows=_max_rows(model),
    )
    return LoadedModel(runtime, manifest, example)


def _object(source: PythonObject) -> Any:
    """The user's object; a class is instantiated. The current directory can be imported from."""
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    found = _run(f"importing {source.module}", lambda: importlib.import_module(source.module))
    for name in source.attr.split("."):
        if not hasattr(found, name):
            raise ModelError(f"{source.module} has no {source.attr}")
        found = getattr(found, name)
    return _run(f"{source.attr}()", found) if isinstance(found, type) else found


def _run(what: str, call: Callable[[], Any]) -> Any:
    try:
        return call()
    except ModuleNotFoundError as error:
        raise ModelError(f"{what} needs the module {error.name}, which is not there") from error
    except Exception as error:
        raise ModelError(f"{what} raised {type(error).__name__}: {error}") from error


def _method_of(model: Any, spec: ModelSpec) -> str:
    method = spec.method or "predict"
    if not callable(getattr(model, method, None)):
        if spec.method is not None:
            raise ConfigError("method", method, "the object has no such method")
        raise ModelError("the object has no method predict(columns)")
    if spec.class_index is not None:
        raise ConfigError("class", spec.class_index, "a python: model chooses its answer itself")
    return method


def _attribute(model: Any, name: str) -> Any:
    value = getattr(model, name, None)
    return _run(f"{name}()", value) if callable(value) else value


def _signature_of(model: Any, spec: ModelSpec) -> Signature:
    table = table_of(spec.columns)
    declared = _attribute(model, "columns")
    if declared is None:
        table = table or table_of(spec.class_columns)
        if not table:
            raise ModelError(
                "the object declares no `columns`: give it some, or declare them with their types "
                "in the configuration"
            )
        return merge(None, table)
    try:
        own = merge(None, table_of(declared))
    except (ConfigError, TypeError) as error:
        raise ModelError(f"the object's `columns` are wrong: {error}") from None
    return merge(own, table)


def _max_rows(model: Any) -> int | None:
    value = _attribute(model, "max_rows")
    if value is not None and (not isinstance(value, int) or value < 1):
        raise ModelError("the object's `max_rows` is not a whole number above 0")
    return value


def _files_of(module: str) -> Any:
    file = getattr(sys.modules[module], "__file__", None)
    return files_of(Path(file)) if file else ()
