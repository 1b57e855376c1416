"""What is served: the facts of one loaded model version, as `/model` tells them."""

import hashlib
from pathlib import Path
from typing import Any

import msgspec

from tailproof.models.signature import Signature


class ModelFile(msgspec.Struct, frozen=True):
    """One file of the model. `path` is relative to the model's own folder."""

    path: str
    sha256: str
    num_bytes: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """Declared or measured facts; what nobody declared is absent, never invented."""

    name: str
    source: str
    runtime: str
    signature: Signature
    version: str | None = None
    alias: str | None = None
    engine: str | None = None
    """Library and version that computes, e.g. `scikit-learn 1.9.1`."""
    device: str = "cpu"
    files: tuple[ModelFile, ...] = ()
    parameters: dict[str, Any] = {}
    """The method, class and constants that the runtime was set up with."""
    training_data: str | None = None
    licence: str | None = None
    max_rows: int | None = None
    """The most rows that the model itself takes at once; None: no bound of its own."""


def files_of(path: Path) -> tuple[ModelFile, ...]:
    """Name, SHA-256 and size of a model file, or of every file below a model folder.

    Sorted by the text of their paths, as `LC_ALL=C sort` does.
    """
    if path.is_file():
        return (_file(path, path.name),)
    names = (item.relative_to(path).as_posix() for item in path.rglob("*") if item.is_file())
    return tuple(_file(path / name, name) for name in sorted(names))


def digest(files: tuple[ModelFile, ...]) -> str:
    """`sha256:<hex>` of a whole model.

    Of one file: its own SHA-256. Of a folder: the SHA-256 of the lines `<sha256>  <path>\\n` in
    order of path, which is what `sha256sum` prints for them.
    """
    if len(files) == 1:
        return f"sha256:{files[0].sha256}"
    lines = "".join(f"{file.sha256}  {file.path}\n" for file in files)
    return f"sha256:{hashlib.sha256(lines.encode()).hexdigest()}"


def _file(path: Path, name: str) -> ModelFile:
    with path.open("rb") as stream:
        sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
    return ModelFile(path=name, sha256=sha256, num_bytes=path.stat().st_size)
