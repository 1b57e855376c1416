"""Bodies drawn from descriptions are accepted by those who described them."""

import asyncio
import importlib
import json
import random
import time
import uuid
from collections.abc import Iterator, Sequence
from datetime import date, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import httpx
import msgspec
import pytest
from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, Field

from tailproof.core.errors import ConfigError
from tailproof.load.payloads import FEWEST_BODIES, Payloads, fetch_openapi, from_openapi
from tailproof.load.payloads.budget import MAX_BYTES
from tailproof.load.payloads.scalars import LARGEST, MAX_TEXT
from tailproof.load.payloads.schemas import MAX_ITEMS

from ...blackbox.server import Server

DRAWS = 200


def values(found: Payloads) -> list[Any]:
    return [json.loads(body) for body in found.bodies]


class Address(BaseModel):
    street: Annotated[str, Field(min_length=3, max_length=40)]
    zip_code: Annotated[str, Field(pattern=r"^\d{5}(-\d{4})?$")]
    country: Literal["DE", "FR", "TW"] = "DE"


class Cash(BaseModel):
    kind: Literal["cash"]
    amount: Annotated[float, Field(multiple_of=0.25, gt=0, le=1000)]


class Card(BaseModel):
    kind: Literal["card"]
    number: Annotated[str, Field(pattern=r"^(4|5[1-5])[0-9]{14,15}$", min_length=16, max_length=16)]


class Node(BaseModel):
    """Contains itself."""

    name: Annotated[str, Field(pattern=r"^[a-z_]{2,8}$")]
    children: list["Node"] = []
    parent: "Node | None" = None


class Order(BaseModel):
    """Nearly everything that a schema can ask for."""

    model_config = ConfigDict(extra="forbid")

    id: uuid.UUID
    when: datetime
    day: date
    mail: Annotated[str, Field(json_schema_extra={"format": "email"}, pattern=r".+@.+\..+")]
    amount: Annotated[float, Field(gt=0, lt=0.001)]
    exact: Annotated[int, Field(gt=6, lt=8)]
    step: Annotated[int, Field(multiple_of=7, ge=50, le=60)]
    below: Annotated[int, Field(le=-5)]
    big: Annotated[int, Field(ge=10**6)]
    channel: Annotated[str, Field(pattern="^(web|app|store|line)$", examples=["web"])]
    short: Annotated[str, Field(min_length=2, max_length=2)]
    long: Annotated[str, Field(pattern="^[A-Z]+$", min_length=30)]
    flag: bool
    nothing: None
    maybe: int | None
    either: str | int
    vector: Annotated[list[float], Field(min_length=8, max_length=8)]
    tags: Annotated[set[Literal["a", "b", "c"]], Field(min_length=2, max_length=3)]
    pair: tuple[int, str]
    address: Address
    more: list[Address]
    pay: Annotated[Cash | Card, Field(discriminator="kind")]
    limits: dict[str, Annotated[int, Field(ge=1, le=3)]]
    tree: Node
    anything: Any
    level: Annotated[float, Field(ge=0, le=1)] = 0.5
    note: str | None = None


class Hinted(BaseModel):
    """Only its examples tell what it holds."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"rate": 1500.0, "count": 40, "word": "hello", "extra": 1}]}
    )

    rate: Annotated[float, Field(ge=1000, le=10**9)]
    count: int
    word: str
    extra: Annotated[int, Field(ge=0)]


def app() -> FastAPI:
    found = FastAPI()

    @found.post("/orders")
    def one(order: Order) -> int:
        return order.exact

    @found.post("/either")
    def either(body: list[Card] | Card) -> str:
        return type(body).__name__

    @found.post("/shops/{name}/orders")
    def nested(name: str, order: Hinted) -> str:
        return name + order.word

    @found.post("/texts")
    def texts(
        body: Annotated[list[Annotated[str, Field(max_length=50)]], Field(max_length=5)],
    ) -> int:
        return len(body)

    @found.post("/open")
    def nothing_known(body: dict[str, Any]) -> int:
        return len(body)

    @found.get("/health")
    def health() -> str:
        return "ok"

    return found


def ask(path: str, bodies: Sequence[bytes]) -> list[httpx.Response]:
    """What the application answers, asked in this process."""

    async def ask_all() -> list[httpx.Response]:
        transport = httpx.ASGITransport(APP)
        async with httpx.AsyncClient(transport=transport, base_url="http://app") as client:
            headers = {"content-type": "application/json"}
            return [await client.post(path, content=body, headers=headers) for body in bodies]

    return asyncio.run(ask_all())


APP = app()


@pytest.fixture(scope="module")
def document() -> bytes:
    return msgspec.json.encode(APP.openapi())


@pytest.mark.parametrize("path", ["/orders", "/either", "/shops/north/orders", "/texts"])
def test_everything_drawn_is_answered_with_200(document: bytes, path: str) -> None:
    found = from_openapi(document, path, "POST", num=DRAWS, seed=11)

    answers = ask(path, found.bodies)

    assert [answer.text for answer in answers if answer.status_code != 200] == []
    assert len(set(found.bodies)) > DRAWS / 2
    assert found.content_type == "application/json"
    assert found.seed == 11


def test_the_check_sees_a_wrong_body(document: bytes) -> None:
    body = values(from_openapi(document, "/orders", num=1))[0]
    wrong = ask("/orders", [json.dumps({**body, "exact": 8}).encode()])
    assert wrong[0].status_code == 422


def test_of_an_object_or_a_list_it_is_the_object(document: bytes) -> None:
    bodies = from_openapi(document, "/either", num=3).bodies
    assert [answer.json() for answer in ask("/either", bodies)] == ["Card"] * 3


def test_numbers_are_like_their_examples_and_within_bounds(document: bytes) -> None:
    found = values(from_openapi(document, "/shops/north/orders", num=DRAWS))
    rates = sorted(row["rate"] for row in found)
    assert rates[0] >= 1000
    assert 1200 < rates[DRAWS // 2] < 3000
    assert 20 < sorted(row["count"] for row in found)[DRAWS // 2] < 80
    assert {row["word"] for row in found} == {"hello"}


def test_optional_properties_come_and_go_and_null_defaults_stay_away(document: bytes) -> None:
    found = values(from_openapi(document, "/orders", num=DRAWS))
    present = sum("level" in row for row in found)
    assert DRAWS * 0.3 < present < DRAWS * 0.7
    optional = {"on": {"type": "integer"}, "off": {"type": "integer", "default": None}}
    schema = {"type": "object", "properties": optional}
    drawn = [tuple(row) for row in values(from_openapi(described(schema), "/p", num=DRAWS))]
    assert set(drawn) == {(), ("on",)}


def test_a_seed_gives_the_same_bodies(document: bytes) -> None:
    assert from_openapi(document, "/orders", num=9) == from_openapi(document, "/orders", num=9)
    one, other = (from_openapi(document, "/orders", num=9, seed=seed) for seed in (1, 2))
    assert one.bodies != other.bodies


def test_a_path_below_a_prefix_is_found(document: bytes) -> None:
    assert from_openapi(document, "/api/v1/either", num=1).source == "openapi POST /either"
    assert from_openapi(document, "/x/shops/a/orders", num=1).source.endswith("/{name}/orders")


@pytest.mark.parametrize(
    ("path", "method", "problem"),
    [
        ("/nothing", "POST", "has no path /nothing, but /orders, /either"),
        ("/orders", "PUT", "has no PUT /orders"),
        ("/health", "GET", "takes no body, not JSON"),
        ("/open", "POST", "does not say what the body holds"),
    ],
)
def test_what_is_not_described_says_what_to_do(
    document: bytes, path: str, method: str, problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem) as caught:
        from_openapi(document, path, method)
    assert "give --data or --template" in str(caught.value)


def described(schema: Any, **components: Any) -> dict[str, Any]:
    media = {"application/json": {"schema": schema}}
    return {
        "openapi": "3.0.3",
        "paths": {"/p": {"post": {"requestBody": {"content": media}}}},
        "components": {"schemas": components},
    }


@pytest.mark.parametrize(
    ("schema", "check"),
    [
        (
            {"type": "number", "minimum": 5, "exclusiveMinimum": True, "maximum": 5.5},
            "5 < v <= 5.5",
        ),
        ({"type": "integer", "minimum": 5, "exclusiveMinimum": True, "maximum": 6}, "v == 6"),
        ({"minimum": 2, "maximum": 3}, "2 <= v <= 3"),
        ({"type": "string", "nullable": True, "enum": ["x", None]}, "v == 'x'"),
        (
            {"allOf": [{"$ref": "#/components/schemas/A"}, {"required": ["b"]}]},
            "v['b'] in (True, False)",
        ),
        (
            {"allOf": [{"type": "number", "minimum": 1}, {"minimum": 3, "maximum": 3.5}]},
            "3 <= v <= 3.5",
        ),
        ({"oneOf": [{"type": "null"}, {"const": 4}]}, "v == 4"),
        ({"type": "object", "required": ["free"]}, "isinstance(v['free'], str)"),
        (
            {
                "type": "object",
                "minProperties": 2,
                "additionalProperties": {"const": 1},
                "example": None,
            },
            "list(v.values()) == [1, 1]",
        ),
        (
            {"type": "array", "items": {"type": "boolean"}, "minItems": 3, "maxItems": 3},
            "len(v) == 3",
        ),
        ({"type": ["null", "string"], "maxLength": 3, "minLength": 3}, "len(v) == 3"),
        (
            {"type": "string", "pattern": "(?i)x|\\S\\W[^a-z]\\d.+?", "maxLength": 9},
            "0 < len(v) <= 9",
        ),
        ({"type": "string", "pattern": "[", "example": "as told"}, "v == 'as told'"),
        (
            {"type": "number", "multipleOf": 0.01, "minimum": 0.05, "maximum": 0.07},
            "v in (.05, .06, .07)",
        ),
        ({"example": {"as": "given"}}, "v == {'as': 'given'}"),
    ],
)
def test_what_schemas_say(schema: Any, check: str) -> None:
    parts = {"A": {"type": "object", "properties": {"b": {"type": "boolean"}}}}
    for value in values(from_openapi(described(schema, **parts), "/p", num=30)):
        assert eval(check, {"v": value}), value


def test_examples_beside_the_schema_count() -> None:
    document = described({"type": "object"})
    media = document["paths"]["/p"]["post"]["requestBody"]["content"]["application/json"]
    document["components"]["examples"] = {"e": {"value": {"a": 2}}}
    media["examples"] = {"one": {"$ref": "#/components/examples/e"}}
    assert values(from_openapi(document, "/p", num=1)) == [{"a": 2}]
    del media["examples"]
    media["example"] = {"a": 3}
    assert values(from_openapi(document, "/p", num=1)) == [{"a": 3}]


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ({"$ref": "other.json#/A"}, "refers to another file"),
        ({"$ref": "#/components/schemas/B"}, "nothing at #/components/schemas/B"),
        ({"$ref": "#/components/schemas/Loop"}, "never ends"),
        ({"$ref": "#/components/schemas/Self"}, "contains itself"),
        ({"$ref": "#/components/schemas/Deep"}, "contains itself without end"),
        ({"allOf": [{"$ref": "#/components/schemas/Inside"}]}, "contains itself"),
        (
            {"properties": {"a": {"minimum": 3, "maximum": 2}}, "required": ["a"]},
            "a: there is no number",
        ),
        (
            {"properties": {"a": {"type": "string", "pattern": "[a"}}, "required": ["a"]},
            "a: cannot make",
        ),
        ({"type": "string", "minLength": 3, "maxLength": 2}, "at least 3 and at most 2"),
        (
            {"type": "array", "minItems": 3, "uniqueItems": True, "items": {"enum": [1, 2]}},
            "3 different",
        ),
        ({"type": "array", "minItems": 10**7}, "10,000,000 items"),
        ({}, "does not say"),
        ("text", "something else"),
    ],
)
def test_what_cannot_be_drawn_is_named(schema: Any, problem: str) -> None:
    parts = {
        "Loop": {"$ref": "#/components/schemas/Loop"},
        "Self": {"anyOf": [{"$ref": "#/components/schemas/Self"}]},
        "Deep": {
            "type": "object",
            "properties": {"deep": {"$ref": "#/components/schemas/Deep"}},
            "required": ["deep"],
        },
        "Inside": {"allOf": [{"$ref": "#/components/schemas/Inside"}]},
    }
    with pytest.raises(ConfigError, match=problem):
        from_openapi(described(schema, **parts), "/p")


@pytest.mark.parametrize(
    "document", [b"", b"[]", b"\xff", b"{}", b'{"swagger": "2.0", "paths": {}}']
)
def test_what_is_no_document_is_refused(document: bytes) -> None:
    with pytest.raises(ConfigError, match="give --data or --template"):
        from_openapi(document, "/p")


# --- descriptions that nobody can draw from, meant so or not


def holding(schema: Any, **more: Any) -> dict[str, Any]:
    """A schema of objects that hold one of another."""
    return {"type": "object", "properties": {"a": schema}, "required": ["a"], **more}


def referring(name: str, inner: Any, levels: int) -> dict[str, Any]:
    """Schemas that each stand for two of the next."""
    found = {
        f"{name}{level}": inner({"$ref": f"#/components/schemas/{name}{level + 1}"})
        for level in range(levels)
    }
    return found | {f"{name}{levels}": {"type": "integer"}}


CHAIN = referring("A", lambda next_: {"anyOf": [next_, next_]}, 28)
TREE = referring("T", lambda next_: holding(next_, properties={"l": next_, "r": next_}), 24)
for _level in list(TREE.values())[:-1]:
    _level["required"] = ["l", "r"]


def items(kind: Any, num: int) -> dict[str, Any]:
    return {"type": "array", "minItems": num, "items": kind}


BOMBS: dict[str, Any] = {
    "a tree of two to the 24": {"$ref": "#/components/schemas/T0"},
    "lists of lists": holding(items(items({"type": "integer"}, MAX_ITEMS), MAX_ITEMS)),
    "a text of 20 MB": holding({"type": "string", "minLength": 2 * 10**7}),
    "a text of 2 GB": holding({"type": "string", "minLength": 2 * 10**9}),
    "a pattern of 99^5": holding({"type": "string", "pattern": "^((((a{99}){99}){99}){99}){99}$"}),
    "a pattern that never matches": holding(
        {"type": "string", "pattern": "^(a|a)*b(?=c)$", "minLength": 40}
    ),
    "nested repeats": holding({"type": "string", "pattern": "^(((a*)*)*)*$", "minLength": 2000}),
    "nothing a billion times": holding({"type": "string", "pattern": "(|a){1000000000}"}),
    "a billion properties": {
        "type": "object",
        "additionalProperties": {"type": "integer"},
        "minProperties": 10**9,
    },
    "a long name again and again": holding(items({"required": ["x" * 10**6]}, 50_000)),
    "a large constant again and again": holding(items({"const": "x" * 10**6}, 50_000)),
    "a large example again and again": holding(items({"example": ["x" * 10**6]}, 50_000)),
    "a million choices": holding(items({"enum": list(range(10**6))}, 1000)),
    "choices against choices": {"allOf": [holding({"enum": list(range(50_000))})] * 2},
    "parts beyond number": {
        "allOf": [{"properties": {f"p{at}": {"const": 1}}} for at in range(20_000)]
    },
    "properties beyond number": {"properties": {f"p{at}": {} for at in range(100_000)}},
    "steps too fine": holding(
        items({"multipleOf": 1e-299, "minimum": 0.1, "maximum": 0.2}, MAX_ITEMS)
    ),
    "different ones": holding({**items({"type": "integer"}, 3000), "uniqueItems": True}),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_description_that_asks_for_too_much_is_refused_soon(name: str) -> None:
    document = described(BOMBS[name], **TREE)
    began = time.process_time()
    with pytest.raises(ConfigError, match="give --data or --template"):
        from_openapi(document, "/p")
    assert time.process_time() - began < 6.0  # seconds; 2 are usual


def test_branches_of_branches_are_looked_at_once() -> None:
    found = from_openapi(described(holding({"$ref": "#/components/schemas/A0"}), **CHAIN), "/p")
    assert len(found.bodies) == 1000
    assert isinstance(values(found)[0]["a"], int)


def test_an_ordinary_pattern_with_a_length_is_drawn() -> None:
    text = {"type": "string", "pattern": "^(a+)+$", "minLength": 30, "maxLength": 40}
    found = values(from_openapi(described(holding(text)), "/p", num=100))
    assert {len(value["a"]) for value in found} <= set(range(30, 41))
    assert {character for value in found for character in value["a"]} == {"a"}


def test_of_large_bodies_there_are_fewer_and_of_the_largest_none() -> None:
    def of(num: int) -> Payloads:
        return from_openapi(described(holding(items({"type": "number"}, num))), "/p")

    assert len(of(10).bodies) == 1000
    assert FEWEST_BODIES <= len(of(1000).bodies) < 1000
    with pytest.raises(ConfigError, match="too large to draw"):
        of(10_000)


@pytest.mark.parametrize(
    ("schema", "beyond"),
    [
        (items({"const": 1}, MAX_ITEMS), items({"const": 1}, MAX_ITEMS + 1)),
        ({"minLength": MAX_TEXT}, {"minLength": MAX_TEXT + 1}),
        (
            {"additionalProperties": {"const": 1}, "minProperties": 10_000},
            {"additionalProperties": {"const": 1}, "minProperties": MAX_ITEMS + 1},
        ),
        ({"const": "x" * (MAX_BYTES - 2)}, {"const": "x" * (MAX_BYTES - 1)}),
        ({"minimum": LARGEST}, {"minimum": 2 * LARGEST}),
        ({"type": "integer", "minimum": 2**53}, {"type": "integer", "minimum": 2**53 + 2}),
    ],
)
def test_a_single_body_may_reach_the_limit_and_no_further(schema: Any, beyond: Any) -> None:
    assert len(from_openapi(described(schema), "/p", num=1).bodies) == 1
    with pytest.raises(ConfigError, match="give --data or --template"):
        from_openapi(described(beyond), "/p", num=1)


@pytest.mark.parametrize(
    ("keyword", "value"),
    [
        *(("minItems", -5), ("maxItems", "x"), ("required", 5), ("required", [5])),
        *(("properties", [1, 2]), ("enum", {"a": 1}), ("type", ["x", 3]), ("multipleOf", 0)),
        *(("multipleOf", 1e-320), ("minimum", "1"), ("exclusiveMaximum", []), ("allOf", {})),
        *(("pattern", 5), ("format", []), ("minLength", -1), ("maximum", 10**400)),
    ],
)
def test_a_keyword_that_makes_no_sense_is_named(keyword: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"a senseless {keyword}; give --data or --template"):
        from_openapi(described(holding({keyword: value})), "/p")


@pytest.mark.parametrize("depth", [100, 100_000])
def test_a_document_may_be_nested_without_end(depth: int) -> None:
    nested = b'{"a":' * depth + b"1" + b"}" * depth
    with pytest.raises(ConfigError, match="give --data or --template"):
        from_openapi(b'{"openapi": "3.1.0", "paths": ' + nested + b"}", "/p")


def test_a_value_nested_deeply_is_refused_where_it_cannot_be_written() -> None:
    value: Any = 1
    for _ in range(2000):
        value = [value]
    with pytest.raises(ConfigError, match="nested too deeply; give --data"):
        from_openapi(described(holding({"const": value})), "/p")


JUNK: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1e300, 1.5, 10**19, 10**40, 1e-320, "", "x", "^(", "\\1", []),
    *([1], ["x", 3], [[]], {}, {"$ref": "#"}, {"$ref": 5}, {"type": 5}, "#/components"),
)
WORDS = (
    *("type", "required", "properties", "enum", "const", "allOf", "anyOf", "items", "minItems"),
    *("prefixItems", "maxItems", "minLength", "pattern", "format", "minimum", "multipleOf"),
    *("exclusiveMaximum", "minProperties", "additionalProperties", "uniqueItems", "example"),
    *("examples", "default", "$ref", "content", "schema", "requestBody", "paths", "value"),
)


def test_whatever_a_document_holds_it_is_drawn_from_or_refused(document: bytes) -> None:
    rng = random.Random(5)
    outcomes = set()
    for _ in range(500):
        spoiled = json.loads(document)
        for _ in range(rng.randint(1, 4)):
            place = rng.choice(list(_objects(spoiled)))
            place[rng.choice([*WORDS, *place])] = json.loads(json.dumps(rng.choice(JUNK)))
        try:
            outcomes.add(len(from_openapi(json.dumps(spoiled).encode(), "/orders", num=2).bodies))
        except ConfigError:
            outcomes.add(0)
    assert outcomes == {0, 2}


def _objects(node: Any) -> Iterator[dict[str, Any]]:
    inner = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    if isinstance(node, dict):
        yield node
    for each in inner:
        yield from _objects(each)


# --- the services this is for


def test_our_own_server_answers_all_of_it(tmp_path: Path) -> None:
    server = Server(tmp_path, "demo:fraud", ("--drain-delay", "0s"))
    try:
        asyncio.run(server.until_ready())
        url = f"http://127.0.0.1:{server.port}/predict"
        found = from_openapi(fetch_openapi(url), "/predict", num=DRAWS)
        headers = {"content-type": found.content_type}
        with httpx.Client() as connection:
            answers = [connection.post(url, content=body, headers=headers) for body in found.bodies]
    finally:
        server.stop()
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.json()["score"] for answer in answers}) > 20


def test_the_handmade_service_answers_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "examples"))
    handmade = importlib.import_module("handmade")
    document = handmade.create_app("m", "a", "sqlite://").openapi()
    found = from_openapi(msgspec.json.encode(document), "/predict", num=DRAWS)
    payments = [handmade.Payment.model_validate_json(body) for body in found.bodies]
    assert {payment.channel for payment in payments} == {"web", "app", "store", "line"}
