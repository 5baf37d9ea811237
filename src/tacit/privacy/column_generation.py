"""Generate columns for a linear programme: columns that are worth more than their price.

For given decisions, the best valid column at given dual prices is itself the solution of a small
linear programme. The overall best column is not needed: any column worth more than its price
improves the programme.
"""

from __future__ import annotations

import numpy as np

from tacit.kernels import compiled, inlined
from tacit.privacy.simplex import Floats, Indices, dual_prices, maximise

_DECISIONS = 4
"""Up to this many queries, all decisions are tried; with more, those of columns in use."""
_STEPS = 8
"""How often the decisions of a column may change."""


@compiled
def count_starts(classes: int, queries: int) -> int:
    """Return the number of searches in a round."""
    return 2**queries if queries <= _DECISIONS else 2 * classes


@compiled
def find_columns(
    near: Floats,
    constraints: Indices,
    factors: Floats,
    gains: Floats,
    prices: Floats,
    least: float,
    columns: Floats,
    number: int,
    basis: Indices,
) -> tuple[int, int]:
    """Write columns worth more than their price after the first `number` columns.

    Return how many were written and how many were tried. For the best valid column of given
    decisions, other decisions may be better, and so on, with more gain in each step. The searches
    start with all decisions if these are few, otherwise with those of the columns in use and of
    single classes. `constraints` and their factors are those of `list_constraints`.
    """
    classes, queries = gains.shape
    gained = np.empty(queries)
    tried = np.empty(count_starts(classes, queries) * _STEPS, np.int64)
    found, count = 0, 0
    for start in range(count_starts(classes, queries)):
        if queries <= _DECISIONS:
            for query in range(queries):
                gained[query] = (start >> query) & 1
        elif start < classes:
            compute_gain(columns[basis[start]], gains, gained)
        else:
            compute_gain(near[start - classes], gains, gained)
        promised, count = _climb(
            near, constraints, factors, gains, prices, gained, columns[number + found], tried, count
        )
        if promised > least and not _is_known(columns, number, found):
            found += 1
    return found, count


@inlined
def _climb(
    near: Floats,
    constraints: Indices,
    factors: Floats,
    gains: Floats,
    prices: Floats,
    gained: Floats,
    column: Floats,
    tried: Indices,
    count: int,
) -> tuple[float, int]:
    """Write the column that decisions lead to, and return its worth beyond its price.

    Decisions that were tried before are skipped; the list of them grows.
    """
    promised = -np.inf
    value, candidate = np.empty(len(near)), np.empty(len(near))
    for _ in range(_STEPS):
        decided = _digest(gained)
        for other in range(count):
            if tried[other] == decided:
                return promised, count
        tried[count] = decided
        count += 1
        for row in range(len(near)):
            value[row] = -prices[row]
            for query in range(len(gained)):
                if gained[query] > 0:
                    value[row] += gains[row, query]
        if len(constraints) == 0:
            _solve_equidistant(near, value, candidate)
        else:
            _solve_general(near, constraints, factors, value, candidate)
        better = compute_gain(candidate, gains, gained)
        for row in range(len(near)):
            better -= prices[row] * candidate[row]
        if better <= promised:
            break
        promised = better
        for row in range(len(near)):
            column[row] = candidate[row]
    return promised, count


@inlined
def _digest(gained: Floats) -> int:
    """Return a hash of decisions. A collision only means that a column is missed."""
    number = 1
    for query in range(len(gained)):
        number = number * 6364136223846793005 + (1442695040888963407 if gained[query] > 0 else 1)
    return number


@inlined
def _is_known(columns: Floats, begin: int, found: int) -> bool:
    """Return whether the new column equals one that was found in this round."""
    for other in range(begin, begin + found):
        furthest = 0.0
        for row in range(columns.shape[1]):
            furthest = max(furthest, abs(columns[other, row] - columns[begin + found, row]))
        if furthest < 1e-12:
            return True
    return False


@compiled
def compute_gain(column: Floats, gains: Floats, gained: Floats) -> float:
    """Write what a yes to each query gains for a column's symbol; return the positive sum."""
    queries = len(gained)
    for query in range(queries):
        gained[query] = 0.0
    for row in range(len(column)):
        for query in range(queries):
            gained[query] += column[row] * gains[row, query]
    total = 0.0
    for query in range(queries):
        total += max(0.0, gained[query])
    return total


@compiled
def list_constraints(near: Floats, equidistant: bool) -> tuple[Indices, Floats]:
    """Return pairs of classes and factors: `column[first] * factor <= column[second]`.

    The first ones, with factor 0, say that no entry is negative. Constraints that follow from
    others are left out. If all classes are equally far apart, none are needed.
    """
    classes = 0 if equidistant else len(near)
    constraints, factors = np.zeros((classes * classes, 2), np.int64), np.zeros(classes * classes)
    for row in range(classes):
        constraints[row, 1] = row
    number = classes
    for row in range(classes):
        for other in range(classes):
            if row != other and not _is_implied(near, row, other):
                constraints[number, 0], constraints[number, 1] = row, other
                factors[number] = near[row, other]
                number += 1
    return constraints[:number], factors[:number]


@inlined
def _is_implied(near: Floats, row: int, other: int) -> bool:
    """Return whether the constraint between two classes follows from others, or is void."""
    if near[row, other] == 0.0:
        return True
    for between in range(len(near)):
        way = near[row, between] * near[between, other]
        if between != row and between != other and way >= near[row, other] * (1 - 1e-12):
            return True
    return False


@inlined
def _find_highest(value: Floats) -> int:
    """Return the place of the highest value; NumPy's functions take longer to compile."""
    top = 0
    for row in range(1, len(value)):
        if value[row] > value[top]:
            top = row
    return top


@inlined
def _solve_equidistant(near: Floats, value: Floats, column: Floats) -> None:
    """Write the valid column with the highest value, if all classes are equally far apart."""
    average = -np.inf
    # Raising an entry pays if its value is above the column's average.
    while value[_find_highest(value)] > average:
        top, total = 0.0, 0.0
        for row in range(len(value)):
            column[row] = 1.0 if value[row] > average else near[0, 1]
            top += value[row] * column[row]
            total += column[row]
        for row in range(len(value)):
            column[row] /= total
        if top / total <= average:
            break
        average = top / total


@inlined
def _solve_general(
    near: Floats, constraints: Indices, factors: Floats, value: Floats, column: Floats
) -> None:
    """Write the valid column with sum 1 and the highest value, where `value` is per entry.

    This solves the dual programme.
    """
    classes = len(value)
    top = _find_highest(value)
    lowest = value[top]
    for row in range(classes):
        lowest = min(lowest, value[row])
    right = np.empty(classes)
    basis = np.empty(classes, np.int64)
    inverse, values = np.zeros((classes, classes)), np.empty(classes)
    for row in range(classes):
        # Shift all values so that the price is positive; every column's value shifts equally.
        right[row] = value[row] - lowest + 1.0
        basis[row] = 1 + row
        inverse[row, row] = -1.0
        inverse[row, top] = 1.0
        values[row] = value[top] - value[row]
    basis[top] = 0
    values[top] = right[top]
    full, worth = np.ones((1, classes)), -np.ones(1)
    maximise(full, worth, constraints, factors, right, basis, inverse, values, 50 * classes)
    prices = dual_prices(worth, basis, inverse)
    # Rounding or an aborted search may break a constraint: raise the entries that are too small.
    total = 0.0
    for row in range(classes):
        column[row] = 0.0
        for other in range(classes):
            column[row] = max(column[row], -prices[other] * near[other, row])
        total += column[row]
    for row in range(classes):
        column[row] = column[row] / total if total > 0 else 1.0 / classes
