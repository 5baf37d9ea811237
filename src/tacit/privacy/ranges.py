"""Consecutive ranges in flat arrays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Whole = NDArray[np.int64]


def find_begins(lengths: Sequence[int] | Whole, first: int = 0) -> Whole:
    """Return where ranges of these lengths begin, the first of them at `first`.

    >>> find_begins([2, 0, 3], 10).tolist()
    [10, 12, 12]
    """
    own = np.asarray(lengths, np.int64)
    return first + np.cumsum(own) - own


def count_up(lengths: Sequence[int] | Whole) -> tuple[Whole, Whole]:
    """Return for each element of ranges of these lengths the range, and its place there.

    >>> [found.tolist() for found in count_up([2, 0, 3])]
    [[0, 0, 2, 2, 2], [0, 1, 0, 1, 2]]
    """
    owner = np.arange(len(lengths)).repeat(lengths)
    return owner, np.arange(len(owner)) - find_begins(lengths)[owner]
