"""The folder of a run: written by a load test, read by reports, comparisons and plans.

    runs/20261130-191502-3f2a/
      report.json      the document (reporting/document.py)
      steps/000.npz    the columns of core.recording, one file a step
    runs/latest        a link to the newest

Steps are written as they end, so a run that was killed keeps what it had measured.
"""

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import msgspec
import numpy as np

from tailproof.core.errors import ConfigError
from tailproof.core.recording import Recording, columns
from tailproof.reporting.document import Document

LATEST = "latest"
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

    Raises ConfigError when it cannot be made.
    """
    path = parent / f"{now:%Y%m%d-%H%M%S}-{token}"
    try:
        (path / "steps").mkdir(parents=True)
        _point(parent / LATEST, path.name)
    except OSError as error:
        raise ConfigError("--out", str(parent), error.strerror or "cannot be written") from None
    return path


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
    found["replicas"] = np.array(recording.replicas, dtype=np.str_)
    with _replacing(path / "steps" / f"{step.index:03d}.npz") as file, file.open("wb") as stream:
        np.savez(stream, **found)


def read(path: Path) -> Run:
    """The run in a folder. Raises ConfigError when there is none, or it never ended."""
    try:
        encoded = (path / "report.json").read_bytes()
        return Run(path.resolve(), msgspec.json.decode(encoded, type=Document))
    except FileNotFoundError:
        problem = "no run is recorded there" if not path.is_dir() else "this run has no report"
    except OSError as error:
        problem = error.strerror or "cannot be read"
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        problem = f"its report.json cannot be read: {error}"
    raise ConfigError("RUN", str(path), problem)


def read_step(path: Path, index: int) -> StepData:
    """One step of a run folder, also of a run that never ended. Raises ConfigError."""
    file = path / "steps" / f"{index:03d}.npz"
    try:
        with file.open("rb") as stream, np.load(stream, allow_pickle=False) as found:
            recording = Recording(
                **{name: found[name] for name in columns()},
                replicas=tuple(str(name) for name in found["replicas"]),
            )
            about = {name: float(found[f"about_{name}"]) for name in _ABOUT}
    except FileNotFoundError:
        raise ConfigError("RUN", str(path), f"step {index} is not recorded") from None
    except (OSError, ValueError, TypeError, KeyError, EOFError, BadZipFile):
        raise ConfigError("RUN", str(path), f"the records of step {index} are damaged") from None
    return StepData(index, recording, **_known(about))


def find_step(path: Path, index: int) -> StepData | None:
    """As `read_step`; None when it is not there or damaged, since a report can do without."""
    try:
        return read_step(path, index)
    except ConfigError:
        return None


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
