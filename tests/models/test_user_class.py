import json
from datetime import date
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Annotated, Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, RootModel, field_validator

from tailproof.core.errors import ConfigError, Invalid, Malformed, TooLarge
from tailproof.models.columns import Column, Signature
from tailproof.models.signature import Validator


class Channel(Enum):
    WEB = "web"
    APP = "app"


class Level(IntEnum):
    LOW = 1
    HIGH = 3


class Payment(BaseModel):
    """What a user writes."""

    amount: float = Field(gt=0, description="in euros", examples=[182.5])
    channel: Channel
    age: Annotated[int, Field(ge=0, le=120)] | None = None
    level: Level = Level.LOW
    kind: Literal["a", "b"] = "a"
    flag: bool = False

    @field_validator("amount")
    @classmethod
    def _no_thirteens(cls, value: float) -> float:
        if value == 13:
            raise ValueError("thirteen is not an amount")
        return value


OWN = Signature(
    inputs=(
        Column(name="flag", type="bool"),
        Column(name="kind", type="string"),
        Column(name="level", type="float"),
        Column(name="age", type="int", required=False),
        Column(name="channel", type="string"),
        Column(name="amount", type="float"),
    )
)


def faults_of(validator: Validator, body: bytes) -> list[tuple[list[Any], str]]:
    with pytest.raises(Invalid) as caught:
        validator.rows(body)
    return [
        (fault["loc"], fault["type"]) for fault in caught.value.detail if isinstance(fault, dict)
    ]


def answer_of(validator: Validator, body: bytes) -> Any:
    """The rows, or the refusal that was raised instead."""
    try:
        return validator.rows(body)
    except Invalid as error:
        return error


class TestRows:
    validator = Validator.of_class(Payment)

    def test_defaults_fill_in_and_enums_become_their_values(self) -> None:
        rows, is_list = self.validator.rows(b'{"amount": 1, "channel": "app"}')
        assert not is_list
        assert rows == [
            {"amount": 1.0, "channel": "app", "age": None, "level": 1, "kind": "a", "flag": False}
        ]
        assert {type(value) for value in rows[0].values()} == {float, str, type(None), int, bool}

    def test_columns_in_the_order_of_the_fields(self) -> None:
        rows, is_list = self.validator.rows(b'[{"channel": "web", "level": 3, "amount": 2}]')
        columns = self.validator.columns(rows)
        assert is_list
        assert list(columns) == ["amount", "channel", "age", "level", "kind", "flag"]
        assert columns["level"].tolist() == [3]
        assert columns["level"].dtype == np.int64
        assert np.isnan(columns["age"]).all()

    @pytest.mark.parametrize(
        ("body", "faults"),
        [
            (b"{}", [(["amount"], "missing"), (["channel"], "missing")]),
            (b'{"amount": 13, "channel": "web"}', [(["amount"], "value_error")]),
            (b'{"amount": "1", "channel": "web"}', [(["amount"], "float_type")]),
            (b'{"amount": NaN, "channel": "web"}', [(["amount"], "finite_number")]),
            (b'{"amount": 1, "channel": "fax"}', [(["channel"], "enum")]),
            (b'{"amount": 1, "channel": "web", "age": 33.0}', [(["age"], "int_type")]),
            (b'{"amount": 1, "channel": "web", "x": 1}', [(["x"], "extra_forbidden")]),
            (
                b'[{"amount": 1, "channel": "web"}, {"amount": 1, "y": 0}]',
                [([1, "channel"], "missing"), ([1, "y"], "extra_forbidden")],
            ),
            (b"[]", [([], "too_short")]),
        ],
    )
    def test_faults(self, body: bytes, faults: list[tuple[list[Any], str]]) -> None:
        assert faults_of(self.validator, body) == faults

    def test_not_json(self) -> None:
        with pytest.raises(Malformed):
            self.validator.rows(b"{")

    def test_too_many_rows(self) -> None:
        row = {"amount": 1, "channel": "web"}
        short = Validator.of_class(Payment, max_rows=2)
        assert len(short.rows(json.dumps([row] * 2).encode())[0]) == 2
        with pytest.raises(TooLarge):
            short.rows(json.dumps([row] * 3).encode())

    def test_decoded_rows_follow_the_same_rules(self) -> None:
        assert self.validator.check([{"amount": 1, "channel": "web"}])[0]["channel"] == "web"
        with pytest.raises(Invalid):
            self.validator.check([{"amount": 1, "channel": "fax"}])

    @given(
        st.dictionaries(
            st.sampled_from([*Payment.model_fields, "x"]), st.none() | st.integers() | st.text()
        )
    )
    def test_any_row_is_read_or_refused_with_a_reason(self, row: dict[str, Any]) -> None:
        match answer_of(self.validator, json.dumps(row).encode()):
            case Invalid(detail=detail):
                assert detail, "a refusal without a reason"
            case rows, _:
                assert self.validator.columns(rows)["amount"].shape == (1,)


class Count(BaseModel):
    n: int


@pytest.mark.parametrize("value", [-(2**63), 2**63 - 1])
def test_an_int_at_the_end_of_int64(value: int) -> None:
    validator = Validator.of_class(Count)
    rows, _ = validator.rows(json.dumps({"n": value}).encode())
    assert validator.columns(rows)["n"].tolist() == [value]


@pytest.mark.parametrize("value", [-(2**63) - 1, 2**63])
def test_an_int_past_the_end_of_int64(value: int) -> None:
    validator = Validator.of_class(Count)
    assert faults_of(validator, json.dumps({"n": value}).encode()) == [(["n"], "int64_range")]
    assert faults_of(validator, json.dumps([{"n": 0}, {"n": value}]).encode()) == [
        ([1, "n"], "int64_range")
    ]


class TestOwnConfig:
    def test_what_the_class_says_about_unknown_keys_counts(self) -> None:
        class Loose(BaseModel):
            model_config = ConfigDict(extra="ignore", strict=False)
            n: int

        validator = Validator.of_class(Loose)
        assert validator.rows(b'{"n": "3", "x": 1}') == ([{"n": 3}], False)
        assert "additionalProperties" not in validator.json_schema()

    def test_forbidding_them_is_the_same_as_saying_nothing(self) -> None:
        class Closed(BaseModel):
            model_config = ConfigDict(extra="forbid")
            n: int

        assert faults_of(Validator.of_class(Closed), b'{"n": 3, "x": 1}') == [
            (["x"], "extra_forbidden")
        ]

    def test_aliases_are_the_keys_and_names_the_columns(self) -> None:
        class Aliased(BaseModel):
            amount: float = Field(alias="Amount")
            age: int = Field(validation_alias=AliasChoices("Age", "years"))

        validator = Validator.of_class(Aliased)
        assert validator.rows(b'{"Amount": 1, "years": 3}') == ([{"amount": 1.0, "age": 3}], False)
        assert validator.example() == {"Amount": 1.0, "Age": 1}
        assert validator.rows(json.dumps(validator.example()).encode())
        assert faults_of(validator, b'{"amount": 1, "Age": 3}') == [
            (["Amount"], "missing"),
            (["amount"], "extra_forbidden"),
        ]


class TestFit:
    def test_the_models_order_and_dtypes_hold(self) -> None:
        validator = Validator.of_class(Payment, OWN)
        columns = validator.columns(validator.rows(b'{"amount": 1, "channel": "web"}')[0])
        assert list(columns) == ["flag", "kind", "level", "age", "channel", "amount"]
        assert columns["level"].dtype == np.float64
        assert validator.signature == OWN

    def test_an_optional_column_that_the_class_leaves_out_is_missing(self) -> None:
        own = Signature(
            inputs=(Column(name="n", type="int"), Column(name="m", type="float", required=False))
        )
        validator = Validator.of_class(Count, own)
        columns = validator.columns(validator.rows(b'{"n": 1}')[0])
        assert np.isnan(columns["m"]).all()

    @pytest.mark.parametrize(
        ("inputs", "key", "problem"),
        [
            ((Column(name="m", type="int"),), "columns.n", "the model has no such column"),
            ((Column(name="n", type="string"),), "columns.n", "the model declares string"),
            (
                (Column(name="n", type="int"), Column(name="m", type="int")),
                "columns.m",
                "the model requires it; the class lacks it",
            ),
        ],
    )
    def test_a_class_that_does_not_fit_is_named_by_its_field(
        self, inputs: tuple[Column, ...], key: str, problem: str
    ) -> None:
        with pytest.raises(ConfigError) as caught:
            Validator.of_class(Count, Signature(inputs=inputs))
        assert caught.value.key == key
        assert caught.value.problem == problem

    def test_none_for_a_column_that_needs_a_value(self) -> None:
        class Optional(BaseModel):
            n: int | None = None

        with pytest.raises(ConfigError, match=r"columns\.n: the model requires a value"):
            Validator.of_class(Optional, Signature(inputs=(Column(name="n", type="int"),)))

    @pytest.mark.parametrize(
        "annotation", [date, Decimal, bytes, list[int], dict[str, int], int | str, Any, Count]
    )
    def test_a_field_that_is_no_column_is_named(self, annotation: Any) -> None:
        model = type("M", (BaseModel,), {"__annotations__": {"field": annotation}})
        with pytest.raises(ConfigError, match=r"^columns\.field = 'M': a field must be float"):
            Validator.of_class(model)

    @pytest.mark.parametrize(
        "model", [int, BaseModel, RootModel[int], Payment(amount=1, channel=Channel.WEB)]
    )
    def test_what_is_no_class_with_fields(self, model: Any) -> None:
        with pytest.raises(ConfigError, match="expected a pydantic BaseModel with fields"):
            Validator.of_class(model)


class TestDescription:
    validator = Validator.of_class(Payment)

    def test_the_columns_carry_the_fields_limits(self) -> None:
        inputs = {column.name: column for column in self.validator.signature.inputs}
        assert inputs["amount"] == Column(
            name="amount", type="float", gt=0, description="in euros", example=182.5
        )
        assert inputs["age"] == Column(name="age", type="int", ge=0, le=120, required=False)
        assert inputs["channel"].enum == ("web", "app")
        assert inputs["level"].enum == (1, 3)

    def test_the_schema_stands_alone(self) -> None:
        schema = self.validator.json_schema()
        assert "$ref" not in json.dumps(schema)
        assert schema["properties"]["channel"]["enum"] == ["web", "app"]
        assert schema["required"] == ["amount", "channel"]
        assert schema["additionalProperties"] is False
        assert schema["examples"] == [self.validator.example()]

    def test_the_example_validates(self) -> None:
        example = self.validator.example()
        assert example["amount"] == 182.5
        assert self.validator.rows(json.dumps(example).encode())
