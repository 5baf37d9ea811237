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
"""Up to this many bits, counts are made in an array with all combinations."""
_SHORT = 48
"""Up to this many bits, a combination and its stretch are one number."""
_PENDING = 1 << 20
"""The number of pending rows at which equal rows are merged."""
MOST_STRETCHES: Final = 20
FOLDS: Final = 5
"""The number of parts of history; each is held out once."""
_ONE_FOLD: Final = np.zeros(MOST_STRETCHES, np.int64)
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


class ChosenRows(NamedTuple):
    """The windows and subjects of a batch that are counted, and the stretch of each."""

    chosen: NDArray[np.bool_]
    """`[window][subject]`"""
    level: int
    stretches: Keys
    """`[row]`: in the order of windows, then subjects."""

    @classmethod
    def choose(cls, chosen: NDArray[np.bool_], division: Division = UNDIVIDED) -> ChosenRows:
        """Return the rows where `chosen[window][subject]` is true."""
        stretches = np.zeros(chosen.shape, np.uint64)
        for stretch, windows, slots in division.pieces:
            stretches[windows, slots] = stretch
        return cls(chosen, division.level, stretches[chosen])


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
    """How often each combination of some bit columns occurs, in each stretch.

    A row is a combination and its stretch: in one number if it fits, otherwise the stretch is in
    the last word. If there are more than `most` rows, a random half of the windows is left out.
    """

    def __init__(self, columns: Sequence[int], most: int | None = None) -> None:
        self.columns = list(columns)
        self._most = most
        self._share = 1.0
        """The share of the windows that are counted."""
        self._random = np.random.default_rng(0)
        self._width = len(self.columns)
        self._level = 0
        self._keys: list[Keys] = []
        self._counts: list[Counts] = []
        self._pending = 0

    def add(self, bits: NDArray[np.uint64], rows: ChosenRows) -> None:
        """Count `bits[window][column][word]` for the chosen windows and subjects."""
        self._lengthen(rows.level)
        windows, slots = rows.chosen.shape
        keys: Keys = np.zeros((windows, slots, 1), np.uint64)
        if self.columns:
            keys = to_columns(np.ascontiguousarray(bits[:, self.columns]), slots)
        joined = self._join(keys[rows.chosen], rows.stretches)
        if self._share < 1:
            joined = joined[self._random.random(len(joined)) < self._share]
        self._append(*self._distinct(joined))
        if self._pending > (_PENDING if self._most is None else min(_PENDING, self._most)):
            self._gather()
            self._thin()

    def _append(self, keys: Keys, counts: Counts) -> None:
        self._keys.append(keys)
        self._counts.append(counts)
        self._pending += len(keys)

    def _join(self, keys: Keys, stretches: Keys) -> Keys:
        """Return rows of combinations and stretches."""
        if self._width > _SHORT:
            return np.column_stack([keys, stretches])
        return (keys[:, 0] | (stretches << np.uint64(self._width)))[:, np.newaxis]

    def _split(self, keys: Keys) -> tuple[Keys, Keys]:
        """Return the combinations and stretches of rows."""
        if self._width > _SHORT:
            return keys[:, :-1], keys[:, -1]
        width = np.uint64(self._width)
        return keys & ((np.uint64(1) << width) - np.uint64(1)), keys[:, 0] >> width

    def _distinct(self, keys: Keys, counts: Counts | None = None) -> tuple[Keys, Counts]:
        """Return the distinct rows, sorted, and their counts; each row counts 1 by default."""
        if len(keys) and self._width <= _FEW:
            flat = keys[:, 0].astype(np.int64)
            most = int(flat.max()) + 1
            if most <= len(flat) << 4:
                sums = np.bincount(flat, counts, most)
                found = np.flatnonzero(sums)
                return found.astype(np.uint64)[:, np.newaxis], sums[found].astype(np.int64)
        distinct, places = _number(keys)
        return distinct, np.bincount(places, counts, len(distinct)).astype(np.int64)

    def _gather(self) -> tuple[Keys, Counts]:
        """Merge equal rows; return the distinct ones and their counts."""
        words = 1 if self._width <= _SHORT else -(-self._width // 64) + 1
        keys = np.concatenate([np.empty((0, words), np.uint64), *self._keys])
        found = self._distinct(keys, np.concatenate([np.empty(0, np.int64), *self._counts]))
        self._keys, self._counts, self._pending = [], [], 0
        self._append(*found)
        self._pending = 0
        return found

    def _thin(self) -> None:
        """Leave out windows until there are few enough rows."""
        while self._most is not None and len(self._keys[0]) > self._most:
            self._share /= 2
            counts = self._random.binomial(self._counts[0], 0.5)
            self._keys, self._counts = [self._keys[0][counts > 0]], [counts[counts > 0]]

    def _lengthen(self, level: int) -> None:
        """Merge the counts of stretches that have become one."""
        if level == self._level:
            return
        keys, counts = self._gather()
        combinations, stretches = self._split(keys)
        keys = self._join(combinations, stretches >> np.uint64(level - self._level))
        self._keys, self._counts = [keys], [counts]
        self._level = level

    def rows(
        self, folds: NDArray[np.int64] | None = None
    ) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
        """Return the combinations that occurred, `[row][column]`, sorted, and their counts.

        Counts are `[row][fold]`, given the fold of each stretch; without folds, `[row]`.
        """
        words, counts = self.words(_ONE_FOLD if folds is None else folds)
        octets = words.astype("<u8").view(np.uint8)
        bits = np.unpackbits(octets, axis=1, bitorder="little", count=self._width)
        return bits.astype(np.bool_), counts[:, 0] if folds is None else counts

    def words(self, folds: NDArray[np.int64]) -> tuple[Keys, NDArray[np.float64]]:
        """Return the combinations that occurred, `[row][word]`, and counts `[row][fold]`."""
        keys, counts = self._gather()
        combinations, stretches = self._split(keys)
        distinct, places = _number(combinations)
        number = int(folds.max(initial=0)) + 1
        fold = folds[stretches.astype(np.int64)] if len(keys) else np.zeros(0, np.int64)
        sums = np.bincount(places * number + fold, counts, len(distinct) * number)
        return distinct, sums.astype(np.float64).reshape(len(distinct), number)


class PositiveCounts:
    """How many windows there are in each stretch, and in how many each bit column is true."""

    def __init__(self, columns: Sequence[int]) -> None:
        self.columns = list(columns)
        self._level = 0
        self._counts = np.zeros((0, len(self.columns) + 1), np.int64)
        """`[stretch][column]`; the last column counts all windows."""

    def add(self, bits: NDArray[np.uint64], rows: ChosenRows) -> None:
        """Count `bits[window][column][word]` for the chosen windows and subjects."""
        self._lengthen(rows.level)
        stretch = np.full(rows.chosen.shape, -1, np.int64)
        stretch[rows.chosen] = rows.stretches
        grown = max(0, int(stretch.max(initial=-1)) + 1 - len(self._counts))
        self._counts = np.pad(self._counts, ((0, grown), (0, 0)))
        for number in np.unique(rows.stretches).astype(np.int64).tolist():
            own = stretch == number
            windows = np.flatnonzero(own.any(axis=1))
            lanes = _pack(own[windows])
            found = bits[windows][:, self.columns, : lanes.shape[1]] & lanes[:, np.newaxis]
            self._counts[number, :-1] += np.bitwise_count(found).sum(axis=(0, 2), dtype=np.int64)
            self._counts[number, -1] += own.sum()

    def _lengthen(self, level: int) -> None:
        """Merge the counts of stretches that have become one."""
        if level == self._level:
            return
        merged = np.arange(len(self._counts)) >> (level - self._level)
        counts = np.zeros((int(merged.max(initial=-1)) + 1, self._counts.shape[1]), np.int64)
        np.add.at(counts, merged, self._counts)
        self._counts, self._level = counts, level

    def count(self, folds: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the windows of each fold, and `[column][fold]` those where a column is true."""
        found = np.zeros((int(folds.max(initial=0)) + 1, self._counts.shape[1]))
        np.add.at(found, folds[: len(self._counts)], self._counts)
        return found[:, -1], np.ascontiguousarray(found[:, :-1].T)


def _pack(chosen: NDArray[np.bool_]) -> Keys:
    """Return `[window][word]`: a bit for each subject, lowest first."""
    windows, slots = chosen.shape
    octets = np.zeros((windows, -(-slots // 64) * 8), np.uint8)
    packed = np.packbits(chosen, axis=1, bitorder="little")
    octets[:, : packed.shape[1]] = packed
    return octets.view("<u8").astype(np.uint64)


def _number(keys: Keys) -> tuple[Keys, NDArray[np.intp]]:
    """Return the distinct keys, sorted, and the number of each key among them."""
    if keys.shape[1] == 1:
        flat, places = np.unique(keys[:, 0], return_inverse=True)
        return flat[:, np.newaxis], places.ravel()
    distinct, places = np.unique(keys, axis=0, return_inverse=True)
    return distinct, places.ravel()
