from pathlib import Path

import pytest

from tailproof.core.errors import ModelError
from tailproof.models.registry import import_mlflow, resolve
from tailproof.models.source import Registered
from tests.models.conftest import Registry, Serve, silent, write_mlmodel


def test_an_alias_leads_to_the_files_where_they_lie(registry: Registry) -> None:
    stages: list[str] = []
    found = resolve(
        Registered("fraud-model", alias="champion"), registry.tracking_uri, stages.append
    )
    assert found.folder.samefile(registry.folder)
    assert (found.version, found.alias, found.over_network) == ("1", "champion", False)
    assert found.licence == "Apache-2.0"
    assert found.training_data is not None
    assert "generated payments" in found.training_data
    assert found.download is None
    assert stages == ["importing", "resolving", "reading"]


def test_a_version_has_no_alias_unless_it_was_asked_for_by_it(registry: Registry) -> None:
    found = resolve(Registered("fraud-model", version="1"), registry.tracking_uri, silent)
    assert found.folder.samefile(registry.folder)
    assert (found.version, found.alias) == ("1", None)


def test_without_a_tracking_uri_mlflows_own_setting_counts(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    import_mlflow()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", registry.tracking_uri)
    found = resolve(Registered("fraud-model", alias="champion"), None, silent)
    assert found.folder.samefile(registry.folder)


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        (
            Registered("fraud-model", alias="challenger"),
            "model 'fraud-model' has no alias 'challenger'; its aliases: champion",
        ),
        (
            Registered("fraud-model", version="99"),
            "model 'fraud-model' has no version 99; its versions: 1",
        ),
        (Registered("fraud", alias="champion"), "the registry has no model 'fraud'; its models: "),
        (Registered("fraud", version="1"), "the registry has no model 'fraud'; its models: "),
        (Registered("it's", version="1"), 'the registry has no model "it\'s"; its models: '),
    ],
)
def test_what_is_missing_is_told_with_what_is_there(
    registry: Registry, source: Registered, problem: str
) -> None:
    with pytest.raises(ModelError) as caught:
        resolve(source, registry.tracking_uri, silent)
    assert str(caught.value).startswith(problem)
    if "its models" in problem:
        assert "fraud-model" in str(caught.value).partition("its models: ")[2]


def test_a_model_without_aliases_says_so(registry: Registry, tmp_path: Path) -> None:
    registry.register("plain", write_mlmodel(tmp_path, {"flavors": {}}).as_uri())
    with pytest.raises(ModelError, match="no alias 'x'; its aliases: none"):
        resolve(Registered("plain", alias="x"), registry.tracking_uri, silent)


def test_a_database_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    database = tmp_path / "none.db"
    with pytest.raises(ModelError, match=r"MLflow database does not exist: set --tracking-uri"):
        resolve(Registered("m", version="1"), f"sqlite:///{database}", silent)
    assert not database.exists()


def test_files_that_are_gone_are_a_model_error(registry: Registry, tmp_path: Path) -> None:
    version = registry.register("gone", (tmp_path / "gone").as_uri())
    with pytest.raises(ModelError, match="cannot be fetched"):
        resolve(Registered("gone", version=version), registry.tracking_uri, silent)


def test_a_server_that_nobody_runs_is_a_model_error(
    free_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with pytest.raises(ModelError, match="the MLflow registry did not answer as expected"):
        resolve(Registered("m", version="1"), f"http://127.0.0.1:{free_port}", silent)


def test_a_download_is_private_and_goes_away(registry: Registry, serve_folder: Serve) -> None:
    version = registry.register("remote", serve_folder(registry.folder))
    found = resolve(Registered("remote", version=version), registry.tracking_uri, silent)
    assert found.over_network
    assert found.download is not None
    assert found.folder.is_relative_to(found.download.name)
    assert Path(found.download.name).stat().st_mode & 0o077 == 0
    assert (found.folder / "MLmodel").read_bytes() == (registry.folder / "MLmodel").read_bytes()
    found.discard()
    assert not found.folder.exists()


class TestFacts:
    """Training data and licence: tags of the version, else of the model, else of the run."""

    def facts(self, registry: Registry, name: str) -> tuple[str | None, str | None]:
        found = resolve(Registered(name, version="1"), registry.tracking_uri, silent)
        return found.training_data, found.licence

    def test_nothing_is_invented(self, registry: Registry, tmp_path: Path) -> None:
        registry.register("bare", write_mlmodel(tmp_path, {"flavors": {}}).as_uri())
        assert self.facts(registry, "bare") == (None, None)

    def test_the_versions_tag_before_the_models(self, registry: Registry, tmp_path: Path) -> None:
        registry.register("tagged", write_mlmodel(tmp_path, {"flavors": {}}).as_uri())
        client = registry.client()
        client.set_registered_model_tag("tagged", "training_data", "of the model")
        client.set_registered_model_tag("tagged", "license", "MIT")
        assert self.facts(registry, "tagged") == ("of the model", "MIT")
        client.set_model_version_tag("tagged", "1", "training_data", "of the version")
        assert self.facts(registry, "tagged") == ("of the version", "MIT")

    def test_the_run_comes_last(self, registry: Registry, tmp_path: Path) -> None:
        location = write_mlmodel(tmp_path, {"flavors": {}}).as_uri()
        client = registry.client()
        run = client.create_run(client.get_experiment_by_name("fraud-model").experiment_id)
        client.log_param(run.info.run_id, "training_data", "payments of May")
        client.create_registered_model("of-a-run")
        client.create_model_version("of-a-run", location, run_id=run.info.run_id)
        assert self.facts(registry, "of-a-run") == ("payments of May", None)

    def test_a_dataset_that_was_logged_for_training_is_training_data(
        self, registry: Registry, tmp_path: Path
    ) -> None:
        from mlflow.entities import Dataset, DatasetInput, InputTag

        location = write_mlmodel(tmp_path, {"flavors": {}}).as_uri()
        client = registry.client()
        run = client.create_run(client.get_experiment_by_name("fraud-model").experiment_id)
        datasets = [
            DatasetInput(
                Dataset(name, "1", "code", "{}"), [InputTag("mlflow.data.context", context)]
            )
            for name, context in (("payments", "training"), ("held-out", "evaluation"))
        ]
        client.log_inputs(run.info.run_id, datasets)
        client.create_registered_model("of-a-dataset")
        client.create_model_version("of-a-dataset", location, run_id=run.info.run_id)
        assert self.facts(registry, "of-a-dataset") == ("payments", None)
