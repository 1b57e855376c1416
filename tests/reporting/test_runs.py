"""The folder of a run: what was written comes back, what is damaged is told."""

import io
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import numpy as np
import pytest

from tailproof.core.errors import ConfigError
from tailproof.core.recording import Recording, columns
from tailproof.reporting import runs
from tailproof.reporting.document import Document, Generator
from tailproof.reporting.runs import StepData

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def document() -> Document:
    return Document(
        tool="tailproof 0",
        target="http://127.0.0.1:1/predict",
        slo=["p95 < 50ms"],
        verdict="UNDECIDED",
        reason="nothing was sent",
        mode="search",
        generator=Generator(ok=True),
        command="tailproof prove http://127.0.0.1:1/predict",
        seconds=0.0,
    )


def step(index: int = 0) -> StepData:
    recording = Recording.empty(np.linspace(0.0, 9.0, 10))
    recording.status[:] = 200
    recording.sent[:] = recording.intended
    recording.last[:] = recording.intended + 0.25
    return StepData(index, recording, warm_up=2.0, end=9.5, offered=1.0, rows=3.5)


def test_a_step_comes_back_as_it_was(tmp_path: Path) -> None:
    folder = runs.create(tmp_path, NOW, "ab")
    written = step(7)
    runs.write_step(folder, written)

    found = runs.read_step(folder, 7)

    for name in columns():
        np.testing.assert_array_equal(
            getattr(found.recording, name), getattr(written.recording, name)
        )
    assert (found.warm_up, found.end, found.rows, found.stopped_at) == (2.0, 9.5, 3.5, None)
    assert found.measured.intended.tolist() == [2, 3, 4, 5, 6, 7, 8, 9]


def test_a_step_that_was_given_up_is_measured_until_then(tmp_path: Path) -> None:
    folder = runs.create(tmp_path, NOW, "ab")
    given_up = StepData(0, step().recording, 2.0, 9.5, 1.0, stopped_at=5.0)
    runs.write_step(folder, given_up)

    assert runs.read_step(folder, 0).measured.intended.tolist() == [2, 3, 4]


def test_the_document_comes_back_and_latest_is_the_newest_run(tmp_path: Path) -> None:
    for token in ("aa", "bb"):
        folder = runs.create(tmp_path, NOW, token)
        runs.write_document(folder, document())

    found = runs.read(tmp_path / "latest")

    assert found.path.name == "20260102-030405-bb"
    assert msgspec.json.encode(found.document) == msgspec.json.encode(document())


def test_no_half_written_file_is_left(tmp_path: Path) -> None:
    folder = runs.create(tmp_path, NOW, "ab")
    runs.write_step(folder, step())
    runs.write_document(folder, document())

    names = sorted(path.name for path in folder.rglob("*") if path.is_file())
    assert names == ["000.npz", "report.json"]


def test_what_is_missing_or_damaged_is_told(tmp_path: Path) -> None:
    folder = runs.create(tmp_path, NOW, "ab")
    with pytest.raises(ConfigError, match="no run is recorded there"):
        runs.read(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="this run has no report"):
        runs.read(folder)
    with pytest.raises(ConfigError, match="step 0 is not recorded"):
        runs.read_step(folder, 0)
    (folder / "report.json").write_text('{"tool": 1}')
    with pytest.raises(ConfigError, match="cannot be read"):
        runs.read(folder)
    runs.write_step(folder, step())
    whole = (folder / "steps" / "000.npz").read_bytes()
    array = io.BytesIO()
    np.save(array, np.arange(3))
    half = whole[: len(whole) // 2]
    for damaged in (b"", whole[:100], b"x" * 1000, half, array.getvalue()):
        (folder / "steps" / "000.npz").write_bytes(damaged)
        with pytest.raises(ConfigError, match="damaged"):
            runs.read_step(folder, 0)
        assert runs.find_step(folder, 0) is None


def test_records_are_never_unpickled(tmp_path: Path) -> None:
    folder = runs.create(tmp_path, NOW, "ab")
    with (folder / "steps" / "000.npz").open("wb") as file:
        np.savez(file, intended=np.array([{"an": "object"}], dtype=object))

    with pytest.raises(ConfigError, match="damaged"):
        runs.read_step(folder, 0)


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")

    with pytest.raises(ConfigError, match="--out"):
        runs.create(tmp_path / "file", NOW, "ab")
