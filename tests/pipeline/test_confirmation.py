"""How far one tuple can move the time of its source, against the rules one tuple at a time."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.events.masks import EventMasks
from tacit.events.times import NO_TIME
from tacit.pipeline.batches import EventBatch, Rows
from tacit.pipeline.confirmation import Confirmation, confirm
from tacit.windows import jumps as rules
from tacit.windows.clock import FUTURE_SLOT, NONE, UNCONFIRMED_SLOT
from tacit.windows.jumps import AGAINST, IN_A_ROW, Jumps
from tacit.windows.runs import RunExtents

Tuples = list[tuple[int, int]]  # slot, time
Outcome = list[int]
"""Slots, or the marks in their place."""


def by_the_rules(tuples: Tuples, bounds: Jumps, front: int | None = None) -> Outcome:
    """What becomes of each tuple, as the module says it."""
    jump = bounds.future if bounds.alone else min(bounds.jump, bounds.future)
    if front is None and bounds.start != NONE:
        front = bounds.start
    found = []
    for place, (slot, time) in enumerate(tuples):
        if slot < 0 or time == NO_TIME or (front is not None and time <= front + jump):
            found.append(slot)
        elif front is not None and time > front + bounds.future:
            found.append(FUTURE_SLOT)
            continue
        else:
            following = [(s, t) for s, t in tuples[place + 1 :] if s >= 0 and t != NO_TIME]
            if front is None:
                enough = 2 if bounds.alone else IN_A_ROW
                fine = first_stands(slot, time, following, jump, bounds.future, enough)
            else:
                near = [(s, t) for s, t in following if t <= front + bounds.future]
                fine = jump_stands(slot, time, near, jump)
            found.append(slot if fine else UNCONFIRMED_SLOT)
        if found[-1] >= 0 and time != NO_TIME:
            front = time if front is None else max(front, time)
    return found


def jump_stands(slot: int, time: int, following: Tuples, jump: int) -> bool:
    """Whether a tuple that is ahead is confirmed by those after it."""
    row = 1
    for other, then in following:
        if then < time - jump:
            return False
        row += 1
        if other != slot or row == IN_A_ROW:
            return True
    return False


def first_stands(
    slot: int, time: int, following: Tuples, jump: int, future: int, enough: int
) -> bool:
    """Whether the first tuple of a source is taken."""
    agreed, against = 1, 0
    for other, then in following:
        if time - jump <= then <= time + future:
            agreed += 1
            if other != slot or agreed == enough:
                return True
        else:
            against += 1
            if against == AGAINST:
                return False
    return True


def pieces_of(tuples: Tuples, cuts: list[int]) -> list[EventBatch]:
    """Tuples in batches; the column says which tuple it is."""
    edges = [0, *sorted(min(cut, len(tuples)) for cut in cuts), len(tuples)]
    slots = np.array([slot for slot, _ in tuples], np.int32)
    times = np.array([time for _, time in tuples], np.int64)
    rows = np.arange(len(tuples), dtype=np.uint64)
    return [
        EventBatch(
            times[begin:end],
            slots[begin:end].copy(),
            EventMasks(rows[begin:end]),
            Rows("s", pa.record_batch({}), first=begin),
            extents=RunExtents.measure(times[begin:end], slots[begin:end]),
        )
        for begin, end in pairwise(edges)
    ]


def outcome(pieces: list[EventBatch]) -> Outcome:
    """Slots and marks, in order of arrival."""
    return [slot for piece in pieces for slot in piece.slots.tolist()]


slots = st.integers(-2, 2)
times = st.one_of(
    st.integers(0, 60), st.integers(0, 60), st.sampled_from([NO_TIME, 500, 515, 10**17, -(10**12)])
)
tuple_lists = st.lists(st.tuples(slots, times), max_size=50)
one_for_long = st.lists(st.tuples(st.sampled_from([0, 0, 0, 0, 1]), times), max_size=50)
bounds = st.builds(
    Jumps,
    st.integers(0, 30),
    st.sampled_from([0, 20, 100, 600]),
    st.sampled_from([NONE, NONE, 5]),
    st.booleans(),
)


@given(st.one_of(tuple_lists, one_for_long), st.lists(st.integers(0, 50), max_size=6), bounds)
def test_tuples_are_refused_by_the_rules_however_input_is_cut(
    tuples: Tuples, cuts: list[int], limits: Jumps
) -> None:
    pieces = list(confirm(pieces_of(tuples, cuts), limits))
    assert outcome(pieces) == by_the_rules(tuples, limits)
    assert [row for piece in pieces for row in piece.masks.dense.tolist()] == [*range(len(tuples))]
    for piece in pieces:
        assert piece.masks.dense.tolist() == [
            piece.rows.first + piece.first + place for place in range(len(piece.times))
        ]
        if len(piece.extents.least):  # marks of refused tuples are in the extents too
            measured = RunExtents.measure(piece.times, piece.slots)
            assert ((piece.extents.least < 0) == (measured.least < 0)).all()
            assert (piece.extents.latest == measured.latest).all()


@given(st.one_of(tuple_lists, one_for_long), st.integers(0, 50), bounds)
def test_a_source_that_is_read_on_from_the_middle_is_judged_as_if_it_had_not_stopped(
    tuples: Tuples, stop: int, limits: Jumps
) -> None:
    """All that is kept is how far it was; what still waited is read once more."""
    whole = outcome(list(confirm(pieces_of(tuples, []), limits)))
    confirmation = Confirmation(limits)
    done: list[EventBatch] = []
    for piece in pieces_of(tuples[:stop], [*range(stop)]):
        done += confirmation.add(piece)
    front = done[-1].find_last_progress(done[-1].before) if done else NO_TIME
    rest = tuples[len(outcome(done)) :]
    assert [*outcome(done), *outcome(list(confirm(pieces_of(rest, []), limits, front)))] == whole


@pytest.mark.parametrize("seed", range(4))
def test_long_batches_are_judged_by_the_rules_too(seed: int) -> None:
    """Here most runs hold nothing that is far ahead, and are passed over at once."""
    rng, count = np.random.default_rng(seed), 5000
    when = np.cumsum(rng.integers(0, 3, count)) - rng.integers(0, 30, count)
    when[rng.integers(0, count, 5)] += rng.choice([200, 400, 9000], 5)
    when[count // 2 :] += 300  # a gap, for all
    who = rng.integers(0, 4, count)
    who[rng.integers(0, count, 3)] = -1
    tuples = list(zip(who.tolist(), when.tolist(), strict=True))
    limits = Jumps(100, 1000)
    assert outcome(list(confirm(pieces_of(tuples, [777]), limits))) == by_the_rules(tuples, limits)


LIMITS = Jumps(100, 1000)


def test_nothing_piles_up_while_a_source_is_idle() -> None:
    confirmation = Confirmation[EventBatch](LIMITS)
    assert confirmation.add(next(iter(pieces_of([(0, 0)], [])))) == []
    for empty in [*pieces_of([(0, 0)], [])] * 100:
        assert confirmation.add(empty.slice(0, 0)) == []
    assert len(confirmation.finish()) == 1


def test_a_wild_first_tuple_is_refused_and_moves_nothing() -> None:
    wild = 10**17
    tuples = [(0, wild), *[(place % 3, place) for place in range(12)]]
    assert outcome(list(confirm(pieces_of(tuples, []), LIMITS))) == [
        UNCONFIRMED_SLOT, *(slot for slot, _ in tuples[1:])
    ]  # fmt: skip


@pytest.mark.parametrize("many", [1, IN_A_ROW - 1])
def test_one_subject_ahead_of_all_others_is_refused(many: int) -> None:
    """However many tuples it sends, up to a number in a row: before others, and at the end."""
    ahead = [(0, 500)] * many
    refused = [UNCONFIRMED_SLOT] * many
    for tuples, expected in (
        ([(1, 0), (0, 1), *ahead, (1, 2)], [1, 0, *refused, 1]),
        ([(1, 0), (0, 1), *ahead], [1, 0, *refused]),
    ):
        assert outcome(list(confirm(pieces_of(tuples, []), LIMITS))) == expected


def test_a_gap_is_passed_when_another_subject_comes_after_it() -> None:
    tuples = [(0, 0), (1, 1), (0, 500), (0, 501), (1, 502), (0, 503)]
    assert outcome(list(confirm(pieces_of(tuples, []), LIMITS))) == [0, 1, 0, 0, 1, 0]


def test_a_subject_that_stays_alone_passes_a_gap_with_ten_tuples() -> None:
    tuples = [(0, 0), (1, 1), *[(0, 500 + place) for place in range(IN_A_ROW)]]
    assert outcome(list(confirm(pieces_of(tuples, []), LIMITS))) == [slot for slot, _ in tuples]


def test_an_only_subject_passes_gaps_by_itself() -> None:
    tuples = [(0, 0), (0, 500), (0, 1400), (0, 9999), (0, 1401)]
    limits = replace(LIMITS, alone=True)
    expected = [0, 0, 0, FUTURE_SLOT, 0]
    assert outcome(list(confirm(pieces_of(tuples, []), limits))) == expected


def test_a_single_tuple_is_a_source_too() -> None:
    assert outcome(list(confirm(pieces_of([(0, 7)], []), LIMITS))) == [0]


def test_at_most_a_few_tuples_wait() -> None:
    """A source that lives is not held back for long, even if one subject alone sends."""
    tuples = [(0, 0), (1, 1), *[(0, 500 + place) for place in range(100)]]
    confirmation = Confirmation(LIMITS)
    waiting = 0
    for piece in pieces_of(tuples, [*range(len(tuples))]):
        waiting += len(piece.times)
        waiting -= sum(len(decided.times) for decided in confirmation.add(piece))
        assert waiting < IN_A_ROW


def test_without_the_check_of_others_one_subject_would_move_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The tests above see the difference: here two tuples of one subject are enough."""
    monkeypatch.setattr(rules, "IN_A_ROW", 2)
    tuples = [(1, 0), (0, 1), (0, 500), (0, 501), (1, 2)]
    assert outcome(list(confirm(pieces_of(tuples, []), LIMITS))) == [1, 0, 0, 0, 1]


def test_a_tuple_that_is_too_far_in_the_future_confirms_none() -> None:
    times, slots = np.array([50, 150, 0]), np.array([1, 2, 0], np.int32)
    done, front, found = Jumps(10, 100).judge(times, slots, 0, ended=True)
    assert (done, front, found.tolist()) == (3, 0, [UNCONFIRMED_SLOT, FUTURE_SLOT, 0])
