"""The folder of a run: written by a load test, read by reports, comparisons and plans.

    runs/20261130-191502-3f2a/
      report.json      the document (reporting/document.py)
      steps/000.npz    the columns of core.recording, one file a step
    runs/latest        a link to the newest

Steps are written as they end, so a run that was killed keeps what it had measured.
"""

import math
import os
import re
import shutil
import struct
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from zipfile import ZIP_STORED, BadZipFile, ZipFile

import msgspec
import numpy as np
import numpy.typing as npt

from tailproof.core import slo
from tailproof.core.errors import ConfigError
from tailproof.core.recording import STATUS_NAMES, Recording, columns
from tailproof.reporting.document import Document, Limit, Point
from tailproof.reporting.files import open_regular, read_regular

LATEST = "latest"
MAX_DOCUMENT_BYTES = 32 * 2**20
"""A larger report.json is not read; none of ours comes near."""
MAX_STEP_BYTES = 2**31
"""About twenty million requests; a step of more is not read."""
MAX_DEPTH = 50
"""Of values in values in a report.json."""
MAX_NAME = 128
"""Characters of the name of a replica that are written."""
_LONGEST = 1e9
"""Seconds: more than any step lasts. And requests a second: more than any tester sends."""
_LARGEST = 1e30
_ROUNDING = 1e-3
"""Seconds: so much earlier may a later moment look."""
_BAD_DOCUMENT = "its report.json is damaged or cannot be read"
_ABOUT = ("warm_up", "end", "offered", "stopped_at", "rows")


@dataclass(frozen=True, slots=True)
class StepData:
    """The records of one step. The measured window is [warm_up, end) of intended starts; it ends
    at `stopped_at` where the step was given up."""

    index: int
    recording: Recording
    warm_up: float
    end: float
    offered: float
    stopped_at: float | None = None
    rows: float = 1.0
    """Mean number of rows in a request."""

    @property
    def until(self) -> float:
        """Where the measured window really ended."""
        return self.end if self.stopped_at is None else min(self.end, self.stopped_at)

    @property
    def measured(self) -> Recording:
        """The requests that count."""
        return self.recording.between(self.warm_up, self.until)


@dataclass(frozen=True, slots=True)
class Run:
    """A recorded run. Steps are read when they are asked for."""

    path: Path
    document: Document

    def step(self, index: int) -> StepData:
        """Raises ConfigError when the step was not recorded or cannot be read."""
        return read_step(self.path, index)


def create(parent: Path, now: datetime, token: str) -> Path:
    """A new folder `parent/DATE-TIME-token`, and `parent/latest` points to it.

    Raises ConfigError when it cannot be made; nothing of it is left then.
    """
    path = parent / f"{now:%Y%m%d-%H%M%S}-{token}"
    link = parent / LATEST
    if os.path.lexists(link) and not link.is_symlink():
        problem = f"its `{LATEST}` is no link to the newest run: move it out of the way"
        raise ConfigError("--out", str(parent), problem)
    try:
        path.mkdir(parents=True)
        with _removed_if_fails(path):
            (path / "steps").mkdir()
            _point(link, path.name)
    except OSError as error:
        raise ConfigError("--out", str(parent), error.strerror or "cannot be written") from None
    return path


@contextmanager
def _removed_if_fails(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError:
        shutil.rmtree(path, ignore_errors=True)
        raise


def write_document(path: Path, document: Document) -> None:
    """Raises ConfigError when it cannot be written."""
    encoded = msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"
    with _replacing(path / "report.json") as file:
        file.write_bytes(encoded)


def write_step(path: Path, step: StepData) -> None:
    """Raises ConfigError when it cannot be written."""
    recording = step.recording
    found: dict[str, Any] = {name: getattr(recording, name) for name in columns()}
    found |= {f"about_{name}": _number(getattr(step, name)) for name in _ABOUT}
    found["replicas"] = np.array([name[:MAX_NAME] for name in recording.replicas], np.str_)
    with _replacing(_step_file(path, step.index)) as file, file.open("wb") as stream:
        np.savez(stream, **found)


def read(path: Path) -> Run:
    """The run in a folder. Raises ConfigError when there is none, it never ended or is damaged."""
    try:
        encoded = read_regular(path / "report.json", MAX_DOCUMENT_BYTES)
        document = msgspec.json.decode(encoded, type=Document)
        _require_sound(document)
        return Run(path.resolve(), document)
    except FileNotFoundError:
        problem = "no run is recorded there" if not path.is_dir() else "this run has no report"
    except OSError as error:
        problem = f"{_BAD_DOCUMENT}: {error.strerror or error}"
    except RecursionError:
        problem = f"{_BAD_DOCUMENT}: it is nested too deeply"
    except ValueError as error:  # of msgspec, and ours
        problem = f"{_BAD_DOCUMENT}: {error}"
    raise ConfigError("RUN", str(path), problem)


def _require_sound(document: Document) -> None:
    """Raises ValueError for what the types of a document let through, and no run has."""
    for text in document.slo:
        found = slo.parse(text)
        if isinstance(found, slo.Latency) and found.threshold > _LONGEST:
            raise ValueError(f"no SLO is as long as {text[:100]!r}")
    payload = {} if document.environment is None else document.environment.payload
    if _is_deep([document.confidence, payload], MAX_DEPTH):
        raise ValueError("nested too deeply")
    for key in ("false_pass", "power"):
        if not isinstance(document.confidence.get(key, 0.0), int | float):
            raise ValueError(f"{key} is no number")
    if document.limit is not None and not _is_possible_limit(document.limit):
        raise ValueError("it holds an impossible limit")
    if not all(map(_is_possible, document.points)):
        raise ValueError("it holds a step with impossible figures")


def _is_possible_limit(limit: Limit) -> bool:
    rates = [rate for rate in (limit.rate, limit.low) if rate is not None]
    low, high = limit.interval or (limit.high, limit.high)
    return (
        all(0.0 <= rate <= _LONGEST for rate in rates)
        and (limit.high is None or 0.0 < limit.high <= _LONGEST)
        and (low is None or high is None or 0.0 < low <= high <= _LONGEST)
    )


def _is_possible(point: Point) -> bool:
    counts = point.index, point.requests, point.errors, point.refused, point.connections
    rates = point.offered, point.achieved
    return (
        all(0 <= count < 2**53 for count in counts)
        and all(0.0 <= rate <= _LONGEST for rate in rates)
        and (point.offered > 0.0 or point.requests == 0)
    )


def _is_deep(value: Any, most: int) -> bool:
    """Do lists and objects in it nest deeper than `most`?"""
    level = [value]
    for _ in range(most):
        level = [inner for outer in level for inner in _within(outer)]
    return bool(level)


def _within(value: Any) -> Iterable[Any]:
    match value:
        case dict():
            return value.values()
        case list():
            return value
    return ()


def read_step(path: Path, index: int) -> StepData:
    """One step of a run folder, also of a run that never ended. Raises ConfigError."""
    try:
        return _step(index, _step_file(path, index))
    except FileNotFoundError:
        problem = f"step {index} is not recorded"
    except _DAMAGES:
        problem = f"the records of step {index} are damaged"
    raise ConfigError("RUN", str(path), problem)


_DAMAGES = (
    *(OSError, ValueError, TypeError, KeyError, EOFError, OverflowError, MemoryError),
    *(BadZipFile, RuntimeError, struct.error),  # what zipfile raises for one file or another
)


def _step(index: int, file: Path) -> StepData:
    """Raises one of _DAMAGES."""
    with open_regular(file, MAX_STEP_BYTES) as stream, ZipFile(stream) as archive:
        found = {name: _array(archive, name) for name in columns()}
        replicas = _array(archive, "replicas")
        about = {name: float(_array(archive, f"about_{name}").item()) for name in _ABOUT}
    if replicas.dtype.kind != "U":
        raise ValueError("replicas have names")
    recording = Recording(**found, replicas=tuple(map(str, replicas)))
    _require_columns(recording)
    if not (_is_possible_recording(recording) and _is_possible_window(about)):
        raise ValueError("no load test takes such records")
    return StepData(index, recording, **_known(about))


_HEADER = re.compile(
    r"\{'descr': '(?P<type>[<>|][fib]\d|[<>]U\d{1,4})', 'fortran_order': False, "
    r"'shape': \((?:(?P<num>\d{1,12}),)?\), \} *\n"
)
"""Of what `numpy.save` writes, all that we ever ask it to write."""


def _array(archive: ZipFile, name: str) -> npt.NDArray[Any]:
    """One array of an .npz file. What it says about its size is compared with the bytes that are
    there before anything is made of it. Raises one of _DAMAGES."""
    member = archive.getinfo(f"{name}.npy")
    if member.compress_type != ZIP_STORED:
        raise ValueError("compressed, so that it may be of any size")
    content = archive.read(member)
    if content[:8] != b"\x93NUMPY\x01\x00":
        raise ValueError("no array")
    end = 10 + struct.unpack_from("<H", content, 8)[0]
    header = _HEADER.fullmatch(content[10:end].decode("latin-1"))
    if header is None:
        raise ValueError("another kind of array")
    kind, num = np.dtype(header["type"]), header["num"]
    if kind.itemsize * int(num or 1) != len(content) - end:
        raise ValueError("not the size that it says")
    found = np.frombuffer(bytearray(content), kind, offset=end)
    return found if num else found.reshape(())


def _require_columns(recording: Recording) -> None:
    """Raises ValueError unless all columns are of one length and of their kinds."""
    expected = Recording.empty(np.zeros(1))
    for name in columns():
        column = getattr(recording, name)
        if column.dtype != getattr(expected, name).dtype or column.shape != (len(recording),):
            raise ValueError(f"{name} is no column of this recording")


def _is_possible_recording(found: Recording) -> bool:
    """Is it one that a load test can have taken?"""
    times = found.woke, found.acquired, found.sent, found.first_byte, found.last
    told = found.queue, found.batch, found.infer, found.total
    counts = found.sent_bytes, found.received_bytes, found.payload, found.batch_size
    answered = found.take(found.good)
    return (
        _is_within(found.intended, 0.0, _LONGEST)
        and bool((np.diff(found.intended) >= 0.0).all())
        and all(_is_within(each[~np.isnan(each)], -_ROUNDING, _LONGEST) for each in times)
        and all(_is_within(each[~np.isnan(each)], 0.0, _LARGEST) for each in told)
        and _is_within(found.accept_wait, 0.0, _LONGEST)
        and all(_is_within(each, 0, _LARGEST) for each in counts)
        and _is_within(found.connection, -1, _LARGEST)
        and _is_within(found.replica, -1, len(found.replicas) - 1)
        and _is_within(found.status, min(STATUS_NAMES), 599)
        and not bool(((found.status > 0) & (found.status < 100)).any())
        and all(_is_within(each.view(np.uint8), 0, 1) for each in (found.fresh, found.cold))
        and _is_within(answered.last - answered.intended, -_ROUNDING, _LONGEST)
        and _is_within(answered.last - answered.sent, -_ROUNDING, _LONGEST)
    )


def _is_within(column: npt.NDArray[Any], low: float, high: float) -> bool:
    """NaN lies within nothing."""
    return bool(((column >= low) & (column <= high)).all())


def _is_possible_window(about: Mapping[str, float]) -> bool:
    """The same for what is known of a step as a whole; NaN: not known."""
    stopped_at = about["stopped_at"]
    return (
        0.0 <= about["warm_up"] <= about["end"] <= _LONGEST
        and 0.0 <= about["offered"] <= _LONGEST
        and 0.0 < about["rows"] <= _LARGEST
        and (math.isnan(stopped_at) or -_LONGEST <= stopped_at <= _LONGEST)
    )


def _step_file(path: Path, index: int) -> Path:
    return path / "steps" / f"{index:03d}.npz"


def find_step(path: Path, index: int) -> StepData | None:
    """As `read_step`; None when it is not there, since a report can do without."""
    return read_step(path, index) if _step_file(path, index).exists() else None


def _known(about: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in about.items() if not np.isnan(value)}


def _number(value: float | None) -> np.float64:
    return np.float64(np.nan if value is None else value)


def _point(link: Path, name: str) -> None:
    """Make or move a symbolic link, without a moment in which there is none."""
    fresh = link.with_name(f".{LATEST}-{name}")
    fresh.symlink_to(name)
    fresh.replace(link)


@contextmanager
def _replacing(file: Path) -> Iterator[Path]:
    """A temporary file beside `file` that takes its place when all went well."""
    try:
        descriptor, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}-")
        os.close(descriptor)
        try:
            yield Path(name)
            Path(name).chmod(0o644)
            Path(name).replace(file)
        finally:
            Path(name).unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError("--out", str(file.parent), error.strerror or "cannot write") from None
