"""The wire format between front and worker: length-prefixed, no pickle, ever.

    frame = u32 header length | u32 body length | header (msgpack) | body (raw column buffers)

Numbers travel as raw little-endian buffers, strings as one msgpack array per column. A frame is
one of the records below; which one is told by the `type` field that msgspec writes.
"""

import struct
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from tailproof.models.manifest import Manifest
from tailproof.models.source import ModelSpec

PREFIX = struct.Struct("<II")
MAX_HEADER = 1 << 24
MAX_BODY = 1 << 30

_OBJECT = "O"


class Buffer(msgspec.Struct, frozen=True, array_like=True):
    """One array in the body. `dtype` is a numpy type string, or `O` for strings."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    num_bytes: int


class Load(msgspec.Struct, frozen=True, tag="load"):
    """Front -> worker, first frame: load this, warm it up with batches of these sizes."""

    spec: ModelSpec
    warmup_rows: tuple[int, ...]
    longest_batch: float
    """Seconds: sizes beyond the first that takes longer are not tried."""


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    """Worker -> front: what loading is doing."""

    stage: str


class Loaded(msgspec.Struct, frozen=True, tag="loaded"):
    """Worker -> front: ready. `samples` are (rows, seconds, CPU seconds) of the warm-up batches."""

    manifest: Manifest
    load_seconds: float
    warmup_seconds: float
    samples: tuple[tuple[int, float, float], ...]


class LoadFailed(msgspec.Struct, frozen=True, tag="load_failed"):
    """Worker -> front: it cannot be served; the worker ends after this."""

    error: str
    message: str
    stack: str | None
    """Where in the model's own code it was raised. Its message is then for the log alone; one
    without a stack is our own and may be shown."""


class Batch(msgspec.Struct, frozen=True, tag="batch"):
    """Front -> worker: compute `num_rows` rows; the body holds the columns."""

    batch_id: int
    num_rows: int
    columns: tuple[Buffer, ...]


class Result(msgspec.Struct, frozen=True, tag="result"):
    """Worker -> front. `started` and `finished` are on the system-wide monotonic clock."""

    batch_id: int
    started: float
    finished: float
    cpu_seconds: float
    gc_seconds: float
    outputs: tuple[Buffer, ...]


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """Worker -> front: the model raised. `error` is the type's name; the rest is for the log."""

    batch_id: int
    started: float
    finished: float
    error: str
    message: str
    stack: str


Frame = Load | Progress | Loaded | LoadFailed | Batch | Result | Failed

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Frame)
_strings = msgspec.msgpack.Decoder(list[str | None])


class FrameError(Exception):
    """The other side sent bytes that are not a frame: our own bug, or a broken process."""


def encode(frame: Frame, body: list[bytes] | tuple[bytes, ...] = ()) -> list[bytes]:
    """The buffers of one frame, in the order in which they are to be written."""
    header = _encoder.encode(frame)
    return [PREFIX.pack(len(header), sum(map(len, body))), header, *body]


def pack(arrays: dict[str, npt.NDArray[Any]]) -> tuple[tuple[Buffer, ...], list[bytes]]:
    """Describe and serialise named arrays. Object and str arrays are sent as strings."""
    buffers, body = [], []
    for name, given in arrays.items():
        array = _plain(name, given)
        if array.dtype.kind in "OU":
            data, dtype = _encoder.encode(array.ravel().tolist()), _OBJECT
        else:
            little = array.dtype.newbyteorder("<")
            data, dtype = np.ascontiguousarray(array, dtype=little).tobytes(), little.str
        buffers.append(Buffer(name, dtype, array.shape, len(data)))
        body.append(data)
    return tuple(buffers), body


def _plain(name: str, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The array with one of the types that travel: up to 8 bytes a number, or strings."""
    if array.dtype.kind == "O":
        values = array.ravel().tolist()
        if all(value is None or isinstance(value, str) for value in values):
            return array
        array = np.array(values).reshape(array.shape)  # numbers in an object array
        if array.dtype.kind == "U":
            raise TypeError(f"{name!r} holds strings and other values")
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        return array.astype(np.float64)
    if array.dtype.kind not in "biufU":
        raise TypeError(f"{name!r} holds {array.dtype}: neither numbers nor strings")
    return array


def unpack(buffers: tuple[Buffer, ...], body: memoryview) -> dict[str, npt.NDArray[Any]]:
    """The arrays that `pack` was given. Number arrays are read-only views of `body`."""
    arrays: dict[str, npt.NDArray[Any]] = {}
    offset = 0
    for buffer in buffers:
        data = body[offset : offset + buffer.num_bytes]
        offset += buffer.num_bytes
        if buffer.dtype == _OBJECT:
            array = np.array(_strings.decode(data), dtype=object)
        else:
            array = np.frombuffer(data, dtype=np.dtype(buffer.dtype))
        arrays[buffer.name] = array.reshape(buffer.shape)
    return arrays


class Reader:
    """Cuts a stream of bytes into frames."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[Frame, memoryview]]:
        """Yield every frame that is complete, with its body. Raises FrameError on nonsense."""
        self._data += data
        start = 0
        while len(self._data) - start >= PREFIX.size:
            header_size, body_size = PREFIX.unpack_from(self._data, start)
            if header_size > MAX_HEADER or body_size > MAX_BODY:
                raise FrameError(f"frame of {header_size} + {body_size} bytes is over the limit")
            body_start = start + PREFIX.size + header_size
            end = body_start + body_size
            if len(self._data) < end:
                break
            yield self._frame(start + PREFIX.size, body_start, end)
            start = end
        del self._data[:start]

    def _frame(self, header_start: int, body_start: int, end: int) -> tuple[Frame, memoryview]:
        whole = bytes(self._data[header_start:end])
        split = body_start - header_start
        try:
            frame = _decoder.decode(memoryview(whole)[:split])
        except msgspec.MsgspecError as error:
            raise FrameError(f"unreadable frame header: {error}") from None
        return frame, memoryview(whole)[split:]
