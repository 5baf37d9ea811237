"""Pairs of matches in one bucket, listed in pieces so that memory stays bounded.

Both sides are sorted by bucket, the right one by bucket and time: then the partners of a
row on the left are a range on the right.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tacit.events.columns import freeze
from tacit.kernels import compiled

Ints: TypeAlias = NDArray[np.int64]


def find_ranges(
    buckets: Ints, earliest: Ints, latest: Ints, their_buckets: Ints, their_times: Ints
) -> Ints:
    """Return for each row the range of rows in its bucket from `earliest` to `latest`."""
    arrays = (buckets, earliest, latest, their_buckets, their_times)
    return _find_ranges(*map(freeze, arrays))


@compiled
def _find_ranges(
    buckets: Ints, earliest: Ints, latest: Ints, their_buckets: Ints, their_times: Ints
) -> Ints:
    found = np.zeros((2, len(buckets)), np.int64)
    for row in range(len(buckets)):
        bucket, time, until = buckets[row], earliest[row], latest[row]
        low, high = 0, len(their_buckets)
        while low < high:
            middle = (low + high) // 2
            theirs = their_buckets[middle]
            if theirs < bucket or (theirs == bucket and their_times[middle] < time):
                low = middle + 1
            else:
                high = middle
        found[0, row] = low
        high = len(their_buckets)
        while low < high:
            middle = (low + high) // 2
            theirs = their_buckets[middle]
            if theirs < bucket or (theirs == bucket and their_times[middle] <= until):
                low = middle + 1
            else:
                high = middle
        found[1, row] = low
    return found


def iterate_pairs(found: Ints, most: int) -> Iterator[tuple[Ints, Ints]]:
    """Yield every row with every row of its range, about `most` pairs at a time."""
    start, counts = found[0], found[1] - found[0]
    ends = np.cumsum(counts)
    row = listed = 0
    while row == 0 or row < len(counts):
        stop = max(row + 1, int(np.searchsorted(ends, listed + most, side="right")))
        count = counts[row:stop]
        left = np.repeat(np.arange(row, row + len(count)), count)
        shift = np.repeat(start[row:stop] - (ends[row:stop] - count) + listed, count)
        yield left, shift + np.arange(len(left))
        row, listed = stop, listed + len(left)


def undominated(groups: Ints, values: NDArray[Any], greatest: bool) -> NDArray[np.bool_]:
    """Return which rows exceed (or are below) all earlier rows of their group."""
    return _undominated(freeze(groups), freeze(values), greatest)


@compiled
def _undominated(groups: Ints, values: NDArray[Any], greatest: bool) -> NDArray[np.bool_]:
    keep = np.zeros(len(groups), np.bool_)
    best = 0
    for row in range(len(groups)):
        better = values[row] > values[best] if greatest else values[row] < values[best]
        if better or row == 0 or groups[row] != groups[row - 1]:
            keep[row] = True
            best = row
    return keep
