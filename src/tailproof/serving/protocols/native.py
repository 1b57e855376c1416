"""Our own answers: `{"score": 0.12, "model_alias": "champion", "model_version": "3"}`."""

from typing import Any

import msgspec

from tailproof.models.manifest import Manifest
from tailproof.serving.batcher import Answer

_encode = msgspec.json.Encoder().encode


class NativeEncoder:
    """Writes `/predict` answers of one model version; what never changes is written once."""

    def __init__(self, manifest: Manifest, output: str, output_list: str) -> None:
        identity = {"model_alias": manifest.alias, "model_version": manifest.version}
        self._tail = b"," + _encode(identity)[1:]
        self._one = b'{"' + output.encode() + b'":'
        self._many = b'{"' + output_list.encode() + b'":'

    def encode(self, answer: Answer, *, is_list: bool) -> bytes:
        """The body of the answer. NaN and infinity, which JSON lacks, become null.

        One output is the value itself; several are an object, or a list of objects.
        """
        outputs = answer.outputs
        if len(outputs) == 1:
            (values,) = outputs.values()
        else:
            values = [
                dict(zip(outputs, row, strict=True)) for row in zip(*outputs.values(), strict=True)
            ]
        if is_list:
            return self._many + _encode(values) + self._tail
        return self._one + _encode(values[0]) + self._tail

    def example(self, value: Any, *, is_list: bool) -> dict[str, Any]:
        """What an answer looks like, for the OpenAPI page."""
        name, content = (self._many, [value]) if is_list else (self._one, value)
        result: dict[str, Any] = msgspec.json.decode(name + _encode(content) + self._tail)
        return result
