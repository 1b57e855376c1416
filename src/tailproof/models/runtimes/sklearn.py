"""scikit-learn models, called directly: without MLflow's wrapper, whose import costs a second."""

import os
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tailproof.core.errors import ConfigError, ModelError, UntrustedModel
from tailproof.models.columns import Signature
from tailproof.models.extras import need
from tailproof.models.mlmodel import MLmodel, inside
from tailproof.models.runtimes.base import Columns, Progress, outputs_of
from tailproof.models.runtimes.frame import FrameBuilder, MatrixBuilder
from tailproof.models.runtimes.loaded import Opened
from tailproof.models.source import ModelSpec
from tailproof.models.trust import ALLOWED_TYPES, skops_file, untrusted_types

METHODS = ("predict", "predict_proba", "predict_log_proba", "decision_function")

_BY_CLASS = ("predict_proba", "predict_log_proba")
_PICKLES = ("pickle", "cloudpickle")


class SklearnRuntime:
    """One method of one estimator, and the column of its result that is the answer."""

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
            result = result[:, self._class_index]
        return outputs_of(result, num_rows)


def import_sklearn() -> Any:
    """scikit-learn, with one OpenMP thread unless the environment says otherwise.

    Batches are small and workers share the cores: a second thread spins more than it helps (a
    batch of 32 took 16 ms instead of 4 ms on two busy cores).
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    return need("sklearn")


def open_folder(
    model: MLmodel, spec: ModelSpec, signature: Signature, progress: Progress, *, is_vouched: bool
) -> Opened:
    """Load the scikit-learn flavor of an MLflow folder.

    `is_vouched`: loading it may run code, since it lies on this disk or its digest is trusted.
    Else only scikit-learn's own types are read, from a skops file. Raises ModelError.
    """
    progress("importing")
    import_sklearn()
    progress("loading")
    estimator = _read(model, is_vouched=is_vouched)
    own_method = model.flavors.get("python_function", {}).get("predict_fn")
    dtypes = model.dtypes(signature)
    return open_estimator(estimator, spec, dtypes, own_method=own_method, is_matrix=model.is_tensor)


def open_estimator(
    estimator: Any,
    spec: ModelSpec,
    dtypes: dict[str, str],
    *,
    own_method: str | None,
    is_matrix: bool = False,
) -> Opened:
    """A fitted estimator as a runtime. `dtypes` are its columns in the signature's order.

    Raises ConfigError for a method that the estimator lacks and a class that it does not know.
    """
    method = _method_of(estimator, spec.method or own_method or "predict")
    class_index = _class_index_of(estimator, method, spec.class_index)
    runtime = SklearnRuntime(
        getattr(estimator, method), _arrange_for(estimator, dtypes, is_matrix), class_index
    )
    parameters: dict[str, Any] = {"method": method}
    if class_index is not None:
        parameters["class_index"] = class_index
    engine = f"scikit-learn {import_sklearn().__version__}"
    return Opened(runtime, "sklearn", engine, parameters)


def _read(model: MLmodel, *, is_vouched: bool) -> Any:
    path = skops_file(model)
    flavor = model.flavors["sklearn"]
    if is_vouched and flavor.get("code"):
        sys.path.insert(0, str(inside(model.folder, str(flavor["code"]))))
    try:
        if path is not None:
            trusted = untrusted_types(path) if is_vouched else sorted(ALLOWED_TYPES)
            return need("skops.io").load(path, trusted=trusted)
        assert is_vouched, "trust.check_network_model lets no pickle through"
        return _unpickled(model)
    except ModelError:
        raise
    except ModuleNotFoundError as error:
        raise ModelError(
            f"the model needs the module {error.name}, which is not installed"
        ) from error
    except Exception as error:
        raise ModelError(f"reading the model raised {type(error).__name__}: {error}") from error


def _unpickled(model: MLmodel) -> Any:
    flavor = model.flavors["sklearn"]
    kind = flavor.get("serialization_format", "pickle")
    if kind not in _PICKLES:
        raise ModelError(f"the model is in the format {kind}, which this version does not read")
    if os.environ.get("MLFLOW_ALLOW_PICKLE_DESERIALIZATION", "true").lower() in ("false", "0"):
        raise UntrustedModel(
            "the model is a pickle, and MLFLOW_ALLOW_PICKLE_DESERIALIZATION forbids to load one"
        )
    if kind == "cloudpickle":
        need("cloudpickle")
    path: Path = inside(model.folder, str(flavor.get("pickled_model")))
    with path.open("rb") as file:
        return pickle.load(file)  # noqa: S301 - vouched for, see models.trust


def _method_of(estimator: Any, method: str) -> str:
    offered = [name for name in METHODS if callable(getattr(estimator, name, None))]
    if method not in offered:
        raise ConfigError(
            "method", method, f"this model has {', '.join(offered) or 'none of them'}"
        )
    return method


def _class_index_of(estimator: Any, method: str, wanted: int | None) -> int | None:
    """Which column of the probabilities is the answer: the second of two, else all of them."""
    if method not in _BY_CLASS:
        if wanted is not None:
            raise ConfigError("class", wanted, f"{method} has no classes; use predict_proba")
        return None
    num_classes = len(getattr(estimator, "classes_", ()))
    if wanted is None:
        return 1 if num_classes == 2 else None
    if not 0 <= wanted < num_classes:
        raise ConfigError("class", wanted, f"the model has the classes 0 to {num_classes - 1}")
    return wanted


def _arrange_for(
    estimator: Any, dtypes: dict[str, str], is_matrix: bool
) -> Callable[[Columns], Any]:
    """A frame in the order in which the estimator was fitted; a matrix if it was fitted on one."""
    fitted = getattr(estimator, "feature_names_in_", None)
    is_nameless = fitted is None and hasattr(estimator, "n_features_in_")
    kinds = set(dtypes.values())
    if is_matrix or (is_nameless and len(kinds) == 1 and kinds != {"object"}):
        return MatrixBuilder(list(dtypes), next(iter(dtypes.values())))
    if fitted is not None and set(fitted) == set(dtypes):
        dtypes = {str(name): dtypes[str(name)] for name in fitted}
    return FrameBuilder(dtypes)
