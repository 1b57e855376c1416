"""What a caller may say about its request, and what it may not."""

import pytest

from tailproof.core.errors import Malformed
from tailproof.core.waiting import Priority
from tailproof.serving.terms import Terms, read_terms


@pytest.mark.parametrize(
    ("headers", "terms"),
    [
        ({}, Terms(None, Priority.NORMAL)),
        ({"x-request-timeout-ms": "80"}, Terms(0.08, Priority.NORMAL)),
        ({"x-request-timeout-ms": "0.5"}, Terms(0.0005, Priority.NORMAL)),
        ({"x-request-timeout-ms": "999999999999"}, Terms(999999999.999, Priority.NORMAL)),
        ({"x-priority": "critical"}, Terms(None, Priority.CRITICAL)),
        ({"x-priority": " Batch "}, Terms(None, Priority.BATCH)),
        ({"x-priority": "NORMAL", "x-request-timeout-ms": "1000"}, Terms(1.0, Priority.NORMAL)),
    ],
)
def test_what_is_said_is_read(headers: dict[str, str], terms: Terms) -> None:
    assert read_terms(headers) == terms


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0",
        "0.0",
        "-1",
        "+1",
        "nan",
        "inf",
        "1e3",
        "1_000",
        " 5",
        "5 ",
        "5ms",
        "\u0665",
        "1" * 13,
    ],
)
def test_a_timeout_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(Malformed, match="X-Request-Timeout-Ms must be a number"):
        read_terms({"x-request-timeout-ms": text})


@pytest.mark.parametrize("text", ["", "urgent", "0", "critical,batch"])
def test_a_priority_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(Malformed, match="one of critical, normal, batch"):
        read_terms({"x-priority": text})
