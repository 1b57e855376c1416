"""Which engine is imported for which source."""

import subprocess
import sys
from pathlib import Path

import pytest

from tailproof.core.errors import ConfigError
from tailproof.models import runtimes
from tailproof.models.source import ModelSpec
from tests.models.conftest import Registry, silent

LIBRARIES = ("mlflow", "sklearn", "pandas", "skops", "pydantic")


def imported_by(source: str) -> set[str]:
    """The libraries that a fresh process has imported once it has loaded `source`."""
    code = (
        "import sys; from tailproof.models import runtimes;"
        "from tailproof.models.source import ModelSpec;"
        "runtimes.load(ModelSpec(source=sys.argv[1], name='m'), lambda stage: None);"
        f"print(*[name for name in {LIBRARIES} if name in sys.modules])"
    )
    command = [sys.executable, "-c", code, source]
    return set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())


def test_a_fake_needs_no_library() -> None:
    assert imported_by("fake:?fixed=1ms") == set()


def test_a_folder_of_scikit_learns_flavor_is_read_without_mlflow(registry: Registry) -> None:
    assert imported_by(str(registry.folder)) == {"sklearn", "pandas", "skops"}


def test_checking_a_source_imports_no_library_at_all() -> None:
    code = (
        "import sys, tailproof.models.source as source; source.parse('fake:?fixed=1ms');"
        f"print(*[name for name in ({LIBRARIES} + ('numpy',)) if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == []


def test_a_wrong_source_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        runtimes.load(ModelSpec(source=str(tmp_path), name="m"), silent)
