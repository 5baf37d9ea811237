"""Event types of tuples as codes, as a look-up of one column gives them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tacit.events.columns import freeze
from tacit.events.masks import EventMasks


def encode(masks: NDArray[np.uint64]) -> EventMasks:
    """The same masks, with a code for each tuple."""
    table, codes = np.unique(masks, axis=0, return_inverse=True)
    return EventMasks(table, freeze(codes.reshape(-1).astype(np.uint8)))
