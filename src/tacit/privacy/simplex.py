"""A revised simplex method for small linear programmes, callable from compiled code.

`maximise` starts from a feasible basis. Privacy does not depend on it: its result is rounded and
audited like any other table.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tacit.kernels import compiled, inlined

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]

GAIN = 1e-10
"""A column enters only if it gains more than this; worths are about 1."""
_PIVOT = 1e-9
"""A smaller pivot would amplify rounding errors."""
_TIE = 1e-12
_SLIP = 1e-9
"""A final weight below minus this is an error."""
_FRESH = 40
"""The inverse is recomputed after this many pivots."""


@compiled
def maximise(
    columns: Floats,
    worth: Floats,
    constraints: Indices,
    factors: Floats,
    right: Floats,
    basis: Indices,
    inverse: Floats,
    values: Floats,
    limit: int,
) -> bool:
    """Find weights >= 0 of columns that sum to `right` and have the highest worth.

    The columns are the dense ones, `[column][row]`, with their worth, followed by one for each
    constraint, with worth 0: its factor in the constraint's first row and -1 in its second.
    `basis` has a column for each row, `inverse` is the inverse of these columns, and `values` are
    their weights; all three are updated in place. Of several best columns the first enters. After
    a run of pivots without progress, Bland's rule takes over, which cannot cycle. Return whether
    the optimum was reached within `limit` pivots.
    """
    stalled = 0
    direction = np.empty(len(right))
    for turn in range(limit):
        if turn % _FRESH == _FRESH - 1 and not refactorise(
            columns, constraints, factors, right, basis, inverse, values
        ):
            return False
        prices = dual_prices(worth, basis, inverse)
        careful = stalled > len(right)
        enters = _choose_entering(columns, worth, constraints, factors, prices, careful)
        if enters < 0:
            solved = refactorise(columns, constraints, factors, right, basis, inverse, values)
            for row in range(len(values)):
                solved = solved and values[row] > -_SLIP
            return solved
        _compute_direction(columns, constraints, factors, enters, inverse, direction)
        leaves = _choose_leaving(direction, values, basis, careful)
        if leaves < 0:
            return False
        step = max(0.0, values[leaves] / direction[leaves])
        stalled = 0 if step > _TIE else stalled + 1
        _pivot(direction, leaves, step, inverse, values)
        basis[leaves] = enters
    return False


@compiled
def dual_prices(worth: Floats, basis: Indices, inverse: Floats) -> Floats:
    """Return the dual price of each row."""
    prices = np.zeros(len(basis))
    for place in range(len(basis)):
        if basis[place] < len(worth):
            for row in range(len(basis)):
                prices[row] += worth[basis[place]] * inverse[place, row]
    return prices


@inlined
def _choose_entering(
    columns: Floats,
    worth: Floats,
    constraints: Indices,
    factors: Floats,
    prices: Floats,
    first: bool,
) -> int:
    """Return the column with the largest reduced gain, or the first with any; -1 if none."""
    best, chosen = GAIN, -1
    for column in range(len(columns)):
        gain = worth[column]
        for row in range(len(prices)):
            gain -= prices[row] * columns[column, row]
        if gain > best:
            best, chosen = gain, column
            if first:
                return chosen
    for constraint in range(len(constraints)):
        gain = (
            prices[constraints[constraint, 1]]
            - factors[constraint] * prices[constraints[constraint, 0]]
        )
        if gain > best:
            best, chosen = gain, len(columns) + constraint
            if first:
                return chosen
    return chosen


@inlined
def _compute_direction(
    columns: Floats,
    constraints: Indices,
    factors: Floats,
    enters: int,
    inverse: Floats,
    direction: Floats,
) -> None:
    """Write by how much each weight falls per unit of the entering column."""
    constraint = enters - len(columns)
    for row in range(len(direction)):
        direction[row] = 0.0
        if constraint >= 0:
            direction[row] += factors[constraint] * inverse[row, constraints[constraint, 0]]
            direction[row] -= inverse[row, constraints[constraint, 1]]
        else:
            for other in range(len(direction)):
                direction[row] += inverse[row, other] * columns[enters, other]


@inlined
def _choose_leaving(direction: Floats, values: Floats, basis: Indices, first: bool) -> int:
    """Return the place whose weight reaches 0 first; -1 if none does."""
    chosen, least = -1, np.inf
    for row in range(len(direction)):
        if direction[row] <= _PIVOT:
            continue
        ratio = max(0.0, values[row]) / direction[row]
        if chosen < 0 or ratio < least - _TIE:
            chosen, least = row, ratio
        elif ratio <= least + _TIE:
            better = basis[row] < basis[chosen] if first else direction[row] > direction[chosen]
            if better:
                chosen, least = row, min(least, ratio)
    return chosen


@inlined
def _pivot(direction: Floats, leaves: int, step: float, inverse: Floats, values: Floats) -> None:
    rows = len(direction)
    for other in range(rows):
        inverse[leaves, other] /= direction[leaves]
    for row in range(rows):
        if row != leaves:
            values[row] -= step * direction[row]
            for other in range(rows):
                inverse[row, other] -= direction[row] * inverse[leaves, other]
    values[leaves] = step


@compiled
def refactorise(
    columns: Floats,
    constraints: Indices,
    factors: Floats,
    right: Floats,
    basis: Indices,
    inverse: Floats,
    values: Floats,
) -> bool:
    """Recompute the inverse and the weights; return False if the basis is singular."""
    rows = len(right)
    work = np.zeros((rows, 2 * rows))
    whole = np.zeros((rows, rows))
    for place in range(rows):
        constraint = basis[place] - len(columns)
        if constraint >= 0:
            whole[constraints[constraint, 0], place] += factors[constraint]
            whole[constraints[constraint, 1], place] -= 1.0
        else:
            for row in range(rows):
                whole[row, place] = columns[basis[place], row]
        for row in range(rows):
            work[row, place] = whole[row, place]
        work[place, rows + place] = 1.0
    for pivot in range(rows):
        best = pivot
        for row in range(pivot + 1, rows):
            if abs(work[row, pivot]) > abs(work[best, pivot]):
                best = row
        if abs(work[best, pivot]) < 1e-300:
            return False
        for other in range(2 * rows):
            held = work[pivot, other]
            work[pivot, other] = work[best, other]
            work[best, other] = held
        scale = work[pivot, pivot]
        for other in range(2 * rows):
            work[pivot, other] /= scale
        for row in range(rows):
            factor = work[row, pivot]
            if row != pivot and factor != 0.0:
                for other in range(2 * rows):
                    work[row, other] -= factor * work[pivot, other]
    for place in range(rows):
        values[place] = 0.0
        for row in range(rows):
            inverse[place, row] = work[place, rows + row]
    # The second round corrects the rounding error of the first.
    lacking = np.empty(rows)
    for _ in range(2):
        for row in range(rows):
            lacking[row] = right[row]
            for place in range(rows):
                lacking[row] -= values[place] * whole[row, place]
        for place in range(rows):
            for row in range(rows):
                values[place] += inverse[place, row] * lacking[row]
    return True
