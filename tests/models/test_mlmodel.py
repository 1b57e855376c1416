import json
from pathlib import Path
from typing import Any

import pytest

from tailproof.core.errors import ConfigError, ModelError
from tailproof.models import mlmodel
from tailproof.models.columns import Column
from tests.models.conftest import signature_of, write_mlmodel

FLAVORS = {"python_function": {"loader_module": "x"}}
TENSOR = {"type": "tensor", "tensor-spec": {"dtype": "float32", "shape": [-1, 3]}}


def model_with(folder: Path, **content: Any) -> mlmodel.MLmodel:
    return mlmodel.read(write_mlmodel(folder, {"flavors": FLAVORS, **content}))


def inputs(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"inputs": json.dumps(fields)}


def test_columns_come_from_the_signature_in_its_order(tmp_path: Path) -> None:
    kinds = {
        "b": "double",
        "a": "float",
        "d": "long",
        "c": "integer",
        "f": "boolean",
        "e": "string",
    }
    model = model_with(tmp_path, signature=signature_of(**kinds))
    signature = model.signature({})
    assert [(column.name, column.type) for column in signature.inputs] == [
        ("b", "float"),
        ("a", "float"),
        ("d", "int"),
        ("c", "int"),
        ("f", "bool"),
        ("e", "string"),
    ]
    assert model.dtypes(signature) == {
        "b": "float64",
        "a": "float32",
        "d": "int64",
        "c": "int32",
        "f": "bool",
        "e": "object",
    }
    assert not model.is_tensor


def test_what_an_int32_cannot_hold_is_refused_at_the_door(tmp_path: Path) -> None:
    (column,) = model_with(tmp_path, signature=signature_of(n="integer")).signature({}).inputs
    assert (column.ge, column.le) == (-(2**31), 2**31 - 1)


def test_a_number_that_may_be_missing_is_a_float(tmp_path: Path) -> None:
    fields = [
        {"type": kind, "name": kind, "required": False}
        for kind in ("long", "boolean", "float", "string")
    ]
    model = model_with(tmp_path, signature=inputs(*fields))
    signature = model.signature({})
    assert not any(column.required for column in signature.inputs)
    assert list(model.dtypes(signature).values()) == ["float64", "float64", "float32", "object"]


def test_a_nameless_matrix_has_columns_called_x0_and_so_on(tmp_path: Path) -> None:
    model = model_with(tmp_path, signature=inputs(TENSOR))
    signature = model.signature({"x1": {"ge": 0}})
    assert model.is_tensor
    assert signature.inputs == (
        Column(name="x0", type="float"),
        Column(name="x1", type="float", ge=0),
        Column(name="x2", type="float"),
    )
    assert set(model.dtypes(signature).values()) == {"float32"}


@pytest.mark.parametrize(
    ("field", "problem"),
    [
        ({"type": "datetime", "name": "when"}, "column 'when' has the type datetime"),
        ({"type": "array", "name": "a", "items": {"type": "double"}}, "has the type array"),
        ({"type": "double"}, "a column without a name"),
        ({"type": "tensor", "tensor-spec": {"dtype": "float64", "shape": [-1, 3, 2]}}, "of shape"),
        ({"type": "tensor", "tensor-spec": {"dtype": "str", "shape": [-1, 3]}}, "a str tensor"),
        ({"type": "tensor", "tensor-spec": {"dtype": "nope", "shape": [-1, 3]}}, "cannot be read"),
        ({"type": "tensor", "name": "t", "tensor-spec": {}}, "has the type tensor"),
        ({}, "cannot be read"),
    ],
)
def test_a_signature_that_cannot_be_served_says_why(
    tmp_path: Path, field: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ModelError, match=problem):
        model_with(tmp_path, signature=inputs(field))


class TestOwnConstraints:
    """The key `tailproof.columns` in the model's metadata."""

    @pytest.mark.parametrize(
        "declared", [[{"name": "age", "ge": 0, "le": 120}], {"age": {"ge": 0, "le": 120}}]
    )
    def test_the_model_carries_limits_and_the_users_table_comes_on_top(
        self, tmp_path: Path, declared: object
    ) -> None:
        model = model_with(
            tmp_path,
            signature=signature_of(age="long"),
            metadata={"tailproof.columns": declared},
        )
        assert model.signature({}).inputs == (Column(name="age", type="int", ge=0, le=120),)
        assert model.signature({"age": {"ge": 18}}).inputs[0].ge == 18

    def test_they_can_be_the_whole_signature(self, tmp_path: Path) -> None:
        declared = [{"name": "age", "type": "int"}]
        model = model_with(tmp_path, metadata={"tailproof.columns": declared})
        assert model.signature({}).inputs == (Column(name="age", type="int"),)

    @pytest.mark.parametrize("declared", ["age", [3], [{"ge": 0}], [{"name": "age", "min": 0}]])
    def test_wrong_ones_are_the_models_fault(self, tmp_path: Path, declared: object) -> None:
        model = model_with(
            tmp_path,
            signature=signature_of(age="long"),
            metadata={"tailproof.columns": declared},
        )
        with pytest.raises(ModelError, match=r"the model's own tailproof\.columns are"):
            model.signature({})

    def test_a_wrong_table_is_the_users(self, tmp_path: Path) -> None:
        model = model_with(tmp_path, signature=signature_of(age="long"))
        with pytest.raises(ConfigError, match=r"^columns\.age\.min"):
            model.signature({"age": {"min": 0}})


def test_without_a_signature_the_table_is_it(tmp_path: Path) -> None:
    model = model_with(tmp_path)
    assert model.signature({"a": {"type": "float"}}).inputs == (Column(name="a", type="float"),)
    with pytest.raises(ModelError, match="the model has no signature"):
        model.signature({})


def test_the_users_class_stands_in_for_a_signature_and_never_beside_one(tmp_path: Path) -> None:
    fields = {"a": {"type": "float", "gt": 0.0}}
    plain = model_with(tmp_path)
    assert plain.signature({}, fields).inputs == (Column(name="a", type="float", gt=0.0),)
    assert plain.signature({"b": {"type": "int"}}, fields).inputs == (Column(name="b", type="int"),)
    signed = model_with(tmp_path, signature=signature_of(age="long"))
    assert signed.signature({}, fields).inputs == (Column(name="age", type="int"),)


def test_facts_are_those_that_are_declared(tmp_path: Path) -> None:
    model = model_with(tmp_path, metadata={"license": "MIT", "licence": ""})
    assert model.declared_fact("licence", "license") == "MIT"
    assert model.declared_fact("training_data") is None


class TestExample:
    @pytest.mark.parametrize(
        "saved",
        [
            {"columns": ["b", "a"], "data": [[2, "x"], [3, "y"]]},
            {"columns": ["b", "a", "c"], "data": [[2, "x", 0]]},
            {"inputs": [["x", 2]]},
            [["x", 2]],
        ],
    )
    def test_the_first_row_of_the_input_example(self, tmp_path: Path, saved: object) -> None:
        (tmp_path / "example.json").write_text(json.dumps(saved), "utf-8")
        model = model_with(
            tmp_path,
            signature=signature_of(a="string", b="long"),
            saved_input_example_info={"artifact_path": "example.json"},
        )
        assert model.example() == {"a": "x", "b": 2}

    @pytest.mark.parametrize("text", ["", "{", "3", "[]", '{"data": []}', '{"inputs": [[1]]}'])
    def test_one_that_cannot_be_read_is_none(self, tmp_path: Path, text: str) -> None:
        (tmp_path / "example.json").write_text(text, "utf-8")
        model = model_with(
            tmp_path,
            signature=signature_of(a="string", b="long"),
            saved_input_example_info={"artifact_path": "example.json"},
        )
        assert model.example() is None

    @pytest.mark.parametrize("path", ["gone.json", "../example.json", "/etc/hostname"])
    def test_one_that_is_not_there_or_not_in_the_folder_is_none(
        self, tmp_path: Path, path: str
    ) -> None:
        (tmp_path / "example.json").write_text('[["x", 2]]', "utf-8")
        model = model_with(
            tmp_path / "model",
            signature=signature_of(a="string", b="long"),
            saved_input_example_info={"artifact_path": path},
        )
        assert model.example() is None


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"flavors: 3",
        b"flavors: {sklearn: 3}",
        b"a: [",
        b"\xff\xfe\x00",
        b"flavors: !!python/object/apply:os.getcwd []",
    ],
)
def test_a_file_that_is_no_mlmodel_is_a_model_error(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "MLmodel").write_bytes(text)
    with pytest.raises(ModelError, match="MLmodel file"):
        mlmodel.read(tmp_path)


def test_a_folder_without_the_file_is_a_model_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no readable MLmodel"):
        mlmodel.read(tmp_path)


def test_inside_keeps_to_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "secret").touch()
    (folder / "link").symlink_to(tmp_path / "secret")
    assert mlmodel.inside(folder, "a/b") == folder / "a" / "b"
    for path in ("../secret", "/etc/passwd", "link", "a/../../secret"):
        with pytest.raises(ModelError, match="outside of its folder"):
            mlmodel.inside(folder, path)
