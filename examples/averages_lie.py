"""Averages lie: ten thousand response times whose mean nobody would worry about.

Draws right-skewed response times (lognormal: a fast bulk and a long tail, as services have them),
prints their mean and percentiles, and puts two pictures of them into one file: where the mean sits
in the histogram, and how steep the tail is.

    python examples/averages_lie.py --out averages.svg
"""

import argparse
from pathlib import Path

import numpy as np

from tailproof.core.recording import Floats
from tailproof.core.statistics import percentile
from tailproof.reporting.charts import Bars, Curve, PercentileCurves
from tailproof.reporting.picture import Canvas, standalone
from tailproof.reporting.words import say, with_unit

REQUESTS = 10_000
MEDIAN = 0.0364
"""Seconds."""
SPREAD = 0.7715
"""Standard deviation of the logarithm."""


def draw_times(seed: int) -> Floats:
    """Seconds that each request took, shape (REQUESTS,)."""
    return MEDIAN * np.random.default_rng(seed).lognormal(0.0, SPREAD, REQUESTS)


def summary(times: Floats) -> dict[str, float]:
    """Seconds: the mean and three percentiles, by nearest rank."""
    ranks = {f"P{percent}": percentile(times, percent) for percent in (50, 95, 99)}
    return {"mean": float(times.mean())} | {n: s for n, s in ranks.items() if s is not None}


def picture(times: Floats, marks: dict[str, float]) -> str:
    """Both panels as one SVG."""
    left, right = (Canvas(520, 320, name) for name in ("histogram", "percentiles"))
    Bars.of(times, marks).draw(left)
    PercentileCurves.of([Curve(say("response"), times, "response")], evenly=True).draw(right)
    return standalone([left, right], f"{len(times):,} response times: histogram and percentiles")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=19)
    parser.add_argument("--out", type=Path, help="write the picture (SVG) here")
    options = parser.parse_args()
    times = draw_times(options.seed)
    marks = summary(times)
    for name, seconds in marks.items():
        print(f"{name:>4} {with_unit(seconds)}")
    slower = float((times > marks["mean"]).mean())
    print(
        f"{slower:.0%} of the requests were slower than the mean, and 1% took more than "
        f"{marks['P99'] / marks['mean']:.1f} times as long"
    )
    if options.out is not None:
        options.out.write_text(picture(times, marks), encoding="utf-8")


if __name__ == "__main__":
    main()
