"""Stakes: for each part of a query, the reward of a true yes and the penalty of a false one.

For a query with one part they are those of the query. If a query has parts in several
components, a yes to one part matters only if the others agree. Their likely answers are estimated
from history, as if each were released by randomised response.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import exp, prod
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tacit.privacy.components import Component, Exposure
from tacit.privacy.context_counts import ContextCounts
from tacit.privacy.prior import Prior

Stakes: TypeAlias = NDArray[np.float64]
"""`[part]`: reward and penalty."""
Levels: TypeAlias = list[tuple[float, float]]
"""The possible posteriors of a part, each with its frequency."""

_CONTEXTS = 16
"""The number of contexts of history that are used."""
_OTHERS = 3
"""The number of other parts that are considered; more would make too many combinations."""


class PartModel:
    """A model of the answers to the parts of queries over several components."""

    def __init__(
        self, exposure: Exposure, priors: Sequence[Prior], history: Sequence[ContextCounts]
    ) -> None:
        self.exposure = exposure
        needed = {place for q in exposure.questions if len(q.parts) > 1 for place in q.parts}
        self._levels = {
            (c, p): _levels(exposure.components[c], priors[c], history[c], p)
            for c, p in sorted(needed)
        }

    def stakes(self, weights: Stakes) -> list[Stakes]:
        """Return for each component the stakes of its parts, given those of the queries."""
        found = [np.zeros((len(component.parts), 2)) for component in self.exposure.components]
        for question, (reward, penalty) in zip(self.exposure.questions, weights, strict=True):
            for place in question.parts:
                own = reward, penalty
                if len(question.parts) > 1:
                    others = [self._levels[other] for other in question.parts if other != place]
                    combine = _all if question.every else _any
                    scale = reward + penalty
                    caution = penalty / scale if scale else 0.5
                    own = tuple(scale * part for part in combine(others[:_OTHERS], caution))
                found[place[0]][place[1]] = own
        return found


def _all(others: Sequence[Levels], caution: float) -> tuple[float, float]:
    """Return the stakes in an AND: with the others at p, a true yes earns p - caution."""
    reward = penalty = 0.0
    for combination in product(*others):
        likely, often = prod(p for p, _ in combination), prod(w for _, w in combination)
        if likely > caution:
            reward += often * (likely - caution)
            penalty += often * caution
    return reward, penalty


def _any(others: Sequence[Levels], caution: float) -> tuple[float, float]:
    """Return the stakes in an OR: with the others at p, a false yes costs caution - p."""
    reward = penalty = 0.0
    for combination in product(*others):
        likely = 1 - prod(1 - p for p, _ in combination)
        often = prod(w for _, w in combination)
        if likely < caution:
            reward += often * (1 - caution)
            penalty += often * (caution - likely)
    return reward, penalty


def _levels(component: Component, prior: Prior, history: ContextCounts, number: int) -> Levels:
    """Return the possible posteriors of a part: 0 or 1 if decided, else by a noisy answer."""
    part = component.parts[number]
    own = set(part.variables)
    epsilon = min(
        float(pattern.epsilon)
        for pattern, changed in zip(component.patterns, component.changes, strict=True)
        if not changed.isdisjoint(own)
    )
    sure = is_open = closed = true = 0.0
    for signals, windows in history.most_common(_CONTEXTS):
        values = np.concatenate([[False, True], signals])[list(part.cofactors)]
        if values.all():
            sure += windows
        elif values.any():
            is_open += windows
            true += windows * float(
                prior.choice_probabilities(signals, list(part.variables))[values].sum()
            )
        else:
            closed += windows
    total = (sure + is_open + closed) or 1.0
    if not is_open:
        is_open, true = total - sure - closed or 1.0, 0.5
    rate = min(max(true / is_open, 1e-6), 1 - 1e-6)
    ratio = exp(min(epsilon, 40.0))
    said = (rate * ratio + 1 - rate) / (1 + ratio)
    share = is_open / total
    return [
        (1.0, sure / total),
        (rate * ratio / (rate * ratio + 1 - rate), share * said),
        (rate / (rate + (1 - rate) * ratio), share * (1 - said)),
        (0.0, closed / total),
    ]
