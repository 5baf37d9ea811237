"""Read frames in memory: Polars, pandas, PyArrow, and others that support Arrow."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import polars as pl
import pyarrow as pa

from tacit.errors import SchemaError, SourceError
from tacit.pipeline.sources import Batch, Source, check_columns, check_names, encode_keys


class FrameSource(Source):
    """Reads a frame, or an iterator of frames with the same columns.

    A frame is a Polars DataFrame or LazyFrame, a pandas DataFrame, a PyArrow Table,
    RecordBatch or RecordBatchReader, or anything else with `__arrow_c_stream__`.
    Tables can be read again; readers and iterators only once.
    """

    ahead = 0  # there is nothing to decode
    most_rows = 1 << 20  # the rows are in memory already, and each batch has a fixed cost

    def __init__(self, frame: Any, name: str = "frame") -> None:
        self.name = name
        self._frames: Iterable[Any] = _frames(frame, name)
        self.once = isinstance(frame, pa.RecordBatchReader) or not isinstance(self._frames, list)
        self._spent = False
        if hasattr(frame, "__len__") and not self.once:
            self.total = len(frame)
        self._schema = self._peek()

    def schema(self) -> pa.Schema:
        """Return the columns of the frame, or of the first one."""
        return self._schema

    def read(self, columns: Sequence[str], keys: Sequence[str]) -> Iterator[Batch]:
        """Yield the rows, without a copy if the frame is in Arrow format."""
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

    def identify(self) -> None:
        """Add a hash of the content to the name, if the frame can be read again.

        The position of a run in a source is stored under the source's name.
        """
        if self.once:
            return
        tables = [_reader(frame, self.name, None).read_all() for frame in self._frames]
        found = hashlib.sha256()
        with pa.PythonFile(_Hashing(found), "w") as file:
            whole = pa.concat_tables(tables).combine_chunks()
            with pa.ipc.new_stream(file, whole.schema) as writer:
                writer.write_table(whole)
        self.name = f"{self.name}-{found.hexdigest()[:16]}"

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


class _Hashing(io.RawIOBase):
    """A file that passes its content to a hash."""

    def __init__(self, digest: Any) -> None:
        self._digest = digest

    def writable(self) -> bool:
        return True

    def write(self, octets: Any) -> int:
        self._digest.update(octets)
        return len(octets)


def _frames(frame: Any, name: str) -> Iterable[Any]:
    if isinstance(frame, pl.LazyFrame | pa.RecordBatchReader) or _supports_arrow(frame):
        return [frame]
    if isinstance(frame, Iterable) and not isinstance(frame, str | bytes | dict):
        return iter(frame)
    raise SourceError(
        f"{name} is a {type(frame).__name__}; expected a frame of Polars, pandas or PyArrow, "
        "something with __arrow_c_stream__, or an iterator of these"
    )


def _supports_arrow(frame: Any) -> bool:
    return (
        hasattr(frame, "__arrow_c_stream__")
        or hasattr(frame, "__arrow_c_array__")
        or type(frame).__module__.startswith("pandas")
    )


def _reader(frame: Any, name: str, columns: Sequence[str] | None) -> pa.RecordBatchReader:
    """Convert any frame to a reader of record batches."""
    if isinstance(frame, pl.LazyFrame):
        return _read_lazy(frame if columns is None else frame.select(columns))
    if isinstance(frame, pl.DataFrame):
        return frame.to_arrow().to_reader()
    if isinstance(frame, pa.RecordBatchReader):
        return frame
    if isinstance(frame, pa.RecordBatch):
        return pa.RecordBatchReader.from_batches(frame.schema, [frame])
    if type(frame).__module__.startswith("pandas"):
        check_names(name, [str(column) for column in frame.columns])
        return _from_pandas(frame, name).to_reader()
    if hasattr(frame, "__arrow_c_stream__"):
        return pa.RecordBatchReader.from_stream(frame)
    raise SourceError(f"{name} yields a {type(frame).__name__}, which is not a frame")


def _from_pandas(frame: Any, name: str) -> pa.Table:
    """Convert a pandas frame to Arrow; an error names columns, never their values."""
    try:
        return pa.Table.from_pandas(frame, preserve_index=False)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        unfit = [str(column) for column in frame.columns if not _fits(frame[column])]
        raise SchemaError(
            f"{name}: the values of column {', '.join(map(repr, unfit)) or '?'} are of several"
            " types, or of one that Arrow does not have; give each column one type, for example"
            f" with frame.astype({{{unfit[0] if unfit else 'column'!r}: str}})"
        ) from None


def _fits(column: Any) -> bool:
    try:
        pa.Array.from_pandas(column)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return False
    return True


def _read_lazy(frame: pl.LazyFrame) -> pa.RecordBatchReader:
    schema = frame.collect_schema().to_frame().to_arrow().schema
    return pa.RecordBatchReader.from_batches(
        schema,
        (
            batch
            for part in frame.collect_batches(maintain_order=True)
            for batch in part.to_arrow().cast(schema).to_batches()
        ),
    )
