"""Memory of large arrays is used again, and never while anything refers to it."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from tacit import buffers
from tacit.buffers import allocate
from tacit.events.columns import freeze

LARGE = 1 << 15


@pytest.fixture(autouse=True)
def _empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers, "_free", {})


def test_memory_is_used_again_when_an_array_is_gone() -> None:
    first = allocate(LARGE, np.int64)
    address = first.ctypes.data
    other = allocate(LARGE, np.int64)
    assert other.ctypes.data != address
    del first
    again = allocate((LARGE // 2, 2), np.uint64)
    assert again.ctypes.data == address
    assert again.shape == (LARGE // 2, 2)


@pytest.mark.parametrize(
    "refer",
    [
        lambda array: array[5:],
        lambda array: array.reshape(-1, 2)[3:].reshape(-1),
        lambda array: array.view(np.uint8)[100:],
        freeze,
        pa.array,
        pa.py_buffer,
        memoryview,
    ],
)
def test_memory_is_not_used_again_while_something_refers_to_it(refer: object) -> None:
    assert callable(refer)
    array = allocate(LARGE, np.int64)
    address = array.ctypes.data
    left = refer(array)
    del array
    assert allocate(LARGE, np.int64).ctypes.data != address
    assert left is not None
    del left
    kept = [allocate(LARGE, np.int64) for _ in range(3)]
    assert address in [array.ctypes.data for array in kept]


def test_little_is_kept_of_what_is_not_in_use() -> None:
    arrays = [allocate(1 << 23, np.uint8) for _ in range(6)]
    del arrays
    assert [len(blocks) for blocks in buffers._free.values()] == [2]
    allocate(1 << 27, np.uint8)
    allocate(10, np.uint8)
    assert list(buffers._free) == [1 << 23]
