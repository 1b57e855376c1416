"""The sending process: what is said on its pipes, and when it ends."""

import struct
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest

from tailproof.core.clock import monotonic
from tailproof.load.messages import (
    PREFIX,
    Aim,
    Done,
    Go,
    Message,
    Prepare,
    Progress,
    Ready,
    Stop,
    decode,
    encode,
)
from tailproof.load.sender import MAX_REPLICAS, _told, run_queue_wait
from tailproof.load.target import build

TARGET = build("http://127.0.0.1:1/", [b"{}", b"\x00\xff"])


def halves(frame: bytes) -> tuple[bytes, bytes]:
    num_header, num_body = PREFIX.unpack_from(frame)
    assert len(frame) == PREFIX.size + num_header + num_body
    return frame[PREFIX.size :][:num_header], frame[PREFIX.size + num_header :]


@pytest.mark.parametrize(
    "message",
    [
        Aim(TARGET),
        Prepare(3, 2.0, 30.0, 2.0, 1, None, 0.1),
        Ready(),
        Go(12.5),
        Progress(4, 3, 1, -np.inf),
        Stop(),
        Done(3.0, ("a", "ü"), {"pid": 1, "cores": [0, 1]}),
    ],
)
def test_a_message_arrives_as_it_left(message: Message) -> None:
    arrays = {
        "times": np.array([0.1, np.nan, np.inf]),
        "codes": np.array([-6, 200], np.int32),
        "none": np.array([], np.float64),
        "flags": np.array([True, False, True]),
    }

    found, came = decode(*halves(encode(message, arrays)))

    assert found == message
    assert list(came) == list(arrays)
    for name, array in arrays.items():
        assert came[name].dtype == array.dtype
        np.testing.assert_array_equal(came[name], array)


def test_columns_of_a_slice_arrive_as_the_slice() -> None:
    every_third = np.arange(10.0)[1::3]

    _, came = decode(*halves(encode(Ready(), {"times": every_third})))

    np.testing.assert_array_equal(came["times"], [1.0, 4.0, 7.0])
    came["times"][0] = 9.0  # it is ours


def test_what_is_no_message_is_refused() -> None:
    with pytest.raises(msgspec.DecodeError):
        decode(msgspec.msgpack.encode(({"type": "unknown"}, [])), b"")


def started() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "tailproof.load.sender"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_it_ends_when_nobody_is_there_any_more() -> None:
    process = started()

    output, errors = process.communicate(encode(Aim(TARGET)), timeout=20.0)

    assert (process.returncode, output, errors) == (0, b"", b"")


def test_it_ends_in_the_middle_of_a_message_too() -> None:
    process = started()

    output, errors = process.communicate(encode(Aim(TARGET))[:-3], timeout=20.0)

    assert (process.returncode, output, errors) == (0, b"", b"")


def test_it_ends_in_the_middle_of_a_step_too(free_port: int) -> None:
    """The step would take a minute."""
    aim = encode(Aim(build(f"http://127.0.0.1:{free_port}/", [b""])))
    arrays = {"intended": np.array([59.0]), "payload": np.zeros(1, np.int32)}
    prepare = encode(Prepare(0, 60.0, 30.0, 2.0, 0, None, None), arrays)
    with started() as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(aim + prepare)
        process.stdin.flush()
        assert process.stdout.read(len(encode(Ready()))) == encode(Ready())
        process.stdin.write(encode(Go(monotonic())))
        process.stdin.flush()
        assert len(process.stdout.read(PREFIX.size)) == PREFIX.size  # the first report

        _, errors = process.communicate(timeout=20.0)

    assert (process.returncode, errors) == (0, b"")


def test_nonsense_ends_it_with_an_error() -> None:
    process = started()

    _, errors = process.communicate(struct.pack("<IQ", 4, 0) + b"\xff\xff\xff\xff", timeout=20.0)

    assert process.returncode == 1
    assert b"Error" in errors


@pytest.mark.skipif(
    not Path("/proc/self/schedstat").exists(), reason="this kernel does not say how long it waited"
)
def test_waiting_for_a_core_only_grows() -> None:
    first, second = run_queue_wait(), run_queue_wait()

    assert first is not None
    assert second is not None
    assert 0.0 <= first <= second


def test_so_many_replicas_are_told_apart_and_the_rest_are_others() -> None:
    def names(num: int) -> tuple[list[int], tuple[str, ...]]:
        marks = [(None, None, b"r%d" % index) for index in [*range(num), 0, num - 1]]
        told, replicas = _told([None] * len(marks), [*marks])
        return told["replica"].tolist(), replicas

    found, replicas = names(MAX_REPLICAS)
    assert found == [*range(MAX_REPLICAS), 0, MAX_REPLICAS - 1]
    assert len(replicas) == MAX_REPLICAS
    found, replicas = names(MAX_REPLICAS + 2)
    assert found == [*range(MAX_REPLICAS), *[MAX_REPLICAS] * 2, 0, MAX_REPLICAS]
    assert replicas[-2:] == (f"r{MAX_REPLICAS - 1}", "other")
