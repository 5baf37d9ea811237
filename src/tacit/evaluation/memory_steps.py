"""Memory, step by step: plans without it, and plans that use it for decoding alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tacit.planning.plan import Plan
from tacit.privacy.mechanisms.optimal.mechanism import Optimal
from tacit.privacy.mechanisms.optimal.memory.candidates import CandidateBook
from tacit.privacy.mechanisms.optimal.memory.model import ComponentMemory
from tacit.privacy.mechanisms.optimal.memory.planning import PlannedParts, count_held_out
from tacit.privacy.quality import QualityObjective, make_objective
from tacit.privacy.statistics import Statistics
from tacit.privacy.thresholds import judge
from tacit.spec.specification import Specification


def drop_memory(spec: Specification) -> Specification:
    """Return the specification with memory switched off."""
    return spec.model_copy(update={"memory": False}).checked()


def has_memory(plan: Plan) -> bool:
    """Return whether any mechanism of a plan has memory."""
    return any(
        isinstance(mechanism, Optimal) and mechanism.memory is not None
        for mechanism in plan.mechanisms
    )


def remember_in_decoding(plan: Plan, statistics: Sequence[Statistics]) -> Plan:
    """Return a plan whose channels do not depend on beliefs: those of the plan without memory.

    Thresholds are chosen again, on held-out history.
    """
    objective = make_objective(plan.spec, plan.objective)
    return replace(
        plan,
        mechanisms=tuple(
            _decide_without(mechanism, mechanism.memory, own, objective)
            if isinstance(mechanism, Optimal) and mechanism.memory is not None
            else mechanism
            for mechanism, own in zip(plan.mechanisms, statistics, strict=True)
        ),
    )


def _decide_without(
    planned: Optimal,
    memory: tuple[ComponentMemory, ...],
    statistics: Statistics,
    objective: QualityObjective,
) -> Optimal:
    parts = PlannedParts(
        planned.exposure, planned.component_channels, planned.planned, planned.books
    )
    assert statistics.sequences is not None, "the plan was made from them"
    books = [CandidateBook() for _ in memory]
    counts = count_held_out(parts, statistics.sequences.fits["memory"], books, statistics)
    return replace(
        planned,
        memory=tuple(replace(one, candidates=CandidateBook()) for one in memory),
        thresholds=judge(counts, objective, uncertain=True).thresholds,
    )
