"""The listening socket, and that granian still takes it from us."""

import asyncio
import socket
from typing import Any

import pytest

from tailproof.core.errors import ConfigError
from tailproof.serving import listener as listener_module
from tailproof.serving.listener import Listener
from tailproof.serving.settings import ServerSettings

REQUEST = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Gate:
    """An application that answers once it is opened."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.num_waiting = 0

    async def __rsgi__(self, _scope: Any, proto: Any) -> None:
        self.num_waiting += 1
        await self.open.wait()
        proto.response_bytes(200, [], b"through")


async def ask(port: int) -> bytes:
    """The whole answer to one request on a connection of its own; b"" when refused."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return b""
    writer.write(REQUEST)
    try:
        return await asyncio.wait_for(reader.read(), 10)
    except ConnectionResetError:
        return b"reset"
    finally:
        writer.close()


async def until(condition: Any) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110  it looks at the kernel, too
            await asyncio.sleep(0.005)


def test_what_is_in_flight_is_answered_and_newcomers_are_refused() -> None:
    async def scenario() -> None:
        port, gate = free_port(), Gate()
        listener = Listener(ServerSettings(port=port), gate)
        listener.start()
        asked = asyncio.create_task(ask(port))
        await until(lambda: gate.num_waiting == 1)
        await listener.stop_accepting()
        assert await ask(port) == b""
        assert not listener.finished.done()
        gate.open.set()
        assert (await asked).endswith(b"through")
        await asyncio.wait_for(listener.finished, 10)

    asyncio.run(scenario())


def test_connections_in_the_kernels_queue_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """More clients than granian accepts: those left over at the stop get a 503, not a reset."""
    monkeypatch.setattr(listener_module, "TURN_AWAY_SECONDS", 0.1)

    async def scenario() -> None:
        port, gate = free_port(), Gate()
        listener = Listener(ServerSettings(port=port, max_connections=1), gate)
        listener.start()
        first = asyncio.create_task(ask(port))
        await until(lambda: gate.num_waiting == 1)
        others = [asyncio.create_task(ask(port)) for _ in range(5)]
        await asyncio.sleep(0)
        await until(lambda: _queued(port) == 5)
        await listener.stop_accepting()
        answers = await asyncio.gather(*others)
        assert [answer.split(b" ")[1] for answer in answers] == [b"503"] * 5
        gate.open.set()
        assert (await first).endswith(b"through")

    asyncio.run(scenario())


def test_a_port_has_one_owner() -> None:
    async def scenario() -> None:
        port = free_port()
        with socket.socket() as other:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            other.bind(("127.0.0.1", port))
            other.listen()
            with pytest.raises(ConfigError, match=f"port = {port}: .*in use"):
                Listener(ServerSettings(port=port), Gate())

    asyncio.run(scenario())


def test_an_address_of_somebody_else_is_refused() -> None:
    with pytest.raises(ConfigError, match="host"):
        Listener(ServerSettings(host="192.0.2.1", port=free_port()), None)


def test_a_name_that_is_no_address_is_refused() -> None:
    with pytest.raises(ConfigError, match="host"):
        Listener(ServerSettings(host="no such host"), None)


def test_the_url_has_the_address_that_was_bound() -> None:
    port = free_port()
    listener = Listener(ServerSettings(host="localhost", port=port), None)
    assert listener.url in {f"http://127.0.0.1:{port}", f"http://[::1]:{port}"}
    listener.close()


def _queued(port: int) -> int:
    """Connections to `port` that the kernel holds and nobody has accepted: the listening
    socket's receive queue in /proc/net/tcp."""
    with open("/proc/net/tcp") as table:  # noqa: PTH123
        for line in table:
            fields = line.split()
            if fields[1].endswith(f":{port:04X}") and fields[3] == "0A":
                return int(fields[4].partition(":")[2], 16)
    return 0
