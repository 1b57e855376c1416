"""URLs and the bytes of requests."""

import gzip
import socket
from pathlib import Path
from typing import Any

import pytest

import tailproof
from tailproof.core.errors import ConfigError
from tailproof.load.target import allowed, build, is_near

URL = "http://127.0.0.1:8000/predict"


def test_a_request_is_what_http_wants() -> None:
    target = build(URL, [b'{"a":1}'], headers=[("X-One", "1"), ("X-One", "2")], bearer="t0ken")

    assert target.requests[0] == (
        b"POST /predict HTTP/1.1\r\n"
        b"Host: 127.0.0.1:8000\r\n"
        b"User-Agent: tailproof/" + tailproof.__version__.encode() + b"\r\n"
        b"Accept: */*\r\n"
        b"X-One: 1\r\nX-One: 2\r\n"
        b"Authorization: Bearer t0ken\r\n"
        b"Content-Type: application/json\r\n"
        b"Content-Length: 7\r\n"
        b"\r\n"
        b'{"a":1}'
    )


@pytest.mark.parametrize(
    ("url", "host", "port", "line", "name"),
    [
        ("http://127.0.0.1", "127.0.0.1", 80, "POST / HTTP/1.1", "Host: 127.0.0.1"),
        ("https://h.example/x", "h.example", 443, "POST /x HTTP/1.1", "Host: h.example"),
        ("https://h.example:443/", "h.example", 443, "POST / HTTP/1.1", "Host: h.example"),
        ("http://[::1]:9/a?b=c&d", "::1", 9, "POST /a?b=c&d HTTP/1.1", "Host: [::1]:9"),
        ("http://h?q#part", "h", 80, "POST /?q HTTP/1.1", "Host: h"),
        ("HTTP://H.Example/A", "h.example", 80, "POST /A HTTP/1.1", "Host: h.example"),
    ],
)
def test_each_part_of_a_url_ends_in_its_place(
    url: str, host: str, port: int, line: str, name: str
) -> None:
    target = build(url, [b""])

    assert (target.host, target.port) == (host, port)
    assert target.requests[0].decode().split("\r\n")[:2] == [line, name]


@pytest.mark.parametrize(
    "url",
    [
        *("", "127.0.0.1:8000", "ftp://h/", "http://", "http:///x", "/predict"),
        *("http://h:0/", "http://h:65536/", "http://h:x/", "http://[::1/", "http://h h/"),
        *("http://h/\r\nX: 1", "http://h/\tx", "http://h/ü", "http://ü/", "http://h,i/"),
    ],
)
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="URL"):
        build(url, [b""])


def test_secrets_of_a_url_are_sent_and_not_shown() -> None:
    target = build("http://me:p%40ss@h/x?token=hidden", [b""])

    assert target.url == "http://h/x?..."
    assert b"Authorization: Basic bWU6cEBzcw==\r\n" in target.requests[0]
    with pytest.raises(ConfigError) as caught:
        build("ftp://me:hidden@h/x?token=hidden", [b""])
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize(
    "given",
    [
        {"headers": [("X", "a\r\nY: b")]},
        {"headers": [("X\r\nY", "b")]},
        {"headers": [("X Y", "b")]},
        {"headers": [("", "b")]},
        {"headers": [("X", "ü")]},
        {"headers": [("Content-Length", "3")]},
        {"headers": [("transfer-encoding", "chunked")]},
        {"bearer": "a b"},
        {"bearer": "a\r\nX: 1"},
        {"bearer": ""},
        {"content_type": "text/plain\r\nX: 1"},
        {"method": "post"},
        {"method": "GET /x HTTP/1.1\r\n"},
        {"ca_file": "/no/such/file"},
    ],
)
def test_what_would_change_the_framing_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        build(URL, [b"{}"], **given)


def test_a_wrong_header_does_not_tell_its_value() -> None:
    with pytest.raises(ConfigError) as caught:
        build(URL, [b""], headers=[("Authorization", "Bearer hidden\n")])

    assert "hidden" not in str(caught.value)


def test_a_given_header_replaces_ours() -> None:
    given = [("host", "other"), ("Content-Type", "text/csv")]

    sent = build(URL, [b"a,b"], headers=given).requests[0]

    assert sent.lower().count(b"host:") == 1
    assert b"host: other\r\n" in sent
    assert sent.lower().count(b"content-type:") == 1


def test_no_body_is_not_an_empty_body() -> None:
    with pytest.raises(ConfigError, match="--data"):
        build(URL, [])
    assert b"Content-Length: 0\r\n" in build(URL, [b""]).requests[0]
    assert b"Content-Length" not in build(URL, [b""], method="GET").requests[0]


def test_gzip_shrinks_what_is_sent() -> None:
    body = b'{"a": 1}' * 1000

    head, _, sent = build(URL, [body], gzip=True).requests[0].partition(b"\r\n\r\n")

    assert gzip.decompress(sent) == body
    assert b"Content-Encoding: gzip" in head
    assert b"Content-Length: %d" % len(sent) in head


def test_a_file_without_certificates_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "empty.pem"
    path.write_text("nothing")

    with pytest.raises(ConfigError, match="--ca-file"):
        build("https://h/", [b""], ca_file=str(path))


@pytest.mark.parametrize(
    ("address", "near"),
    [
        *((text, True) for text in ("127.0.0.1", "127.9.9.9", "10.1.2.3", "172.31.0.1")),
        *((text, True) for text in ("192.168.1.1", "169.254.1.1", "::1", "fe80::1%eth0")),
        *((text, True) for text in ("fd00::1", "::ffff:10.0.0.1")),
        *((text, False) for text in ("8.8.8.8", "172.32.0.1", "100.64.0.1", "192.0.2.1")),
        *((text, False) for text in ("2001:4860:4860::8888", "::ffff:8.8.8.8", "64:ff9b::808")),
    ],
)
def test_near_is_this_machine_and_private_networks(address: str, near: bool) -> None:
    assert is_near(address) == near


@pytest.mark.parametrize(
    "url", [URL, "http://[::1]:8000/", "http://localhost/", "http://10.0.0.9/"]
)
def test_a_near_target_may_be_loaded(url: str) -> None:
    allowed(url, i_may=False)


def test_a_far_target_needs_a_word_of_the_user() -> None:
    with pytest.raises(ConfigError, match="--i-may-load-this-host"):
        allowed("http://192.0.2.1/", i_may=False)

    allowed("http://192.0.2.1/", i_may=True)


def test_every_address_of_a_name_must_be_near(monkeypatch: pytest.MonkeyPatch) -> None:
    def both(*_: object, **__: object) -> list[tuple[Any, ...]]:
        return [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0))
            for address in ("127.0.0.1", "192.0.2.7")
        ]

    monkeypatch.setattr(socket, "getaddrinfo", both)

    with pytest.raises(ConfigError, match=r"192\.0\.2\.7"):
        allowed("http://two-faced.example/", i_may=False)


def test_a_name_without_an_address_is_a_wrong_url(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)

    with pytest.raises(ConfigError, match="no address"):
        allowed("http://nowhere.example/", i_may=False)
