from pathlib import Path

import pytest

from tailproof.core.errors import ConfigError
from tailproof.models.fake import FakeOptions
from tailproof.models.source import (
    Demo,
    Fake,
    Folder,
    PythonObject,
    Registered,
    check_name,
    check_trust,
    default_name,
    parse,
)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("models:/fraud-model@champion", Registered("fraud-model", alias="champion")),
        ("models:/fraud-model/3", Registered("fraud-model", version="3")),
        ("models:/Card fraud@a b", Registered("Card fraud", alias="a b")),
        ("python:model:Fraud", PythonObject("model", "Fraud")),
        ("python:pkg.mod:Outer.Inner", PythonObject("pkg.mod", "Outer.Inner")),
        ("demo:fraud", Demo("fraud")),
        ("fake:", Fake(FakeOptions())),
        ("fake:?", Fake(FakeOptions())),
        ("fake:?fixed=30ms&max=16", Fake(FakeOptions(fixed=0.03, max_rows=16))),
    ],
)
def test_what_a_source_means(source: str, expected: object) -> None:
    assert parse(source) == expected


def test_a_folder_is_a_model_when_it_holds_an_mlmodel_file(tmp_path: Path) -> None:
    (tmp_path / "MLmodel").touch()
    assert parse(str(tmp_path)) == Folder(tmp_path)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("", "there is no such folder"),
        ("fraud-model", "there is no such folder"),
        ("s3://bucket/model", "there is no such folder"),
        ("models:/fraud-model", "expected models:/name@alias"),
        ("models:/fraud-model/0", "expected models:/name@alias"),
        ("models:/fraud-model/latest", "expected models:/name@alias"),
        ("models:/fraud-model/3/path", "expected models:/name@alias"),
        ("models:/fraud-model@", "expected models:/name@alias"),
        ("models:/@champion", "expected models:/name@alias"),
        ("models://profile@databricks/fraud/3", "expected models:/name@alias"),
        ("python:model", "expected python:module:attr"),
        ("python:model:", "expected python:module:attr"),
        ("python:a b:c", "expected python:module:attr"),
        ("python:a:b:c", "expected python:module:attr"),
        ("python:..a:b", "expected python:module:attr"),
        ("demo:nothing", "expected demo:fraud"),
        ("fake:30ms", "expected fake:"),
    ],
)
def test_bad_syntax_says_what_is_expected(source: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(source)
    assert caught.value.key == "model"
    assert caught.value.value == source
    assert expected in caught.value.problem


@pytest.mark.parametrize(
    "source",
    ["model.onnx", "model.skops", "a/b.joblib", "b.pkl", "c.gguf", "runs:/abc/model", "demo:gpt"],
)
def test_sources_of_later_versions_are_named_as_such(source: str) -> None:
    with pytest.raises(ConfigError, match="not supported by this version; expected models:/name"):
        parse(source)


def test_a_folder_without_an_mlmodel_file_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="it holds no MLmodel file"):
        parse(str(tmp_path))


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("demo:fraud", "fraud"),
        ("models:/fraud-model@x", "fraud-model"),
        ("models:/fraud-model/12", "fraud-model"),
        ("python:pkg.mod:Attr", "Attr"),
        ("python:pkg.mod:Outer.Inner", "Inner"),
        ("fake:?fixed=1ms", "fake"),
    ],
)
def test_a_source_has_a_name_of_its_own(source: str, name: str) -> None:
    assert default_name(source) == name


def test_the_name_of_a_folder_is_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "fraud-1.2"
    folder.mkdir()
    (folder / "MLmodel").touch()
    monkeypatch.chdir(folder)
    assert default_name(str(folder)) == "fraud-1.2"
    assert default_name(".") == "fraud-1.2"


@pytest.mark.parametrize("source", ["models:/card fraud@x", "python:m:_Hidden"])
def test_a_name_that_no_url_can_hold_must_be_given_by_hand(source: str) -> None:
    with pytest.raises(ConfigError, match=r"^name = "):
        default_name(source)


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "9", "x" * 128])
def test_good_names(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize("name", ["", ".a", "-a", "a/b", "a b", "ä", "a\n", "x" * 129])
def test_bad_names(name: str) -> None:
    with pytest.raises(ConfigError):
        check_name(name)


def test_a_digest_is_64_lower_case_hex_digits() -> None:
    check_trust([])
    check_trust(["sha256:" + "0a" * 32])
    for value in ("0a" * 32, "sha256:" + "0a" * 31, "sha256:" + "0A" * 32, "sha256:" + "0" * 65):
        with pytest.raises(ConfigError, match=r"^trust = "):
            check_trust([value])
