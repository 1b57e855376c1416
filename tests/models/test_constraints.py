from typing import Any

import pytest

from tailproof.core.errors import ConfigError
from tailproof.models.columns import Column, Output, Signature, Table
from tailproof.models.constraints import check, merge, table_of

OWN = Signature(
    inputs=(
        Column(name="amount", type="float"),
        Column(name="channel", type="string"),
        Column(name="age", type="int", ge=0, required=False),
    ),
    outputs=(Output(name="score", type="float"),),
)


def test_the_table_joins_the_models_own_columns_key_by_key() -> None:
    table: Table = {"age": {"le": 120, "required": True}, "amount": {"type": "float", "gt": 0}}
    assert merge(OWN, table) == Signature(
        inputs=(
            Column(name="amount", type="float", gt=0),
            Column(name="channel", type="string"),
            Column(name="age", type="int", ge=0, le=120, required=True),
        ),
        outputs=OWN.outputs,
    )


def test_what_the_table_says_replaces_what_the_model_said() -> None:
    assert merge(OWN, {"age": {"ge": 18}}).inputs[2].ge == 18


def test_an_empty_table_changes_nothing() -> None:
    assert merge(OWN, {}) == OWN


def test_without_a_signature_the_table_is_it_in_its_own_order() -> None:
    table: Table = {"b": {"type": "int"}, "a": {"type": "string", "enum": ["x", "y"]}}
    assert merge(None, table).inputs == (
        Column(name="b", type="int"),
        Column(name="a", type="string", enum=("x", "y")),
    )


@pytest.mark.parametrize(
    ("table", "key", "problem"),
    [
        ({"amout": {"gt": 0}}, "columns.amout", "it has amount, channel, age"),
        ({"amount": {"gte": 0}}, "columns.amount.gte", "unknown key; known are type"),
        ({"amount": {"name": "x"}}, "columns.amount.name", "unknown key"),
        ({"amount": {"gt": "0"}}, "columns.amount.gt", "expected `float | null`, got `str`"),
        ({"amount": {"type": "double"}}, "columns.amount.type", "invalid enum value"),
        ({"amount": {"type": "int"}}, "columns.amount.type", "the model declares float"),
        ({"age": {"type": "float"}}, "columns.age.type", "the model declares int"),
        ({"amount": {"required": False}}, "columns.amount.required", "the model requires it"),
        ({"channel": {"ge": 1}}, "columns.channel.ge", "a string column has no range"),
        ({"amount": {"pattern": "^a"}}, "columns.amount.pattern", "only a string column"),
        ({"amount": {"max_length": 3}}, "columns.amount.max_length", "only a string column"),
        ({"amount": {"gt": float("inf")}}, "columns.amount.gt", "expected a finite number"),
        ({"amount": {"ge": 2, "le": 1}}, "columns.amount.le", "no value is left: ge is 2"),
        ({"amount": {"gt": 1, "le": 1}}, "columns.amount.le", "no value is left: gt is 1"),
        ({"age": {"ge": 0.1, "lt": 1}}, "columns.age.lt", "no whole number is left"),
        ({"channel": {"min_length": -1}}, "columns.channel.min_length", "expected 0 or more"),
        (
            {"channel": {"min_length": 3, "max_length": 2}},
            "columns.channel.max_length",
            "no value is left: min_length is 3",
        ),
        ({"channel": {"enum": []}}, "columns.channel.enum", "expected at least one value"),
        ({"channel": {"enum": [1]}}, "columns.channel.enum", "1 is not a value of a string"),
        ({"age": {"enum": [1.5]}}, "columns.age.enum", "1.5 is not a value of a int"),
        ({"": {}}, "columns", "a column needs a name"),
    ],
)
def test_a_wrong_table_is_named_by_its_key(
    table: dict[str, dict[str, Any]], key: str, problem: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        merge(OWN, table)
    assert caught.value.key == key
    assert problem in caught.value.problem


def test_a_range_may_touch_when_both_ends_belong_to_it() -> None:
    assert merge(OWN, {"amount": {"ge": 1, "le": 1}}).inputs[0].le == 1


def test_an_int_range_that_holds_one_number_is_a_range() -> None:
    assert merge(OWN, {"age": {"ge": 0, "gt": 0.5, "lt": 1.5}}).inputs[2].lt == 1.5


def test_without_a_signature_each_column_needs_its_type() -> None:
    with pytest.raises(ConfigError, match=r"^columns\.amount\.type: needed"):
        merge(None, {"amount": {"gt": 0}})


def test_check_finds_what_can_be_told_without_the_model() -> None:
    check({"whatever": {"ge": 0}})
    with pytest.raises(ConfigError, match=r"^columns\.whatever\.min"):
        check({"whatever": {"min": 0}})


def test_columns_with_names_make_a_table() -> None:
    assert table_of([{"name": "a", "ge": 0}, {"name": "b"}]) == {"a": {"ge": 0}, "b": {}}
    for wrong in ({"ge": 0}, {"name": 3}, "a"):
        with pytest.raises(ConfigError, match="expected columns with a name"):
            table_of([wrong])  # type: ignore[list-item]
