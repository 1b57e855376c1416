"""What the report says of the machine is read from where the kernel says it."""

import os
import re
from pathlib import Path

import numpy
import pytest

import tailproof
from tailproof.load.environment import allowed_cores, cpu_model, environment
from tailproof.load.target import Target

HERE = Target("http://127.0.0.1:1/predict", "http", "127.0.0.1", 1, (b"",))
ELSEWHERE = Target("http://192.0.2.1/predict", "http", "192.0.2.1", 80, (b"",))
"""An address that is kept for documents: nobody's."""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "proc/self").mkdir(parents=True)
    return tmp_path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_this_machine() -> None:
    found = environment(
        target=HERE, processes=2, seeds={"seed": 7}, payload={"source": "a file", "bodies": 3}
    )

    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", found.date)
    assert found.cores == os.cpu_count()
    assert 1 <= found.allowed_cores <= found.cores
    assert found.kernel == os.uname().release
    assert found.memory_bytes is not None
    assert found.memory_bytes > 1 << 26
    assert found.versions["tailproof"] == tailproof.__version__
    assert found.versions["numpy"] == numpy.__version__
    assert set(found.versions) == {"tailproof", "numpy", "uvloop", "msgspec"}
    assert found.same_host
    assert (found.processes, found.seeds) == (2, {"seed": 7})
    assert found.payload == {"source": "a file", "bodies": 3}


def test_another_host_and_what_cannot_be_read(root: Path) -> None:
    found = environment(target=ELSEWHERE, processes=1, seeds={}, payload={}, root=root)

    assert not found.same_host
    assert found.cpu is None
    assert found.governor is None


def test_processor_and_governor(root: Path) -> None:
    write(root / "proc/cpuinfo", "processor\t: 0\nmodel name\t: Some CPU: 3 GHz\nmodel name\t: x\n")
    write(root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance\n")

    found = environment(target=HERE, processes=1, seeds={}, payload={}, root=root)

    assert found.cpu == cpu_model(root) == "Some CPU: 3 GHz"
    assert found.governor == "performance"


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        ("0::/\n", {}, 8),
        ("0::/job\n", {"job/cpu.max": "max 100000\n"}, 8),
        ("0::/job\n", {"job/cpu.max": "300000 100000\n"}, 3),
        ("0::/a/job\n", {"a/job/cpu.max": "max 100000", "a/cpu.max": "200000 100000"}, 2),
        ("0::/job\n", {"job/cpu.max": "150000 100000\n"}, 1),
        ("0::/job\n", {"job/cpu.max": "20000 100000\n"}, 1),
        ("0::/\n", {"cpu.max": "400000 100000\n"}, 4),
        ("0::/of-the-host\n", {"cpu.max": "400000 100000\n"}, 4),
        ("0::/job\n", {"job/cpu.max": "not a quota\n"}, 8),
        (
            "2:cpu,cpuacct:/job\n1:memory:/\n",
            {"cpu/job/cpu.cfs_quota_us": "500000\n", "cpu/job/cpu.cfs_period_us": "100000\n"},
            5,
        ),
        ("2:cpu,cpuacct:/job\n", {"cpu/job/cpu.cfs_quota_us": "-1\n"}, 8),
        ("3:cpuset:/job\n", {"cpu/job/cpu.cfs_quota_us": "100000\n"}, 8),
    ],
)
def test_a_quota_allows_fewer_cores_than_there_are(
    groups: str,
    files: dict[str, str],
    expected: int,
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    write(root / "proc/self/cgroup", groups)
    for name, text in files.items():
        write(root / "sys/fs/cgroup" / name, text)

    assert allowed_cores(root) == expected


def test_affinity_allows_fewer_cores_than_there_are(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3})

    assert allowed_cores(root) == 1
