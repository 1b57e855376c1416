"""How well the SLO is kept, and what follows: how many more late answers are allowed, and by how
much the predicted batch time must be stretched."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from tailproof.core.slo import Latency

RESERVE = 0.97
"""Share of an SLO's threshold that waiting and computing may fill; the rest is for reading,
validating and sending."""

SPEND = 0.5
"""Share of the allowed misses that may be late on purpose. The other half is for what no
prediction sees: the network, a pause of the machine, a batch slower than its quantile."""

MEMORY = 1000
"""Answers over which unused budget is kept: the most late answers in a row are SPEND * MEMORY *
the allowed share."""

ROUND = 200
"""Answers after which the margin is looked at."""

MOST_SURPRISES, FEW_SURPRISES = 0.2, 0.05
"""Of the allowed misses, the share that may be late although predicted in time: above the first the
margin grows, below the second it shrinks."""

GROWTH, SHRINKAGE = 1.05, 0.01
LEAST_MARGIN, MOST_MARGIN = 0.8, 2.0


@dataclass(slots=True)
class _Budget:
    """The late answers that one latency objective still allows."""

    threshold: float
    """Seconds, by the server's own clock."""
    allowed: float
    """Share of answers that may be late."""
    most: float = field(init=False)
    """Late answers that may be given on purpose, when nothing has been spent."""
    left: float = field(init=False)
    """... that may be given now; below 0 when others were late too."""
    num_surprises: int = 0

    def __post_init__(self) -> None:
        self.most = self.left = SPEND * MEMORY * self.allowed


class Attainment:
    """Counts late answers against the latency objectives. A pure state machine.

    **Budget.** A bucket of late answers for each objective: every answer adds SPEND times the
    allowed share, a late one takes 1, and nothing beyond MEMORY answers is kept. While the bucket
    holds something, a request that will be late is computed all the same.

    **Margin.** Predictions are multiplied by it. After every ROUND answers it grows by a twentieth
    when more were late unexpectedly than MOST_SURPRISES of what is allowed, and goes back by a
    hundredth when hardly any were. It goes below 1 only while requests are being shed: where
    nothing is refused there is nothing to gain by hoping. Multiplicative up, additive down, as in
    Clipper (NSDI '17), so that a burst of misses ends soon and is not forgotten at once.
    """

    def __init__(self, objectives: Sequence[Latency]) -> None:
        """`objectives` are end-to-end; none: nothing is ever late."""
        self.margin = 1.0
        self.num_late = {"expected": 0, "surprise": 0}
        """Answers that broke an objective, by whether that was known at dispatch."""
        self._budgets = [
            _Budget(slo.threshold * RESERVE, 1.0 - slo.objective) for slo in objectives
        ]
        self.thresholds = tuple(budget.threshold for budget in self._budgets)
        """Seconds that waiting and computing may take, by objective."""
        self._num_answers = 0
        self._has_shed = False

    @property
    def budget_left(self) -> float:
        """Share (0-1) of the late answers that may be given on purpose; of several objectives the
        smallest, without any 1."""
        return min((max(b.left, 0.0) / b.most for b in self._budgets), default=1.0)

    def allows(self, index: int, num_late: int) -> bool:
        """Whether so many answers may be later than `thresholds[index]`."""
        return num_late <= self._budgets[index].left

    def is_late(self, seconds: float) -> bool:
        """Whether an answer after so many seconds breaks some objective."""
        return any(seconds > threshold for threshold in self.thresholds)

    def shed(self) -> None:
        """A request was refused or dropped for the SLO's sake."""
        self._has_shed = True

    def answered(self, seconds: float, *, expected_late: bool) -> None:
        """An answer was given `seconds` after its request had arrived.

        `expected_late`: it was computed although it would be late; that says nothing about the
        predictions.
        """
        if self.is_late(seconds):
            self.num_late["expected" if expected_late else "surprise"] += 1
        for budget in self._budgets:
            late = seconds > budget.threshold
            left = min(budget.left + SPEND * budget.allowed, budget.most) - late
            budget.left = max(left, -budget.most)  # one long stall is not held against us for ever
            budget.num_surprises += late and not expected_late
        self._num_answers += 1
        if self._num_answers >= ROUND:
            self._adjust()

    def _adjust(self) -> None:
        shares = [b.num_surprises / (self._num_answers * b.allowed) for b in self._budgets]
        worst = max(shares, default=FEW_SURPRISES)  # without an objective the margin stays
        least = LEAST_MARGIN if self._has_shed else min(self.margin, 1.0)
        if worst > MOST_SURPRISES:
            self.margin = min(self.margin * GROWTH, MOST_MARGIN)
        elif worst < FEW_SURPRISES:
            self.margin = max(self.margin - SHRINKAGE, least)
        if not self._has_shed and self.margin < 1.0:
            self.margin = min(self.margin + SHRINKAGE, 1.0)
        for budget in self._budgets:
            budget.num_surprises = 0
        self._num_answers = 0
        self._has_shed = False
