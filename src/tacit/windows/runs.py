"""Runs of tuples: properties of many tuples in a row, computed in loops without branches."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from tacit.kernels import compiled

RUN: Final = 1024


@compiled
def find_extent(
    times: NDArray[np.int64], verdicts: NDArray[np.uint8]
) -> tuple[np.uint8, np.int64, np.int64]:
    """Return whether any of these tuples was refused, and their earliest and latest time."""
    refused, earliest, latest = np.uint8(0), times[0], times[0]
    for i in range(len(verdicts)):
        refused |= verdicts[i]
    for i in range(len(times)):
        earliest = min(earliest, times[i])
        latest = max(latest, times[i])
    return refused, earliest, latest
