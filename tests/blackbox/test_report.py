"""A recorded run says the same again."""

import json
import shutil
from pathlib import Path

import pytest

from .prove import USAGE, Said, known, prove_validly, tailproof


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def proved(folder: Path) -> Said:
    with known("constant", "--service", "300ms", folder=folder) as server:
        flags = ("--steps", "40/s,80/s", "--for", "1s")
        return prove_validly(server.url, *flags, folder=folder, slo="p50 < 150ms")


def test_the_same_document(proved: Said, folder: Path) -> None:
    said = tailproof("report", "runs/latest", "--json", folder=folder)

    for key in ("verdict", "reason", "slo", "limit", "saturation", "knee", "points", "target"):
        assert said.document[key] == proved.document[key], key
    assert said.code == proved.code == 1


def test_a_run_that_was_moved(proved: Said, folder: Path, tmp_path: Path) -> None:
    shutil.copytree(proved.run, tmp_path / "elsewhere")

    said = tailproof("report", "elsewhere", "--json", folder=tmp_path)

    assert said.verdict == proved.verdict


def test_for_people(proved: Said, folder: Path) -> None:
    said = tailproof("report", "runs/latest", folder=folder)

    for word in (proved.verdict, "P95", "ms", "40/s"):
        assert word in said.stdout, said


@pytest.mark.parametrize(("flags", "language"), [((), "en"), (("--lang", "zh-TW"), "zh-")])
def test_a_page_in_either_language(
    proved: Said, folder: Path, flags: tuple[str, ...], language: str
) -> None:
    said = tailproof("report", "runs/latest", "--html", "page.html", *flags, folder=folder)

    page = (folder / "page.html").read_text()
    assert f'<html lang="{language}' in page, said
    assert proved.verdict in page


@pytest.mark.parametrize("name", ["nowhere", "empty", "torn"])
def test_what_is_no_run(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "report.json").write_text('{"tool": "tailproof')

    said = tailproof("report", name, "--json", folder=tmp_path)

    assert said.code == USAGE, said
    assert len(said.stderr.strip().splitlines()) == 1
    assert name in said.stderr
    assert said.stdout == ""


def test_damaged_records_do_not_hide_the_verdict(
    proved: Said, folder: Path, tmp_path: Path
) -> None:
    """The document stands on its own; what was drawn from the records is missing, or said so."""
    run = tmp_path / "damaged"
    shutil.copytree(proved.run, run)
    (run / "steps" / "000.npz").write_bytes(b"not a zip file")

    said = tailproof("report", "damaged", "--json", folder=tmp_path)

    assert json.loads(said.stdout)["verdict"] == proved.verdict, said
