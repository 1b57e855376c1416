"""The wire format between front and worker."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tailproof.workers import frames
from tailproof.workers.frames import FrameError, Reader

NUMBERS = hnp.arrays(
    dtype=st.sampled_from(["<f8", "<f4", ">f8", "<i8", "<i4", "|b1"]),
    shape=hnp.array_shapes(max_dims=3, max_side=5, min_side=0),
)


def stream(*parts: tuple[frames.Frame, list[bytes]]) -> bytes:
    return b"".join(b"".join(frames.encode(frame, body)) for frame, body in parts)


@given(first=NUMBERS, second=NUMBERS, step=st.integers(1, 40))
def test_arrays_survive_any_fragmentation(first, second, step):
    buffers, body = frames.pack({"a": first, "b": second})
    data = stream((frames.Batch(7, 1, buffers), body), (frames.Progress("x"), []))
    reader = Reader()
    got = [item for at in range(0, len(data), step) for item in reader.feed(data[at : at + step])]
    assert [type(frame) for frame, _ in got] == [frames.Batch, frames.Progress]
    arrays = frames.unpack(got[0][0].columns, got[0][1])
    for name, sent in {"a": first, "b": second}.items():
        np.testing.assert_array_equal(arrays[name], sent)
        assert arrays[name].shape == sent.shape
        assert arrays[name].dtype == sent.dtype.newbyteorder("<")


@given(st.lists(st.one_of(st.none(), st.text())))
def test_strings_and_missing_strings_survive(values):
    buffers, body = frames.pack({"s": np.array(values, dtype=object)})
    (frame, data), *_ = Reader().feed(stream((frames.Batch(1, len(values), buffers), body)))
    assert frames.unpack(frame.columns, data)["s"].tolist() == values


def test_fixed_width_strings_are_sent_as_strings():
    buffers, body = frames.pack({"label": np.array(["web", "app"])})
    arrays = frames.unpack(buffers, memoryview(b"".join(body)))
    assert arrays["label"].tolist() == ["web", "app"]


@pytest.mark.parametrize(
    "array",
    [
        np.array([1 + 2j]),
        np.array(["2026-01-01"], dtype="datetime64[D]"),
        np.array([object()], dtype=object),
        np.array(["a", 1], dtype=object),
    ],
    ids=["complex", "datetime", "arbitrary object", "strings and numbers"],
)
def test_what_the_format_cannot_carry_is_an_error_not_a_pickle(array):
    with pytest.raises(TypeError):
        frames.pack({"x": array})


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (frames.PREFIX.pack(frames.MAX_HEADER + 1, 0), "over the limit"),
        (frames.PREFIX.pack(0, frames.MAX_BODY + 1), "over the limit"),
        (frames.PREFIX.pack(4, 0) + b"\xc1\xc1\xc1\xc1", "unreadable"),
        (frames.PREFIX.pack(1, 0) + b"\x80", "unreadable"),  # a map without a type
        (b"GET / HTTP/1.1\r\n", "over the limit"),
    ],
    ids=["long header", "long body", "not msgpack", "unknown record", "http"],
)
def test_nonsense_is_refused(data, why):
    with pytest.raises(FrameError, match=why):
        list(Reader().feed(data))


@pytest.mark.parametrize(
    ("array", "values"),
    [
        (np.array([1, 2], dtype=object), [1, 2]),
        (np.array([[1.5, 2]], dtype=object), [[1.5, 2.0]]),
        (np.array([True, False], dtype=object), [True, False]),
        (np.array([0.25], dtype=np.longdouble), [0.25]),
        (np.array([0.25], dtype=np.float16), [0.25]),
    ],
    ids=["objects that are ints", "objects that are floats", "bools", "longdouble", "half"],
)
def test_numbers_in_disguise_travel_as_numbers(array, values):
    buffers, body = frames.pack({"x": array})
    assert frames.unpack(buffers, memoryview(b"".join(body)))["x"].tolist() == values


def test_a_header_of_just_the_limit_is_waited_for():
    assert list(Reader().feed(frames.PREFIX.pack(frames.MAX_HEADER, frames.MAX_BODY))) == []


def test_a_pickle_is_never_opened(tmp_path):
    canary = tmp_path / "canary"

    class Trap:
        def __reduce__(self):
            return (canary.touch, ())

    payload = pickle.dumps(Trap())
    with pytest.raises(FrameError):
        list(Reader().feed(frames.PREFIX.pack(len(payload), 0) + payload))
    assert not canary.exists()
    pickle.loads(payload)  # the trap works: what opens it springs it
    assert canary.exists()
