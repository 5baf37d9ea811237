"""Several sources as one, against a merge that takes one tuple at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.events.masks import EventMasks
from tacit.events.times import NO_TIME
from tacit.pipeline.batches import EventBatch, MergedBatch, Rows, running_progress
from tacit.pipeline.merge import merge

times = st.lists(
    st.one_of(
        st.integers(-5, 30),
        st.sampled_from([NO_TIME, NO_TIME + 1, 10**15, np.iinfo(np.int64).max]),
    ),
    max_size=25,
)
cuts = st.lists(st.integers(0, 25), max_size=6)


def progress_of(times: list[int], future: int) -> list[int]:
    """The progress at each tuple, by its definition."""
    progress: list[int] = []
    now = NO_TIME
    for time in times:
        if now == NO_TIME or (time > now and time - now <= future):
            now = max(now, time)
        progress.append(now)
    return progress


def arrive(sources: list[list[int]], future: int) -> list[tuple[int, int]]:
    """Source and row of each tuple, taken one at a time."""
    progress = [progress_of(source, future) for source in sources]
    taken = [0] * len(sources)
    order = []
    while any(taken[n] < len(sources[n]) for n in range(len(sources))):
        number = min(
            (n for n in range(len(sources)) if taken[n] < len(sources[n])),
            key=lambda n: (progress[n][taken[n]], n),
        )
        order.append((number, taken[number]))
        taken[number] += 1
    return order


def batched(number: int, source: list[int], edges: list[int]) -> Iterator[EventBatch]:
    """A source cut into batches; the origin says which source and which row comes first."""
    bounds = sorted({0, len(source), *(min(edge, len(source)) for edge in edges)})
    whole = np.array(source, np.int64)
    for start, stop in pairwise(bounds):
        rows = np.arange(start, stop)
        masks = EventMasks(np.stack([rows, rows + 100], axis=1).astype(np.uint64))
        slots = np.full(len(rows), number, np.int32)
        yield EventBatch(whole[start:stop], slots, masks, from_source(number, start))


def places(chunk: MergedBatch) -> list[tuple[int, int]]:
    """Source and row of each tuple of a chunk."""
    count = len(chunk.times)
    parts = [0] * count if chunk.part is None else chunk.part.tolist()
    rows = range(count) if chunk.row is None else chunk.row.tolist()
    origins = [chunk.origins[part] for part in parts]
    return [(int(one.source), one.first + row) for one, row in zip(origins, rows, strict=True)]


def from_source(source: object, first: int = 0) -> Rows:
    """The rows of a source from one on."""
    return Rows("s", pa.record_batch({}), str(source), first)


@given(
    st.lists(st.tuples(times, cuts), min_size=1, max_size=4),
    st.sampled_from([0, 3, 10**9, 2**62]),
)
def test_merged_order_equals_taking_one_tuple_at_a_time(
    sources: list[tuple[list[int], list[int]]], future: int
) -> None:
    flows = [batched(n, source, edges) for n, (source, edges) in enumerate(sources)]
    chunks = list(merge(flows, future))
    order = [place for chunk in chunks for place in places(chunk)]
    assert order == arrive([source for source, _ in sources], future)
    for chunk in chunks:
        slots, masks = chunk.slots, chunk.masks.dense
        for index, (number, row) in enumerate(places(chunk)):
            assert chunk.times[index] == sources[number][0][row]
            assert slots[index] == number
            assert masks[index].tolist() == [row, row + 100]


@given(times, st.sampled_from([0, 3, 10**9, 2**62]), st.integers(0, 25))
def test_progress_equals_its_definition_across_batches(
    source: list[int], future: int, cut: int
) -> None:
    whole = np.array(source, np.int64)
    first = running_progress(whole[:cut], NO_TIME, future)
    before = int(first[-1]) if len(first) else NO_TIME
    rest = running_progress(whole[cut:], before, future)
    assert [*first.tolist(), *rest.tolist()] == progress_of(source, future)


def test_a_single_source_passes_through_without_a_copy() -> None:
    origin = from_source("a")
    batch = EventBatch(
        np.arange(5), np.zeros(5, np.int32), EventMasks(np.ones((5, 1), np.uint64)), origin
    )
    (chunk,) = merge([iter([batch])], 10)
    assert chunk.times is batch.times
    assert chunk.slots is batch.slots
    assert chunk.masks is batch.masks
    assert (chunk.origins, chunk.part, chunk.row) == ((origin,), None, None)


def timed(times: Sequence[int]) -> EventBatch:
    """Tuples of one subject at these times."""
    count = len(times)
    masks = EventMasks(np.ones((count, 1), np.uint64))
    return EventBatch(np.array(times), np.zeros(count, np.int32), masks, from_source("a"))


def test_one_wild_time_does_not_hold_the_other_tuples_of_its_source_back() -> None:
    flows = [
        iter([timed([1, 10**15, 2, 3])]),
        iter([timed([2, 9])]),
    ]
    merged = [time for chunk in merge(flows, 100) for time in chunk.times.tolist()]
    assert merged == [1, 10**15, 2, 2, 3, 9]


@pytest.mark.parametrize("ahead", [1, 50])
def test_merging_reads_at_most_one_batch_of_each_source_ahead(ahead: int) -> None:
    read = [0, 0]

    def flow(number: int, step: int) -> Iterator[EventBatch]:
        for start in range(0, 1000, step):
            read[number] += 1
            yield timed(range(start, start + step))

    merged = merge([flow(0, 10), flow(1, 10 * ahead)], 10**6)
    next(merged)
    assert read == [1, 1]
