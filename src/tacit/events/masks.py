"""The event types of tuples: a mask for each, or a code for one of few masks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tacit.events.columns import freeze

NO_CODES: Final[NDArray[np.uint8]] = freeze(np.empty(0, np.uint8))
"""What compiled loops get as codes if there are none."""
MOST_CODES: Final = 256


@dataclass(frozen=True, slots=True, eq=False)
class EventMasks:
    """The event types of tuples in order, as masks of words.

    If they depend on one column with few values, each tuple has a code of one byte: there is less
    to write and to read than with a mask for each tuple.
    """

    table: NDArray[np.uint64]
    """`[code][word]`, or `[tuple][word]` without codes."""
    _codes: NDArray[np.uint8] | None = None

    @property
    def codes(self) -> NDArray[np.uint8]:
        """The code of each tuple, read-only; NO_CODES if the table has a mask for each."""
        return NO_CODES if self._codes is None else self._codes

    @property
    def dense(self) -> NDArray[np.uint64]:
        """`[tuple][word]`: the mask of each tuple."""
        return self.table if self._codes is None else self.table[self._codes]

    def __len__(self) -> int:
        return len(self.table if self._codes is None else self._codes)

    def __getitem__(self, chosen: slice | NDArray[np.int64]) -> EventMasks:
        """Return the event types of some of the tuples."""
        if self._codes is None:
            return EventMasks(self.table[chosen])
        return EventMasks(self.table, freeze(self._codes[chosen]))

    @classmethod
    def concatenate(cls, parts: Sequence[EventMasks]) -> EventMasks:
        """Return the event types of all tuples of these, in their order."""
        return cls(np.concatenate([part.dense for part in parts]))
