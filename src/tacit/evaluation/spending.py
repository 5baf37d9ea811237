"""Spending policies: how a limit of epsilon per day is divided among a day's windows.

`paced` and `every` are those of the engine (`spend:` in a specification), run with its own prices,
accounts and pacing. The epsilon of a window is the candidate from which the planner expects the
best quality under the limit. An even share for every window needs no limit at all.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from functools import cached_property
from typing import Final, Literal, TypeAlias

from tacit.evaluation.baselines.decoding import compare, compute_true_answers
from tacit.evaluation.baselines.setting import Floats, Presence, Setting
from tacit.evaluation.limited_runs import LimitedRun, run_limited
from tacit.evaluation.measurement import Streams, answer, compute_mre, compute_statistics
from tacit.planning.plan import Plan
from tacit.planning.planner import make_plan
from tacit.privacy.exponentials import format_epsilon
from tacit.privacy.noise import Noise
from tacit.privacy.quality import Confusion
from tacit.privacy.randomness import SeededSource
from tacit.privacy.statistics import Statistics
from tacit.spec.specification import Private, Specification

Spend: TypeAlias = Literal["even", "every", "paced"]
WINDOW_EPSILONS: Final = tuple(map(Fraction, ("2", "3", "5")))
"""The candidates for the epsilon of a window that is paid for."""


@dataclass(frozen=True, slots=True)
class SpendingPolicy:
    """How a limit per day is divided among windows."""

    name: str
    spend: Spend
    memory: bool = True


POLICIES: Final = (
    SpendingPolicy("even epsilon per window", "even"),
    SpendingPolicy("every open window, no memory", "every", memory=False),
    SpendingPolicy("every open window", "every"),
    SpendingPolicy("paced", "paced"),
)


@dataclass(frozen=True, eq=False)
class Day:
    """Streams of whole days, with a limit per day for each subject and private pattern.

    History ends, and the test begins, at midnight.
    """

    spec: Specification
    """Without limits."""
    history: Streams
    test: Streams
    windows: int
    """The number of windows of a day."""
    seed: int
    _statistics: dict[Fraction, list[Statistics]] = field(default_factory=dict, repr=False)

    @cached_property
    def setting(self) -> Setting:
        """The setting of baselines."""
        return Setting.of(self.spec, self.history.presence)

    @property
    def alphas(self) -> list[float]:
        """The weight of precision for each query."""
        return [query.alpha for query in self.spec.boolean_queries]

    def measure(self, policy: SpendingPolicy, limit: Fraction) -> Confusion[Floats]:
        """Count the errors of a policy on test windows, for each query."""
        if policy.spend == "even":
            spec = set_epsilon(self.spec, find_largest(limit))
            plan = self._make_plan(spec, limit / self.windows, limit)
            found = answer(plan, self.test, Noise(SeededSource(self.seed)))
            return self.compare(found, self.test)
        return self.compare(self.run(policy, limit).answers, self.test)

    def run(self, policy: SpendingPolicy, limit: Fraction) -> LimitedRun:
        """Answer the test windows under a limit per day."""
        return run_limited(self.plan(policy, limit), self.test, Noise(SeededSource(self.seed)))

    def plan(self, policy: SpendingPolicy, limit: Fraction) -> Plan:
        """Make the plan of the candidate with the best quality under a limit, by history."""
        spec = limit_daily(self.spec, limit, policy)
        some = [epsilon for epsilon in WINDOW_EPSILONS if epsilon <= limit] or [limit]
        plans = [self._make_plan(spec, epsilon, limit) for epsilon in some]
        return min(plans, key=self._expect) if len(plans) > 1 else plans[0]

    def compare(self, answers: Presence, streams: Streams) -> Confusion[Floats]:
        """Count errors for each query."""
        return compare(compute_true_answers(self.setting, streams.presence), answers)

    def _expect(self, plan: Plan) -> float:
        """Return the error that a plan with limits has on history; the planner's, with memory."""
        if plan.limited is not None:
            return plan.limited.mre
        found = run_limited(plan, self.history, Noise(SeededSource(self.seed)))
        return compute_mre(self.compare(found.answers, self.history), self.alphas)

    def _make_plan(self, spec: Specification, epsilon: Fraction, limit: Fraction) -> Plan:
        """Make a plan with this epsilon for a window, from statistics that all plans share."""
        largest = find_largest(limit)
        if largest not in self._statistics:
            asked = set_epsilon(self.spec, largest)
            self._statistics[largest] = compute_statistics(asked, self.history)
        statistics, share = self._statistics[largest], epsilon / largest
        return make_plan(spec, statistics, "optimal", "posterior", share, fall_back=False)


def find_largest(limit: Fraction) -> Fraction:
    """Return the epsilon of specifications with a limit; plans have a share of it."""
    return min(limit, max(WINDOW_EPSILONS))


def set_epsilon(spec: Specification, epsilon: Fraction) -> Specification:
    """Give every private pattern this epsilon for a window."""
    exact = _to_decimal(epsilon)
    private = tuple(one.model_copy(update={"epsilon": exact}) for one in spec.private)
    return spec.model_copy(update={"private": private}).checked()


def _to_decimal(epsilon: Fraction) -> Decimal:
    return Decimal(epsilon.numerator) / Decimal(epsilon.denominator)


def limit_daily(spec: Specification, limit: Fraction, policy: SpendingPolicy) -> Specification:
    """Give every private pattern a limit per day."""
    private = tuple(
        Private(
            pattern=one.pattern,
            epsilon=_to_decimal(find_largest(limit)),
            limit=f"{format_epsilon(limit)} per day",
            spend="paced" if policy.spend == "paced" else "every",
        )
        for one in spec.private
    )
    return spec.model_copy(update={"private": private, "memory": policy.memory}).checked()
