"""The planner: find the best plan for history, or the least epsilon for a required quality."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tacit.errors import PlanError
from tacit.options import command, option
from tacit.planning.plan import Expected, Plan
from tacit.planning.survey import assume_statistics
from tacit.privacy.affected_queries import find_affected
from tacit.privacy.mechanisms import load
from tacit.privacy.mechanisms.mechanism import Mechanism, PlanGoal
from tacit.privacy.mechanisms.unprotected import Unprotected
from tacit.privacy.policies import Policies
from tacit.privacy.quality import Confusion
from tacit.privacy.statistics import Statistics
from tacit.spec.mechanisms import AUTO, MECHANISMS
from tacit.spec.specification import Specification

Floats = NDArray[np.float64]

_COUNTS: Final = ("tp", "fp", "fn")


def make_plan(
    spec: Specification,
    statistics: Sequence[Statistics],
    mechanism: str | None = None,
    decode: str | None = None,
    share: Fraction = Fraction(1),
) -> Plan:
    """Make the best plan for the epsilons of a specification, or for a share of them.

    `statistics` has one entry per policy. `auto` takes the mechanism with the best expected
    quality.
    """
    chosen = mechanism or spec.mechanism
    decode = decode or spec.decode
    if chosen == AUTO:
        plans = [make_plan(spec, statistics, name, decode, share) for name in MECHANISMS]
        return max(plans, key=lambda plan: plan.expected.quality if plan.expected else 0.0)
    alphas = tuple(query.alpha for query in spec.queries)
    goal = PlanGoal(alphas, decode == "literal", share, spec.windows.panes)
    made = [_plan_policy(load(chosen), part, goal) for part in statistics]
    windows = int(sum(part.windows for part in statistics))
    limited = {private.name for private in spec.private if private.limit is not None}
    past = [_past(limited, *both) for both in zip(statistics, made, strict=True)]
    return Plan(
        spec,
        chosen,
        decode,
        tuple(mechanism for mechanism, _ in made),
        windows,
        _expected(spec, [confusion for _, confusion in made]) if windows else None,
        share,
        _expected(spec, past) if windows and limited else None,
        columns=statistics[0].columns if statistics else {},
    )


def _expected(spec: Specification, confusions: Sequence[Confusion[Floats]]) -> Expected:
    """Add up the expectations of all policies."""
    names = tuple(query.name for query in spec.queries)
    counts = [np.sum([getattr(c, part) for c in confusions], axis=0) for part in _COUNTS]
    return Expected(names, tuple(query.alpha for query in spec.queries), Confusion(*counts))


def _past(
    limited: AbstractSet[str], statistics: Statistics, made: tuple[Mechanism, Confusion[Floats]]
) -> Confusion[Floats]:
    """Return what to expect of a policy's windows once its limits are reached."""
    mechanism, confusion = made
    names = {pattern.name for pattern in statistics.policy.patterns}
    if not statistics.windows or limited.isdisjoint(names):
        return confusion
    return mechanism.public_only.expect(statistics)


def _planning() -> str:
    return command("tacit plan SPEC --history SOURCE -o PLAN", "tacit.plan(spec, history)")


def plan_without_history(
    spec: Specification,
    mechanism: str | None = None,
    decode: str | None = None,
    rates: Mapping[str, float] | None = None,
) -> Plan:
    """Make a plan from given probabilities that a window has an event of each type.

    Without `rates` only `uniform` works. It needs no prior; its confidences assume that each
    event type is present with probability 1/2.
    """
    chosen = mechanism or spec.mechanism
    queries = tuple(spec.query_patterns.values())
    policies = Policies(spec).policies
    if not any(find_affected(policy, queries) for policy in policies):
        chosen = "uniform"  # no query depends on private elements, so no prior is needed
    if chosen == AUTO or (rates is None and load(chosen).needs != "nothing"):
        needed = "history to compare mechanisms" if chosen == AUTO else "history or a prior"
        raise PlanError(
            f"the mechanism {chosen} needs {needed}: make a plan with {_planning()}, or use"
            f" {option('mechanism', 'uniform')}"
        )
    if load(chosen).needs == "history":
        raise PlanError(
            f"the mechanism {chosen} depends on the quality that history shows: make a plan with"
            f" {_planning()}"
        )
    panes = spec.windows.panes
    statistics = [assume_statistics(policy, queries, rates or {}, panes) for policy in policies]
    return make_plan(spec, statistics, chosen, decode)


def _plan_policy(
    mechanism: type[Mechanism], statistics: Statistics, goal: PlanGoal
) -> tuple[Mechanism, Confusion[Floats]]:
    """Plan one policy; it stays unprotected if no query depends on private elements."""
    return (mechanism if statistics.affected else Unprotected).plan(statistics, goal)


@dataclass(frozen=True, slots=True)
class LeastEpsilon:
    """The least epsilon for a required quality, or the query that makes it infeasible."""

    factor: Fraction | None
    """The needed multiple of the specification's epsilons; None if infeasible."""
    plan: Plan | None
    """The plan with that epsilon; None if it exceeds the specification's."""
    expected: Expected
    """The expectation at that epsilon, or the best possible one."""
    obstacle: str | None = None
    """If infeasible, the query that misses its quality by most."""


def find_least_epsilon(
    spec: Specification,
    statistics: Sequence[Statistics],
    required: Sequence[float | None],
    mechanism: str | None = None,
    decode: str | None = None,
    *,
    most: Fraction = Fraction(50),
    progress: Callable[[int], None] | None = None,
) -> LeastEpsilon:
    """Find the smallest factor on all epsilons with which every query reaches its quality.

    No private pattern gets an epsilon above `most`.
    """
    if all(quality is None for quality in required):
        raise PlanError(
            f"no quality is required: set {option('quality')}, or give queries a quality in the"
            " specification"
        )
    epsilons = [Fraction(private.epsilon) for private in spec.private]
    largest = most / max(epsilons, default=Fraction(1))
    steps = 0

    def attempt(factor: Fraction) -> tuple[Plan, float, str]:
        nonlocal steps
        steps += 1
        plan = make_plan(spec, statistics, mechanism, decode, factor)
        if progress is not None:
            progress(steps)
        assert plan.expected is not None
        short = [
            (quality - row["quality"], row["query"])
            for quality, row in zip(required, plan.expected.rows(), strict=True)
            if quality is not None
        ]
        lacking, query = max(short)
        return plan, lacking, query

    best, lacking, query = attempt(largest)
    assert best.expected is not None
    if lacking > 0:
        return LeastEpsilon(None, None, best.expected, query)
    high, low = largest, largest / 2**20
    found = best
    for _ in range(_BISECTIONS):
        middle = _between(low, high)
        plan, lacking, _ = attempt(middle)
        if lacking <= 0:
            high, found = middle, plan
        else:
            low = middle
    assert found.expected is not None
    return LeastEpsilon(high, found if high <= 1 else None, found.expected)


_BISECTIONS: Final = 14


def _between(low: Fraction, high: Fraction) -> Fraction:
    """Return the geometric mean of two factors, as a short decimal if possible."""
    middle = float(low) ** 0.5 * float(high) ** 0.5
    rounded = Fraction(f"{middle:.4g}")
    return rounded if low < rounded < high else (low + high) / 2
