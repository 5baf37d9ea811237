"""A small linear programme, solved where it stands: no call leaves compiled code.

`maximise` climbs from a basis that is known to be feasible. Nothing private rests on it: what
comes out of it is a wish, which is rounded and audited like any other.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tacit.kernels import compiled

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]

GAIN = 1e-10
"""A column that promises less than this is not worth entering; worths are about 1."""
_PIVOT = 1e-9
"""A smaller number in its place would blow up rounding errors."""
_TIE = 1e-12
_SLIP = 1e-9
"""A weight that is this far below nothing at the end is a mistake."""
_FRESH = 40
"""After so many exchanges the inverse is computed anew."""


@compiled
def maximise(
    columns: Floats,
    worth: Floats,
    laws: Indices,
    factors: Floats,
    right: Floats,
    basis: Indices,
    inverse: Floats,
    values: Floats,
    limit: int,
) -> bool:
    """Weights >= 0 of columns that sum to `right` and are worth most.

    The columns are the full ones, `[column][row]`, with their worth, and after them one for
    each of the laws, worth nothing: its factor in the law's first row and -1 in its second.
    `basis` names a column for each row, `inverse` undoes them and `values` are their weights;
    all three are carried on in place. Of several best columns the first enters. After a run of
    exchanges that change nothing, Bland's rule takes over, which cannot go round in circles.
    Says whether it arrived within `limit` exchanges.
    """
    standing = 0
    direction = np.empty(len(right))
    for turn in range(limit):
        if turn % _FRESH == _FRESH - 1 and not settle(
            columns, laws, factors, right, basis, inverse, values
        ):
            return False
        prices = dual_prices(worth, basis, inverse)
        careful = standing > len(right)
        enters = _entering(columns, worth, laws, factors, prices, careful)
        if enters < 0:
            settled = settle(columns, laws, factors, right, basis, inverse, values)
            return settled and values.min() > -_SLIP
        _look(columns, laws, factors, enters, inverse, direction)
        leaves = _leaving(direction, values, basis, careful)
        if leaves < 0:
            return False
        step = max(0.0, values[leaves] / direction[leaves])
        standing = 0 if step > _TIE else standing + 1
        _exchange(direction, leaves, step, inverse, values)
        basis[leaves] = enters
    return False


@compiled
def dual_prices(worth: Floats, basis: Indices, inverse: Floats) -> Floats:
    """What one more of each row's right-hand side would be worth."""
    prices = np.zeros(len(basis))
    for place in range(len(basis)):
        if basis[place] < len(worth):
            for row in range(len(basis)):
                prices[row] += worth[basis[place]] * inverse[place, row]
    return prices


@compiled
def _entering(
    columns: Floats,
    worth: Floats,
    laws: Indices,
    factors: Floats,
    prices: Floats,
    first: bool,
) -> int:
    """The column that promises most, or the first that promises anything; -1 for none."""
    best, chosen = GAIN, -1
    for column in range(len(columns)):
        gain = worth[column]
        for row in range(len(prices)):
            gain -= prices[row] * columns[column, row]
        if gain > best:
            best, chosen = gain, column
            if first:
                return chosen
    for law in range(len(laws)):
        gain = prices[laws[law, 1]] - factors[law] * prices[laws[law, 0]]
        if gain > best:
            best, chosen = gain, len(columns) + law
            if first:
                return chosen
    return chosen


@compiled
def _look(
    columns: Floats,
    laws: Indices,
    factors: Floats,
    enters: int,
    inverse: Floats,
    direction: Floats,
) -> None:
    """What one of the entering column takes from each weight."""
    law = enters - len(columns)
    for row in range(len(direction)):
        direction[row] = 0.0
        if law >= 0:
            direction[row] += factors[law] * inverse[row, laws[law, 0]]
            direction[row] -= inverse[row, laws[law, 1]]
        else:
            for other in range(len(direction)):
                direction[row] += inverse[row, other] * columns[enters, other]


@compiled
def _leaving(direction: Floats, values: Floats, basis: Indices, first: bool) -> int:
    """The place whose weight comes down to nothing first; -1 if none does."""
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


@compiled
def _exchange(direction: Floats, leaves: int, step: float, inverse: Floats, values: Floats) -> None:
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
def settle(
    columns: Floats,
    laws: Indices,
    factors: Floats,
    right: Floats,
    basis: Indices,
    inverse: Floats,
    values: Floats,
) -> bool:
    """Compute the inverse and the weights anew; False if the basis is no basis."""
    rows = len(right)
    work = np.zeros((rows, 2 * rows))
    whole = np.zeros((rows, rows))
    for place in range(rows):
        law = basis[place] - len(columns)
        if law >= 0:
            whole[laws[law, 0], place] += factors[law]
            whole[laws[law, 1], place] -= 1.0
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
    # The second round takes back what the first one's rounding left.
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
