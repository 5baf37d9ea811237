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
from tacit.privacy.simplex import Floats, Indices, dual_prices, maximise, settle

_LISTED = 10
"""With so many classes, the columns of all sets of classes are listed."""
_LISTED_UNEVEN = 12
"""With so many, if they are not equally far apart, where finding columns takes longer."""
_DECISIONS = 4
"""With so many queries, all decisions are tried; with more, those of columns in use."""
_ROUNDS = 200
"""How often new columns are asked for, at most."""
_EFFORT = 250_000_000
"""And for so many columns, times the third power of classes: about two seconds."""
_STEPS = 8
"""How often a column may change its decisions."""
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
    classes = len(near)
    level = _is_level(near)
    listed = classes <= (_LISTED if level else _LISTED_UNEVEN)
    asked = min(classes, gains.shape[1])
    number = 2**classes - 1 if listed else 2 * classes + 1 + 2 * asked
    rounds = 0 if listed and level else _ROUNDS
    columns = np.empty((number + rounds * _starts(classes, gains.shape[1]), classes))
    worth = np.empty(len(columns))
    if listed:
        _all_sets(near, columns)
    else:
        _few_sets(near, gains[:, :asked], columns)
    _value(columns, gains, worth, 0, number)
    basis = np.empty(classes, np.int64)
    for row in range(classes):
        # The sets of all classes but one: weights of these that sum to 1 are all positive.
        basis[row] = 2**classes - 2 - 2**row if listed else row
    right, center = np.ones(classes), _full_knowledge(gains)
    inverse, values = np.empty((classes, classes)), np.empty(classes)
    laws, factors = np.empty((0, 2), np.int64), np.empty(0)
    well = settle(columns, laws, factors, right, basis, inverse, values)
    limit = 200 + 20 * classes
    well = well and maximise(
        columns[:number], worth[:number], laws, factors, right, basis, inverse, values, limit
    )
    effort = 0
    for _ in range(rounds):
        prices = dual_prices(worth, basis, inverse)
        close = center.sum() - prices.sum() <= _CLOSE * center.sum()
        if close or not well or effort * classes**3 > _EFFORT:
            break
        least = max(_LEAST, _CLOSE / classes * prices.sum())
        if not listed:
            # Prices of few columns are wild. Half-way to prices at which nothing is wanted, what
            # is wanted is wanted at the wild ones too, and if nothing is, the gap has halved.
            prices = (prices + center) / 2
        found, tried = _wanted(near, level, gains, prices, least, columns, number, basis)
        effort += tried
        if found == 0:
            center = prices
            continue
        _value(columns, gains, worth, number, number + found)
        number += found
        well = maximise(
            columns[:number], worth[:number], laws, factors, right, basis, inverse, values, limit
        )
    return columns[:number], worth[:number], basis, values, well


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

    For each query, the classes where a yes gains, and those where it does not.
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
    for query in range(gains.shape[1]):
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
        worth[column] = _gain(columns[column], gains, gained)


@compiled
def _gain(column: Floats, gains: Floats, gained: Floats) -> float:
    """What a yes to each query gains where a column's symbol comes, and the good ones' sum."""
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
def _starts(classes: int, queries: int) -> int:
    """How many columns are looked for in a round."""
    return 2**queries if queries <= _DECISIONS else 2 * classes


@compiled
def _wanted(
    near: Floats,
    level: bool,
    gains: Floats,
    prices: Floats,
    least: float,
    columns: Floats,
    number: int,
    basis: Indices,
) -> tuple[int, int]:
    """Write columns worth more than these prices after the first `number`; how many, of how many.

    The best lawful column for given decisions may deserve other decisions, and so on, each
    step promising more. It begins with all decisions, if they are few, or with those of the
    columns in use and of single classes.
    """
    classes, queries = gains.shape
    laws, factors = _laws(near, level)
    starts, found = _starts(classes, queries), 0
    gained = np.empty(queries)
    tried = np.empty(starts * _STEPS, np.int64)
    count = 0
    for start in range(starts):
        if queries <= _DECISIONS:
            for query in range(queries):
                gained[query] = (start >> query) & 1
        elif start < classes:
            _gain(columns[basis[start]], gains, gained)
        else:
            _gain(near[start - classes], gains, gained)
        promised, count = _climb(
            near, laws, factors, gains, prices, gained, columns[number + found], tried, count
        )
        if promised > least and not _known(columns, number, found):
            found += 1
    return found, count


@compiled
def _climb(
    near: Floats,
    laws: Indices,
    factors: Floats,
    gains: Floats,
    prices: Floats,
    gained: Floats,
    column: Floats,
    tried: Indices,
    count: int,
) -> tuple[float, int]:
    """Write the column that decisions lead to; what it promises beyond its price.

    Decisions that were tried before are left alone; the list of them grows.
    """
    promised = -np.inf
    wish, candidate = np.empty(len(near)), np.empty(len(near))
    for _ in range(_STEPS):
        decided = 1
        for query in range(len(gained)):
            decided = decided * 6364136223846793005 + (1442695040888963407 if gained[query] > 0 else 1)
        for other in range(count):
            if tried[other] == decided:
                return promised, count
        tried[count] = decided
        count += 1
        for row in range(len(near)):
            wish[row] = -prices[row]
            for query in range(len(gained)):
                if gained[query] > 0:
                    wish[row] += gains[row, query]
        if len(laws) == 0:
            _level_column(near, wish, candidate)
        else:
            _lawful_column(near, laws, factors, wish, candidate)
        better = _gain(candidate, gains, gained)
        for row in range(len(near)):
            better -= prices[row] * candidate[row]
        if better <= promised:
            break
        promised = better
        for row in range(len(near)):
            column[row] = candidate[row]
    return promised, count


@compiled
def _known(columns: Floats, begin: int, found: int) -> bool:
    """Whether the column after those found in this round is one of them."""
    for other in range(begin, begin + found):
        furthest = 0.0
        for row in range(columns.shape[1]):
            furthest = max(furthest, abs(columns[other, row] - columns[begin + found, row]))
        if furthest < 1e-12:
            return True
    return False


@compiled
def _laws(near: Floats, level: bool) -> tuple[Indices, Floats]:
    """Pairs of classes and factors: `column[first] * factor <= column[second]`.

    Those that follow from others are left out. First, with factor 0, that no entry is negative.
    Where all classes are equally far apart, nobody asks.
    """
    classes = 0 if level else len(near)
    laws, factors = np.zeros((classes * classes, 2), np.int64), np.zeros(classes * classes)
    for row in range(classes):
        laws[row, 1] = row
    number = classes
    for row in range(classes):
        for other in range(classes):
            if row != other and not _follows(near, row, other):
                laws[number, 0], laws[number, 1] = row, other
                factors[number] = near[row, other]
                number += 1
    return laws[:number], factors[:number]


@compiled
def _follows(near: Floats, row: int, other: int) -> bool:
    """Whether the law between two classes follows from others, or there is none."""
    if near[row, other] == 0.0:
        return True
    for between in range(len(near)):
        way = near[row, between] * near[between, other]
        if between != row and between != other and way >= near[row, other] * (1 - 1e-12):
            return True
    return False


@compiled
def _level_column(near: Floats, wish: Floats, column: Floats) -> None:
    """Write the column that is best for a wish where all classes are equally far apart."""
    average = -np.inf
    for _ in range(len(wish)):
        # Entries above what the column gives on average are worth raising.
        top, total = 0.0, 0.0
        for row in range(len(wish)):
            column[row] = 1.0 if wish[row] > average else near[0, 1]
            top += wish[row] * column[row]
            total += column[row]
        for row in range(len(wish)):
            column[row] /= total
        if top / total <= average:
            break
        average = top / total


@compiled
def _lawful_column(
    near: Floats, laws: Indices, factors: Floats, wish: Floats, column: Floats
) -> None:
    """Write the lawful column, summing to 1, that is worth most if entries are worth `wish`.

    Solves the dual: at least `price` for each entry's wish, given what laws are worth.
    """
    classes = len(wish)
    lowest, top = wish.min(), wish.argmax()
    right = np.empty(classes)
    basis = np.empty(classes, np.int64)
    inverse, values = np.zeros((classes, classes)), np.empty(classes)
    for row in range(classes):
        # Moved so that the price is positive; this moves what every column is worth.
        right[row] = wish[row] - lowest + 1.0
        basis[row] = 1 + row
        inverse[row, row] = -1.0
        inverse[row, top] = 1.0
        values[row] = wish[top] - wish[row]
    basis[top] = 0
    values[top] = right[top]
    full, worth = np.ones((1, classes)), -np.ones(1)
    maximise(full, worth, laws, factors, right, basis, inverse, values, 50 * classes)
    prices = dual_prices(worth, basis, inverse)
    # By rounding, or if it did not arrive, a law may be broken: raise what is too small.
    total = 0.0
    for row in range(classes):
        column[row] = 0.0
        for other in range(classes):
            column[row] = max(column[row], -prices[other] * near[other, row])
        total += column[row]
    for row in range(classes):
        column[row] /= total
