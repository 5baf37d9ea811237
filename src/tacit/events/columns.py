"""Columns as plain arrays of numbers, bytes and bits, for compiled loops, without copies."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray


def freeze(array: NDArray[Any]) -> NDArray[Any]:
    """Return a read-only view; kernels would be compiled again for writable arrays."""
    if not array.flags.writeable:
        return array
    view = array.view()
    view.flags.writeable = False
    return view


NO_BITS = freeze(np.empty(0, np.uint8))
"""The bitmap of a column without nulls."""


def split_chunks(column: pa.Array | pa.ChunkedArray | pl.Series) -> list[pa.Array]:
    """Return a column's contiguous parts."""
    if isinstance(column, pl.Series):
        column = column.to_arrow(compat_level=pl.CompatLevel.newest())
    if isinstance(column, pa.ChunkedArray):
        return list(column.chunks)
    return [column]


def read_numbers(array: pa.Array) -> NDArray[Any]:
    """Return the numbers of an array; at nulls they are arbitrary."""
    if array.null_count == 0:
        return freeze(array.to_numpy())
    dtype = np.dtype(array.type.to_pandas_dtype())
    whole = np.frombuffer(array.buffers()[1], dtype)
    return freeze(whole[array.offset : array.offset + len(array)])


def read_validity(array: pa.Array) -> tuple[NDArray[np.uint8], int]:
    """Return the validity bitmap and its bit offset; NO_BITS if there are no nulls."""
    if array.null_count == 0:
        return NO_BITS, 0
    return freeze(np.frombuffer(array.buffers()[0], np.uint8)), array.offset


def read_text(array: pa.Array) -> tuple[NDArray[np.uint8], NDArray[Any]]:
    """Return the bytes of an array of texts, and the offsets of each."""
    array = to_plain_text(array)
    _, offsets, text = array.buffers()
    if len(array) == 0 or offsets is None:
        return NO_BITS, freeze(np.zeros(len(array) + 1, np.int64))
    width = np.int32 if pa.types.is_string(array.type) else np.int64
    ends = np.frombuffer(offsets, width)[array.offset : array.offset + len(array) + 1]
    return freeze(np.frombuffer(text if text is not None else b"", np.uint8)), freeze(ends)


def decode_dictionary(array: pa.Array) -> pa.Array:
    """Decode a dictionary-encoded array; return any other unchanged."""
    if not pa.types.is_dictionary(array.type):
        return array
    return to_plain_text(array.dictionary).take(array.indices)


def to_plain_text(array: pa.Array) -> pa.Array:
    """Convert string views to plain strings with Polars, since Arrow 16 cannot."""
    if not pa.types.is_string_view(array.type):
        return array
    return pl.Series(array).to_arrow(compat_level=pl.CompatLevel.oldest())
