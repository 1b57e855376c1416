"""One request by itself, before the load: does anybody answer, and do they take what we send?"""

import http.client
import socket
import ssl
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from tailproof.core.clock import monotonic
from tailproof.core.errors import ConfigError
from tailproof.load.connection import tls_context
from tailproof.load.pages import Impatient
from tailproof.load.target import Target

KEPT = 4096
"""Bytes of an answer that are kept."""
SHOWN = 300
"""Characters of a refusal that are shown: its words say what was wrong with the request."""
OURS = (400, 401, 403, 404, 405, 406, 411, 413, 414, 415, 422, 426, 431, 501)
"""Statuses that say that the request is wrong, and will be at any rate."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back for one request. Seconds."""

    status: int
    connect: float
    seconds: float
    """From the send to the last byte, the connection not included."""
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes
    """Its beginning."""


def ask(target: Target, timeout: float, which: int = 0) -> Answer:
    """Send one of the target's requests on a connection of its own.

    Raises OSError (TimeoutError, ssl.SSLError, ConnectionError among them) or
    http.client.HTTPException when no answer came.
    """
    begin = monotonic()
    with closing(_connect(target, timeout)) as plain:
        connected = monotonic()
        connection: Any = Impatient(plain, begin + timeout)
        connection.sendall(target.requests[which])
        with closing(http.client.HTTPResponse(connection, method=target.method)) as response:
            response.begin()
            body = _beginning_of(response)
            headers = {name.lower(): value for name, value in response.getheaders()}
            took = monotonic() - connected
            return Answer(response.status, connected - begin, took, headers, body)


def _beginning_of(response: http.client.HTTPResponse) -> bytes:
    """As much of the body as is shown; the rest is read and dropped."""
    body = b""
    while chunk := response.read(1 << 16):
        body = (body + chunk)[:KEPT] if len(body) < KEPT else body
    return body


def check(target: Target, timeout: float) -> Answer | None:
    """The first answer of a target, cold as it may be. None: it took longer than `timeout` or
    broke off, which a load test may well find out more about.

    Raises ConfigError when nobody listens there, or when the answer says that the request is wrong.
    """
    try:
        answer = ask(target, timeout)
    except ssl.SSLCertVerificationError as error:
        problem = f"its certificate is not trusted ({error.verify_message}): give --ca-file"
        raise ConfigError("URL", target.url, f"{problem}, or --insecure to take any") from None
    except ssl.SSLError:
        problem = "it does not speak TLS as expected: is it http:// ?"
        raise ConfigError("URL", target.url, problem) from None
    except (ConnectionRefusedError, socket.gaierror) as error:
        why = error.strerror or type(error).__name__
        raise ConfigError(
            "URL", target.url, f"nobody answers there ({why}): is the service running?"
        ) from None
    except (OSError, http.client.HTTPException):
        return None
    if answer.status in OURS:
        text = answer.body[:SHOWN].decode("utf-8", "replace")
        said = " ".join("".join(c if c.isprintable() else " " for c in text).split())
        problem = f"the first request was answered {answer.status}: {said or 'no more was said'}"
        raise ConfigError("URL", target.url, problem)
    return answer


def _connect(target: Target, timeout: float) -> socket.socket:
    raw = socket.create_connection((target.host, target.port), timeout)
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    context = tls_context(target)
    if context is None:
        return raw
    try:
        return context.wrap_socket(raw, server_hostname=target.host)
    except BaseException:
        raw.close()
        raise
