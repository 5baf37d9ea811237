"""Long batches: what is known about a run of tuples does not change its windows."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from tacit.events.masks import EventMasks
from tacit.patterns.language import parse_pattern
from tacit.patterns.matcher import Matcher
from tacit.windows.clock import NONE, TAKEN, Clock, Verdicts
from tacit.windows.panes import ClosedPanes, Panes
from tacit.windows.runs import RUN, RunExtents

SIZE, LATENESS, SLOTS = 6_000_000, 1_000_000, 700
TYPES = ("a", "b", "c", "d")
MATCHER = Matcher([parse_pattern(text) for text in ("SEQ(a, b, c)", "SEQ(c, a)")], TYPES)
ONE_EACH = np.array([[1], [2], [4], [8]], np.uint64)
SEVERAL = np.array([[1], [2], [4], [3]], np.uint64)


def draw(
    seed: int, disorder: int
) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.uint8]]:
    """Draw slots, nearly sorted times, and codes; a few subjects and times are unknown or late."""
    rng = np.random.default_rng(seed)
    count = 100 * RUN + 77
    slots = rng.integers(0, SLOTS, count).astype(np.int32)
    slots[rng.integers(0, count, 3)] = -1
    arrivals = np.sort(rng.integers(0, 5 * SIZE, count))
    delays = rng.integers(0, disorder + 1, SLOTS)[slots] + rng.integers(
        0, disorder // 50 + 1, count
    )
    times = np.maximum(arrivals - delays, 0) // 5_000 * 5_000  # some are equal
    times[rng.integers(60 * RUN, count, 5)] -= 2 * SIZE
    return slots, times.astype(np.int64), rng.integers(0, 4, count).astype(np.uint8)


def close_all(
    slots: NDArray[np.int32],
    times: NDArray[np.int64],
    masks: EventMasks,
    *,
    known: bool,
    batch: int,
) -> tuple[list[ClosedPanes], NDArray[np.uint8]]:
    """Insert in batches as an engine does, window by window; return them and all verdicts."""
    automaton = MATCHER.automaton
    assert automaton is not None
    panes = Panes(SIZE, 3, SLOTS, MATCHER.ordered_types, automaton)
    clock = Clock.initial(SIZE, LATENESS, 10 * SIZE, None, panes.capacity)
    since = np.full(SLOTS, NONE, np.int64)
    closed, judged = [], []
    for start in range(0, len(times), batch):
        part = slice(start, start + batch)
        own_slots, own_times, own_masks = slots[part], times[part], masks[part]
        extents = RunExtents.measure(own_times, own_slots)
        verdicts = Verdicts.allocate(len(own_times))
        begin = 0
        while begin < len(own_times):
            end = clock.judge(own_slots, own_times, since, begin, 0, True, verdicts, extents)
            told = verdicts if known else Verdicts.of(verdicts.each.copy())
            panes.insert(own_slots, own_times, own_masks, told, begin, end)
            begin = end
            for window in range(first_open(clock), clock.closed):
                closed.append(panes.pop(window, 1))
                clock.mark_closed(window + 1)
        judged.append(verdicts.each.copy())
    closed += [panes.pop(window, 1) for window in range(first_open(clock), clock.ended)]
    return closed, np.concatenate(judged)


def first_open(clock: Clock) -> int:
    """Return the first window that is not closed."""
    assert clock.first_window is not None
    return max(clock.first_window, clock.next_window)


def detected(closed: ClosedPanes) -> NDArray[np.bool_]:
    """Return `[slot][pattern]`: what is detected in one window."""
    assert closed.states is not None
    assert MATCHER.automaton is not None
    final = MATCHER.automaton.final.astype(np.uint64)
    found = (closed.states.reshape(-1, 1) >> final & np.uint64(1)).astype(np.bool_)
    found[closed.keys] = MATCHER.match_ordered(closed.lists)
    return found


def brute_force(events: list[tuple[int, int]], chain: tuple[int, ...]) -> bool:
    """Return whether events of these types occur in order; equal times count as in order."""
    earliest = [-1]  # the earliest time at which each prefix of the chain is complete
    for bit in chain:
        later = [time for time, mask in events if mask & bit and time >= earliest[-1]]
        if not later:
            return False
        earliest.append(min(later))
    return True


@pytest.mark.cases(6)
@pytest.mark.parametrize("table", [ONE_EACH, SEVERAL], ids=["one event", "several events"])
@pytest.mark.parametrize("disorder", [0, 500_000, 900_000])
@pytest.mark.parametrize("large", [1, 1 << 30])
@pytest.mark.parametrize("batch", [33 * RUN, 200 * RUN], ids=["batches", "more than open windows"])
def test_known_runs_give_the_same_windows(
    batch: int,
    large: int,
    disorder: int,
    table: NDArray[np.uint64],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tacit.windows.event_buffer._LARGE", large)
    slots, times, codes = draw(large % 7 + disorder, disorder)
    coded, dense = EventMasks(table, codes), EventMasks(table[codes])
    quick, verdicts = close_all(slots, times, coded, known=True, batch=batch)
    slow, _ = close_all(slots, times, dense, known=False, batch=batch)
    assert len(quick) == len(slow) == 5
    assert (verdicts != TAKEN).sum() >= 3
    chains = ((1, 2, 4), (4, 1))
    for one, other in zip(quick, slow, strict=True):
        assert (one.words == other.words).all()
        assert (detected(one) == detected(other)).all()
        assert one.keys.tolist() == other.keys.tolist()
        assert one.lists.times.tolist() == other.lists.times.tolist()
        if table is ONE_EACH:
            events: list[list[tuple[int, int]]] = [[] for _ in range(SLOTS)]
            for row in np.flatnonzero((verdicts == TAKEN) & (times // SIZE == one.first)):
                events[slots[row]].append((int(times[row]), int(table[codes[row], 0])))
            expected = [[brute_force(own, chain) for chain in chains] for own in events]
            assert detected(one).tolist() == expected
