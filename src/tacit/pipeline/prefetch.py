"""Read ahead in threads, so that the next batch is decoded while this one is used."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

T = TypeVar("T")

PATIENCE = 1.0
"""Seconds to wait for the thread at the end: it may hang in a read from a silent pipe."""


@dataclass(frozen=True, slots=True)
class _End:
    error: BaseException | None


def prefetch(items: Iterator[T], ahead: int) -> Generator[T, None, None]:
    """Yield the same items, up to `ahead` of them taken before they are asked for.

    An exception in `items` is raised here, after the items before it. Closing this
    iterator early stops the thread and closes `items`.
    """
    if not ahead:
        yield from items
        return
    waiting: queue.Queue[T | _End] = queue.Queue(ahead)
    stop = threading.Event()
    thread = threading.Thread(
        target=_fill, args=(items, waiting, stop), name="tacit-prefetch", daemon=True
    )
    thread.start()
    try:
        while True:
            item = waiting.get()
            if isinstance(item, _End):
                if item.error is not None:
                    raise item.error
                return
            yield item
    finally:
        stop.set()
        with contextlib.suppress(queue.Empty):
            while True:  # a thread that waits for room in the queue finds it and sees the stop
                waiting.get_nowait()
        thread.join(PATIENCE)


class _QueueWriter(Protocol):
    """Where a thread puts what it has read."""

    def put(self, item: Any) -> None: ...


def _fill(items: Iterator[T], waiting: _QueueWriter, stop: threading.Event) -> None:
    end = _End(None)
    try:
        for item in items:
            waiting.put(item)
            if stop.is_set():
                break
    except BaseException as error:
        end = _End(error)
    finally:
        close = getattr(items, "close", None)
        if close is not None:
            close()
        if not stop.is_set():
            waiting.put(end)


def interleave(
    flows: Sequence[Iterator[T]], ahead: int, patience: Callable[[], float]
) -> Generator[tuple[int, T] | None, None, None]:
    """Yield what several iterators give, as it comes, each with the number of its iterator.

    Where nothing comes for `patience()` seconds, None; it is asked before each wait. Each is
    read in a thread of its own, all together up to `ahead` items before they are asked for; one
    that stalls holds up nobody. An exception in one of them is raised here. Closing this iterator
    early stops the threads.
    """
    waiting: queue.Queue[tuple[int, T | _End]] = queue.Queue(ahead)
    stop = threading.Event()
    threads = [
        threading.Thread(
            target=_fill,
            args=(flow, _LabelledQueueWriter(waiting, number), stop),
            name=f"tacit-interleave-{number}",
            daemon=True,
        )
        for number, flow in enumerate(flows)
    ]
    for thread in threads:
        thread.start()
    left = len(threads)
    try:
        while left:
            try:
                number, item = waiting.get(timeout=max(0.0, patience()))
            except queue.Empty:
                yield None
                continue
            if isinstance(item, _End):
                if item.error is not None:
                    raise item.error
                left -= 1
            else:
                yield number, item
    finally:
        stop.set()
        with contextlib.suppress(queue.Empty):
            while True:  # as above
                waiting.get_nowait()
        for thread in threads:
            thread.join(PATIENCE / len(threads))


class _LabelledQueueWriter:
    """The end of a queue that one of several iterators puts its items into."""

    def __init__(self, waiting: queue.Queue[Any], number: int) -> None:
        self._waiting = waiting
        self._number = number

    def put(self, item: Any) -> None:
        self._waiting.put((self._number, item))
