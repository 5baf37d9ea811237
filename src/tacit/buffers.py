"""Large arrays for batches, made from memory that is used again.

The system clears fresh memory page by page when it is first written, which takes longer than most
of the loops that fill these arrays. A block of memory is used again when the array made from it and
all views of that array are gone.
"""

from __future__ import annotations

import math
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import DTypeLike, NDArray

_SMALL: Final = 1 << 16
"""Arrays of fewer bytes are allocated as usual."""
_MOST: Final = 1 << 26
"""Larger blocks are not kept, nor more blocks of one size than have this many bytes together."""


class _Memory(np.ndarray[Any, Any]):
    """Memory of an array. It is not cleared."""


_free: dict[int, deque[_Memory]] = {}
"""The blocks that are not in use, by their size, which is a power of two."""


def allocate(shape: int | Sequence[int], dtype: DTypeLike) -> NDArray[Any]:
    """Return an array with arbitrary content."""
    kind = np.dtype(dtype)
    count = shape if isinstance(shape, int) else math.prod(shape)
    needed = count * kind.itemsize
    if needed < _SMALL or needed > _MOST:
        return np.empty(shape, kind)
    size = 1 << (needed - 1).bit_length()
    try:
        block = _free[size].pop()
    except LookupError:
        block = _Memory(size, np.uint8)
    # Views of an array refer to it, and not to its memory, since that is of another class.
    array: NDArray[Any] = np.ndarray(shape, kind, buffer=block)
    weakref.finalize(array, _release, block).atexit = False
    return array


def _release(block: _Memory) -> None:
    blocks = _free.setdefault(len(block), deque(maxlen=max(1, _MOST // len(block) // 4)))
    blocks.append(block)  # a full queue drops another block
