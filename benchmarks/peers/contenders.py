"""The services that are compared, as data: how each is started, asked, and understood.

How a peer is configured, and why so, is told at the head of its script.
"""

import json
import os
import re
import sysconfig
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from peers.environments import Environment

HERE = Path(__file__).parent
_ASSIGNMENT = re.compile(r"[A-Z_]+=")

Row = Mapping[str, Any]


def plain(row: Row) -> bytes:
    """The row as a JSON object."""
    return json.dumps(row).encode()


def score(answer: Any) -> float:
    """Of `{"score": 0.1}`."""
    return float(answer["score"])


@dataclass(frozen=True, slots=True)
class Contender:
    """A service under test."""

    name: str
    command: tuple[str, ...]
    """Started with `--port PORT` after it."""
    ready_path: str | None = None
    """Answers 200 when the service is ready."""
    route: str = "/predict"
    encode: Callable[[Row], bytes] = plain
    """Makes the body of a request."""
    score_of: Callable[[Any], float] | None = score
    """Finds the score in an answer, a JSON document. None: there is no model behind it."""
    title: str = ""
    """As a picture names it."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Of its packages, where they are not those of this process."""

    @property
    def shown(self) -> str:
        """The command without the variables that are set for it."""
        words = [word for word in self.command if not _ASSIGNMENT.match(word)]
        return " ".join(words).removeprefix("env ")


@dataclass(frozen=True, slots=True)
class Peer:
    """Another model server.

    In `command` and the values of `variables` stand {bin} for the commands of its environment,
    {here} for this folder, {folder} for that of the model, {registry} for the tracking URI, and
    {libraries} for where libpython is.
    """

    name: str
    """As it is asked for; its requirements have the same name."""
    title: str
    package: str
    command: tuple[str, ...]
    ready_path: str | None
    route: str
    encode: Callable[[Row], bytes] = plain
    score_of: Callable[[Any], float] = score
    variables: Mapping[str, str] = field(default_factory=dict)

    def contender(self, environment: Environment, folder: Path, registry: str) -> Contender:
        """The peer as it is started here; `folder` holds the exported model."""
        places = {
            "bin": environment.bin,
            "here": HERE,
            "folder": folder,
            "registry": registry,
            "libraries": sysconfig.get_config_var("LIBDIR"),
        }
        variables = {
            "PATH": f"{environment.bin}:{os.environ.get('PATH', os.defpath)}",
            "FRAUD_MODEL": str(folder / "model.joblib"),
            "OMP_NUM_THREADS": "1",  # there is one core; Tailproof sets it for its workers, too
            **self.variables,
        }
        assignments = [f"{name}={value.format(**places)}" for name, value in variables.items()]
        versions = environment.versions((self.package, "scikit-learn", "numpy", "pandas"))
        return Contender(
            name=self.name,
            command=("env", *assignments, *(word.format(**places) for word in self.command)),
            ready_path=self.ready_path,
            route=self.route,
            encode=self.encode,
            score_of=self.score_of,
            title=f"{self.title} {versions[self.package]}",
            versions=versions,
        )


# --- what they are asked, and answer --------------------------------------------------------------


def listed(row: Row) -> bytes:
    """BentoML: a list of rows, for the argument of that name."""
    return json.dumps({"rows": [row]}).encode()


def tensors(row: Row) -> bytes:
    """Open Inference Protocol: a tensor for each column."""
    return json.dumps({"inputs": _inputs(row)}).encode()


def frame_tensors(row: Row) -> bytes:
    """The same, to be made a DataFrame, and answered with probabilities."""
    about = {"parameters": {"content_type": "pd"}, "outputs": [{"name": "predict_proba"}]}
    return json.dumps({"inputs": _inputs(row), **about}).encode()


def split_frame(row: Row) -> bytes:
    """MLflow: a DataFrame, its columns named once."""
    return json.dumps({"dataframe_split": {"columns": [*row], "data": [[*row.values()]]}}).encode()


def _inputs(row: Row) -> list[dict[str, Any]]:
    types = {"amount": "FP64", "channel": "BYTES", "age": "INT64"}
    return [
        {"name": name, "datatype": types[name], "shape": [1, 1], "data": [value]}
        for name, value in row.items()
    ]


def last_of_tensor(answer: Any) -> float:
    """The only value of a tensor, or of two probabilities the second."""
    return float(answer["outputs"][0]["data"][-1])


# --- the peers ------------------------------------------------------------------------------------

PEERS = (
    Peer(
        name="mosec",
        title="Mosec",
        package="mosec",
        command=("{bin}/python", "{here}/mosec_service.py", "--address", "127.0.0.1"),
        ready_path="/",
        route="/inference",
    ),
    Peer(
        name="bentoml",
        title="BentoML",
        package="bentoml",
        command=(
            *("{bin}/bentoml", "serve", "bentoml_service:Fraud"),
            *("--working-dir", "{here}", "--host", "127.0.0.1"),
        ),
        ready_path="/readyz",
        route="/predict",
        encode=listed,
        score_of=lambda answer: float(answer[0]),
        variables={"BENTOML_HOME": "{folder}/bentoml", "BENTOML_DO_NOT_TRACK": "True"},
    ),
    Peer(
        name="litserve",
        title="LitServe",
        package="litserve",
        command=("{bin}/python", "{here}/litserve_service.py"),
        ready_path="/health",
        route="/predict",
    ),
    Peer(
        name="mlserver",
        title="MLServer",
        package="mlserver",
        command=("{bin}/python", "{here}/mlserver_service.py"),
        ready_path="/v2/models/fraud/ready",
        route="/v2/models/fraud/infer",
        encode=frame_tensors,
        score_of=last_of_tensor,
    ),
    Peer(
        name="pytriton",
        title="PyTriton",
        package="nvidia-pytriton",
        command=("{bin}/python", "{here}/pytriton_service.py"),
        ready_path="/v2/models/fraud/ready",
        route="/v2/models/fraud/infer",
        encode=tensors,
        score_of=last_of_tensor,
        variables={"LD_LIBRARY_PATH": "{libraries}"},  # else its Python models never get ready
    ),
    Peer(
        name="ray",
        title="Ray Serve",
        package="ray",
        command=("{bin}/python", "{here}/ray_service.py"),
        ready_path="/-/healthz",
        route="/predict",
        variables={
            "RAY_SERVE_ENABLE_HA_PROXY": "1",
            "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
        },
    ),
    # It has no batching to configure. `local`: its own environment, not one it builds itself.
    Peer(
        name="mlflow",
        title="MLflow",
        package="mlflow",
        command=(
            *("{bin}/mlflow", "models", "serve", "--model-uri", "models:/fraud-model@champion"),
            *("--env-manager", "local", "--workers", "1", "--host", "127.0.0.1"),
        ),
        ready_path="/ping",
        route="/invocations",
        encode=split_frame,
        score_of=lambda answer: float(answer["predictions"][0][1]),
        variables={"MLFLOW_TRACKING_URI": "{registry}", "MLFLOW_DISABLE_TELEMETRY": "true"},
    ),
)
