"""What a run leaves: one JSON document, one HTML file, one JUnit file, one folder."""

import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tailproof.reporting.runs import read_step

from .prove import (
    BODY,
    CODES,
    FAIL,
    OPEN,
    TESTER_CORE,
    Known,
    Said,
    known,
    prove_validly,
    tailproof,
)

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
QUICK = ("--rate", "100/s", "--for", "1s", *FILES)
SECRETS = {"MODEL_TOKEN": "tr0ub4dor", "X-Api-Key": "hunter2secret"}


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
    """With secrets in the environment and in a header."""
    flags = ("--bearer-env", "MODEL_TOKEN", "--header", f"X-Api-Key: {SECRETS['X-Api-Key']}")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("MODEL_TOKEN", SECRETS["MODEL_TOKEN"])
        return prove_validly(server.url, *QUICK, *flags, folder=folder, slo="p50 < 600ms")


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory, server: Known) -> Said:
    """For people, and kept in a folder of its own."""
    folder = tmp_path_factory.mktemp("failed")
    (folder / "body.jsonl").write_text(BODY + "\n")
    asked = ("--slo", "p50 < 150ms", "--data", "body.jsonl", "--out", str(folder / "kept"))
    said = tailproof("prove", server.url, *QUICK, *asked, folder=folder, core=TESTER_CORE)
    if said.code == OPEN:
        pytest.skip("others use the tester's core")
    assert said.code == FAIL, said
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
    kept = failed.folder / "kept"
    document = json.loads((kept / "latest" / "report.json").read_text())

    assert document["verdict"] == "FAIL"
    assert (kept / "latest").resolve() == Path(document["run"]).resolve()
    assert (kept / "latest").resolve().parent == kept.resolve()


def _junit(said: Said) -> ET.Element:
    return ET.parse(said.folder / "report.xml").getroot()


def test_junit(passed: Said, failed: Said) -> None:
    good, bad = _junit(passed), _junit(failed)

    assert good.tag in ("testsuites", "testsuite")
    assert list(good.iter("testcase"))
    assert not list(good.iter("failure"))
    assert list(bad.iter("failure"))


def test_the_page_needs_nothing_from_outside(passed: Said) -> None:
    page = (passed.folder / "report.html").read_text()

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


def test_the_verdict_without_json(failed: Said) -> None:
    """For people: the verdict, the percentiles, where the report is; the same exit code."""
    for word in ("FAIL", "P50", "P95", "ms", "kept/"):
        assert word in failed.stdout, failed
    assert "\x1b[" not in failed.stdout, "colours into a pipe"


def test_secrets_stay_secret(passed: Said) -> None:
    files = [passed.folder / "report.html", passed.folder / "report.xml", *passed.run.rglob("*")]
    written = [file.read_bytes().decode("latin-1") for file in files if file.is_file()]
    texts = [passed.stdout, passed.stderr, *written]

    assert len(texts) > 5
    assert not [secret for secret in SECRETS.values() for text in texts if secret in text]
