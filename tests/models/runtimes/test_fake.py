import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tailproof.core.clock import monotonic
from tailproof.core.errors import ConfigError, ModelError
from tailproof.models import runtimes
from tailproof.models.columns import Column, Output
from tailproof.models.runtimes.base import LoadedModel
from tailproof.models.runtimes.fake import EXIT_CODE, FakeError
from tailproof.models.source import ModelSpec
from tests.models.conftest import silent


def load(query: str, **settings: Any) -> LoadedModel:
    return runtimes.load(ModelSpec(source=f"fake:?{query}", name="fake", **settings), silent)


def predict(loaded: LoadedModel, *values: float) -> list[float]:
    columns = {"value": np.array(values, dtype=np.float64)}
    score: list[float] = loaded.runtime.predict(columns, len(values))["score"].tolist()
    return score


def lines_of(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text("utf-8").splitlines()]


def test_it_gives_back_what_it_got() -> None:
    assert predict(load(""), 1.5, -2.0, float("inf")) == [1.5, -2.0, float("inf")]


def test_its_manifest_says_what_it_is() -> None:
    loaded = load("fixed=30ms&per_row=1ms&max=16")
    manifest = loaded.manifest
    assert manifest.runtime == "fake"
    assert manifest.max_rows == 16
    assert manifest.parameters == {"fixed_seconds": 0.03, "per_row_seconds": 0.001}
    assert manifest.signature.inputs == (Column(name="value", type="float"),)
    assert manifest.signature.outputs == (Output(name="score", type="float"),)
    assert loaded.runtime.predict(loaded.example, 1)["score"].shape == (1,)


def test_the_first_number_column_comes_back() -> None:
    loaded = load("columns=kind:string,n:int,x:float")
    columns = {
        "x": np.array([0.5]),
        "n": np.array([7], dtype=np.int64),
        "kind": np.array(["a"], dtype=object),
    }
    score = loaded.runtime.predict(columns, 1)["score"]
    assert score.tolist() == [7.0]
    assert score.dtype == np.float64


def test_the_users_table_reaches_its_columns() -> None:
    loaded = load("", columns=({"name": "value", "ge": 0},))
    assert loaded.manifest.signature.inputs == (Column(name="value", type="float", ge=0),)


@pytest.mark.parametrize("busy", ["0", "1"])
def test_a_batch_takes_its_time_and_never_less(busy: str) -> None:
    loaded = load(f"fixed=3ms&per_row=1ms&busy={busy}")
    started = monotonic()
    predict(loaded, 1.0, 2.0)
    assert monotonic() - started >= 0.005


def test_noise_is_the_same_for_the_same_seed(tmp_path: Path) -> None:
    def seconds(seed: int) -> list[float]:
        runtime: Any = load(f"fixed=1ms&noise=0.5&seed={seed}").runtime
        return [runtime._seconds(1) for _ in range(20)]

    assert seconds(1) == seconds(1)
    assert seconds(1) != seconds(2)
    assert len(set(seconds(1))) == 20
    assert min(seconds(1)) >= 0


def test_noise_never_makes_time_run_backwards() -> None:
    runtime: Any = load("fixed=1ms&noise=1").runtime
    times = [runtime._seconds(1) for _ in range(1000)]
    assert min(times) == 0.0
    assert 0.0009 < sum(times) / len(times) < 0.0013


def test_the_most_rows_of_a_batch() -> None:
    loaded = load("max=2")
    assert predict(loaded, 1.0, 2.0) == [1.0, 2.0]
    with pytest.raises(FakeError, match="3 rows in a batch of at most 2"):
        predict(loaded, 1.0, 2.0, 3.0)


def test_a_value_that_fails_the_batch() -> None:
    loaded = load("fail_value=666")
    assert predict(loaded, 1.0) == [1.0]
    with pytest.raises(FakeError):
        predict(loaded, 1.0, 666.0)


@pytest.mark.parametrize(
    ("query", "message"),
    [("fail_load=1", "asked to fail"), ("fail_load=no%20luck", "no luck")],
)
def test_loading_that_fails(query: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        load(query)


def test_loading_that_takes_long() -> None:
    started = monotonic()
    load("load=5ms")
    assert monotonic() - started >= 0.005


def test_an_unknown_parameter_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match=r"fake\.fixt"):
        load("fixt=1ms")


def test_a_value_that_ends_the_process(tmp_path: Path) -> None:
    log = tmp_path / "log"
    code = (
        "import numpy as np; from tailproof.models import runtimes;"
        "from tailproof.models.source import ModelSpec;"
        f"spec = ModelSpec(source='fake:?exit_value=667&log={log}', name='fake');"
        "model = runtimes.load(spec, print).runtime;"
        "model.predict({'value': np.array([1.0])}, 1);"
        "model.predict({'value': np.array([667.0])}, 1);"
        "print('survived')"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == EXIT_CODE
    assert "survived" not in run.stdout
    assert [line["outcome"] for line in lines_of(log)] == ["ok", "exit"]


def test_a_value_that_never_comes_back(tmp_path: Path) -> None:
    log = tmp_path / "log"
    loaded = load(f"hang_value=668&log={log}")
    thread = threading.Thread(target=predict, args=(loaded, 668.0), daemon=True)
    thread.start()
    thread.join(0.2)
    assert thread.is_alive()
    assert [line["outcome"] for line in lines_of(log)] == ["hang"]


def test_each_batch_leaves_its_leak_behind() -> None:
    loaded = load("leak=1MiB")
    runtime: Any = loaded.runtime
    for _ in range(3):
        predict(loaded, 1.0)
    assert sum(map(len, runtime._leaked)) == 3 * 2**20


def test_the_log_has_one_line_per_batch(tmp_path: Path) -> None:
    log = tmp_path / "log"
    loaded = load(f"fixed=1ms&fail_value=666&log={log}")
    before = monotonic()
    predict(loaded, 1.0, 2.0)
    with pytest.raises(FakeError):
        predict(loaded, 666.0)
    after = monotonic()
    first, second = lines_of(log)
    assert before <= first["started"] < first["finished"] <= second["started"] < after
    assert first["finished"] - first["started"] >= 0.001
    assert (first["rows"], first["values"], first["outcome"]) == (2, [1.0, 2.0], "ok")
    assert (second["rows"], second["values"], second["outcome"]) == (1, [666.0], "fail")


def test_two_writers_never_share_a_line(tmp_path: Path) -> None:
    log = tmp_path / "log"
    loaded = [load(f"log={log}") for _ in range(2)]

    def write(model: LoadedModel) -> None:
        for value in range(200):
            predict(model, float(value))

    threads = [threading.Thread(target=write, args=(model,)) for model in loaded]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(lines_of(log)) == 400


def test_the_warm_up_row_asks_for_no_fault() -> None:
    loaded = load("fail_value=0&exit_value=1&hang_value=2")
    assert loaded.example["value"].tolist() == [3.0]
    assert os.getpid() > 0, "and the process is still there"
