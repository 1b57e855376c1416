"""Values drawn from a JSON Schema, as OpenAPI 3.0 and 3.1 write it.

Numbers and texts are like the examples, where there are some, and always within the bounds. Of
`anyOf` and `oneOf` the first branch counts. An optional property is there in half of the values;
one whose default is null never.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import chain, islice
from typing import Any

import msgspec
import numpy as np

from tailproof.load.payloads.budget import Budget, Undrawable
from tailproof.load.payloads.scalars import LARGEST, is_number, number, text
from tailproof.load.payloads.templates import words

MAX_DEPTH = 32
"""Values nested deeper are given up: a schema that contains itself without end."""
SHALLOW = 6
"""From this depth on, optional properties are left out."""
MAX_ITEMS = 100_000
"""In a list, or properties of a map."""
MAX_HINTS = 100
"""So many examples of one value are looked at."""
_TRIES = 50

Path = tuple[str, ...]
"""Where in the body a value stands."""


class Schemas:
    """The schemas of one OpenAPI document (a JSON object, read)."""

    def __init__(self, document: Mapping[str, Any], budget: Budget) -> None:
        self._document = document
        self.budget = budget
        self._flattened: dict[tuple[int, bool], tuple[Any, dict[str, Any]]] = {}
        """By identity; each with its schema, which must not go before."""

    def resolve(self, node: Any) -> dict[str, Any]:
        """The object that a `$ref` stands for, however often it is passed on; keywords beside a
        `$ref` count too. Raises Undrawable."""
        found = node
        beside: dict[str, Any] = {}
        for _ in range(MAX_DEPTH):
            if not isinstance(found, dict):
                raise Undrawable("the OpenAPI document has something else where an object belongs")
            self.budget.spend(8 + len(found) + len(beside))
            if "$ref" not in found:
                return {**found, **beside}
            beside = {**{key: found[key] for key in found if key != "$ref"}, **beside}
            found = self._target(found["$ref"])
        raise Undrawable("the OpenAPI document has a reference that never ends")

    def draw_body(self, schema: Any, rng: np.random.Generator, examples: Sequence[Any]) -> Any:
        """A whole body: an object where that is one of the choices. Raises Undrawable."""
        flat = self._flat(schema, prefer_object=True)
        if _is_open(flat) and not (_decided(flat) or _hints(flat, examples)):
            raise Undrawable("the OpenAPI document does not say what the body holds")
        return self._draw(flat, rng, examples, ())

    def _target(self, reference: Any) -> Any:
        if not isinstance(reference, str) or not reference.startswith("#/"):
            raise Undrawable(f"the OpenAPI document refers to another file: {_cut(reference)}")
        self.budget.spend(len(reference))
        node: Any = self._document
        for part in reference[2:].split("/"):
            key = part.replace("~1", "/").replace("~0", "~")
            if not isinstance(node, Mapping) or key not in node:
                raise Undrawable(f"the OpenAPI document has nothing at {_cut(reference)}")
            node = node[key]
        return node

    def _flat(self, schema: Any, *, prefer_object: bool = False, depth: int = 0) -> dict[str, Any]:
        """The schema with its references and branches put into one object. It is kept, not to be
        changed, and the same for the same schema."""
        if schema is True:
            return _ANYTHING
        if depth > MAX_DEPTH:
            raise Undrawable("the OpenAPI document has a schema that contains itself")
        self.budget.spend(1)
        key = id(schema), prefer_object
        if key not in self._flattened:
            flat = self._flatten(schema, prefer_object=prefer_object, depth=depth)
            self._flattened[key] = schema, flat
        return self._flattened[key][1]

    def _flatten(self, schema: Any, *, prefer_object: bool, depth: int) -> dict[str, Any]:
        flat = _checked(self.resolve(schema))
        for part in flat.pop("allOf", ()):
            other = self._flat(part, prefer_object=prefer_object, depth=depth + 1)
            flat = self._merged(flat, other)
        for choice in ("anyOf", "oneOf"):
            branches = [
                self._flat(part, prefer_object=prefer_object, depth=depth + 1)
                for part in flat.pop(choice, ())
            ]
            if branches:
                flat = self._merged(flat, _first(branches, prefer_object=prefer_object))
        return flat

    def _merged(self, one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
        """A schema for values that satisfy both."""
        for flat in (one, other):
            parts = (flat, flat.get("properties", ()), flat.get("required", ()))
            self.budget.spend(sum(map(len, parts)))
        if "enum" in one and "enum" in other:
            self.budget.spend(len(one["enum"]) * len(other["enum"]))
        return _merged(one, other)

    def _draw(
        self, schema: Any, rng: np.random.Generator, examples: Sequence[Any], path: Path
    ) -> Any:
        if len(path) > MAX_DEPTH:
            raise Undrawable(f"{_at(path[:3])} contains itself without end")
        flat = self._flat(schema)
        self.budget.spend(8 + len(examples) + len(flat.get("enum", ())) // 16)
        if decided := _decided(flat):
            return self.budget.give(decided[rng.integers(len(decided))])
        hints, kind = _hints(flat, examples), _type(flat)
        if kind == "object":
            return self._object(flat, rng, hints, path)
        if kind == "array":
            return self._array(flat, rng, hints, path)
        try:
            return _SCALARS.get(kind, _anything)(flat, rng, hints, self.budget)
        except Undrawable as error:
            raise type(error)(f"{_at(path)}: {error}") from None

    def _object(
        self, flat: dict[str, Any], rng: np.random.Generator, hints: list[Any], path: Path
    ) -> dict[str, Any]:
        examples = [hint for hint in hints if isinstance(hint, dict)]
        if not (flat.get("properties") or flat.get("required")) and examples:
            example: dict[str, Any] = self.budget.give(examples[rng.integers(len(examples))])
            return example
        found = {}
        for name, schema in self._members(flat, rng, path).items():
            self.budget.spend_bytes(len(name))
            self.budget.spend(len(examples))
            given = [each[name] for each in examples if name in each]
            found[name] = self._draw(schema, rng, given, (*path, name))
        return found

    def _members(
        self, flat: dict[str, Any], rng: np.random.Generator, path: Path
    ) -> dict[str, Any]:
        """The properties that an object has this time, each with its schema."""
        properties: dict[str, Any] = flat.get("properties", {})
        required = dict.fromkeys(flat.get("required", ()))
        self.budget.spend(len(properties) + len(required))
        found = {
            name: schema
            for name, schema in properties.items()
            if name in required or self._wanted(schema, rng, path)
        }
        found |= {name: _ANYTHING for name in required if name not in properties}
        others = flat.get("additionalProperties")
        is_map = isinstance(others, dict) and not properties
        least = max(int(flat.get("minProperties", 0)), int(is_map))
        if least > MAX_ITEMS:
            raise Undrawable(f"{_at(path)} cannot have {least:,} properties")
        self.budget.spend(least)
        spare = {name: schema for name, schema in properties.items() if name not in found}
        spare |= {f"key{place}": others if is_map else _ANYTHING for place in range(least)}
        return found | dict(list(spare.items())[: max(0, least - len(found))])

    def _wanted(self, schema: Any, rng: np.random.Generator, path: Path) -> bool:
        """Whether an optional property is drawn this time."""
        self.budget.spend(2)
        half = bool(rng.integers(2))  # drawn in any case: one choice does not move the others
        flat = self._flat(schema)
        is_off = flat.get("default", ...) is None or flat.get("readOnly") is True
        return half and not is_off and len(path) < SHALLOW

    def _array(
        self, flat: dict[str, Any], rng: np.random.Generator, hints: list[Any], path: Path
    ) -> list[Any]:
        lists = [hint for hint in hints if isinstance(hint, list)]
        examples = list(islice(chain.from_iterable(lists), MAX_HINTS))
        first: list[Any] = flat.get("prefixItems", [])
        most = int(flat.get("maxItems", MAX_ITEMS))
        least = max(int(flat.get("minItems", min(1, most))), len(first))
        if most < least or least > MAX_ITEMS:
            raise Undrawable(f"{_at(path)} cannot have {least:,} items")
        items, is_set = flat.get("items", _ANYTHING), bool(flat.get("uniqueItems"))
        found: dict[bytes | int, Any] = {}
        num = int(rng.integers(least, min(most, max(least, 3)), endpoint=True))
        for place in range(num):
            kind = first[place] if place < len(first) else items
            for _ in range(_TRIES if is_set else 1):
                value = self._draw(kind, rng, examples, (*path, str(place)))
                key = self._written(value) if is_set else place
                if key not in found:
                    found[key] = value
                    break
        if len(found) < least:
            raise Undrawable(f"{_at(path)} cannot have {least} different items")
        return list(found.values())

    def _written(self, value: Any) -> bytes:
        written = msgspec.json.encode(value)
        self.budget.spend(len(written) // 256)
        return written


def _first(branches: list[dict[str, Any]], *, prefer_object: bool) -> dict[str, Any]:
    """The branch that counts: the first that is not null, or the first object."""
    real = [branch for branch in branches if _type(branch) != "null"] or branches
    objects = [branch for branch in real if _type(branch) == "object"]
    return (objects or real)[0] if prefer_object else real[0]


_TIGHTER = {
    **dict.fromkeys(("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"), max),
    **dict.fromkeys(("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"), min),
}


_ANYTHING: dict[str, Any] = {}

_Check = Callable[[Any], bool]


def _is_count(value: Any) -> bool:
    return is_number(value) and value >= 0


def _is_limit(value: Any) -> bool:
    return isinstance(value, bool) or is_number(value)


def _is_step(value: Any) -> bool:
    return is_number(value) and value * LARGEST >= 1.0


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


_CHECKS: dict[str, _Check] = {
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems"), _is_count),
    **dict.fromkeys(("minProperties", "maxProperties"), _is_count),
    **dict.fromkeys(("minimum", "maximum"), is_number),
    **dict.fromkeys(("exclusiveMinimum", "exclusiveMaximum"), _is_limit),
    **dict.fromkeys(("allOf", "anyOf", "oneOf", "enum", "prefixItems"), _is_list),
    **dict.fromkeys(("pattern", "format"), _is_text),
    "multipleOf": _is_step,
    "properties": lambda value: isinstance(value, dict),
    "required": _is_names,
    "type": lambda value: _is_text(value) or _is_names(value),
}
"""What the keywords must be that we rely on."""


def _checked(schema: dict[str, Any]) -> dict[str, Any]:
    """The same without keywords that are null. Raises Undrawable for one that makes no sense."""
    wrong = (key for key, is_right in _CHECKS.items() if not is_right(schema.get(key)))
    for key in wrong:
        if schema.get(key) is not None:
            raise Undrawable(f"the OpenAPI document has a senseless {key}")
    return {key: value for key, value in schema.items() if value is not None or key not in _CHECKS}


def _merged(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """A schema for values that satisfy both."""
    found = {**other, **one}
    for key in one.keys() & other.keys():
        if key in _TIGHTER:
            found[key] = _TIGHTER[key](one[key], other[key])
    if "enum" in one and "enum" in other:
        found["enum"] = [value for value in one["enum"] if value in other["enum"]]
    mine, theirs = one.get("properties", {}), other.get("properties", {})
    if mine or theirs:
        both = {key: {"allOf": [mine[key], theirs[key]]} for key in mine.keys() & theirs.keys()}
        found["properties"] = {**theirs, **mine, **both}
    required = dict.fromkeys([*other.get("required", ()), *one.get("required", ())])
    return {**found, "required": list(required)} if required else found


def _decided(flat: Mapping[str, Any]) -> list[Any]:
    """The values that are listed one by one; null only where there is no other."""
    if "const" in flat:
        return [flat["const"]]
    listed: list[Any] = flat.get("enum", [])
    return [value for value in listed if value is not None] or listed


def _hints(flat: Mapping[str, Any], inherited: Sequence[Any]) -> list[Any]:
    """Values that were given as examples: the schema's own, else those of what it is part of,
    else its default."""
    own = flat["examples"][:MAX_HINTS] if isinstance(flat.get("examples"), list) else []
    own += [flat["example"]] if "example" in flat else []
    default = [flat["default"]] if flat.get("default") is not None else []
    return own or list(inherited) or default


_BY_KEYWORD = {
    **dict.fromkeys(("properties", "additionalProperties"), "object"),
    **dict.fromkeys(("items", "prefixItems", "minItems", "maxItems"), "array"),
    **dict.fromkeys(("pattern", "minLength", "maxLength"), "string"),
    **dict.fromkeys(("minimum", "maximum", "multipleOf"), "number"),
    **dict.fromkeys(("exclusiveMinimum", "exclusiveMaximum"), "number"),
}


def _type(flat: Mapping[str, Any]) -> str | None:
    """The (first) type of a value, also where only its keywords tell; None: anything."""
    told = flat.get("type")
    if isinstance(told, list):
        return next((name for name in told if name != "null"), "null")
    return told or next((kind for key, kind in _BY_KEYWORD.items() if key in flat), None)


def _is_open(flat: Mapping[str, Any]) -> bool:
    """Whether it says no more than that anything, or any object, will do."""
    kind = _type(flat)
    told = flat.get("properties") or flat.get("required")
    return kind is None or (
        kind == "object" and not told and not isinstance(flat.get("additionalProperties"), dict)
    )


def _at(path: Path) -> str:
    return _cut(".".join(map(_cut, path))) or "the body"


def _cut(name: Any) -> str:
    """No longer than what a person reads."""
    return str(name)[:200]


def _anything(
    flat: Mapping[str, Any], rng: np.random.Generator, hints: Sequence[Any], budget: Budget
) -> Any:
    del flat  # says nothing
    return budget.give(hints[int(rng.integers(len(hints)))]) if hints else words(rng, 1)


def _yes_or_no(
    flat: Mapping[str, Any], rng: np.random.Generator, hints: Sequence[Any], budget: Budget
) -> bool:
    del flat, hints, budget
    return bool(rng.integers(2))


def _nothing(
    flat: Mapping[str, Any], rng: np.random.Generator, hints: Sequence[Any], budget: Budget
) -> None:
    del flat, rng, hints, budget


_Scalar = Callable[[Mapping[str, Any], np.random.Generator, Sequence[Any], Budget], Any]
_SCALARS: dict[str | None, _Scalar] = {
    "string": text,
    "number": number,
    "integer": number,
    "boolean": _yes_or_no,
    "null": _nothing,
}
