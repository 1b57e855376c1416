import sys

import pytest

from tailproof.core.errors import ModelError
from tailproof.models.extras import need


def test_a_module_that_is_there_is_imported() -> None:
    assert need("sklearn.pipeline") is sys.modules["sklearn.pipeline"]


@pytest.mark.parametrize(
    ("module", "extra"),
    [
        ("mlflow", "mlflow"),
        ("yaml", "mlflow"),
        ("cloudpickle", "mlflow"),
        ("pandas", "sklearn"),
        ("sklearn.pipeline", "sklearn"),
        ("skops.io", "sklearn"),
    ],
)
def test_a_missing_library_names_its_extra(
    module: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = module.partition(".")[0]
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ModelError) as caught:
        need(module)
    assert f"needs the package {package}" in str(caught.value)
    assert f"pip install 'tailproof[{extra}]'" in str(caught.value)
