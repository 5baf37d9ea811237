"""Several sources as one: an order of arrival that does not depend on how they are batched.

A source's *progress* at a tuple is the largest event time it has shown so far; a time
further ahead of the progress before it than `future` does not count, nor does NO_TIME, nor the
time of a tuple that names no subject. So the watermark that a tuple meets is its own source's.
Tuples are taken in order of progress, and where that is equal, in order of the sources;
within a source they keep their order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tacit.events.times import NO_TIME
from tacit.kernels import compiled
from tacit.windows.clock import REACH

Array: TypeAlias = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Timed:
    """Tuples of one source in order of arrival: times, and arrays with a row for each.

    `columns` may hold anything, but the same in every source.
    `origin` is passed through, so that a tuple can be traced back to where it was read.
    """

    times: NDArray[np.int64]
    slots: NDArray[np.int32]
    """Whose tuples they are: one of nobody known counts for no progress."""
    columns: tuple[Array, ...]
    origin: Any
    first: int = 0
    """The row of the first tuple within its origin."""
    before: int = NO_TIME
    """How far the source was before the first of them."""

    def progress(self, before: int, future: int) -> NDArray[np.int64]:
        """How far the source is at each tuple."""
        times = np.where(self.slots >= 0, self.times, NO_TIME)
        return running_progress(times, before, future)

    def reached(self, before: int, count: int | None = None) -> int:
        """How far the source is after all of these tuples, or the first so many of them."""
        counted = (self.slots >= 0) & (self.times <= REACH)
        return int(np.max(self.times[:count], where=counted[:count], initial=before))

    def piece(self, begin: int, end: int, slots: NDArray[np.int32] | None = None) -> Timed:
        """Some of these tuples in a row, perhaps with other slots."""
        if slots is None:
            slots = self.slots[begin:end]
        if (begin, end) == (0, len(self.times)):
            return replace(self, slots=slots)
        return replace(
            self,
            times=self.times[begin:end],
            slots=slots,
            columns=tuple(column[begin:end] for column in self.columns),
            first=self.first + begin,
        )


@dataclass(frozen=True, slots=True)
class Merged:
    """Tuples of all sources in order of arrival, and where each of them came from."""

    times: NDArray[np.int64]
    slots: NDArray[np.int32]
    columns: tuple[Array, ...]
    origins: tuple[Any, ...]
    part: NDArray[np.int32] | None = None
    """Which of the origins each tuple is from; None where there is only one."""
    row: NDArray[np.int64] | None = None
    """The row of each tuple within its origin; None where they count from 0."""
    progress: NDArray[np.int64] | None = None
    """How far its source was at each tuple; None where there is only one source."""
    before: int = NO_TIME
    """How far the source was before all of them, where there is only one."""

    def reached(self, last: int) -> int:
        """How far its source was at a tuple."""
        if self.progress is not None:
            return int(self.progress[last])
        one = Timed(self.times, self.slots, (), None)
        return one.reached(self.before, last + 1)

    @classmethod
    def of_one(cls, timed: Timed) -> Merged:
        """Tuples of one source."""
        rows = None
        if timed.first:
            rows = np.arange(timed.first, timed.first + len(timed.times))
        return cls(
            timed.times, timed.slots, timed.columns, (timed.origin,), row=rows, before=timed.before
        )


def merge(
    sources: Sequence[Iterator[Timed]], future: int, begin: Sequence[int] | None = None
) -> Iterator[Merged]:
    """Take tuples from all sources in order of progress, in chunks as large as can be.

    Holds one batch of each source. A single source passes through untouched. `begin` is how
    far each source was before, where they are not read from their beginnings.
    """
    if len(sources) == 1:
        yield from map(Merged.of_one, sources[0])
        return
    befores = [NO_TIME] * len(sources) if begin is None else begin
    heads = [_Head(source, future, last) for source, last in zip(sources, befores, strict=True)]
    while True:
        for head in heads:
            head.fill()
        waiting = [number for number, head in enumerate(heads) if head.left]
        if not waiting:
            return
        # what a source will bring comes after the last tuple it has shown
        bound, limit = min((heads[number].last, number) for number in waiting)
        parts = [heads[n].take(bound, inclusive=n <= limit) for n in waiting]
        yield _interleave([part for part in parts if len(part.progress)])


@dataclass(frozen=True, slots=True)
class _Part:
    """Some tuples in a row that are taken from one source's batch."""

    timed: Timed
    progress: NDArray[np.int64]
    rows: slice


class _Head:
    """What has been read of a source and not yet been taken."""

    def __init__(self, source: Iterator[Timed], future: int, last: int) -> None:
        self._source = source
        self._future = future
        self._ended = False
        self.timed: Timed | None = None
        self.progress: NDArray[np.int64] = np.empty(0, np.int64)
        self.start = 0
        self.last = last

    @property
    def left(self) -> int:
        """How many tuples wait."""
        return len(self.progress) - self.start

    def fill(self) -> None:
        """Read the next batch that holds anything, if all of this one was taken."""
        while not self.left and not self._ended:
            self.timed = next(self._source, None)
            self._ended = self.timed is None
            if self.timed is not None:
                self.progress = self.timed.progress(self.last, self._future)
                self.start = 0
                self.last = int(self.progress[-1]) if len(self.progress) else self.last

    def take(self, bound: int, *, inclusive: bool) -> _Part:
        """Take the next tuples whose progress is below `bound`, or at it."""
        if self.timed is None:
            raise AssertionError("nothing can be taken of a source that has ended")
        stop = int(self.progress.searchsorted(bound, "right" if inclusive else "left"))
        rows = slice(self.start, max(self.start, stop))
        self.start = rows.stop
        return _Part(self.timed, self.progress[rows], rows)


def _interleave(parts: list[_Part]) -> Merged:
    origins = tuple(part.timed.origin for part in parts)
    rows = [
        np.arange(part.timed.first + part.rows.start, part.timed.first + part.rows.stop)
        for part in parts
    ]
    if len(parts) == 1:
        cut = parts[0].timed.piece(parts[0].rows.start, parts[0].rows.stop)
        return Merged(cut.times, cut.slots, cut.columns, origins, None, rows[0], parts[0].progress)
    # a stable sort merges sorted runs in one pass and keeps the sources' order in ties
    progress = np.concatenate([part.progress for part in parts])
    order = np.argsort(progress, kind="stable")
    part_numbers = np.repeat(np.arange(len(parts), dtype=np.int32), [len(row) for row in rows])
    whole = ((part.timed.times, part.timed.slots, *part.timed.columns) for part in parts)
    times, slots, *others = (
        np.concatenate([array[part.rows] for part, array in zip(parts, arrays, strict=True)])[order]
        for arrays in zip(*whole, strict=True)
    )
    return Merged(
        times,
        slots,
        tuple(others),
        origins,
        part_numbers[order],
        np.concatenate(rows)[order],
        progress[order],
    )


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
