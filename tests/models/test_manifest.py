import hashlib
from pathlib import Path

from tailproof.models.manifest import ModelFile, digest, files_of


def test_files_of_a_folder_are_sorted_and_relative(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "x").write_bytes(b"2")
    (tmp_path / "a").write_bytes(b"11")
    sha256 = {data: hashlib.sha256(data).hexdigest() for data in (b"11", b"2")}
    assert files_of(tmp_path) == (
        ModelFile("a", sha256[b"11"], 2),
        ModelFile("b/x", sha256[b"2"], 1),
    )


def test_the_order_is_that_of_the_text_of_the_paths(tmp_path: Path) -> None:
    for name in ("a/x", "a-b/x", "a.txt", "B"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert [file.path for file in files_of(tmp_path)] == ["B", "a-b/x", "a.txt", "a/x"]


def test_the_digest_of_a_folder_is_that_of_its_checksum_lines(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1")
    (tmp_path / "b").write_bytes(b"2")
    lines = "".join(
        f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in (("a", b"1"), ("b", b"2"))
    )
    assert digest(files_of(tmp_path)) == "sha256:" + hashlib.sha256(lines.encode()).hexdigest()


def test_the_digest_of_a_file_is_its_own(tmp_path: Path) -> None:
    file = tmp_path / "model.pkl"
    file.write_bytes(b"1")
    assert digest(files_of(file)) == "sha256:" + hashlib.sha256(b"1").hexdigest()
    assert files_of(file)[0].path == "model.pkl"
