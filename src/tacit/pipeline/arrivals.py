"""Tuples as the engine sees them: in order of arrival, with slot, time and event types."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


@dataclass(slots=True)
class Rows:
    """Rows of a stream, and what they are called where they come from."""

    stream: str
    table: pa.RecordBatch
    source: str = ""
    """The file or connection that they come from."""
    first: int = 1
    """The number of the first row there."""
    numbers: NDArray[np.int64] | None = None
    """The number of every row, where they do not simply count up."""
    raw: pa.RecordBatch | None = None
    """The rows as they came, where columns of `table` were converted."""

    def number(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """The numbers, in their source, of these rows of the table."""
        return rows + self.first if self.numbers is None else self.numbers[rows]


@dataclass(slots=True)
class Arrivals:
    """Tuples in order of arrival: each one's slot, time and event types."""

    slots: NDArray[np.int32]
    times: NDArray[np.int64]
    masks: NDArray[np.uint64]
    origins: Sequence[Rows]
    """The rows that the tuples are."""
    part: NDArray[np.int32] | None = None
    """Which of the origins each tuple is from; None where there is only one."""
    row: NDArray[np.int64] | None = None
    """The row of each tuple in its origin's table; None where they count from 0."""

    def __len__(self) -> int:
        return len(self.times)

    def trace(
        self, places: NDArray[np.int64]
    ) -> Iterator[tuple[Rows, NDArray[np.int64], NDArray[np.int64]]]:
        """Where the tuples at these places come from: rows, which of them, and their places."""
        rows = places if self.row is None else self.row[places]
        if self.part is None:
            yield self.origins[0], rows, places
            return
        parts = self.part[places]
        for number in np.unique(parts):
            chosen = parts == number
            yield self.origins[number], rows[chosen], places[chosen]
