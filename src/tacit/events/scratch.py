"""Memory that is used again: to get fresh memory takes longer than to write a batch to it."""

from __future__ import annotations

import sys
import threading
from typing import Any, Final

import numpy as np
from numpy.typing import DTypeLike, NDArray

_WORTHWHILE: Final = 1 << 17
"""Bytes; less than that is quick to get."""
_MOST: Final = 8
_FREE: Final = 3
"""References to an array that only a list, a loop and `getrefcount` itself know."""


class Scratch:
    """Arrays to be written to. One is given out again when nobody refers to it any more.

    A view of an array refers to it, so that whoever still holds a part of one, in whatever
    thread, keeps it from being given out.
    """

    def __init__(self, dtype: DTypeLike, *shape: int) -> None:
        self._dtype = np.dtype(dtype)
        self._shape = shape
        """Of what the array holds at each place."""
        self._few = _WORTHWHILE // self._dtype.itemsize
        self._arrays: list[NDArray[Any]] = []
        self._lock = threading.Lock()

    def empty(self, length: int) -> NDArray[Any]:
        """An array of this length, with anything in it."""
        if length < self._few:
            return np.empty((length, *self._shape), self._dtype)
        with self._lock:
            for array in self._arrays:
                if len(array) >= length and sys.getrefcount(array) <= _FREE:
                    return array[:length]
            fresh = np.empty((length, *self._shape), self._dtype)
            self._arrays = [*self._arrays[1 - _MOST :], fresh]
            return fresh[:length]
