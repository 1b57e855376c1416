import json

import numpy as np
import pandas as pd
import pytest

from tailproof.models import demo, runtimes
from tailproof.models.demo import Trained
from tailproof.models.registry import import_mlflow
from tailproof.models.signature import Column, Validator
from tailproof.models.source import ModelSpec
from tests.models.conftest import Registry, silent

COLUMNS = (
    Column(
        name="amount",
        type="float",
        gt=0,
        description="Amount of the payment, in euros",
        example=182.5,
    ),
    Column(
        name="channel",
        type="string",
        pattern="^(web|app|store|line)$",
        description="Where it was made: web shop, app, till, or by telephone line",
        example="web",
    ),
    Column(
        name="age",
        type="int",
        ge=0,
        le=120,
        description="Age of the card holder, in years",
        example=33,
    ),
)


def test_payments_are_the_same_for_the_same_seed() -> None:
    columns, fraud = demo.payments(seed=3)
    again, fraud_again = demo.payments(seed=3)
    other, _ = demo.payments(seed=4)
    assert (fraud == fraud_again).all()
    assert all((columns[name] == again[name]).all() for name in columns)
    assert (columns["amount"] != other["amount"]).any()


def test_payments_are_believable() -> None:
    columns, fraud = demo.payments()
    assert {array.shape for array in (*columns.values(), fraud)} == {(20_000,)}
    assert columns["amount"].min() > 0
    assert set(columns["channel"]) == set(demo.CHANNELS)
    assert 0.005 < fraud.mean() < 0.03
    assert (
        fraud[columns["channel"] == "line"].mean() > 3 * fraud[columns["channel"] == "store"].mean()
    )


def test_the_classifier_has_learnt_something_that_it_was_not_shown(trained: Trained) -> None:
    assert 0.8 < trained.roc_auc < 0.95
    assert trained.frame.shape == (20_000, 3)
    assert list(trained.frame.columns) == ["amount", "channel", "age"]


def test_training_twice_gives_the_same_model(trained: Trained) -> None:
    rows = trained.frame[:50]
    again = demo.train().pipeline.predict_proba(rows)
    np.testing.assert_array_equal(trained.pipeline.predict_proba(rows), again)


def test_the_demo_source_trains_and_says_so() -> None:
    stages: list[str] = []
    loaded = runtimes.load(ModelSpec(source="demo:fraud", name="fraud"), stages.append)
    manifest = loaded.manifest
    assert stages == ["importing", "training"]
    assert manifest.signature.inputs == COLUMNS
    assert manifest.runtime == "sklearn"
    assert manifest.parameters["method"] == "predict_proba"
    assert manifest.parameters["class_index"] == 1
    assert manifest.files == ()
    assert (manifest.version, manifest.alias) == (None, None)
    assert manifest.licence == "Apache-2.0"


def test_the_registered_model_carries_its_own_limits(registry: Registry) -> None:
    spec = ModelSpec(
        source="models:/fraud-model@champion", name="fraud", tracking_uri=registry.tracking_uri
    )
    loaded = runtimes.load(spec, silent)
    manifest = loaded.manifest
    assert manifest.signature.inputs == COLUMNS
    assert (manifest.version, manifest.alias, manifest.licence) == ("1", "champion", "Apache-2.0")
    validator = Validator.compile(manifest.signature)
    rows, _ = validator.rows(json.dumps(validator.example()).encode())
    expected = registry.trained.pipeline.predict_proba(pd.DataFrame(rows))
    score = loaded.runtime.predict(validator.columns(rows), 1)["score"]
    assert score.tolist() == expected[:, 1].tolist()


def test_registering_again_makes_a_version_and_moves_the_alias(
    registry: Registry, tmp_path_factory: pytest.TempPathFactory, capfd: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path_factory.mktemp("again")
    mlflow = import_mlflow()
    trained = registry.trained
    versions = [
        demo.register(
            trained.pipeline,
            trained.frame,
            registry.tracking_uri,
            directory,
            name="twice",
            alias="newest",
        )
        for _ in range(2)
    ]
    found = registry.client().get_model_version_by_alias("twice", "newest")
    assert versions == ["1", "2"]
    assert str(found.version) == "2"
    assert capfd.readouterr() == ("", ""), "MLflow's chatter"
    assert not mlflow.is_tracking_uri_set(), "MLflow's global setting is as it was"
