"""Measure times fairly: in the same process, alternating, without the first round."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds of the clock, and of processor time."""

    elapsed: float
    processor: float

    def least(self, other: Spent) -> Spent:
        """Return the smaller value of each: noise only adds time."""
        return Spent(min(self.elapsed, other.elapsed), min(self.processor, other.processor))


@dataclass(frozen=True, slots=True)
class Outcome(Generic[T]):
    """The result of a contestant's first round, and its least time in the others."""

    result: T
    spent: Spent


def timed(run: Callable[[], T]) -> tuple[T, Spent]:
    """Run once, after a garbage collection."""
    gc.collect()
    elapsed, processor = time.perf_counter(), time.process_time()
    result = run()
    return result, Spent(time.perf_counter() - elapsed, time.process_time() - processor)


def race(
    contestants: Mapping[str, Callable[[], Any]], rounds: int, read: Callable[[str, Any], T]
) -> dict[str, Outcome[T]]:
    """Run all contestants alternately, `rounds` times after a first round for warming up."""
    results = {name: read(name, run()) for name, run in contestants.items()}
    best: dict[str, Spent] = {}
    for _ in range(rounds):
        for name, run in contestants.items():
            spent = timed(run)[1]
            best[name] = best[name].least(spent) if name in best else spent
    return {name: Outcome(results[name], best[name]) for name in contestants}
