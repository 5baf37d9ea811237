"""Means over data sets, with bands that contain the true mean 95 times in 100."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

CONFIDENCE: Final = 0.95


class Band(NamedTuple):
    """A mean and its confidence band."""

    mean: float
    low: float
    high: float


def compute_error_band(errors: Floats) -> Band:
    """Compute the band of errors on independent data sets (Student's t).

    Errors are between 0 and 1, and so is the band. A single data set says nothing about
    others, so its band is [0, 1].

    >>> compute_error_band(np.array([0.1, 0.2, 0.3]))
    Band(mean=0.2, low=0.0, high=0.448414)
    """
    mean = float(errors.mean())
    reach = _reach(errors)
    return Band(round(mean, 6), round(max(0.0, mean - reach), 6), round(min(1.0, mean + reach), 6))


def compute_ratio_band(errors: Floats, others: Floats) -> Band | None:
    """Compare a method's mean error with another's on the same data sets.

    Pairing removes the differences between data sets: only the difference on each data set
    counts. None if the other makes no error at all.

    >>> compute_ratio_band(np.array([0.1, 0.21, 0.29]), np.array([0.2, 0.4, 0.6]))
    Band(mean=0.5, low=0.437897, high=0.562103)
    """
    scale = float(others.mean())
    if not scale > 0:
        return None
    ratio = float(errors.mean()) / scale
    reach = _reach(errors - ratio * others) / scale
    return Band(round(ratio, 6), round(max(0.0, ratio - reach), 6), round(ratio + reach, 6))


def _reach(values: Floats) -> float:
    """Return half the width of the band of a mean."""
    from scipy.special import stdtrit

    if len(values) < 2:
        return float("inf")
    quantile = float(stdtrit(len(values) - 1, (1 + CONFIDENCE) / 2))
    return quantile * float(values.std(ddof=1)) / float(np.sqrt(len(values)))
