"""Any other MLflow model, through MLflow's own `pyfunc` interface."""

from collections.abc import Callable
from typing import Any

import numpy as np

from tailproof.core.errors import ConfigError, ModelError
from tailproof.models.columns import Signature
from tailproof.models.mlmodel import MLmodel
from tailproof.models.registry import import_mlflow
from tailproof.models.runtimes.base import Columns, Progress, outputs_of
from tailproof.models.runtimes.frame import FrameBuilder, MatrixBuilder
from tailproof.models.runtimes.loaded import Opened
from tailproof.models.source import ModelSpec


class PyfuncRuntime:
    """A pyfunc model. `class_index` picks a column of a two-dimensional result."""

    def __init__(
        self,
        call: Callable[[Any], Any],
        arrange: Callable[[Columns], Any],
        class_index: int | None,
    ) -> None:
        self._call = call
        self._arrange = arrange
        self._class_index = class_index

    def predict(self, columns: Columns, num_rows: int) -> Columns:
        result = self._call(self._arrange(columns))
        if self._class_index is not None:
            result = np.asarray(result)[:, self._class_index]
        return outputs_of(result, num_rows)


def open_folder(
    model: MLmodel, spec: ModelSpec, signature: Signature, progress: Progress
) -> Opened:
    """Load a folder with `mlflow.pyfunc`. It runs the model's own code: check trust before.

    Raises ModelError, and ConfigError for a method, which is pyfunc's own to choose.
    """
    if spec.method not in (None, "predict"):
        raise ConfigError("method", spec.method, "a pyfunc model has only predict")
    if "python_function" not in model.flavors:
        flavors = ", ".join(model.flavors)
        raise ModelError(f"the model has no python_function flavor; it has {flavors}")
    progress("importing")
    mlflow = import_mlflow()
    progress("loading")
    loaded = _loaded(mlflow, model)
    dtypes = model.dtypes(signature)
    is_matrix = model.is_tensor
    arrange = MatrixBuilder(list(dtypes), dtypes["x0"]) if is_matrix else FrameBuilder(dtypes)
    runtime = PyfuncRuntime(loaded.predict, arrange, spec.class_index)
    loader = str(model.flavors["python_function"].get("loader_module"))
    parameters: dict[str, Any] = {"method": "predict", "loader": loader}
    if spec.class_index is not None:
        parameters["class_index"] = spec.class_index
    return Opened(runtime, "mlflow", f"MLflow pyfunc {mlflow.__version__}", parameters)


def _loaded(mlflow: Any, model: MLmodel) -> Any:
    try:
        return mlflow.pyfunc.load_model(str(model.folder), suppress_warnings=True)
    except ModuleNotFoundError as error:
        raise ModelError(
            f"the model needs the module {error.name}, which is not installed"
        ) from error
    except Exception as error:
        raise ModelError(f"loading the model raised {type(error).__name__}: {error}") from error
