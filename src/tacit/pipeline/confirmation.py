"""Delay the tuples of a source until later tuples confirm or refute their times."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Generic, TypeVar

import numpy as np

from tacit.events.times import NO_TIME
from tacit.pipeline.batches import EventBatch, MergedBatch
from tacit.windows.jumps import Jumps
from tacit.windows.runs import NO_EXTENTS

T = TypeVar("T", EventBatch, MergedBatch)


def confirm(
    source: Iterable[EventBatch], jumps: Jumps, front: int = NO_TIME
) -> Iterator[EventBatch]:
    """Check all tuples of a source; `front` is its progress before them."""
    confirmation = Confirmation[EventBatch](jumps, front)
    for batch in source:
        yield from confirmation.add(batch)
    yield from confirmation.finish()


class Confirmation(Generic[T]):
    """Holds the few tuples for which it is not decided yet whether their times are refused.

    It returns them in the same order, in other batches. Where a time is refused, a mark replaces
    the slot. `front` is the source's progress before the first tuple.
    """

    def __init__(self, jumps: Jumps, front: int = NO_TIME) -> None:
        self._jumps = jumps
        self._front = jumps.start if front == NO_TIME else front
        self._waiting: list[T] = []

    def add(self, batch: T) -> list[T]:
        """Add tuples and return those that are decided now."""
        if self._waiting and not len(batch.times) and not batch.has_rejected:
            return []  # an idle source decides nothing
        self._waiting.append(batch)
        return self._decide(ended=False)

    def finish(self) -> list[T]:
        """End the input and return the tuples that are left."""
        return self._decide(ended=True)

    def _decide(self, *, ended: bool) -> list[T]:
        waiting = self._waiting
        if not waiting:
            return []
        times, slots, extents = waiting[0].times, waiting[0].slots, waiting[0].extents
        if len(waiting) > 1:
            times = np.concatenate([batch.times for batch in waiting])
            slots = np.concatenate([batch.slots for batch in waiting])
            extents = NO_EXTENTS
            waiting = [replace(batch, extents=extents, staged=None) for batch in waiting]
        done, front, slots = self._jumps.judge(
            times, slots, self._front, ended=ended, extents=extents
        )
        decided: list[T] = []
        self._waiting, begin = [], 0
        for batch in waiting:
            end = begin + len(batch.times)
            stop = max(begin, min(done, end))
            if stop > begin or done >= end:
                piece = batch.slice(0, stop - begin, slots[begin:stop])
                decided.append(replace(piece, before=self._front))
                self._front = front if stop == done else piece.find_last_progress(self._front)
            if done < end:
                self._waiting.append(batch.slice(stop - begin, end - begin))
            begin = end
        return decided
