"""The partitions of a live source are merged by event time, each with its own watermark."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tacit.events.masks import EventMasks
from tacit.events.times import NO_TIME
from tacit.pipeline.batches import EventBatch, MergedBatch, Rows
from tacit.pipeline.partitions import STUCK_SECONDS, PartitionMerge
from tests.pipeline.tables import numbered

NAMES = ("a", "b", "c")
DAY = 86_400_000_000


class Times:
    """A clock that a test sets."""

    now = 0.0

    def __call__(self) -> float:  # noqa: D102
        return self.now


def merging(clock: Times | None = None) -> PartitionMerge:
    return PartitionMerge(DAY, lambda *_: NO_TIME, clock or Times())


def batch(*times: int, slot: int = 0) -> EventBatch:
    count = len(times)
    rows = Rows("gps", numbered(count))
    slots = np.full(count, slot, np.int32)
    return EventBatch(
        np.array(times, np.int64), slots, EventMasks(np.zeros((count, 1), np.uint64)), rows
    )


def times(popped: list[MergedBatch]) -> list[int]:
    return [int(time) for one in popped for time in one.times]


@given(
    st.lists(st.tuples(st.integers(0, 2), st.lists(st.integers(0, 50), max_size=6)), max_size=20),
    st.data(),
)
def test_nothing_is_lost_and_no_tuple_comes_before_one_that_is_behind(
    sent: list[tuple[int, list[int]]], data: st.DataObject
) -> None:
    merge = merging()
    for name in NAMES:
        merge.add(0, name, batch(), awaited=True)
    found: list[MergedBatch] = []
    for number, stamps in sent:
        merge.add(0, NAMES[number], batch(*stamps), awaited=True)
        if data.draw(st.booleans()):
            found += merge.pop()
    found += merge.pop()
    arrived = times(found)
    own = {n: [t for number, part in sent if number == n for t in part] for n in range(3)}
    least = min(max(part, default=-1) for part in own.values())
    # What is behind the least watermark has come, in order of progress.
    expected: list[tuple[int, int, int]] = []
    for n, part in own.items():
        progress = np.maximum.accumulate(part).tolist() if part else []
        expected += [(p, n, t) for p, t in zip(progress, part, strict=True) if p <= least]
    assert sorted(arrived) == sorted(t for _, _, t in expected)
    for name in NAMES:
        merge.add(0, name, batch(), awaited=False)
    arrived += times(list(merge.pop()))
    assert sorted(arrived) == sorted(t for part in own.values() for t in part)


def test_an_idle_partition_does_not_stall_the_others() -> None:
    merge = merging()
    merge.add(0, "a", batch(10, 20, 30), awaited=True)
    merge.add(0, "b", batch(), awaited=True)
    assert times(list(merge.pop())) == []
    merge.add(0, "b", batch(5, 15), awaited=True)
    assert times(list(merge.pop())) == [5, 10, 15]
    merge.add(0, "b", batch(), awaited=False)
    assert times(list(merge.pop())) == [20, 30]


def test_a_partition_whose_times_stand_still_is_awaited_only_for_so_long() -> None:
    """Such as one of subjects that are not registered."""
    clock = Times()
    merge = merging(clock)
    merge.add(0, "a", batch(10, 20), awaited=True)
    merge.add(0, "b", batch(15, slot=-1), awaited=True)
    assert times(list(merge.pop())) == [15]  # it has no progress: nothing waits before it
    clock.now = STUCK_SECONDS + 1
    assert times(list(merge.pop())) == [10, 20]
    merge.add(0, "b", batch(12), awaited=True)
    merge.add(0, "a", batch(25), awaited=True)
    assert times(list(merge.pop())) == [12], "it is awaited again"


def test_partitions_in_which_much_waits_are_crowded() -> None:
    merge = merging()
    merge.add(0, "behind", batch(), awaited=True)
    merge.add(0, "ahead", batch(*range(200_000)), awaited=True)
    merge.add(1, "ahead", batch(), awaited=True)
    assert times(list(merge.pop())) == []
    assert merge.find_crowded(0) == {"ahead"}
    assert merge.find_crowded(1) == frozenset()
    merge.add(0, "behind", batch(1_000_000), awaited=True)
    merge.add(1, "ahead", batch(), awaited=False)
    list(merge.pop())
    assert merge.find_crowded(0) == frozenset()
