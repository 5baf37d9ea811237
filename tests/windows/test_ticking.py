"""Windows that close by the clock on the wall: no tuple moves it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tacit.windows.clock import BEFORE_START, FUTURE, LATE, NONE, TAKEN, Clock, Verdicts

SIZE, LATENESS, FUTURE_BOUND, CAPACITY = 10, 4, 15, 4


def ticking(start: int | None = None) -> Clock:
    """A clock on the wall that has not been told anything."""
    return Clock.initial(SIZE, LATENESS, FUTURE_BOUND, start, CAPACITY, ticking=True)


def judged(clock: Clock, times: list[int], settled: bool = True) -> list[int]:
    """What becomes of tuples at these times."""
    verdicts: NDArray[np.uint8] = np.full(len(times), 99, np.uint8)
    slots = np.zeros(len(times), np.int32)
    since = np.full(1, NONE)
    end = clock.judge(slots, np.array(times, np.int64), since, 0, 0, settled, Verdicts.of(verdicts))
    assert end == len(times)
    return [int(verdict) for verdict in verdicts]


def test_windows_close_when_the_clock_has_passed_their_end_and_the_lateness() -> None:
    """Whether or not anything came."""
    clock = ticking()
    clock.tick(25)
    assert (clock.first_window, clock.closed) == (2, 2)
    clock.tick(33)
    assert clock.closed == 2
    clock.tick(34)
    assert clock.closed == 3


def test_no_tuple_moves_the_clock() -> None:
    clock = ticking()
    clock.tick(25)
    assert judged(clock, [39, 20, 26]) == [TAKEN, TAKEN, TAKEN]
    assert (clock.newest, clock.closed) == (25, 2)


def test_a_clock_that_is_set_back_opens_no_window_again() -> None:
    clock = ticking()
    clock.tick(54)
    clock.mark_closed(clock.closed)
    clock.tick(20)
    assert clock.closed == 5
    assert judged(clock, [49, 50]) == [BEFORE_START, TAKEN]


def test_the_future_begins_at_the_clock() -> None:
    """And ends where no window can be held."""
    clock = ticking()
    clock.tick(25)
    assert judged(clock, [40, 41, 26]) == [TAKEN, FUTURE, TAKEN]
    slow = Clock.initial(SIZE, LATENESS, 1000, None, CAPACITY, ticking=True)
    slow.tick(25)
    assert judged(slow, [59, 60]) == [TAKEN, FUTURE]


def test_a_clock_must_be_told_the_time_before_it_judges() -> None:
    with pytest.raises(AssertionError, match="tick"):
        judged(ticking(), [1])
    with pytest.raises(AssertionError, match="wall"):
        Clock.initial(SIZE, LATENESS, FUTURE_BOUND, None, CAPACITY).tick(1)


@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 90)), max_size=40),
    st.one_of(st.none(), st.integers(0, 60)),
    st.booleans(),
)
def test_verdicts_follow_the_rules_one_tuple_at_a_time(
    steps: list[tuple[bool, int]], start: int | None, settled: bool
) -> None:
    """A step tells the time or brings a tuple."""
    clock = ticking(start)
    clock.tick(20)
    now, first = 20, 2 if start is None else start // SIZE
    for tells, time in steps:
        if tells:
            clock.tick(time)
            clock.mark_closed(clock.closed)
            now = max(now, time)
            continue
        handed = max(first, (now - LATENESS) // SIZE)
        if time < first * SIZE:
            verdict = BEFORE_START
        elif time // SIZE < (now - LATENESS) // SIZE:
            verdict = LATE
        elif time > now + FUTURE_BOUND or time >= (handed + CAPACITY) * SIZE:
            verdict = FUTURE
        else:
            verdict = TAKEN
        assert judged(clock, [time], settled) == [verdict]


def test_what_an_end_of_input_closed_stays_closed() -> None:
    """Tuples that come after it are late, though by event time they would not be."""
    clock = Clock.initial(SIZE, LATENESS, 1000, None, CAPACITY)
    assert judged(clock, [5, 12]) == [TAKEN, TAKEN]
    clock.mark_closed(clock.ended)
    assert judged(clock, [13, 11, 21, 19], settled=False) == [LATE, LATE, TAKEN, LATE]
    assert judged(clock, [15, 22]) == [LATE, TAKEN]


def caught(clock: Clock, now: int) -> None:
    """Tell the time after an outage."""
    clock.tick(now, catching_up=True)
    clock.mark_closed(clock.closed)


def test_after_an_outage_windows_stay_open_as_far_as_they_can_be_held() -> None:
    """Those of now must be held as well, with a window of room for tuples that are ahead."""
    clock = ticking()
    clock.tick(25)
    caught(clock, 44)
    assert clock.closed == 2
    assert judged(clock, [19, 20, 44, 59, 60]) == [BEFORE_START, TAKEN, TAKEN, TAKEN, FUTURE]
    caught(clock, 1003)
    assert clock.closed == 98
    assert judged(clock, [979, 980, 1003, 1018, 1019]) == [LATE, TAKEN, TAKEN, TAKEN, FUTURE]
    clock.tick(1003)
    assert clock.closed == 99
    assert judged(clock, [980, 990]) == [LATE, TAKEN]


@given(
    st.integers(1, 30), st.integers(0, 90), st.integers(0, 200), st.integers(0, 40),
    st.integers(0, 500), st.integers(0, 3000),
)  # fmt: skip
def test_no_outage_is_so_long_that_tuples_of_now_are_refused(
    size: int, lateness: int, future: int, spare: int, stopped: int, outage: int
) -> None:
    """Nor closes it, while it is caught up with, what would be open without it."""
    capacity = -(-lateness // size) + 2 + spare
    clock = Clock.initial(size, lateness, future, None, capacity, ticking=True)
    clock.tick(stopped)
    clock.mark_closed(clock.closed)
    now, before = stopped + outage, clock.closed
    caught(clock, now)
    assert before <= clock.closed <= max(before, (now - lateness) // size)
    ahead = now + min(future, size + spare * size // 2)
    assert judged(clock, [now, ahead]) == [TAKEN, TAKEN]
    needless = clock.closed > before and clock.closed + capacity > ahead // size + 1
    assert not needless


def test_a_clock_tells_when_the_next_window_closes() -> None:
    clock = ticking()
    clock.tick(25)
    assert clock.next_close == 34
    clock.tick(34)
    clock.mark_closed(clock.closed)
    assert clock.next_close == 44
