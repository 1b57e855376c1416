"""Bodies: type, size and time."""

import asyncio

import pytest
from granian.rsgi import ProtocolClosed

from tailproof.core.errors import BodyTimeout, Malformed, TooLarge, Unavailable, UnsupportedType
from tailproof.serving.admission import MAX_CHUNKS, BodyReader, ClientLeft, check_json
from tailproof.serving.settings import ServerSettings

LIMIT = 1000


class Body:
    """granian's protocol object, as far as bodies go: the given chunks, then `end`."""

    def __init__(self, *chunks: bytes, end: object = b"") -> None:
        self._items = [*chunks, end]

    def __call__(self):
        return self._future(b"".join(self._items) if b"" in self._items else self._items[-1])

    def __aiter__(self):
        return self

    def __anext__(self):
        if not self._items:
            raise StopAsyncIteration
        return self._future(self._items.pop(0))

    def _future(self, item: object) -> asyncio.Future[bytes]:
        future = asyncio.get_running_loop().create_future()
        if isinstance(item, bytes):
            future.set_result(item)
        elif isinstance(item, Exception):
            future.set_exception(item)
        return future  # anything else: never comes


def read(
    body: Body,
    headers: dict[str, str],
    sweeps_at: tuple[float, ...] = (),
    max_chunks: int = MAX_CHUNKS,
) -> bytes:
    """Read on a clock that starts at 0 and jumps to each of `sweeps_at`, with a sweep there."""
    now = 0.0

    async def run() -> bytes:
        nonlocal now
        settings = ServerSettings(max_body=LIMIT, body_timeout=30.0)
        reader = BodyReader(settings, lambda: now, max_chunks=max_chunks)
        task = asyncio.ensure_future(reader.read_json(headers, body))
        await asyncio.sleep(0)  # it begins to read at 0
        for moment in sweeps_at:
            now = moment
            reader.sweep()
            await asyncio.sleep(0)
        async with asyncio.timeout(5):
            return await task

    return asyncio.run(run())


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"content-type": "application/json"},
        {"content-type": "Application/JSON; charset=utf-8"},
        {"content-type": "application/problem+json"},
        {"content-encoding": "identity"},
    ],
    ids=["no type", "json", "with charset", "+json", "identity"],
)
def test_json_is_read(headers):
    check_json(headers)


@pytest.mark.parametrize(
    "headers",
    [
        {"content-type": "application/x-www-form-urlencoded"},
        {"content-type": "text/plain"},
        {"content-type": "application/x-python-pickle"},
        {"content-type": "application/jsonx"},
        {"content-type": ""},
        {"content-encoding": "gzip"},
    ],
    ids=["form", "text", "pickle", "looks like json", "empty", "gzip"],
)
def test_anything_else_is_415(headers):
    with pytest.raises(UnsupportedType):
        check_json(headers)


def test_an_announced_body_at_the_limit_is_read():
    body = b"x" * LIMIT
    assert read(Body(body), {"content-length": str(LIMIT)}) == body


def test_an_announced_body_over_the_limit_is_refused_unread():
    unread = Body(end=RuntimeError("it was read"))
    with pytest.raises(TooLarge):
        read(unread, {"content-length": str(LIMIT + 1)})


def test_chunks_up_to_the_limit_are_read():
    assert len(read(Body(b"x" * 400, b"x" * 600), {})) == LIMIT


def test_chunks_over_the_limit_are_refused_before_the_end():
    endless = Body(*[b"x" * 400] * 3, end=RuntimeError("read past the limit"))
    with pytest.raises(TooLarge):
        read(endless, {})


def test_chunks_up_to_the_most_of_them_are_read():
    assert len(read(Body(*[b"x"] * LIMIT), {}, max_chunks=LIMIT)) == LIMIT


def test_one_chunk_more_is_refused():
    with pytest.raises(TooLarge, match="chunks"):
        read(Body(*[b"x"] * LIMIT), {}, max_chunks=LIMIT - 1)


def test_a_second_empty_chunk_is_a_broken_body():
    with pytest.raises(Malformed):
        read(Body(b"x", b"", end=b""), {})


@pytest.mark.parametrize(
    ("coding", "is_read"), [("chunked", True), ("Chunked", True), ("gzip, chunked", False)]
)
def test_only_plain_chunks_are_read(coding, is_read):
    headers = {"transfer-encoding": coding}
    if is_read:
        assert read(Body(b"x"), headers) == b"x"
    else:
        with pytest.raises(UnsupportedType):
            read(Body(b"x"), headers)


@pytest.mark.parametrize("length", ["-1", "1e3", "", "٣", "0x10", "0" * 5000 + "28"])
def test_a_length_that_is_no_number_is_400(length):
    with pytest.raises(Malformed):
        read(Body(b""), {"content-length": length})


def test_a_closed_connection_is_the_client_leaving():
    with pytest.raises(ClientLeft):
        read(Body(end=ProtocolClosed()), {"content-length": "10"})
    with pytest.raises(ClientLeft):
        read(Body(b"x", end=ProtocolClosed()), {})


@pytest.mark.parametrize("headers", [{"content-length": "10"}, {}], ids=["announced", "chunked"])
def test_a_body_that_does_not_come_is_408_at_the_timeout(headers):
    with pytest.raises(BodyTimeout, match="30 s"):
        read(Body(end=None), headers, sweeps_at=(29.9, 30.0))


def test_a_body_that_comes_just_in_time_is_read():
    late = Body(b"x" * 10)
    assert read(late, {"content-length": "10"}, sweeps_at=(29.9,)) == b"x" * 10


def reading(budget: int, scenario) -> None:
    """Run `scenario(reader)` on a reader whose bodies may fill `budget` bytes together."""

    async def run() -> None:
        reader = BodyReader(ServerSettings(max_body=LIMIT), lambda: 0.0)
        reader._budget = budget
        await scenario(reader)

    asyncio.run(run())


def test_bodies_up_to_the_budget_are_read_together_and_one_byte_more_is_told():
    async def scenario(reader: BodyReader) -> None:
        unfinished = Body(end=None)
        first = asyncio.ensure_future(reader.read_json({"content-length": "600"}, unfinished))
        await asyncio.sleep(0)
        assert await reader.read_json({"content-length": "400"}, Body(b"x" * 400))
        with pytest.raises(Unavailable) as told:
            await reader.read_json({"content-length": "401"}, Body(b"x" * 401))
        assert told.value.retryable
        first.cancel()
        await asyncio.wait([first])
        assert await reader.read_json({"content-length": "1000"}, Body(b"x" * 1000))

    reading(1000, scenario)


def test_a_body_of_unknown_length_counts_as_the_largest():
    async def scenario(reader: BodyReader) -> None:
        first = asyncio.ensure_future(reader.read_json({}, Body(b"x", end=None)))
        await asyncio.sleep(0)
        with pytest.raises(Unavailable):
            await reader.read_json({"content-length": "1"}, Body(b"x"))
        first.cancel()
        await asyncio.wait([first])

    reading(LIMIT, scenario)


def test_bodies_that_are_not_there_when_the_server_ends_are_told():
    async def scenario(reader: BodyReader) -> None:
        first = asyncio.ensure_future(reader.read_json({"content-length": "600"}, Body(end=None)))
        await asyncio.sleep(0)
        assert reader.abandon() == 1
        with pytest.raises(Unavailable) as told:
            await first
        assert told.value.reason == "draining"

    reading(LIMIT, scenario)


def test_slow_chunks_do_not_extend_the_time():
    with pytest.raises(BodyTimeout):
        read(Body(b"x", b"x", end=None), {}, sweeps_at=(10.0, 20.0, 30.0))
