"""Find the mixture of channel columns with the highest utility.

A column says how likely its symbol is in each class. It is valid if no class has more than
exp(distance) times what another class has. The utility of a column is convex, so the best mixture
consists of extreme columns. If all classes are equally far apart, the extreme columns are known:
exp(-distance to a set), for every set of classes. Otherwise, or if there are too many sets, columns
are generated: for given decisions and dual prices, the best valid column is itself a small linear
programme (see `column_generation`).
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from tacit.kernels import compiled
from tacit.privacy.column_generation import (
    compute_gain,
    count_starts,
    find_columns,
    list_constraints,
)
from tacit.privacy.simplex import Floats, Indices, dual_prices, maximise, refactorise

Mixture: TypeAlias = tuple[Floats, Floats, Indices, Floats, bool]
"""Columns, their worth, the columns in use, their weights, and whether a mixture was found."""
_LISTED = 10
"""Up to this many classes, the columns of all sets of classes are listed."""
_LISTED_UNEVEN = 12
"""The same if classes are not equally far apart, where generating columns takes longer."""
_PIVOTS, _PIVOTS_PER_CLASS = 200, 20
"""The largest number of pivots of one solution."""
_ROUNDS = 200
"""The largest number of rounds in which columns are generated."""
_PATIENCE = 25
"""The search stops if this many rounds bring no improvement."""
_EFFORT = 100_000_000
"""A bound on the work, in multiplications: about a second."""
_CLOSE = 1e-4
"""The mixture is good enough if no column can add more than this share."""
_APART = 1e-6
"""While columns are generated, the sums of classes differ by about this."""
_SLIP = 1e-5
"""A final weight below minus this is an error."""
_LEAST = 1e-9
"""A column must be worth more than its price by at least this."""


def find_best_mixture(near: Floats, gains: Floats) -> Mixture:
    """Return columns `[symbol][class]`, their worth, those in use, their weights, and success.

    `near` is exp(-distance) between classes, at most 1 - 1e-7 for different ones. `gains`,
    `[class][query]`, is what a yes gains there; the absolute gains sum to about 1.
    """
    equidistant = _is_equidistant(near)
    if equidistant and len(gains) <= _LISTED:
        return _mix_all_sets(near, gains)
    return _generate_columns(near, gains, equidistant)


def _mix_all_sets(near: Floats, gains: Floats) -> Mixture:
    """Mix the columns of all sets; of classes that are equally far apart there are no others."""
    classes = len(gains)
    columns = np.empty((2**classes - 1, classes))
    worth, contrasts = np.empty(len(columns)), np.empty_like(columns)
    basis = np.empty(classes, np.int64)
    _write_all_sets(near, columns, basis)
    nearest, scales = _find_nearest(near)
    _evaluate(columns, gains, nearest, scales, worth, contrasts)
    right = _compute_right_sides(nearest, scales, 0.0)
    inverse, values = np.empty((classes, classes)), np.empty(classes)
    constraints, factors = np.empty((0, 2), np.int64), np.empty(0)
    limit = _PIVOTS + _PIVOTS_PER_CLASS * classes
    solved = refactorise(
        contrasts, constraints, factors, right, basis, inverse, values
    ) and maximise(contrasts, worth, constraints, factors, right, basis, inverse, values, limit)
    return columns, worth, basis, values, solved


def _generate_columns(near: Floats, gains: Floats, equidistant: bool) -> Mixture:
    """Mix few columns or those of all sets, and generate others that are worth their price.

    The loop is in Python: as one kernel it took long to compile, and its steps are long.
    """
    classes, queries = gains.shape
    listed = not equidistant and classes <= _LISTED_UNEVEN
    number = 2**classes - 1 if listed else 2 * classes + 1 + 2 * min(classes, queries)
    columns = np.empty((number + _ROUNDS * count_starts(classes, queries), classes))
    worth, contrasts = np.empty(len(columns)), np.empty_like(columns)
    basis = np.empty(classes, np.int64)
    if listed:
        _write_all_sets(near, columns, basis)
    else:
        _write_few_sets(near, gains, columns, basis)
    nearest, scales = _find_nearest(near)
    _evaluate(columns[:number], gains, nearest, scales, worth[:number], contrasts[:number])
    right = _compute_right_sides(nearest, scales, 0.0 if listed else _APART)
    inverse, values = np.empty((classes, classes)), np.empty(classes)
    none: tuple[Indices, Floats] = np.empty((0, 2), np.int64), np.empty(0)
    state = (*none, right, basis, inverse, values)
    limit = _PIVOTS + _PIVOTS_PER_CLASS * classes
    solved = refactorise(contrasts, *state) and maximise(
        contrasts[:number], worth[:number], *state, limit
    )
    constraints: tuple[Indices, Floats] | None = None
    # If each class is known exactly, it has this utility: at these prices no column pays.
    centre = np.maximum(gains, 0.0).cumsum(axis=1)[:, -1]
    effort, toll = 0, classes * queries + (0 if equidistant else classes**3)
    before = -np.inf
    for turn in range(_ROUNDS):
        prices = _compute_prices(worth, basis, inverse, nearest, scales)
        close = centre.sum() - prices.sum() <= _CLOSE * centre.sum()
        if close or not solved or effort > _EFFORT:
            break
        if turn % _PATIENCE == 0:
            if prices.sum() <= before * (1 + _CLOSE):
                break
            before = prices.sum()
        least = max(_LEAST, _CLOSE / classes * prices.sum())
        if not listed:
            # With few columns, prices vary widely. So search half-way to prices at which no
            # column pays. A column that pays there also pays at the original prices; if none
            # does, the gap has halved.
            prices = (prices + centre) / 2
        constraints = constraints or list_constraints(near, equidistant)
        found, tried = find_columns(
            near, *constraints, gains, prices, least, columns, number, basis
        )
        effort += tried * toll
        if found == 0:
            centre = prices
            continue
        added = slice(number, number + found)
        _evaluate(columns[added], gains, nearest, scales, worth[added], contrasts[added])
        number += found
        solved = maximise(contrasts[:number], worth[:number], *state, limit)
    if solved and not listed:
        right[:] = _compute_right_sides(nearest, scales, 0.0)
        solved = refactorise(contrasts, *state) and values.min() > -_SLIP
    return columns[:number], worth[:number], basis, values, solved


@compiled
def _compute_right_sides(nearest: Indices, scales: Floats, apart: float) -> Floats:
    """Return the contrasts of the classes' sums: 1 each, or slightly more and all different.

    If all are 1, few columns have a weight, and most pivots change nothing: the search for columns
    would follow prices that mean little.
    """
    sums = np.empty(len(nearest))
    for row in range(len(sums)):
        sums[row] = 1.0 + apart * (1.0 + (row * 0.6180339887498949) % 1.0)
    right = sums.copy()
    for row in range(len(sums)):
        if nearest[row] >= 0:
            right[row] = (sums[row] - sums[nearest[row]]) * scales[row]
    return right


@compiled
def _find_nearest(near: Floats) -> tuple[Indices, Floats]:
    """Return for each class the nearest class taken before it, and the scale of its contrast.

    Classes are taken by nearness, as in Prim's algorithm, starting with class 0.
    """
    classes = len(near)
    nearest, scales = np.full(classes, -1), np.ones(classes)
    taken = np.zeros(classes, np.bool_)
    taken[0] = True
    for _ in range(classes - 1):
        best, chosen = -1.0, 0
        for row in range(classes):
            for other in range(classes):
                if not taken[row] and taken[other] and near[row, other] > best:
                    best, chosen = near[row, other], row
                    nearest[row] = other
        taken[chosen] = True
        scales[chosen] = 1 / (1 - best)
    return nearest, scales


@compiled
def _evaluate(
    columns: Floats,
    gains: Floats,
    nearest: Indices,
    scales: Floats,
    worth: Floats,
    contrasts: Floats,
) -> None:
    """Write the worth of columns, and the columns as contrasts.

    A query is answered yes where that gains something. Contrasts are differences between classes
    and their nearest, scaled to about 1: rows of two close classes are nearly equal, which makes
    the equations ill-conditioned. Their differences carry the same information and are
    well-conditioned.
    """
    gained = np.empty(gains.shape[1])
    for column in range(len(columns)):
        worth[column] = compute_gain(columns[column], gains, gained)
        for row in range(len(nearest)):
            contrasts[column, row] = columns[column, row]
            if nearest[row] >= 0:
                contrasts[column, row] -= columns[column, nearest[row]]
                contrasts[column, row] *= scales[row]


@compiled
def _compute_prices(
    worth: Floats, basis: Indices, inverse: Floats, nearest: Indices, scales: Floats
) -> Floats:
    """Return the dual prices of classes, from those of contrasts."""
    prices = dual_prices(worth, basis, inverse)
    found = np.zeros(len(prices))
    for row in range(len(prices)):
        found[row] += prices[row] * scales[row]
        if nearest[row] >= 0:
            found[nearest[row]] -= prices[row] * scales[row]
    return found


def _is_equidistant(near: Floats) -> bool:
    """Whether all classes are equally far apart."""
    if len(near) < 2:
        return True
    differs = np.abs(near - near[0, 1]) > 1e-14
    np.fill_diagonal(differs, val=False)
    return not differs.any()


@compiled
def _write_all_sets(near: Floats, columns: Floats, basis: Indices) -> None:
    """Write the columns of all nonempty sets of classes; set number n is column n - 1.

    Also write the first basis, here and below: the sets of all classes but one. Weights of these
    that make every class's sum 1 are all positive.
    """
    classes = len(near)
    for last in range(classes):
        begin = 2**last - 1
        for row in range(classes):
            columns[begin, row] = near[last, row]
            for smaller in range(begin):
                columns[begin + 1 + smaller, row] = max(columns[smaller, row], near[last, row])
        basis[last] = 2**classes - 2 - 2**last


@compiled
def _write_few_sets(near: Floats, gains: Floats, columns: Floats, basis: Indices) -> None:
    """Write the columns of some sets: all classes but one, single classes, and all classes.

    For each of the first queries, also the classes where a yes gains, and the others.
    """
    classes = len(near)
    for row in range(classes):
        for other in range(classes):
            columns[row, other] = 1.0
            columns[classes + row, other] = near[row, other]
        columns[row, row] = 0.0
        for other in range(classes):
            if other != row:
                columns[row, row] = max(columns[row, row], near[other, row])
        columns[2 * classes, row] = 1.0
        basis[row] = row
    for query in range(min(classes, gains.shape[1])):
        for row in range(classes):
            good = 2 * classes + 1 + 2 * query
            columns[good, row] = columns[good + 1, row] = 0.0
            for other in range(classes):
                kind = good if gains[other, query] > 0 else good + 1
                columns[kind, row] = max(columns[kind, row], near[other, row])
