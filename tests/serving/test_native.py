"""The bytes of our own answers."""

import json

import pytest

from tailproof.models.manifest import Manifest
from tailproof.models.signature import Signature
from tailproof.serving.batcher import Answer
from tailproof.serving.protocols.native import NativeEncoder

ENCODER = NativeEncoder(
    Manifest(
        name="m",
        source="s",
        runtime="r",
        signature=Signature(inputs=()),
        version="3",
        alias="champion",
    ),
    "score",
    "scores",
)
IDENTITY = {"model_alias": "champion", "model_version": "3"}


def encode(outputs: dict[str, list[object]], *, is_list: bool) -> dict[str, object]:
    answer = Answer(outputs, batch_rows=1, worker=0, cold=False)
    return json.loads(ENCODER.encode(answer, is_list=is_list))


@pytest.mark.parametrize(
    ("outputs", "is_list", "content"),
    [
        ({"p": [0.1]}, False, {"score": 0.1}),
        ({"p": [0.1, 0.2]}, True, {"scores": [0.1, 0.2]}),
        ({"p": [0.1]}, True, {"scores": [0.1]}),
        ({"p": [[0.1, 0.9]]}, False, {"score": [0.1, 0.9]}),
        ({"a": [1], "b": ["x"]}, False, {"score": {"a": 1, "b": "x"}}),
        (
            {"a": [1, 2], "b": ["x", None]},
            True,
            {"scores": [{"a": 1, "b": "x"}, {"a": 2, "b": None}]},
        ),
        ({"p": [float("nan"), float("inf")]}, True, {"scores": [None, None]}),
    ],
    ids=["one", "list", "list of one", "vector", "two outputs", "two outputs, list", "no number"],
)
def test_answers(outputs, is_list, content):
    assert encode(outputs, is_list=is_list) == content | IDENTITY


def test_numbers_are_not_rounded():
    value = 0.1234567890123456789
    assert encode({"p": [value]}, is_list=False)["score"] == value


def test_what_nobody_declared_is_null():
    manifest = Manifest(name="m", source="s", runtime="r", signature=Signature(inputs=()))
    body = NativeEncoder(manifest, "y", "ys").encode(Answer({"p": [1]}, 1, 0, False), is_list=False)
    assert json.loads(body) == {"y": 1, "model_alias": None, "model_version": None}


def test_the_example_of_the_documentation_has_the_shape_of_an_answer():
    assert ENCODER.example(0.5, is_list=True) == {"scores": [0.5]} | IDENTITY
