"""Count how often combinations of bits occur, over many windows and subjects.

Counts are kept for each stretch of time, so that a plan can be judged on windows that it was not
made from. How long history is becomes known only at its end: stretches double in length whenever
there are too many of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tacit.patterns.booleans import to_columns

_FEW = 16
"""Up to this many bits, counts are kept in an array with all combinations."""
_PENDING = 1 << 20
"""The number of pending rows at which equal rows are merged."""
MOST_STRETCHES: Final = 20
FOLDS: Final = 5
"""The number of parts of history; each is held out once."""
_BLOCKS: Final = 32
"""Subjects of one window are counted in this many blocks, in case history has few windows."""

Counts: TypeAlias = NDArray[np.int64]
Keys: TypeAlias = NDArray[np.uint64]


class Piece(NamedTuple):
    """Windows and subjects of a batch that belong to the same stretch."""

    stretch: int
    windows: slice
    slots: slice


class Division(NamedTuple):
    """How the windows of a batch are divided into stretches."""

    level: int
    """A stretch has 2**level blocks."""
    pieces: tuple[Piece, ...]


UNDIVIDED: Final = Division(0, (Piece(0, slice(None), slice(None)),))
"""All windows in one stretch."""


class Stretches:
    """Divides the windows of history into stretches of equal length, at most `MOST_STRETCHES`."""

    def __init__(self) -> None:
        self._level = 0
        self._blocks = 0

    def divide(self, windows: int, slots: int) -> Division:
        """Divide the next windows; stretches become longer if there are too many."""
        first, self._blocks = self._blocks, self._blocks + windows * _BLOCKS
        while (self._blocks - 1) >> self._level >= MOST_STRETCHES:
            self._level += 1
        return Division(self._level, tuple(self._pieces(first, windows, slots)))

    def _pieces(self, first: int, windows: int, slots: int) -> Iterator[Piece]:
        length = 1 << self._level
        if length >= _BLOCKS:
            begin = 0
            while begin < windows:
                stretch = (first + begin * _BLOCKS) // length
                end = min(windows, ((stretch + 1) * length - first) // _BLOCKS)
                yield Piece(stretch, slice(begin, end), slice(0, slots))
                begin = end
            return
        for window in range(windows):
            for block in range(0, _BLOCKS, length):
                begin, end = (place * slots // _BLOCKS for place in (block, block + length))
                stretch = (first + window * _BLOCKS + block) // length
                yield Piece(stretch, slice(window, window + 1), slice(begin, end))

    def folds(self) -> NDArray[np.int64]:
        """Return the fold of each stretch: folds are stretches in a row, and of about one size."""
        number = -(-self._blocks >> self._level) if self._blocks else 0
        return np.arange(number) * min(FOLDS, number) // max(1, number)


class CombinationCounts:
    """How often each combination of some bit columns occurs, in each stretch."""

    def __init__(self, columns: Sequence[int]) -> None:
        self.columns = list(columns)
        self._words = max(1, -(-len(self.columns) // 64))
        self._level = 0
        self._stretches: dict[int, _StretchCounts] = {}

    def add(
        self,
        bits: NDArray[np.uint64],
        chosen: NDArray[np.bool_],
        division: Division = UNDIVIDED,
    ) -> None:
        """Count `bits[window][column][word]` for the chosen windows and subjects."""
        slots = chosen.shape[1]
        self._lengthen(division.level)
        keys: Keys = np.zeros((len(chosen), slots, 1), np.uint64)
        if self.columns:
            keys = to_columns(np.ascontiguousarray(bits[:, self.columns]), slots)
        for stretch, windows, own in division.pieces:
            found = keys[windows, own][chosen[windows, own]]
            counts = self._stretches.setdefault(stretch, _StretchCounts(len(self.columns)))
            counts.add(found, np.ones(len(found), np.int64))

    def _lengthen(self, level: int) -> None:
        """Merge the counts of stretches that have become one."""
        if level == self._level:
            return
        before, self._stretches = self._stretches, {}
        for stretch, counts in before.items():
            number = stretch >> (level - self._level)
            if number in self._stretches:
                self._stretches[number].add(*counts.gather())
            else:
                self._stretches[number] = counts
        self._level = level

    def rows(
        self, folds: NDArray[np.int64] | None = None
    ) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
        """Return the combinations that occurred, `[row][column]`, sorted, and their counts.

        Counts are `[row][fold]`, given the fold of each stretch; without folds, `[row]`.
        """
        parts = sorted(self._stretches.items())
        known = [(stretch, *counts.gather()) for stretch, counts in parts]
        empty = np.empty((0, self._words), np.uint64)
        keys = np.concatenate([empty, *(found for _, found, _ in known)])
        distinct, places = _number(keys, len(self.columns))
        number = 1 if folds is None else int(folds.max(initial=0)) + 1
        sums = np.zeros((len(distinct), number))
        begin = 0
        for stretch, found, counts in known:
            own = places[begin : begin + len(found)]
            sums[own, 0 if folds is None else folds[stretch]] += counts
            begin += len(found)
        octets = distinct.astype("<u8").view(np.uint8)
        bits = np.unpackbits(octets, axis=1, bitorder="little", count=len(self.columns))
        return bits.astype(np.bool_), sums[:, 0] if folds is None else sums


class _StretchCounts:
    """The counts of one stretch: distinct keys, and keys that are still to be merged."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._keys: list[Keys] = []
        self._counts: list[Counts] = []
        self._pending = 0

    def add(self, keys: Keys, counts: Counts) -> None:
        found, sums = _distinct(keys, counts, self._width)
        self._keys.append(found)
        self._counts.append(sums)
        self._pending += len(found)
        if self._pending > _PENDING:
            self.gather()
            self._pending = 0

    def gather(self) -> tuple[Keys, Counts]:
        """Return the distinct keys, sorted, and their counts."""
        if len(self._keys) > 1:
            keys, counts = np.concatenate(self._keys), np.concatenate(self._counts)
            found, sums = _distinct(keys, counts, self._width)
            self._keys, self._counts = [found], [sums]
        return self._keys[0], self._counts[0]


def _distinct(keys: Keys, counts: Counts, width: int) -> tuple[Keys, Counts]:
    if width <= _FEW and len(keys) << 4 >= 1 << width:
        sums = np.bincount(keys[:, 0].astype(np.int64), counts, 1 << width).astype(np.int64)
        found = np.flatnonzero(sums)
        return found.astype(np.uint64)[:, np.newaxis], sums[found]
    distinct, places = _number(keys, width)
    return distinct, np.bincount(places, counts, len(distinct)).astype(np.int64)


def _number(keys: Keys, width: int) -> tuple[Keys, NDArray[np.intp]]:
    """Return the distinct keys, sorted, and the number of each key among them."""
    if width <= 64:
        flat, places = np.unique(keys[:, 0], return_inverse=True)
        return flat[:, np.newaxis], places.ravel()
    distinct, places = np.unique(keys, axis=0, return_inverse=True)
    return distinct, places.ravel()
