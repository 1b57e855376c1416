"""JUnit XML that CI systems read."""

import xml.etree.ElementTree as ET

import msgspec
import pytest

from tailproof.reporting.document import Document, Verdict
from tailproof.reporting.junit import junit
from tests.reporting import made


def one_rate(verdict: Verdict) -> Document:
    point = made.point(made.step(0, 100.0), verdict)
    return msgspec.structs.replace(
        made.document([point]), mode="rate", verdict=verdict, required=100.0
    )


def suite(document: Document) -> ET.Element:
    return ET.fromstring(junit(document))[0]


@pytest.mark.parametrize(
    ("verdict", "element", "counter"),
    [
        ("PASS", None, None),
        ("FAIL", "failure", "failures"),
        ("INVALID", "error", "errors"),
        ("UNDECIDED", "skipped", "skipped"),
    ],
)
def test_each_verdict_has_its_element(
    verdict: Verdict, element: str | None, counter: str | None
) -> None:
    found = suite(one_rate(verdict))
    kinds = [child.tag for case in found for child in case if child.tag != "system-out"]

    assert found.get("tests") == "2"
    assert kinds == ([] if element is None else [element, element])
    for name in ("failures", "errors", "skipped"):
        assert found.get(name) == ("2" if name == counter else "0")


def test_the_steps_of_a_search_are_no_test_cases() -> None:
    failed = made.point(made.step(0, 840.0))
    assert failed.verdict == "FAIL"

    found = suite(made.document([failed]))

    assert [case.get("name") for case in found] == [
        "p95 < 33.3ms, p99 < 80ms, availability > 99.9%"
    ]
    assert found.get("failures") == "0"


def test_an_invalid_step_never_passes_whatever_its_findings_say() -> None:
    passed = made.point(made.step(0, 100.0), "PASS")
    point = msgspec.structs.replace(passed, verdict="INVALID")
    document = msgspec.structs.replace(one_rate("INVALID"), points=[point])

    assert suite(document).get("errors") == "2"


def test_the_name_says_what_was_asked_for() -> None:
    names = [case.get("name") for case in suite(one_rate("PASS"))]

    assert names[0].endswith(" at 100/s")  # type: ignore[union-attr]
    assert names[1] == "p95 < 33.3ms at 100/s"


def test_characters_that_xml_cannot_hold_do_not_break_it() -> None:
    document = msgspec.structs.replace(one_rate("FAIL"), reason="a\x00b\x1b[31m <&>\ud800")

    message = suite(document)[0][0].get("message")

    assert message == "FAIL: a\ufffdb\ufffd[31m <&>\ufffd"
