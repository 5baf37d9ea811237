"""Which columns a linear programme still wants: those that are worth more than its prices.

For given decisions, the lawful column that prices promise most for is a small linear programme
itself. What the best column is worth need not be found: any that is wanted will do.
"""

from __future__ import annotations

import numpy as np

from tacit.kernels import compiled
from tacit.privacy.simplex import Floats, Indices, dual_prices, maximise

_DECISIONS = 4
"""With so many queries, all decisions are tried; with more, those of columns in use."""
_STEPS = 8
"""How often a column may change its decisions."""


@compiled
def starts(classes: int, queries: int) -> int:
    """How many columns are looked for in a round."""
    return 2**queries if queries <= _DECISIONS else 2 * classes


@compiled
def wanted(
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
    gained = np.empty(queries)
    tried = np.empty(starts(classes, queries) * _STEPS, np.int64)
    found, count = 0, 0
    for start in range(starts(classes, queries)):
        if queries <= _DECISIONS:
            for query in range(queries):
                gained[query] = (start >> query) & 1
        elif start < classes:
            gain(columns[basis[start]], gains, gained)
        else:
            gain(near[start - classes], gains, gained)
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
        decided = _digest(gained)
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
        better = gain(candidate, gains, gained)
        for row in range(len(near)):
            better -= prices[row] * candidate[row]
        if better <= promised:
            break
        promised = better
        for row in range(len(near)):
            column[row] = candidate[row]
    return promised, count


@compiled
def _digest(gained: Floats) -> int:
    """A number that stands for decisions; if two had the same, a column would be missed."""
    number = 1
    for query in range(len(gained)):
        number = number * 6364136223846793005 + (1442695040888963407 if gained[query] > 0 else 1)
    return number


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
def gain(column: Floats, gains: Floats, gained: Floats) -> float:
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
    # Entries above what the column gives on average are worth raising, beside the others.
    while wish.max() > average:
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
        column[row] = column[row] / total if total > 0 else 1.0 / classes
