"""Reading ahead in a thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from tacit.pipeline.prefetch import prefetch


def threads() -> list[str]:
    """The names of the threads that read ahead now."""
    return [thread.name for thread in threading.enumerate() if thread.name == "tacit-prefetch"]


@pytest.mark.parametrize("ahead", [0, 1, 2, 5])
def test_the_same_items_come_in_the_same_order(ahead: int) -> None:
    assert list(prefetch(iter(range(100)), ahead)) == list(range(100))
    assert not threads()


def test_an_exception_comes_after_the_items_before_it() -> None:
    def items() -> Iterator[int]:
        yield 1
        yield 2
        raise KeyError("here")

    flow = prefetch(items(), 2)
    assert [next(flow), next(flow)] == [1, 2]
    with pytest.raises(KeyError):
        next(flow)
    assert not threads()


def test_no_more_is_read_ahead_than_asked_for() -> None:
    taken = []

    def items() -> Iterator[int]:
        for number in range(100):
            taken.append(number)
            yield number

    flow = prefetch(items(), 2)
    next(flow)
    time.sleep(0.05)
    assert len(taken) <= 4  # one used, two in the queue, one in the thread's hand
    flow.close()


def test_closing_early_stops_the_thread_and_closes_the_items() -> None:
    closed = threading.Event()

    def items() -> Iterator[int]:
        try:
            while True:
                yield 1
        finally:
            closed.set()

    flow = prefetch(items(), 2)
    next(flow)
    flow.close()
    assert closed.wait(5)
    assert not threads()
