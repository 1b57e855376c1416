"""Fixtures: servers that are started for one test, and stopped whatever happens."""

from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from .server import FLAWED, TAILPROOF, Server


class Servers:
    """Starts servers and stops all of them; a test fails when one of them died on its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started: list[Server] = []

    def launch(
        self, flaw: str | None, source: str, *flags: str, unread_stdout: bool = False
    ) -> Server:
        """`tailproof serve SOURCE --name m --port <free> --log-format json FLAGS`, which drains
        without delay unless a flag says otherwise.

        With a `flaw`: the small server of `flawed_server.py` instead ("" for none).
        """
        command = TAILPROOF if flaw is None else FLAWED
        named = ("--flaw", flaw) if flaw else ()
        hurry = () if "--drain-delay" in flags else ("--drain-delay", "0s")
        server = Server(
            self.folder,
            source,
            (*flags, *named, *hurry),
            command=command,
            unread_stdout=unread_stdout,
            haste=0.3 if flaw else 1.0,
        )
        self.started.append(server)
        return server

    def stop(self) -> None:
        """Stop all. Fails the test when one had ended although nobody wanted it."""
        died = [s for s in self.started if s.exit_code is not None and not s.may_end]
        for server in self.started:
            server.stop()
        if died:
            pytest.fail(f"the server died with code {died[0].exit_code}\n{died[0].tail()}")


@pytest.fixture
def servers(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Servers]:
    """Servers for one test."""
    running = Servers(tmp_path)
    request.node.stash[_SERVERS] = running
    yield running
    running.stop()


@pytest.fixture(scope="module")
def module_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """Servers shared by the tests of a module that leave them as they found them."""
    running = Servers(tmp_path_factory.mktemp("servers"))
    yield running
    running.stop()


_SERVERS = pytest.StashKey[Servers]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the end of every server's log beside a failed test."""
    report = yield
    running = item.stash.get(_SERVERS, None)
    if report.failed and running is not None:
        for server in running.started:
            report.sections.append((f"server on port {server.port}", server.tail()))
    return report
