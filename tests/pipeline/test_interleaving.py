"""Iterators that are read as they come, and sources that are merged from the middle on."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.events.masks import EventMasks
from tacit.pipeline.batches import EventBatch, Rows
from tacit.pipeline.merge import merge
from tacit.pipeline.prefetch import interleave


def test_one_that_stalls_holds_up_nobody() -> None:
    """Silence is told, and the end comes when all have ended."""
    go = threading.Event()

    def stalled() -> Iterator[str]:
        go.wait(10)
        yield "late"

    found: list[tuple[int, str] | None] = []
    for item in interleave([iter(["a", "b"]), stalled()], 2, lambda: 0.05):
        found.append(item)
        if item is None:
            go.set()
    told = [item for item in found if item is not None]
    assert told == [(0, "a"), (0, "b"), (1, "late")]
    assert None in found


def test_an_exception_in_one_is_raised_for_all() -> None:
    def failing() -> Iterator[int]:
        yield 1
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        list(interleave([failing(), iter([2])], 2, lambda: 1.0))


def test_a_slow_reader_holds_back_the_iterators() -> None:
    """Only so much is read ahead, from any source."""
    given: list[int] = []

    def counting() -> Iterator[int]:
        for number in range(1000):
            given.append(number)
            yield number

    flow = interleave([counting(), counting()], 3, lambda: 1.0)
    next(flow)
    time.sleep(0.1)
    assert len(given) <= 3 + 1 + 2
    flow.close()


def flows(sources: list[list[int]], begin: list[int], cut: int) -> list[Iterator[EventBatch]]:
    """Sources from these rows on, in batches."""

    def flow(number: int, source: list[int], first: int) -> Iterator[EventBatch]:
        for start in range(first, len(source), cut):
            rows = np.arange(start, min(start + cut, len(source)))
            times = np.array(source, np.int64)[rows]
            origin = Rows("s", pa.record_batch({}), first=number)
            masks = EventMasks(rows.astype(np.uint64))
            yield EventBatch(times, np.zeros(len(rows), np.int32), masks, origin)

    return [flow(n, source, first) for n, (source, first) in enumerate(zip(sources, begin,
            strict=True))]  # fmt: skip


@given(
    st.lists(st.lists(st.integers(0, 40), max_size=15), min_size=2, max_size=3),
    st.integers(0, 20),
    st.integers(1, 5),
    st.integers(1, 5),
)
def test_a_merge_that_goes_on_from_the_middle_keeps_the_order(
    sources: list[list[int]], stop: int, cut: int, other: int
) -> None:
    """Given how far each source was, whatever the batches are then."""
    order: list[tuple[int, int]] = []
    far: list[tuple[int, int]] = []
    for chunk in merge(flows(sources, [0] * len(sources), cut), 30):
        parts = [0] * len(chunk.times) if chunk.part is None else chunk.part.tolist()
        assert chunk.progress is not None
        for part, row, progress in zip(parts, chunk.masks.dense, chunk.progress, strict=True):
            order.append((chunk.origins[part].first, int(row)))
            far.append((chunk.origins[part].first, int(progress)))
    stop = min(stop, len(order))
    taken = [sum(1 for source, _ in order[:stop] if source == n) for n in range(len(sources))]
    reached = dict(far[:stop])
    begin = [reached.get(n, np.iinfo(np.int64).min) for n in range(len(sources))]
    rest = [
        (chunk.origins[part].first, int(row))
        for chunk in merge(flows(sources, taken, other), 30, begin)
        for part, row in zip(
            [0] * len(chunk.times) if chunk.part is None else chunk.part.tolist(),
            chunk.masks.dense,
            strict=True,
        )
    ]
    assert rest == order[stop:]


def test_how_long_silence_lasts_is_asked_before_each_wait() -> None:
    """A caller that waits for a certain time is woken then; a time in the past is allowed."""
    end = threading.Event()

    def stalled() -> Iterator[str]:
        end.wait(10)
        yield "late"

    waits = iter([0.1, -1.0, 0.3, 5.0])
    began, told = time.monotonic(), []
    for item in interleave([stalled()], 1, lambda: next(waits)):
        told.append(time.monotonic() - began)
        if item is not None:
            break
        if len(told) == 3:
            end.set()
    assert 0.1 <= told[0] <= told[1] < told[2]
    assert told[2] >= 0.4
    assert told[3] < 4
