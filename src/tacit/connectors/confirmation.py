"""Tuples of a source, each as soon as it is known whether those after it confirm its time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from tacit.connectors.merge import Timed
from tacit.events.times import NO_TIME
from tacit.windows.jumps import Jumps


def confirmed(source: Iterable[Timed], jumps: Jumps, front: int = NO_TIME) -> Iterator[Timed]:
    """All tuples of a source; `front` is how far it was before."""
    confirmation = Confirmation(jumps, front)
    for timed in source:
        yield from confirmation.add(timed)
    yield from confirmation.finish()


class Confirmation:
    """Holds tuples back until it is decided whether their times are refused: at most a few.

    They come out in the same order, in other pieces, with marks in place of slots where times are
    refused. `front` is how far the source was before.
    """

    def __init__(self, jumps: Jumps, front: int = NO_TIME) -> None:
        self._jumps = jumps
        self._front = jumps.start if front == NO_TIME else front
        self._waiting: list[Timed] = []

    def add(self, timed: Timed) -> list[Timed]:
        """The tuples that are decided, now that these have come."""
        self._waiting.append(timed)
        return self._decide(ended=False)

    def finish(self) -> list[Timed]:
        """The tuples that are left, now that there are no more."""
        return self._decide(ended=True)

    def _decide(self, *, ended: bool) -> list[Timed]:
        waiting = self._waiting
        if not waiting:
            return []
        times, slots = waiting[0].times, waiting[0].slots
        if len(waiting) > 1:
            times = np.concatenate([timed.times for timed in waiting])
            slots = np.concatenate([timed.slots for timed in waiting])
        done, front = self._jumps.judge(times, slots, self._front, ended=ended)
        decided, self._waiting, begin = [], [], 0
        for timed in waiting:
            end = begin + len(timed.times)
            stop = max(begin, min(done, end))
            if stop > begin or done >= end:
                piece = timed.piece(0, stop - begin, slots[begin:stop])
                decided.append(replace(piece, before=self._front))
                self._front = front if stop == done else piece.reached(self._front)
            if done < end:
                self._waiting.append(timed.piece(stop - begin, end - begin))
            begin = end
        return decided
