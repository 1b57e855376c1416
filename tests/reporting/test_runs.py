"""The folder of a run: what was written comes back, what is damaged is told."""

import io
import json
import os
import zipfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

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
        with pytest.raises(ConfigError, match="damaged"):
            runs.find_step(folder, 0)
    assert runs.find_step(folder, 1) is None


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


# --- where a run is made --------------------------------------------------------------------------


@pytest.mark.parametrize("make", [Path.mkdir, Path.touch])
def test_what_stands_where_the_link_belongs_is_named_and_stays(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    make(tmp_path / "latest")
    with pytest.raises(ConfigError, match="`latest` is no link") as caught:
        runs.create(tmp_path, NOW, "ab")
    assert caught.value.key == "--out"
    assert [path.name for path in tmp_path.iterdir()] == ["latest"]
    assert not (tmp_path / "latest").is_symlink()


def test_a_link_that_leads_nowhere_is_in_nobodys_way(tmp_path: Path) -> None:
    (tmp_path / "latest").symlink_to("nowhere")
    folder = runs.create(tmp_path, NOW, "ab")
    assert (tmp_path / "latest").resolve() == folder.resolve()


def test_a_run_that_cannot_be_begun_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        raise PermissionError(1, "not here")

    monkeypatch.setattr(runs, "_point", fails)
    with pytest.raises(ConfigError, match="not here"):
        runs.create(tmp_path, NOW, "ab")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_there_already_is_not_touched(tmp_path: Path) -> None:
    folder = runs.create(tmp_path, NOW, "ab")
    runs.write_document(folder, document())
    with pytest.raises(ConfigError, match="exists"):
        runs.create(tmp_path, NOW, "ab")
    assert (folder / "report.json").exists()


# --- records that somebody has changed ------------------------------------------------------------

Records = dict[str, Any]


def changed(tmp_path: Path, change: Callable[[Records], Any]) -> Path:
    """A run whose records were changed since."""
    folder = runs.create(tmp_path, NOW, "ab")
    runs.write_step(folder, step())
    file = folder / "steps" / "000.npz"
    records = dict(np.load(file))
    change(records)
    np.savez(file, **records)
    return folder


def setting(name: str, value: Any) -> Callable[[Records], Any]:
    return lambda records: records.__setitem__(name, value)


def mapping(name: str, change: Callable[[Any], Any]) -> Callable[[Records], Any]:
    return lambda records: records.__setitem__(name, change(records[name]))


SOUND = {
    "nothing": lambda records: None,
    "a sum that is slightly off": mapping("last", lambda last: last - 0.25 - 1e-6),
    "a hostile duration": mapping("total", lambda total: total * 0 + 1e12),
    "a name": setting("replicas", np.array(["a"])),
    "the only name": lambda records: records.update(
        replicas=np.array(["a"]), replica=np.zeros(10, np.int32)
    ),
    "no requests": lambda records: records.update({name: records[name][:0] for name in columns()}),
    "a code of ours": mapping("status", lambda status: status * 0 - 7),
    "the first second": setting("about_stopped_at", np.float64(0.0)),
    "an empty window": setting("about_end", np.float64(2.0)),
}
DAMAGED = {
    "a short column": mapping("last", lambda last: last[:5]),
    "two dimensions": mapping("last", lambda last: last[:, None] * [1.0, 1.0]),
    "a scalar": setting("last", np.float64(1.0)),
    "texts": mapping("status", lambda status: status.astype(str)),
    "complex numbers": mapping("last", lambda last: last * 1j),
    "short floats": mapping("last", lambda last: last.astype(np.float32)),
    "long integers": mapping("status", lambda status: status.astype(np.int64)),
    "objects": setting("last", np.array([object()] * 10)),
    "records": setting("last", np.zeros(10, [("a", "f8")])),
    "another order": setting("last", np.asfortranarray(np.ones((10, 2)))),
    "intended: NaN": mapping("intended", lambda intended: intended * np.nan),
    "intended: negative": mapping("intended", lambda intended: intended - 1.0),
    "intended: falling": mapping("intended", lambda intended: intended[::-1]),
    "last: infinite": mapping("last", lambda last: last + np.inf),
    "last: negative": mapping("last", lambda last: -last),
    "last: NaN for an answer": mapping("last", lambda last: last * np.nan),
    "last: before the intended start": mapping("last", lambda last: last - 0.25 - 2e-3),
    "sent: NaN for an answer": mapping("sent", lambda sent: sent * np.nan),
    "sent: after the answer": mapping("sent", lambda sent: sent + 0.26),
    "queue: negative": setting("queue", np.full(10, -1.0)),
    "queue: infinite": setting("queue", np.full(10, np.inf)),
    "accept_wait: NaN": setting("accept_wait", np.full(10, np.nan)),
    "status: unknown code": mapping("status", lambda status: status * 0 - 8),
    "status: 99": mapping("status", lambda status: status * 0 + 99),
    "status: 600": mapping("status", lambda status: status * 0 + 600),
    "sent_bytes: negative": mapping("sent_bytes", lambda num: num - 1),
    "payload: negative": mapping("payload", lambda num: num - 1),
    "connection: below none": mapping("connection", lambda num: num - 1),
    "replica: beyond its names": mapping("replica", lambda num: num * 0),
    "replicas: numbers": setting("replicas", np.zeros(1)),
    "fresh: neither": setting("fresh", np.full(10, 0x55, np.uint8).view(np.bool_)),
    "about_end: NaN": setting("about_end", np.float64(np.nan)),
    "about_end: before the warm-up": setting("about_end", np.float64(1.9)),
    "about_end: huge": setting("about_end", np.float64(1e300)),
    "about_end: many": setting("about_end", np.zeros(3)),
    "about_offered: negative": setting("about_offered", np.float64(-1.0)),
    "about_rows: none": setting("about_rows", np.float64(0.0)),
    "a missing column": lambda records: records.pop("last"),
}


@pytest.mark.parametrize("name", SOUND)
def test_records_at_the_edge_of_the_possible_are_read(tmp_path: Path, name: str) -> None:
    assert runs.read_step(changed(tmp_path, SOUND[name]), 0).offered == 1.0


@pytest.mark.parametrize("name", DAMAGED)
def test_records_that_no_load_test_takes_are_damaged(tmp_path: Path, name: str) -> None:
    folder = changed(tmp_path, DAMAGED[name])
    with pytest.raises(ConfigError, match="the records of step 0 are damaged") as caught:
        runs.read_step(folder, 0)
    assert caught.value.key == "RUN"


def declaring(shape: str, kind: str = "<f8", data: bytes = b"") -> bytes:
    text = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + data


@pytest.mark.parametrize(
    "array",
    [
        *(declaring("(1000000000000,)"), declaring("(1000000000000000000000,)")),
        *(declaring("(11,)", data=bytes(80)), declaring("(9,)", data=bytes(80))),
        *(
            declaring("(2, 5)", data=bytes(80)),
            declaring("(10,)", "<U0"),
            declaring("(10,)", "<f3"),
        ),
        *(declaring("(-10,)", data=bytes(80)), declaring("((((((((((10,)", data=bytes(80)), b""),
        declaring("(10,)", data=bytes(80)).replace(b"False", b"True "),
        declaring("(10,)", data=bytes(80)).replace(b"NUMPY\x01", b"NUMPY\x03"),
    ],
)
def test_what_an_array_says_of_its_size_is_not_believed(tmp_path: Path, array: bytes) -> None:
    folder = runs.create(tmp_path, NOW, "ab")
    runs.write_step(folder, step())
    file = folder / "steps" / "000.npz"
    with zipfile.ZipFile(file) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}

    def put(content: bytes, kind: int = zipfile.ZIP_STORED) -> None:
        with zipfile.ZipFile(file, "w", kind) as archive:
            for name, data in {**members, "queue.npy": content}.items():
                archive.writestr(name, data)

    put(declaring("(10,)", data=bytes(80)))
    assert runs.read_step(folder, 0).recording.queue.tolist() == [0.0] * 10
    put(array)
    with pytest.raises(ConfigError, match="damaged"):
        runs.read_step(folder, 0)
    put(declaring("(10,)", data=bytes(80)), zipfile.ZIP_DEFLATED)  # it might be of any size
    with pytest.raises(ConfigError, match="damaged"):
        runs.read_step(folder, 0)


def test_records_are_read_from_regular_files_of_a_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = runs.create(tmp_path, NOW, "ab")
    runs.write_step(folder, step())
    file = folder / "steps" / "000.npz"
    monkeypatch.setattr(runs, "MAX_STEP_BYTES", file.stat().st_size)
    assert runs.read_step(folder, 0).offered == 1.0
    monkeypatch.setattr(runs, "MAX_STEP_BYTES", file.stat().st_size - 1)
    with pytest.raises(ConfigError, match="damaged"):
        runs.read_step(folder, 0)
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(ConfigError, match="damaged"):
        runs.read_step(folder, 0)


def test_the_name_of_a_replica_is_cut_where_it_is_written(tmp_path: Path) -> None:
    folder = runs.create(tmp_path, NOW, "ab")
    written = step()
    names = ("r" * runs.MAX_NAME, "s" * (runs.MAX_NAME + 1), "t" * 60_000)
    recording = Recording(
        **{name: getattr(written.recording, name) for name in columns()}, replicas=names
    )
    runs.write_step(folder, StepData(0, recording, 2.0, 9.5, 1.0))

    found = runs.read_step(folder, 0).recording.replicas

    assert found == tuple(letter * runs.MAX_NAME for letter in "rst")
    assert (folder / "steps" / "000.npz").stat().st_size < 20_000


# --- documents that somebody has changed ----------------------------------------------------------


def spoiled(tmp_path: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    folder = runs.create(tmp_path, NOW, "ab")
    content = json.loads(msgspec.json.encode(document()))
    change(content)
    (folder / "report.json").write_text(json.dumps(content))
    return folder


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"a": value}
    return value


POINT = """{
    "index": 0, "role": "rate", "offered": 1.0, "achieved": 1.0, "requests": 1, "errors": 0,
    "refused": 0, "statuses": {}, "class": null, "verdict": "PASS", "reason": "", "advice": "",
    "response_seconds": {}, "uncorrected_seconds": {}, "send_lag_seconds": {},
    "own_lag_seconds": {}, "warm_up_seconds": 0.0, "measured_seconds": 1.0, "stopped_early": false,
    "connections": 1, "generator": {"ok": true}, "server": {}
}"""


def with_point(**more: Any) -> Callable[[dict[str, Any]], Any]:
    point = json.loads(POINT)
    return lambda content: content.update(points=[{**point, **more}])


def with_limit(**more: Any) -> Callable[[dict[str, Any]], Any]:
    limit = {"rate": 1.0, "low": 1.0, "high": 2.0, "at_least": False}
    return lambda content: content.update(limit={**limit, **more})


@pytest.mark.parametrize(
    ("change", "beyond"),
    [
        (
            lambda content: content.update(confidence=nested(runs.MAX_DEPTH - 2)),
            lambda content: content.update(confidence=nested(runs.MAX_DEPTH - 1)),
        ),
        (
            lambda content: content.update(slo=["p95 < 1000000000s"]),
            lambda content: content.update(slo=["p95 < 1000000001s"]),
        ),
        (
            lambda content: content.update(slo=[]),
            lambda content: content.update(slo=["<script>alert(1)</script>"]),
        ),
        (
            lambda content: content.update(confidence={"power": 0.5}),
            lambda content: content.update(confidence={"power": []}),
        ),
        (with_point(), with_point(offered=0.0)),
        (with_point(offered=0.0, requests=0), with_point(offered=-1.0, requests=0)),
        (with_point(offered=1e9), with_point(offered=1e10)),
        (with_point(index=0), with_point(index=-1)),
        (with_point(index=2**53 - 1), with_point(index=10**30)),
        (with_point(errors=0), with_point(errors=-1)),
        (with_limit(), with_limit(low=-1.0)),
        (with_limit(high=None), with_limit(high=0.0)),
        (with_limit(interval=[1.0, 1.0]), with_limit(interval=[1.1, 1.0])),
        (with_limit(interval=None), with_limit(interval=[0.0, 1.0])),
    ],
)
def test_a_document_may_go_to_the_limit_and_no_further(
    tmp_path: Path, change: Callable[[Any], Any], beyond: Callable[[Any], Any]
) -> None:
    assert runs.read(spoiled(tmp_path / "sound", change)).document.tool == "tailproof 0"
    with pytest.raises(ConfigError, match="is damaged or cannot be read") as caught:
        runs.read(spoiled(tmp_path / "damaged", beyond))
    assert caught.value.key == "RUN"


@pytest.mark.parametrize("start", ["[", '{"environment":{"payload":{"a":', '{"confidence":{"a":'])
def test_a_document_nested_without_end_is_damaged(tmp_path: Path, start: str) -> None:
    folder = runs.create(tmp_path, NOW, "ab")
    for depth in (5_000, 200_000):
        (folder / "report.json").write_text(start + '{"a":' * depth)
        with pytest.raises(ConfigError, match="is damaged or cannot be read"):
            runs.read(folder)


def test_a_document_is_read_from_a_regular_file_of_a_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = runs.create(tmp_path, NOW, "ab")
    runs.write_document(folder, document())
    file = folder / "report.json"
    monkeypatch.setattr(runs, "MAX_DOCUMENT_BYTES", file.stat().st_size)
    assert runs.read(folder).document.tool == "tailproof 0"
    monkeypatch.setattr(runs, "MAX_DOCUMENT_BYTES", file.stat().st_size - 1)
    with pytest.raises(ConfigError, match="is damaged or cannot be read"):
        runs.read(folder)
    for put in (lambda: file.symlink_to("/dev/zero"), lambda: os.mkfifo(file)):
        file.unlink()
        put()
        with pytest.raises(ConfigError, match="no regular file"):
            runs.read(folder)
