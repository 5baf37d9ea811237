"""A single tuple cannot move a source's time far: a jump needs a second tuple to confirm it.

A source's *front* is its largest time so far. A tuple may move it by `jump`. A tuple that is
further ahead waits for the tuples after it, in order of arrival:

- A tuple more than `jump` behind it: the waiting tuple is refused as UNCONFIRMED.
- A tuple of another subject that is not: the waiting tuple is confirmed and moves the front.
- A tuple of the same subject that is not: it is counted, and the tenth in a row confirms the
  waiting tuple. So a subject that sends alone for a while does not wait forever.

If the source ends before that, the tuple is refused. A tuple more than `future` ahead of the front
is refused at once as FUTURE, and neither confirms nor refuses others.

The first tuple of a source has no front before it. It is confirmed in the same way: by one tuple of
another subject that agrees with it, or by nine more of its own subject. Tuples more than `jump`
behind or `future` ahead of it disagree, and ten of them refuse it. If the source ends before that,
it is accepted.

Tuples without a time or without a registered subject neither wait nor count. If there is only one
subject, it may move the front by `future`, and its second tuple confirms its first.

The result depends only on the order of arrival, not on batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tacit.events.columns import freeze
from tacit.kernels import compiled
from tacit.windows.clock import FUTURE_SLOT, NONE, REACH, UNCONFIRMED_SLOT
from tacit.windows.runs import NO_EXTENTS, RUN, RunExtents, find_span
from tacit.windows.schedule import Windows

IN_A_ROW: Final = 10
"""The number of tuples of one subject in a row that confirm the first of them."""
AGAINST: Final = 10
"""The number of disagreeing tuples that refuse a source's first tuple."""
_REFUSED, _CONFIRMED, _WAITING = 0, 1, 2
_REFUSALS: Final = -1
"""Instead of a number of tuples: there are tuples to refuse."""


@dataclass(frozen=True, slots=True)
class Jumps:
    """How far ahead of its source's front a tuple may be: unconfirmed, and at most."""

    jump: int
    future: int
    start: int = NONE
    """The start of the schedule, if it is given: the front before the first tuple."""
    alone: bool = False
    """Whether there is only one subject, so that no other can confirm a tuple."""

    @classmethod
    def of(cls, windows: Windows, *, alone: bool) -> Jumps:
        """Return the limits of a specification's windows."""
        start = NONE if windows.start_time is None else windows.start_time
        return cls(*windows.jumps, start, alone)

    def judge(
        self,
        times: NDArray[np.int64],
        slots: NDArray[np.int32],
        front: int,
        *,
        ended: bool,
        extents: RunExtents = NO_EXTENTS,
    ) -> tuple[int, int, NDArray[np.int32]]:
        """Return how many tuples are decided, the front of the source after them, and the slots.

        These are a copy if tuples are refused: a marker replaces the slot of each, and the least
        slot of its run. `ended` says that no tuple follows these. `extents` are those of their
        runs, if they are known.
        """
        jump = self.future if self.alone else min(self.jump, self.future)
        enough = 2 if self.alone else IN_A_ROW
        limits = jump, self.future, enough, ended
        times, slots, runs = freeze(times), freeze(slots), (extents.latest, extents.least)
        done, now = _judge(times, slots, front, *limits, *runs, np.empty(0, np.int32))
        if done != _REFUSALS:
            return int(done), int(now), slots
        marked = slots.copy()
        done, now = _judge(times, slots, front, *limits, *runs, marked)
        return int(done), int(now), freeze(marked)


@compiled
def _decide(
    times: NDArray[np.int64],
    slots: NDArray[np.int32],
    place: int,
    front: np.int64,
    jump: int,
    future: int,
    enough: int,
    ended: bool,
) -> int:
    """Decide a tuple that is ahead of the front or the first, by the tuples after it."""
    time, slot = times[place], slots[place]
    agreed, against = 1, 0
    for i in range(place + 1, len(times)):
        other = times[i]
        if slots[i] < 0 or other < -REACH or other > REACH:
            continue
        if front == NONE:
            if other < time - jump or other - time > future:
                against += 1
                if against == AGAINST:
                    return _REFUSED
                continue
        elif other - front > future:
            continue
        elif other < time - jump:
            return _REFUSED
        agreed += 1
        if slots[i] != slot or agreed == enough:
            return _CONFIRMED
    if not ended:
        return _WAITING
    return _CONFIRMED if front == NONE else _REFUSED


@compiled
def _judge(
    times: NDArray[np.int64],
    slots: NDArray[np.int32],
    front: int,
    jump: int,
    future: int,
    enough: int,
    ended: bool,
    latest_of: NDArray[np.int64],
    least_of: NDArray[np.int32],
    marked: NDArray[np.int32],
) -> tuple[int, np.int64]:
    """Judge all tuples; if one is refused and there is no room to mark it, return _REFUSALS."""
    now = np.int64(front)
    run_to = 0
    i = -1
    while i + 1 < len(times):
        i += 1
        if i >= run_to and now != NONE:
            # Most runs have no tuple far ahead and no unregistered subject.
            run = i // RUN
            run_to = min((run + 1) * RUN, len(times))
            if i == run * RUN and run < len(latest_of):
                latest, least = latest_of[run], least_of[run]
            else:
                _, latest, least = find_span(times[i:run_to], slots[i:run_to])
            if least >= 0 and latest - now <= jump:
                now = max(now, latest)
                i = run_to - 1
                continue
        slot, time = slots[i], times[i]
        if slot < 0 or time < -REACH or time > REACH:
            continue
        if now != NONE:
            if time - now <= jump:
                now = max(now, time)
                continue
            if time - now > future:
                if len(marked) == 0:
                    return _REFUSALS, now
                marked[i] = FUTURE_SLOT
                if i // RUN < len(least_of):
                    least_of[i // RUN] = FUTURE_SLOT
                continue
        outcome = _decide(times, slots, i, now, jump, future, enough, ended)
        if outcome == _WAITING:
            return i, now
        if outcome == _REFUSED:
            if len(marked) == 0:
                return _REFUSALS, now
            marked[i] = UNCONFIRMED_SLOT
            if i // RUN < len(least_of):
                least_of[i // RUN] = UNCONFIRMED_SLOT
        else:
            now = max(now, time)
    return len(times), now
