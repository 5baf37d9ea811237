"""Run independent calls of compiled loops on all cores: they do not hold the interpreter's lock."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, TypeVar

Result = TypeVar("Result")

_pools: dict[int, ThreadPoolExecutor] = {}
_opening = threading.Lock()


CORES: Final = os.cpu_count() or 1


def count_cores() -> int:
    """Return how many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def run_in_turn(calls: Sequence[Callable[[], Result]]) -> list[Result]:
    """Call one after the other."""
    return [call() for call in calls]


@dataclass(frozen=True, slots=True)
class Workers:
    """The threads that the loops of a run may use at the same time; more than cores are useless."""

    threads: int = CORES

    def run(self, calls: Sequence[Callable[[], Result]]) -> list[Result]:
        """Call at the same time, as far as there are threads; return the results in order."""
        return run_in_threads(calls, self.threads)


ALL_CORES: Final = Workers()
ONE_THREAD: Final = Workers(1)


def run_in_threads(calls: Sequence[Callable[[], Result]], most: int = CORES) -> list[Result]:
    """Call at the same time, in at most so many threads; return the results in order.

    Each thread, this one included, takes the next call when it has ended one. If calls fail, the
    first failure is raised when all have ended.
    """
    threads = min(len(calls), most, CORES)
    if threads < 2:
        return run_in_turn(calls)
    results: dict[int, Result] = {}
    failures: dict[int, BaseException] = {}
    left = iter(range(len(calls)))  # shared: no number is taken twice

    def work() -> None:
        for number in left:
            try:
                results[number] = calls[number]()
            except BaseException as failure:
                failures[number] = failure

    others = [_pool().submit(work) for _ in range(threads - 1)]
    work()
    for other in others:
        if not other.cancel():  # nothing is left for a thread that has not begun
            other.result()
    if failures:
        raise failures[min(failures)]
    return [results[number] for number in range(len(calls))]


def _pool() -> ThreadPoolExecutor:
    """Return the pool of this process: the threads of a pool do not survive a fork."""
    process = os.getpid()
    with _opening:
        if process not in _pools:
            _pools.clear()
            _pools[process] = ThreadPoolExecutor(max(1, CORES - 1), thread_name_prefix="loops")
        return _pools[process]
