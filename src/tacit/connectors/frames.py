"""Frames in memory: Polars, pandas, PyArrow, and whatever else speaks Arrow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import polars as pl
import pyarrow as pa

from tacit.connectors.sources import Batch, Source, check_columns, check_names, encode_keys
from tacit.errors import SourceError


class FrameSource(Source):
    """A frame, or an iterator of frames with the same columns.

    A frame is a Polars DataFrame or LazyFrame, a pandas DataFrame, a PyArrow Table,
    RecordBatch or RecordBatchReader, or anything else with `__arrow_c_stream__`.
    Tables can be read again; readers and iterators only once.
    """

    ahead = 0  # there is nothing to decode

    def __init__(self, frame: Any, name: str = "frame") -> None:
        self.name = name
        self._frames: Iterable[Any] = _frames(frame, name)
        self.once = isinstance(frame, pa.RecordBatchReader) or not isinstance(self._frames, list)
        self._spent = False
        if hasattr(frame, "__len__") and not self.once:
            self.total = len(frame)
        self._schema = self._peek()

    def schema(self) -> pa.Schema:
        """The columns of the frame, or of the first of them."""
        return self._schema

    def read(self, columns: Sequence[str], keys: Sequence[str]) -> Iterator[Batch]:
        """The rows, without a copy where the frame is Arrow inside."""
        if self._spent:
            raise SourceError(f"{self.name} is an iterator and can be read only once")
        self._spent = self.once
        row = 0
        for frame in self._frames:
            reader = _reader(frame, self.name, columns)
            check_columns(self.name, columns, reader.schema.names)
            for table in reader:
                batch = encode_keys(table.select(columns), keys)
                yield Batch(batch, row + 1, row + batch.num_rows, self.name)
                row += batch.num_rows

    def _peek(self) -> pa.Schema:
        rest = iter(self._frames)
        first = next(rest, None)
        if first is None:
            raise SourceError(f"{self.name} is an iterator without any frame")
        if isinstance(first, pl.LazyFrame):
            schema = first.collect_schema().to_frame().to_arrow().schema
        else:
            reader = _reader(first, self.name, None)
            schema = reader.schema
            if self.once:
                self._frames = chain([reader], rest)
        check_names(self.name, schema.names)
        return schema


def _frames(frame: Any, name: str) -> Iterable[Any]:
    if isinstance(frame, pl.LazyFrame | pa.RecordBatchReader) or _speaks_arrow(frame):
        return [frame]
    if isinstance(frame, Iterable) and not isinstance(frame, str | bytes | dict):
        return iter(frame)
    raise SourceError(
        f"{name} is a {type(frame).__name__}; expected a frame of Polars, pandas or PyArrow, "
        "something with __arrow_c_stream__, or an iterator of these"
    )


def _speaks_arrow(frame: Any) -> bool:
    return (
        hasattr(frame, "__arrow_c_stream__")
        or hasattr(frame, "__arrow_c_array__")
        or type(frame).__module__.startswith("pandas")
    )


def _reader(frame: Any, name: str, columns: Sequence[str] | None) -> pa.RecordBatchReader:
    """Any frame as a reader of record batches."""
    if isinstance(frame, pl.LazyFrame):
        return _lazy(frame if columns is None else frame.select(columns))
    if isinstance(frame, pl.DataFrame):
        return frame.to_arrow().to_reader()
    if isinstance(frame, pa.RecordBatchReader):
        return frame
    if isinstance(frame, pa.RecordBatch):
        return pa.RecordBatchReader.from_batches(frame.schema, [frame])
    if type(frame).__module__.startswith("pandas"):
        check_names(name, [str(column) for column in frame.columns])
        return pa.Table.from_pandas(frame, preserve_index=False).to_reader()
    if hasattr(frame, "__arrow_c_stream__"):
        return pa.RecordBatchReader.from_stream(frame)
    raise SourceError(f"{name} yields a {type(frame).__name__}, which is no frame")


def _lazy(frame: pl.LazyFrame) -> pa.RecordBatchReader:
    schema = frame.collect_schema().to_frame().to_arrow().schema
    return pa.RecordBatchReader.from_batches(
        schema,
        (
            batch
            for part in frame.collect_batches(maintain_order=True)
            for batch in part.to_arrow().cast(schema).to_batches()
        ),
    )
