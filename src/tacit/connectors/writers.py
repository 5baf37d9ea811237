"""Write tables to files: Parquet, CSV, JSON lines and Arrow."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import partial
from typing import IO, Protocol

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tacit.connectors.parquet_writer import AnswerParquetWriter, can_write

_ISO = "%Y-%m-%dT%H:%M:%S%.fZ"


class Writer(Protocol):
    """Writes tables of one schema to an open file, which stays open."""

    def write(self, table: pa.Table) -> None:
        """Add these rows."""

    def close(self) -> None:
        """Write what is buffered."""


class ParquetWriter:
    """Writes any Parquet with PyArrow: zstd, delta encoding for integers, else dictionaries."""

    def __init__(self, file: IO[bytes], schema: pa.Schema) -> None:
        numbers = [field.name for field in schema if pa.types.is_integer(field.type)]
        self._writer = pq.ParquetWriter(
            file,
            schema,
            compression="zstd",
            use_dictionary=[name for name in schema.names if name not in numbers],
            column_encoding=dict.fromkeys(numbers, "DELTA_BINARY_PACKED"),
        )

    def write(self, table: pa.Table) -> None:
        """Add these rows."""
        self._writer.write_table(table.unify_dictionaries())

    def close(self) -> None:
        """Write the footer."""
        try:
            self._writer.close()
        finally:
            self._writer.is_open = False  # else it would try again in its destructor


def open_parquet_writer(file: IO[bytes], schema: pa.Schema) -> Writer:
    """Open our own writer if it has encoders for all columns, as for answers, else PyArrow's."""
    return AnswerParquetWriter(file, schema) if can_write(schema) else ParquetWriter(file, schema)


class ArrowWriter:
    """Writes Arrow's file format, in which a dictionary may grow but not change."""

    def __init__(self, file: IO[bytes], schema: pa.Schema) -> None:
        options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True)
        self._writer = pa.ipc.new_file(file, schema, options=options)
        self._known = {
            number: pa.array([], field.type.value_type)
            for number, field in enumerate(schema)
            if pa.types.is_dictionary(field.type)
        }

    def write(self, table: pa.Table) -> None:
        """Add these rows."""
        table = table.unify_dictionaries()
        for number in self._known:
            column = table.column(number).combine_chunks()
            if isinstance(column, pa.ChunkedArray):  # in some versions of PyArrow
                column = column.chunk(0) if column.num_chunks else pa.array([], column.type)
            table = table.set_column(
                number, table.field(number), self._grow_dictionary(number, column)
            )
        # Each chunk becomes a batch in the file, and chunks reveal which windows closed together.
        # So does a slice of a larger batch, by its buffers: all columns are copied.
        columns = [_copy(column) for column in table.combine_chunks().columns]
        self._writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=table.schema))

    def close(self) -> None:
        """Write the footer."""
        self._writer.close()

    def _grow_dictionary(self, number: int, column: pa.DictionaryArray) -> pa.DictionaryArray:
        """Encode the column with a dictionary that extends the one written before."""
        known = self._known[number]
        if not column.dictionary[: len(known)].equals(known):
            fresh = column.dictionary.filter(pc.invert(pc.is_in(column.dictionary, known)))
            known = pa.concat_arrays([known, fresh])
            numbers = pc.index_in(column.dictionary, known).cast(column.type.index_type)
            column = pa.DictionaryArray.from_arrays(numbers.take(column.indices), known)
        self._known[number] = column.dictionary
        return column


def _copy(column: pa.ChunkedArray) -> pa.Array:
    """Return the values in buffers of their own."""
    first = column.chunk(0) if column.num_chunks else pa.array([], column.type)
    return pa.concat_arrays([first.slice(0, 0), *column.chunks])


class TextWriter:
    """Writes lines of text; a codec compresses each table."""

    def __init__(
        self,
        file: IO[bytes],
        schema: pa.Schema,
        lines: Callable[[pa.Table], bytes],
        header: Callable[[pa.Schema], bytes] | None = None,
        codec: str | None = None,
    ) -> None:
        self._file = file
        self._lines = lines
        self._codec = pa.Codec(codec) if codec else None
        if header is not None:
            self._write(header(schema))

    def write(self, table: pa.Table) -> None:
        """Add these rows."""
        self._write(self._lines(table))

    def close(self) -> None:
        """Do nothing: there is no buffer."""

    def _write(self, text: bytes) -> None:
        if text:
            self._file.write(self._codec.compress(text, asbytes=True) if self._codec else text)


def format_json_lines(table: pa.Table) -> bytes:
    """Format one JSON object per line, times in ISO 8601 and UTC."""
    text = io.BytesIO()
    _format_times(table).write_ndjson(text)
    return text.getvalue()


def format_csv(table: pa.Table) -> bytes:
    """Format rows as CSV without a header, times in ISO 8601 and UTC."""
    text = io.BytesIO()
    _format_times(table).write_csv(text, include_header=False)
    return text.getvalue()


def format_csv_header(schema: pa.Schema) -> bytes:
    """Format the CSV header."""
    text = io.BytesIO()
    pl.DataFrame(schema=schema.names).write_csv(text)
    return text.getvalue()


def _format_times(table: pa.Table) -> pl.DataFrame:
    frame = pl.DataFrame(table)
    times = [name for name, kind in frame.schema.items() if isinstance(kind, pl.Datetime)]
    return frame.with_columns(_format_iso(frame[name]) for name in times)


def _format_iso(times: pl.Series) -> pl.Series:
    """Format each run of equal times once: answers come window by window."""
    runs = times.rle().struct
    lengths = runs.field("len").to_numpy()
    text = runs.field("value").dt.strftime(_ISO)
    return text.gather(np.repeat(np.arange(len(lengths)), lengths)).rename(times.name)


SUFFIXES: dict[str, Callable[[IO[bytes], pa.Schema], Writer]] = {
    ".parquet": open_parquet_writer,
    ".csv": partial(TextWriter, lines=format_csv, header=format_csv_header),
    ".csv.gz": partial(TextWriter, lines=format_csv, header=format_csv_header, codec="gzip"),
    ".csv.zst": partial(TextWriter, lines=format_csv, header=format_csv_header, codec="zstd"),
    ".jsonl": partial(TextWriter, lines=format_json_lines),
    ".ndjson": partial(TextWriter, lines=format_json_lines),
    ".jsonl.gz": partial(TextWriter, lines=format_json_lines, codec="gzip"),
    ".jsonl.zst": partial(TextWriter, lines=format_json_lines, codec="zstd"),
    ".arrow": ArrowWriter,
    ".feather": ArrowWriter,
    ".ipc": ArrowWriter,
}
