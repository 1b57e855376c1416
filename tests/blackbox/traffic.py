"""Traffic that writes a history: every request is unique, and so is every row in it."""

import asyncio
import itertools
import json
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any

from .history import Attempt, Verdict, judge
from .http_client import PATIENCE, Connection, Headers, NoAnswer, encode

JSON: Headers = (("Content-Type", "application/json"),)

_values = itertools.count(1_000)
"""Rows of every client of this run; above the values to which the fake model reacts."""


def payload(values: tuple[float, ...], *, listed: bool) -> bytes:
    """The body of a prediction: one row as an object, or a list of rows."""
    rows = [{"value": value} for value in values]
    return json.dumps(rows if listed else rows[0]).encode()


@dataclass(slots=True)
class Held:
    """A request that was sent and whose answer nobody has waited for yet."""

    attempt: Attempt
    connection: Connection | None
    """None: it could not be sent; the attempt says why."""


class Client:
    """Sends requests to one server, over kept-alive connections, and remembers all of them."""

    def __init__(self, port: int, name: str = "c", patience: float = PATIENCE) -> None:
        self.port = port
        self.name = name
        self.patience = patience
        """Seconds after which an answer that has not come counts as lost."""
        self.history: list[Attempt] = []
        self.unsolicited: list[str] = []
        self._idle: list[Connection] = []

    def judge(self) -> Verdict:
        """The verdict over everything sent so far."""
        return judge(self.history, self.unsolicited)

    def note(self, route: str, values: tuple[float, ...] = (), *, listed: bool = False) -> Attempt:
        """Open the record of one request."""
        request_id = f"{self.name}-{len(self.history)}"
        attempt = Attempt(request_id, route=route, values=values, listed=listed)
        self.history.append(attempt)
        return attempt

    async def predict(
        self,
        num_rows: int | None = None,
        *,
        values: tuple[float, ...] | None = None,
        headers: Headers = (),
        fresh: bool = False,
    ) -> Attempt:
        """One prediction: a list of `num_rows` rows, or a single object when that is None.

        `values` replaces the unique ones. Never raises on the server's account: what went wrong
        stands in the attempt.
        """
        held = await self.begin(num_rows, values=values, headers=headers, fresh=fresh)
        return await self.finish(held)

    async def begin(
        self,
        num_rows: int | None = None,
        *,
        values: tuple[float, ...] | None = None,
        headers: Headers = (),
        fresh: bool = False,
    ) -> Held:
        """Send a prediction and do not wait for its answer."""
        if values is None:
            values = tuple(float(next(_values)) for _ in range(num_rows or 1))
        attempt = self.note("/predict", values, listed=num_rows is not None)
        body = payload(values, listed=num_rows is not None)
        return await self._send(attempt, "POST", body, [*JSON, *headers], fresh=fresh)

    async def request(
        self,
        method: str,
        route: str,
        body: bytes = b"",
        headers: Headers = JSON,
        *,
        fresh: bool = False,
    ) -> Attempt:
        """Any other request, remembered like the predictions."""
        held = await self._send(self.note(route), method, body, headers, fresh=fresh)
        return await self.finish(held)

    async def _send(
        self, attempt: Attempt, method: str, body: bytes, headers: Headers, *, fresh: bool
    ) -> Held:
        headers = [*headers, ("X-Request-Id", attempt.request_id)]
        try:
            connection = await self._connection(fresh=fresh)
            attempt.sent = connection.send(
                encode(method, attempt.route, body, headers), without_body=method == "HEAD"
            )
        except NoAnswer as error:
            attempt.trouble = str(error)
            return Held(attempt, None)
        return Held(attempt, connection)

    async def _connection(self, *, fresh: bool) -> Connection:
        while self._idle and not fresh:
            connection = self._idle.pop()
            if connection.reusable:
                return connection
            await self._retire(connection)
        return await Connection.open(self.port)

    async def finish(self, held: Held) -> Attempt:
        """Wait for the answer of a request that was begun."""
        attempt, connection = held.attempt, held.connection
        if connection is None:
            return attempt
        try:
            answer = await connection.answer(self.patience)
        except NoAnswer as error:
            attempt.trouble = str(error)
            await self._retire(connection)
            return attempt
        attempt.answered, attempt.status = answer.last, answer.status
        attempt.headers, attempt.body = answer.headers, answer.body
        if answer.headers.get("connection", "").lower() == "close":
            await self._retire(connection)
        else:
            self._idle.append(connection)
        return attempt

    async def leave(self, held: Held, *, reset: bool) -> None:
        """Go away without waiting for the answer: by reset, or by an ordinary close."""
        assert held.connection is not None, f"could not be sent: {held.attempt.trouble}"
        held.attempt.cut = time.monotonic()
        await (held.connection.reset() if reset else held.connection.close())

    async def _retire(self, connection: Connection) -> None:
        if b"HTTP/1.1" in connection.unsolicited:
            self.unsolicited += _ids(connection.unsolicited)
        await connection.close()

    async def close(self) -> None:
        """Close every idle connection."""
        while self._idle:
            await self._retire(self._idle.pop())


def _ids(data: bytes) -> list[str]:
    lines = data.decode("latin-1").split("\r\n")
    return [
        line.partition(":")[2].strip() for line in lines if line.lower()[:13] == "x-request-id:"
    ]


def poisson(rate: float, seed: int) -> Iterator[float]:
    """Arrival times in seconds from the start, without end, at `rate` a second on average."""
    draw = random.Random(seed)
    at = 0.0
    while True:
        at += draw.expovariate(rate)
        yield at


async def open_loop(
    send: Callable[[], Awaitable[Attempt]], arrivals: Iterator[float], until: asyncio.Future[Any]
) -> None:
    """Send at set times, whether or not earlier requests have been answered, until `until` is
    done; then wait for every answer."""
    start = time.monotonic()

    async def one() -> None:
        await send()

    async with asyncio.TaskGroup() as tasks:
        for at in arrivals:
            await asyncio.sleep(max(0.0, start + at - time.monotonic()))
            if until.done():
                break
            tasks.create_task(one())
