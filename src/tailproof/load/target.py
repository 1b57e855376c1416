"""Where the requests of a load test go, and the bytes of each one, made before anything is sent."""

import base64
import gzip as gzip_module
import ipaddress
import re
import socket
import ssl
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import SplitResult, unquote, urlsplit

import tailproof
from tailproof.core.errors import ConfigError

FLAG = "--i-may-load-this-host"

_PORTS = {"http": 80, "https": 443}
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[\t\x20-\x7e]*")
_URL = re.compile(r"[\x21-\x7e]+")
_FRAMING = {"content-length", "transfer-encoding", "connection", "expect", "upgrade"}
"""Headers that would make the bytes mean something else than the tester counts."""
_NEAR = tuple(
    ipaddress.ip_network(text)
    for text in (
        *("127.0.0.0/8", "0.0.0.0/32", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"),
        *("169.254.0.0/16", "::1/128", "::/128", "fc00::/7", "fe80::/10"),
    )
)
"""This machine, private networks and the link: where nobody else is hurt by accident."""


@dataclass(frozen=True, slots=True)
class Target:
    """One URL and the complete bytes of each request that may be sent to it."""

    url: str
    """For display: without user, password and the values of the query."""
    scheme: str
    host: str
    port: int
    requests: tuple[bytes, ...]
    method: str = "POST"
    ca_file: str | None = None
    """Certificates (PEM) that are trusted instead of the system's; None: the system's."""
    insecure: bool = False
    """Take any certificate."""


def build(
    url: str,
    bodies: Sequence[bytes],
    *,
    method: str = "POST",
    headers: Sequence[tuple[str, str]] = (),
    bearer: str | None = None,
    content_type: str = "application/json",
    gzip: bool = False,
    ca_file: str | None = None,
    insecure: bool = False,
) -> Target:
    """A target whose requests carry `bodies`, one each; a user and password in `url` become basic
    authorization. Headers that are given replace ours of the same name.

    Raises ConfigError for a URL, method or header that cannot be sent as it stands, a certificate
    file that cannot be read, and when there is no body (GET wants one empty one).
    """
    parts = _split(url)
    if not bodies:
        raise ConfigError("--data", None, "no request body; one is needed (it may be empty)")
    if not re.fullmatch(r"[A-Z]+", method) or method == "CONNECT":
        raise ConfigError("--method", method, "expected a method such as POST or GET")
    if ca_file is not None:
        _require_certificates(ca_file)
    for name, _ in headers:
        if name.lower() in _FRAMING:
            raise ConfigError("--header", name, "this header is for the tester to set")
    given = [*headers, *_authorization(parts, bearer)]
    head = _head(parts, method, given)
    named = {name.lower() for name, _ in given}
    requests = []
    for body in bodies:
        sent = gzip_module.compress(body, mtime=0) if gzip and body else body
        about = _about_body(method, sent, content_type, gzip=gzip)
        lines = [line for name, line in about if name.lower() not in named]
        requests.append(head + "".join([*lines, "\r\n"]).encode("ascii") + sent)
    assert parts.hostname is not None, "_split refuses a URL without a host"
    return Target(
        url=_shown(parts),
        scheme=parts.scheme,
        host=parts.hostname,
        port=parts.port or _PORTS[parts.scheme],
        requests=tuple(requests),
        method=method,
        ca_file=ca_file,
        insecure=insecure,
    )


def allowed(url: str, i_may: bool) -> None:
    """May `url` be loaded? Every address of its host must be this machine's, private, or of the
    link, unless the user said that it is theirs to load.

    Raises ConfigError when it is not, when the name has no address, or for a bad URL.
    """
    parts = _split(url)
    if i_may:
        return
    assert parts.hostname is not None, "_split refuses a URL without a host"
    far = [text for text in _addresses(parts.hostname) if not is_near(text)]
    if far:
        raise ConfigError(
            FLAG,
            False,
            f"{parts.hostname} is {', '.join(far)}, outside this machine and private networks; a "
            f"load test of a host that is not yours is an attack. Give {FLAG} if you may",
        )


def is_near(address: str) -> bool:
    """Is this IP address loopback, private or link-local?"""
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    return any(found in network for network in _NEAR if network.version == found.version)


# --- the URL --------------------------------------------------------------------------------------


def _split(url: str) -> SplitResult:
    example = "expected a URL such as http://127.0.0.1:8000/predict"
    if not _URL.fullmatch(url):  # urlsplit drops line breaks without a word
        raise ConfigError("URL", _without_user(url), f"{example}: ASCII, without spaces")
    try:
        parts = urlsplit(url)
        port, host = parts.port, parts.hostname
    except ValueError as error:
        raise ConfigError("URL", _without_user(url), f"{error}; {example}") from None
    if parts.scheme not in _PORTS or not host or port == 0:
        raise ConfigError("URL", _without_user(url), f"{example}, or https")
    if not re.fullmatch(r"[0-9a-z._-]+|[0-9a-f:.]+(%[0-9a-z._-]+)?", host):
        raise ConfigError("URL", _without_user(url), f"the host has an odd character; {example}")
    return parts


def _without_user(url: str) -> str:
    """For an error message: what cannot be taken apart is shown without what may be secret."""
    return re.sub(r"//[^/]*@", "//", url).partition("?")[0]


def _shown(parts: SplitResult) -> str:
    query = "?..." if parts.query else ""
    return f"{parts.scheme}://{_authority(parts)}{parts.path or '/'}{query}"


def _authority(parts: SplitResult) -> str:
    host = (parts.hostname or "").partition("%")[0]
    name = f"[{host}]" if ":" in host else host
    if parts.port is None or parts.port == _PORTS[parts.scheme]:
        return name
    return f"{name}:{parts.port}"


def _addresses(host: str) -> list[str]:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ConfigError("URL", host, f"the host has no address: {error.strerror}") from None
    return sorted({str(item[4][0]) for item in found})


def _require_certificates(ca_file: str) -> None:
    try:
        ssl.create_default_context(cafile=ca_file)
    except (OSError, ValueError) as error:
        raise ConfigError("--ca-file", ca_file, f"no certificates can be read: {error}") from None


# --- the bytes ------------------------------------------------------------------------------------


def _head(parts: SplitResult, method: str, given: Iterable[tuple[str, str]]) -> bytes:
    """The request line and the headers that do not depend on the body."""
    query = f"?{parts.query}" if parts.query else ""
    headers = {
        "host": f"Host: {_authority(parts)}\r\n",
        "user-agent": f"User-Agent: tailproof/{tailproof.__version__}\r\n",
        "accept": "Accept: */*\r\n",
    }
    repeated: list[str] = []
    for name, value in given:
        line = _line(name, value)
        if name.lower() in headers:
            headers[name.lower()] = line
        else:
            repeated.append(line)
    line = f"{method} {parts.path or '/'}{query} HTTP/1.1\r\n"
    return "".join([line, *headers.values(), *repeated]).encode("ascii")


def _about_body(
    method: str, body: bytes, content_type: str, *, gzip: bool
) -> list[tuple[str, str]]:
    if not body and method in ("GET", "HEAD", "DELETE", "OPTIONS"):
        return []
    about = [("Content-Type", content_type)] if body else []
    about += [("Content-Encoding", "gzip")] if gzip and body else []
    about += [("Content-Length", str(len(body)))]
    return [(name, _line(name, value)) for name, value in about]


def _line(name: str, value: str) -> str:
    """One header. The value may be a secret, so errors show the name alone."""
    if not _TOKEN.fullmatch(name):
        raise ConfigError("--header", name, "the name has a character that no header may have")
    if not _VALUE.fullmatch(value):
        raise ConfigError("--header", name, "the value has a line break or is not plain ASCII")
    return f"{name}: {value}\r\n"


def _authorization(parts: SplitResult, bearer: str | None) -> list[tuple[str, str]]:
    if bearer is not None:
        if not re.fullmatch(r"[\x21-\x7e]+", bearer):
            raise ConfigError("--bearer", "...", "the token has a space, a line break or is empty")
        return [("Authorization", f"Bearer {bearer}")]
    if parts.username is None:
        return []
    pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return [("Authorization", f"Basic {base64.b64encode(pair.encode()).decode()}")]
