"""What a sending process and its parent say to each other: length-prefixed msgpack headers and the
raw buffers of arrays, never pickle."""

import struct
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from tailproof.load.target import Target

Arrays = dict[str, npt.NDArray[Any]]


class Aim(msgspec.Struct, frozen=True, tag="aim"):
    """Parent -> sender, first: where all steps go."""

    target: Target


class Prepare(msgspec.Struct, frozen=True, tag="prepare"):
    """Parent -> sender: this sender's part of a step. Arrays: `intended`, `payload`."""

    num_warm_up: int
    end: float
    timeout: float
    drain: float
    ready_connections: int
    max_connections: int | None
    threshold: float | None


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """Sender -> parent: connections are open."""


class Go(msgspec.Struct, frozen=True, tag="go"):
    """Parent -> sender: second 0 of the step, on the monotonic clock."""

    start: float


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    """Sender -> parent, several times a second."""

    num_sent: int
    num_answered: int
    num_missed: int
    """So many measured requests at least got no good answer within the threshold."""
    known_until: float
    """Seconds from the start: what was due before either got one by now, or never will."""


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """Parent -> sender: end the step now."""


class Done(msgspec.Struct, frozen=True, tag="done"):
    """Sender -> parent: the step is over. Arrays: the columns of the recording, `loop_lag` and
    `gc_pauses`."""

    ended: float
    replicas: tuple[str, ...]
    facts: dict[str, Any]


Message = Aim | Prepare | Ready | Go | Progress | Stop | Done
PREFIX = struct.Struct("<IQ")

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(tuple[Message, list[tuple[str, str, int]]])


def encode(message: Message, arrays: Mapping[str, npt.NDArray[Any]] | None = None) -> bytes:
    """One frame: lengths of header and body, header, arrays of one dimension one after another."""
    arrays = arrays or {}
    layout = [(name, array.dtype.str, array.nbytes) for name, array in arrays.items()]
    header = _encoder.encode((message, layout))
    body = [np.ascontiguousarray(array).tobytes() for array in arrays.values()]
    return b"".join([PREFIX.pack(len(header), sum(map(len, body))), header, *body])


def decode(header: bytes, body: bytes) -> tuple[Message, Arrays]:
    """What `encode` was given. The arrays can be written to."""
    message, layout = _decoder.decode(header)
    arrays: Arrays = {}
    at = 0
    for name, kind, num_bytes in layout:
        dtype = np.dtype(kind)
        count = num_bytes // dtype.itemsize
        arrays[name] = np.frombuffer(body, dtype, count, at).copy()
        at += num_bytes
    return message, arrays
