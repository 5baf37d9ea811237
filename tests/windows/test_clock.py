"""The clock and the ring against rules written out one tuple at a time."""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.errors import SpecificationError
from tacit.events.masks import EventMasks
from tacit.patterns.event_lists import EventLists
from tacit.windows.clock import (
    BEFORE_START,
    FUTURE,
    LATE,
    NEVER,
    NO_SUBJECT,
    NO_TIME,
    NONE,
    TAKEN,
    UNREGISTERED,
    Clock,
    Verdicts,
)
from tacit.windows.panes import Panes, choose_capacity
from tacit.windows.runs import NO_EXTENTS, RunExtents
from tests.longer import longer
from tests.windows.codes import encode

SUBJECTS = 5
Tuples = list[tuple[int, int, int]]  # slot, time, mask


@dataclass
class Rules:
    """The rules of event time, one tuple after the other."""

    size: int
    lateness: int
    future: int
    start: int | None
    seen: list[int] = field(default_factory=list)

    def judge(self, slot: int, time: int, registered_from: int) -> int:
        """What becomes of a tuple that arrives now."""
        if slot < 0:
            return UNREGISTERED if slot == -1 else NO_SUBJECT
        if time == NONE:
            return NO_TIME
        window_end = (time // self.size + 1) * self.size
        if self.start is not None and time < self.start // self.size * self.size:
            return BEFORE_START
        if self.seen and window_end <= max(self.seen) - self.lateness:
            return LATE
        start = [] if self.start is None else [self.start // self.size * self.size]
        seen = self.seen or start
        if seen and time > max(seen) + self.future:
            return FUTURE
        if time // self.size < registered_from:
            return UNREGISTERED
        self.seen.append(time)
        return TAKEN


def rules_for(
    tuples: Tuples, size: int, lateness: int, future: int, start: int | None, since: list[int]
) -> tuple[list[int], dict[tuple[int, int], int], range]:
    """Verdicts, the event types of each window and subject, and the schedule."""
    rules = Rules(size, lateness, future, start)
    verdicts = [
        rules.judge(slot, time, since[slot] if slot >= 0 else 0) for slot, time, _ in tuples
    ]
    content: dict[tuple[int, int], int] = defaultdict(int)
    for (slot, time, mask), verdict in zip(tuples, verdicts, strict=True):
        if verdict == TAKEN:
            content[time // size, slot] |= mask
    if not rules.seen:
        return verdicts, content, range(0)
    first = min(rules.seen) // size if start is None else start // size
    return verdicts, content, range(first, max(rules.seen) // size + 1)


def run(
    tuples: Tuples,
    cuts: list[int],
    size: int,
    lateness: int,
    future: int,
    start: int | None,
    since: list[int],
    spare: int,
) -> tuple[list[int], dict[tuple[int, int], int], list[int], list[EventLists]]:
    """The same by clock and ring, with the input cut into batches."""
    capacity = -(-lateness // size) + 2 + spare
    clock = Clock.initial(size, lateness, future, start, capacity)
    everything = np.array([~np.uint64(0)])
    panes = Panes(size, capacity, SUBJECTS, everything)
    verdicts: list[int] = []
    content: dict[tuple[int, int], int] = {}
    schedule: list[int] = []
    lists: list[EventLists] = []

    def close(stop: int) -> None:
        first_window = clock.first_window
        if first_window is None or stop <= clock.next_window:
            return
        first = max(first_window, clock.next_window)
        clock.mark_closed(stop)
        for begin in range(first, stop, capacity):
            closed = panes.pop(begin, min(capacity, stop - begin))
            lists.append(closed.lists)
            for place, words in enumerate(closed.words):
                schedule.append(begin + place)
                for slot in range(SUBJECTS):
                    if words[slot, 0]:
                        content[begin + place, slot] = int(words[slot, 0])

    edges = [0, *sorted(cuts), len(tuples)]
    registered = np.array(since, dtype=np.int64)
    settled = all(window == NONE for window in since)
    for begin, end in itertools.pairwise(edges):
        batch = tuples[begin:end]
        slots = np.array([slot for slot, _, _ in batch], dtype=np.int32)
        times = np.array([time for _, time, _ in batch], dtype=np.int64)
        masks = np.array([[mask] for _, _, mask in batch], dtype=np.uint64).reshape(-1, 1)
        judged = Verdicts.allocate(len(batch))
        judged.each[:] = 99
        at = 0
        measured = RunExtents.measure(times, slots) if len(cuts) % 2 else NO_EXTENTS
        while at < len(batch):
            upto = clock.judge(slots, times, registered, at, 0, settled, judged, measured)
            wrap = encode if len(tuples) % 2 else EventMasks
            panes.insert(slots, times, wrap(masks), judged, at, upto)
            close(clock.closed)
            at = upto
        verdicts.extend(judged.each.tolist())
    close(clock.ended)
    return verdicts, content, schedule, lists


times = st.one_of(st.integers(-40, 60), st.sampled_from([NONE, 10**15, -(10**15)]))
tuple_lists = st.lists(
    st.tuples(st.integers(-2, SUBJECTS - 1), times, st.integers(1, 7)), max_size=40
)


@given(
    tuple_lists,
    st.lists(st.integers(0, 40), max_size=6),
    st.integers(1, 9),
    st.integers(0, 25),
    st.integers(0, 60),
    st.one_of(st.none(), st.integers(-30, 30)),
    st.integers(0, 3),
)
def test_verdicts_windows_and_schedule_follow_the_rules_however_input_is_cut(
    tuples: Tuples,
    cuts: list[int],
    size: int,
    lateness: int,
    future: int,
    start: int | None,
    spare: int,
) -> None:
    """Late, refused and taken tuples are the same for any batches, and so are the windows."""
    since = [NONE, NONE, NEVER, 0, 3]
    cuts = [min(cut, len(tuples)) for cut in cuts]
    verdicts, content, schedule = rules_for(tuples, size, lateness, future, start, since)
    ours = run(tuples, cuts, size, lateness, future, start, since, spare)
    assert ours[0] == verdicts
    assert ours[1] == {key: mask for key, mask in content.items() if key[0] in schedule}
    assert ours[2] == list(schedule)


@pytest.mark.parametrize("odd", [0, 4, 40])
@pytest.mark.parametrize("seed", [0, *longer(1, 2, 3)])
def test_long_batches_of_settled_subjects_follow_the_rules(odd: int, seed: int) -> None:
    """Most runs of tuples lie in one window, some in two; and some tuples are not taken."""
    rng, count, since = np.random.default_rng(seed), 6000, [NONE] * SUBJECTS
    cuts = sorted(rng.integers(0, count, seed).tolist())
    times = np.cumsum(rng.integers(0, 4, count)) - rng.integers(0, 200, count)
    slots = rng.integers(0, SUBJECTS, count)
    strange = rng.integers(count // 2, count, odd)
    times[strange] += rng.choice([-3000, 50_000], odd)
    slots[strange[::4]] = -1
    masks = 1 << rng.integers(0, 9, count)
    tuples = list(zip(slots.tolist(), times.tolist(), masks.tolist(), strict=True))
    verdicts, content, schedule = rules_for(tuples, 2500, 400, 9000, None, since)
    ours = run(tuples, cuts, 2500, 400, 9000, None, since, 0)
    assert ours[0] == verdicts
    assert ours[1] == {key: mask for key, mask in content.items() if key[0] in schedule}
    assert ours[2] == list(schedule)
    assert odd < 40 or {TAKEN, LATE, FUTURE, UNREGISTERED} <= set(verdicts)


@given(tuple_lists, st.integers(1, 9), st.integers(0, 25))
def test_kept_events_come_back_in_order_of_time(tuples: Tuples, size: int, lateness: int) -> None:
    """Every tuple that was taken is in the lists once, and each list is sorted."""
    since = [NONE] * SUBJECTS
    verdicts, _, _, lists = run(tuples, [], size, lateness, 100, None, since, 1)
    taken = sorted(
        (time, mask)
        for (_, time, mask), verdict in zip(tuples, verdicts, strict=True)
        if verdict == TAKEN
    )
    listed = [
        (int(time), int(mask))
        for part in lists
        for time, mask in zip(part.times, part.masks[:, 0], strict=True)
    ]
    assert sorted(listed) == taken
    for part in lists:
        for begin, end in zip(part.starts, part.starts[1:], strict=False):
            assert (np.diff(part.times[begin:end]) >= 0).all()
            assert len({int(time) // size for time in part.times[begin:end]}) == 1


def test_a_list_far_from_sorted_is_sorted_too() -> None:
    """Reversed input takes another path than nearly sorted input."""
    tuples = [(0, time, 1 + time % 3) for time in range(5000, 0, -1)]
    _, _, _, lists = run(tuples, [], 10_000, 10_000, 0, None, [NONE] * SUBJECTS, 0)
    assert lists[0].times.tolist() == list(range(1, 5001))
    assert lists[0].masks[:, 0].tolist() == [1 + time % 3 for time in range(1, 5001)]


@given(
    st.lists(st.tuples(st.integers(0, SUBJECTS - 1), st.integers(0, 80), st.integers(1, 7))),
    st.integers(0, 2**32),
    st.integers(1, 9),
    st.integers(0, 15),
)
def test_any_order_of_arrival_within_the_lateness_gives_the_same_windows(
    tuples: Tuples, seed: int, size: int, lateness: int
) -> None:
    """Tuples that are delayed by no more than the lateness are all taken."""
    tuples = sorted(tuples, key=lambda entry: entry[1])
    delays = np.random.default_rng(seed).integers(0, lateness + 1, len(tuples))
    order = sorted(range(len(tuples)), key=lambda i: tuples[i][1] + delays[i])
    since = [NONE] * SUBJECTS
    whole = run(tuples, [], size, lateness, 1000, None, since, 0)
    late = run([tuples[i] for i in order], [], size, lateness, 1000, None, since, 0)
    assert all(verdict == TAKEN for verdict in late[0])
    assert late[1:3] == whole[1:3]


def test_one_wild_timestamp_does_not_move_the_watermark() -> None:
    """It is refused, and the tuples after it are taken as if it had never come."""
    tuples = [(0, 100, 1), (1, 10**12, 1), (0, 101, 1), (2, 95, 1)]
    verdicts, _, schedule, _ = run(tuples, [], 10, 10, 1000, None, [NONE] * SUBJECTS, 0)
    assert verdicts == [TAKEN, FUTURE, TAKEN, TAKEN]
    assert schedule == [9, 10]


def test_a_tuple_may_be_as_far_ahead_as_future_says_and_no_further() -> None:
    """Also where it closes windows, so that it is judged by itself."""
    tuples = [(0, 100, 1), (1, 201, 1), (1, 200, 1), (0, 300, 1)]
    verdicts = run(tuples, [], 10, 10, 100, None, [NONE] * SUBJECTS, 0)[0]
    assert verdicts == [TAKEN, FUTURE, TAKEN, TAKEN]


@pytest.mark.parametrize("ticking", [False, True])
def test_windows_are_due_when_the_lateness_has_passed(ticking: bool) -> None:
    clock = Clock.initial(10, 25, 1000, 0, 100, ticking=ticking)
    slots, since, due = np.zeros(1, np.int32), np.array([NONE]), []
    for time in (5, 34, 35, 44):
        if ticking:
            clock.tick(time)
        else:
            clock.judge(slots, np.array([time]), since, 0, 0, True, Verdicts.allocate(1))
        due.append(clock.read_status()[0])
    assert due == [False, False, True, True]


def test_a_ring_holds_all_windows_that_may_be_open() -> None:
    """The least capacity is what lateness asks for; more while memory is cheap."""
    assert choose_capacity(10, 0, 10**8, 1) == 2
    assert choose_capacity(10, 11, 10**8, 1) == 4
    assert choose_capacity(10, 0, 100, 1) > 100


def test_a_lateness_that_no_memory_could_hold_is_refused() -> None:
    """With the arithmetic, before anything runs."""
    with pytest.raises(SpecificationError, match=r"86,402 windows of 1,000,000 subjects .* 691 GB"):
        choose_capacity(1_000_000, 86_400_000_000, 1_000_000, 1)
