"""Which models may be loaded: those on this disk, those that run no code, those vouched for.

Loading a pickle runs whatever its author wrote. What lies on the operator's own disk is taken to
be reviewed. What came over a network is loaded only when it is scikit-learn's own types in the
skops format, or when the operator passed its digest. A list of trusted types inside the model is
the model's own claim and counts for nothing here.
"""

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tailproof.core.errors import ModelError, UntrustedModel
from tailproof.models.extras import need
from tailproof.models.mlmodel import MLmodel, inside

ALLOWED_TYPES = frozenset(
    {
        "sklearn.tree._tree.Tree",
        "sklearn.ensemble._hist_gradient_boosting.predictor.TreePredictor",
        "sklearn._loss.loss.AbsoluteError",
        "sklearn._loss.loss.ExponentialLoss",
        "sklearn._loss.loss.HalfBinomialLoss",
        "sklearn._loss.loss.HalfGammaLoss",
        "sklearn._loss.loss.HalfMultinomialLoss",
        "sklearn._loss.loss.HalfPoissonLoss",
        "sklearn._loss.loss.HalfSquaredError",
        "sklearn._loss.loss.HalfTweedieLoss",
        "sklearn._loss.loss.HalfTweedieLossIdentity",
        "sklearn._loss.loss.HuberLoss",
        "sklearn._loss.loss.PinballLoss",
    }
)
"""scikit-learn's types, beyond those that skops trusts by itself, whose loading runs no code of
the model's author: trees and losses. They hold only arrays and numbers."""

_SERVICES = ("databricks", "databricks-uc", "uc")
"""Names with which MLflow reaches a service, although they look like folders."""


def is_on_this_disk(uri: str) -> bool:
    """Whether a tracking or artifact URI is a plain path, file: or SQLite, and no other host's.

    A mounted network drive looks like a disk and counts as one.
    """
    if uri in _SERVICES:
        return False
    parts = urlsplit(uri)
    scheme = parts.scheme.lower().partition("+")[0]
    return scheme in ("", "file", "sqlite") and parts.netloc in ("", "localhost")


def check_network_model(model: MLmodel, digest: str, trust: tuple[str, ...]) -> bool:
    """Whether the operator vouched for a model that came over a network.

    False: nobody did, and it may be loaded all the same as long as only ALLOWED_TYPES are
    trusted. Raises UntrustedModel, which says how to vouch for it, when loading would run code.
    """
    if digest in trust:
        return True
    danger = _danger_of(model)
    if danger is not None:
        raise UntrustedModel(
            f"{danger}, so loading it could run code that came over a network; review the model, "
            f"then pass --trust {digest}"
        )
    return False


def skops_file(model: MLmodel) -> Path | None:
    """The file of a scikit-learn model in the skops format; None when it is another format."""
    flavor = model.flavors.get("sklearn")
    if flavor is None or flavor.get("serialization_format") != "skops":
        return None
    return inside(model.folder, str(flavor.get("pickled_model")))


def untrusted_types(path: Path) -> list[str]:
    """The types in a skops file that skops does not trust by itself. Loads nothing."""
    skops: Any = need("skops.io")
    try:
        found: list[str] = skops.get_untrusted_types(file=path)
    except Exception as error:  # noqa: BLE001 - whatever a hostile file makes a parser raise
        raise ModelError(f"the skops file cannot be read ({type(error).__name__})") from None
    return found


def _danger_of(model: MLmodel) -> str | None:
    path = skops_file(model)
    if path is None:
        kind = "a pickle" if "sklearn" in model.flavors else "no scikit-learn model in skops format"
        return f"it is {kind}"
    foreign = sorted(set(untrusted_types(path)) - ALLOWED_TYPES)
    if foreign:
        return f"it holds types beyond scikit-learn's own, such as {foreign[0][:100]}"
    return None
