"""The bodies that a load test sends: from a file, a template, or the target's own description.

Many different ones, drawn from a seed, so that no cache of one answer can help anybody.
"""

import http.client
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

import msgspec
import numpy as np

from tailproof.core.clock import monotonic
from tailproof.core.errors import ConfigError
from tailproof.load import pages
from tailproof.load.payloads.budget import Exhausted, Undrawable
from tailproof.load.payloads.openapi import Body, request_body
from tailproof.load.payloads.templates import Template
from tailproof.reporting.files import read_regular

JSON = "application/json"
TEXT = "text/plain; charset=utf-8"

NUM_BODIES = 1_000
"""How many are drawn unless told otherwise."""
FEWEST_BODIES = 50
"""Where so many take too long to draw, there are as few as this, and with fewer none."""
MAX_BODIES = 1_000_000
MAX_FILE_BYTES = 512 * 2**20
MAX_DOCUMENT_BYTES = 16 * 2**20
MAX_DOCUMENT_PLACES = 8
"""Of a URL with a long path, so many prefixes are asked for a document."""
NEXT = "give --data or --template"


@dataclass(frozen=True, slots=True)
class Payloads:
    """Request bodies, and what a report may say about them: never their content."""

    bodies: tuple[bytes, ...]
    rows: tuple[int, ...]
    """Rows in each body: the length of its list, or 1."""
    source: str
    content_type: str
    seed: int | None = None
    """None: nothing was drawn."""

    @property
    def mean_rows(self) -> float:
        return sum(self.rows) / len(self.rows)

    def facts(self) -> dict[str, Any]:
        """For a report: where they came from, how many, how large (bytes)."""
        sizes = sorted(len(body) for body in self.bodies)
        return {
            "source": self.source,
            "bodies": len(self.bodies),
            "distinct": len(set(self.bodies)),
            "bytes": {"min": sizes[0], "median": sizes[len(sizes) // 2], "max": sizes[-1]},
            "rows": {"min": min(self.rows), "mean": self.mean_rows, "max": max(self.rows)},
            "content_type": self.content_type,
            "seed": self.seed,
        }


def from_file(path: Path | str) -> Payloads:
    """One request body a line, as it is; blank lines are skipped.

    When every line is JSON, so is the content type; else it is plain text. Raises ConfigError.
    """
    lines = _read(Path(path)).removeprefix(b"\xef\xbb\xbf").split(b"\n")
    bodies = tuple(line.removesuffix(b"\r") for line in lines if line.strip())
    if not bodies:
        raise ConfigError("--data", str(path), "the file holds no request body")
    if len(bodies) > MAX_BODIES:
        raise ConfigError("--data", str(path), f"the file holds more than {MAX_BODIES:,} lines")
    values = _values(bodies)
    if values is None and _is_json(b"\n".join(lines)):
        problem = "this is one JSON document over several lines: write one request body a line"
        raise ConfigError("--data", str(path), problem)
    rows = (1,) * len(bodies) if values is None else tuple(map(num_rows, values))
    return Payloads(bodies, rows, f"file {Path(path).name}", TEXT if values is None else JSON)


def from_template(text: str, num: int = NUM_BODIES, seed: int = 1) -> Payloads:
    """`num` JSON bodies from a template such as `{"amount": {{uniform 100 50000}}}`.

    The rules are those of `templates`. Raises ConfigError when a rule is wrong or what comes
    out is no JSON.
    """
    template = Template(text)
    rng = np.random.default_rng(seed)
    bodies = tuple(template.draw(rng, index).encode() for index in range(num))
    return Payloads(bodies, _rows_of(bodies), "template", JSON, seed)


def from_openapi(
    document: bytes | Mapping[str, Any],
    path: str,
    method: str = "POST",
    num: int = NUM_BODIES,
    seed: int = 1,
) -> Payloads:
    """`num` JSON bodies that an OpenAPI document says `method path` takes; fewer, but at least
    FEWEST_BODIES, where so many would take more than about two seconds.

    Raises ConfigError when it says no such thing, or says it in a way that cannot be drawn from.
    """
    if isinstance(document, bytes):
        try:
            document = msgspec.json.decode(document, type=dict[str, Any])
        except _NO_JSON as error:
            problem = f"its OpenAPI document is no JSON object ({error}); {NEXT}"
            raise ConfigError("URL", path, problem) from None
    try:
        body = request_body(document, path, method)
        bodies, rows = zip(*_drawn(body, num, np.random.default_rng(seed)), strict=True)
    except Undrawable as error:
        raise ConfigError("URL", path, f"{error}; {NEXT}") from None
    except RecursionError:
        problem = f"the OpenAPI document is nested too deeply; {NEXT}"
        raise ConfigError("URL", path, problem) from None
    return Payloads(bodies, rows, f"openapi {method} {body.path}", JSON, seed)


def _drawn(body: Body, num: int, rng: np.random.Generator) -> list[tuple[bytes, int]]:
    """Bodies and their rows: `num`, or as many as may be drawn. Raises Undrawable."""
    found: list[tuple[bytes, int]] = []
    try:
        while len(found) < num:
            value = body.draw(rng)
            found.append((msgspec.json.encode(value), num_rows(value)))
    except Exhausted:
        if len(found) < min(num, FEWEST_BODIES):
            raise
    return found


def fetch_openapi(
    url: str,
    headers: Sequence[tuple[str, str]] = (),
    timeout: float = 10.0,
    context: ssl.SSLContext | None = None,
) -> bytes:
    """The target's `openapi.json`: beside the URL's path, then further up to the root.

    `timeout` (seconds) is for all of it. No redirect is followed: `headers` may hold a secret.
    Raises ConfigError when the target cannot be reached or has no such document.
    """
    parts = urlsplit(url)
    origin = parts.scheme, parts.hostname or "", parts.port
    deadline = monotonic() + timeout
    said = []
    for place in _places(parts.path):
        try:
            status, body = pages.get(
                origin,
                place,
                seconds=max(0.001, deadline - monotonic()),
                most=MAX_DOCUMENT_BYTES,
                headers={"Accept": JSON, **dict(headers)},
                context=context,
            )
        except (OSError, ValueError, http.client.HTTPException) as error:
            problem = f"{place} cannot be read: {error or type(error).__name__}; is it up? If it "
            raise ConfigError("URL", _shown(parts), f"{problem}has none, {NEXT}") from None
        if status == 200 and _describes_paths(body):
            return body
        said.append(f"{place} answers {status}{' (no OpenAPI)' if status == 200 else ''}")
    raise ConfigError("URL", _shown(parts), f"no OpenAPI document: {', '.join(said)}; {NEXT}")


def num_rows(value: Any) -> int:
    """How many rows a JSON body asks about: 1, or the length of the list that it is or holds.

    Known besides a plain list: `instances`, `inputs`, `dataframe_records`, `dataframe_split`, and
    the shape of the first tensor of the Open Inference Protocol.
    """
    if not isinstance(value, dict):
        return _length(value)
    if isinstance(split := value.get("dataframe_split"), dict):
        return _length(split.get("data"))
    found = next((value[key] for key in _HOLDERS if key in value), None)
    if isinstance(found, dict):  # a list for each column
        return _length(next(iter(found.values()), None))
    if isinstance(found, list) and found and isinstance(found[0], dict) and _shape(found[0]):
        return max(1, _shape(found[0])[0])
    return _length(found)


def _length(value: Any) -> int:
    return max(1, len(value)) if isinstance(value, list) else 1


_HOLDERS = ("instances", "inputs", "dataframe_records")


def _shape(tensor: dict[str, Any]) -> list[int]:
    shape = tensor.get("shape")
    named = isinstance(shape, list) and "name" in tensor
    return [size for size in shape if isinstance(size, int)] if named and shape else []


def _rows_of(bodies: Sequence[bytes]) -> tuple[int, ...]:
    return tuple(num_rows(msgspec.json.decode(body)) for body in bodies)


_NO_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What reading something else raises, or something nested a thousand deep."""


def _values(bodies: Sequence[bytes]) -> list[Any] | None:
    """The bodies as JSON values; None: one of them is none."""
    try:
        return [msgspec.json.decode(body) for body in bodies]
    except _NO_JSON:
        return None


def _is_json(text: bytes) -> bool:
    return _values([text]) is not None


def _read(path: Path) -> bytes:
    try:
        return read_regular(path, MAX_FILE_BYTES)
    except OSError as error:
        raise ConfigError("--data", str(path), error.strerror or "cannot be read") from None


def _places(path: str) -> list[str]:
    """Where the document may be: `/a/b/predict` -> `/a/b/openapi.json`, `/a/...`, `/...`."""
    prefix = [part for part in path.split("/") if part][:-1]
    ends = range(min(len(prefix), MAX_DOCUMENT_PLACES - 1), -1, -1)
    return ["/" + "/".join([*prefix[:end], "openapi.json"]) for end in ends]


def _describes_paths(body: bytes) -> bool:
    values = _values([body])
    document = values[0] if values else None
    return isinstance(document, dict) and isinstance(document.get("paths"), dict)


def _shown(parts: SplitResult) -> str:
    """The URL without user, password and query."""
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path}"
