"""Merge the partitions of live sources, each with its own watermark.

A broker delivers one partition after the other. In that order, old tuples of one partition would
come after new tuples of another, and be late. So tuples wait until no partition is behind them:
those of a partition come in order of its progress (see `merge`), up to the least progress of the
partitions that are awaited. A partition is not awaited while its source says so (it is idle), nor
once it has sent tuples for `STUCK_SECONDS` whose times do not move its progress.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from tacit.pipeline.batches import EventBatch, MergedBatch
from tacit.pipeline.merge import BatchPart, interleave_parts

STUCK_SECONDS: Final = 5.0
"""Seconds after which a partition whose progress stands still is not awaited."""
_MOST_ROWS: Final = 1 << 18
"""The most tuples that wait in all partitions before some are paused."""


@dataclass(slots=True)
class _WaitingPartition:
    """The tuples of one partition that wait for others."""

    last: int
    """The progress at its newest tuple."""
    parts: deque[BatchPart] = field(default_factory=deque)
    count: int = 0
    awaited: bool = True
    stuck_since: float | None = None

    def add(self, batch: EventBatch, future: int, now: float) -> None:
        """Add tuples; without a tuple that moves the progress, the partition may be stuck."""
        progress = batch.track_progress(self.last, future)
        self.parts.append(BatchPart(batch, progress, slice(0, len(progress))))
        if not len(progress):
            return
        self.count += len(progress)
        if int(progress[-1]) > self.last:
            self.last, self.stuck_since = int(progress[-1]), None
        elif self.stuck_since is None:
            self.stuck_since = now

    def find_bound(self, now: float) -> float:
        """Return the progress up to which no more tuples can come; without limit if not awaited."""
        stuck = self.stuck_since is not None and now - self.stuck_since >= STUCK_SECONDS
        return self.last if self.awaited and not stuck else np.inf

    def pop(self, bound: float) -> Iterator[BatchPart]:
        """Remove the tuples up to this progress, and batches without tuples."""
        while self.parts:
            part = self.parts[0]
            size = len(part.progress)
            stop = size if bound == np.inf else int(part.progress.searchsorted(bound, "right"))
            if stop < size:
                if stop:
                    yield part.cut(0, stop)
                    self.parts[0] = part.cut(stop, size)
                    self.count -= stop
                return
            yield self.parts.popleft()
            self.count -= size


class PartitionMerge:
    """The partitions of all live inputs, by the number of the input and their names.

    `find_progress` returns the progress of a partition where reading starts.
    """

    def __init__(
        self,
        future: int,
        find_progress: Callable[[int, str], int],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._future = future
        self._find_progress = find_progress
        self._now = now
        self._partitions: dict[tuple[int, str], _WaitingPartition] = {}

    def add(self, number: int, name: str, batch: EventBatch, *, awaited: bool) -> None:
        """Add tuples of a partition, or none, and whether others wait for it from now on."""
        found = self._partitions.get((number, name))
        if found is None:
            found = _WaitingPartition(self._find_progress(number, name))
            self._partitions[number, name] = found
        found.awaited = awaited
        found.add(batch, self._future, self._now())

    def pop(self) -> Iterator[MergedBatch]:
        """Remove the tuples that need not wait any longer, in order."""
        now = self._now()
        bound = min((one.find_bound(now) for one in self._partitions.values()), default=np.inf)
        parts = [part for one in self._partitions.values() for part in one.pop(bound)]
        full = [part for part in parts if len(part.progress)]
        if full:
            yield interleave_parts(full)
        # Last: they must not move a position past tuples of their partition.
        for part in parts:
            if not len(part.progress):
                yield MergedBatch.from_batch(part.batch)

    def find_crowded(self, number: int) -> frozenset[str]:
        """Return the partitions of an input in which many tuples wait."""
        most = _MOST_ROWS // max(1, len(self._partitions))
        return frozenset(
            name
            for (input_, name), one in self._partitions.items()
            if input_ == number and one.count > most
        )
