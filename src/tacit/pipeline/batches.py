"""Batches of tuples between sources and windows: slot, time and event types of each tuple.

`Rows` come from a source. An `EventBatch` has the events of these rows, for one source in its
order. A `MergedBatch` holds the tuples of all sources in order of arrival.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tacit.events.masks import EventMasks
from tacit.events.times import NO_TIME
from tacit.kernels import compiled
from tacit.pipeline.sources import Rejected
from tacit.windows.clock import REACH
from tacit.windows.runs import NO_EXTENTS, RunExtents
from tacit.windows.staging import StagedPresence


@dataclass(frozen=True, slots=True)
class ReadPosition:
    """The position of rows in the input that they were read from."""

    number: int
    """The number of the input."""
    token: Any
    """Where to resume the source to read them again."""
    before: int
    """How many rows there are between the token and the first of them."""
    receipt: Any
    """What to acknowledge when they and all rows before them are safe."""
    partition: str | None = None
    """The partition of the input, if it has any; the token is an offset then."""
    after: int = 0
    """The offset after all of these rows, in a partition."""
    lines: int = 0
    """How many unreadable lines there are between the token and these rows."""


@dataclass(slots=True)
class Rows:
    """Rows of a stream, and their origin."""

    stream: str
    table: pa.RecordBatch
    source: str = ""
    """The file or connection that they come from."""
    first: int = 1
    """The number of the first row there."""
    numbers: NDArray[np.int64] | None = None
    """The number of every row, if they are not consecutive."""
    raw: pa.RecordBatch | None = None
    """The original rows, if columns of `table` were converted."""
    position: ReadPosition | None = None
    partitions: tuple[RowsOfPartition, ...] = ()
    """The rows of each partition, if their source has any."""
    rejected: tuple[Rejected, ...] = ()
    """Unreadable lines among them that are not reported yet."""

    def number_rows(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the numbers in the source of these rows of the table."""
        return rows + self.first if self.numbers is None else self.numbers[rows]


@dataclass(frozen=True, slots=True)
class RowsOfPartition:
    """Some of the rows of a source, from one of its partitions."""

    name: str
    begin: int
    end: int
    rows: Rows
    """The rows from `begin` to `end`, with their position in the partition."""
    awaited: bool
    """Whether tuples of other partitions wait for those to come."""


@dataclass(slots=True)
class EventBatch:
    """Tuples of one source in order of arrival."""

    times: NDArray[np.int64]
    slots: NDArray[np.int32]
    """The slot of each tuple's subject; negative if it is not registered."""
    masks: EventMasks
    """The event types of each."""
    rows: Rows
    first: int = 0
    """The row of the first tuple."""
    before: int = NO_TIME
    """The source's progress before the first tuple."""
    registered: bool = False
    """Whether all slots are known not to be negative."""
    extents: RunExtents = NO_EXTENTS
    """Those of the runs of these tuples, if they are known."""
    staged: StagedPresence | None = None
    """The presence of these tuples, if it was found ahead."""

    @property
    def has_rejected(self) -> bool:
        """Whether there are unreadable lines that are not reported yet."""
        return bool(self.rows.rejected)

    def track_progress(self, before: int, future: int) -> NDArray[np.int64]:
        """Compute the source's progress at each tuple."""
        times = np.where(self.slots >= 0, self.times, NO_TIME)
        return running_progress(times, before, future)

    def find_last_progress(self, before: int) -> int:
        """Return the source's progress after all of these tuples."""
        return _find_reached(self.times, self.slots, before)

    def slice(self, begin: int, end: int, slots: NDArray[np.int32] | None = None) -> EventBatch:
        """Return consecutive tuples of these, optionally with other slots."""
        if slots is None:
            slots = self.slots[begin:end]
        if (begin, end) == (0, len(self.times)):
            return replace(self, slots=slots, registered=False)
        return replace(
            self,
            times=self.times[begin:end],
            slots=slots,
            masks=self.masks[begin:end],
            first=self.first + begin,
            registered=False,
            extents=NO_EXTENTS,
            staged=None,
        )


@dataclass(slots=True)
class MergedBatch:
    """Tuples of all sources in order of arrival, and the rows that they come from."""

    times: NDArray[np.int64]
    slots: NDArray[np.int32]
    masks: EventMasks
    origins: Sequence[Rows]
    part: NDArray[np.int32] | None = None
    """The number of each tuple's origin; None if there is only one."""
    row: NDArray[np.int64] | None = None
    """The row of each tuple in its origin's table; None if they count from 0."""
    progress: NDArray[np.int64] | None = None
    """The progress of its source at each tuple; None if there is only one source."""
    before: int = NO_TIME
    """The source's progress before all tuples, if there is only one source."""
    extents: RunExtents = NO_EXTENTS
    """Those of the runs of these tuples, if they are known."""
    staged: StagedPresence | None = None
    """The presence of these tuples, if it was found ahead."""

    @classmethod
    def from_batch(cls, batch: EventBatch) -> MergedBatch:
        """Wrap the tuples of one source."""
        row = None
        if batch.first:
            row = np.arange(batch.first, batch.first + len(batch.times))
        return cls(
            batch.times,
            batch.slots,
            batch.masks,
            (batch.rows,),
            row=row,
            before=batch.before,
            extents=batch.extents,
            staged=batch.staged,
        )

    def __len__(self) -> int:
        return len(self.times)

    @property
    def has_rejected(self) -> bool:
        """Whether there are unreadable lines that are not reported yet."""
        return any(rows.rejected for rows in self.origins)

    def find_last_progress(self, before: int) -> int:
        """Return the largest time among these tuples, or `before` if that is larger."""
        return _find_reached(self.times, self.slots, before)

    def slice(self, begin: int, end: int, slots: NDArray[np.int32] | None = None) -> MergedBatch:
        """Return consecutive tuples of these, optionally with other slots."""
        if slots is None:
            slots = self.slots[begin:end]
        if (begin, end) == (0, len(self.times)):
            return replace(self, slots=slots)
        row = np.arange(begin, end) if self.row is None else self.row[begin:end]
        return replace(
            self,
            times=self.times[begin:end],
            slots=slots,
            masks=self.masks[begin:end],
            part=None if self.part is None else self.part[begin:end],
            row=row,
            progress=None if self.progress is None else self.progress[begin:end],
            extents=NO_EXTENTS,
            staged=None,
        )

    def trace(
        self, places: NDArray[np.int64]
    ) -> Iterator[tuple[Rows, NDArray[np.int64], NDArray[np.int64]]]:
        """Yield the origin of the tuples at these places: rows, row numbers, and places."""
        rows = places if self.row is None else self.row[places]
        if self.part is None:
            yield self.origins[0], rows, places
            return
        parts = self.part[places]
        for number in np.unique(parts):
            chosen = parts == number
            yield self.origins[number], rows[chosen], places[chosen]

    def count_inserted(self, inserted: int) -> Iterator[tuple[Rows, int, int]]:
        """Yield for each origin how many of its rows are inserted, and its progress."""
        for number, origin in enumerate(self.origins):
            last = inserted - 1
            if self.part is not None:
                own = np.flatnonzero(self.part[:inserted] == number)
                last = int(own[-1]) if len(own) else -1
            if last < 0:
                if self.row is None:
                    yield origin, 0, self.before
                continue  # nothing yet, or nothing since the last call
            rows = last + 1 if self.row is None else int(self.row[last]) + 1
            yield origin, rows, self._progress_at(last)

    def _progress_at(self, last: int) -> int:
        if self.progress is not None:
            return int(self.progress[last])
        return _find_reached(self.times[: last + 1], self.slots[: last + 1], self.before)


def _find_reached(times: NDArray[np.int64], slots: NDArray[np.int32], before: int) -> int:
    counted = (slots >= 0) & (times <= REACH)
    return int(np.max(times, where=counted, initial=before))


@compiled
def running_progress(times: NDArray[np.int64], before: int, future: int) -> NDArray[np.int64]:
    """Compute the progress at each tuple, given the progress before the first."""
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
