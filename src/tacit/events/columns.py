"""Columns as compiled loops see them: plain arrays of numbers, bytes and bits, not copied."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray


def frozen(array: NDArray[Any]) -> NDArray[Any]:
    """A read-only view: loops would be compiled again for writable arrays."""
    if not array.flags.writeable:
        return array
    view = array.view()
    view.flags.writeable = False
    return view


NO_BITS = frozen(np.empty(0, np.uint8))
"""The bitmap of a column without nulls."""


def arrow_chunks(column: pa.Array | pa.ChunkedArray | pl.Series) -> list[pa.Array]:
    """A column's contiguous parts."""
    if isinstance(column, pl.Series):
        column = column.to_arrow(compat_level=pl.CompatLevel.newest())
    if isinstance(column, pa.ChunkedArray):
        return list(column.chunks)
    return [column]


def numbers(array: pa.Array) -> NDArray[Any]:
    """The numbers of an array; at nulls they are arbitrary."""
    if array.null_count == 0:
        return frozen(array.to_numpy())
    dtype = np.dtype(array.type.to_pandas_dtype())
    whole = np.frombuffer(array.buffers()[1], dtype)
    return frozen(whole[array.offset : array.offset + len(array)])


def validity(array: pa.Array) -> tuple[NDArray[np.uint8], int]:
    """The bitmap of what is not null and where it starts; NO_BITS where nothing is null."""
    if array.null_count == 0:
        return NO_BITS, 0
    return frozen(np.frombuffer(array.buffers()[0], np.uint8)), array.offset


def text_bytes(array: pa.Array) -> tuple[NDArray[np.uint8], NDArray[Any]]:
    """The bytes of an array of texts, and the offsets where each begins and ends."""
    array = plain(array)
    _, offsets, text = array.buffers()
    if len(array) == 0 or offsets is None:
        return NO_BITS, frozen(np.zeros(len(array) + 1, np.int64))
    width = np.int32 if pa.types.is_string(array.type) else np.int64
    ends = np.frombuffer(offsets, width)[array.offset : array.offset + len(array) + 1]
    return frozen(np.frombuffer(text if text is not None else b"", np.uint8)), frozen(ends)


def decoded(array: pa.Array) -> pa.Array:
    """A dictionary-encoded array written out; any other as it is."""
    if not pa.types.is_dictionary(array.type):
        return array
    return plain(array.dictionary).take(array.indices)


def plain(array: pa.Array) -> pa.Array:
    """Texts in the layout that Arrow's own functions all know, by Polars: Arrow 16 cannot."""
    if not pa.types.is_string_view(array.type):
        return array
    return pl.Series(array).to_arrow(compat_level=pl.CompatLevel.oldest())
