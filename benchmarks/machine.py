"""Where figures were taken: printed above every table, written into every document."""

import os
import platform
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from processes import CLIENT_CORE, SERVER_CORE, can_pin
from tailproof.load.environment import cpu_model

LIBRARIES = (
    "tailproof",
    "granian",
    "uvloop",
    "pydantic-core",
    "msgspec",
    "numpy",
    "fastapi",
    "uvicorn",
    "scikit-learn",
    "pandas",
    "mlflow-skinny",
)


def facts(seed: int) -> dict[str, Any]:
    """Machine, versions, date and seed. What cannot be read is None."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "seed": seed,
        "cores": os.cpu_count(),
        "pinned": can_pin(),
        "cpu": cpu_model(),
        "governor": _read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "load_average": os.getloadavg()[0],
        "kernel": platform.release(),
        "python": platform.python_version(),
        "libraries": {name: installed(name) for name in LIBRARIES},
    }


def print_facts(known: dict[str, Any]) -> None:
    """The facts as a few lines on stderr."""
    libraries = ", ".join(f"{name} {found}" for name, found in known["libraries"].items() if found)
    memory = f"{known['memory_bytes'] / 2**30:.1f} GiB"
    governor = known["governor"] or "not readable"
    print(f"{known['date']}, seed {known['seed']}", file=sys.stderr)
    print(f"{known['cores']} cores, {known['cpu']}, {memory}, governor {governor}", file=sys.stderr)
    print(
        f"Linux {known['kernel']}, load {known['load_average']:.2f}, Python {known['python']}",
        file=sys.stderr,
    )
    print(libraries, file=sys.stderr)
    where = f"servers on core {SERVER_CORE}, the client on core {CLIENT_CORE}"
    print(where if known["pinned"] else "neither servers nor client are pinned", file=sys.stderr)


def installed(package: str) -> str | None:
    """The installed version of a package; None when it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return None


if __name__ == "__main__":
    print_facts(facts(0))
