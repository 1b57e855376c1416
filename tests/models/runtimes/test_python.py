import hashlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tailproof.core.errors import ConfigError, ModelError
from tailproof.models import runtimes
from tailproof.models.columns import Column, Output
from tailproof.models.runtimes.base import LoadedModel
from tailproof.models.source import ModelSpec
from tests.models.conftest import silent

Write = Callable[[str], str]

DOUBLE = """
class Model:
    columns = [{"name": "amount", "type": "float", "gt": 0}]
    factor = None

    def load(self):
        self.factor = 2

    def predict(self, columns):
        return columns["amount"] * self.factor
"""


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Puts source text into a module of its own in the current directory; gives its name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])

    def write_module(text: str) -> str:
        name = f"user_model_{hashlib.sha256((str(tmp_path) + text).encode()).hexdigest()[:12]}"
        (tmp_path / f"{name}.py").write_text(text, "utf-8")
        return name

    return write_module


def load(module: str, attr: str = "Model", **settings: Any) -> LoadedModel:
    source = f"python:{module}:{attr}"
    return runtimes.load(ModelSpec(source=source, name="m", **settings), silent)


def test_a_class_is_made_loaded_and_called(write: Write) -> None:
    module = write(DOUBLE)
    loaded = load(module)
    outputs = loaded.runtime.predict({"amount": np.array([1.5, 2.0])}, 2)
    assert outputs["score"].tolist() == [3.0, 4.0]
    manifest = loaded.manifest
    assert manifest.signature.inputs == (Column(name="amount", type="float", gt=0),)
    assert manifest.signature.outputs == (Output(name="score", type="float"),)
    assert manifest.runtime == "python"
    assert [file.path for file in manifest.files] == [f"{module}.py"]
    assert manifest.max_rows is None


def test_an_object_is_taken_as_it_is(write: Write) -> None:
    module = write(DOUBLE + "\nmodel = Model()\nmodel.load = None\nmodel.factor = 5\n")
    outputs = load(module, "model").runtime.predict({"amount": np.array([1.0])}, 1)
    assert outputs["score"].tolist() == [5.0]


def test_everything_optional(write: Write) -> None:
    module = write(
        """
class Outer:
    class Model:
        max_rows = 7
        example = {"kind": "b", "n": 3}

        def columns(self):
            return [{"name": "n", "type": "int"}, {"name": "kind", "type": "string"}]

        def predict(self, columns):
            return {"n": columns["n"], "kind": columns["kind"]}
"""
    )
    loaded = load(module, "Outer.Model")
    assert loaded.manifest.max_rows == 7
    assert {name: array.tolist() for name, array in loaded.example.items()} == {
        "n": [3],
        "kind": ["b"],
    }
    assert loaded.manifest.signature.outputs == (
        Output(name="n", type="int"),
        Output(name="kind", type="string"),
    )


def test_the_users_table_comes_on_top(write: Write) -> None:
    module = write(DOUBLE)
    loaded = load(module, columns=({"name": "amount", "le": 10},))
    assert loaded.manifest.signature.inputs[0].le == 10
    with pytest.raises(ConfigError, match=r"^columns\.age"):
        load(module, columns=({"name": "age", "le": 10},))


def test_without_columns_of_its_own_the_fields_of_the_users_class_are(write: Write) -> None:
    module = write("class Model:\n    def predict(self, columns):\n        return columns['a']\n")
    loaded = load(module, class_columns=({"name": "a", "type": "float", "ge": 0.0},))
    assert loaded.manifest.signature.inputs == (Column(name="a", type="float", ge=0.0),)


def test_without_columns_of_its_own_the_table_is_the_signature(write: Write) -> None:
    module = write("class Model:\n    def predict(self, columns):\n        return columns['a']\n")
    loaded = load(module, columns=({"name": "a", "type": "float"},))
    assert loaded.manifest.signature.inputs == (Column(name="a", type="float"),)
    with pytest.raises(ModelError, match="the object declares no `columns`"):
        load(module)


def test_another_method(write: Write) -> None:
    module = write(
        DOUBLE + "\n    def halve(self, columns):\n        return columns['amount'] / 2\n"
    )
    loaded = load(module, method="halve")
    assert loaded.runtime.predict({"amount": np.array([3.0])}, 1)["score"].tolist() == [1.5]
    assert loaded.manifest.parameters == {"method": "halve"}
    with pytest.raises(ConfigError, match=r"^method = 'third': the object has no such method"):
        load(module, method="third")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("import no_such_module", "needs the module no_such_module, which is not there"),
        ("1 / 0", "importing .* raised ZeroDivisionError"),
        ("", "has no Model"),
        ("class Model:\n    pass", r"no method predict\(columns\)"),
        ("class Model:\n    def __init__(self, path): pass", r"Model\(\) raised TypeError"),
        (DOUBLE.replace("self.factor = 2", "raise OSError('no weights')"), "no weights"),
        (DOUBLE.replace("[{", "{").replace("}]", "}"), "the object's `columns` are wrong"),
        (DOUBLE.replace('"gt"', '"above"'), "the object's `columns` are wrong"),
        (DOUBLE.replace("factor = None", "max_rows = 0"), "`max_rows` is not a whole number"),
        (DOUBLE.replace("factor = None", "example = {'amount': 'x'}"), None),
        (DOUBLE.replace("* self.factor", "[:0]"), "raised ValueError on its example row"),
        (DOUBLE.replace("* self.factor", "+ columns['other']"), "raised KeyError on its example"),
    ],
)
def test_what_is_wrong_with_an_object_is_said(write: Write, text: str, problem: str | None) -> None:
    module = write(text)
    if problem is None:
        assert load(module).example["amount"].tolist() == [1.0], "a bad example is passed over"
        return
    with pytest.raises(ModelError, match=problem):
        load(module)


def test_a_module_that_is_not_there(write: Write) -> None:
    with pytest.raises(ModelError, match="needs the module no_such_model"):
        load("no_such_model")


def test_a_class_index_has_no_meaning(write: Write) -> None:
    with pytest.raises(ConfigError, match=r"^class = 1"):
        load(write(DOUBLE), class_index=1)
