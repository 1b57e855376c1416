"""What was learned of batch times, kept in a file, so that a restart starts calibrated.

One JSON file for each model version and machine, in the cache folder: it can be deleted at any time
and costs no more than a few seconds of learning. Nothing here raises for a file or a disk: a server
without its file serves. Functions block; call them off the event loop.
"""

import contextlib
import hashlib
import os
import re
import stat
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from tailproof.core.host import cpu_model
from tailproof.core.latency_model import Sample
from tailproof.models.manifest import Manifest, digest
from tailproof.workers.cores import reader, usable_cores

FORMAT = 1
MAX_BYTES = 1 << 18
MAX_SAMPLES = 4096
MAX_SECONDS = 86400.0
KEY_SHOWN = 16
"""Hex digits of the key in the file's name; the file holds all of them."""
FILES_KEPT = 32
"""Of one model, the newest: other versions, other numbers of workers, other machines."""

Rows = Annotated[int, Meta(ge=1, le=1 << 24)]
Seconds = Annotated[float, Meta(gt=0.0, le=MAX_SECONDS)]
CpuSeconds = Annotated[float, Meta(ge=0.0, le=1e7)]


class Machine(NamedTuple):
    """What batch times depend on besides the model."""

    cpu_model: str
    num_cores: int


class _Format(msgspec.Struct):
    format: int


class _Stored(msgspec.Struct):
    """The whole file. `samples`: rows, seconds, CPU seconds."""

    format: int
    key: str
    samples: Annotated[list[tuple[Rows, Seconds, CpuSeconds | None]], Meta(max_length=MAX_SAMPLES)]


class _Refused(Exception):
    """Why a file is not used, or not written, in words for the log."""


class Calibration:
    """The file of one model version on one kind of machine."""

    def __init__(self, folder: Path | None, name: str, key: str) -> None:
        """`folder` None: nothing is kept, and the log is told once. `name` is a model's name as the
        settings allow it, and so a file's; `key` comes from `key_of`."""
        self._folder = folder
        self._name = name
        self._key = key
        self._told: str | None = None

    def load(self) -> tuple[list[Sample], str | None]:
        """The kept samples, for `LatencyModel.restore`, and why there are none, for the log.

        Without a file there is nothing to say: it is the first start.
        """
        if self._folder is None:
            return [], None
        try:
            return self._read(self._path(self._folder)), None
        except FileNotFoundError:
            return [], None
        except (OSError, _Refused) as error:
            return [], f"the kept batch times are not used: {_reason(error)}"

    def save(self, samples: Iterable[Sample]) -> str | None:
        """Keep these samples instead. Returns why that cannot be done, once for each reason."""
        try:
            if self._folder is None:
                raise _Refused("neither XDG_CACHE_HOME nor HOME names a folder")
            self._write(self._path(self._folder), self._encoded(samples))
        except (OSError, _Refused) as error:
            sentence = f"batch times are not kept for the next start: {_reason(error)}"
            is_new, self._told = sentence != self._told, sentence
            return sentence if is_new else None
        self._told = None
        return None

    def _path(self, folder: Path) -> Path:
        return folder / "calibration" / f"{self._name}-{self._key[:KEY_SHOWN]}.json"

    def _read(self, path: Path) -> list[Sample]:
        content = _content(path)
        try:
            found = msgspec.json.decode(content, type=_Format).format
            if found != FORMAT:
                raise _Refused(f"they are of format {found}, not {FORMAT}")
            stored = msgspec.json.decode(content, type=_Stored)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise _Refused("they are not what was written") from None
        if stored.key != self._key:
            raise _Refused("they are of another model or machine")
        return [*stored.samples]

    def _encoded(self, samples: Iterable[Sample]) -> bytes:
        """Only what `load` takes: a sample of 0 seconds would make it refuse the others."""
        kept = [
            (rows, seconds, cpu) for rows, seconds, cpu in samples if 0.0 < seconds <= MAX_SECONDS
        ]
        content = msgspec.json.encode(_Stored(FORMAT, self._key, kept))
        if len(kept) > MAX_SAMPLES or len(content) > MAX_BYTES:
            raise _Refused("there are too many")
        return content

    def _write(self, path: Path, content: bytes) -> None:
        """Replace the file at once, so that a reader finds the old or the new one."""
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(prefix=".", suffix=".tmp", dir=path.parent)
        try:
            with os.fdopen(descriptor, "wb") as stream:  # mode 0600, from mkstemp
                stream.write(content)
            Path(temporary).replace(path)
        except OSError:
            Path(temporary).unlink(missing_ok=True)
            raise
        self._forget_oldest(path.parent)

    def _forget_oldest(self, folder: Path) -> None:
        ours = re.compile(rf"{re.escape(self._name)}-[0-9a-f]{{{KEY_SHOWN}}}\.json")
        found = [path for path in folder.iterdir() if ours.fullmatch(path.name)]
        with contextlib.suppress(FileNotFoundError):  # another server does the same
            for path in sorted(found, key=lambda path: path.stat().st_mtime)[:-FILES_KEPT]:
                path.unlink(missing_ok=True)


def key_of(manifest: Manifest, num_workers: int, machine: Machine) -> str:
    """64 hex digits, the same whenever batches of a model must take the same time: its files (its
    source, where it has none), what computes it and how, and the cores for it."""
    facts = (
        digest(manifest.files) if manifest.files else manifest.source,
        manifest.runtime,
        manifest.engine,
        manifest.device,
        manifest.parameters,
        num_workers,
        machine,
    )
    return hashlib.sha256(msgspec.json.encode(facts, order="deterministic")).hexdigest()


def this_machine(root: Path = Path("/")) -> Machine:
    """The machine below `root` (where `proc` and `sys` are)."""
    return Machine(cpu_model(reader(root)) or "", usable_cores(root))


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path | None:
    """Where a user's caches are, after the XDG Base Directory Specification 0.8: a relative path
    is as if it was not set. None: there is no such place."""
    for variable, below in (("XDG_CACHE_HOME", ""), ("HOME", ".cache")):
        folder = Path(environ.get(variable, ""))
        if folder.is_absolute():
            return folder / below / "tailproof"
    return None


def _content(path: Path) -> bytes:
    """Of a regular file of at most MAX_BYTES; a pipe in its place is not waited for."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as stream:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise _Refused("their place is taken by something that is no file")
        content = stream.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise _Refused(f"they take more than {MAX_BYTES} bytes")
    return content


def _reason(error: OSError | _Refused) -> str:
    """Without the path, which an OSError's own text holds."""
    return str(error) if isinstance(error, _Refused) else error.strerror or type(error).__name__
