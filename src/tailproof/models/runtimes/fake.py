"""A model that takes its time and fails on demand: the control of tests and benchmarks."""

import os
import random
import threading
import time
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from tailproof.core.clock import monotonic
from tailproof.core.errors import ModelError
from tailproof.models.arrays import Arranger
from tailproof.models.columns import Output, Signature
from tailproof.models.constraints import merge, table_of
from tailproof.models.examples import example_row
from tailproof.models.fake import FakeOptions
from tailproof.models.manifest import Manifest
from tailproof.models.runtimes.base import Columns, LoadedModel, Progress
from tailproof.models.source import Fake, ModelSpec, parse

EXIT_CODE = 3
"""What a worker ends with when it is sent `exit_value`."""


class FakeError(Exception):
    """The failure that was asked for."""


class FakeRuntime:
    """Answers `score` = the first number column, after `fixed + n * per_row` seconds."""

    def __init__(self, options: FakeOptions) -> None:
        self._options = options
        self._random = random.Random(options.seed)  # noqa: S311 - times, not secrets
        self._leaked: list[bytes] = []

    def predict(self, columns: Columns, num_rows: int) -> Columns:
        started = monotonic()
        options = self._options
        values = columns[options.echoed].astype(np.float64)
        if options.max_rows is not None and num_rows > options.max_rows:
            raise FakeError(f"{num_rows} rows in a batch of at most {options.max_rows}")
        if options.leak:
            self._leaked.append(b"\x01" * options.leak)
        self._obey(values, started)
        self._wait_until(started + self._seconds(num_rows))
        self._log(values, started, "ok")
        return {"score": values}

    def _seconds(self, num_rows: int) -> float:
        options = self._options
        seconds = options.fixed + num_rows * options.per_row
        if options.noise:
            seconds *= max(0.0, self._random.gauss(1.0, options.noise))
        return seconds

    def _wait_until(self, deadline: float) -> None:
        """Sleep to an instant, not for a time: what came before is part of the batch."""
        while (left := deadline - monotonic()) > 0:
            if not self._options.busy:
                time.sleep(left)

    def _obey(self, values: npt.NDArray[np.float64], started: float) -> None:
        """The fault that one of the values asks for, if any."""
        options = self._options
        if options.exit_value is not None and options.exit_value in values:
            self._log(values, started, "exit")
            os._exit(EXIT_CODE)
        if options.hang_value is not None and options.hang_value in values:
            self._log(values, started, "hang")
            threading.Event().wait()
        if options.fail_value is not None and options.fail_value in values:
            self._wait_until(started + self._seconds(len(values)))
            self._log(values, started, "fail")
            raise FakeError("a value asked for a failure")

    def _log(self, values: npt.NDArray[np.float64], started: float, outcome: str) -> None:
        """One write of one line, so that lines of several workers never mix."""
        if self._options.log is None:
            return
        line = msgspec.json.encode(
            {
                "started": started,
                "finished": monotonic(),
                "rows": len(values),
                "values": values.tolist(),
                "outcome": outcome,
            }
        )
        with Path(self._options.log).open("ab", buffering=0) as file:
            file.write(line + b"\n")


def load(spec: ModelSpec, progress: Progress) -> LoadedModel:
    """The fake that `spec.source` describes."""
    source = parse(spec.source)
    assert isinstance(source, Fake)
    options = source.options
    progress("loading")
    time.sleep(options.load)
    if options.fail_load is not None:
        raise ModelError("asked to fail" if options.fail_load == "1" else options.fail_load)
    own = Signature(inputs=options.columns, outputs=(Output(name="score", type="float"),))
    signature = merge(own, table_of(spec.columns))
    manifest = Manifest(
        name=spec.name,
        source=spec.source,
        runtime="fake",
        signature=signature,
        max_rows=options.max_rows,
        parameters=_parameters(options),
    )
    return LoadedModel(FakeRuntime(options), manifest, _example(options, signature))


def _parameters(options: FakeOptions) -> dict[str, float]:
    return {"fixed_seconds": options.fixed, "per_row_seconds": options.per_row}


def _example(options: FakeOptions, signature: Signature) -> Columns:
    """A row that asks for no fault."""
    faults = {options.fail_value, options.exit_value, options.hang_value}
    row = example_row(signature)
    row[options.echoed] = next(value for value in range(4) if value not in faults)
    return Arranger(signature).arrays([row])
