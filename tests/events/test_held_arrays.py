"""What one batch gave stays as it is while later batches are read, in any thread."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from tacit.events.extraction import Extractor
from tacit.events.interners import IntegerInterner
from tacit.events.streams import Stream
from tacit.events.types import EventType

ROWS = 1 << 16
"""Enough for arrays that are costly to allocate."""
Step: TypeAlias = Callable[[int], NDArray[Any]]


def extraction() -> Step:
    """Masks of batches in which every tuple is of the event type that a number names."""
    events = {f"e{kind}": EventType(stream="s", where=f"kind = {kind}") for kind in range(40)}
    extractor = Extractor("s", Stream(subject="who", time="at"), events, {}, list(events))

    def masks(number: int) -> NDArray[Any]:
        return extractor.masks(pa.record_batch({"kind": np.full(ROWS, number, np.int64)}))

    return masks


def interning() -> Step:
    """Numbers of batches in which every value is the one that a number names."""
    interner = IntegerInterner()
    interner.learn(np.arange(100, 140))
    return lambda number: interner.find(np.full(ROWS, 100 + number))


@pytest.fixture(params=[extraction, interning])
def step(request: pytest.FixtureRequest) -> Step:
    """Something that gives an array for each batch: all places of an array are the same."""
    made: Step = request.param()
    return made


def test_a_held_array_is_never_given_out_again(step: Step) -> None:
    held = [step(number) for number in range(30)]
    parts = [array[3:90][::2] for array in (step(number) for number in range(30))]
    first = [int(array.flat[0]) for array in held]
    assert len(set(first)) == 30
    for array, part, value in zip(held, parts, first, strict=True):
        assert (array == value).all()
        assert (part == value).all()


def test_how_python_counts_references_does_not_matter(
    step: Step, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From Python 3.14 on, a reference that a local variable holds need not be counted."""
    monkeypatch.setattr(sys, "getrefcount", lambda _: 1)
    first = step(1)
    before = first.copy()
    second = step(2)
    assert not np.shares_memory(first, second)
    assert np.array_equal(first, before)


def test_what_one_thread_passes_to_another_stays_as_it_is(step: Step) -> None:
    passed: SimpleQueue[tuple[int, NDArray[Any]] | None] = SimpleQueue()
    expected = [int(step(number).flat[0]) for number in range(40)]

    def produce() -> None:
        for number in [*range(40)] * 3:
            passed.put((number, step(number)[::7]))
        passed.put(None)

    def consume() -> bool:
        return all((part == expected[number]).all() for number, part in iter(passed.get, None))

    with ThreadPoolExecutor(2) as pool:
        produced, right = pool.submit(produce), pool.submit(consume)
        produced.result(300)
        assert right.result(300)
