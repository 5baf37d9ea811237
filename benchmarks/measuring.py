"""Time, taken fairly: everyone in the same process, in turns, the first round not counted."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds: on the clock, and of all processors together."""

    elapsed: float
    processor: float

    def least(self, other: Spent) -> Spent:
        """The least of both, each for itself: noise only ever adds."""
        return Spent(min(self.elapsed, other.elapsed), min(self.processor, other.processor))


@dataclass(frozen=True, slots=True)
class Outcome(Generic[T]):
    """What a contestant gave in the first round, and the least it spent in the others."""

    result: T
    spent: Spent


def timed(run: Callable[[], T]) -> tuple[T, Spent]:
    """Run once; rubbish from before is collected first."""
    gc.collect()
    elapsed, processor = time.perf_counter(), time.process_time()
    result = run()
    return result, Spent(time.perf_counter() - elapsed, time.process_time() - processor)


def race(
    contestants: Mapping[str, Callable[[], Any]], rounds: int, read: Callable[[str, Any], T]
) -> dict[str, Outcome[T]]:
    """Everyone in turns, `rounds` times after a first round that warms up and is read."""
    results = {name: read(name, run()) for name, run in contestants.items()}
    best: dict[str, Spent] = {}
    for _ in range(rounds):
        for name, run in contestants.items():
            spent = timed(run)[1]
            best[name] = best[name].least(spent) if name in best else spent
    return {name: Outcome(results[name], best[name]) for name in contestants}
