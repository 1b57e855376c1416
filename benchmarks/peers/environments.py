"""A virtual environment for each peer, outside the repository's own.

    python benchmarks/peers/environments.py
    python benchmarks/peers/environments.py --environments /var/cache/peers mosec ray

All have the Python of the environment that this runs in, and its versions of the model libraries;
a peer that cannot live with one of them names another in its requirements. What is there and up to
date is left alone. All seven take 4 GB and five minutes.
"""

import argparse
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import distributions, version
from pathlib import Path

REQUIREMENTS = Path(__file__).parent / "requirements"
MODEL_LIBRARIES = ("scikit-learn", "numpy", "pandas", "scipy", "joblib", "threadpoolctl", "skops")
"""Of the version that is installed here, unless a peer's requirements say otherwise."""
DEFAULT_FOLDER = Path(__file__).parents[2] / ".tailproof" / "peers"
PATIENCE = 1200.0
"""Seconds for one environment."""


class NotInstalled(Exception):
    """An environment could not be built; the message says what pip said last."""


@dataclass(frozen=True, slots=True)
class Environment:
    """The virtual environment of one peer."""

    folder: Path

    @property
    def bin(self) -> Path:
        """Where its commands are."""
        return self.folder / "bin"

    def versions(self, packages: Sequence[str]) -> dict[str, str]:
        """Of those of `packages` that are installed in it."""
        places = {"base": str(self.folder), "platbase": str(self.folder)}
        found = distributions(path=[sysconfig.get_path("purelib", "venv", places)])
        installed = {_plain(one.metadata["Name"]): one.version for one in found}
        return {name: installed[_plain(name)] for name in packages if _plain(name) in installed}


def all_peers() -> list[str]:
    """Names of the peers that have requirements."""
    return sorted(path.stem for path in REQUIREMENTS.glob("*.txt"))


def ready(name: str, folder: Path) -> Environment:
    """The environment of peer `name` below `folder`, built when it is missing or out of date.

    Raises NotInstalled.
    """
    environment = Environment((folder / name).resolve())
    wanted = requirements_of(name)
    built = environment.folder / "built.txt"
    if not built.is_file() or built.read_text() != wanted:
        print(f"{name}: installing its packages", file=sys.stderr)
        _build(environment, wanted)
        built.write_text(wanted)
    return environment


def requirements_of(name: str) -> str:
    """What pip is given: the peer's own lines, and the model libraries as they are here."""
    own = (REQUIREMENTS / f"{name}.txt").read_text()
    chosen = {_plain(found) for found in re.findall(r"^[\w.-]+", own, re.MULTILINE)}
    here = [f"{library}=={version(library)}\n" for library in MODEL_LIBRARIES]
    return own + "".join(line for line in here if line.partition("==")[0] not in chosen)


def _plain(name: str) -> str:
    """A package's name as names are compared."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _build(environment: Environment, wanted: str) -> None:
    shutil.rmtree(environment.folder, ignore_errors=True)
    environment.folder.parent.mkdir(parents=True, exist_ok=True)
    _run([sys.executable, "-m", "venv", str(environment.folder)])
    asked = environment.folder / "requirements.txt"
    asked.write_text(wanted)
    pip = [str(environment.bin / "python"), "-m", "pip", "--disable-pip-version-check"]
    _run([*pip, "install", "--quiet", "--no-cache-dir", "--requirement", str(asked)])


def _run(command: list[str]) -> None:
    try:
        subprocess.run(
            command,
            check=True,
            timeout=PATIENCE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
    except subprocess.TimeoutExpired:
        raise NotInstalled(f"not installed within {PATIENCE:g} s") from None
    except subprocess.CalledProcessError as error:
        errors = [line for line in error.stderr.splitlines() if line.startswith("ERROR")]
        raise NotInstalled((errors or ["pip failed"])[-1]) from None


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    options.add_argument("--environments", type=Path, default=DEFAULT_FOLDER)
    options.add_argument("peers", nargs="*", default=all_peers())
    args = options.parse_args()
    for name in args.peers:
        ready(name, args.environments)


if __name__ == "__main__":
    main()
