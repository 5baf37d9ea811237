"""Which columns of a Parquet file `chunks` may decode, and what they become."""

from __future__ import annotations

import mmap
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tacit.connectors.parquet.chunks import decode
from tacit.connectors.parquet.words import WORD, Bytes

_WIDTHS = {"INT32": 4, "INT64": 8, "FLOAT": 4, "DOUBLE": 8}
"""Bytes of a value as it is stored."""
_SNAPPY = {"SNAPPY": True, "UNCOMPRESSED": False}


@dataclass(frozen=True, slots=True)
class _Numbers:
    """A column whose values are stored as the bytes that Arrow wants, or with zeros above them."""

    name: str
    number: int
    type: pa.DataType
    width: int
    optional: bool


class NumberColumns:
    """The columns of numbers in a file."""

    def __init__(self, path: Path, file: pq.ParquetFile, schema: pa.Schema) -> None:
        self._metadata = file.metadata
        kinds = {field.name: field.type for field in schema} if sys.byteorder == "little" else {}
        found = (_numbers(file, number, kinds) for number in range(len(file.schema)))
        self._columns = {column.name: column for column in found if column is not None}
        self._path = path

    def decoded(self, group: int, names: Sequence[str]) -> dict[str, pa.Array]:
        """Those of these columns that could be decoded, in a row group."""
        arrays = {name: self._decoded(group, name) for name in names if name in self._columns}
        return {name: array for name, array in arrays.items() if array is not None}

    def _decoded(self, group: int, name: str) -> pa.Array | None:
        column = self._columns[name]
        chunk = self._metadata.row_group(group).column(column.number)
        begin = chunk.data_page_offset
        if chunk.has_dictionary_page and chunk.dictionary_page_offset:
            begin = min(begin, chunk.dictionary_page_offset)
        snappy = _SNAPPY.get(chunk.compression)
        if snappy is None or chunk.file_path:
            return None
        content = _mapped(self._path, begin, chunk.total_compressed_size)
        if content is None:
            return None
        rows = self._metadata.row_group(group).num_rows
        size = column.type.bit_width // 8
        buffer = pa.allocate_buffer(rows * size)  # of Arrow's pool, which keeps what was used up
        into = np.frombuffer(buffer, np.dtype(f"u{size}"))
        data, begin, end = content
        if decode(data, begin, end, snappy, column.optional, column.width, into) != rows:
            return None
        return pa.Array.from_buffers(column.type, rows, [None, buffer], null_count=0)


def _mapped(path: Path, begin: int, size: int) -> tuple[Bytes, int, int] | None:
    """Bytes of a file in memory, with those around them: where they begin there, and end.

    A word follows them. Only what is mapped counts as memory of ours, so it is not the whole file.
    """
    before = begin % mmap.ALLOCATIONGRANULARITY
    try:
        with path.open("rb") as file:
            content = mmap.mmap(
                file.fileno(),
                before + size + WORD,
                access=mmap.ACCESS_READ,
                offset=begin - before,
            )
    except (OSError, ValueError, OverflowError):  # whoever reads it instead will say what is wrong
        return None
    return np.frombuffer(content, np.uint8), before, before + size


def _numbers(file: pq.ParquetFile, number: int, kinds: dict[str, pa.DataType]) -> _Numbers | None:
    """What is to be known of a column; None if it is left to others."""
    stored = file.schema.column(number)
    width = _WIDTHS.get(stored.physical_type)
    if width is None or stored.name != stored.path or stored.max_definition_level > 1:
        return None
    kind = kinds.get(stored.name)
    if kind is None or kind != file.schema_arrow.field(stored.name).type or not _is_number(kind):
        return None
    return _Numbers(stored.name, number, kind, width, stored.max_definition_level == 1)


def _is_number(kind: pa.DataType) -> bool:
    floating = pa.types.is_float32(kind) or pa.types.is_float64(kind)
    moment = pa.types.is_timestamp(kind) or pa.types.is_date32(kind)
    return bool(pa.types.is_integer(kind) or floating or moment)
