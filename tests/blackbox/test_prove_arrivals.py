"""What reaches the server is what was planned: exactly so many, at those moments, whatever the
schedule is."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

from tailproof.reporting.runs import read_step

from .prove import Said, known, prove, two_cores

Floats = npt.NDArray[np.float64]
RATE, SECONDS = 200, 1
FLAGS = ("--rate", f"{RATE}/s", "--for", f"{SECONDS}s")


def _arrived(folder: Path, *flags: str) -> tuple[Said, Floats]:
    """Arrivals of the measured window as the server saw them, seconds from its first intended
    moment. The step's requests are found in the server's log by their pattern in time, since the
    server also saw those that came before."""
    with known("constant", folder=folder) as server:
        said = prove(server.url, *FLAGS, *flags, folder=folder, slo="p95 < 50ms")
        seen = np.array([one["arrived"] for one in server.records("arrived")])
    step = read_step(said.run, said.point["index"])
    sent = np.sort(step.measured.sent)
    num = len(sent)
    offsets = range(len(seen) - num + 1)
    windows = [seen[at : at + num] - sent for at in offsets]
    delays = min(windows, key=_spread)
    assert _spread(delays) < 0.003, "the record is not what arrived"
    return said, delays - np.median(delays) + sent - step.warm_up


def _spread(values: Floats) -> float:
    """Median distance from the median: a server that was held up now and then does not count."""
    return float(np.median(np.abs(values - np.median(values))))


def _uniformity(arrivals: Floats) -> float:
    """p-value: given their number, Poisson arrivals are uniform over the window."""
    return float(stats.kstest(arrivals / SECONDS, "uniform").pvalue)


def _exponentiality(arrivals: Floats) -> float:
    """p-value: gaps of Poisson arrivals are exponential."""
    return float(stats.kstest(np.diff(arrivals) * RATE, "expon").pvalue)


def _looks_poisson(arrivals: Floats) -> bool:
    return min(_uniformity(arrivals), _exponentiality(arrivals)) >= 0.001


def _exact(said: Said, arrivals: Floats) -> None:
    assert said.point["requests"] == len(arrivals) == RATE * SECONDS
    assert said.point["offered"] == pytest.approx(RATE, rel=1e-3)


@two_cores
def test_random_arrivals(tmp_path: Path) -> None:
    said, arrivals = _arrived(tmp_path)

    _exact(said, arrivals)
    assert _looks_poisson(arrivals)


@two_cores
@pytest.mark.soak
def test_the_seed_decides_the_moments(tmp_path: Path) -> None:
    (_, first), (_, again), (_, other) = (_arrived(tmp_path, "--seed", s) for s in ("7", "7", "8"))

    assert np.median(np.abs(first - again)) < 0.002
    assert np.median(np.abs(first - other)) > 0.002


@two_cores
def test_constant_arrivals(tmp_path: Path) -> None:
    said, arrivals = _arrived(tmp_path, "--arrivals", "constant")

    _exact(said, arrivals)
    assert np.median(np.abs(np.diff(arrivals) - 1 / RATE)) < 0.0005
    assert not _looks_poisson(arrivals)


@two_cores
def test_bursty_arrivals(tmp_path: Path) -> None:
    """Gamma gaps of shape 1/4: twice the variation of Poisson."""
    _, arrivals = _arrived(tmp_path, "--arrivals", "gamma:0.25")

    gaps = np.diff(arrivals)
    assert 1.5 < gaps.std() / gaps.mean() < 2.7
    assert not _looks_poisson(arrivals)


@two_cores
def test_several_senders_make_one_process(tmp_path: Path) -> None:
    said, arrivals = _arrived(tmp_path, "--processes", "2")

    _exact(said, arrivals)
    assert _looks_poisson(arrivals)


@pytest.mark.soak
@two_cores
def test_random_arrivals_over_twenty_seeds(tmp_path: Path) -> None:
    good = 0
    for seed in range(20):
        said, arrivals = _arrived(tmp_path, "--seed", str(seed))
        _exact(said, arrivals)
        good += _looks_poisson(arrivals)

    assert good >= 19
