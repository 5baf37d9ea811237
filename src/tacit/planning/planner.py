"""The planner: find the best plan for history."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from fractions import Fraction
from itertools import accumulate, pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tacit.errors import PlanError
from tacit.options import command
from tacit.patterns.tree import elements
from tacit.planning.count_models import CountLimit, learn_count_memory
from tacit.planning.count_split import weigh_split
from tacit.planning.plan import CountErrors, Expected, HistoryWarning, Plan, QueryWarning
from tacit.planning.survey import assume_statistics
from tacit.privacy.affected_queries import find_affected
from tacit.privacy.count_answers import AnswerCount, AnswerRates, find_tables, fit_answers
from tacit.privacy.count_channels import make_count_channel
from tacit.privacy.count_memory import CountMemory
from tacit.privacy.mechanisms import load
from tacit.privacy.mechanisms.mechanism import Mechanism, PlanGoal
from tacit.privacy.mechanisms.unprotected import Unprotected
from tacit.privacy.pacing import SpendingLimit
from tacit.privacy.policies import Policies, declared_patterns
from tacit.privacy.quality import Confusion, QualityObjective, make_objective
from tacit.privacy.statistics import Statistics
from tacit.privacy.thresholds import add_confusions
from tacit.progress import ProgressCallback, ignore_progress, scale_progress, split_progress
from tacit.quantities import count
from tacit.spec.epsilon_split import EpsilonSplit, find_sources
from tacit.spec.mechanisms import AUTO, MECHANISMS
from tacit.spec.specification import Private, Specification

Floats = NDArray[np.float64]

_WEIGHING: Final = 0.8
"""The part of planning in which epsilon is split, where counts and answers share it."""
_TIE: Final = 4
"""The decimals of a quality that count when mechanisms are compared."""
_WORK: Final = {"uniform": 1, "adaptive": 4, "optimal": 15}
"""About how long the planning of each mechanism takes, compared with the others."""
_USUAL: Final = 4
"""The same for any other mechanism."""
_BETTER: Final = 0.002
"""By how much a mechanism must be better than one that adds less noise to replace it."""


def make_plan(
    spec: Specification,
    statistics: Sequence[Statistics],
    mechanism: str | None = None,
    decode: str | None = None,
    share: Fraction = Fraction(1),
    *,
    shares: Mapping[str, Fraction] | None = None,
    objective: str | None = None,
    required: Sequence[float | None] | None = None,
    fall_back: bool = True,
    split: EpsilonSplit | None = None,
    progress: ProgressCallback = ignore_progress,
) -> Plan:
    """Make the best plan for the epsilons of a specification, or for a share of them.

    `statistics` has one entry per policy. `shares` has other shares for some private patterns, by
    name. The plan maximises the `objective` (`micro` or `macro`), or gets queries as close as
    possible to their `required` qualities. Quality is judged on held-out windows. `auto` takes the
    best mechanism; a tie goes to the one with less noise. With `fall_back`, `optimal` becomes
    `adaptive` where that is better. `split` is how counts and answers share epsilon; by default
    history decides (`choose_split`).
    """
    chosen = mechanism or spec.mechanism
    decode = decode or spec.decode
    objective = objective or spec.objective
    errors: Mapping[str, CountErrors] = {}
    if split is None:
        weighing = scale_progress(progress, 0, _WEIGHING)
        split, errors = choose_split(spec, statistics, chosen, decode, objective, weighing)
        progress = scale_progress(progress, _WEIGHING if errors else 0, 1)
    given = dict(shares or {})
    given |= {name: given.get(name, share) * left for name, left in split.left.items()}
    goal = PlanGoal(
        make_objective(spec, objective, required),
        decode == "literal",
        share,
        given,
        spec.windows.panes,
        spec.memory and decode == "posterior",
    )
    falling_back = chosen == "optimal" and fall_back and any(part.windows for part in statistics)
    names = [chosen, "adaptive"] if falling_back else [chosen]
    if chosen == AUTO:
        names = list(MECHANISMS)
    plans = [
        _make(spec, statistics, name, decode, goal, split.left, part)
        for name, part in zip(names, _divide(progress, names), strict=True)
    ]
    best = _rank(plans, goal.objective)[0] if chosen == AUTO else plans[0]
    if falling_back:
        best = choose_optimal(plans[0], plans[1], goal.objective)
    memories = {}
    if spec.memory and statistics:
        memories = _learn_counts(spec, statistics[0], split.counts)
    planned = replace(
        best,
        objective=objective,
        counts=split.counts,
        count_memories=memories,
        answer_counts=_fit_answers(best, statistics, split),
        count_errors=errors,
    )
    if max((share, *given.values())) <= 1:  # not a search for what would be needed
        planned.check_counts()
    for epsilon in filter(None, split.counts.values()):
        make_count_channel(epsilon)  # it is audited here, and again in every run
    return planned


def choose_split(
    spec: Specification,
    statistics: Sequence[Statistics],
    mechanism: str | None = None,
    decode: str | None = None,
    objective: str | None = None,
    progress: ProgressCallback = ignore_progress,
) -> tuple[EpsilonSplit, Mapping[str, CountErrors]]:
    """Split epsilon between answers and counts by what history says of both.

    Also return what was compared, by count.
    """
    chosen = mechanism or spec.mechanism
    single = "optimal" if chosen == AUTO else chosen

    def attempt(split: EpsilonSplit) -> Plan:
        progress(0.0, "splitting epsilon between answers and counts")
        return make_plan(
            spec, statistics, single, decode, objective=objective, fall_back=False, split=split
        )

    return weigh_split(spec, statistics, attempt)


def _fit_answers(
    plan: Plan, statistics: Sequence[Statistics], split: EpsilonSplit
) -> dict[str, AnswerCount]:
    """Return how the counts that spend nothing follow from answers."""
    sources, found = find_sources(plan.spec), {}
    expected = plan.limited or plan.expected
    for name in sorted(split.from_answers, key=[*plan.counts, *sources].index):
        query = sources[name]
        assert query is not None, "a split has sources only"
        number = [*plan.spec.query_patterns].index(query)
        history = statistics[0].counts.get(name) if statistics else None
        if history is None or expected is None:
            found[name] = AnswerCount(query, 1.0, 0.0, 0.25, 0.5, 0.0)
            continue
        confusion = expected.confusion
        true, false = int(history.detected.sum()), int((history.opened - history.detected).sum())
        hits = max(0.0, float(confusion.tp[number]) - int(history.exact.sum()))
        rates = AnswerRates(
            min(1.0, hits / max(1, true)), min(1.0, float(confusion.fp[number]) / max(1, false))
        )
        tables = find_tables(plan.mechanisms, number, plan.spec.windows.panes)
        found[name] = fit_answers(query, history, rates, tables)
    return found


def _learn_counts(
    spec: Specification, statistics: Statistics, epsilons: Mapping[str, Fraction]
) -> dict[str, CountMemory]:
    """Learn from history what is known of each count before a run."""
    found = {}
    for name, history in statistics.counts.items():
        limit = find_count_limit(spec, name, epsilons[name])
        memory = learn_count_memory(history, spec.windows.pane, epsilons[name], limit)
        if memory is not None:
            found[name] = memory
    return found


def find_count_limit(spec: Specification, name: str, epsilon: Fraction) -> CountLimit | None:
    """Return what a count may spend where limits are paced; None if no limit applies.

    Of every limit it has the same share as of epsilon. The limit that allows least counts.
    """
    own, panes = {*elements(spec.count_patterns[name])}, spec.windows.panes
    limits = []
    for private, pattern in zip(spec.private, declared_patterns(spec), strict=True):
        if private.limit is None or private.spend != "paced" or not own & pattern.elements:
            continue
        share = epsilon * pattern.count_windows(panes) / pattern.epsilon
        limits.append(CountLimit(Fraction(private.limit.amount) * share, private.limit.horizon))
    return min(limits, key=lambda limit: limit.epsilon / limit.horizon, default=None)


def list_limits(declared: Sequence[Private]) -> dict[str, SpendingLimit]:
    """Return the limits of a policy's private patterns, by name."""
    return {
        private.name: SpendingLimit(
            Fraction(private.limit.amount), private.limit.horizon, private.spend == "paced"
        )
        for private in declared
        if private.limit is not None
    }


def choose_optimal(optimal: Plan, adaptive: Plan, objective: QualityObjective) -> Plan:
    """Return the plan of optimal, or that of adaptive if it is clearly better.

    With limits, answers of windows that are not paid for need memory, which only optimal has.
    """
    if optimal.limited is not None:
        return optimal
    better = _value(adaptive, objective) - _value(optimal, objective)
    return adaptive if better > _BETTER else optimal


def compare_mechanisms(
    spec: Specification,
    statistics: Sequence[Statistics],
    decode: str | None = None,
    objective: str | None = None,
    progress: ProgressCallback = ignore_progress,
) -> list[Plan]:
    """Make the plan of every mechanism; the first is the one that `auto` takes."""
    split, errors = choose_split(spec, statistics, "optimal", decode, objective)
    plans = [
        replace(
            make_plan(
                spec,
                statistics,
                name,
                decode,
                objective=objective,
                fall_back=False,
                split=split,
                progress=part,
            ),
            count_errors=errors,
        )
        for name, part in zip(MECHANISMS, _divide(progress, MECHANISMS), strict=True)
    ]
    return _rank(plans, make_objective(spec, plans[0].objective))


def _divide(progress: ProgressCallback, names: Iterable[str]) -> list[ProgressCallback]:
    """Return a callback for each mechanism, by about how long its planning takes."""
    ends = list(accumulate((_WORK.get(name, _USUAL) for name in names), initial=0))
    return [scale_progress(progress, *(end / ends[-1] for end in pair)) for pair in pairwise(ends)]


def _rank(plans: Sequence[Plan], objective: QualityObjective) -> list[Plan]:
    """Sort plans by quality, the best first.

    Of plans that are hardly worse than the best, the one that adds least noise comes first.
    `MECHANISMS` are in that order, from most noise to least. Plans that can spend limits with
    memory come before others.
    """
    ranked = list(reversed(plans))
    ranked.sort(key=lambda plan: (plan.limited is None, -round(_value(plan, objective), _TIE)))
    able = [plan for plan in ranked if (plan.limited is None) == (ranked[0].limited is None)]
    good = [p for p in able if _value(p, objective) >= _value(ranked[0], objective) - _BETTER]
    first = next(plan for plan in reversed(plans) if plan in good)
    return [first, *(plan for plan in ranked if plan is not first)]


def _value(plan: Plan, objective: QualityObjective) -> float:
    return 0.0 if plan.expected is None else objective.value(plan.expected.confusion)


def _make(
    spec: Specification,
    statistics: Sequence[Statistics],
    name: str,
    decode: str,
    goal: PlanGoal,
    left: Mapping[str, Fraction],
    progress: ProgressCallback = ignore_progress,
) -> Plan:
    """Make the plan of one mechanism; `left` is the share that counts leave of private patterns."""
    made = []
    parts = split_progress(progress, len(statistics))
    for part, declared, share in zip(statistics, Policies(spec).declared, parts, strict=True):
        share(0.0, f"planning {name}")
        limits = list_limits(declared)
        if spec.memory:  # counts keep their share of a limit that is paced
            limits = {
                name: one._replace(amount=one.amount * left.get(name, 1)) if one.paced else one
                for name, one in limits.items()
                if left.get(name, 1)
            }
        own = replace(goal, limits=limits, progress=share)
        made.append(_plan_policy(load(name), part, own))
    progress(1.0, f"planned {name}")
    windows = int(sum(part.windows for part in statistics))
    limited = {private.name for private in spec.private if private.limit is not None}
    past = [_expect_past_limits(limited, *both) for both in zip(statistics, made, strict=True)]
    expected = _sum_expected(spec, [confusion for _, confusion in made])
    with_limits = [mechanism.limited or confusion for mechanism, confusion in made]
    has_limits = any(mechanism.limited is not None for mechanism, _ in made)
    return Plan(
        spec,
        name,
        decode,
        tuple(mechanism for mechanism, _ in made),
        windows,
        expected if windows and spec.subject_queries else None,
        goal.share,
        _sum_expected(spec, past) if windows and limited else None,
        limited=_sum_expected(spec, with_limits) if windows and has_limits else None,
        columns=statistics[0].columns if statistics else {},
        shares=goal.shares,
        warnings=_warn(expected, statistics) if windows else (),
        history_warnings=_check_history(spec, statistics) if windows else (),
    )


def _sum_expected(spec: Specification, confusions: Sequence[Confusion[Floats]]) -> Expected:
    """Add up the expectations of all policies."""
    names = tuple(query.name for query in spec.boolean_queries)
    alphas = tuple(query.alpha for query in spec.boolean_queries)
    return Expected(names, alphas, add_confusions(confusions))


def _warn(expected: Expected, statistics: Sequence[Statistics]) -> tuple[QueryWarning, ...]:
    """List the queries whose answers are expected not to depend on private events."""
    windows = sum(part.windows for part in statistics)
    found = expected.confusion
    open_windows: dict[int, float] = {}
    for one in statistics:
        for part, known in zip(one.affected, one.evidence, strict=True):
            open_windows[part.query] = open_windows.get(part.query, 0) + float(known.counts.sum())
    exact = np.sum([one.exact for one in statistics], axis=0)
    warnings = []
    for number in sorted(open_windows):
        name, opened = expected.queries[number], open_windows[number]
        claims = found.tp[number] + found.fp[number]
        positives = found.tp[number] + found.fn[number]
        drawn = claims - exact[number]
        if claims <= _NEVER * windows:
            reason = (
                "it never occurs in history"
                if positives <= 0
                else f"it occurs in {positives / windows:.2%} of the windows of history, which is"
                " too rare to be distinguished from noise at this epsilon; raise epsilon, or plan"
                " for objective macro"
            )
            warnings.append(QueryWarning(name, False, reason))
        elif claims >= (1 - _NEVER) * windows:
            reason = (
                "it always occurs in history"
                if positives >= windows
                else "at this epsilon a yes is the better guess everywhere; raise epsilon"
            )
            warnings.append(QueryWarning(name, True, reason))
        elif opened and not _NEVER * windows < drawn < opened - _NEVER * windows:
            reason = (
                "at this epsilon that is the best guess, so answers follow from public events"
                " alone; raise epsilon, or do without the query"
            )
            warnings.append(QueryWarning(name, bool(drawn > opened / 2), reason, _WHERE_OPEN))
    return tuple(warnings)


def _check_history(
    spec: Specification, statistics: Sequence[Statistics]
) -> tuple[HistoryWarning, ...]:
    """List the event types in use that never occur, and say if history is short."""
    windows = int(sum(part.windows for part in statistics))
    found = []
    if windows < _FEW_WINDOWS:
        reason = (
            f"history has only {count(windows, 'window')}, so the expected values are rough"
            f" guesses; give at least {_FEW_WINDOWS}, counted by subject and window"
        )
        found.append(HistoryWarning("history", reason))
    asked = [*spec.query_patterns.values(), *spec.count_patterns.values()]
    patterns = [*spec.private_patterns, *asked]
    used = dict.fromkeys(name for pattern in patterns for name in elements(pattern))
    for name in used:
        if statistics[0].occurrences.get(name, 1) == 0:
            reason = (
                f"the event '{name}' never occurs in history: check its condition, and whether"
                " history is like the data to come"
            )
            found.append(HistoryWarning(name, reason))
    return tuple(found)


_FEW_WINDOWS: Final = 100
"""The number of windows below which a plan warns."""
_NEVER: Final = 1e-9
"""A share of windows that is none but for rounding errors."""
_WHERE_OPEN: Final = "wherever private events could change it"


def _expect_past_limits(
    limited: AbstractSet[str], statistics: Statistics, made: tuple[Mechanism, Confusion[Floats]]
) -> Confusion[Floats]:
    """Return what to expect of a policy's windows once its limits are reached."""
    mechanism, confusion = made
    names = {pattern.name for pattern in statistics.policy.patterns}
    if not statistics.windows or limited.isdisjoint(names):
        return confusion
    return mechanism.expect_public_only(statistics)


def _name_command() -> str:
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
        uniform = command("--mechanism uniform", "mechanism='uniform'")
        raise PlanError(
            f"the mechanism {chosen} needs {needed}: make a plan with {_name_command()}, or use"
            f" {uniform}"
        )
    if load(chosen).needs == "history":
        raise PlanError(
            f"the mechanism {chosen} depends on the quality that history shows: make a plan with"
            f" {_name_command()}"
        )
    panes = spec.windows.panes
    statistics = [assume_statistics(policy, queries, rates or {}, panes) for policy in policies]
    return make_plan(spec, statistics, chosen, decode)


def _plan_policy(
    mechanism: type[Mechanism], statistics: Statistics, goal: PlanGoal
) -> tuple[Mechanism, Confusion[Floats]]:
    """Plan one policy; it stays unprotected if no query depends on private elements."""
    return (mechanism if statistics.affected else Unprotected).plan(statistics, goal)
