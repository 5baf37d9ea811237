"""One tuple does not move a source's time far by itself: a jump needs a second tuple.

A source's *front* is the largest time that it has shown so far. A tuple may move it by `jump`.
One that is further ahead waits for the tuples after it, in order of arrival:

- One that lies more than `jump` behind it: the first is refused, as UNCONFIRMED.
- One of another subject that does not: the first is confirmed, and moves the front.
- One of the same subject that does not: it counts, and the tenth in a row confirms the first. So
  a subject that is alone for a while does not wait for ever.

If the source ends before that, the tuple is refused. One that is more than `future` ahead of the
front is refused at once, as FUTURE, and counts for nothing.

The first tuple of a source has no front before it. It is confirmed in the same way: by one tuple
of another subject that agrees with it, or by nine of its own. Those that lie more than `jump`
behind or `future` ahead of it do not agree, and ten of them refuse it. If the source ends before
that, it is taken.

Tuples without a time, or of nobody who is registered, neither wait nor count. Where there is only
one subject, it may move the front by `future`, and its second tuple confirms its first.

What becomes of a tuple depends on the order of arrival alone, not on batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tacit.kernels import compiled
from tacit.windows.clock import FUTURE_SLOT, NONE, REACH, UNCONFIRMED_SLOT
from tacit.windows.runs import RUN
from tacit.windows.schedule import Windows

IN_A_ROW: Final = 10
"""So many tuples of one subject in a row confirm the first of them."""
AGAINST: Final = 10
"""So many tuples that do not agree with the first one refuse it."""
_REFUSED, _CONFIRMED, _WAITING = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Jumps:
    """How far ahead of its source's front a tuple may be: by itself, and at all."""

    jump: int
    future: int
    start: int = NONE
    """Where the schedule begins, if that is given: the front before the first tuple."""
    alone: bool = False
    """Whether there is only one subject, so that no other can confirm anything."""

    @classmethod
    def of(cls, windows: Windows, *, alone: bool) -> Jumps:
        """What a specification says of it."""
        start = NONE if windows.start_time is None else windows.start_time
        return cls(*windows.jumps, start, alone)

    def judge(
        self, times: NDArray[np.int64], slots: NDArray[np.int32], front: int, *, ended: bool
    ) -> tuple[int, int]:
        """How many tuples are decided, and how far the source is then.

        In `slots` a mark takes the place of those that are refused. `ended` says that no tuple
        comes after these.
        """
        jump = self.future if self.alone else min(self.jump, self.future)
        enough = 2 if self.alone else IN_A_ROW
        done, now = _judge(times, slots, front, jump, self.future, enough, ended)
        return int(done), int(now)


@compiled
def _latest(times: NDArray[np.int64], slots: NDArray[np.int32]) -> tuple[np.int64, np.int32]:
    """The latest time of some tuples, and the least slot."""
    latest, least = times[0], slots[0]
    for i in range(len(times)):
        latest = max(latest, times[i])
    for i in range(len(slots)):
        least = min(least, slots[i])
    return latest, least


@compiled
def _outcome(
    times: NDArray[np.int64],
    slots: NDArray[np.int32],
    place: int,
    front: np.int64,
    jump: int,
    future: int,
    enough: int,
    ended: bool,
) -> int:
    """What becomes of a tuple that is ahead of the front, or is the first, by those after it."""
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
) -> tuple[int, np.int64]:
    now = np.int64(front)
    run_to = 0
    i = -1
    while i + 1 < len(times):
        i += 1
        if i >= run_to and now != NONE:
            # Most runs of tuples hold nothing that is far ahead, and nobody unknown.
            run_to = min(i + RUN, len(times))
            latest, least = _latest(times[i:run_to], slots[i:run_to])
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
                slots[i] = FUTURE_SLOT
                continue
        outcome = _outcome(times, slots, i, now, jump, future, enough, ended)
        if outcome == _WAITING:
            return i, now
        if outcome == _REFUSED:
            slots[i] = UNCONFIRMED_SLOT
        else:
            now = max(now, time)
    return len(times), now
