"""The publication of one window, by Laplace noise or by randomised response."""

from __future__ import annotations

from math import exp, inf

import numpy as np
from numpy.typing import NDArray

from tacit.kernels import compiled

_TINY = 1e-300
_SLACK = 2.0**-51
"""More than a float's exponential is off by, so that a flip is never too rare."""


@compiled
def compute_error(share: float, response: bool) -> float:
    """Compute the expected distance between a bit and its publication with epsilon `share`."""
    if response:
        return min(0.5, 1 / (1 + exp(min(share, 700.0))) + _SLACK)
    return 1 / share if share > _TINY else inf


@compiled
def publish(
    here: NDArray[np.float64], window: NDArray[np.bool_], share: float, response: bool
) -> None:
    """Turn draws into the publication of a window, in place, with epsilon `share` for each bit.

    Draws are Laplace noise of scale 1, or uniform numbers in [0, 1) for randomised response.
    """
    error = compute_error(share, response)
    for kind in range(len(here)):
        if response:
            here[kind] = 1.0 if window[kind] != (here[kind] < error) else 0.0
        else:
            here[kind] = window[kind] + here[kind] * error
