"""MLflow models: from a registry or a folder, checked, then opened by the engine that fits."""

import atexit
from contextlib import ExitStack
from importlib.util import find_spec

from tailproof.models import mlmodel, registry
from tailproof.models.columns import Signature
from tailproof.models.constraints import table_of
from tailproof.models.extras import need
from tailproof.models.manifest import Manifest, digest, files_of
from tailproof.models.mlmodel import MLmodel
from tailproof.models.registry import Resolved
from tailproof.models.runtimes.base import LoadedModel, Progress
from tailproof.models.runtimes.loaded import Opened, example_columns, with_outputs
from tailproof.models.source import Folder, ModelSpec, Registered, check_trust, parse
from tailproof.models.trust import check_network_model


def load(spec: ModelSpec, progress: Progress) -> LoadedModel:
    """A registered version or a folder. Raises ModelError and ConfigError."""
    check_trust(spec.trust)
    resolved = _resolved(spec, progress)
    with ExitStack() as stack:
        stack.callback(resolved.discard)
        loaded = _loaded(resolved, spec, progress)
        if loaded.manifest.runtime != "sklearn":  # its own code may read its files at any time
            atexit.register(stack.pop_all().close)
    return loaded


def _loaded(resolved: Resolved, spec: ModelSpec, progress: Progress) -> LoadedModel:
    model = mlmodel.read(resolved.folder)
    files = files_of(resolved.folder)
    is_vouched = not resolved.over_network or check_network_model(model, digest(files), spec.trust)
    signature = model.signature(table_of(spec.columns), table_of(spec.class_columns))
    opened = _opened(model, spec, signature, progress, is_vouched=is_vouched)
    example = example_columns(signature, model.example())
    manifest = Manifest(
        name=spec.name,
        source=spec.source,
        runtime=opened.kind,
        signature=with_outputs(signature, opened.runtime, example),
        version=resolved.version,
        alias=resolved.alias,
        engine=opened.engine,
        files=files,
        parameters=opened.parameters,
        training_data=resolved.training_data or model.declared_fact("training_data"),
        licence=resolved.licence or model.declared_fact("licence", "license"),
    )
    return LoadedModel(opened.runtime, manifest, example)


def _resolved(spec: ModelSpec, progress: Progress) -> Resolved:
    source = parse(spec.source)
    if isinstance(source, Folder):
        return Resolved(folder=source.path, over_network=False)
    assert isinstance(source, Registered)
    _import_first(progress)
    return registry.resolve(source, spec.tracking_uri, progress)


def _import_first(progress: Progress) -> None:
    """The likely engine, before MLflow is there: importing skops searches every loaded module,
    and takes 0.3 s before but more than 1 s after MLflow has loaded 2,000 of them."""
    if find_spec("sklearn") is None or find_spec("skops") is None:
        return
    from tailproof.models.runtimes import sklearn  # noqa: PLC0415

    progress("importing")
    sklearn.import_sklearn()
    need("skops.io")


def _opened(
    model: MLmodel, spec: ModelSpec, signature: Signature, progress: Progress, *, is_vouched: bool
) -> Opened:
    if "sklearn" in model.flavors:
        from tailproof.models.runtimes import sklearn  # noqa: PLC0415

        return sklearn.open_folder(model, spec, signature, progress, is_vouched=is_vouched)
    from tailproof.models.runtimes import mlflow  # noqa: PLC0415

    assert is_vouched, "trust.check_network_model lets only scikit-learn through"
    return mlflow.open_folder(model, spec, signature, progress)
