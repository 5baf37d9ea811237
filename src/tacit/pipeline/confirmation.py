"""Tuples of a source, each as soon as it is known whether those after it confirm its time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from tacit.events.times import NO_TIME
from tacit.pipeline.batches import EventBatch
from tacit.windows.jumps import Jumps


def confirmed(
    source: Iterable[EventBatch], jumps: Jumps, front: int = NO_TIME
) -> Iterator[EventBatch]:
    """All tuples of a source; `front` is how far it was before."""
    confirmation = Confirmation(jumps, front)
    for batch in source:
        yield from confirmation.add(batch)
    yield from confirmation.finish()


class Confirmation:
    """Holds tuples back until it is decided whether their times are refused: at most a few.

    They come out in the same order, in other pieces, with marks in place of slots where times are
    refused. `front` is how far the source was before.
    """

    def __init__(self, jumps: Jumps, front: int = NO_TIME) -> None:
        self._jumps = jumps
        self._front = jumps.start if front == NO_TIME else front
        self._waiting: list[EventBatch] = []

    def add(self, batch: EventBatch) -> list[EventBatch]:
        """The tuples that are decided, now that these have come."""
        self._waiting.append(batch)
        return self._decide(ended=False)

    def finish(self) -> list[EventBatch]:
        """The tuples that are left, now that there are no more."""
        return self._decide(ended=True)

    def _decide(self, *, ended: bool) -> list[EventBatch]:
        waiting = self._waiting
        if not waiting:
            return []
        times, slots = waiting[0].times, waiting[0].slots
        if len(waiting) > 1:
            times = np.concatenate([batch.times for batch in waiting])
            slots = np.concatenate([batch.slots for batch in waiting])
        done, front = self._jumps.judge(times, slots, self._front, ended=ended)
        decided, self._waiting, begin = [], [], 0
        for batch in waiting:
            end = begin + len(batch.times)
            stop = max(begin, min(done, end))
            if stop > begin or done >= end:
                piece = batch.piece(0, stop - begin, slots[begin:stop])
                decided.append(replace(piece, before=self._front))
                self._front = front if stop == done else piece.reached(self._front)
            if done < end:
                self._waiting.append(batch.piece(stop - begin, end - begin))
            begin = end
        return decided
