import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailproof.core.errors import ConfigError, Invalid, Malformed, TooLarge
from tailproof.models.constraints import merge
from tailproof.models.signature import Column, Signature, Validator, check_table

FRAUD = merge(
    None,
    {
        "amount": {"type": "float", "gt": 0, "description": "in euros"},
        "channel": {"type": "string", "pattern": "^(web|app|store|line)$"},
        "age": {"type": "int", "ge": 0, "le": 120, "required": False},
    },
)
FREE = Signature(
    inputs=(
        Column(name="x", type="float"),
        Column(name="n", type="int"),
        Column(name="flag", type="bool"),
        Column(name="text", type="string"),
    )
)
GOOD = {"x": 1.5, "n": 1, "flag": False, "text": "a"}


def faults_of(validator: Validator, body: bytes) -> list[tuple[list[Any], str]]:
    """Path and type of each fault of a body that must be Invalid."""
    with pytest.raises(Invalid) as caught:
        validator.rows(body)
    detail = caught.value.detail
    assert isinstance(detail, list)
    assert all(set(fault) == {"loc", "msg", "type"} for fault in detail)
    return [(fault["loc"], fault["type"]) for fault in detail]


def answer_of(validator: Validator, body: bytes) -> Any:
    """The rows, or the refusal that was raised instead."""
    try:
        return validator.rows(body)
    except (Invalid, TooLarge) as error:
        return error


class TestRows:
    validator = Validator.compile(FRAUD)
    row: dict[str, Any] = {"amount": 12.5, "channel": "web", "age": 33}  # noqa: RUF012

    def test_an_object_is_one_row(self) -> None:
        assert self.validator.rows(json.dumps(self.row).encode()) == ([self.row], False)

    def test_a_list_is_many_rows_and_says_so(self) -> None:
        assert self.validator.rows(json.dumps([self.row]).encode()) == ([self.row], True)

    def test_space_before_the_list_is_space(self) -> None:
        assert self.validator.rows(b" \r\n\t[" + json.dumps(self.row).encode() + b"]")[1]

    @pytest.mark.parametrize(
        "body", [b'{"amount":1,"channel":"web"}', b'{"age":null,"channel":"web","amount":1}']
    )
    def test_a_value_that_may_be_missing_is_none(self, body: bytes) -> None:
        assert self.validator.rows(body) == (
            [{"amount": 1.0, "channel": "web", "age": None}],
            False,
        )

    def test_of_a_key_given_twice_the_last_counts(self) -> None:
        rows, _ = self.validator.rows(b'{"amount":1,"amount":2,"channel":"web"}')
        assert rows[0]["amount"] == 2.0

    @pytest.mark.parametrize(
        ("body", "faults"),
        [
            (b"{}", [(["amount"], "missing"), (["channel"], "missing")]),
            (b"null", [([], "dict_type")]),
            (b'"text"', [([], "dict_type")]),
            (b"5", [([], "dict_type")]),
            (b"[]", [([], "too_short")]),
            (b"[[]]", [([0], "dict_type")]),
            (b"[5, null]", [([0], "dict_type"), ([1], "dict_type")]),
            (b'{"amount":0,"channel":"web"}', [(["amount"], "greater_than")]),
            (b'{"amount":1,"channel":"fax"}', [(["channel"], "string_pattern_mismatch")]),
            (b'{"amount":1,"channel":"web","age":121}', [(["age"], "less_than_equal")]),
            (b'{"amount":1,"channel":"web","Age":1}', [(["Age"], "extra_forbidden")]),
            (
                b'[{"amount":1,"channel":"web"},{"amount":"1","channel":"web","x":[1],"y":{}}]',
                [
                    ([1, "amount"], "float_type"),
                    ([1, "x"], "extra_forbidden"),
                    ([1, "y"], "extra_forbidden"),
                ],
            ),
        ],
    )
    def test_every_fault_is_listed_with_its_path(
        self, body: bytes, faults: list[tuple[list[Any], str]]
    ) -> None:
        assert faults_of(self.validator, body) == faults

    def test_a_refusal_never_repeats_the_values(self) -> None:
        body = (
            b'[{"amount":"secret-1","channel":"secret-2","age":987654,"k":"secret-3"},"secret-4"]'
        )
        with pytest.raises(Invalid) as caught:
            self.validator.rows(body)
        assert "secret" not in str(caught.value.detail)
        assert "987654" not in str(caught.value.detail)


class TestStrictTypes:
    """Each row: what is sent for which column, and the type of the fault; None: it is fine."""

    validator = Validator.compile(FREE)

    @pytest.mark.parametrize(
        ("column", "sent", "fault"),
        [
            ("x", "33", None),
            ("x", "-0.0", None),
            ("x", "1e308", None),
            ("x", "5e-324", None),
            ("x", '"33"', "float_type"),
            ("x", "true", "float_type"),
            ("x", "null", "float_type"),
            ("x", "[1]", "float_type"),
            ("x", "NaN", "finite_number"),
            ("x", "Infinity", "finite_number"),
            ("x", "-Infinity", "finite_number"),
            ("x", "1e999", "finite_number"),
            ("x", "-1e999", "finite_number"),
            ("x", "9" * 400, "finite_number"),
            ("n", str(2**63 - 1), None),
            ("n", str(-(2**63)), None),
            ("n", str(2**63), "less_than_equal"),
            ("n", str(-(2**63) - 1), "greater_than_equal"),
            ("n", "9" * 400, "less_than_equal"),
            ("n", "33.0", "int_type"),
            ("n", '"33"', "int_type"),
            ("n", "true", "int_type"),
            ("n", "NaN", "int_type"),
            ("n", "1e999", "int_type"),
            ("flag", "true", None),
            ("flag", "1", "bool_type"),
            ("flag", '"true"', "bool_type"),
            ("text", '""', None),
            ("text", r'"\u0000\ud83d\ude00"', None),
            ("text", "3", "string_type"),
            ("text", "null", "string_type"),
        ],
    )
    def test_a_value_is_what_its_column_says_or_refused(
        self, column: str, sent: str, fault: str | None
    ) -> None:
        parts = {key: json.dumps(value) for key, value in GOOD.items()} | {column: sent}
        body = ("{" + ",".join(f'"{key}":{value}' for key, value in parts.items()) + "}").encode()
        if fault is None:
            rows, _ = self.validator.rows(body)
            assert rows[0][column] == json.loads(sent)
            assert self.validator.columns(rows)[column].shape == (1,)
        else:
            assert faults_of(self.validator, body) == [([column], fault)]

    def test_an_int_for_a_float_becomes_a_float(self) -> None:
        rows, _ = self.validator.rows(json.dumps(GOOD | {"x": 3}).encode())
        assert type(rows[0]["x"]) is float


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"  ",
        b"{",
        b"[{},",
        b"{'amount': 1}",
        b'{"amount": 1}}',
        b'{"amount": 01}',
        b'{"amount": +1}',
        b'{"channel": "\xff"}',
        b'{"channel": "\\ud800"}',
        b'{"channel": "a\nb"}',
        b"\xef\xbb\xbf{}",
        b'{"amount": ' + b"9" * 5000 + b"}",
        b'{"amount": ' + b"[" * 300 + b"]" * 300 + b"}",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"nul",
        b"undefined",
    ],
)
def test_what_is_not_json_is_malformed_and_not_repeated(body: bytes) -> None:
    with pytest.raises(Malformed) as caught:
        Validator.compile(FRAUD).rows(body)
    assert isinstance(caught.value.detail, str)
    assert len(caught.value.detail) < 120
    assert "amount" not in caught.value.detail


class TestLimits:
    validator = Validator.compile(FRAUD, max_rows=3)

    @staticmethod
    def body(num_rows: int) -> bytes:
        return json.dumps([{"amount": 1, "channel": "web"}] * num_rows).encode()

    def test_as_many_rows_as_allowed(self) -> None:
        assert len(self.validator.rows(self.body(3))[0]) == 3

    def test_one_row_more(self) -> None:
        with pytest.raises(TooLarge, match="4 rows in one request; the limit is 3"):
            self.validator.rows(self.body(4))

    def test_too_many_bad_rows_are_still_too_many(self) -> None:
        with pytest.raises(TooLarge):
            self.validator.rows(b"[{}, {}, {}, {}]")

    def test_the_usual_limit_is_4096(self) -> None:
        usual = Validator.compile(FRAUD)
        assert len(usual.rows(self.body(4096))[0]) == 4096
        with pytest.raises(TooLarge):
            usual.rows(self.body(4097))

    def test_at_most_1000_faults_are_listed(self) -> None:
        usual = Validator.compile(FRAUD)
        assert len(faults_of(usual, b"[" + b"{}," * 499 + b"{}]")) == 1000
        assert len(faults_of(usual, b"[" + b"{}," * 500 + b"{}]")) == 1000
        assert faults_of(usual, b"[" + b"{}," * 500 + b"{}]")[-1] == ([499, "channel"], "missing")

    def test_a_thousand_unknown_keys_and_one(self) -> None:
        for count in (1000, 1001):
            body = json.dumps(dict.fromkeys(map(str, range(count)), 0)).encode()
            faults = faults_of(self.validator, body)
            assert len(faults) == 1000
            assert faults[:2] == [(["amount"], "missing"), (["channel"], "missing")]

    @pytest.mark.parametrize("length", [128, 129])
    def test_a_key_is_cut_to_128_characters(self, length: int) -> None:
        body = json.dumps({"amount": 1, "channel": "web", "ä" * length: 0}).encode()
        assert faults_of(self.validator, body) == [(["ä" * 128], "extra_forbidden")]


class TestConstraints:
    """What is at a limit passes; one step past it does not."""

    @pytest.mark.parametrize(
        ("column", "good", "bad"),
        [
            ({"type": "float", "gt": 0}, 5e-324, 0.0),
            ({"type": "float", "ge": 0.5}, 0.5, math.nextafter(0.5, 0)),
            ({"type": "float", "lt": 1}, math.nextafter(1, 0), 1),
            ({"type": "float", "le": 1}, 1, math.nextafter(1, 2)),
            ({"type": "float", "enum": [0.5, 1]}, 1, 0.25),
            ({"type": "int", "gt": 0.5}, 1, 0),
            ({"type": "int", "ge": -0.5}, 0, -1),
            ({"type": "int", "lt": 1.5}, 1, 2),
            ({"type": "int", "le": 1.5}, 1, 2),
            ({"type": "int", "enum": [1, 3]}, 3, 2),
            ({"type": "string", "pattern": "b"}, "abc", "ac"),
            ({"type": "string", "pattern": r"^\d$"}, "1", "12"),
            ({"type": "string", "min_length": 2}, "ää", "a"),
            ({"type": "string", "max_length": 2}, "ää", "aaa"),
            ({"type": "string", "enum": ["a", "b"]}, "b", "c"),
            ({"type": "string", "enum": ["a", "bb"], "max_length": 1}, "a", "bb"),
        ],
    )
    def test_limits(self, column: dict[str, Any], good: object, bad: object) -> None:
        validator = Validator.compile(merge(None, {"c": column}))
        assert validator.rows(json.dumps({"c": good}).encode()) == ([{"c": good}], False)
        assert len(faults_of(validator, json.dumps({"c": bad}).encode())) == 1

    @pytest.mark.parametrize("pattern", ["(?=a)b", r"(a)\1", "[", "a{99999999}"])
    def test_a_pattern_that_does_not_compile_is_named(self, pattern: str) -> None:
        table = {"c": {"type": "string", "pattern": pattern}}
        for check in (lambda: Validator.compile(merge(None, table)), lambda: check_table(table)):
            with pytest.raises(ConfigError) as caught:
                check()
            assert caught.value.key == "columns.c.pattern"
            assert caught.value.value == pattern

    def test_check_table_passes_what_is_right(self) -> None:
        check_table({"c": {"pattern": "^a", "ge": None}, "d": {"le": 3}})

    def test_a_pattern_costs_no_more_than_its_length(self) -> None:
        validator = Validator.compile(merge(None, {"c": {"type": "string", "pattern": "^(a+)+$"}}))
        faults_of(validator, json.dumps({"c": "a" * 50_000 + "!"}).encode())

    def test_an_example_that_its_column_refuses_is_named(self) -> None:
        table = {"c": {"type": "int", "ge": 0, "example": -1}}
        with pytest.raises(ConfigError, match=r"^columns\.c\.example = -1: the column refuses it"):
            Validator.compile(merge(None, table))


values = {
    "x": st.floats(allow_nan=False, allow_infinity=False),
    "n": st.integers(-(2**63), 2**63 - 1),
    "flag": st.booleans(),
    "text": st.text(),
}


class TestColumns:
    validator = Validator.compile(FREE)

    @given(st.lists(st.fixed_dictionaries(values), min_size=1, max_size=20))
    def test_what_was_sent_is_what_the_model_gets(self, sent: list[dict[str, Any]]) -> None:
        rows, is_list = self.validator.rows(json.dumps(sent).encode())
        columns = self.validator.columns(rows)
        assert is_list
        assert list(columns) == ["x", "n", "flag", "text"]
        assert [columns[name].dtype.kind for name in columns] == ["f", "i", "b", "O"]
        for name, column in columns.items():
            assert column.tolist() == [row[name] for row in sent]

    @given(st.permutations(list(GOOD)))
    def test_the_order_of_keys_changes_nothing(self, order: list[str]) -> None:
        body = json.dumps({name: GOOD[name] for name in order}).encode()
        columns = self.validator.columns(self.validator.rows(body)[0])
        assert {name: array.tolist() for name, array in columns.items()} == {
            name: [value] for name, value in GOOD.items()
        }
        assert list(columns) == list(GOOD)

    def test_missing_numbers_are_nan_and_missing_strings_none(self) -> None:
        signature = merge(None, {c.name: {"type": c.type, "required": False} for c in FREE.inputs})
        validator = Validator.compile(signature)
        columns = validator.columns(validator.rows(b'[{}, {"n": 3, "flag": true, "x": null}]')[0])
        np.testing.assert_array_equal(columns["x"], [np.nan, np.nan])
        np.testing.assert_array_equal(columns["n"], [np.nan, 3.0])
        np.testing.assert_array_equal(columns["flag"], [np.nan, 1.0])
        assert columns["text"].tolist() == [None, None]


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)
likely = st.dictionaries(st.sampled_from(["x", "n", "flag", "text", "other"]), anything)


@given(st.lists(likely | anything, max_size=3) | likely | anything)
def test_any_json_is_rows_or_a_refusal_that_says_why(value: object) -> None:
    validator = Validator.compile(FREE, max_rows=2)
    match answer_of(validator, json.dumps(value).encode()):
        case Invalid(detail=detail):
            assert detail, "a refusal without a reason"
        case TooLarge():
            assert isinstance(value, list)
            assert len(value) > 2
        case rows, is_list:
            assert is_list == isinstance(value, list)
            validator.columns(rows)


@given(
    st.binary(max_size=30)
    | st.text(alphabet='{}[]":,0eE-+.nulltruefa', max_size=30).map(str.encode)
)
def test_any_bytes_are_a_refusal(body: bytes) -> None:
    with pytest.raises((Malformed, Invalid)):
        Validator.compile(FREE).rows(body)


class TestCheck:
    """Rows that a protocol has decoded already."""

    validator = Validator.compile(FRAUD)

    def test_the_rules_are_the_same(self) -> None:
        rows = [{"age": 33, "channel": "web", "amount": 3}]
        assert self.validator.check(rows) == [{"amount": 3.0, "channel": "web", "age": 33}]
        with pytest.raises(Invalid) as caught:
            self.validator.check([*rows, {"channel": 3, "amount": float("nan"), "x": 0}])
        assert [(f["loc"], f["type"]) for f in caught.value.detail if isinstance(f, dict)] == [
            ([1, "amount"], "finite_number"),
            ([1, "channel"], "string_type"),
            ([1, "x"], "extra_forbidden"),
        ]

    def test_nan_in_a_column_that_may_be_missing_is_missing(self) -> None:
        rows = self.validator.check([{"amount": 1.0, "channel": "web", "age": float("nan")}])
        assert rows == [{"amount": 1.0, "channel": "web", "age": None}]

    @pytest.mark.parametrize("rows", [[], [3], [None], [{"amount": b"3", "channel": "web"}]])
    def test_what_are_no_rows_is_invalid(self, rows: list[Any]) -> None:
        with pytest.raises(Invalid) as caught:
            self.validator.check(rows)
        assert caught.value.detail

    def test_too_many_are_too_many(self) -> None:
        with pytest.raises(TooLarge):
            Validator.compile(FRAUD, max_rows=1).check([{}, {}])


class TestDescription:
    def test_the_json_schema_says_all_that_is_known(self) -> None:
        assert Validator.compile(FRAUD).json_schema() == {
            "type": "object",
            "properties": {
                "amount": {
                    "type": "number",
                    "description": "in euros",
                    "exclusiveMinimum": 0,
                    "examples": [1.0],
                },
                "channel": {
                    "type": "string",
                    "pattern": "^(web|app|store|line)$",
                    "examples": ["web"],
                },
                "age": {
                    "type": ["integer", "null"],
                    "minimum": 0,
                    "maximum": 120,
                    "examples": [60],
                },
            },
            "required": ["amount", "channel"],
            "additionalProperties": False,
            "examples": [{"amount": 1.0, "channel": "web", "age": 60}],
        }

    def test_an_enum_of_a_column_that_may_be_missing_allows_null(self) -> None:
        table = {"c": {"type": "string", "enum": ["a"], "required": False, "max_length": 3}}
        schema = Validator.compile(merge(None, table)).json_schema()
        assert schema["properties"]["c"]["enum"] == ["a", None]
        assert schema["properties"]["c"]["maxLength"] == 3

    def test_the_example_validates(self) -> None:
        validator = Validator.compile(FRAUD)
        example = validator.example()
        assert validator.rows(json.dumps(example).encode()) == ([example], False)
        assert validator.without_example == ()

    def test_a_column_without_an_example_is_named(self) -> None:
        table = {
            "good": {"type": "int"},
            "hard": {"type": "string", "pattern": r"^\p{Lu}{2}$"},
            "known": {"type": "string", "pattern": r"^\p{Lu}{2}$", "example": "ÄÖ"},
        }
        validator = Validator.compile(merge(None, table))
        assert validator.example() == {"good": 1, "known": "ÄÖ"}
        assert validator.without_example == ("hard",)
        assert "examples" not in validator.json_schema()["properties"]["hard"]

    def test_an_example_that_only_python_would_match_is_left_out(self) -> None:
        # Python's $ matches before a final line break, and its \Z is an error in Rust's dialect.
        table = {"c": {"type": "string", "pattern": "^a\n$"}}
        validator = Validator.compile(merge(None, table))
        assert validator.example() in ({"c": "a\n"}, {})
