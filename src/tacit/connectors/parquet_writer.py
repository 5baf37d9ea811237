"""Write answers as Parquet, with encoders made for their regular columns.

The file's structure follows parquet-format's specification: pages of version 1, zstd, and a footer
in Thrift's compact protocol. As in files of PyArrow, the footer has the Arrow schema, so that
PyArrow reads dictionaries as such; other readers see text.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import IO, Any, Final, TypeAlias

import pyarrow as pa

from tacit.connectors.parquet_pages import (
    PLAIN,
    RLE,
    EncodedColumn,
    can_encode,
    encode_column,
    encode_varint,
    encode_zigzag,
    list_encodings,
    shrink_dictionary,
)

_MAGIC: Final = b"PAR1"
_ZSTD: Final = 6
_BOOLEAN, _INT64, _FLOAT, _BYTES = 0, 2, 4, 6
_OPTIONAL: Final = 1
_UTF8, _MICROSECONDS = 0, 10
_DATA_PAGE, _DICTIONARY_PAGE = 0, 2

_TRUE, _FALSE, _I32, _I64, _BINARY, _LIST, _STRUCT = 1, 2, 5, 6, 8, 9, 12
Struct: TypeAlias = Sequence[tuple[int, int, Any]]
"""The fields of a Thrift structure: number, type and value, in order of their numbers.

A list's value is the type of its elements with the elements.
"""


class AnswerParquetWriter:
    """Writes tables of numbers, booleans, times and dictionaries of text; see `can_write`."""

    def __init__(self, file: IO[bytes], schema: pa.Schema) -> None:
        self._file = file
        self._schema = schema
        self._codec = pa.Codec("zstd")
        self._groups: list[Struct] = []
        self._rows = 0
        self._place = 0
        self._closed = False
        self._write(_MAGIC)

    def write(self, table: pa.Table) -> None:
        """Add these rows as a row group."""
        if not table.num_rows:
            return
        chunks: list[Struct] = []
        begin = self._place
        size = 0
        for field in self._schema:
            column = _combine(table.column(field.name))
            chunk, plain = self._write_column(field, encode_column(column), len(column))
            chunks.append(chunk)
            size += plain
        self._groups.append(
            [
                (1, _LIST, (_STRUCT, chunks)),
                (2, _I64, size),
                (3, _I64, table.num_rows),
                (5, _I64, begin),
                (6, _I64, self._place - begin),
            ]
        )
        self._rows += table.num_rows

    def close(self) -> None:
        """Write the footer."""
        if self._closed:
            return
        self._closed = True
        arrow = base64.b64encode(self._schema.serialize())
        columns = [_describe(field) for field in self._schema]
        root: Struct = [(4, _BINARY, b"schema"), (5, _I32, len(columns))]
        order: Struct = [(1, _STRUCT, [])]
        footer = _encode_struct(
            [
                (1, _I32, 2),
                (2, _LIST, (_STRUCT, [root, *columns])),
                (3, _I64, self._rows),
                (4, _LIST, (_STRUCT, self._groups)),
                (5, _LIST, (_STRUCT, [[(1, _BINARY, b"ARROW:schema"), (2, _BINARY, arrow)]])),
                (6, _BINARY, b"tacit"),
                (7, _LIST, (_STRUCT, [order] * len(columns))),
            ]
        )
        self._write(footer + len(footer).to_bytes(4, "little") + _MAGIC)

    def _write_column(
        self, field: pa.Field, encoded: EncodedColumn, rows: int
    ) -> tuple[Struct, int]:
        """Write the pages of a column; return its metadata and its size before compression."""
        begin = self._place
        plain = 0
        offsets: Struct = []
        if encoded.dictionary is not None:
            about: Struct = [(1, _I32, encoded.distinct), (2, _I32, PLAIN)]
            plain += self._write_page(_DICTIONARY_PAGE, encoded.dictionary, (7, _STRUCT, about))
            offsets = [(11, _I64, begin)]
        data = self._place
        about = [(1, _I32, rows), (2, _I32, encoded.encoding), (3, _I32, RLE), (4, _I32, RLE)]
        plain += self._write_page(_DATA_PAGE, encoded.data, (5, _STRUCT, about))
        statistics: Struct = []
        if encoded.bounds is not None:
            low, high = encoded.bounds
            statistics = [(12, _STRUCT, [(5, _BINARY, high), (6, _BINARY, low)])]
        metadata: Struct = [
            (1, _I32, _physical_type(field.type)),
            (2, _LIST, (_I32, list_encodings(encoded))),
            (3, _LIST, (_BINARY, [field.name.encode()])),
            (4, _I32, _ZSTD),
            (5, _I64, rows),
            (6, _I64, plain),
            (7, _I64, self._place - begin),
            (9, _I64, data),
            *offsets,
            *statistics,
        ]
        return [(2, _I64, begin), (3, _STRUCT, metadata)], plain

    def _write_page(self, kind: int, body: bytes, about: tuple[int, int, Any]) -> int:
        """Write a page with its header; return its size before compression."""
        packed = self._codec.compress(body, asbytes=True)
        header = _encode_struct(
            [(1, _I32, kind), (2, _I32, len(body)), (3, _I32, len(packed)), about]
        )
        self._write(header)
        self._write(packed)
        return len(header) + len(body)

    def _write(self, content: bytes) -> None:
        self._file.write(content)
        self._place += len(content)


def can_write(schema: pa.Schema) -> bool:
    """Return whether tables of this schema can be written."""
    return all(can_encode(field.type) for field in schema)


def _combine(column: pa.ChunkedArray) -> pa.Array:
    """Join the chunks of a column; a dictionary gets only the values of these rows."""
    if pa.types.is_dictionary(column.type):
        column = pa.chunked_array(map(shrink_dictionary, column.chunks), column.type)
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.unify_dictionaries().chunks)


def _physical_type(kind: pa.DataType) -> int:
    if pa.types.is_dictionary(kind):
        return _BYTES
    return {pa.bool_(): _BOOLEAN, pa.float32(): _FLOAT}.get(kind, _INT64)


def _describe(field: pa.Field) -> Struct:
    """Return the element of a column in the file's schema."""
    kind = field.type
    logical: Struct = []
    if pa.types.is_dictionary(kind):
        logical = [(6, _I32, _UTF8), (10, _STRUCT, [(1, _STRUCT, [])])]
    elif pa.types.is_timestamp(kind):
        unit: Struct = [(2, _STRUCT, [])]
        instant = [(1, _TRUE if kind.tz else _FALSE, None), (2, _STRUCT, unit)]
        logical = [(6, _I32, _MICROSECONDS), (10, _STRUCT, [(8, _STRUCT, instant)])]
    return [
        (1, _I32, _physical_type(kind)),
        (3, _I32, _OPTIONAL),
        (4, _BINARY, field.name.encode()),
        *logical,
    ]


def _encode_struct(fields: Struct) -> bytes:
    """Encode a structure in Thrift's compact protocol."""
    octets = bytearray()
    before = 0
    for number, kind, value in fields:
        octets.append((number - before) << 4 | kind)
        octets += _encode_value(kind, value)
        before = number
    octets.append(0)
    return bytes(octets)


def _encode_value(kind: int, value: Any) -> bytes:
    if kind in (_I32, _I64):
        return encode_varint(encode_zigzag(value))
    if kind == _BINARY:
        return encode_varint(len(value)) + bytes(value)
    if kind == _STRUCT:
        return _encode_struct(value)
    if kind == _LIST:
        inner, elements = value
        size = len(elements)
        head = (
            bytes([size << 4 | inner]) if size < 15 else bytes([0xF0 | inner]) + encode_varint(size)
        )
        return head + b"".join(_encode_value(inner, element) for element in elements)
    return b""  # a boolean is its type
