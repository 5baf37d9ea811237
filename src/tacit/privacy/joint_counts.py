"""Windows of history as a whole: how often which values of several components came together.

What different components do is not independent. So queries over several of them are judged on
whole windows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tacit.kernels import compiled

Words = NDArray[np.uint64]
Bits = NDArray[np.bool_]
Whole = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class JointColumns:
    """Which bit of a row is what."""

    signals: Mapping[int, Whole]
    """For each component that is used, the bits of its signals."""
    variables: Mapping[int, Whole]
    queries: Mapping[int, int]
    """For each query over several components, the bit of its true answer."""


@dataclass(frozen=True, slots=True, eq=False)
class JointCounts:
    """Counts of windows by their values, in folds; of a sample if there are many."""

    words: Words
    """`[row][word]`: lowest bit first."""
    counts: Floats
    """`[row][fold]`"""
    columns: JointColumns

    @property
    def windows(self) -> Floats:
        """`[row]`: the number of windows in all folds."""
        return np.asarray(self.counts.sum(axis=1))

    def choose_folds(self, folds: Bits) -> JointCounts:
        """Return the counts of some folds as one."""
        counts = self.counts[:, folds].sum(axis=1)
        seen = counts > 0
        return replace(self, words=self.words[seen], counts=counts[seen, np.newaxis])

    def choose_rows(self, rows: Whole) -> JointCounts:
        """Return some of the rows."""
        return replace(self, words=self.words[rows], counts=self.counts[rows])

    def signals(self, component: int) -> Words:
        """Return `[row][word]`: the signals of a component, in one word at least."""
        return self._pick(self.columns.signals[component])

    def values(self, component: int) -> Words:
        """Return `[row][word]`: the values of a component's variables."""
        return self._pick(self.columns.variables[component])

    def answers(self, query: int) -> Bits:
        """Return the true answers to a query."""
        return self._pick(np.array([self.columns.queries[query]]))[:, 0].astype(np.bool_)

    def _pick(self, columns: Whole) -> Words:
        picked = np.zeros((len(self.words), max(1, -(-len(columns) // 64))), np.uint64)
        _pick(self.words, columns, picked)
        return picked


@compiled
def _pick(words: Words, columns: Whole, picked: Words) -> None:
    one, low = np.uint64(1), np.uint64(63)
    for row in range(len(words)):
        for place in range(len(columns)):
            column = np.uint64(columns[place])
            bit = (words[row, column >> np.uint64(6)] >> (column & low)) & one
            picked[row, place >> 6] |= bit << np.uint64(place & 63)
