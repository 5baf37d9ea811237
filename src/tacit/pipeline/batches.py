"""Tuples on their way from a source into windows: slot, time and event types of each.

`Rows` are what a source gave. An `EventBatch` is what they mean, for one source in its order. A
`MergedBatch` holds the tuples of all sources in the order in which they count as having arrived.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tacit.events.times import NO_TIME
from tacit.kernels import compiled
from tacit.windows.clock import REACH


@dataclass(frozen=True, slots=True)
class ReadPosition:
    """Where rows stand in the input that they were read from."""

    number: int
    """Which of the inputs."""
    token: Any
    """Where the source is resumed to read them again."""
    before: int
    """How many rows lie between there and the first of them."""
    receipt: Any
    """What to acknowledge when they, and all before them, are safe."""


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
    position: ReadPosition | None = None

    def number(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """The numbers, in their source, of these rows of the table."""
        return rows + self.first if self.numbers is None else self.numbers[rows]


@dataclass(frozen=True, slots=True)
class EventBatch:
    """Tuples of one source in order of arrival."""

    times: NDArray[np.int64]
    slots: NDArray[np.int32]
    """Whose tuples they are; negative for those of no registered subject."""
    masks: NDArray[np.uint64]
    """`[tuple][word]`: the event types of each."""
    rows: Rows
    first: int = 0
    """The row of the first tuple."""
    before: int = NO_TIME
    """The source's progress before the first of them."""

    def progress(self, before: int, future: int) -> NDArray[np.int64]:
        """The source's progress at each tuple."""
        times = np.where(self.slots >= 0, self.times, NO_TIME)
        return running_progress(times, before, future)

    def reached(self, before: int) -> int:
        """The source's progress after all of these tuples."""
        return _reached(self.times, self.slots, before)

    def piece(self, begin: int, end: int, slots: NDArray[np.int32] | None = None) -> EventBatch:
        """Some of these tuples in a row, perhaps with other slots."""
        if slots is None:
            slots = self.slots[begin:end]
        if (begin, end) == (0, len(self.times)):
            return replace(self, slots=slots)
        return replace(
            self,
            times=self.times[begin:end],
            slots=slots,
            masks=self.masks[begin:end],
            first=self.first + begin,
        )


@dataclass(slots=True)
class MergedBatch:
    """Tuples of all sources in order of arrival, and the rows that they were."""

    times: NDArray[np.int64]
    slots: NDArray[np.int32]
    masks: NDArray[np.uint64]
    origins: Sequence[Rows]
    part: NDArray[np.int32] | None = None
    """Which of the origins each tuple is from; None where there is only one."""
    row: NDArray[np.int64] | None = None
    """The row of each tuple in its origin's table; None where they count from 0."""
    progress: NDArray[np.int64] | None = None
    """Its source's progress at each tuple; None where there is only one source."""
    before: int = NO_TIME
    """The source's progress before all of them, where there is only one."""

    @classmethod
    def of_one(cls, batch: EventBatch) -> MergedBatch:
        """Tuples of one source."""
        row = None
        if batch.first:
            row = np.arange(batch.first, batch.first + len(batch.times))
        return cls(
            batch.times, batch.slots, batch.masks, (batch.rows,), row=row, before=batch.before
        )

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

    def inserted_rows(self, inserted: int) -> Iterator[tuple[Rows, int, int]]:
        """For each origin: how many of its rows are among the first tuples, and the progress."""
        for number, origin in enumerate(self.origins):
            last = inserted - 1
            if self.part is not None:
                own = np.flatnonzero(self.part[:inserted] == number)
                last = int(own[-1]) if len(own) else -1
            if last < 0:
                if self.row is None:
                    yield origin, 0, self.before
                continue  # none of it yet, or none of it since the last time
            rows = last + 1 if self.row is None else int(self.row[last]) + 1
            yield origin, rows, self._progress_at(last)

    def _progress_at(self, last: int) -> int:
        if self.progress is not None:
            return int(self.progress[last])
        return _reached(self.times[: last + 1], self.slots[: last + 1], self.before)


def _reached(times: NDArray[np.int64], slots: NDArray[np.int32], before: int) -> int:
    counted = (slots >= 0) & (times <= REACH)
    return int(np.max(times, where=counted, initial=before))


@compiled
def running_progress(times: NDArray[np.int64], before: int, future: int) -> NDArray[np.int64]:
    """The progress at each tuple, given the progress before the first of them."""
    progress = np.empty(len(times), np.int64)
    now = np.int64(before)
    for number in range(len(times)):
        time = times[number]
        if time > now:
            # the difference of two int64 always fits into uint64
            ahead = np.uint64(time) - np.uint64(now)
            if now == NO_TIME or ahead <= np.uint64(future):
                now = time
        progress[number] = now
    return progress
