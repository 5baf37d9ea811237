"""The order in which the messages of several partitions are popped."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from tacit.connectors.kafka.backlog import IDLE_SECONDS, MOST, Backlog, Messages

PARTS = [("t", 0), ("t", 1), ("u", 0)]


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30)), max_size=60),
    st.lists(st.integers(1, 7), min_size=1),
    st.randoms(use_true_random=False),
)
def test_a_backlog_loses_nothing_and_makes_a_batch_again_as_it_was(
    sent: list[tuple[int, int]], sizes: list[int], order: random.Random
) -> None:
    logs = {place: [stamp for n, stamp in sent if PARTS[n] == place] for place in PARTS}
    backlog = Backlog({})
    backlog.assign(PARTS, 0.0)
    fetched = dict.fromkeys(PARTS, 0)
    batches = []
    while any(fetched[place] < len(logs[place]) for place in PARTS):
        place = order.choice(PARTS)
        size = sizes[sum(fetched.values()) % len(sizes)]
        bring(backlog, place, logs[place], fetched[place], fetched[place] + size)
        fetched[place] = min(fetched[place] + size, len(logs[place]))
        if fetched[place] == len(logs[place]):
            backlog.end(place, fetched[place], 0.0)
        batches.append(backlog.take(0.0))
    for place in PARTS:
        backlog.end(place, len(logs[place]), 0.0)
    batches.append(backlog.take(0.0))
    values = [value for batch in batches for value in batch.messages.values]
    for place in PARTS:
        own = [value for value in values if value.startswith(f"{place}".encode())]
        assert own == [f"{place} {n}".encode() for n in range(len(logs[place]))]
    for batch in batches:
        again = Backlog(batch.before)
        again.assign(PARTS, 0.0)
        for place in order.sample(PARTS, 3):
            bring(again, place, logs[place], batch.before.get(place, 0), len(logs[place]))
            again.end(place, len(logs[place]), 0.0)
        assert again.has_reached(batch.after)
        assert again.take_until(batch.after).messages == batch.messages


def bring(
    backlog: Backlog, place: tuple[str, int], stamps: list[int], first: int, end: int
) -> None:
    offsets = list(range(first, min(end, len(stamps))))
    if offsets:
        values = [f"{place} {n}".encode() for n in offsets]
        backlog.add(place, Messages(offsets, [stamps[n] for n in offsets], values, []), 0.0)


def test_a_partition_that_says_nothing_is_waited_for_only_so_long() -> None:
    backlog = Backlog({})
    backlog.assign(PARTS[:2], 100.0)
    bring(backlog, PARTS[0], [1, 2, 3], 0, 3)
    assert not len(backlog.take(100.0 + IDLE_SECONDS - 0.1).messages)
    assert len(backlog.take(100.0 + IDLE_SECONDS + 0.1).messages) == 3


def test_messages_wait_until_no_partition_can_bring_earlier_ones() -> None:
    backlog = Backlog({})
    backlog.assign(PARTS[:2], 0.0)
    bring(backlog, PARTS[0], [10, 20, 30], 0, 3)
    assert not len(backlog.take(0.0).messages)
    bring(backlog, PARTS[1], [5, 25], 0, 2)
    assert backlog.take(0.0).messages.stamps == [5, 10, 20, 25]
    backlog.end(PARTS[1], 2, 0.0)
    assert backlog.take(0.0).messages.stamps == [30]


def test_a_partition_that_is_at_its_end_is_not_waited_for() -> None:
    backlog = Backlog({})
    backlog.assign(PARTS[:2], 0.0)
    bring(backlog, PARTS[0], [5, 6, 7], 0, 3)
    backlog.end(PARTS[1], 0, 0.0)
    assert len(backlog.take(0.0).messages) == 3


def test_a_large_backlog_is_popped_in_pieces_in_order() -> None:
    backlog = Backlog({})
    backlog.assign(PARTS, 0.0)
    for place in PARTS:
        bring(backlog, place, list(range(MOST)), 0, MOST)
        backlog.end(place, MOST, 0.0)
    stamps: list[int] = []
    while len(found := backlog.take(0.0).messages):
        assert len(found) <= MOST
        stamps += found.stamps
    assert stamps == sorted(list(range(MOST)) * 3)
