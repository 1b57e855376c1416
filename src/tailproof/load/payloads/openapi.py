"""What an OpenAPI 3 document says about the body of one operation."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from tailproof.load.payloads.budget import Budget, Undrawable
from tailproof.load.payloads.schemas import MAX_HINTS, Schemas


@dataclass(frozen=True, slots=True)
class Body:
    """The JSON body that an operation takes."""

    path: str
    """As the document writes it: `/models/{name}/predict`."""
    schema: Any
    examples: tuple[Any, ...]
    schemas: Schemas

    def draw(self, rng: np.random.Generator) -> Any:
        """A body. Where it may be an object or a list, it is the object. Raises Undrawable."""
        return self.schemas.draw_body(self.schema, rng, self.examples)


def request_body(document: Mapping[str, Any], path: str, method: str) -> Body:
    """The body of `method path`; of a mounted application the path may have a prefix that the
    document does not know. Raises Undrawable, saying what there is instead."""
    schemas = Schemas(document, Budget())
    paths = document.get("paths")
    if not isinstance(paths, Mapping) or not str(document.get("openapi", "")).startswith("3."):
        raise Undrawable("its OpenAPI document is not of version 3")
    found = _find(paths, path)
    if found is None:
        raise Undrawable(f"the OpenAPI document has no path {path}, but {_some(list(paths))}")
    operation = schemas.resolve(paths[found]).get(method.lower())
    if operation is None:
        raise Undrawable(f"the OpenAPI document has no {method.upper()} {found}")
    body = schemas.resolve(schemas.resolve(operation).get("requestBody") or {})
    content = schemas.resolve(body.get("content") or {})
    kind = next((name for name in content if _is_json(name)), None)
    if kind is None:
        takes = _some(list(content)) if content else "no body"
        raise Undrawable(f"{method.upper()} {found} takes {takes}, not JSON")
    media = schemas.resolve(content[kind])
    examples = tuple(islice(_examples(media, schemas), MAX_HINTS))
    return Body(found, media.get("schema", {}), examples, schemas)


def _find(paths: Mapping[str, Any], path: str) -> str | None:
    """The document's path for a URL's: the same, or with {names}; else of the URL without its
    first parts."""
    known = {name: _parts(name) for name in paths}
    parts = _parts(path)
    for first in range(len(parts) + 1):
        rest = parts[first:]
        same = [name for name in known if known[name] == rest]
        fitting = [name for name in known if _fits(known[name], rest)]
        if same or fitting:
            return (same or fitting)[0]
    return None


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part]


def _fits(template: list[str], parts: list[str]) -> bool:
    return (
        bool(parts)
        and len(template) == len(parts)
        and all("{" in ours or ours == part for ours, part in zip(template, parts, strict=True))
    )


def _is_json(media_type: str) -> bool:
    kind = media_type.partition(";")[0].strip().lower()
    return kind in ("application/json", "*/*", "application/*") or kind.endswith("+json")


def _examples(media: Mapping[str, Any], schemas: Schemas) -> Iterator[Any]:
    if "example" in media:
        yield media["example"]
    for example in schemas.resolve(media.get("examples") or {}).values():
        found = schemas.resolve(example)
        if "value" in found:
            yield found["value"]


def _some(names: list[str]) -> str:
    return ", ".join(name[:100] for name in names[:5]) + (", ..." if len(names) > 5 else "")
