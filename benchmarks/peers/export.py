"""Trains the demo's model once for all: into an MLflow registry, and as a file for the peers.

    python benchmarks/peers/export.py FOLDER < rows.json > scores.json

FOLDER gets `mlflow.db`, `artifacts/` and `model.joblib`. The scores are those of the rows on
standard input, computed by the estimator directly: what every server has to answer.
"""

import argparse
import json
import sys
from pathlib import Path

import joblib
import pandas as pd

from tailproof.models import demo


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    options.add_argument("folder", type=Path)
    folder = options.parse_args().folder
    trained = demo.train()
    registry = f"sqlite:///{folder / 'mlflow.db'}"
    demo.register(trained.pipeline, trained.frame, registry, folder / "artifacts")
    rows = pd.DataFrame(json.load(sys.stdin))
    json.dump(trained.pipeline.predict_proba(rows)[:, 1].tolist(), sys.stdout)
    # Only fitting draws from the generator, and no other major version of numpy can read one.
    del trained.pipeline[-1]._feature_subsample_rng
    joblib.dump(trained.pipeline, folder / "model.joblib")


if __name__ == "__main__":
    main()
