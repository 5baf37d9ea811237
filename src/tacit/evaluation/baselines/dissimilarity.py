"""The distance of a window from the last release, for w-event mechanisms."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tacit.kernels import compiled


@compiled
def distance(last: NDArray[np.float64], window: NDArray[np.bool_]) -> float:
    """Compute the mean over event types of |last release - presence|; an event changes 1/d."""
    total = 0.0
    for kind in range(len(last)):
        total += abs(last[kind] - window[kind])
    return total / len(last)
