"""Libraries that come with an extra of the package, and what to do when one is not there."""

import importlib
from typing import Any

from tailproof.core.errors import ModelError

_EXTRAS = {
    "mlflow": "mlflow",
    "yaml": "mlflow",
    "pandas": "sklearn",
    "sklearn": "sklearn",
    "skops": "sklearn",
    "cloudpickle": "mlflow",
}


def need(name: str) -> Any:
    """Import a module, e.g. `skops.io`. Raises ModelError that names the extra to install."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        package = name.partition(".")[0]
        if (error.name or "").partition(".")[0] != package:
            raise
        raise ModelError(
            f"this model needs the package {package}: pip install 'tailproof[{_EXTRAS[package]}]'"
        ) from None
