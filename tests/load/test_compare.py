"""Two recorded runs: the same service, a slower one, a quicker one, and runs that say little."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from tailproof.core import arrivals, queues
from tailproof.core.errors import ConfigError
from tailproof.core.recording import Recording
from tailproof.load.compare import Row, RunComparison, _holm, compare_runs
from tailproof.reporting.document import (
    Document,
    Environment,
    Generator,
    Limit,
    Percentiles,
    Point,
    ServerView,
)
from tailproof.reporting.runs import Run, StepData, read, write_document, write_step

WARM_UP, SECONDS = 1.0, 6.0
RATES = (100.0, 250.0, 400.0)
"""Of a batch server that can do 762/s."""


def step(rate: float, slowness: float, seed: int, missing: float = 0.0) -> Recording:
    """Everything that waits, up to 16 rows, takes 5 ms and 1 ms a row; a share is refused."""
    rng = np.random.default_rng(seed)
    at = arrivals.poisson(rate, WARM_UP + SECONDS, seed)
    response = queues.batched(at, lambda rows: slowness * (0.005 + 0.001 * rows), 16)
    refused = rng.random(len(at)) < missing
    return replace(
        Recording.empty(at),
        sent=at,
        last=at + response,
        status=np.where(refused, 503, 200).astype(np.int32),
    )


def point(index: int, rate: float, **more: Any) -> Point:
    facts: dict[str, Any] = {
        "index": index,
        "role": "rate",
        "offered": rate,
        "achieved": rate,
        "requests": round(rate * SECONDS),
        "errors": 0,
        "refused": 0,
        "statuses": {},
        "class_": "LINEAR",
        "verdict": "PASS",
        "reason": "",
        "advice": "",
        "response_seconds": Percentiles(),
        "uncorrected_seconds": Percentiles(),
        "send_lag_seconds": Percentiles(),
        "own_lag_seconds": Percentiles(),
        "warm_up_seconds": WARM_UP,
        "measured_seconds": SECONDS,
        "stopped_early": False,
        "connections": 1,
        "generator": Generator(ok=True),
        "server": ServerView(),
    }
    return Point(**(facts | more))


def document(points: Sequence[Point], **more: Any) -> Document:
    facts: dict[str, Any] = {
        "tool": "tailproof",
        "target": "http://127.0.0.1:8000/predict",
        "slo": ["p95 < 50ms"],
        "verdict": "PASS",
        "reason": "",
        "mode": "ladder",
        "limit": None,
        "saturation": None,
        "knee": None,
        "points": list(points),
        "cold": None,
        "tail_causes": [],
        "unexplained": None,
        "generator": Generator(ok=True),
        "command": "tailproof prove http://127.0.0.1:8000/predict",
        "seconds": 30.0,
        "run": None,
    }
    return Document(**(facts | more))


def recorded(
    path: Path,
    seed: int,
    *,
    slowness: float = 1.0,
    rates: Sequence[float] = RATES,
    missing: float = 0.0,
    points: Mapping[str, Any] | None = None,
    **more: Any,
) -> Run:
    """A run in a folder: `points` is said of each of its points, the rest of the document."""
    (path / "steps").mkdir(parents=True)
    for index, rate in enumerate(rates):
        found = step(rate, slowness, 1000 * seed + index, missing)
        write_step(path, StepData(index, found, WARM_UP, WARM_UP + SECONDS, rate))
    made = [point(index, rate, **(points or {})) for index, rate in enumerate(rates)]
    write_document(path, document(made, **more))
    return read(path)


def outcomes(found: RunComparison, figure: str) -> list[str]:
    return [row.outcome for row in found.rows if row.figure == figure]


def test_the_same_service_twice(tmp_path: Path) -> None:
    found = compare_runs(recorded(tmp_path / "a", 1), recorded(tmp_path / "b", 2))

    assert found.outcome == "no difference"
    assert {row.figure for row in found.rows} == {"misses", "P50", "P95", "P99"}
    assert len(found.rows) == 4 * len(RATES)
    assert found.warnings == []
    assert any("P95 was" in reason for reason in found.reasons)


def test_two_runs_of_one_service_are_rarely_called_different(tmp_path: Path) -> None:
    """Twelve figures each: without a correction for that about every other pair would be."""
    told = Counter[str]()
    for pair in range(20):
        before = recorded(tmp_path / f"{pair}a", 2 * pair)
        told[compare_runs(before, recorded(tmp_path / f"{pair}b", 2 * pair + 1)).outcome] += 1

    assert told["no difference"] >= 18


@pytest.mark.parametrize(("slowness", "outcome"), [(1.3, "worse"), (1 / 1.3, "better")])
def test_a_service_that_is_slower_or_quicker(tmp_path: Path, slowness: float, outcome: str) -> None:
    before = recorded(tmp_path / "a", 3)

    found = compare_runs(before, recorded(tmp_path / "b", 4, slowness=slowness))

    assert found.outcome == outcome
    assert found.reasons[0].startswith("at ")
    assert set(outcomes(found, "P95")) == {outcome}
    assert set(outcomes(found, "misses")) == {"no difference"}


def test_refusing_is_worse_although_what_is_answered_is_as_quick(tmp_path: Path) -> None:
    before = recorded(tmp_path / "a", 5)

    found = compare_runs(before, recorded(tmp_path / "b", 6, missing=0.04))

    assert found.outcome == "worse"
    assert set(outcomes(found, "misses")) == {"worse"}
    assert "worse" not in outcomes(found, "P50")


def test_the_percentile_of_the_slo_is_compared_too(tmp_path: Path) -> None:
    slos = ["p90 < 50ms", "availability > 99.9%"]
    before = recorded(tmp_path / "a", 7, slo=slos)

    found = compare_runs(before, recorded(tmp_path / "b", 8, slo=slos))

    assert len(outcomes(found, "P90")) == len(RATES)
    assert found.outcome == "no difference"


def test_steps_at_one_rate_are_repetitions(tmp_path: Path) -> None:
    thrice = (200.0, 200.4, 199.8)
    before = recorded(tmp_path / "a", 9, rates=thrice)

    found = compare_runs(before, recorded(tmp_path / "b", 10, rates=thrice))

    assert len(outcomes(found, "P95")) == 1
    assert found.rows[0].rate == pytest.approx(200.07, abs=0.01)


@pytest.mark.parametrize(
    ("rate_after", "slowness", "outcome"),
    [
        (400.0, 2.0, "worse"),
        (385.0, 2.0, "worse"),  # slower under less load
        (415.0, 2.0, "undecided"),  # slower, but it bore more
        (415.0, 0.5, "better"),  # quicker under more load
        (385.0, 0.5, "undecided"),
    ],
)
def test_where_rates_differ_the_load_may_be_the_cause(
    tmp_path: Path, rate_after: float, slowness: float, outcome: str
) -> None:
    before = recorded(tmp_path / "a", 11, rates=(400.0,))
    after = recorded(tmp_path / "b", 12, rates=(rate_after,), slowness=slowness)

    found = compare_runs(before, after)

    assert set(outcomes(found, "P50")) == {outcome}
    assert ("the rates differ" in " ".join(row.reason for row in found.rows)) == (
        outcome == "undecided"
    )


def test_runs_without_a_common_rate_cannot_be_compared(tmp_path: Path) -> None:
    before = recorded(tmp_path / "a", 13, rates=(100.0,))

    found = compare_runs(before, recorded(tmp_path / "b", 14, rates=(110.0, 300.0)))

    assert found.outcome == "undecided"
    assert found.rows == []
    assert found.reasons == [
        "no rate was measured in both runs: 100/s against 110/s, 300/s",
    ]


def test_a_step_with_the_tester_in_its_number_is_left_out(tmp_path: Path) -> None:
    before = recorded(tmp_path / "a", 15)

    found = compare_runs(before, recorded(tmp_path / "b", 16, points={"verdict": "INVALID"}))

    assert found.outcome == "undecided"
    assert found.rows == []
    assert any(text.startswith("3 INVALID steps of the run after") for text in found.warnings)


def test_response_times_of_two_overloads_say_how_long_the_steps_were(tmp_path: Path) -> None:
    overloaded = {"class_": "OVERLOAD"}
    before = recorded(tmp_path / "a", 17, rates=(900.0,), points=overloaded)

    both = compare_runs(before, recorded(tmp_path / "b", 18, rates=(900.0,), points=overloaded))
    one = compare_runs(recorded(tmp_path / "c", 19, rates=(900.0,), slowness=0.5), before)

    assert [row.figure for row in both.rows] == ["misses"]
    assert set(outcomes(one, "P95")) == {"worse"}


def known_limit(rate: float, **more: Any) -> Limit:
    facts = {"rate": rate, "low": rate * 0.98, "high": rate * 1.02, "at_least": False}
    return Limit(**(facts | more))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("before", "after", "outcome"),
    [
        (known_limit(600), known_limit(605), "no difference"),
        (known_limit(600), known_limit(400), "worse"),
        (known_limit(600), known_limit(800), "better"),
        (known_limit(600), known_limit(620), "no difference"),
        (known_limit(600, interval=(300, 1200)), known_limit(800), "undecided"),
        (known_limit(600), known_limit(900, at_least=True, high=None), "better"),
        (known_limit(600), known_limit(500, at_least=True, high=None), "undecided"),
        (known_limit(900, at_least=True, high=None), known_limit(600), "worse"),
        (known_limit(500, at_least=True, high=None), known_limit(600), "undecided"),
        (known_limit(500, at_least=True), known_limit(900, at_least=True), "undecided"),
    ],
)
def test_limits(tmp_path: Path, before: Limit, after: Limit, outcome: str) -> None:
    first = recorded(tmp_path / "a", 20, rates=(), limit=before)

    found = compare_runs(first, recorded(tmp_path / "b", 21, rates=(), limit=after))

    assert outcomes(found, "limit") == [outcome]
    assert found.outcome == outcome


@pytest.mark.parametrize(("swapped", "outcome"), [(False, "worse"), (True, "better")])
def test_no_rate_at_all_against_a_limit(tmp_path: Path, swapped: bool, outcome: str) -> None:
    runs = [
        recorded(tmp_path / "a", 22, rates=(), limit=known_limit(600)),
        recorded(tmp_path / "b", 23, rates=(), verdict="FAIL"),
    ]

    found = compare_runs(*(reversed(runs) if swapped else runs))

    assert found.outcome == outcome


def test_an_undecided_search_says_nothing_about_limits(tmp_path: Path) -> None:
    before = recorded(tmp_path / "a", 24, rates=(), limit=known_limit(600))

    found = compare_runs(before, recorded(tmp_path / "b", 25, rates=(), verdict="UNDECIDED"))

    assert found.rows == []
    assert found.outcome == "undecided"


def test_what_else_differs_is_a_warning(tmp_path: Path) -> None:
    surroundings: dict[str, Any] = {
        "date": "2026-11-30",
        "cores": 4,
        "allowed_cores": 4,
        "cpu": "A",
        "governor": None,
        "memory_bytes": None,
        "kernel": "6",
        "python": "3.11",
        "versions": {"tailproof": "1"},
        "same_host": True,
        "processes": 1,
        "seeds": {"seed": 1},
        "payload": {"source": "a.txt"},
    }
    before = recorded(tmp_path / "a", 26, environment=Environment(**surroundings))
    same = recorded(tmp_path / "b", 27, environment=Environment(**surroundings | {"seeds": {}}))
    other = recorded(
        tmp_path / "c",
        28,
        target="http://127.0.0.1:8001/predict",
        command="tailproof prove URL --arrivals 'spike:3x for 5s'",
        environment=Environment(**surroundings | {"cpu": "B", "same_host": False, "processes": 2}),
    )

    assert compare_runs(before, same).warnings == []
    assert compare_runs(before, other).warnings == [
        "the targets differ: http://127.0.0.1:8000/predict, then http://127.0.0.1:8001/predict",
        "the arrivals differ: poisson, then spike:3x for 5s",
        "the CPUs differ: A, then B",
        "the places of the tester differ: beside the service, then on another machine",
        "the numbers of senders differ: 1, then 2",
    ]


def test_the_document_is_json_and_says_which_runs(tmp_path: Path) -> None:
    found = compare_runs(recorded(tmp_path / "a", 29), recorded(tmp_path / "b", 30))

    told = msgspec.json.decode(msgspec.json.encode(found))

    assert list(told) == ["before", "after", "outcome", "reasons", "rows", "warnings"]
    assert (told["before"], told["after"]) == (str(tmp_path / "a"), str(tmp_path / "b"))
    assert {row["unit"] for row in told["rows"]} == {"seconds", "ratio"}


def test_records_that_are_gone_are_named(tmp_path: Path) -> None:
    before, after = recorded(tmp_path / "a", 31), recorded(tmp_path / "b", 32)
    (tmp_path / "b" / "steps" / "001.npz").unlink()

    with pytest.raises(ConfigError, match="step 1 is not recorded"):
        compare_runs(before, after)


@pytest.mark.parametrize(
    ("chances", "expected"),
    [
        ((0.04,), ["worse"]),
        ((0.04, 0.9), ["no difference", "no difference"]),  # 0.04 > 0.05 / 2
        ((0.001, 0.03, 0.04), ["worse", "no difference", "no difference"]),  # 0.03 > 0.05 / 2
        ((0.04, 0.02, 0.001), ["worse", "worse", "worse"]),  # 0.05 / 3, / 2, / 1
    ],
)
def test_a_difference_must_survive_the_number_of_figures(
    chances: tuple[float, ...], expected: list[str]
) -> None:
    facts: dict[str, Any] = dict.fromkeys(("rate", "rate_after", "before", "after", "ratio"), 1.0)
    facts |= {"figure": "P95", "unit": "seconds", "low": None, "high": None, "reason": ""}
    rows = [Row(**facts, p=p, outcome="worse" if p < 0.05 else "no difference") for p in chances]

    assert [row.outcome for row in _holm(rows)] == expected
