"""From `models:/name@alias` to a folder on this disk. Runs in the worker; MLflow comes late."""

import logging
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from tailproof.core.errors import ModelError
from tailproof.models.extras import need
from tailproof.models.runtimes.base import Progress
from tailproof.models.source import Registered
from tailproof.models.trust import is_on_this_disk

_MOST_LISTED = 20
_MISSING = "RESOURCE_DOES_NOT_EXIST"


@dataclass(frozen=True, slots=True)
class Resolved:
    """A model version, as files. The facts are what the registry declares, else None."""

    folder: Path
    over_network: bool
    """The registry or the files are not on this disk: see `trust`."""
    version: str | None = None
    alias: str | None = None
    training_data: str | None = None
    licence: str | None = None
    download: tempfile.TemporaryDirectory[str] | None = None

    def discard(self) -> None:
        """Remove the download, if there was one."""
        if self.download is not None:
            self.download.cleanup()


def resolve(source: Registered, tracking_uri: str | None, progress: Progress) -> Resolved:
    """Find the version in the MLflow registry and bring its files onto this disk.

    `tracking_uri` is tracking server and registry; None leaves both to MLflow's environment.
    Raises ModelError in one sentence that says what exists when something does not.
    """
    progress("importing")
    mlflow = import_mlflow()
    tracking = tracking_uri or mlflow.get_tracking_uri()
    registry = tracking_uri or mlflow.get_registry_uri()
    for uri in {tracking, registry}:
        _check_database(uri)
    progress("resolving")
    try:
        client = mlflow.MlflowClient(tracking_uri=tracking, registry_uri=registry)
        version = _version_of(client, source)
        location = _location_of(client, source.name, str(version.version))
        facts = _facts_of(client, version)
    except mlflow.MlflowException as error:
        raise ModelError(_unreachable(error)) from None
    over_network = not all(map(is_on_this_disk, (tracking, registry, location)))
    progress("downloading" if over_network else "reading")
    folder, download = _files(mlflow, location, tracking)
    return Resolved(
        folder=folder,
        over_network=over_network,
        version=str(version.version),
        alias=source.alias,
        training_data=facts.get("training_data"),
        licence=facts.get("licence") or facts.get("license"),
        download=download,
    )


def import_mlflow() -> Any:
    """MLflow without its usage reports, its chatter, and its minutes of retries.

    Each can be had back through MLflow's own environment variables. Raises ModelError naming the
    extra when MLflow is not installed.
    """
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.ERROR)
    return need("mlflow")


def _check_database(uri: str) -> None:
    """MLflow would create the database that it does not find, and then lack the model in it."""
    parts = urlsplit(uri)
    if parts.scheme.partition("+")[0] != "sqlite" or parts.path in ("", "/", "/:memory:"):
        return
    if not Path(unquote(parts.path.removeprefix("/"))).is_file():
        raise ModelError(
            "the tracking URI's MLflow database does not exist: set --tracking-uri, "
            "or MLFLOW_TRACKING_URI, to the one that knows the model"
        )


def _version_of(client: Any, source: Registered) -> Any:
    mlflow = need("mlflow")
    try:
        if source.alias is not None:
            return client.get_model_version_by_alias(source.name, source.alias)
        return client.get_model_version(source.name, source.version)
    except mlflow.MlflowException as error:
        if error.error_code not in (_MISSING, "INVALID_PARAMETER_VALUE"):
            raise
        raise ModelError(_what_exists(client, source)) from None


def _what_exists(client: Any, source: Registered) -> str:
    """The sentence for a model, alias or version that is not there."""
    mlflow = need("mlflow")
    name = source.name
    try:
        model = client.get_registered_model(name)
    except mlflow.MlflowException as error:
        if error.error_code != _MISSING:
            raise
        models = client.search_registered_models(max_results=_MOST_LISTED)
        names = _listed(model.name for model in models)
        return f"the registry has no model {name!r}; its models: {names}"
    if source.alias is not None:
        aliases = _listed(sorted(model.aliases))
        return f"model {name!r} has no alias {source.alias!r}; its aliases: {aliases}"
    versions = client.search_model_versions(f"name = '{name}'", max_results=_MOST_LISTED)
    numbers = sorted(int(version.version) for version in versions)
    listed = _listed(map(str, numbers))
    return f"model {name!r} has no version {source.version}; its versions: {listed}"


def _listed(names: Any) -> str:
    found = list(names)
    more = ", ..." if len(found) >= _MOST_LISTED else ""
    return ", ".join(found) + more if found else "none"


def _unreachable(error: Any) -> str:
    """MLflow's own messages hold paths and whole answers of servers; its code says enough."""
    if "out-of-date database schema" in str(error):
        return "the MLflow database is of an older MLflow: run `mlflow db upgrade` on it"
    return f"the MLflow registry did not answer as expected ({error.error_code})"


def _location_of(client: Any, name: str, version: str) -> str:
    """Where the files are. Registries answer with a link to a logged model or a run at times."""
    location: str = client.get_model_version_download_uri(name, version)
    scheme, _, rest = location.partition(":/")
    if scheme == "models" and "/" not in rest.strip("/"):
        logged: str = client.get_logged_model(rest.strip("/")).artifact_location
        return logged
    if scheme == "runs":
        run_id, _, path = rest.strip("/").partition("/")
        return f"{client.get_run(run_id).info.artifact_uri}/{path}"
    return location


def _facts_of(client: Any, version: Any) -> dict[str, str]:
    """Tags of the version, else of the model, else tags and parameters of the run."""
    facts: dict[str, str] = {}
    model = client.get_registered_model(version.name)
    for tags in (version.tags, model.tags):
        facts = {**dict(tags or {}), **facts}
    is_complete = facts.get("training_data") and (facts.get("licence") or facts.get("license"))
    if version.run_id and not is_complete:
        facts = {**_run_facts(client, version.run_id), **facts}
    return facts


def _run_facts(client: Any, run_id: str) -> dict[str, str]:
    mlflow = need("mlflow")
    try:
        run = client.get_run(run_id)
    except mlflow.MlflowException:
        return {}  # runs are deleted, and a version outlives its run
    inputs = run.inputs.dataset_inputs if run.inputs else []
    names = [item.dataset.name for item in inputs if _is_training(item)]
    logged = {"training_data": ", ".join(names)} if names else {}
    return {**logged, **run.data.params, **run.data.tags}


def _is_training(item: Any) -> bool:
    return any(tag.key == "mlflow.data.context" and tag.value == "training" for tag in item.tags)


def _files(
    mlflow: Any, location: str, tracking: str
) -> tuple[Path, tempfile.TemporaryDirectory[str] | None]:
    """The folder: in place when it is on this disk, else a private copy of it."""
    if is_on_this_disk(location):
        return _fetched(mlflow, location, tracking, None), None
    download = tempfile.TemporaryDirectory(prefix="tailproof-")
    try:
        return _fetched(mlflow, location, tracking, download.name), download
    except ModelError:
        download.cleanup()
        raise


def _fetched(mlflow: Any, location: str, tracking: str, target: str | None) -> Path:
    try:
        path = mlflow.artifacts.download_artifacts(
            artifact_uri=location, dst_path=target, tracking_uri=tracking
        )
    except (mlflow.MlflowException, OSError) as error:
        raise ModelError(
            f"the files of the registered version cannot be fetched ({type(error).__name__})"
        ) from None
    return Path(path)
