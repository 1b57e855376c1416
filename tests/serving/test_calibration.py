"""What is kept comes back, and whatever else lies there is a sentence in the log."""

import errno
import json
import os
import stat
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tailproof.core.latency_model import LatencyModel
from tailproof.models.manifest import Manifest, ModelFile
from tailproof.models.signature import Signature
from tailproof.serving import calibration
from tailproof.serving.calibration import (
    FILES_KEPT,
    MAX_BYTES,
    MAX_SAMPLES,
    Calibration,
    Machine,
    cache_folder,
    key_of,
    this_machine,
)

KEY = "0123456789abcdef" * 4
SAMPLES = [(1, 0.002, 0.002), (8, 0.0028, None), (8, 0.003, 0.0031)]


def kept(folder: Path, name: str = "fraud", key: str = KEY) -> Calibration:
    return Calibration(folder, name, key)


def file_in(folder: Path) -> Path:
    (found,) = (folder / "calibration").iterdir()
    return found


def test_what_is_saved_is_loaded_by_the_next_process(tmp_path: Path) -> None:
    assert kept(tmp_path).load() == ([], None), "a first start is nothing to talk about"
    assert kept(tmp_path).save(SAMPLES) is None
    assert kept(tmp_path).load() == (SAMPLES, None)
    assert file_in(tmp_path).name == "fraud-0123456789abcdef.json"


def test_a_model_is_as_calibrated_as_before(tmp_path: Path) -> None:
    model, restored = LatencyModel(), LatencyModel()
    for rows in range(1, 300):
        model.calibrate(rows, 0.001 * rows, 0.0004 * rows)
    kept(tmp_path).save(model.samples())
    restored.restore(kept(tmp_path).load()[0])
    for rows in (1, 100, 1000):
        assert restored.tail_of(rows) == pytest.approx(model.tail_of(rows), rel=0.01)


def test_saving_replaces_the_file_at_once_and_leaves_no_other(tmp_path: Path) -> None:
    kept(tmp_path).save(SAMPLES)
    with file_in(tmp_path).open("rb") as reader:
        kept(tmp_path).save(SAMPLES[:1])
        assert len(json.loads(reader.read())["samples"]) == 3, (
            "an open reader has the old one whole"
        )
    assert kept(tmp_path).load() == (SAMPLES[:1], None)
    assert stat.S_IMODE(file_in(tmp_path).stat().st_mode) == 0o600


def test_samples_that_say_nothing_are_left_out(tmp_path: Path) -> None:
    odd = [(1, 0.0, 0.0), (1, float("inf"), None), (1, float("nan"), None)]
    assert kept(tmp_path).save([*odd, *SAMPLES]) is None
    assert kept(tmp_path).load() == (SAMPLES, None)


def document(**changes: Any) -> bytes:
    return json.dumps({"format": 1, "key": KEY, "samples": SAMPLES} | changes).encode()


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "not what was written"),
        (b"\x00\xff\xfe", "not what was written"),
        (document()[:-3], "not what was written"),
        (b"[]", "not what was written"),
        (b"[" * 100_000, "not what was written"),
        (b'{"x":' * 50_000, "not what was written"),
        (document(format=2, samples="other"), "format 2, not 1"),
        (document(format="1"), "not what was written"),
        (document(key=KEY[::-1]), "another model or machine"),
        (document(samples=[[1, -0.1, None]]), "not what was written"),
        (document(samples=[[1, 0.0, None]]), "not what was written"),
        (document(samples=[[1, 0.1, -0.1]]), "not what was written"),
        (document(samples=[[0, 0.1, None]]), "not what was written"),
        (document(samples=[[10**20, 0.1, None]]), "not what was written"),
        (document(samples=[[1, 0.1]]), "not what was written"),
        (document(samples=[[1, "0.1", None]]), "not what was written"),
        (document(samples=[[1, 1e99, None]]), "not what was written"),
        (document().replace(b"0.0028", b"1e999"), "not what was written"),
        (document().replace(b"0.0028", b"NaN"), "not what was written"),
        (document(samples=[[1, 0.1, None]] * (MAX_SAMPLES + 1)), "not what was written"),
        (document(more=" " * MAX_BYTES), f"more than {MAX_BYTES} bytes"),
    ],
)
def test_a_file_that_does_not_fit_is_ignored_with_a_reason(
    tmp_path: Path, content: bytes, why: str
) -> None:
    kept(tmp_path).save(SAMPLES)
    file_in(tmp_path).write_bytes(content)
    samples, reason = kept(tmp_path).load()
    assert samples == []
    assert reason is not None
    assert why in reason
    assert kept(tmp_path).save(SAMPLES) is None, "and replaced by the next one"
    assert kept(tmp_path).load() == (SAMPLES, None)


def test_a_document_of_a_later_writer_may_say_more(tmp_path: Path) -> None:
    """The control of the test above: its document fits as it is."""
    kept(tmp_path).save(SAMPLES)
    file_in(tmp_path).write_bytes(document(more="facts"))
    assert kept(tmp_path).load() == (SAMPLES, None)


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    kept(tmp_path).save(SAMPLES)
    path = file_in(tmp_path)
    path.unlink()
    os.mkfifo(path)
    samples, reason = kept(tmp_path).load()
    assert (samples, reason is None) == ([], False)
    path.unlink()
    path.mkdir()
    samples, reason = kept(tmp_path).load()
    assert (samples, reason is None) == ([], False)
    assert kept(tmp_path).save(SAMPLES) is not None
    assert file_in(tmp_path) == path, "nothing half done stays"


def test_where_nothing_can_be_written_the_log_is_told_once(tmp_path: Path) -> None:
    """The folder's place is taken by a file: true for every user, also for root."""
    place = tmp_path / "taken"
    place.write_text("")
    store = kept(place)
    samples, reason = store.load()
    assert samples == []
    assert reason == "the kept batch times are not used: Not a directory"
    said = [store.save(SAMPLES) for _ in range(3)]
    assert said == ["batch times are not kept for the next start: Not a directory", None, None]
    assert str(tmp_path) not in f"{reason}{said}"
    place.unlink()
    assert store.save(SAMPLES) is None
    assert store.load() == (SAMPLES, None)


def test_a_disk_that_is_read_only_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept(tmp_path).save(SAMPLES)

    def refused(**_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(tempfile, "mkstemp", refused)
    assert "Read-only file system" in (kept(tmp_path).save(SAMPLES[:1]) or "")
    assert kept(tmp_path).load() == (SAMPLES, None)


def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept(tmp_path).save(SAMPLES)

    def full(_self: Path, _target: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "replace", full)
    assert "No space left" in (kept(tmp_path).save(SAMPLES[:1]) or "")
    assert kept(tmp_path).load() == (SAMPLES, None)
    assert file_in(tmp_path).suffix == ".json", "nothing half done stays"


def test_without_a_folder_nothing_is_kept_and_the_log_is_told_once() -> None:
    store = Calibration(None, "fraud", KEY)
    assert store.load() == ([], None)
    sentence = store.save(SAMPLES)
    assert sentence is not None
    assert "HOME" in sentence
    assert store.save(SAMPLES) is None


@pytest.mark.parametrize("number", [MAX_SAMPLES + 1, MAX_SAMPLES])
def test_a_file_is_bounded(tmp_path: Path, number: int) -> None:
    long = (8_000_000, 0.12345678901234567, 0.12345678901234567)
    sentence = kept(tmp_path).save([long] * number)
    assert (sentence is None) == (number <= MAX_SAMPLES)


def test_files_of_old_versions_do_not_pile_up(tmp_path: Path) -> None:
    kept(tmp_path, "fraud-v2").save(SAMPLES)
    kept(tmp_path).save(SAMPLES)
    stranger = tmp_path / "calibration/fraud-notes.json"
    stranger.write_text("")
    for path in (tmp_path / "calibration").iterdir():
        os.utime(path, (0, 0))
    for number in range(FILES_KEPT):
        kept(tmp_path, key=f"{number:064x}"[::-1]).save(SAMPLES)
    assert kept(tmp_path).load() == ([], None), "the oldest is gone"
    assert kept(tmp_path, key="0" * 64).load() == (SAMPLES, None)
    assert kept(tmp_path, "fraud-v2").load() == (SAMPLES, None), "another model's stays"
    assert stranger.exists()


MANIFEST = Manifest(
    name="fraud",
    source="models:/fraud/3",
    runtime="mlflow",
    signature=Signature(inputs=(), outputs=()),
    engine="scikit-learn 1.9.1",
    files=(ModelFile(path="model.pkl", sha256="a" * 64, num_bytes=1),),
    parameters={"method": "predict_proba", "class": 1},
)
MACHINE = Machine("AMD EPYC", 4)


@pytest.mark.parametrize(
    "change",
    [
        {"runtime": "sklearn"},
        {"engine": None},
        {"device": "cuda:0"},
        {"files": (ModelFile(path="model.pkl", sha256="b" * 64, num_bytes=1),)},
        {"files": ()},
        {"parameters": {"method": "predict", "class": 1}},
    ],
)
def test_the_key_is_another_where_batches_may_take_another_time(change: dict[str, Any]) -> None:
    other = msgspec.structs.replace(MANIFEST, **change)
    assert key_of(other, 1, MACHINE) != key_of(MANIFEST, 1, MACHINE)


def test_the_key_depends_on_workers_and_machine_and_not_on_names() -> None:
    key = key_of(MANIFEST, 1, MACHINE)
    assert len(key) == 64
    assert key_of(MANIFEST, 2, MACHINE) != key
    assert key_of(MANIFEST, 1, Machine("Intel Xeon", 4)) != key
    assert key_of(MANIFEST, 1, Machine("AMD EPYC", 2)) != key
    same = msgspec.structs.replace(
        MANIFEST,
        name="other",
        source="models:/fraud@champion",
        alias="champion",
        parameters={"class": 1, "method": "predict_proba"},
    )
    assert key_of(same, 1, MACHINE) == key


def test_without_files_the_source_tells_models_apart() -> None:
    first = msgspec.structs.replace(MANIFEST, files=())
    second = msgspec.structs.replace(first, source="models:/fraud/4")
    assert key_of(first, 1, MACHINE) != key_of(second, 1, MACHINE)


def test_the_machine_is_read_from_proc(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text("processor : 0\nmodel name\t: AMD EPYC 7B13\n")
    assert this_machine(tmp_path).cpu_model == "AMD EPYC 7B13"
    (tmp_path / "proc/cpuinfo").write_text("processor : 0\n")
    assert this_machine(tmp_path).cpu_model == ""
    assert this_machine(tmp_path / "nowhere").cpu_model == ""
    assert this_machine().num_cores >= 1


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"XDG_CACHE_HOME": "/var/cache", "HOME": "/home/ann"}, "/var/cache/tailproof"),
        ({"HOME": "/home/ann"}, "/home/ann/.cache/tailproof"),
        ({"XDG_CACHE_HOME": "relative", "HOME": "/home/ann"}, "/home/ann/.cache/tailproof"),
        ({"XDG_CACHE_HOME": "", "HOME": ""}, None),
        ({}, None),
    ],
)
def test_the_cache_folder(environ: dict[str, str], expected: str | None) -> None:
    assert cache_folder(environ) == (expected and Path(expected))


def test_the_models_own_samples_fit_into_the_file() -> None:
    """As many classes as there can be up to the most rows that wait."""
    model = LatencyModel()
    for power in range(17):
        for eighth in range(8, 16):
            for _ in range(20):
                model.calibrate(max(1, (eighth << power) // 8), 0.12345678901234567, 0.1)
    samples = model.samples()
    assert len(samples) <= MAX_SAMPLES
    content = msgspec.json.encode(calibration._Stored(1, KEY, samples))
    assert len(content) <= MAX_BYTES / 2
