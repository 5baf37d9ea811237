"""Merge several sources into one order of arrival that does not depend on batch sizes.

A source's *progress* at a tuple is its largest event time so far. Three times do not count: one
that is more than `future` ahead of the progress before it, NO_TIME, and the time of a tuple without
a subject. So each tuple is judged by the watermark of its own source. Tuples are merged in order of
progress, then in order of the sources. Within a source they keep their order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tacit.events.masks import EventMasks
from tacit.events.times import NO_TIME
from tacit.pipeline.batches import EventBatch, MergedBatch


def merge(
    sources: Sequence[Iterator[EventBatch]], future: int, begin: Sequence[int] | None = None
) -> Iterator[MergedBatch]:
    """Merge the tuples of all sources in order of progress, in chunks as large as possible.

    Holds one batch of each source. A single source is not changed. `begin` is the progress of each
    source where reading starts, if that is not its beginning.
    """
    if len(sources) == 1:
        yield from map(MergedBatch.from_batch, sources[0])
        return
    befores = [NO_TIME] * len(sources) if begin is None else begin
    heads = [_Head(source, future, last) for source, last in zip(sources, befores, strict=True)]
    while True:
        for head in heads:
            for unreadable in head.fill():
                yield MergedBatch.from_batch(unreadable)
        waiting = [number for number, head in enumerate(heads) if head.left]
        if not waiting:
            return
        # later tuples of a source come after its last known tuple
        bound, limit = min((heads[number].last, number) for number in waiting)
        parts = [heads[n].take(bound, inclusive=n <= limit) for n in waiting]
        yield interleave_parts([part for part in parts if len(part.progress)])


@dataclass(frozen=True, slots=True)
class BatchPart:
    """Consecutive tuples from one source's batch."""

    batch: EventBatch
    progress: NDArray[np.int64]
    taken: slice

    def cut(self, begin: int, end: int) -> BatchPart:
        """Return consecutive tuples of these."""
        first = self.taken.start
        return BatchPart(self.batch, self.progress[begin:end], slice(first + begin, first + end))


class _Head:
    """The batch of a source that is read and not yet merged."""

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
        """How many tuples are left in the batch."""
        return len(self.progress) - self.start

    def fill(self) -> Iterator[EventBatch]:
        """Read the next batch with tuples, if this one is used up; yield those of lines alone."""
        while not self.left and not self._ended:
            self.batch = next(self._source, None)
            self._ended = self.batch is None
            if self.batch is not None:
                self.progress = self.batch.track_progress(self.last, self._future)
                self.start = 0
                self.last = int(self.progress[-1]) if len(self.progress) else self.last
                if self.batch.rows.rejected and not self.left:
                    yield self.batch

    def take(self, bound: int, *, inclusive: bool) -> BatchPart:
        """Take the next tuples whose progress is below `bound`, or at it."""
        if self.batch is None:
            raise AssertionError("nothing can be taken from a source that has ended")
        stop = int(self.progress.searchsorted(bound, "right" if inclusive else "left"))
        taken = slice(self.start, max(self.start, stop))
        self.start = taken.stop
        return BatchPart(self.batch, self.progress[taken], taken)


def interleave_parts(parts: Sequence[BatchPart]) -> MergedBatch:
    """Merge tuples by progress; those of each source must be in order already."""
    origins = tuple(part.batch.rows for part in parts)
    rows = [
        np.arange(part.batch.first + part.taken.start, part.batch.first + part.taken.stop)
        for part in parts
    ]
    if len(parts) == 1:
        cut = parts[0].batch.slice(parts[0].taken.start, parts[0].taken.stop)
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
        EventMasks.concatenate([part.batch.masks[part.taken] for part in parts])[order],
        origins,
        part_numbers[order],
        np.concatenate(rows)[order],
        progress[order],
    )
