"""The service that people write by hand today, from the tutorials: FastAPI around one model.

It is here for comparison and does nothing wrong: the model is loaded once, requests are validated,
/health is honest, and the endpoint is a plain `def`, so the model does not block the event loop.
It computes one row at a time, knows no deadline and refuses nobody.

    make demo                                       # leaves a registry in .tailproof/demo
    .venv/bin/python examples/handmade.py --port 8001
"""

import argparse
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import mlflow
import pandas as pd
import uvicorn
from fastapi import FastAPI, HTTPException
from pydantic import BaseModel, Field


class Payment(BaseModel):
    """What the model wants to know about a card payment."""

    amount: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    channel: Annotated[str, Field(pattern="^(web|app|store|line)$")]
    age: Annotated[int, Field(ge=0, le=120)]


class Score(BaseModel):
    """How likely it is fraud (0-1), and who says so."""

    score: float
    model_version: str


def create_app(name: str, alias: str, tracking_uri: str) -> FastAPI:
    """The application around `models:/name@alias` of an MLflow registry."""
    loaded: dict[str, Any] = {}

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        mlflow.set_tracking_uri(tracking_uri)
        loaded["version"] = mlflow.MlflowClient().get_model_version_by_alias(name, alias).version
        loaded["model"] = mlflow.sklearn.load_model(f"models:/{name}/{loaded['version']}")
        yield
        loaded.clear()

    app = FastAPI(title="Fraud", lifespan=lifespan)

    @app.get("/health")
    def health() -> dict[str, str]:
        if "model" not in loaded:
            raise HTTPException(503, "model not loaded")
        return {"status": "ok"}

    @app.post("/predict")
    def predict(payment: Payment) -> Score:
        row = pd.DataFrame([payment.model_dump()])
        probability = loaded["model"].predict_proba(row)[0, 1]
        return Score(score=float(probability), model_version=str(loaded["version"]))

    return app


def main() -> None:
    """Serve it with uvicorn."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8001)
    parser.add_argument("--name", default="fraud-model")
    parser.add_argument("--alias", default="champion")
    parser.add_argument("--tracking-uri", default="sqlite:///.tailproof/demo/mlflow.db")
    options = parser.parse_args()
    app = create_app(options.name, options.alias, options.tracking_uri)
    uvicorn.run(app, host=options.host, port=options.port, log_level="warning")


if __name__ == "__main__":
    main()
