"""What single answers tell about the truth: weights whose sum is an unbiased count.

Two things of an answer are released: yes or no, and its confidence. Together they are the answer's
*level*. In a context, a mechanism's table says how likely each level is for each class of private
events. A weight for each level is unbiased if, for every class, the expected weight is 1 where the
query is true and 0 where it is false. That is a system of linear equations over all contexts. If
it has no solution, the answers do not identify counts: other private events with the same truth
would give other answers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_EXACT: Final = 1e-7
"""Expected weights that differ from the truth by less than this solve the equations."""
_LARGEST: Final = 1e4
"""Weights above this come from channels that reveal next to nothing."""


class AnswerTable(NamedTuple):
    """The answers to a query in a context, from the integers of the audited channel."""

    probabilities: Floats
    """`[class][output]`"""
    truth: NDArray[np.bool_]
    """`[class]`: whether the query is true."""
    detected: NDArray[np.bool_]
    """`[output]`: the answer."""
    confidence: Floats
    """`[output]`: how likely this answer is right."""

    @property
    def levels(self) -> NDArray[np.uint64]:
        """`[output]`: the number of its level."""
        return number_levels(self.detected, self.confidence.astype(np.float32))


class AnswerWeights(NamedTuple):
    """The weight of each level that identifies the truth, sorted by level."""

    levels: NDArray[np.uint64]
    weights: Floats
    variances: Floats
    """The expected value is the variance of the weight, whatever the truth is."""


def number_levels(
    detected: NDArray[np.bool_], confidence: NDArray[np.float32]
) -> NDArray[np.uint64]:
    """Return a number for each combination of answer and confidence; it has 33 bits."""
    bits = np.ascontiguousarray(confidence, np.float32).view(np.uint32).astype(np.uint64)
    return bits | (detected.astype(np.uint64) << np.uint64(32))


def weigh_answers(tables: Iterable[AnswerTable]) -> AnswerWeights:
    """Find the weights of all levels that identify the truth.

    >>> table = AnswerTable(np.array([[0.75, 0.25], [0.25, 0.75]]), np.array([False, True]),
    ...                     np.array([False, True]), np.array([0.9, 0.6]))
    >>> found = weigh_answers([table])
    >>> [round(weight, 9) for weight in found.weights.tolist()]
    [-0.5, 1.5]
    """
    solved = [found for found in map(_solve, _link(tables)) if found is not None]
    if not solved:
        return AnswerWeights(np.empty(0, np.uint64), np.empty(0), np.empty(0))
    levels = np.concatenate([found.levels for found in solved])
    weights = np.concatenate([found.weights for found in solved])
    variances = np.concatenate([found.variances for found in solved])
    order = np.argsort(levels)
    return AnswerWeights(levels[order], weights[order], variances[order])


def _link(tables: Iterable[AnswerTable]) -> list[list[AnswerTable]]:
    """Group the tables that share levels; equal tables count once."""
    distinct = {
        (table.probabilities.tobytes(), table.truth.tobytes(), table.levels.tobytes()): table
        for table in tables
    }
    groups: list[tuple[set[int], list[AnswerTable]]] = []
    for table in distinct.values():
        levels, members = set(table.levels.tolist()), [table]
        apart = []
        for group in groups:
            if group[0].isdisjoint(levels):
                apart.append(group)
            else:
                levels |= group[0]
                members += group[1]
        groups = [*apart, (levels, members)]
    return [members for _, members in groups]


def _solve(tables: list[AnswerTable]) -> AnswerWeights | None:
    """Solve the equations of tables that share levels; None if there is no solution."""
    levels = np.unique(np.concatenate([table.levels for table in tables]))
    rows = []
    for table in tables:
        matrix = np.zeros((len(table.truth), len(levels)))
        np.add.at(matrix.T, np.searchsorted(levels, table.levels), table.probabilities.T)
        rows.append(matrix)
    system = np.concatenate(rows)
    truth = np.concatenate([table.truth for table in tables]).astype(np.float64)
    weights = _solve_linear(system, truth)
    # An answer with confidence 1 cannot be distinguished from one that public events decide.
    certain = levels & np.uint64(0xFFFFFFFF) == np.float32(1).view(np.uint32)
    if weights is None or certain.any():
        return None
    spread = np.maximum(0.0, system @ weights**2 - truth)
    variances = _solve_linear(system, spread)
    if variances is None:
        variances = np.full(len(levels), spread.max())
    return AnswerWeights(levels, weights, variances)


def _solve_linear(system: Floats, values: Floats) -> Floats | None:
    """Return the solution with the least expected square; None if there is none."""
    scale = np.sqrt(np.maximum(system.sum(axis=0), 1e-300))
    scaled = np.linalg.lstsq(system / scale, values, rcond=1e-12)[0]
    found: Floats = scaled / scale
    off = np.abs(system @ found - values).max(initial=0.0)
    scale_of_values = max(1.0, float(np.abs(values).max(initial=0.0)))
    if off > _EXACT * scale_of_values or np.abs(found).max(initial=0.0) > _LARGEST**2:
        return None
    return found
