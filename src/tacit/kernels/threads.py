"""Run independent calls of compiled loops on all cores: they do not hold the interpreter's lock."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")

_pools: dict[int, ThreadPoolExecutor] = {}
_opening = threading.Lock()


def run_in_turn(calls: Sequence[Callable[[], Result]]) -> list[Result]:
    """Call one after the other."""
    return [call() for call in calls]


def run_in_threads(calls: Sequence[Callable[[], Result]]) -> list[Result]:
    """Call at the same time, as far as there are cores; return the results in order.

    The first call runs in this thread. If calls fail, the first failure is raised when all have
    ended.
    """
    if len(calls) < 2 or (os.cpu_count() or 1) < 2:
        return run_in_turn(calls)
    others = [_pool().submit(call) for call in calls[1:]]
    try:
        first = calls[0]()
    finally:
        for other in others:
            other.exception()
    return [first, *(other.result() for other in others)]


def _pool() -> ThreadPoolExecutor:
    """Return the pool of this process: the threads of a pool do not survive a fork."""
    process = os.getpid()
    with _opening:
        if process not in _pools:
            _pools.clear()
            _pools[process] = ThreadPoolExecutor(
                max(1, (os.cpu_count() or 2) - 1), thread_name_prefix="loops"
            )
        return _pools[process]
