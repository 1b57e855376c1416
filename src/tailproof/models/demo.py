"""The demo model: 20,000 generated card payments, some of them fraud, and a small classifier.

`demo:fraud` trains it in the worker. `register` puts it into an MLflow registry, from where
`models:/fraud-model@champion` is served with the same limits on its columns, since the model
carries them in its own metadata.
"""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tailproof.models.constraints import merge, table_of
from tailproof.models.extras import need
from tailproof.models.manifest import Manifest
from tailproof.models.mlmodel import COLUMNS_KEY
from tailproof.models.registry import import_mlflow
from tailproof.models.runtimes import sklearn as runtime
from tailproof.models.runtimes.base import LoadedModel, Progress
from tailproof.models.runtimes.loaded import example_columns, with_outputs
from tailproof.models.source import ModelSpec

ROWS = 20_000
HELD_OUT = 5_000
SEED = 7
METHOD = "predict_proba"
TRAINING_DATA = f"{ROWS - HELD_OUT:,} generated payments (tailproof.models.demo, seed {{seed}})"
LICENCE = "Apache-2.0"

CHANNELS = ("web", "app", "store", "line")
COLUMNS: tuple[dict[str, Any], ...] = (
    {
        "name": "amount",
        "type": "float",
        "gt": 0,
        "description": "Amount of the payment, in euros",
        "example": 182.5,
    },
    {
        "name": "channel",
        "type": "string",
        "pattern": "^(web|app|store|line)$",
        "description": "Where it was made: web shop, app, till, or by telephone line",
        "example": "web",
    },
    {
        "name": "age",
        "type": "int",
        "ge": 0,
        "le": 120,
        "description": "Age of the card holder, in years",
        "example": 33,
    },
)
"""The columns with their limits, in the order in which the model takes them."""


@dataclass(frozen=True, slots=True)
class Trained:
    """A fitted pipeline and what it was fitted and judged on."""

    pipeline: Any
    frame: Any
    """DataFrame of shape (ROWS, 3): amount, channel, age."""
    target: npt.NDArray[np.int64]
    """Shape (ROWS,): 1 is fraud."""
    roc_auc: float
    """On HELD_OUT rows that the pipeline has not seen."""


def payments(seed: int = SEED) -> tuple[dict[str, npt.NDArray[Any]], npt.NDArray[np.int64]]:
    """ROWS generated payments as columns, and whether each is fraud (about 1.5%).

    Large amounts, telephone and web, the old and the very young are at risk; so much else is
    chance that no model gets all of it right.
    """
    rng = np.random.default_rng(seed)
    amount = np.round(rng.lognormal(3.4, 1.1, ROWS), 2).clip(0.01)
    channel = rng.choice(CHANNELS, ROWS, p=(0.45, 0.25, 0.25, 0.05))
    age = rng.integers(18, 91, ROWS)
    risk_of = {"web": 0.9, "app": 0.3, "store": -1.5, "line": 1.6}
    risk = np.array([risk_of[name] for name in channel])
    log_odds = -6.2 + 1.3 * (np.log(amount) - 3.4) + risk + 1.2 * (age >= 70) + 0.5 * (age < 23)
    fraud = rng.random(ROWS) < 1.0 / (1.0 + np.exp(-log_odds))
    columns = {"amount": amount, "channel": channel.astype(object), "age": age}
    return columns, fraud.astype(np.int64)


def train(seed: int = SEED) -> Trained:
    """Fit one-hot encoding and gradient-boosted trees. Takes about a second."""
    runtime.import_sklearn()
    columns, target = payments(seed)
    frame = need("pandas").DataFrame(columns)
    pipeline = _pipeline(seed)
    pipeline.fit(frame[HELD_OUT:], target[HELD_OUT:])
    scores = pipeline.predict_proba(frame[:HELD_OUT])[:, 1]
    roc_auc = need("sklearn.metrics").roc_auc_score(target[:HELD_OUT], scores)
    return Trained(pipeline, frame, target, float(roc_auc))


def load(spec: ModelSpec, progress: Progress) -> LoadedModel:
    """Train the model and serve it from memory: there are no files."""
    progress("importing")
    runtime.import_sklearn()
    progress("training")
    trained = train()
    signature = merge(merge(None, table_of(COLUMNS)), table_of(spec.columns))
    dtypes = {"amount": "float64", "channel": "object", "age": "int64"}
    opened = runtime.open_estimator(trained.pipeline, spec, dtypes, own_method=METHOD)
    example = example_columns(signature)
    manifest = Manifest(
        name=spec.name,
        source=spec.source,
        runtime=opened.kind,
        signature=with_outputs(signature, opened.runtime, example),
        engine=opened.engine,
        parameters={**opened.parameters, "seed": SEED, "roc_auc": trained.roc_auc},
        training_data=TRAINING_DATA.format(seed=SEED),
        licence=LICENCE,
    )
    return LoadedModel(opened.runtime, manifest, example)


def register(
    pipeline: Any,
    frame: Any,
    tracking_uri: str,
    artifact_dir: Path,
    *,
    name: str = "fraud-model",
    alias: str = "champion",
) -> str:
    """Log the pipeline, register it as `name` and give the new version the alias.

    `frame` is what it was trained on, for signature and example. Returns the version.
    """
    mlflow = import_mlflow()
    facts = {"training_data": TRAINING_DATA.format(seed=SEED), "licence": LICENCE}
    with _quiet(), _tracking(mlflow, tracking_uri):
        client = mlflow.MlflowClient(tracking_uri=tracking_uri, registry_uri=tracking_uri)
        if not client.search_registered_models(f"name = '{name}'"):
            client.create_registered_model(name)
        experiment_id = _experiment(client, name, artifact_dir)
        with mlflow.start_run(experiment_id=experiment_id) as run:
            logged = _log(mlflow, pipeline, frame)
        created = client.create_model_version(
            name, logged.model_uri, run.info.run_id, tags=facts, model_id=logged.model_id
        )
        version = str(created.version)
        client.set_registered_model_alias(name, alias, version)
    return version


def _pipeline(seed: int) -> Any:
    compose, pipeline = need("sklearn.compose"), need("sklearn.pipeline")
    one_hot = need("sklearn.preprocessing").OneHotEncoder(
        handle_unknown="ignore", sparse_output=False
    )
    trees = need("sklearn.ensemble").HistGradientBoostingClassifier(
        max_iter=100,
        learning_rate=0.05,
        max_leaf_nodes=15,
        l2_regularization=1.0,
        early_stopping=False,
        random_state=seed,
    )
    encode = compose.make_column_transformer(
        (one_hot, ["channel"]), remainder="passthrough", verbose_feature_names_out=False
    )
    return pipeline.make_pipeline(encode, trees)


def _log(mlflow: Any, pipeline: Any, frame: Any) -> Any:
    sample = frame[:5]
    return mlflow.sklearn.log_model(
        pipeline,
        name="model",
        signature=mlflow.models.infer_signature(sample, pipeline.predict_proba(sample)),
        input_example=frame[:1],
        pyfunc_predict_fn=METHOD,
        serialization_format="skops",
        skops_trusted_types=["sklearn.ensemble._hist_gradient_boosting.predictor.TreePredictor"],
        pip_requirements=[f"scikit-learn=={need('sklearn').__version__}", "skops"],
        metadata={COLUMNS_KEY: list(COLUMNS)},
    )


def _experiment(client: Any, name: str, artifact_dir: Path) -> str:
    """The experiment whose artifacts lie in `artifact_dir`, made when it is not there yet."""
    location = artifact_dir.resolve().as_uri()
    found = client.get_experiment_by_name(name)
    if found is not None:
        return str(found.experiment_id)
    return str(client.create_experiment(name, artifact_location=location))


@contextmanager
def _tracking(mlflow: Any, uri: str) -> Iterator[None]:
    """MLflow's logging functions know only one global URI; put the old one back afterwards."""
    before = mlflow.get_tracking_uri() if mlflow.is_tracking_uri_set() else None
    mlflow.set_tracking_uri(uri)
    try:
        yield
    finally:
        mlflow.set_tracking_uri(before)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without MLflow's hints, progress lines and warnings about itself."""
    loggers = [logging.getLogger(name) for name in ("mlflow", "alembic")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings(), redirect_stderr(StringIO()):
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
