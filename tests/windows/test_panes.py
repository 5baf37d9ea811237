"""Open windows: what is kept, how it is brought into order, and automata that walk ahead."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tacit.events.masks import EventMasks
from tacit.patterns.language import parse_pattern
from tacit.patterns.matcher import Matcher
from tacit.windows.clock import LATE, TAKEN, Verdicts
from tacit.windows.panes import ClosedPanes, Panes
from tests.windows.codes import encode

SIZE, SLOTS, WINDOWS = 10, 4, 3
TYPES = ("a", "b", "c", "d")
PATTERNS = [parse_pattern(text) for text in ("SEQ(a, b, c)", "SEQ(b, a)", "SEQ(a, NOT c, b)")]
MATCHER = Matcher(PATTERNS, TYPES)
Tuples = list[tuple[int, int, int, int]]  # slot, time, mask, verdict

tuple_lists = st.lists(
    st.tuples(
        st.integers(0, SLOTS - 1),
        st.integers(0, SIZE * WINDOWS - 1),
        st.sampled_from([0, 1, 2, 4, 8, 3, 12]),
        st.sampled_from([TAKEN, TAKEN, TAKEN, LATE]),
    ),
    max_size=60,
)

anyhow = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def insert(panes: Panes, tuples: Tuples) -> None:
    """Lay tuples that are judged already, as one batch."""
    slots, times, masks, verdicts = (np.array(column) for column in zip(*tuples, strict=True))
    wrap = encode if len(tuples) % 2 else EventMasks
    panes.insert(
        slots.astype(np.int32),
        times.astype(np.int64),
        wrap(masks.astype(np.uint64).reshape(-1, 1)),
        Verdicts.of(verdicts.astype(np.uint8)),
        0,
        len(tuples),
    )


def fresh(*, walks: bool) -> Panes:
    """Panes for the patterns, with an automaton that walks ahead or without."""
    automaton = MATCHER.automaton
    assert automaton is not None
    return Panes(SIZE, WINDOWS + 1, SLOTS, MATCHER.ordered_types, automaton if walks else None)


def found(closed: ClosedPanes, windows: int) -> NDArray[np.bool_]:
    """`[window and slot][pattern]`: what is detected, by lists and by states."""
    assert MATCHER.automaton is not None
    if closed.states is None:
        result = np.tile(MATCHER.ordered_when_empty, (windows * SLOTS, 1))
    else:
        final = MATCHER.automaton.final.astype(np.uint64)
        result = (closed.states.reshape(-1, 1) >> final & np.uint64(1)).astype(np.bool_)
    result[closed.keys] = MATCHER.match_ordered(closed.lists)
    return result


def expected(tuples: Tuples, window: int) -> dict[int, list[tuple[int, int]]]:
    """For each slot with any: the times and masks of what was taken, stably in order of time."""
    ordered = int(MATCHER.ordered_types[0])
    lists: dict[int, list[tuple[int, int]]] = {}
    for slot, time, mask, verdict in sorted(tuples, key=lambda one: one[1]):
        if time // SIZE == window and verdict == TAKEN and mask & ordered:
            lists.setdefault(slot, []).append((time, mask & ordered))
    return lists


def listed(closed: ClosedPanes) -> dict[int, list[tuple[int, int]]]:
    """The lists of one window that was closed."""
    edges = closed.lists.starts.tolist()
    pairs = list(zip(closed.lists.times.tolist(), closed.lists.masks[:, 0].tolist(), strict=True))
    return {
        key: pairs[begin:end]
        for key, begin, end in zip(closed.keys.tolist(), edges, edges[1:], strict=False)
    }


@pytest.mark.parametrize("large", [1, 8, 10**6])
@given(tuples=tuple_lists, cuts=st.lists(st.integers(1, 59), max_size=5))
@anyhow
def test_lists_are_the_same_whether_batches_are_held_or_copied(
    large: int, tuples: Tuples, cuts: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tacit.windows.event_buffer._LARGE", large)
    panes = fresh(walks=False)
    edges = [0, *sorted(cuts), len(tuples)]
    for begin, end in pairwise(edges):
        if tuples[begin:end]:
            insert(panes, tuples[begin:end])
    for window in range(WINDOWS):
        assert listed(panes.pop(window, 1)) == expected(tuples, window)


@pytest.mark.parametrize("large", [1, 10**6])
@given(tuples=tuple_lists, more=tuple_lists, count=st.integers(1, WINDOWS))
@anyhow
def test_an_automaton_that_walks_ahead_finds_what_is_found_in_lists(
    large: int, tuples: Tuples, more: Tuples, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tacit.windows.event_buffer._LARGE", large)
    walking, waiting = fresh(walks=True), fresh(walks=False)
    for panes in (walking, waiting):
        for batch in (tuples, more):
            if batch:
                insert(panes, batch)
    for first in range(0, WINDOWS, count):
        windows = min(count, WINDOWS - first)
        ours, lists = walking.pop(first, windows), waiting.pop(first, windows)
        assert (found(ours, windows) == found(lists, windows)).all()
        assert (ours.words == lists.words).all()


def test_only_events_at_one_time_are_left_to_lists() -> None:
    panes = fresh(walks=True)
    in_order = [(0, 1, 1, TAKEN), (0, 2, 2, TAKEN), (0, 3, 4, TAKEN)]
    shuffled = [(1, 3, 4, TAKEN), (1, 1, 1, TAKEN), (1, 2, 2, TAKEN)]
    at_once = [(2, 1, 1, TAKEN), (2, 1, 2, TAKEN), (3, 5, 3, TAKEN)]
    insert(panes, in_order + shuffled + at_once)
    closed = panes.pop(0, 1)
    assert closed.keys.tolist() == [2, 3]
    assert found(closed, 1)[:, 0].tolist() == [True, True, False, False]


@given(before=tuple_lists, after=tuple_lists)
@anyhow
def test_a_state_taken_up_elsewhere_goes_on_as_if_nothing_had_been(
    before: Tuples, after: Tuples, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tacit.windows.event_buffer._LARGE", 8)
    whole, other = fresh(walks=True), fresh(walks=True)
    if before:
        insert(whole, before)
    whole.pop(0, 1)
    other.restore(whole.state())
    after = [one for one in after if one[1] >= SIZE]
    for panes in (whole, other):
        if after:
            insert(panes, after)
    for window in range(1, WINDOWS):
        assert (found(whole.pop(window, 1), 1) == found(other.pop(window, 1), 1)).all()


def test_a_batch_is_let_go_once_its_windows_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A time far ahead that was refused must not hold it."""
    monkeypatch.setattr("tacit.windows.event_buffer._LARGE", 2)
    panes = fresh(walks=False)
    insert(panes, [(0, 1, 1, TAKEN), (0, 2, 2, TAKEN), (0, 10**15, 1, LATE)])
    assert len(panes.state()["times"]) == 2
    panes.pop(0, 1)
    assert not panes._buffer._pieces


def test_new_subjects_walk_beside_the_known_ones() -> None:
    panes = fresh(walks=True)
    insert(panes, [(0, 1, 1, TAKEN), (0, 2, 2, TAKEN)])
    panes.grow(SLOTS + 1)
    insert(panes, [(0, 3, 4, TAKEN), *((SLOTS, time, 1 << time, TAKEN) for time in range(3))])
    states = panes.pop(0, 1).states
    assert states is not None
    assert MATCHER.automaton is not None
    matched = states[0] >> np.uint64(MATCHER.automaton.final[0]) & np.uint64(1)
    assert matched.tolist() == [1, 0, 0, 0, 1]
