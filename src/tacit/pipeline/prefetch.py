"""Read ahead in threads: decode the next batch while the current one is used."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

T = TypeVar("T")

JOIN_SECONDS = 1.0
"""Seconds to wait for the thread at the end: it may block on a pipe."""


@dataclass(frozen=True, slots=True)
class _End:
    error: BaseException | None


def prefetch(items: Iterator[T], ahead: int) -> Generator[T, None, None]:
    """Yield the same items, reading up to `ahead` of them in advance.

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
            while True:  # unblock a thread that waits for a free place in the queue
                waiting.get_nowait()
        thread.join(JOIN_SECONDS)


class _QueueWriter(Protocol):
    """The queue into which a thread puts the items it has read."""

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
    iterators: Sequence[Iterator[T]], ahead: int, timeout: Callable[[], float]
) -> Generator[tuple[int, T] | None, None, None]:
    """Yield the items of several iterators as they arrive, each with its iterator's number.

    Yields None if nothing arrives for `timeout()` seconds; `timeout` is called before each wait.
    Each iterator has its own thread, so a slow one does not block the others. Together they read
    up to `ahead` items in advance. An exception in one of them is raised here. Closing this
    iterator early stops the threads.
    """
    waiting: queue.Queue[tuple[int, T | _End]] = queue.Queue(ahead)
    stop = threading.Event()
    threads = [
        threading.Thread(
            target=_fill,
            args=(iterator, _LabelledQueueWriter(waiting, number), stop),
            name=f"tacit-interleave-{number}",
            daemon=True,
        )
        for number, iterator in enumerate(iterators)
    ]
    for thread in threads:
        thread.start()
    left = len(threads)
    try:
        while left:
            try:
                number, item = waiting.get(timeout=max(0.0, timeout()))
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
            thread.join(JOIN_SECONDS / len(threads))


class _LabelledQueueWriter:
    """Puts the items of one iterator into a shared queue, with the iterator's number."""

    def __init__(self, waiting: queue.Queue[Any], number: int) -> None:
        self._waiting = waiting
        self._number = number

    def put(self, item: Any) -> None:
        self._waiting.put((self._number, item))
