from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tailproof.core.errors import ConfigError, ModelError
from tailproof.models import runtimes
from tailproof.models.columns import Output
from tailproof.models.registry import import_mlflow
from tailproof.models.runtimes.base import LoadedModel
from tailproof.models.source import ModelSpec
from tests.models.conftest import Registry, Serve, signature_of, silent, write_mlmodel


def folder_of(folder: Path, predict: str, signature: dict[str, Any], *, before: str = "") -> Path:
    """A pyfunc folder whose own code computes `predict` from `frame`, after `before`."""
    module = f"loader_{abs(hash((str(folder), predict)))}"
    flavor = {"loader_module": module, "code": "code", "data": "data", "env": None}
    write_mlmodel(folder, {"flavors": {"python_function": flavor}, "signature": signature})
    (folder / "code").mkdir()
    (folder / "data").write_text("41", "utf-8")
    lines = [
        "import numpy, pandas",
        "from pathlib import Path",
        before,
        "class Model:",
        "    def __init__(self, path):",
        "        self.path = Path(path)",
        "    def predict(self, frame):",
        f"        return {predict}",
        "def _load_pyfunc(path):",
        "    return Model(path)",
    ]
    (folder / "code" / f"{module}.py").write_text("\n".join(lines), "utf-8")
    return folder


@pytest.fixture(autouse=True)
def _own_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """MLflow adds a model's code to the import path and leaves it there."""
    import sys

    monkeypatch.setattr(sys, "path", list(sys.path))


def load(folder: Path, **settings: Any) -> LoadedModel:
    return runtimes.load(ModelSpec(source=str(folder), name="m", **settings), silent)


def score_of(loaded: LoadedModel, **columns: Any) -> Any:
    arrays = {name: np.array(values) for name, values in columns.items()}
    num_rows = len(next(iter(arrays.values())))
    return loaded.runtime.predict(arrays, num_rows)["score"]


AB = signature_of(a="double", b="long")


def test_a_frame_in_the_signatures_order_with_its_dtypes(tmp_path: Path) -> None:
    predict = "frame.iloc[:, 0] * 10 + frame.iloc[:, 1] + (frame.b.dtype != 'int64') * 1000"
    loaded = load(folder_of(tmp_path, predict, AB))
    assert score_of(loaded, b=[1, 2], a=[0.5, 0.25]).tolist() == [6.0, 4.5]


def test_small_types_are_given_as_the_model_declares_them(tmp_path: Path) -> None:
    signature = signature_of(a="float", n="integer", s="string", f="boolean")
    predict = "numpy.array([' '.join(map(str, frame.dtypes[['a', 'n', 'f']]))] * len(frame))"
    loaded = load(folder_of(tmp_path, predict, signature))
    columns: dict[str, Any] = {"a": [0.5], "n": [1], "f": [True]}
    (dtypes,) = score_of(loaded, **columns, s=np.array(["x"], dtype=object))
    assert dtypes == "float32 int32 bool"


def test_the_manifest_says_what_computes(tmp_path: Path) -> None:
    manifest = load(folder_of(tmp_path, "frame.a", AB)).manifest
    assert manifest.runtime == "mlflow"
    assert manifest.engine == f"MLflow pyfunc {import_mlflow().__version__}"
    assert manifest.parameters["method"] == "predict"
    assert manifest.signature.outputs == (Output(name="score", type="float"),)


@pytest.mark.parametrize(
    ("predict", "outputs"),
    [
        ("frame.a.to_numpy()", {"score": [0.5, 1.5]}),
        ("frame.a", {"score": [0.5, 1.5]}),
        ("list(frame.a)", {"score": [0.5, 1.5]}),
        ("frame[['a', 'b']]", {"a": [0.5, 1.5], "b": [1, 2]}),
        ("{'x': frame.a.to_numpy(), 'y': frame.b}", {"x": [0.5, 1.5], "y": [1, 2]}),
    ],
)
def test_every_kind_of_result_becomes_named_arrays(
    tmp_path: Path, predict: str, outputs: dict[str, list[float]]
) -> None:
    loaded = load(folder_of(tmp_path, predict, AB))
    columns = {"a": np.array([0.5, 1.5]), "b": np.array([1, 2])}
    result = loaded.runtime.predict(columns, 2)
    assert {name: array.tolist() for name, array in result.items()} == outputs


def test_one_column_of_several_answers(tmp_path: Path) -> None:
    predict = "numpy.column_stack([frame.a, -frame.a, frame.a * 2])"
    folder = folder_of(tmp_path, predict, AB)
    assert score_of(load(folder, class_index=2), a=[1.0], b=[0]).tolist() == [2.0]
    assert score_of(load(folder), a=[1.0], b=[0]).shape == (1, 3)


def test_a_wrong_number_of_answers_is_an_error(tmp_path: Path) -> None:
    loaded = load(folder_of(tmp_path, "frame.a.to_numpy()[:1]", AB))
    with pytest.raises(ValueError, match="expected 2 rows"):
        score_of(loaded, a=[1.0, 2.0], b=[0, 1])


def test_a_method_is_pyfuncs_own_to_choose(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "frame.a", AB)
    with pytest.raises(ConfigError, match="a pyfunc model has only predict"):
        load(folder, method="predict_proba")


def test_a_folder_without_pyfunc(tmp_path: Path) -> None:
    folder = write_mlmodel(tmp_path, {"flavors": {"xgboost": {}}, "signature": AB})
    with pytest.raises(ModelError, match="no python_function flavor; it has xgboost"):
        load(folder)


def test_a_module_that_is_not_installed_is_named(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "frame.a", AB, before="import no_such_engine")
    with pytest.raises(ModelError, match="needs the module no_such_engine"):
        load(folder)


def test_code_that_raises_is_a_model_error(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "frame.a", AB, before="1 / 0")
    with pytest.raises(ModelError, match="loading the model raised ZeroDivisionError"):
        load(folder)


class TestOverTheNetwork:
    def load(self, registry: Registry, location: str, *trust: str) -> LoadedModel:
        version = registry.register("pyfunc", location)
        return runtimes.load(
            ModelSpec(
                source=f"models:/pyfunc/{version}",
                name="m",
                tracking_uri=registry.tracking_uri,
                trust=trust,
            ),
            silent,
        )

    def test_its_code_runs_only_with_a_digest_and_finds_its_files(
        self, registry: Registry, serve_folder: Serve, tmp_path: Path
    ) -> None:
        from tailproof.core.errors import UntrustedModel
        from tailproof.models.manifest import digest, files_of

        predict = "frame.a + int(self.path.read_text())"
        canary = tmp_path / "canary"
        before = f"Path({str(canary)!r}).touch()"
        folder = folder_of(tmp_path / "model", predict, AB, before=before)
        location = serve_folder(folder)
        with pytest.raises(UntrustedModel, match="no scikit-learn model in skops format"):
            self.load(registry, location)
        assert not canary.exists()
        loaded = self.load(registry, location, digest(files_of(folder)))
        assert canary.exists()
        assert score_of(loaded, a=[1.0], b=[0]).tolist() == [42.0], "the download is still there"
