"""The runtimes: one file per engine behind the interface in `base`. Imported in workers only."""

from tailproof.models.runtimes.base import LoadedModel, Loader, Progress
from tailproof.models.source import Demo, Fake, Folder, ModelSpec, PythonObject, Registered, parse


def load(spec: ModelSpec, progress: Progress) -> LoadedModel:
    """Load whatever `spec.source` names; only the engine that it needs is imported.

    Raises ConfigError for a wrong source or setting, ModelError when the model cannot be found,
    trusted or loaded.
    """
    return _loader_of(spec.source)(spec, progress)


def _loader_of(source: str) -> Loader:
    # ruff: noqa: PLC0415  an engine is imported when it is wanted
    match parse(source):
        case Fake():
            from tailproof.models.runtimes.fake import load as loader
        case Registered() | Folder():
            from tailproof.models.runtimes.folder import load as loader
        case PythonObject():
            from tailproof.models.runtimes.python import load as loader
        case Demo():
            from tailproof.models.demo import load as loader
    return loader
