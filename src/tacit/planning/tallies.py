"""Count how often combinations of bits occur, over many windows and subjects."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tacit.patterns.booleans import to_columns

_FEW = 16
"""Up to this many bits, counts are kept in an array with all combinations."""
_PENDING = 1 << 20
"""The number of pending rows at which equal rows are merged."""


class CombinationCounts:
    """How often each combination of some bit columns occurs."""

    def __init__(self, columns: Sequence[int]) -> None:
        self.columns = list(columns)
        self._words = max(1, -(-len(self.columns) // 64))
        self._keys = [np.empty((0, self._words), np.uint64)]
        self._counts = [np.empty(0, np.int64)]

    def add(self, bits: NDArray[np.uint64], chosen: NDArray[np.bool_]) -> None:
        """Count `bits[window][column][word]` for the chosen windows and subjects."""
        slots = chosen.shape[1]
        if not self.columns:
            keys = np.zeros((int(chosen.sum()), 1), np.uint64)
        else:
            part = np.ascontiguousarray(bits[:, self.columns])
            keys = to_columns(part, slots)[chosen]
        found, counts = _distinct(keys, np.ones(len(keys), np.int64), len(self.columns))
        self._keys.append(found)
        self._counts.append(counts)
        if sum(map(len, self._counts)) > _PENDING:
            self._gather()

    def _gather(self) -> None:
        keys, counts = np.concatenate(self._keys), np.concatenate(self._counts)
        found, sums = _distinct(keys, counts, len(self.columns))
        self._keys, self._counts = [found], [sums]

    def rows(self) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
        """Return the combinations that occurred, `[row][column]`, sorted, and their counts."""
        self._gather()
        octets = self._keys[0].astype("<u8").view(np.uint8)
        bits = np.unpackbits(octets, axis=1, bitorder="little", count=len(self.columns))
        return bits.astype(np.bool_), self._counts[0].astype(np.float64)


def _distinct(
    keys: NDArray[np.uint64], counts: NDArray[np.int64], width: int
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    if width <= _FEW:
        sums = np.bincount(keys[:, 0].astype(np.int64), counts, 1 << width).astype(np.int64)
        found = np.flatnonzero(sums)
        return found.astype(np.uint64)[:, np.newaxis], sums[found]
    if keys.shape[1] == 1:
        flat, places = np.unique(keys[:, 0], return_inverse=True)
        distinct = flat[:, np.newaxis]
    else:
        distinct, places = np.unique(keys, axis=0, return_inverse=True)
    return distinct, np.bincount(places.ravel(), counts, len(distinct)).astype(np.int64)
