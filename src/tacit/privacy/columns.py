"""Columns of a channel, and the mixture of them that is worth most.

A column says how likely its symbol is in each class. It is lawful if no class has more than
exp(distance) times what another has. What it is worth is convex, so the best mixture is one of
extreme columns. Where all classes are equally far apart these are known: exp(-distance to a
set), for every set of classes. Elsewhere, and where there are too many sets, further columns
are found as the linear programme asks for them: for given decisions, the lawful column that
its prices promise most for is itself a small linear programme.
"""

from __future__ import annotations

import numpy as np

from tacit.kernels import compiled
from tacit.privacy.pricing import gain, starts, wanted
from tacit.privacy.simplex import Floats, Indices, dual_prices, maximise, settle

_LISTED = 10
"""With so many classes, the columns of all sets of classes are listed."""
_LISTED_UNEVEN = 12
"""With so many, if they are not equally far apart, where finding columns takes longer."""
_ROUNDS = 200
"""How often new columns are asked for, at most."""
_PATIENCE = 25
"""After so many rounds, something must have been gained."""
_EFFORT = 100_000_000
"""How much work may be put into it, in multiplications: about a second."""
_CLOSE = 1e-4
"""Where no column can add more than this share, the mixture is good enough."""
_LEAST = 1e-9
"""A column that promises less than this beyond its price is not wanted."""


@compiled
def best_mixture(near: Floats, gains: Floats) -> tuple[Floats, Floats, Indices, Floats, bool]:
    """Columns `[symbol][class]`, their worth, those in use, their weights, and whether it is best.

    `near` is exp(-distance) between classes, at most 1 - 1e-7 for different ones; `gains`,
    `[class][query]`, is what a yes gains there, all together about 1.
    """
    classes, queries = gains.shape
    level = _is_level(near)
    listed = classes <= (_LISTED if level else _LISTED_UNEVEN)
    number = 2**classes - 1 if listed else 2 * classes + 1 + 2 * min(classes, queries)
    rounds = 0 if listed and level else _ROUNDS
    columns = np.empty((number + rounds * starts(classes, queries), classes))
    worth = np.empty(len(columns))
    basis = np.empty(classes, np.int64)
    _begin(near, gains, listed, columns, basis)
    nearest, scales = _nearest(near)
    contrasts = np.empty_like(columns)
    _value(columns, gains, worth, 0, number)
    _contrast(columns, nearest, scales, contrasts, 0, number)
    right, centre = np.zeros(classes), _full_knowledge(gains)
    right[0] = 1.0
    inverse, values = np.empty((classes, classes)), np.empty(classes)
    laws, factors = np.empty((0, 2), np.int64), np.empty(0)
    limit = 200 + 20 * classes
    well = settle(contrasts, laws, factors, right, basis, inverse, values) and maximise(
        contrasts[:number], worth[:number], laws, factors, right, basis, inverse, values, limit
    )
    effort, toll = 0, classes * queries + (0 if level else classes**3)
    before = -np.inf
    for turn in range(rounds):
        prices = _prices_of_classes(dual_prices(worth, basis, inverse), nearest, scales)
        close = centre.sum() - prices.sum() <= _CLOSE * centre.sum()
        if close or not well or effort > _EFFORT:
            break
        if turn % _PATIENCE == 0:
            if prices.sum() <= before * (1 + _CLOSE):
                break
            before = prices.sum()
        least = max(_LEAST, _CLOSE / classes * prices.sum())
        if not listed:
            # Prices of few columns are wild. Half-way to prices at which nothing is wanted, what
            # is wanted is wanted at the wild ones too, and if nothing is, the gap has halved.
            prices = (prices + centre) / 2
        found, tried = wanted(near, level, gains, prices, least, columns, number, basis)
        effort += tried * toll
        if found == 0:
            centre = prices
            continue
        _value(columns, gains, worth, number, number + found)
        _contrast(columns, nearest, scales, contrasts, number, number + found)
        number += found
        well = maximise(
            contrasts[:number], worth[:number], laws, factors, right, basis, inverse, values, limit
        )
    return columns[:number], worth[:number], basis, values, well


@compiled
def _nearest(near: Floats) -> tuple[Indices, Floats]:
    """For each class the nearest of those taken before it, and how much a contrast is stretched.

    Classes are taken by nearness, from the first on, which has nothing to be compared with.
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
def _contrast(
    columns: Floats, nearest: Indices, scales: Floats, contrasts: Floats, begin: int, end: int
) -> None:
    """Columns as differences between classes and their nearest, stretched to about 1.

    Rows of two classes that are hard to tell apart are nearly the same, and equations with such
    rows are hard to solve. Their differences say the same, and are easy.
    """
    for column in range(begin, end):
        for row in range(len(nearest)):
            contrasts[column, row] = columns[column, row]
            if nearest[row] >= 0:
                contrasts[column, row] -= columns[column, nearest[row]]
                contrasts[column, row] *= scales[row]


@compiled
def _prices_of_classes(prices: Floats, nearest: Indices, scales: Floats) -> Floats:
    """Prices of classes that come to the same as these prices of contrasts."""
    found = np.zeros(len(prices))
    for row in range(len(prices)):
        found[row] += prices[row] * scales[row]
        if nearest[row] >= 0:
            found[nearest[row]] -= prices[row] * scales[row]
    return found


@compiled
def _begin(near: Floats, gains: Floats, listed: bool, columns: Floats, basis: Indices) -> None:
    """Write the first columns, and the basis: the sets of all classes but one.

    Weights of these that make every class's sum 1 are all positive.
    """
    if listed:
        _all_sets(near, columns)
    else:
        _few_sets(near, gains, columns)
    for row in range(len(near)):
        basis[row] = 2 ** len(near) - 2 - 2**row if listed else row


@compiled
def _full_knowledge(gains: Floats) -> Floats:
    """What each class is worth to those who know it: prices at which no column is wanted."""
    prices = np.zeros(len(gains))
    for row in range(len(gains)):
        for query in range(gains.shape[1]):
            prices[row] += max(0.0, gains[row, query])
    return prices


@compiled
def _is_level(near: Floats) -> bool:
    """Whether all classes are equally far apart."""
    for row in range(len(near)):
        for other in range(len(near)):
            if row != other and abs(near[row, other] - near[0, 1]) > 1e-14:
                return False
    return True


@compiled
def _all_sets(near: Floats, columns: Floats) -> None:
    """The column of every set of classes but the empty one; set number n is column n - 1."""
    classes = len(near)
    for last in range(classes):
        begin = 2**last - 1
        for row in range(classes):
            columns[begin, row] = near[last, row]
            for smaller in range(begin):
                columns[begin + 1 + smaller, row] = max(columns[smaller, row], near[last, row])


@compiled
def _few_sets(near: Floats, gains: Floats, columns: Floats) -> None:
    """The columns of all classes but one, of one class each, of all, and of answers.

    For each query, of the first so many, the classes where a yes gains, and the others.
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
    for query in range(min(classes, gains.shape[1])):
        for row in range(classes):
            good = 2 * classes + 1 + 2 * query
            columns[good, row] = columns[good + 1, row] = 0.0
            for other in range(classes):
                kind = good if gains[other, query] > 0 else good + 1
                columns[kind, row] = max(columns[kind, row], near[other, row])


@compiled
def _value(columns: Floats, gains: Floats, worth: Floats, begin: int, end: int) -> None:
    """What columns are worth: a query is answered yes where that gains something."""
    gained = np.empty(gains.shape[1])
    for column in range(begin, end):
        worth[column] = gain(columns[column], gains, gained)
