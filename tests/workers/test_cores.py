"""Cores and threads from made-up affinities and control groups."""

import os
from pathlib import Path

import pytest

from tailproof.workers.cores import THREAD_VARIABLES, thread_environment, usable_cores


@pytest.fixture(autouse=True)
def eight(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine lets this process run on eight cores."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(8)), raising=False)


def machine(root: Path, groups: str, files: dict[str, str]) -> Path:
    """A tree with these lines of /proc/self/cgroup and these files below /sys/fs/cgroup."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(groups)
    for name, text in files.items():
        path = root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


V1_QUOTA = "cpu/job/cpu.cfs_quota_us"
V1_PERIOD = "cpu/job/cpu.cfs_period_us"


@pytest.mark.parametrize(
    ("groups", "files", "expected", "why"),
    [
        ("", {}, 8, "no control groups: the affinity"),
        ("0::/job\n", {"job/cpu.max": "max 100000\n"}, 8, "v2 without a limit"),
        ("0::/job\n", {"job/cpu.max": "300000 100000\n"}, 3, "v2"),
        ("0::/job\n", {"job/cpu.max": "300000\n"}, 3, "the usual period"),
        ("0::/job\n", {"job/cpu.max": "250000 100000\n"}, 2, "2.5 cores are 2"),
        ("0::/job\n", {"job/cpu.max": "50000 100000\n"}, 1, "half a core is 1"),
        ("0::/job\n", {"job/cpu.max": "0 100000\n"}, 1, "never 0"),
        ("0::/job\n", {"job/cpu.max": "1600000 100000\n"}, 8, "more than the affinity"),
        (
            "0::/pod/job\n",
            {"pod/job/cpu.max": "600000 100000\n", "pod/cpu.max": "200000 100000\n"},
            2,
            "the smallest on the way up",
        ),
        (
            "0::/../host/job\n",
            {"cpu.max": "400000 100000\n"},
            4,
            "inside a container: the group's path is the host's, its files are at the top",
        ),
        ("3:cpu,cpuacct:/job\n", {V1_QUOTA: "500000\n", V1_PERIOD: "100000\n"}, 5, "v1"),
        ("3:cpu:/job\n", {V1_QUOTA: "50000\n", V1_PERIOD: "10000\n"}, 5, "its own period"),
        ("3:cpu:/job\n", {V1_QUOTA: "-1\n", V1_PERIOD: "100000\n"}, 8, "v1 without a limit"),
        ("3:cpuset:/job\n", {V1_QUOTA: "100000\n"}, 8, "another controller"),
        (
            "3:cpu:/job\n0::/job\n",
            {V1_QUOTA: "600000\n", "job/cpu.max": "200000 100000\n"},
            2,
            "both, mixed",
        ),
        ("0::/job\n", {"job/cpu.max": "much 0\n"}, 8, "no numbers"),
        ("0::/job\n", {"job/cpu.max": "100000 0\n"}, 8, "no period"),
        ("nonsense\n0\n:::\n", {"cpu.max": "200000 100000\n"}, 8, "lines that are none"),
    ],
)
def test_cores_are_the_least_of_affinity_and_quotas(
    tmp_path: Path, groups: str, files: dict[str, str], expected: int, why: str
) -> None:
    assert usable_cores(machine(tmp_path, groups, files)) == expected, why


def test_without_affinity_the_machine_has_so_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    assert usable_cores(tmp_path) == 4
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert usable_cores(tmp_path) == 1


def test_files_that_are_not_text_are_no_limit(tmp_path: Path) -> None:
    root = machine(tmp_path, "0::/job\n", {})
    (root / "sys/fs/cgroup/job").mkdir(parents=True)
    (root / "sys/fs/cgroup/job/cpu.max").write_bytes(b"\xff\xfe1")
    assert usable_cores(root) == 8


def test_this_machine_has_a_core() -> None:
    assert 1 <= usable_cores() <= 8


@pytest.mark.parametrize(
    ("cores", "workers", "threads"),
    [(8, 1, 7), (8, 2, 3), (8, 7, 1), (8, 16, 1), (2, 1, 1), (1, 1, 1)],
)
def test_workers_share_all_cores_but_one(
    tmp_path: Path, cores: int, workers: int, threads: int
) -> None:
    root = machine(tmp_path, "0::/\n", {"cpu.max": f"{cores * 100_000} 100000\n"})
    environment = thread_environment(workers, root)
    assert environment == dict.fromkeys(THREAD_VARIABLES, str(threads))
    assert {"OMP_NUM_THREADS", "RAYON_NUM_THREADS"} <= environment.keys()
