"""What a run leaves: one JSON document, one HTML file, one JUnit file, one folder."""

import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tailproof.reporting.runs import read_step

from .prove import BODY, CODES, FAIL, OPEN, Known, Said, known, prove, tailproof

KEYS = {
    *("tool", "target", "slo", "verdict", "reason", "limit", "saturation", "knee", "points"),
    *("cold", "tail_causes", "unexplained", "generator", "run"),
}
POINT_KEYS = {
    *("offered", "achieved", "requests", "errors", "class", "verdict"),
    *("response_seconds", "uncorrected_seconds", "send_lag_seconds"),
}
TIMES = {"p50", "p90", "p95", "p99", "p99_9", "max", "mean", "resolved"}
FILES = ("--html", "report.html", "--junit", "report.xml")


class Outside(HTMLParser):
    """Collects what a page would load from elsewhere: every address in an attribute that loads
    something, and in style sheets. Links that a reader may follow are none."""

    LOADS = frozenset({"src", "srcset", "data", "poster", "background", "action", "xlink:href"})

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(page)
        self.found += re.findall(r"@import[^;]*|url\(\s*['\"]?(?!data:|#)[^)]*", page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            loads = name in self.LOADS or (name == "href" and tag not in ("a", "area"))
            if loads and value and not value.startswith(("data:", "#")):
                self.found.append(f"<{tag} {name}={value}>")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Known]:
    with known("constant", "--service", "300ms", folder=folder) as running:
        yield running


@pytest.fixture(scope="module")
def passed(folder: Path, server: Known) -> Said:
    flags = ("--rate", "50/s", "--for", "2s", *FILES)
    return prove(server.url, *flags, folder=folder, slo="p50 < 600ms")


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory, server: Known) -> Said:
    flags = ("--rate", "50/s", "--for", "2s", *FILES)
    folder = tmp_path_factory.mktemp("failed")
    said = prove(
        server.url, *flags, "--out", str(folder / "kept"), folder=folder, slo="p50 < 150ms"
    )
    assert said.verdict == "FAIL", said.explained()
    return said


def test_one_document_with_every_key(passed: Said, server: Known) -> None:
    document = passed.document

    assert passed.code == CODES[document["verdict"]]
    assert set(document) >= KEYS
    assert document["target"] == server.url
    assert document["slo"] == ["p50 < 600ms"]
    assert "tailproof" in document["tool"]
    assert set(passed.point) >= POINT_KEYS
    for name in ("response_seconds", "uncorrected_seconds", "send_lag_seconds"):
        assert set(passed.point[name]) >= TIMES, name
    assert "NaN" not in passed.stdout
    assert "Infinity" not in passed.stdout


def test_seconds_are_seconds(passed: Said) -> None:
    times = passed.point["response_seconds"]

    assert 0.3 <= times["p50"] < 0.4
    assert times["p50"] <= times["p90"] <= times["p95"] <= times["p99"] <= times["max"]
    assert passed.point["uncorrected_seconds"]["p50"] <= times["p50"]


def test_progress_is_not_on_stdout(passed: Said) -> None:
    assert passed.stdout.lstrip().startswith("{")
    assert passed.stdout.rstrip().endswith("}")


def test_where_and_how_it_was_measured(passed: Said) -> None:
    environment = passed.document["environment"]

    assert environment["cores"] >= environment["allowed_cores"] >= 1
    assert environment["same_host"] is True
    assert environment["seeds"]
    assert environment["date"]
    assert passed.document["command"].startswith("tailproof prove ")


def test_percentiles_are_those_of_the_raw_records(passed: Said) -> None:
    """Nearest rank, over every offered request."""
    response = sorted(read_step(passed.run, passed.point["index"]).measured.response)

    assert len(response) == passed.point["requests"] == 100
    for name, rank in (("p50", 50), ("p90", 90), ("p95", 95), ("p99", 99)):
        wanted = pytest.approx(response[rank - 1], abs=1e-6)
        assert passed.point["response_seconds"][name] == wanted, name


def test_the_folder(passed: Said, folder: Path) -> None:
    run = passed.run

    assert (folder / "runs" / "latest").resolve() == run.resolve()
    assert json.loads((run / "report.json").read_text()) == passed.document
    assert [file.name for file in (run / "steps").iterdir()] == ["000.npz"]


def test_another_folder(failed: Said) -> None:
    assert failed.run.parent.name == "kept"
    assert (failed.run.parent / "latest").resolve() == failed.run.resolve()


def _pages(said: Said, folder: Path) -> tuple[str, ET.Element]:
    return (folder / "report.html").read_text(), ET.parse(folder / "report.xml").getroot()


def test_junit(passed: Said, failed: Said, folder: Path) -> None:
    _, good = _pages(passed, folder)
    _, bad = _pages(failed, failed.run.parent.parent)

    assert good.tag in ("testsuites", "testsuite")
    assert list(good.iter("testcase"))
    assert not list(good.iter("failure"))
    assert list(bad.iter("failure"))


def test_the_page_needs_nothing_from_outside(passed: Said, folder: Path) -> None:
    page, _ = _pages(passed, folder)

    assert Outside(page).found == []
    assert page.lstrip().lower().startswith("<!doctype html>")
    assert passed.verdict in page
    assert "Content-Security-Policy" in page


@pytest.mark.parametrize(
    "page",
    [
        '<script src="http://elsewhere.example/x.js"></script>',
        '<link rel="stylesheet" href="//elsewhere.example/x.css">',
        "<style>@import 'x.css';</style>",
        "<style>p { background: url(http://elsewhere.example/x.png) }</style>",
        '<img src="picture.png">',
    ],
)
def test_a_page_that_does_is_caught(page: str) -> None:
    assert Outside(page).found != []


def test_the_verdict_without_json(folder: Path, server: Known) -> None:
    """For people: the verdict, the percentiles, where the report is; the same exit code."""
    (folder / "body.jsonl").write_text(BODY + "\n")
    said = tailproof(
        *("prove", server.url, "--slo", "p50 < 150ms", "--rate", "50/s", "--for", "2s"),
        *("--data", "body.jsonl"),
        folder=folder,
    )

    verdict = "FAIL" if said.code == FAIL else "INVALID"
    assert said.code in (FAIL, OPEN), said
    for word in (verdict, "P50", "P95", "ms", "runs/"):
        assert word in said.stdout, said
    assert "\x1b[" not in said.stdout, "colours into a pipe"


def test_secrets_stay_secret(folder: Path, server: Known, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODEL_TOKEN", "tr0ub4dor")
    flags = ("--bearer-env", "MODEL_TOKEN", "--header", "X-Api-Key: hunter2secret")
    said = prove(server.url, "--rate", "20/s", "--for", "1s", *flags, *FILES, folder=folder)

    texts = [said.stdout, said.stderr, *_all_texts(folder, said.document)]
    assert all("tr0ub4dor" not in text and "hunter2secret" not in text for text in texts)


def _all_texts(folder: Path, document: dict[str, Any]) -> list[str]:
    run = folder / document["run"]
    files = [folder / "report.html", folder / "report.xml", *run.rglob("*")]
    return [file.read_bytes().decode("latin-1") for file in files if file.is_file()]
