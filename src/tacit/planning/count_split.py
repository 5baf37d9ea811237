"""Weigh counts against answers: how epsilon is split, and which counts are estimated from answers.

Answers lose quality (MRE, the share of Q that noise costs), and counts have an error, which is
compared with the mean true count of history. Both are between 0 and 1, and every query counts the
same. A count can have a channel of its own, or be estimated from the answers to a query with the
same pattern, which leaves all of epsilon to the answers. Candidates are planned in full, and the
one with the least mean loss is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, Final, NamedTuple

import numpy as np

from tacit.planning.plan import CountErrors, Expected, Plan
from tacit.privacy.count_channels import LEAST_EPSILON, make_count_channel
from tacit.privacy.count_memory import CountHistory
from tacit.privacy.statistics import Statistics
from tacit.spec.epsilon_split import (
    SUBJECT_SHARE,
    EpsilonSplit,
    find_open_counts,
    find_sources,
    split_epsilon,
)
from tacit.spec.specification import Specification

_MORE: Final = tuple(1 - Fraction(1, 2**power) for power in range(2, 6))
"""Shares for answers above one half, in the order in which they are tried."""
_LESS: Final = tuple(Fraction(1, 2**power) for power in range(2, 4))
"""Shares below one half."""


class WeighedSplit(NamedTuple):
    """A split of epsilon that was chosen from history, and what was compared."""

    split: EpsilonSplit
    errors: dict[str, CountErrors]


PlanWith = Callable[[EpsilonSplit], Plan]
"""Makes the plan of a split."""


def weigh_split(
    spec: Specification, statistics: Sequence[Statistics], make: PlanWith
) -> WeighedSplit:
    """Choose the split with the least loss; a declared `share` is not changed."""
    rivals = find_open_counts(spec)
    if not rivals or not any(part.windows for part in statistics):
        return WeighedSplit(split_epsilon(spec), {})
    return _SplitSearch(spec, statistics[0], make).run(rivals)


class _Candidate(NamedTuple):
    """A split, the loss of its plan, and the plan's errors of counts."""

    loss: float
    split: EpsilonSplit
    channels: dict[str, float]
    answers: dict[str, float]


class _SplitSearch:
    """The search for the best split."""

    def __init__(self, spec: Specification, statistics: Statistics, make: PlanWith) -> None:
        self._spec, self._make = spec, make
        self._histories = statistics.counts
        self._tried: dict[tuple[Any, ...], _Candidate] = {}

    def run(self, rivals: Sequence[str]) -> WeighedSplit:
        """Compare own channels with answers, for all counts that can have both, and for some."""
        sources = find_sources(self._spec)
        able = frozenset(name for name in rivals if sources.get(name) is not None)
        drawn = self._search(frozenset(), rivals)
        found = [drawn]
        if able:
            other = self._search(able, rivals)
            found.append(other)
            better = frozenset(name for name in able if other.answers[name] <= drawn.channels[name])
            if better and better != able:
                found.append(self._search(better, rivals))
            errors = {
                name: CountErrors(drawn.channels.get(name), other.answers.get(name))
                for name in rivals
            }
        else:
            errors = {name: CountErrors(drawn.channels[name], None) for name in rivals}
        return WeighedSplit(min(found, key=lambda one: one.loss).split, errors)

    def _search(self, from_answers: frozenset[str], rivals: Sequence[str]) -> _Candidate:
        """Search the best share for answers, from one half up or down."""
        best = self._try(SUBJECT_SHARE, from_answers)
        if from_answers >= frozenset(rivals):
            return best  # there is nothing to share
        for shares in (_MORE, _LESS):
            for share in shares:
                found = self._try(share, from_answers)
                if found.loss >= best.loss:
                    break
                best = found
            if best.split != self._try(SUBJECT_SHARE, from_answers).split:
                break
        return best

    def _try(self, share: Fraction, from_answers: frozenset[str]) -> _Candidate:
        """Plan with a split; a count that would get too little makes it the worst."""
        key = share, from_answers
        if key not in self._tried:
            split = split_epsilon(self._spec, share, from_answers)
            self._tried[key] = self._judge(split)
        return self._tried[key]

    def _judge(self, split: EpsilonSplit) -> _Candidate:
        if any(0 < epsilon < LEAST_EPSILON for epsilon in split.counts.values()):
            return _Candidate(np.inf, split, {}, {})
        plan = self._make(split)
        channels = {
            name: expect_channel(plan, name, history)
            for name, history in self._histories.items()
            if split.counts[name]
        }
        answers = {name: one.error for name, one in plan.answer_counts.items()}
        losses = [_compute_loss(plan, len(self._spec.subject_queries))]
        for name, error in (channels | answers).items():
            history = self._histories[name]
            usual = float((history.exact + history.detected).mean())
            losses.append(np.array([min(1.0, error / max(usual, 1.0))]))
        return _Candidate(float(np.concatenate(losses).mean()), split, channels, answers)


def expect_channel(plan: Plan, name: str, history: CountHistory) -> float:
    """Return the expected mean error of a count with a channel of its own, over all windows."""
    memory = plan.count_memories.get(name)
    if memory is not None:
        return memory.error
    noisy = float((history.opened > 0).mean()) if history.opened.size else 0.0
    return make_count_channel(plan.counts[name]).mean_error * noisy


def _compute_loss(plan: Plan, queries: int) -> Any:
    """Return the loss of answers, once for each query."""
    expected: Expected | None = plan.limited or plan.expected
    assert expected is not None, "there are windows of history"
    alphas = np.array(expected.alphas)
    macro = plan.objective == "macro"
    lost = float(np.mean(expected.confusion.mre(alphas))) if macro else expected.mre
    return np.full(max(1, queries), min(1.0, max(0.0, lost)))
