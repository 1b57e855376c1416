"""A pickle is loaded when it lies on this disk or was vouched for, and never otherwise.

The canary is a file that the pickle makes when it is loaded: it tells whether code ran.
"""

import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import skops.io
from sklearn.preprocessing import FunctionTransformer
from sklearn.tree import DecisionTreeClassifier

from tailproof.core.errors import ConfigError, ModelError, UntrustedModel
from tailproof.models import mlmodel, runtimes
from tailproof.models.manifest import digest, files_of
from tailproof.models.source import ModelSpec
from tailproof.models.trust import (
    ALLOWED_TYPES,
    check_network_model,
    is_on_this_disk,
    skops_file,
    untrusted_types,
)
from tests.models.conftest import Registry, Serve, signature_of, silent, write_mlmodel

UNKNOWN = "sha256:" + "0" * 64


def doubled(values: Any) -> Any:
    """A function of the model's author: skops does not know it."""
    return values * 2


class Planted:
    """Pickles as a call that makes the canary and returns a classifier that works."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[Callable[[str], Any], tuple[str]]:
        code = (
            f"(__import__('pathlib').Path({str(self.canary)!r}).touch(), "
            "__import__('sklearn.dummy', fromlist=['x']).DummyClassifier()"
            ".fit([[0.0], [1.0]], [0, 1]))[1]"
        )
        return eval, (code,)


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    return tmp_path / "canary"


@pytest.fixture
def pickled(tmp_path: Path, canary: Path) -> Path:
    """The MLflow folder of a pickled scikit-learn model that runs code when it is loaded."""
    flavor = {"pickled_model": "model.pkl", "serialization_format": "cloudpickle", "code": None}
    folder = write_mlmodel(
        tmp_path / "pickled",
        {"flavors": {"sklearn": flavor}, "signature": signature_of(x="double")},
    )
    (folder / "model.pkl").write_bytes(pickle.dumps(Planted(canary)))
    return folder


def skops_folder(folder: Path, estimator: object, claimed: list[str]) -> Path:
    """The MLflow folder of a skops model that claims that some types are to be trusted."""
    flavor = {
        "pickled_model": "model.skops",
        "serialization_format": "skops",
        "skops_trusted_types": claimed,
    }
    write_mlmodel(folder, {"flavors": {"sklearn": flavor}, "signature": signature_of(x="double")})
    skops.io.dump(estimator, folder / "model.skops")
    return folder


@pytest.mark.parametrize(
    "uri",
    [
        "/models/fraud",
        "models/fraud",
        "./mlruns",
        "file:///models/fraud",
        "file:/models/fraud",
        "file://localhost/models/fraud",
        "sqlite:///mlflow.db",
        "sqlite:////data/mlflow.db",
        "sqlite+pysqlite:////data/mlflow.db",
        "FILE:///models/fraud",
    ],
)
def test_uris_on_this_disk(uri: str) -> None:
    assert is_on_this_disk(uri)


@pytest.mark.parametrize(
    "uri",
    [
        "http://127.0.0.1:5000",
        "https://mlflow.example.com",
        "mlflow-artifacts:/1/models/m-1/artifacts",
        "s3://bucket/model",
        "file://fileserver/models/fraud",
        "//fileserver/models/fraud",
        "sqlite://host/x.db",
        "postgresql://localhost/mlflow",
        "databricks",
        "databricks-uc",
        "uc:http://localhost",
        "models:/fraud/1",
        "c:relative",
    ],
)
def test_uris_that_lead_elsewhere(uri: str) -> None:
    assert not is_on_this_disk(uri)


class TestOverTheNetwork:
    """The files come over HTTP, with MLflow's own client, from a server on loopback."""

    def spec(self, registry: Registry, name: str, uri: str, *trust: str) -> ModelSpec:
        version = registry.register(name, uri)
        return ModelSpec(
            source=f"models:/{name}/{version}",
            name=name,
            tracking_uri=registry.tracking_uri,
            trust=trust,
        )

    def test_a_pickle_is_refused_before_any_of_it_runs(
        self, registry: Registry, serve_folder: Serve, pickled: Path, canary: Path
    ) -> None:
        spec = self.spec(registry, "pickled", serve_folder(pickled), UNKNOWN)
        with pytest.raises(UntrustedModel) as caught:
            runtimes.load(spec, silent)
        assert f"--trust {digest(files_of(pickled))}" in str(caught.value)
        assert "a pickle" in str(caught.value)
        assert not canary.exists()

    def test_the_digest_that_the_refusal_names_lets_it_in(
        self, registry: Registry, serve_folder: Serve, pickled: Path, canary: Path
    ) -> None:
        trusted = digest(files_of(pickled))
        spec = self.spec(registry, "pickled", serve_folder(pickled), UNKNOWN, trusted)
        loaded = runtimes.load(spec, silent)
        assert canary.exists(), "the control: this pickle does run code"
        assert digest(loaded.manifest.files) == trusted

    def test_one_changed_byte_needs_a_new_digest(
        self, registry: Registry, serve_folder: Serve, pickled: Path, canary: Path
    ) -> None:
        trusted = digest(files_of(pickled))
        with (pickled / "model.pkl").open("ab") as file:
            file.write(b"\0")
        with pytest.raises(UntrustedModel):
            runtimes.load(self.spec(registry, "pickled", serve_folder(pickled), trusted), silent)
        assert not canary.exists()

    def test_scikit_learns_own_types_in_skops_format_need_no_digest(
        self, registry: Registry, serve_folder: Serve
    ) -> None:
        spec = self.spec(registry, "over-http", serve_folder(registry.folder))
        loaded = runtimes.load(spec, silent)
        assert loaded.manifest.version == "1"
        assert loaded.manifest.files == files_of(registry.folder)
        assert loaded.runtime.predict(loaded.example, 1)["score"].shape == (1,)

    def test_a_registry_elsewhere_that_names_a_local_path_is_still_elsewhere(
        self,
        registry: Registry,
        pickled: Path,
        canary: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        # As if the registry itself were reached over HTTP: only the artifacts are on this disk.
        from tailproof.models import registry as module

        def is_local(uri: str) -> bool:
            return not uri.startswith("sqlite") and is_on_this_disk(uri)

        spec = self.spec(registry, "pickled", pickled.as_uri())
        monkeypatch.setattr(module, "is_on_this_disk", is_local)
        with pytest.raises(UntrustedModel):
            runtimes.load(spec, silent)
        assert not canary.exists()


class TestOnThisDisk:
    def test_a_pickle_in_a_folder_is_loaded(self, pickled: Path, canary: Path) -> None:
        runtimes.load(ModelSpec(source=str(pickled), name="m"), silent)
        assert canary.exists()

    def test_a_pickle_in_a_local_registry_is_loaded(
        self, registry: Registry, pickled: Path, canary: Path
    ) -> None:
        version = registry.register("local", pickled.as_uri())
        source = f"models:/local/{version}"
        spec = ModelSpec(source=source, name="m", tracking_uri=registry.tracking_uri)
        runtimes.load(spec, silent)
        assert canary.exists()

    def test_mlflows_own_switch_against_pickles_is_heeded(
        self, pickled: Path, canary: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("MLFLOW_ALLOW_PICKLE_DESERIALIZATION", "false")
        with pytest.raises(UntrustedModel, match="MLFLOW_ALLOW_PICKLE_DESERIALIZATION"):
            runtimes.load(ModelSpec(source=str(pickled), name="m"), silent)
        assert not canary.exists()

    def test_a_pickle_that_is_called_skops_is_not_unpickled(
        self, pickled: Path, canary: Path
    ) -> None:
        flavor = {"pickled_model": "model.pkl", "serialization_format": "skops"}
        content = {"flavors": {"sklearn": flavor}, "signature": signature_of(x="double")}
        write_mlmodel(pickled, content)
        with pytest.raises(ModelError, match="the skops file cannot be read"):
            runtimes.load(ModelSpec(source=str(pickled), name="m"), silent)
        assert not canary.exists()


class TestSkopsTypes:
    def test_what_the_model_itself_claims_counts_for_nothing(self, tmp_path: Path) -> None:
        own = f"{__name__}.doubled"
        folder = skops_folder(tmp_path, FunctionTransformer(doubled), [own])
        model = mlmodel.read(folder)
        with pytest.raises(UntrustedModel, match=f"such as {own}"):
            check_network_model(model, UNKNOWN, ())

    def test_a_digest_vouches_for_them(self, tmp_path: Path) -> None:
        folder = skops_folder(tmp_path, FunctionTransformer(doubled), [])
        assert check_network_model(mlmodel.read(folder), UNKNOWN, (UNKNOWN,))

    def test_trees_are_allowed_but_not_vouched_for(self, tmp_path: Path) -> None:
        tree = DecisionTreeClassifier().fit([[0.0], [1.0]], [0, 1])
        model = mlmodel.read(skops_folder(tmp_path, tree, []))
        path = skops_file(model)
        assert path is not None
        assert untrusted_types(path) == ["sklearn.tree._tree.Tree"]
        assert not check_network_model(model, UNKNOWN, ())

    def test_the_allowed_types_exist(self) -> None:
        from importlib import import_module

        for name in ALLOWED_TYPES:
            module, _, attribute = name.rpartition(".")
            assert module.startswith("sklearn.")
            assert isinstance(getattr(import_module(module), attribute), type)

    @pytest.mark.parametrize("flavor", ["python_function", "xgboost"])
    def test_other_flavors_need_a_digest(self, tmp_path: Path, flavor: str) -> None:
        model = mlmodel.read(write_mlmodel(tmp_path, {"flavors": {flavor: {}}}))
        with pytest.raises(UntrustedModel, match="no scikit-learn model in skops format"):
            check_network_model(model, UNKNOWN, ())

    def test_a_file_outside_of_the_folder_is_not_read(self, tmp_path: Path) -> None:
        folder = skops_folder(tmp_path / "m", FunctionTransformer(), [])
        shutil.move(folder / "model.skops", tmp_path / "model.skops")
        flavor = {"pickled_model": "../model.skops", "serialization_format": "skops"}
        write_mlmodel(folder, {"flavors": {"sklearn": flavor}})
        with pytest.raises(ModelError, match="outside of its folder"):
            check_network_model(mlmodel.read(folder), UNKNOWN, ())


def test_a_trust_value_that_is_no_digest_is_a_config_error(pickled: Path, canary: Path) -> None:
    spec = ModelSpec(source=str(pickled), name="m", trust=("sha256:abc",))
    with pytest.raises(ConfigError, match=r"^trust = 'sha256:abc'"):
        runtimes.load(spec, silent)
    assert not canary.exists()
