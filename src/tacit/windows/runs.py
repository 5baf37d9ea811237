"""Runs of tuples: what holds of many in a row is found out first, in loops without branches."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from tacit.kernels import compiled

RUN: Final = 1024


@compiled
def extent(
    times: NDArray[np.int64], verdicts: NDArray[np.uint8]
) -> tuple[np.uint8, np.int64, np.int64]:
    """Whether some of these tuples were refused, the earliest time and the latest."""
    refused, earliest, latest = np.uint8(0), times[0], times[0]
    for i in range(len(verdicts)):
        refused |= verdicts[i]
    for i in range(len(times)):
        earliest = min(earliest, times[i])
        latest = max(latest, times[i])
    return refused, earliest, latest
