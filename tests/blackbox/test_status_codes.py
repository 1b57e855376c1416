"""The table of status codes: each limit at the limit and one past it, each kind of bad request,
and after every one of them a good request that is served."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from .conftest import Servers
from .http_client import Answer, Connection, Headers, NoAnswer, ask, encode, run
from .server import Server
from .traffic import JSON, Client, payload

MAX_BODY = 64 * 2**10
MAX_ROWS = 4096
SOURCE = "fake:?fixed=1ms&per_row=0.01ms&max=64&fail_value=666"
FLAGS = ("--max-body", "64KiB", "--body-timeout", "300ms", "--header-timeout", "500ms")
PLAIN: Headers = (("Content-Type", "text/plain"),)


@dataclass(frozen=True)
class Case:
    """One request and what it must be told."""

    name: str
    expected: int
    body: bytes = b'{"value": 7}'
    method: str = "POST"
    path: str = "/predict"
    headers: Headers = JSON


def padded(size: int) -> bytes:
    """A good request of exactly this many bytes."""
    return b'{"value": 7}'.ljust(size)


def timeout(value: str) -> Headers:
    """A client's own deadline."""
    return (*JSON, ("X-Request-Timeout-Ms", value))


CASES = (
    Case("one row", 200),
    Case("a list", 200, b'[{"value": 7}, {"value": 8}]'),
    Case("an integer where a float is due", 200, b'{"value": 12345678901234567890}'),
    Case("white space", 200, b' \r\n\t{ "value" : 7 } '),
    Case("type with charset", 200, headers=(("Content-Type", "application/json; charset=utf-8"),)),
    Case("a deadline that is far", 200, headers=timeout("10000")),
    Case("broken JSON", 400, b'{"value": '),
    Case("two documents", 400, b'{"value": 7}{"value": 8}'),
    Case("no body", 400, b""),
    Case("not UTF-8", 400, b'{"value": "\xff\xfe"}'),
    Case("UTF-16", 400, '{"value": 7}'.encode("utf-16")),
    Case("single quotes", 400, b"{'value': 7}"),
    Case("no such page", 404, b"", method="GET", path="/no/such/page"),
    Case("no such page, posted", 404, path="/no/such/page"),
    Case("no such model", 404, path="/models/nobody/predict"),
    Case("GET", 405, b"", method="GET"),
    Case("PUT", 405, method="PUT"),
    Case("DELETE", 405, b"", method="DELETE"),
    Case("POST to the health page", 405, path="/health"),
    Case("body at the limit", 200, padded(MAX_BODY)),
    Case("body one past the limit", 413, padded(MAX_BODY + 1)),
    Case("text", 415, headers=PLAIN),
    Case("a form", 415, headers=(("Content-Type", "application/x-www-form-urlencoded"),)),
    Case("pickle", 415, b"\x80\x04N.", headers=(("Content-Type", "application/octet-stream"),)),
    Case("gzip", 415, headers=(*JSON, ("Content-Encoding", "gzip"))),
    Case("the model raises", 500, b'{"value": 666}'),
)


def good_after(server: Server) -> None:
    """The server still answers a good request."""
    answer = run(ask(server.port, "POST", "/predict", b'{"value": 7}', JSON))
    assert (answer.status, answer.json()["score"]) == (200, 7.0), "a good request was not served"


def keeps_the_table(server: Server, case: Case) -> None:
    """One row of the table."""
    answer = run(ask(server.port, case.method, case.path, case.body, case.headers))
    assert answer.status == case.expected, f"{case.name}: told {answer.status}, not {case.expected}"
    if case.expected != 200:
        says_why(answer)
    if case.expected == 405:
        allowed = answer.headers.get("allow", "")
        assert ("GET" if case.path == "/health" else "POST") in allowed, "a 405 without Allow"


def says_why(answer: Answer) -> None:
    """An error is a JSON object with a detail, and that holds no path and no stack."""
    assert answer.json()["detail"], "an error without detail"
    for leak in (b"Traceback", b"/site-packages", b"/src/", b'.py"', b", line "):
        assert leak not in answer.body, f"an error that shows {leak!r}"


@pytest.fixture(scope="module")
def server(module_servers: Servers) -> Iterator[Server]:
    """One server for the whole table."""
    started = module_servers.launch(None, SOURCE, *FLAGS)
    run(started.until_ready())
    yield started
    assert started.exit_code is None, started.tail()


DEADLINES = (
    Case("deadline: words", 400, headers=timeout("soon")),
    Case("deadline: zero", 400, headers=timeout("0")),
    Case("deadline: negative", 400, headers=timeout("-5")),
    Case("deadline: nan", 400, headers=timeout("nan")),
    Case("deadline: inf", 400, headers=timeout("inf")),
    Case("deadline: overflow", 400, headers=timeout("1e999")),
    Case("deadline: empty", 400, headers=timeout("")),
)


@pytest.mark.parametrize("case", DEADLINES, ids=lambda case: case.name)
def test_a_deadline_that_is_none_is_refused(server: Server, case: Case) -> None:
    keeps_the_table(server, case)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_status_code(server: Server, case: Case) -> None:
    keeps_the_table(server, case)
    good_after(server)


def test_a_server_that_says_200_is_caught_by_every_row(servers: Servers) -> None:
    server = servers.launch("says-200", SOURCE)
    run(server.until_ready())
    for case in CASES:
        if case.expected != 200:
            with pytest.raises(AssertionError, match="told 200"):
                keeps_the_table(server, case)


WRONG_ROWS = (
    ("missing", b"{}", [["value"]]),
    ("misspelt", b'{"valu": 7}', [["value"]]),
    ("null", b'{"value": null}', [["value"]]),
    ("text", b'{"value": "secret-7"}', [["value"]]),
    ("list", b'{"value": [7]}', [["value"]]),
    ("bool", b'{"value": {"secret": 7}}', [["value"]]),
    ("second of three", b'[{"value": 7}, {"value": "secret"}, {"value": 9}]', [[1, "value"]]),
    ("two of three", b'[{}, {"value": 8}, {"value": "secret"}]', [[0, "value"], [2, "value"]]),
)


@pytest.mark.parametrize(
    ("body", "places"), [w[1:] for w in WRONG_ROWS], ids=[w[0] for w in WRONG_ROWS]
)
def test_wrong_columns_are_told_where(server: Server, body: bytes, places: list[Any]) -> None:
    """422 with the exact path of each fault, and none of the caller's data."""
    answer = run(ask(server.port, "POST", "/predict", body, JSON))
    assert answer.status == 422
    found = [item["loc"] for item in answer.json()["detail"]]
    inside = [loc[1:] if loc[:1] == ["body"] else loc for loc in found]
    assert [loc for loc in inside if "valu" not in loc] == places
    for item in answer.json()["detail"]:
        assert set(item) >= {"loc", "msg", "type"}
        assert item["msg"]
    assert b"secret" not in answer.body
    good_after(server)


@pytest.mark.parametrize("body", [b"[]", b"7", b"null", b'"value"', b"true", b"[7]", b"[[7]]"])
def test_what_is_no_row_is_a_client_error(server: Server, body: bytes) -> None:
    answer = run(ask(server.port, "POST", "/predict", body, JSON))
    assert answer.status in (400, 422)
    says_why(answer)
    good_after(server)


HOSTILE = {
    "NaN": b'{"value": NaN}',
    "Infinity": b'{"value": Infinity}',
    "-Infinity": b'{"value": -Infinity}',
    "overflow": b'{"value": 1e999}',
    "400 digits": b'{"value": 1' + b"0" * 400 + b"}",
    "10,000 digits": b'{"value": 1' + b"0" * 10_000 + b"}",
    "deep list": b'{"value": ' + b"[" * 30_000 + b"]" * 30_000 + b"}",
    "deep, open": b"[" * 60_000,
    "deep object": b'{"value": ' * 5_000 + b"7" + b"}" * 5_000,
    "lone surrogate": b'{"value": "\\ud800"}',
    "NUL": b'{"value": "\\u0000"}',
}


@pytest.mark.parametrize("body", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_values_are_client_errors(server: Server, body: bytes) -> None:
    answer = run(ask(server.port, "POST", "/predict", body, JSON))
    assert 400 <= answer.status < 500
    says_why(answer)
    good_after(server)


@pytest.mark.parametrize(
    "body",
    [b'{"value": 7, "value": 8}', b'{"value": 7, "": 1, "\xc3\xa9\\n": 2}', b'{"value": -0.0}'],
)
def test_odd_but_readable_rows_are_no_server_error(server: Server, body: bytes) -> None:
    assert run(ask(server.port, "POST", "/predict", body, JSON)).status < 500
    good_after(server)


def test_rows_at_the_limit_are_answered_in_order(servers: Servers) -> None:
    """4,096 rows pass, 4,097 are 413; the bound on the queue does not stand in the way."""
    server = servers.launch(None, SOURCE)

    async def scenario() -> None:
        await server.until_ready()
        client = Client(server.port)
        assert (await client.predict(MAX_ROWS)).status == 200
        assert client.judge().clean, str(client.judge())
        over = await client.predict(MAX_ROWS + 1)
        assert over.status == 413
        assert b"4096" in over.body, "the limit is not named"

    run(scenario())


async def _chunked(port: int, size: int) -> Answer:
    connection = await Connection.open(port)
    head = "POST /predict HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n"
    connection.send(f"{head}Content-Type: application/json\r\n\r\n".encode())
    body = padded(size)
    for start in range(0, size, 4096):
        part = body[start : start + 4096]
        connection.send(b"%x\r\n%s\r\n" % (len(part), part))
    connection.send(b"0\r\n\r\n")
    return await connection.answer()


@pytest.mark.parametrize(("size", "expected"), [(MAX_BODY, 200), (MAX_BODY + 1, 413)])
def test_the_limit_holds_without_a_declared_length(
    server: Server, size: int, expected: int
) -> None:
    assert run(_chunked(server.port, size)).status == expected
    good_after(server)


KEPT_CASES = (
    Case("far too large", 413, padded(3 * MAX_BODY)),
    Case("text, large", 415, padded(MAX_BODY), headers=PLAIN),
    Case("broken, large", 400, b"{".ljust(MAX_BODY)),
    Case("no such page, large", 404, padded(MAX_BODY), path="/no/such/page"),
    Case("PUT, large", 405, padded(MAX_BODY), method="PUT"),
)


async def says_when_it_closes(server: Server, case: Case, repeats: int = 20) -> None:
    """An answer after which the connection ends says so: whoever was not told may send the next
    request on it, and that one must not be lost."""
    for _ in range(repeats):
        connection = await Connection.open(server.port)
        answer = await connection.request(case.method, case.path, case.body, case.headers)
        assert answer.status == case.expected
        if answer.headers.get("connection", "").lower() == "close":
            await connection.until_closed(patience=5.0)
            continue
        try:
            following = await connection.request("POST", "/predict", b'{"value": 7}', JSON)
        except NoAnswer as error:
            raise AssertionError(
                f"closed after a {case.expected} without a word: {error}"
            ) from None
        assert following.status == 200
        await connection.close()


@pytest.mark.parametrize("case", KEPT_CASES, ids=lambda case: case.name)
def test_an_error_that_ends_the_connection_says_so(server: Server, case: Case) -> None:
    run(says_when_it_closes(server, case))


def test_closing_without_a_word_is_caught(servers: Servers) -> None:
    server = servers.launch("closes-silently", SOURCE)
    run(server.until_ready())
    with pytest.raises(AssertionError, match="without a word"):
        run(says_when_it_closes(server, Case("broken", 400, b"{"), repeats=1))


def test_an_announced_body_over_the_limit_is_refused_before_it_is_sent(server: Server) -> None:
    async def scenario() -> Answer:
        connection = await Connection.open(server.port)
        length = str(MAX_BODY + 1)
        connection.send(encode("POST", "/predict", headers=(*JSON, ("Content-Length", length))))
        return await connection.answer(patience=5.0)

    assert run(scenario()).status == 413
    good_after(server)


def test_a_body_that_does_not_come_is_408(server: Server) -> None:
    """And the connection is over: what comes later is no new request."""

    async def scenario() -> None:
        connection = await Connection.open(server.port)
        connection.send(encode("POST", "/predict", b'{"value": 7}', JSON)[:-3])
        answer = await connection.answer(patience=5.0)
        assert answer.status == 408
        says_why(answer)
        await connection.until_closed(patience=5.0)

    run(scenario())
    good_after(server)


@pytest.mark.parametrize("size", [0, 20], ids=["silent", "half a header"])
def test_a_header_that_does_not_come_ends_the_connection(server: Server, size: int) -> None:
    async def scenario() -> None:
        connection = await Connection.open(server.port)
        if size:
            connection.send(encode("POST", "/predict", b'{"value": 7}', JSON)[:size])
        await connection.until_closed(patience=5.0)
        assert b" 200 " not in connection.unsolicited

    run(scenario())
    good_after(server)


def test_a_header_over_the_limit_is_refused(server: Server) -> None:
    """431, or what the HTTP library does before the application sees it: never 200, never 5xx."""

    async def scenario() -> None:
        connection = await Connection.open(server.port)
        oversized = (*JSON, ("X-Large", "a" * 600_000))
        connection.send(encode("POST", "/predict", b'{"value": 7}', oversized))
        try:
            answer = await connection.answer(patience=5.0)
        except NoAnswer:
            assert connection.ended is not None
        else:
            assert answer.status in (400, 431)

    run(scenario())
    good_after(server)


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\x01\x02\x03\r\n\r\n",
        b"GET\r\n\r\n",
        b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n7",
        b"POST /predict HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
    ids=["binary", "no version", "negative length", "two lengths", "bad chunk"],
)
def test_broken_framing_is_refused(server: Server, data: bytes) -> None:
    async def scenario() -> None:
        connection = await Connection.open(server.port)
        connection.send(data)
        try:
            answer = await connection.answer(patience=5.0)
        except NoAnswer:
            assert connection.ended is not None
        else:
            assert 400 <= answer.status < 500

    run(scenario())
    good_after(server)


def test_a_request_that_outlives_the_timeout_is_504(servers: Servers) -> None:
    server = servers.launch(None, "fake:?fixed=5ms&hang_value=668", "--request-timeout", "300ms")

    async def scenario() -> None:
        await server.until_ready()
        answer = await ask(server.port, "POST", "/predict", b'{"value": 668}', JSON)
        assert answer.status == 504
        says_why(answer)
        assert answer.seconds >= 0.3, "told before its time was over"

    run(scenario())


def test_a_callers_own_deadline_is_504(servers: Servers) -> None:
    server = servers.launch(None, "fake:?fixed=5ms&hang_value=668")

    async def scenario() -> None:
        await server.until_ready()
        connection = await Connection.open(server.port)
        headers = timeout("200")
        answer = await connection.request(
            "POST", "/predict", b'{"value": 668}', headers, patience=5.0
        )
        assert answer.status == 504
        assert answer.seconds >= 0.2, "told before its time was over"

    run(scenario())


def test_more_connections_than_allowed_wait_their_turn(servers: Servers) -> None:
    """At the limit each is served; the next one gets its answer when another has left."""
    server = servers.launch(None, "fake:?fixed=5ms", "--max-connections", "8")

    async def scenario() -> None:
        await server.until_ready()
        kept = [await Connection.open(server.port) for _ in range(8)]
        for connection in kept:
            assert (await connection.request("GET", "/health/live")).status == 200
        one_more = await Connection.open(server.port)
        one_more.send(encode("GET", "/health/live"))
        with pytest.raises(NoAnswer, match="no answer in"):
            await one_more.answer(patience=0.5)
        await kept[0].close()
        assert (await one_more.answer(patience=5.0)).status == 200

    run(scenario())


def test_the_answer_names_the_model(server: Server) -> None:
    one = run(ask(server.port, "POST", "/predict", b'{"value": 7}', JSON))
    assert one.json()["score"] == 7.0
    assert "model_version" in one.json()
    many = run(ask(server.port, "POST", "/predict", payload((7.0, 8.0), listed=True), JSON))
    assert many.json()["scores"] == [7.0, 8.0]
    assert "model_version" in many.json()
    assert one.headers["content-type"].startswith("application/json")


def test_numbers_are_not_rounded(server: Server) -> None:
    for text in ("0.1", "1e-300", "1.7976931348623157e308", "123456789.123456789", "5e-324"):
        answer = run(ask(server.port, "POST", "/predict", b'{"value": %s}' % text.encode(), JSON))
        assert json.loads(answer.body)["score"] == float(text)


def test_an_expected_continue_is_answered(server: Server) -> None:
    async def scenario() -> None:
        connection = await Connection.open(server.port)
        body = b'{"value": 7}'
        headers = (*JSON, ("Expect", "100-continue"))
        whole = encode("POST", "/predict", body, headers)
        connection.send(whole[: -len(body)])
        await server.until(lambda: connection.num_bytes, "100 Continue", 5.0)
        assert connection.unsolicited.startswith(b"HTTP/1.1 100")
        connection.send(body)
        assert (await connection.answer()).status == 200

    run(scenario())
