"""The windows of history of one component: how often each context had which values."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tacit.privacy.prior import Bits

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class ContextCounts:
    """Counts of windows by the signals and variables of a component, in folds of history.

    Rows are distinct, and rows of the same context are adjacent.
    """

    signals: Bits
    """`[row][signal]`"""
    values: Bits
    """`[row][variable]`"""
    counts: Floats
    """`[row][fold]`"""

    @classmethod
    def from_rows(cls, rows: Bits, counts: Floats, signals: int) -> ContextCounts:
        """Build counts from rows of signals and variables."""
        order = np.arange(len(rows))
        if signals and len(rows):
            keys = np.ascontiguousarray(np.packbits(rows[:, :signals], axis=1))
            order = np.argsort(keys.view(f"V{keys.shape[1]}").ravel(), kind="stable")
        return cls(rows[order, :signals], rows[order, signals:], counts[order])

    @classmethod
    def empty(cls, signals: int, variables: int) -> ContextCounts:
        """Return the counts of no windows."""
        none = np.empty((0, signals), np.bool_), np.empty((0, variables), np.bool_)
        return cls(*none, np.empty((0, 1)))

    @property
    def folds(self) -> int:
        """The number of folds."""
        return int(self.counts.shape[1])

    @cached_property
    def windows(self) -> Floats:
        """`[row]`: the number of windows in all folds."""
        return np.asarray(self.counts.sum(axis=1))

    def choose_folds(self, folds: NDArray[np.bool_]) -> ContextCounts:
        """Return the counts of some folds as one."""
        counts = self.counts[:, folds].sum(axis=1)
        seen = counts > 0
        return ContextCounts(self.signals[seen], self.values[seen], counts[seen, np.newaxis])

    @cached_property
    def begins(self) -> NDArray[np.int64]:
        """The first row of each context."""
        new = (self.signals[1:] != self.signals[:-1]).any(axis=1)
        return np.flatnonzero(np.append(True, new))[: len(self.signals)]

    @cached_property
    def _ranked(self) -> tuple[NDArray[np.int64], Floats]:
        """The contexts by number, most common first; and the windows of each, in that order."""
        if not len(self.signals):
            return np.empty(0, np.int64), np.empty(0)
        windows = np.add.reduceat(self.windows, self.begins)
        order = np.argsort(-windows, kind="stable")
        return order, windows[order]

    @cached_property
    def contexts(self) -> list[tuple[Bits, float]]:
        """All contexts that were seen, each with its number of windows; most common first."""
        return self.most_common()

    def most_common(self, number: int | None = None) -> list[tuple[Bits, float]]:
        """Return contexts that were seen, each with its number of windows; most common first."""
        return [
            (self.signals[self.begins[context]], windows)
            for context, windows in zip(
                *(part[:number].tolist() for part in self._ranked), strict=True
            )
        ]
