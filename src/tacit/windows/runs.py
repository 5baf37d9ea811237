"""Runs of tuples: properties of many tuples in a row, computed in loops without branches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tacit.events.columns import freeze
from tacit.kernels import compiled

RUN: Final = 1024
NO_RUNS: Final[NDArray[np.int64]] = np.empty(0, np.int64)
"""The windows of runs, where none are known."""


@dataclass(frozen=True, slots=True, eq=False)
class RunExtents:
    """For each run of tuples, the earliest and the latest time, and the least slot.

    They are found once for all that need them. Code that lowers a slot lowers that of its run.
    """

    earliest: NDArray[np.int64]
    latest: NDArray[np.int64]
    least: NDArray[np.int32]
    """0 if all slots are known not to be negative."""

    @classmethod
    def allocate(cls, count: int) -> RunExtents:
        """Allocate the extents of the runs of `count` tuples."""
        runs = -(-count // RUN)
        return cls(np.empty(runs, np.int64), np.empty(runs, np.int64), np.zeros(runs, np.int32))

    @classmethod
    def measure(
        cls, times: NDArray[np.int64], slots: NDArray[np.int32], *, registered: bool = False
    ) -> RunExtents:
        """Measure all runs of some tuples; if all are `registered`, no slot is negative."""
        found = cls.allocate(len(times))
        # Without slots the loop reads a third less memory.
        read = slots[:0] if registered else slots
        _measure(freeze(times), freeze(read), found.earliest, found.latest, found.least)
        return found


NO_EXTENTS: Final = RunExtents(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int32))
"""Nothing is measured yet."""


@compiled
def count_runs(length: int, offset: int) -> int:
    """Return how many runs some tuples are in; the first has `offset` tuples before them."""
    return -(-(length + offset) // RUN)


@compiled
def find_run(run: int, length: int, offset: int) -> tuple[int, int]:
    """Return the first tuple of a run, and the first one after it."""
    return max(0, run * RUN - offset), min((run + 1) * RUN - offset, length)


@compiled
def find_ends(times: NDArray[np.int64]) -> tuple[np.int64, np.int64]:
    """Return the earliest and the latest of some times."""
    earliest = latest = times[0]
    for i in range(len(times)):
        earliest = min(earliest, times[i])
        latest = max(latest, times[i])
    return earliest, latest


@compiled
def find_span(
    times: NDArray[np.int64], slots: NDArray[np.int32]
) -> tuple[np.int64, np.int64, np.int32]:
    """Return the earliest and the latest time of some tuples, and the least slot."""
    earliest, latest = find_ends(times)
    least = slots[0]
    for i in range(len(slots)):
        least = min(least, slots[i])
    return earliest, latest, least


@compiled
def _measure(
    times: NDArray[np.int64],
    slots: NDArray[np.int32],
    earliest: NDArray[np.int64],
    latest: NDArray[np.int64],
    least: NDArray[np.int32],
) -> None:
    for run in range(len(earliest)):
        begin, end = run * RUN, min((run + 1) * RUN, len(times))
        if len(slots):
            earliest[run], latest[run], least[run] = find_span(times[begin:end], slots[begin:end])
        else:
            earliest[run], latest[run] = find_ends(times[begin:end])


@compiled
def find_extent(
    times: NDArray[np.int64], verdicts: NDArray[np.uint8]
) -> tuple[np.uint8, np.int64, np.int64]:
    """Return whether any of these tuples was refused, and their earliest and latest time."""
    refused = np.uint8(0)
    for i in range(len(verdicts)):
        refused |= verdicts[i]
    earliest, latest = find_ends(times)
    return refused, earliest, latest
