import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

from tailproof.core.errors import ConfigError, ModelError
from tailproof.models import runtimes
from tailproof.models.columns import Output
from tailproof.models.runtimes.base import LoadedModel
from tailproof.models.runtimes.sklearn import open_estimator
from tailproof.models.source import ModelSpec
from tests.models.conftest import Registry, signature_of, silent, write_mlmodel

RNG = np.random.default_rng(5)
X = pd.DataFrame({"a": RNG.normal(size=90), "b": RNG.normal(size=90)})
TWO = LogisticRegression().fit(X, (X.a - 2 * X.b > 0).astype(int))
THREE = LogisticRegression().fit(X, np.digitize(X.a - 2 * X.b, [-1, 1]))
ROW = {"a": np.array([0.25]), "b": np.array([-0.5])}


def folder_of(folder: Path, estimator: object, signature: dict[str, Any], **mlmodel: Any) -> Path:
    """An MLflow folder with a pickled estimator."""
    flavor = {"pickled_model": "model.pkl", "serialization_format": "pickle"}
    flavors = {"sklearn": flavor, **mlmodel.pop("flavors", {})}
    write_mlmodel(folder, {"flavors": flavors, "signature": signature, **mlmodel})
    (folder / "model.pkl").write_bytes(pickle.dumps(estimator))
    return folder


def load(folder: Path, **settings: Any) -> LoadedModel:
    return runtimes.load(ModelSpec(source=str(folder), name="m", **settings), silent)


def opened(estimator: object, *, own_method: str | None = None, **settings: Any) -> Any:
    spec = ModelSpec(source="models:/m/1", name="m", **settings)
    dtypes = {"a": "float64", "b": "float64"}
    return open_estimator(estimator, spec, dtypes, own_method=own_method)


class TestMethod:
    def test_predict_unless_the_model_says_otherwise(self) -> None:
        found = opened(TWO)
        assert found.parameters == {"method": "predict"}
        expected = TWO.predict(pd.DataFrame(ROW))
        assert found.runtime.predict(ROW, 1)["score"].tolist() == expected.tolist()

    def test_the_models_own_choice(self) -> None:
        found = opened(TWO, own_method="predict_proba")
        assert found.parameters == {"method": "predict_proba", "class_index": 1}

    def test_the_users_choice_comes_before_it(self) -> None:
        found = opened(TWO, own_method="predict_proba", method="decision_function")
        assert found.parameters == {"method": "decision_function"}

    def test_a_method_that_the_model_lacks(self) -> None:
        with pytest.raises(
            ConfigError, match=r"^method = 'predict_proba': this model has predict$"
        ):
            opened(LinearRegression().fit(X, X.a), method="predict_proba")

    def test_a_method_that_is_none_of_ours(self) -> None:
        with pytest.raises(ConfigError, match="this model has predict, predict_proba"):
            opened(TWO, method="fit")


class TestClass:
    """Which column of the probabilities is the answer."""

    def score(self, estimator: Any, **settings: Any) -> Any:
        found = opened(estimator, method="predict_proba", **settings)
        return found.runtime.predict(ROW, 1)["score"]

    def probabilities(self, estimator: Any) -> Any:
        return estimator.predict_proba(pd.DataFrame(ROW))

    def test_of_two_classes_the_second(self) -> None:
        np.testing.assert_array_equal(self.score(TWO), self.probabilities(TWO)[:, 1])

    def test_of_more_all(self) -> None:
        np.testing.assert_array_equal(self.score(THREE), self.probabilities(THREE))
        assert self.score(THREE).shape == (1, 3)

    @pytest.mark.parametrize("index", [0, 1, 2])
    def test_the_one_that_was_asked_for(self, index: int) -> None:
        np.testing.assert_array_equal(
            self.score(THREE, class_index=index), self.probabilities(THREE)[:, index]
        )

    @pytest.mark.parametrize("index", [-1, 3])
    def test_one_that_there_is_not(self, index: int) -> None:
        with pytest.raises(
            ConfigError, match=f"^class = {index}: the model has the classes 0 to 2"
        ):
            self.score(THREE, class_index=index)

    def test_a_method_without_classes(self) -> None:
        with pytest.raises(ConfigError, match="predict has no classes; use predict_proba"):
            opened(TWO, method="predict", class_index=1)


class TestOrder:
    """The order of the keys of a request, and that of the signature, change no answer."""

    def test_the_order_of_arrays_changes_nothing(self) -> None:
        runtime = opened(TWO, method="predict_proba").runtime
        columns = {"a": X.a.to_numpy(), "b": X.b.to_numpy()}
        forward = runtime.predict(columns, len(X))["score"]
        backward = runtime.predict(dict(reversed(columns.items())), len(X))["score"]
        np.testing.assert_array_equal(forward, TWO.predict_proba(X)[:, 1])
        np.testing.assert_array_equal(forward, backward)

    def test_a_signature_in_another_order_than_the_training(self, tmp_path: Path) -> None:
        folder = folder_of(tmp_path, TWO, signature_of(b="double", a="double"))
        loaded = load(folder, method="predict_proba")
        assert [column.name for column in loaded.manifest.signature.inputs] == ["b", "a"]
        columns = {"b": X.b.to_numpy(), "a": X.a.to_numpy()}
        score = loaded.runtime.predict(columns, len(X))["score"]
        np.testing.assert_array_equal(score, TWO.predict_proba(X)[:, 1])

    def test_a_model_that_was_fitted_without_names_takes_the_signatures_order(
        self, tmp_path: Path
    ) -> None:
        nameless = LogisticRegression().fit(X.to_numpy(), (X.a > 0).astype(int))
        folder = folder_of(tmp_path, nameless, signature_of(a="double", b="double"))
        loaded = load(folder, method="predict_proba")
        columns = {"b": X.b.to_numpy(), "a": X.a.to_numpy()}
        score = loaded.runtime.predict(columns, len(X))["score"]
        np.testing.assert_array_equal(score, nameless.predict_proba(X.to_numpy())[:, 1])

    def test_a_matrix_signature_gives_the_model_a_matrix(self, tmp_path: Path) -> None:
        nameless = LogisticRegression().fit(X.to_numpy(), (X.a > 0).astype(int))
        tensor = [{"type": "tensor", "tensor-spec": {"dtype": "float64", "shape": [-1, 2]}}]
        folder = folder_of(tmp_path, nameless, {"inputs": json.dumps(tensor)})
        loaded = load(folder, method="predict_proba")
        columns = {"x1": X.b.to_numpy(), "x0": X.a.to_numpy()}
        score = loaded.runtime.predict(columns, len(X))["score"]
        np.testing.assert_array_equal(score, nameless.predict_proba(X.to_numpy())[:, 1])


def test_strings_and_missing_values_reach_the_pipeline(tmp_path: Path) -> None:
    frame = pd.DataFrame({"kind": ["x", "y", None, "x"] * 9, "n": [1.0, np.nan, 3.0, 4.0] * 9})
    from sklearn.ensemble import HistGradientBoostingRegressor

    encode = make_column_transformer(
        (OneHotEncoder(handle_unknown="ignore", sparse_output=False), ["kind"]),
        remainder="passthrough",
    )
    model = make_pipeline(encode, HistGradientBoostingRegressor(max_iter=3, min_samples_leaf=1))
    model.fit(frame, np.arange(36.0) % 4)
    fields = [
        {"type": "string", "name": "kind", "required": False},
        {"type": "double", "name": "n", "required": False},
    ]
    loaded = load(folder_of(tmp_path, model, {"inputs": json.dumps(fields)}))
    columns: dict[str, Any] = {
        "n": frame.n.to_numpy(),
        "kind": np.array(["x", "y", None, "x"] * 9, dtype=object),
    }
    score = loaded.runtime.predict(columns, 36)["score"]
    np.testing.assert_array_equal(score, model.predict(frame))


def test_the_manifest_is_honest(registry: Registry) -> None:
    import sklearn

    manifest = load(registry.folder).manifest
    assert manifest.engine == f"scikit-learn {sklearn.__version__}"
    assert manifest.runtime == "sklearn"
    assert manifest.parameters == {"method": "predict_proba", "class_index": 1}
    assert manifest.signature.outputs == (Output(name="score", type="float", shape=()),)
    assert {file.path for file in manifest.files} >= {"MLmodel", "model.skops"}
    assert (manifest.version, manifest.alias) == (None, None)
    assert (manifest.training_data, manifest.licence) == (None, None), "nobody declared any here"


def test_facts_in_the_models_metadata_are_told(tmp_path: Path) -> None:
    metadata = {"training_data": "payments of May", "license": "MIT"}
    folder = folder_of(tmp_path, TWO, signature_of(a="double", b="double"), metadata=metadata)
    manifest = load(folder).manifest
    assert (manifest.training_data, manifest.licence) == ("payments of May", "MIT")


def test_outputs_are_those_that_the_model_gave(tmp_path: Path) -> None:
    labels = LogisticRegression().fit(X, np.where(X.a > 0, "yes", "no"))
    folder = folder_of(tmp_path, labels, signature_of(a="double", b="double"))
    assert load(folder).manifest.signature.outputs == (Output(name="score", type="string"),)
    outputs = load(folder, method="predict_log_proba").manifest.signature.outputs
    assert outputs == (Output(name="score", type="float"),)


def test_the_example_is_the_models_own(tmp_path: Path) -> None:
    (tmp_path / "example.json").write_text('{"columns": ["b", "a"], "data": [[2, 1]]}')
    folder = folder_of(
        tmp_path,
        TWO,
        signature_of(a="double", b="double"),
        saved_input_example_info={"artifact_path": "example.json"},
    )
    example = load(folder).example
    assert {name: array.tolist() for name, array in example.items()} == {"a": [1.0], "b": [2.0]}


def test_an_example_of_the_wrong_types_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "example.json").write_text('{"columns": ["a", "b"], "data": [["x", 1]]}')
    folder = folder_of(
        tmp_path,
        TWO,
        signature_of(a="double", b="double"),
        saved_input_example_info={"artifact_path": "example.json"},
    )
    assert load(folder).example["a"].tolist() == [1.0]


class TestFailures:
    def test_a_model_that_cannot_compute_its_example(self, tmp_path: Path) -> None:
        folder = folder_of(tmp_path, TWO, signature_of(a="double", c="double"))
        with pytest.raises(ModelError, match="the model raised ValueError on its example row"):
            load(folder)

    def test_a_column_for_which_no_example_can_be_made(self, tmp_path: Path) -> None:
        folder = folder_of(tmp_path, TWO, signature_of(a="string", b="double"))
        table = ({"name": "a", "pattern": "(?=x)y"},)
        with pytest.raises(ModelError, match="no example can be made for the column 'a'"):
            load(folder, columns=table)

    @pytest.mark.parametrize(
        ("data", "problem"),
        [
            (b"", "reading the model raised EOFError"),
            (b"cno_such_module\nX\n.", "needs the module no_such_module"),
            (b"not a pickle", "reading the model raised"),
        ],
    )
    def test_a_file_that_cannot_be_read(self, tmp_path: Path, data: bytes, problem: str) -> None:
        folder = folder_of(tmp_path, TWO, signature_of(a="double", b="double"))
        (folder / "model.pkl").write_bytes(data)
        with pytest.raises(ModelError, match=problem):
            load(folder)

    def test_a_format_that_nobody_knows(self, tmp_path: Path) -> None:
        flavor = {"sklearn": {"pickled_model": "model.pkl", "serialization_format": "joblib"}}
        signature = signature_of(a="double", b="double")
        folder = folder_of(tmp_path, TWO, signature, flavors=flavor)
        with pytest.raises(ModelError, match="in the format joblib"):
            load(folder)

    def test_a_wrong_table(self, tmp_path: Path) -> None:
        folder = folder_of(tmp_path, TWO, signature_of(a="double", b="double"))
        with pytest.raises(ConfigError, match=r"^columns\.a\.type"):
            load(folder, columns=({"name": "a", "type": "int"},))


def test_code_that_lies_beside_the_model_can_be_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "beside_the_model.py").write_text(
        "class Constant:\n    def predict(self, frame):\n        return frame['a'] * 0 + 42\n"
    )
    flavor = {"pickled_model": "model.pkl", "serialization_format": "pickle", "code": "code"}
    signature = signature_of(a="double", b="double")
    folder = folder_of(tmp_path, TWO, signature, flavors={"sklearn": flavor})
    (folder / "model.pkl").write_bytes(b"cbeside_the_model\nConstant\n)\x81.")
    loaded = load(folder)
    assert np.asarray(loaded.runtime.predict(ROW, 1)["score"]).tolist() == [42.0]


def test_an_environment_without_skops_names_the_extra(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    for name in [name for name in sys.modules if name.partition(".")[0] == "skops"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "skops", None)
    with pytest.raises(ModelError, match=r"pip install 'tailproof\[sklearn\]'"):
        load(registry.folder)
