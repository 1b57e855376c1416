"""The search against simulated servers whose limit is known, judged by the real verdict and class;
and against scripted ones, where every step is made up."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailproof.core.arrivals import poisson
from tailproof.core.queues import batched, mm1_quantile, one_at_a_time
from tailproof.core.recording import UNANSWERED, Floats, Recording
from tailproof.core.saturation import Class, Verdict, achieved, classify
from tailproof.core.slo import Slo, parse
from tailproof.core.statistics import percentile
from tailproof.core.verdict import judge
from tailproof.load.search import Planned, Result, Search, SearchSettings, limit_of

Serve = Callable[[Floats, np.random.Generator], Floats]
"""Arrival times, a generator -> response times."""
P95 = (parse("p95 < 33.3ms"),)
OVERHEAD = 0.4


def batches(at: Floats, _: np.random.Generator) -> Floats:
    """5 ms + 1 ms a row, at most 16: capacity 762/s, P95 < 33.3 ms up to 610/s."""
    return batched(at, lambda rows: 0.005 + 0.001 * rows, 16)


def exponential(mean: float) -> Serve:
    return lambda at, rng: one_at_a_time(at, rng.exponential(mean, len(at)))


@dataclass
class Simulated:
    """A server in simulated time, measured as a real one is."""

    serve: Serve
    slos: tuple[Slo, ...] = P95
    seed: int = 1
    slow_until: float = 0.0
    """Until then every answer takes half a second more."""
    clock: float = 0.0
    results: list[Result] = field(default_factory=list)

    def run(self, planned: Planned) -> Result:
        warm_up, end = planned.warm_up, planned.warm_up + planned.seconds
        recording = self._recording(planned)
        measured = recording.between(warm_up, end)
        judged = judge(measured, self.slos)
        worst = max(judged.findings, key=lambda item: item.share / item.allowed)
        kind = classify(recording, warm_up, end, base_p95=self._base())
        fails = kind == "OVERLOAD" and worst.share > worst.allowed
        good = measured.response[np.isfinite(measured.response)]
        self.results.append(
            Result(
                role=planned.role,
                rate=len(measured) / planned.seconds,
                verdict="FAIL" if fails else judged.verdict,
                class_=kind,
                achieved=achieved(recording, warm_up, end),
                misses=worst.misses,
                requests=worst.requests,
                effective_requests=worst.effective_requests,
                p95=percentile(measured.response, 95.0),
                mean_response=float(good.mean()) if len(good) else None,
                spent=end + OVERHEAD,
                allowed=worst.allowed,
            )
        )
        self.clock += end + OVERHEAD
        return self.results[-1]

    def _recording(self, planned: Planned) -> Recording:
        end, number = planned.warm_up + planned.seconds, len(self.results)
        arrivals = poisson(planned.rate, end, seed=1000 * self.seed + number)
        response = self.serve(arrivals, np.random.default_rng([self.seed, number]))
        response = np.where(self.clock + arrivals < self.slow_until, response + 0.5, response)
        recording = Recording.empty(arrivals)
        recording.sent[:] = arrivals
        recording.last[:] = arrivals + response
        recording.status[:] = np.where(recording.last > end + 2.0, UNANSWERED, 200)
        return recording

    def _base(self) -> float | None:
        return self.results[0].p95 if self.results else None


def searched(server: Simulated, settings: SearchSettings) -> Search:
    search = Search(settings, server.slos)
    while (planned := search.next(server.clock)) is not None:
        search.add(server.run(planned))
    return search


# --- the truth is found ---------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(1, 7))
@pytest.mark.parametrize(("budget", "within"), [(300.0, 0.03), (50.0, 0.10)])
def test_the_limit_of_a_batch_server(seed: int, budget: float, within: float) -> None:
    found = searched(Simulated(batches, seed=seed), SearchSettings(budget=budget, seed=seed))

    limit = found.limit()
    assert limit is not None
    assert limit.rate == pytest.approx(610.0, rel=within)
    assert limit.low is not None
    assert limit.high is not None
    assert limit.low <= limit.rate <= limit.high
    assert not limit.at_least
    assert limit.interval is not None
    assert len(found.levels()) >= 8
    assert any(result.class_ == "OVERLOAD" and result.rate > limit.rate for result in found.results)


@pytest.mark.parametrize(
    ("capacity", "budget"), [(20.0, 300.0), (200.0, 120.0), (200.0, 50.0), (5000.0, 50.0)]
)
def test_limits_of_slow_and_quick_services(capacity: float, budget: float) -> None:
    """Served one at a time in fixed time, so that the limit is not blurred by chance."""
    service = 1.0 / capacity
    slos = (parse(f"p95 < {8000.0 * service:.4f}ms"),)
    server = Simulated(lambda at, _: one_at_a_time(at, np.full(len(at), service)), slos)

    limit = searched(server, SearchSettings(budget=budget)).limit()

    assert limit is not None
    assert limit.rate == pytest.approx(true_limit(server, capacity), rel=0.1)


def true_limit(server: Simulated, capacity: float) -> float:
    """By bisection over long steps: 200,000 requests each."""
    low, high = 0.3 * capacity, 1.1 * capacity
    while high / low > 1.005:
        rate = (low * high) ** 0.5
        arrivals = poisson(rate, 200_000 / rate, seed=9)
        p95 = percentile(server.serve(arrivals, np.random.default_rng(9)), 95.0)
        assert p95 is not None
        low, high = (rate, high) if p95 < server.slos[0].threshold else (low, rate)  # type: ignore[union-attr]
    return low


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_noisy_server_is_bracketed_by_what_passed_and_what_failed(seed: int) -> None:
    server = Simulated(exponential(0.004), (parse("p95 < 50ms"),), seed)

    limit = searched(server, SearchSettings(budget=300.0, seed=seed)).limit()

    assert limit is not None
    assert limit.rate == pytest.approx(190.0, rel=0.1)
    assert mm1_quantile(190.0, 0.004, 0.95) == pytest.approx(0.05, rel=0.01)


def test_a_service_that_is_slow_to_start_is_not_taken_for_a_slow_one() -> None:
    server = Simulated(batches, slow_until=10.0)

    limit = searched(server, SearchSettings(budget=120.0)).limit()

    assert server.results[0].verdict == "FAIL"
    assert limit is not None
    assert limit.rate == pytest.approx(610.0, rel=0.08)


def test_a_start_that_is_far_too_high_is_left_downwards() -> None:
    limit = searched(Simulated(batches), SearchSettings(budget=120.0, start=5000.0)).limit()

    assert limit is not None
    assert limit.rate == pytest.approx(610.0, rel=0.08)


# --- no limit, or only a lower bound --------------------------------------------------------------


def test_a_service_that_always_fails_has_no_limit() -> None:
    server = Simulated(lambda at, _: np.full(len(at), 0.2))

    found = searched(server, SearchSettings(budget=60.0))

    assert found.limit() is None
    assert found.done == "no rate holds the SLO"
    assert found.unresolved() == ["no limit: no rate holds the SLO"]
    assert {result.role for result in found.results} == {"base"}


def test_a_service_that_never_fails_has_at_least_the_highest_rate() -> None:
    server = Simulated(lambda at, _: np.full(len(at), 0.002))

    found = searched(server, SearchSettings(budget=60.0, max_rate=900.0))

    limit = found.limit()
    assert limit is not None
    assert (limit.low, limit.high, limit.at_least) == (900.0, None, True)
    assert max(result.rate for result in found.results) <= 900.0
    assert "no rate failed up to 900/s" in found.unresolved()


# --- scripted steps -------------------------------------------------------------------------------

Script = Callable[[Planned, int], tuple[Verdict, Class]]


def result(
    planned: Planned, verdict: Verdict, class_: Class = "LINEAR", share: float | None = None
) -> Result:
    """1,000 independent requests with as many misses as the verdict needs, of 5% allowed."""
    shares = {"PASS": 0.0, "UNDECIDED": 0.05, "FAIL": 0.3, "INVALID": 0.0}
    misses = round(1000 * (shares[verdict] if share is None else share))
    spent = planned.warm_up + planned.seconds + OVERHEAD
    return Result(
        role=planned.role,
        rate=planned.rate,
        verdict=verdict,
        class_=class_,
        achieved=planned.rate,
        misses=misses,
        requests=1000,
        effective_requests=1000.0,
        p95=0.01,
        mean_response=0.005,
        spent=spent,
    )


def scripted(script: Script, settings: SearchSettings) -> tuple[Search, list[Planned]]:
    search, steps, spent = Search(settings, (parse("p95 < 50ms"),)), list[Planned](), 0.0
    while (planned := search.next(spent)) is not None:
        answer = result(planned, *script(planned, len(steps)))
        steps.append(planned)
        search.add(answer)
        spent += answer.spent
        assert len(steps) < 1000
    return search, steps


def sharp(limit: float) -> Script:
    """Passes up to a rate, fails and overloads above."""
    return lambda planned, _: ("PASS", "LINEAR") if planned.rate <= limit else ("FAIL", "OVERLOAD")


@given(
    limit=st.floats(11.0, 50_000.0),
    budget=st.floats(0.5, 600.0),
    warm_up=st.none() | st.floats(0.0, 3.0),
)
def test_a_budget_of_any_size_is_kept(limit: float, budget: float, warm_up: float | None) -> None:
    settings = SearchSettings(budget=budget, warm_up=warm_up)

    search, steps = scripted(sharp(limit), settings)

    spent = sum(one.warm_up + one.seconds + OVERHEAD for one in steps)
    assert spent <= budget
    assert search.done
    assert search.next(spent) is None
    assert all(one.seconds >= settings.min_seconds for one in steps)


VERDICTS: tuple[tuple[Verdict, Class], ...] = (
    ("PASS", "LINEAR"),
    ("PASS", "OVERLOAD"),
    ("UNDECIDED", "KNEE"),
    ("FAIL", "KNEE"),
    ("INVALID", "LINEAR"),
)


@given(seed=st.integers(0, 10**9), budget=st.floats(20.0, 600.0), start=st.none() | st.just(3e3))
def test_steps_that_say_anything_at_all_are_survived(
    seed: int, budget: float, start: float | None
) -> None:
    rng = np.random.default_rng(seed)
    weights = rng.dirichlet(np.full(len(VERDICTS), 0.5))

    search, steps = scripted(
        lambda *_: VERDICTS[rng.choice(len(VERDICTS), p=weights)],
        SearchSettings(budget=budget, start=start, max_rate=5000.0),
    )

    assert sum(one.warm_up + one.seconds + OVERHEAD for one in steps) <= budget
    assert all(0.0 < one.rate <= 5000.0 for one in steps)
    limit = search.limit()
    if limit is not None:
        assert (limit.low or 0.0) <= (limit.rate or 0.0) <= (limit.high or np.inf)
    assert all(text for text in search.unresolved())


@settings(max_examples=40)
@given(limit=st.floats(50.0, 20_000.0))
def test_a_sharp_limit_is_found_within_the_tolerance(limit: float) -> None:
    search, steps = scripted(sharp(limit), SearchSettings(budget=300.0))

    found = search.limit()
    assert found is not None
    assert found.low is not None
    assert found.high is not None
    assert found.low <= limit < found.high <= 1.031 * found.low
    assert sum(one.role == "confirm" and one.rate == found.low for one in steps) >= 3
    assert search.unresolved() == []


def test_the_phases_come_in_order() -> None:
    _, steps = scripted(sharp(700.0), SearchSettings(budget=120.0))

    roles = [role for role, _ in itertools.groupby(one.role for one in steps)]
    assert roles == ["base", "bracket", "bisect", "confirm", "curve"]


def test_requests_are_counted_too() -> None:
    _, steps = scripted(sharp(5000.0), SearchSettings(budget=300.0, max_requests=40_000))

    assert 20_000 <= sum(one.rate * (one.warm_up + one.seconds) for one in steps) <= 40_000


def test_the_same_seed_plans_the_same_steps_and_another_seed_others() -> None:
    def steps(seed: int) -> list[Planned]:
        return scripted(sharp(700.0), SearchSettings(budget=120.0, seed=seed))[1]

    assert steps(1) == steps(1)
    assert steps(1) != steps(2)


def test_an_accident_in_the_bracket_is_not_believed_at_once() -> None:
    def script(planned: Planned, index: int) -> tuple[Verdict, Class]:
        return ("FAIL", "KNEE") if index == 2 else sharp(3000.0)(planned, index)

    search, steps = scripted(script, SearchSettings(budget=300.0))

    assert steps[2].rate == steps[3].rate
    limit = search.limit()
    assert limit is not None
    assert limit.rate == pytest.approx(3000.0, rel=0.03)


def test_invalid_steps_are_repeated_and_then_end_the_way_up() -> None:
    def script(planned: Planned, _: int) -> tuple[Verdict, Class]:
        return ("PASS", "LINEAR") if planned.rate < 500.0 else ("INVALID", "LINEAR")

    search, steps = scripted(script, SearchSettings(budget=120.0))

    limit = search.limit()
    assert limit is not None
    assert limit.at_least
    assert limit.high is None
    assert 400.0 <= (limit.low or 0.0) < 500.0
    beyond = [one.rate for one in steps if one.rate >= 500.0]
    assert all(beyond.count(rate) == 3 for rate in beyond)
    assert any(text.startswith("the tester gave out at") for text in search.unresolved())


def test_one_invalid_step_costs_only_itself() -> None:
    def script(planned: Planned, index: int) -> tuple[Verdict, Class]:
        return ("INVALID", "LINEAR") if index in (0, 4, 9) else sharp(700.0)(planned, index)

    search, _ = scripted(script, SearchSettings(budget=300.0))

    limit = search.limit()
    assert limit is not None
    assert limit.rate == pytest.approx(700.0, rel=0.03)


def test_a_tester_that_is_never_valid_finds_nothing() -> None:
    search, steps = scripted(lambda *_: ("INVALID", "LINEAR"), SearchSettings(budget=120.0))

    assert search.limit() is None
    assert len(steps) == 3


def test_an_undecided_region_is_closed_in_from_both_sides() -> None:
    def script(planned: Planned, index: int) -> tuple[Verdict, Class]:
        undecided = 600.0 < planned.rate < 750.0
        return ("UNDECIDED", "KNEE") if undecided else sharp(700.0)(planned, index)

    search, _ = scripted(script, SearchSettings(budget=600.0))

    limit = search.limit()
    assert limit is not None
    assert (limit.low, limit.high) == (
        pytest.approx(600.0, rel=0.04),
        pytest.approx(750.0, rel=0.04),
    )
    assert any("the SLO is undecided" in text for text in search.unresolved())


def test_an_undecided_rate_that_a_little_more_would_decide_gets_it() -> None:
    search = Search(SearchSettings(budget=300.0), (parse("p95 < 50ms"),))
    spent, steps = 0.0, list[Planned]()
    while (planned := search.next(spent)) is not None:
        steps.append(planned)
        answer = result(planned, *sharp(700.0)(planned, 0))
        if planned.role == "bisect" and planned.rate <= 700.0:
            answer = replace(answer, verdict="UNDECIDED", misses=37, effective_requests=600.0)
        search.add(answer)
        spent += answer.spent

    extended = {one.rate for one in steps if one.extend}
    assert extended
    assert all(level.verdict == "PASS" for level in search.levels() if level.rate in extended)


def test_a_repeat_that_fails_lowers_the_answer() -> None:
    def script(planned: Planned, index: int) -> tuple[Verdict, Class]:
        strict = 640.0 if planned.role == "confirm" else 700.0
        return sharp(strict)(planned, index)

    search, _ = scripted(script, SearchSettings(budget=600.0))

    limit = search.limit()
    assert limit is not None
    assert limit.low is not None
    assert limit.low <= 640.0
    assert limit.high is not None
    assert 640.0 < limit.high <= 700.0


def test_a_pass_above_a_fail_does_not_count_and_is_told() -> None:
    """What the curve finds below the answer is looked at twice, and then believed."""

    def script(planned: Planned, index: int) -> tuple[Verdict, Class]:
        hole = 300.0 < planned.rate < 500.0
        return ("FAIL", "KNEE") if hole else sharp(1000.0)(planned, index)

    search, steps = scripted(script, SearchSettings(budget=300.0, start=256.0))

    in_hole = [one.rate for one in steps if 300.0 < one.rate < 500.0]
    assert len(in_hole) >= 2
    limit = search.limit()
    assert limit is not None
    assert limit.high == min(in_hole)
    assert limit.low is not None
    assert limit.low <= 300.0
    told = [text for text in search.unresolved() if text.startswith("bimodal")]
    assert told
    assert told[0].endswith("failed, so the lower one is kept")


def test_an_accident_on_the_curve_changes_nothing() -> None:
    def script(planned: Planned, index: int) -> tuple[Verdict, Class]:
        known.append(planned.rate)
        accident = planned.role == "curve" and known.count(planned.rate) == 1
        accident = accident and planned.rate < 700.0
        return ("FAIL", "KNEE") if accident else sharp(700.0)(planned, index)

    known: list[float] = []
    search, _ = scripted(script, SearchSettings(budget=300.0))

    limit = search.limit()
    assert limit is not None
    assert limit.rate == pytest.approx(700.0, rel=0.03)
    assert max(known.count(rate) for rate in known if rate < 500.0) == 2


# --- the limit of any steps -----------------------------------------------------------------------


def at(rate: float, verdict: Verdict, share: float | None = None, **changes: object) -> Result:
    planned = Planned("rate", rate, 5.0, 1.0)
    return replace(result(planned, verdict, share=share), **changes)  # type: ignore[arg-type]


def test_the_limit_lies_where_the_misses_reach_what_is_allowed() -> None:
    limit = limit_of(
        [at(100, "PASS", 0.0), at(200, "PASS", 0.02), at(400, "FAIL", 0.08), at(800, "FAIL", 1.0)],
        allowed=0.05,
    )

    assert limit is not None
    assert limit.rate == pytest.approx(200 * 2**0.5, rel=1e-6)
    assert (limit.low, limit.high, limit.at_least) == (200, 400, False)


@pytest.mark.parametrize(
    ("results", "low", "high", "at_least", "why"),
    [
        ([at(100, "PASS"), at(200, "PASS")], 200, None, True, "nothing failed"),
        ([at(100, "PASS"), at(200, "FAIL"), at(300, "PASS")], 100, 200, False, "bimodal"),
        ([at(100, "PASS"), at(200, "INVALID")], 100, None, True, "INVALID says nothing"),
        (
            [at(100, "PASS"), at(200, "FAIL", role="curve"), at(300, "PASS"), at(400, "FAIL")],
            300,
            400,
            False,
            "one short step overrules nothing",
        ),
        ([at(100, "UNDECIDED"), at(200, "FAIL")], None, 200, False, "nothing passed yet"),
        (
            [at(100, "PASS"), at(200, "PASS", class_="OVERLOAD")],
            100,
            200,
            False,
            "no SLO holds for long on a server that does not keep up",
        ),
    ],
)
def test_which_rates_bound_the_limit(
    results: list[Result], low: float | None, high: float | None, at_least: bool, why: str
) -> None:
    limit = limit_of(results, allowed=0.05)

    assert limit is not None
    assert (limit.low, limit.high, limit.at_least) == (low, high, at_least), why


@pytest.mark.parametrize("results", [[], [at(100, "INVALID")], [at(100, "FAIL"), at(50, "FAIL")]])
def test_no_rate_no_limit(results: list[Result]) -> None:
    assert limit_of(results, allowed=0.05) is None


def test_steps_at_one_rate_decide_together() -> None:
    undecided = at(100, "UNDECIDED", 0.035, effective_requests=300.0)

    alone, four = limit_of([undecided], 0.05), limit_of([undecided] * 4, 0.05)

    assert alone is None
    assert four is not None
    assert four.low == 100


def test_few_errors_do_not_hide_that_latency_is_undecided() -> None:
    """The misses are those of the availability, which is only observed; the verdict is not."""
    errors = at(100, "UNDECIDED", misses=0, effective_requests=None, allowed=0.001)

    limit = limit_of([errors, errors, at(200, "FAIL")], 0.05)

    assert limit is not None
    assert limit.low is None


def test_misses_of_a_stricter_slo_count_by_how_near_it_came_to_breaking() -> None:
    """0.08% failed where 0.1% may: as near to breaking as 4% late where 5% may be."""
    strict = at(200, "PASS", allowed=0.001, misses=0, effective_requests=None)
    broke = at(400, "FAIL", allowed=0.001, misses=20, effective_requests=None)

    limit = limit_of([strict, broke], allowed=0.05)

    assert limit is not None
    assert limit.rate == pytest.approx(200 * 2**0.05, rel=1e-6)
