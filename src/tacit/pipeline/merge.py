"""Several sources as one: an order of arrival that does not depend on how they are batched.

A source's *progress* at a tuple is the largest event time it has shown so far; a time
further ahead of the progress before it than `future` does not count, nor does NO_TIME, nor the
time of a tuple that names no subject. So the watermark that a tuple meets is its own source's.
Tuples are taken in order of progress, and where that is equal, in order of the sources;
within a source they keep their order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tacit.events.times import NO_TIME
from tacit.pipeline.batches import EventBatch, MergedBatch


def merge(
    sources: Sequence[Iterator[EventBatch]], future: int, begin: Sequence[int] | None = None
) -> Iterator[MergedBatch]:
    """Take tuples from all sources in order of progress, in chunks as large as can be.

    Holds one batch of each source. A single source passes through untouched. `begin` is how
    far each source was before, where they are not read from their beginnings.
    """
    if len(sources) == 1:
        yield from map(MergedBatch.of_one, sources[0])
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
class _BatchPart:
    """Some tuples in a row that are taken from one source's batch."""

    batch: EventBatch
    progress: NDArray[np.int64]
    taken: slice


class _Head:
    """What has been read of a source and not yet been taken."""

    def __init__(self, source: Iterator[EventBatch], future: int, last: int) -> None:
        self._source = source
        self._future = future
        self._ended = False
        self.batch: EventBatch | None = None
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
            self.batch = next(self._source, None)
            self._ended = self.batch is None
            if self.batch is not None:
                self.progress = self.batch.progress(self.last, self._future)
                self.start = 0
                self.last = int(self.progress[-1]) if len(self.progress) else self.last

    def take(self, bound: int, *, inclusive: bool) -> _BatchPart:
        """Take the next tuples whose progress is below `bound`, or at it."""
        if self.batch is None:
            raise AssertionError("nothing can be taken of a source that has ended")
        stop = int(self.progress.searchsorted(bound, "right" if inclusive else "left"))
        taken = slice(self.start, max(self.start, stop))
        self.start = taken.stop
        return _BatchPart(self.batch, self.progress[taken], taken)


def _interleave(parts: list[_BatchPart]) -> MergedBatch:
    origins = tuple(part.batch.rows for part in parts)
    rows = [
        np.arange(part.batch.first + part.taken.start, part.batch.first + part.taken.stop)
        for part in parts
    ]
    if len(parts) == 1:
        cut = parts[0].batch.piece(parts[0].taken.start, parts[0].taken.stop)
        return MergedBatch(
            cut.times, cut.slots, cut.masks, origins, None, rows[0], parts[0].progress
        )
    # a stable sort merges sorted runs in one pass and keeps the sources' order in ties
    progress = np.concatenate([part.progress for part in parts])
    order = np.argsort(progress, kind="stable")
    part_numbers = np.repeat(np.arange(len(parts), dtype=np.int32), [len(row) for row in rows])
    return MergedBatch(
        np.concatenate([part.batch.times[part.taken] for part in parts])[order],
        np.concatenate([part.batch.slots[part.taken] for part in parts])[order],
        np.concatenate([part.batch.masks[part.taken] for part in parts])[order],
        origins,
        part_numbers[order],
        np.concatenate(rows)[order],
        progress[order],
    )
