"""Parquet files.

Polars decodes numbers twice as fast as PyArrow. PyArrow can hand over a column of
text as the dictionary that it is stored as, so that names need not be hashed row by
row. So each reads the columns it is better at, and the two are put side by side.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from tacit.connectors.sources import MOST_ROWS, Batch, Source, check_names, is_text
from tacit.errors import SourceError

_SMALL_GROUP = 1 << 16
"""Row groups of fewer rows are gathered into larger batches, at the price of a copy."""


class ParquetSource(Source):
    """One Parquet file, of any size."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = str(path)
        with _reading(self.name):
            with pq.ParquetFile(path) as file:
                stored = file.schema_arrow
                self.total = file.metadata.num_rows
                small = file.metadata.num_rows < _SMALL_GROUP * file.num_row_groups
            check_names(self.name, stored.names)
            self._chunk = MOST_ROWS if small else None
            self._texts = {field.name for field in stored if is_text(field.type)}
            frame = pl.scan_parquet(path, glob=False).collect_schema().to_frame()
            self._schema = frame.to_arrow().schema

    def schema(self) -> pa.Schema:
        """The columns that the file says it has."""
        return self._schema

    def read(self, columns: Sequence[str], keys: Sequence[str]) -> Iterator[Batch]:
        """Decode these columns, row group by row group."""
        names = [name for name in columns if name in keys and name in self._texts]
        others = [name for name in columns if name not in names]
        streams = [self._plain(others)] if others else []
        streams += [self._dictionaries(names)] if names else []
        row = 0
        with _reading(self.name):
            for parts in _side_by_side(streams):
                found = {
                    field.name: column
                    for part in parts
                    for field, column in zip(part.schema, part.columns, strict=True)
                }
                table = pa.RecordBatch.from_pydict({name: found[name] for name in columns})
                yield Batch(table, row + 1, row + table.num_rows, self.name)
                row += table.num_rows

    def _plain(self, columns: list[str]) -> Iterator[pa.RecordBatch]:
        scan = pl.scan_parquet(self.path, glob=False).select(columns)
        for frame in scan.collect_batches(chunk_size=self._chunk, maintain_order=True):
            table = frame.rechunk().to_arrow()
            yield from table.to_batches()

    def _dictionaries(self, columns: list[str]) -> Iterator[pa.RecordBatch]:
        with pq.ParquetFile(self.path, read_dictionary=columns, pre_buffer=False) as file:
            yield from file.iter_batches(MOST_ROWS, columns=columns, use_threads=False)


def _side_by_side(streams: list[Iterator[pa.RecordBatch]]) -> Iterator[list[pa.RecordBatch]]:
    """Cut streams of the same rows, batched differently, at the same rows."""
    heads = [pa.RecordBatch.from_pydict({}) for _ in streams]
    while True:
        for number, stream in enumerate(streams):
            while heads[number].num_rows == 0:
                following = next(stream, None)
                if following is None:
                    return
                heads[number] = following
        rows = min(head.num_rows for head in heads)
        yield [head.slice(0, rows) for head in heads]
        heads = [head.slice(rows) for head in heads]


@contextmanager
def _reading(name: str) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, pl.exceptions.PolarsError, OSError) as error:
        raise SourceError(
            f"{name} cannot be read as Parquet ({type(error).__name__}): it is another kind of "
            "file, was cut short or is damaged. Write or copy it again, or check its suffix."
        ) from error
