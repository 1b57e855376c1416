"""The verdict as JUnit XML, which CI systems show beside unit tests.

One test case for the whole verdict. Where one rate was asked for, one more for each SLO at it;
the steps of a search are no test cases, since some must fail for a limit to be found.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from xml.etree.ElementTree import Element, SubElement, tostring

from tailproof.reporting.document import Document, Point, Verdict
from tailproof.reporting.words import per_second

KIND = {"FAIL": "failure", "INVALID": "error", "UNDECIDED": "skipped"}
"""Verdict -> element of a test case; PASS has none."""

_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What XML 1.0 has no way to write."""


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    verdict: Verdict
    reason: str
    seconds: float


def junit(document: Document) -> str:
    """One `testsuites` document."""
    cases = list(_cases(document))
    counts = {
        "tests": str(len(cases)),
        "failures": _count(cases, "FAIL"),
        "errors": _count(cases, "INVALID"),
        "skipped": _count(cases, "UNDECIDED"),
        "time": f"{document.seconds:.3f}",
    }
    suites = Element("testsuites", {"name": "tailproof", **counts})
    about = {"name": _legal(document.target), **counts}
    if document.environment is not None:
        about["timestamp"] = _legal(document.environment.date)
    suite = SubElement(suites, "testsuite", about)
    for case in cases:
        _write(suite, case, document.target)
    return tostring(suites, encoding="unicode", xml_declaration=True) + "\n"


def _cases(document: Document) -> Iterator[Case]:
    whole = f"{', '.join(document.slo)}{_at(document)}"
    yield Case(whole, document.verdict, document.reason, document.seconds)
    if document.mode == "rate":
        for point in document.points:
            yield from _of_point(point)


def _at(document: Document) -> str:
    return "" if document.required is None else f" at {per_second(document.required)}/s"


def _of_point(point: Point) -> Iterator[Case]:
    """An INVALID step says nothing about any SLO, whatever its findings look like."""
    for finding in point.findings:
        invalid = point.verdict == "INVALID"
        yield Case(
            f"{finding.slo} at {per_second(point.offered)}/s",
            "INVALID" if invalid else finding.verdict,
            point.reason if invalid else finding.reason,
            point.warm_up_seconds + point.measured_seconds,
        )


def _count(cases: list[Case], verdict: Verdict) -> str:
    return str(sum(case.verdict == verdict for case in cases))


def _write(suite: Element, case: Case, target: str) -> None:
    about = {"classname": _legal(target), "name": _legal(case.name), "time": f"{case.seconds:.3f}"}
    element = SubElement(suite, "testcase", about)
    if case.verdict in KIND:
        told = {"message": _legal(f"{case.verdict}: {case.reason}")}
        SubElement(element, KIND[case.verdict], told)
    else:
        SubElement(element, "system-out").text = _legal(case.reason)


def _legal(text: str) -> str:
    return _FORBIDDEN.sub("\ufffd", text)
