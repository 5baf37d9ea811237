"""Distances between classes, from groups of neighbours, and merging of classes."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from tacit.kernels import compiled
from tacit.privacy.channel_audit import Neighbours

_SAME = Fraction(1, 10**6)
"""Classes within a smaller epsilon are treated as one: a channel gains almost nothing there."""
_FAR = 36.0
"""Larger distances are cut to this: 1 + exp(-36) is close to the precision of a float."""

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]


def compute_distances(neighbours: Sequence[Neighbours], classes: int) -> Floats:
    """Return the shortest distances between classes over groups; infinite without a path."""
    distances = np.full((classes, classes), np.inf)
    np.fill_diagonal(distances, 0.0)
    for group in neighbours:
        epsilon = min(float(group.epsilon), _FAR) if distinguishes(group) else 0.0
        members = np.ix_(group.rows, group.rows)
        distances[members] = np.minimum(distances[members], epsilon)
    for between in range(classes):
        ways = distances[:, between, np.newaxis] + distances[between]
        np.minimum(distances, ways, out=distances)
    return np.where(distances < np.inf, np.minimum(distances, _FAR), np.inf)


def distinguishes(group: Neighbours) -> bool:
    """Return whether a group's epsilon is large enough to treat its members as different."""
    return group.epsilon >= _SAME


@compiled
def contract(distances: Floats) -> Indices:
    """Number the classes so that classes at distance 0 share a number."""
    place = np.full(len(distances), -1)
    number = 0
    for row in range(len(distances)):
        if place[row] < 0:
            for other in range(len(distances)):
                if distances[row, other] == 0.0:
                    place[other] = number
            number += 1
    return place


def find_firsts(place: Indices) -> NDArray[np.intp]:
    """Return the first old class of each new one."""
    return np.unique(place, return_index=True)[1]


def map_groups(neighbours: Sequence[Neighbours], place: Indices) -> tuple[Neighbours, ...]:
    """Translate groups to new classes; of equal groups the smallest epsilon counts."""
    found: dict[tuple[int, ...], Fraction] = {}
    numbers = place.tolist()
    for group in neighbours:
        rows = tuple(sorted({numbers[row] for row in group.rows}))
        if len(rows) > 1 and (rows not in found or group.epsilon < found[rows]):
            found[rows] = group.epsilon
    return tuple(Neighbours(rows, epsilon) for rows, epsilon in found.items())
