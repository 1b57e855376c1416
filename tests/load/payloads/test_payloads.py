"""Bodies from files, what is told about them, and how a description is fetched."""

import os
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tailproof.core.errors import ConfigError
from tailproof.load import payloads
from tailproof.load.payloads import (
    Payloads,
    fetch_openapi,
    from_file,
    num_rows,
)


def test_a_file_gives_a_body_a_line_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "bodies.jsonl"
    file.write_bytes(b'\xef\xbb\xbf{"a": 1}\r\n\n  \n[1, 2, 3]\n{"instances": [1,2]}')

    found = from_file(file)

    assert found.bodies == (b'{"a": 1}', b"[1, 2, 3]", b'{"instances": [1,2]}')
    assert found.rows == (1, 3, 2)
    assert found.mean_rows == 2.0
    assert found.content_type == "application/json"
    assert found.source == "file bodies.jsonl"
    assert found.seed is None


def test_a_file_need_not_be_json(tmp_path: Path) -> None:
    file = tmp_path / "bodies.txt"
    file.write_bytes(b'{"a": 1}\nfree text \xff\n')

    found = from_file(str(file))

    assert found.bodies == (b'{"a": 1}', b"free text \xff")
    assert found.content_type.startswith("text/plain")
    assert found.rows == (1, 1)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "no request body"),
        (b"\n \n", "no request body"),
        (b'{\n "a": 1\n}\n', "one JSON document over several lines"),
        (b"1\n" * 11, "more than 10 lines"),
        (b"x" * 1000, "larger than"),
    ],
)
def test_a_file_that_cannot_be_sent_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, problem: str
) -> None:
    monkeypatch.setattr(payloads, "MAX_BODIES", 10)
    monkeypatch.setattr(payloads, "MAX_FILE_BYTES", 500)
    file = tmp_path / "bodies"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=problem) as caught:
        from_file(file)
    assert caught.value.key == "--data"


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        from_file(tmp_path / "nothing")
    with pytest.raises(ConfigError, match="directory"):
        from_file(tmp_path)


def test_a_file_may_be_as_large_as_the_limit_and_no_larger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(payloads, "MAX_FILE_BYTES", 500)
    file = tmp_path / "bodies"
    file.write_bytes(b"x" * 500)
    assert from_file(file).bodies == (b"x" * 500,)
    file.write_bytes(b"x" * 501)
    with pytest.raises(ConfigError, match="larger than 500 bytes"):
        from_file(file)


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")  # opening it would wait for a writer, for ever
    (tmp_path / "link").symlink_to("/dev/zero")
    (tmp_path / "bodies").write_bytes(b"1")
    (tmp_path / "good").symlink_to("bodies")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        for name in ("fifo", "link", "socket"):
            with pytest.raises(ConfigError, match="no regular file"):
                from_file(tmp_path / name)
    assert from_file(tmp_path / "good").bodies == (b"1",)


@pytest.mark.parametrize("depth", [100, 100_000])
def test_a_body_may_be_nested_without_end(tmp_path: Path, depth: int) -> None:
    """What is nested too deeply to be read is sent as it is."""
    file = tmp_path / "bodies"
    file.write_bytes(b"[" * depth + b"]" * depth + b"\n[1, 2]\n")

    found = from_file(file)

    assert len(found.bodies[0]) == 2 * depth
    assert found.content_type == ("application/json" if depth == 100 else payloads.TEXT)


def test_rows_of_what_is_nested_are_counted_once() -> None:
    value: Any = [1, 2]
    for _ in range(5000):
        value = {"dataframe_split": {"data": value}}
    assert num_rows(value) == 1
    assert num_rows({"dataframe_split": {"data": [1, 2]}}) == 2


@pytest.mark.parametrize(
    ("value", "rows"),
    [
        ({"amount": 1}, 1),
        ([{"amount": 1}, {"amount": 2}], 2),
        ([], 1),
        (7, 1),
        ({"instances": [1, 2, 3]}, 3),
        ({"inputs": [[1], [2]]}, 2),
        ({"inputs": {"a": [1, 2, 3], "b": [4, 5, 6]}}, 3),
        ({"inputs": "one text"}, 1),
        ({"inputs": [{"name": "x", "shape": [16, 4], "datatype": "FP32", "data": []}]}, 16),
        ({"inputs": [{"shape": "round"}, {"shape": "flat"}]}, 2),
        ({"dataframe_records": [{}, {}]}, 2),
        ({"dataframe_split": {"columns": ["a"], "data": [[1], [2], [3]]}}, 3),
    ],
)
def test_rows_are_counted_by_the_protocols_own_lists(value: Any, rows: int) -> None:
    assert num_rows(value) == rows


def test_facts_tell_sizes_and_no_content() -> None:
    found = Payloads((b"secret", b"[1,2]", b"[1,2]"), (1, 2, 2), "file x", "text/plain")
    assert found.facts() == {
        "source": "file x",
        "bodies": 3,
        "distinct": 2,
        "bytes": {"min": 5, "median": 5, "max": 6},
        "rows": {"min": 1, "mean": 5 / 3, "max": 2},
        "content_type": "text/plain",
        "seed": None,
    }


class Pages(BaseHTTPRequestHandler):
    """Answers from a table: path -> (status, body)."""

    table: ClassVar[dict[str, tuple[int, bytes]]] = {}
    asked: ClassVar[list[tuple[str, str | None]]] = []

    def do_GET(self) -> None:
        self.asked.append((self.path, self.headers["authorization"]))
        status, body = self.table.get(self.path, (404, b"{}"))
        self.send_response(status)
        self.send_header("location", "/elsewhere")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Silent."""


@contextmanager
def pages(**table: tuple[int, bytes]) -> Iterator[str]:
    Pages.table = {path.replace("__", "/"): answer for path, answer in table.items()}
    Pages.asked = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Pages)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


DOCUMENT = b'{"openapi": "3.1.0", "paths": {}}'


def test_the_document_is_looked_for_up_the_path() -> None:
    table = {"__api__openapi.json": (200, DOCUMENT), "__openapi.json": (200, b'{"openapi": "no"}')}
    with pages(**table) as origin:
        assert (
            fetch_openapi(f"{origin}/api/v1/predict?x=1", [("Authorization", "Bearer t")])
            == DOCUMENT
        )
        assert Pages.asked == [
            ("/api/v1/openapi.json", "Bearer t"),
            ("/api/openapi.json", "Bearer t"),
        ]
        with pytest.raises(ConfigError, match=r"/openapi.json answers 200 \(no OpenAPI\)"):
            fetch_openapi(f"{origin}/predict")


def test_no_redirect_is_followed() -> None:
    with pages(**{"__openapi.json": (302, b""), "__elsewhere": (200, DOCUMENT)}) as origin:
        with pytest.raises(ConfigError, match="answers 302; give --data or --template"):
            fetch_openapi(f"{origin}/predict")
        assert [path for path, _ in Pages.asked] == ["/openapi.json"]


def test_secrets_of_a_url_are_not_repeated() -> None:
    with pages() as origin:
        url = origin.replace("//", "//user:secret@") + "/predict?token=secret"
        with pytest.raises(ConfigError) as caught:
            fetch_openapi(url)
    assert "secret" not in str(caught.value)
    assert "/predict" in str(caught.value)


def test_a_document_beyond_the_bound_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payloads, "MAX_DOCUMENT_BYTES", 2**20)
    with (
        pages(**{"__openapi.json": (200, b" " * 2**21)}) as origin,
        pytest.raises(ConfigError, match="larger than 1MiB"),
    ):
        fetch_openapi(f"{origin}/predict")


def test_nobody_there_and_nobody_answering() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        port = silent.getsockname()[1]
        with pytest.raises(ConfigError, match=r"cannot be read: .*refused.*is it up"):
            fetch_openapi(f"http://127.0.0.1:{port}/predict")
        silent.listen()
        with pytest.raises(ConfigError, match=r"cannot be read: .*timed out"):
            fetch_openapi(f"http://127.0.0.1:{port}/predict", timeout=0.1)
        with pytest.raises(ConfigError, match="cannot be read"):
            fetch_openapi(
                f"https://127.0.0.1:{port}/predict", (), 0.1, ssl.create_default_context()
            )


@pytest.mark.parametrize(
    ("body", "rows"),
    [
        (b'{"a": 1}', 1),
        (b"[]", 1),
        (b'[{"a": 1}, {"a": 2}]', 2),
        (b'{"dataframe_split": {"columns": ["a"], "data": [[1], [2], [3]]}}', 3),
        (b'{"dataframe_records": [{}, {}]}', 2),
        (b'{"instances": [1, 2, 3, 4]}', 4),
        (b'{"inputs": [{"name": "a", "shape": [5, 2], "datatype": "FP32", "data": []}]}', 5),
        (b'{"inputs": [[1], [2]]}', 2),
        (b'{"inputs": {"a": [1]}}', 1),
        (b"\xff\xfe", 1),
        (b"a,b,c", 1),
    ],
)
def test_rows_of_a_body_are_counted(tmp_path: Path, body: bytes, rows: int) -> None:
    (tmp_path / "bodies").write_bytes(body)

    assert from_file(tmp_path / "bodies").rows == (rows,)


def test_rows_are_a_mean(tmp_path: Path) -> None:
    (tmp_path / "bodies").write_bytes(b"[1, 2]\n1")

    assert from_file(tmp_path / "bodies").mean_rows == 1.5
