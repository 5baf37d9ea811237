"""How far apart classes are, by way of groups of neighbours; and classes made one."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from tacit.kernels import compiled
from tacit.privacy.channel_audit import Neighbours

_SAME = Fraction(1, 10**6)
"""Classes within a smaller epsilon are treated as one: it could tell next to nothing."""
_FAR = 36.0
"""exp(-36) is what a float can no longer tell from nothing beside 1."""

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]


def distances_between(neighbours: Sequence[Neighbours], classes: int) -> Floats:
    """The shortest ways between classes, over groups; infinite where there is none."""
    lengths = np.array([len(group.rows) for group in neighbours], dtype=np.int64)
    rows = np.array([row for group in neighbours for row in group.rows], dtype=np.int64)
    epsilons = [min(float(group.epsilon), _FAR) if tells(group) else 0.0 for group in neighbours]
    return _shortest(rows, lengths, np.array(epsilons), classes)


def tells(group: Neighbours) -> bool:
    """Whether members of a group may be told apart so far as to be worth the trouble."""
    return group.epsilon >= _SAME


@compiled
def _shortest(rows: Indices, lengths: Indices, epsilons: Floats, classes: int) -> Floats:
    distances = np.full((classes, classes), np.inf)
    for row in range(classes):
        distances[row, row] = 0.0
    begin = 0
    for group in range(len(lengths)):
        members = rows[begin : begin + lengths[group]]
        begin += lengths[group]
        for row in members:
            for other in members:
                if row != other:
                    distances[row, other] = min(distances[row, other], epsilons[group])
    for between in range(classes):
        for row in range(classes):
            for other in range(classes):
                way = distances[row, between] + distances[between, other]
                distances[row, other] = min(distances[row, other], way)
    for row in range(classes):
        for other in range(classes):
            if distances[row, other] < np.inf:
                distances[row, other] = min(distances[row, other], _FAR)
    return distances


@compiled
def contracted(distances: Floats) -> Indices:
    """One number for all classes at distance 0."""
    place = np.full(len(distances), -1)
    number = 0
    for row in range(len(distances)):
        if place[row] < 0:
            for other in range(len(distances)):
                if distances[row, other] == 0.0:
                    place[other] = number
            number += 1
    return place


def firsts_of(place: Indices) -> NDArray[np.intp]:
    """The first of the old classes that make up each new one."""
    return np.unique(place, return_index=True)[1]


def mapped(neighbours: Sequence[Neighbours], place: Indices) -> tuple[Neighbours, ...]:
    """The same groups, of new classes; of equal groups the smallest epsilon counts."""
    found: dict[tuple[int, ...], Fraction] = {}
    numbers = place.tolist()
    for group in neighbours:
        rows = tuple(sorted({numbers[row] for row in group.rows}))
        if len(rows) > 1:
            found[rows] = min(group.epsilon, found.get(rows, group.epsilon))
    return tuple(Neighbours(rows, epsilon) for rows, epsilon in found.items())
