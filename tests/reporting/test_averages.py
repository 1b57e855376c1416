"""The example that shows how a mean hides the tail, and the document that quotes it."""

import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
from examples import averages_lie

ROOT = Path(__file__).parents[2]


def run(*arguments: str) -> str:
    line = [sys.executable, str(ROOT / "examples/averages_lie.py"), *arguments]
    return subprocess.run(line, check=True, capture_output=True, text=True, timeout=60).stdout


def test_the_document_quotes_what_the_example_prints() -> None:
    text = (ROOT / "docs/averages.md").read_text()

    for line in run().splitlines():
        assert line in text


def test_the_picture_of_the_document_is_the_one_that_the_example_draws(tmp_path: Path) -> None:
    run("--out", str(tmp_path / "it.svg"))

    drawn = (tmp_path / "it.svg").read_text()

    assert drawn == (ROOT / "docs/pictures/averages.svg").read_text()
    assert ET.fromstring(drawn).tag.endswith("svg")


def test_the_numbers_are_those_of_the_draws() -> None:
    times = averages_lie.draw_times(5)
    marks = averages_lie.summary(times)
    ordered = np.sort(times)

    assert len(times) == 10_000
    assert marks == {
        "mean": times.mean(),
        "P50": ordered[4_999],
        "P95": ordered[9_499],
        "P99": ordered[9_899],
    }
    shown = set(re.findall(r"[\d.]+ ms", averages_lie.picture(times, marks)))
    assert {f"{marks['mean'] * 1e3:.1f} ms", f"{marks['P99'] * 1e3:.0f} ms"} <= shown


def test_the_mean_is_a_fraction_of_the_tail_with_any_seed() -> None:
    for seed in range(5):
        marks = averages_lie.summary(averages_lie.draw_times(seed))
        assert 0.046 < marks["mean"] < 0.052
        assert 0.2 < marks["P99"] < 0.24
