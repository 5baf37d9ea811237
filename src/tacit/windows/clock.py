"""Event time: which tuples are accepted, the watermark, and which windows are closed.

The rules apply to each tuple in order of arrival, so they do not depend on how the input is split
into batches. The watermark for a tuple is that of the tuples before it.

If windows close by the wall clock, `Clock.tick` sets the watermark, and no tuple moves it. The
schedule then begins with the window of the first tick. After an outage the watermark can be held
back while the engine catches up, as far as the capacity for open windows allows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tacit.buffers import allocate
from tacit.events.columns import freeze
from tacit.kernels import compiled
from tacit.windows.runs import NO_EXTENTS, RUN, RunExtents, find_span

TAKEN: Final = 0
NO_SUBJECT: Final = 1
NO_TIME: Final = 2
UNREGISTERED: Final = 3
LATE: Final = 4
FUTURE: Final = 5
BEFORE_START: Final = 6
UNCONFIRMED: Final = 7

REASONS: Final = {
    NO_SUBJECT: "no subject: it is null or empty",
    NO_TIME: "no time: it is null or cannot be read",
    UNREGISTERED: "the subject is not registered for this window",
    LATE: "late: its window is closed",
    FUTURE: "too far in the future: more than windows.future ahead of what was seen so far",
    BEFORE_START: "before windows.start",
    UNCONFIRMED: "far ahead by itself: more than windows.jump ahead, and nothing confirms it",
}
NO_SUBJECT_SLOT: Final = -2
"""The slot of a tuple without a subject; -1 is a subject that is not registered."""
UNCONFIRMED_SLOT: Final = -3
"""The slot of a tuple that was refused as UNCONFIRMED before it reached the clock."""
FUTURE_SLOT: Final = -4
"""The slot of a tuple that was refused as FUTURE before it reached the clock."""

NONE: Final = np.iinfo(np.int64).min
"""A time or window that does not exist (yet)."""
NEVER: Final = np.iinfo(np.int64).max
"""`since` of a subject that is not registered."""
REACH: Final = 1 << 61
"""Times further than this from the epoch are treated as missing."""

# Places in the clock's state.
_NEWEST, _LEAST, _NEXT, _REFUSED, _MARK = 0, 1, 2, 3, 4


@dataclass(slots=True)
class Verdicts:
    """Whether tuples are accepted: for each tuple, and for runs of tuples."""

    each: NDArray[np.uint8]
    """TAKEN, or the reason for refusing the tuple."""
    runs: NDArray[np.int64]
    """The window that contains all tuples of a run; NONE if there is no such window or unknown.

    The array may be shorter than the number of runs.
    """

    @classmethod
    def allocate(cls, count: int) -> Verdicts:
        """Allocate verdicts for `count` tuples."""
        return cls(allocate(count, np.uint8), np.empty(-(-count // RUN), np.int64))

    @classmethod
    def of(cls, each: NDArray[np.uint8]) -> Verdicts:
        """Build verdicts without information about runs."""
        return cls(each, np.empty(0, np.int64))


@dataclass(frozen=True, slots=True)
class Clock:
    """Accepts or refuses tuples in order of arrival.

    `state` is plain data: the largest accepted time, the first window of the schedule, the first
    window that has not been popped, the number of refused tuples, and, if it ticks, the time by
    which windows are closed. `capacity` is the largest number of open windows. If a tuple is
    beyond that, `judge` stops until older windows are popped; a ticking clock refuses such a
    tuple as too far in the future.
    """

    size: int
    lateness: int
    future: int
    start: int | None
    capacity: int
    state: NDArray[np.int64]
    ticking: bool = False
    """Whether windows close by the wall clock."""

    @classmethod
    def initial(
        cls,
        size: int,
        lateness: int,
        future: int,
        start: int | None,
        capacity: int,
        *,
        ticking: bool = False,
    ) -> Clock:
        """Return a clock before the first tuple."""
        first = NONE if start is None else start // size
        state = np.array([NONE, first, first, 0, NONE], dtype=np.int64)
        return cls(size, lateness, future, start, capacity, state, ticking)

    def tick(self, now: int, *, catching_up: bool = False) -> None:
        """Set the wall-clock time; setting it back does not reopen windows.

        While `catching_up`, windows stay open if there is room for them beside the current ones.
        """
        if not self.ticking:
            raise AssertionError("only a wall clock can tick")
        if self.state[_LEAST] == NONE:
            self.state[_LEAST] = self.state[_NEXT] = now // self.size
        newest = self.state[_NEWEST] = max(int(self.state[_NEWEST]), now)
        mark = self._least_mark(int(newest)) if catching_up else int(newest)
        self.state[_MARK] = max(int(self.state[_MARK]), mark)

    def _least_mark(self, now: int) -> int:
        """Return the least watermark that leaves room for current windows and some ahead.

        Half of the room beyond the lateness is for tuples that are ahead.
        """
        spare = (self.capacity - -(-self.lateness // self.size) - 2) * self.size
        ahead = min(self.future, self.size + spare // 2)
        return ((now + ahead) // self.size + 1 - self.capacity) * self.size + self.lateness

    @property
    def newest(self) -> int | None:
        """The largest accepted time."""
        return None if self.state[_NEWEST] == NONE else int(self.state[_NEWEST])

    @property
    def first_window(self) -> int | None:
        """The first window of the schedule."""
        return None if self.state[_LEAST] == NONE else int(self.state[_LEAST])

    @property
    def next_window(self) -> int:
        """The first window that has not been popped; undefined before the first tuple."""
        return int(self.state[_NEXT])

    @property
    def closed(self) -> int:
        """The first window that is still open: all before it are closed."""
        mark = int(self.state[_MARK if self.ticking else _NEWEST])
        return self.next_window if mark == NONE else (mark - self.lateness) // self.size

    def read_status(self) -> tuple[bool, int]:
        """Return whether closed windows are ready to be popped, and how many tuples were refused.

        This is called for each batch, so the state is read at once.
        """
        state = self.state.tolist()
        mark = state[_MARK if self.ticking else _NEWEST]
        due = mark != NONE and (mark - self.lateness) // self.size > state[_NEXT]
        return due, state[_REFUSED]

    @property
    def next_close(self) -> int:
        """The time at which the next window closes; undefined before the first tuple."""
        return (self.next_window + 1) * self.size + self.lateness

    @property
    def reachable(self) -> int:
        """The first window that no tuple can have reached; if it ticks, tuples cannot change it."""
        if self.newest is None:
            return self.next_window
        ahead = (self.newest + self.future) // self.size + 1
        return max(self.ended, min(self.next_window + self.capacity, ahead))

    @property
    def ended(self) -> int:
        """The window after the newest: the end of input closes all windows before it."""
        newest = self.newest
        return self.next_window if newest is None else newest // self.size + 1

    def mark_closed(self, window: int) -> None:
        """Record that all windows before this one have been popped."""
        self.state[_NEXT] = max(self.next_window, window)

    def judge(
        self,
        slots: NDArray[np.int32],
        times: NDArray[np.int64],
        since: NDArray[np.int64],
        begin: int,
        learning: int,
        settled: bool,
        verdicts: Verdicts,
        extents: RunExtents = NO_EXTENTS,
    ) -> int:
        """Accept or refuse tuples from `begin` on; return the index after the last one judged.

        `since` is the first window for which each subject is registered; if `settled`, all are
        registered for the whole schedule. If `learning` is positive, a new subject becomes
        registered by an accepted tuple that is less than `learning` after the start of the first
        window. `extents` are those of the runs of these tuples, if they are known.
        """
        if self.ticking and self.newest is None:
            raise AssertionError("a wall clock must tick before it judges")
        return _judge(
            freeze(slots),
            freeze(times),
            since,
            begin,
            learning,
            self.size,
            self.lateness,
            self.future,
            self.capacity,
            self.start is not None or self.ticking,
            self.ticking,
            settled,
            self.state,
            verdicts.each,
            verdicts.runs,
            extents.earliest,
            extents.latest,
            extents.least,
        )


@compiled
def _judge(
    slots: NDArray[np.int32],
    times: NDArray[np.int64],
    since: NDArray[np.int64],
    begin: int,
    learning: int,
    size: int,
    lateness: int,
    future: int,
    capacity: int,
    started: bool,
    ticking: bool,
    settled: bool,
    state: NDArray[np.int64],
    verdicts: NDArray[np.uint8],
    runs: NDArray[np.int64],
    earliest_of: NDArray[np.int64],
    latest_of: NDArray[np.int64],
    least_of: NDArray[np.int32],
) -> int:
    newest, least, next_window = state[0], state[1], state[2]
    schedule_from = least * size if least != NONE else np.int64(NONE)
    # Popped windows stay closed; at the end of input these are more than the late ones.
    popped_to = next_window * size if next_window != NONE else np.int64(NONE)
    open_from = np.int64(NONE)
    if newest != NONE:
        mark = state[4] if ticking else newest
        open_from = max((mark - lateness) // size * size, popped_to)
    held_to = (next_window + capacity) * size if next_window != NONE else np.int64(NONE)
    # Between these two times a tuple changes only `newest`. Most tuples are there, and a whole
    # run of them is accepted at once.
    quiet_from = quiet_to = np.int64(0)
    if newest != NONE:
        quiet_from = max(open_from, schedule_from)
        quiet_to = min(held_to, newest + future + 1)
        if not ticking:
            quiet_to = min(quiet_to, open_from + size + lateness)
    runs[begin // RUN :] = NONE
    run_to = begin
    refused = 0
    stop = len(times)
    i = begin - 1
    while i + 1 < len(times):
        i += 1
        if settled and i >= run_to:
            run_to = min((i // RUN + 1) * RUN, len(times))
            run = i // RUN
            if i == run * RUN and run < len(earliest_of):
                earliest, latest, least_slot = earliest_of[run], latest_of[run], least_of[run]
            else:
                earliest, latest, least_slot = find_span(times[i:run_to], slots[i:run_to])
            if least_slot >= 0 and quiet_from <= earliest and latest < quiet_to:
                if not ticking:
                    newest = max(newest, latest)
                verdicts[i:run_to] = TAKEN
                if i // RUN < len(runs) and earliest // size == latest // size:
                    runs[i // RUN] = latest // size
                i = run_to - 1
                continue
        slot, time = slots[i], times[i]
        if slot >= 0 and quiet_from <= time < quiet_to and (settled or since[slot] == NONE):
            if not ticking:
                newest = max(newest, time)
            verdicts[i] = TAKEN
            continue
        if slot < 0:
            verdicts[i] = UNREGISTERED
            if slot == NO_SUBJECT_SLOT:
                verdicts[i] = NO_SUBJECT
            elif slot == UNCONFIRMED_SLOT:
                verdicts[i] = UNCONFIRMED
            elif slot == FUTURE_SLOT:
                verdicts[i] = FUTURE
            refused += 1
            continue
        if time < -REACH or time > REACH:
            verdicts[i] = NO_TIME
            refused += 1
            continue
        if started and time < schedule_from:
            verdicts[i] = BEFORE_START
            refused += 1
            continue
        if newest != NONE and time < open_from:
            verdicts[i] = LATE
            refused += 1
            continue
        seen = newest if newest != NONE else schedule_from
        if (seen != NONE and time - seen > future) or (ticking and time >= held_to):
            verdicts[i] = FUTURE
            refused += 1
            continue
        registered = since[slot]
        if registered != NONE and (registered == NEVER or time < registered * size):
            new = registered == NEVER and learning > 0
            if not new or (newest != NONE and time >= schedule_from + learning):
                verdicts[i] = UNREGISTERED
                refused += 1
                continue
            since[slot] = NONE
        if ticking:
            verdicts[i] = TAKEN
            continue
        if newest == NONE and not started:
            least, next_window = time // size, (time - lateness) // size
            popped_to, held_to = next_window * size, (next_window + capacity) * size
        least = min(least, time // size)
        newest = max(newest, time)
        open_from = max((newest - lateness) // size * size, popped_to)
        schedule_from = least * size
        if time >= held_to:
            stop = i  # the tuple has moved the clock; judge it again when there is room
            break
        verdicts[i] = TAKEN
        quiet_from = max(open_from, schedule_from)
        quiet_to = min(held_to, open_from + size + lateness, newest + future + 1)
    state[0], state[1], state[2] = newest, least, next_window
    state[3] += refused
    return stop
