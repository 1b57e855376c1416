"""One question to one probe of a running server, for `exec` probes: no curl in the image."""

import http.client
from urllib.parse import urlsplit

_EVERY_INTERFACE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  compared, never bound


def local_url(host: str, port: int) -> str:
    """Address at which a server that listens on `host` answers on this machine."""
    reachable = _EVERY_INTERFACE.get(host, host)
    return f"http://[{reachable}]:{port}" if ":" in reachable else f"http://{reachable}:{port}"


def ask(url: str, probe: str, timeout: float) -> tuple[bool, str]:
    """Whether `/health/<probe>` says yes, and what was heard, for a person.

    `timeout` (seconds) bounds the connect and each read.

    Raises:
        ValueError: `url` is not `http://host[:port]`.
    """
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname:
        raise ValueError("expected http://host:port")
    connection = http.client.HTTPConnection(parts.hostname, parts.port or 80, timeout=timeout)
    try:
        connection.request("GET", f"{parts.path.rstrip('/')}/health/{probe}")
        answer = connection.getresponse()
    except (OSError, http.client.HTTPException) as error:
        return False, f"no answer ({error.__class__.__name__})"
    finally:
        connection.close()
    return 200 <= answer.status < 300, f"{answer.status} {answer.reason}"
