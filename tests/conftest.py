"""Fixtures that tests of several parts need."""

import os
import socket
import tempfile
from collections.abc import Iterator

import pytest
from hypothesis import settings

settings.register_profile("steady", deadline=None, derandomize=True)
settings.load_profile("steady")

# no test learns from an earlier run, or leaves anything for the next
_caches = tempfile.TemporaryDirectory(prefix="tailproof-caches-")
os.environ["XDG_CACHE_HOME"] = _caches.name


@pytest.fixture
def taken_port() -> Iterator[int]:
    """A port of this machine on which the test itself listens: nobody else can bind it."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


@pytest.fixture
def free_port() -> int:
    """A port of this machine that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No TAILPROOF_ variable of the person who runs the tests changes what they see."""
    for name in list(os.environ):
        if name.startswith("TAILPROOF_"):
            monkeypatch.delenv(name)
