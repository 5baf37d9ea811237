"""Parquet files.

Plain numbers in row groups of a usual size are decoded by loops of our own (`chunks`). PyArrow can
hand over a column of text as the dictionary that it is stored as, so that names need not be hashed
row by row. Polars reads everything else. So each has the columns it is best at, and they are
put side by side.

Left to itself, Polars reads far ahead. Row groups of a usual size are therefore asked for one
by one, a few at a time: what is decoded next then finds the memory of what was used up,
where fresh memory would take as long to get as the decoding itself.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, TypeAlias

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from polars.exceptions import PanicException

from tacit.connectors.parquet.columns import NumberColumns
from tacit.connectors.prefetch import parallel, prefetch
from tacit.connectors.sources import MOST_ROWS, Batch, Source, check_names, is_text
from tacit.errors import SourceError, TacitError

Ahead: TypeAlias = Generator[pa.RecordBatch, None, None]
"""Batches that threads read ahead; to close it stops them."""
_SMALL_GROUP = 1 << 16
"""Row groups of fewer rows are gathered into larger batches, at the price of a copy."""
_USUAL = 1 << 18, 1 << 22
"""Rows that row groups have in the mean at least, and at most, to be read one by one.

For each, Polars looks at what the file says about all of them; and one that is larger
should be read in pieces.
"""
_THREADS = min(4, os.cpu_count() or 1)
_MOST_WAITING = 4
"""Row groups that may wait to be used, if they are small."""


class ParquetSource(Source):
    """One Parquet file, of any size."""

    ahead = 0  # the columns are read ahead one by one

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = str(path)
        with _reading(self.name), pq.ParquetFile(path) as file:
            stored = file.schema_arrow
            self.total = file.metadata.num_rows
            self._groups = [
                file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)
            ]
            check_names(self.name, stored.names)
            self._texts = {field.name for field in stored if is_text(field.type)}
            frame = pl.scan_parquet(path, glob=False).collect_schema().to_frame()
            self._schema = frame.to_arrow().schema
            self._numbers = NumberColumns(path, file, self._schema)
        self._begin = 0

    def schema(self) -> pa.Schema:
        """The columns that the file says it has."""
        return self._schema

    def resume(self, token: Any) -> None:
        """Begin at a row when it is read next."""
        self._begin = 0 if token is None else int(token["row"])
        if self._begin > sum(self._groups):
            raise SourceError(f"{self.name} is shorter than it was: it is another file")

    def read(self, columns: Sequence[str], keys: Sequence[str]) -> Iterator[Batch]:
        """Decode these columns, row group by row group."""
        names = [name for name in columns if name in keys and name in self._texts]
        others = [name for name in columns if name not in names]
        row, self._begin = self._begin, 0
        with (
            _reading(self.name),
            closing(self._plain(others, row)) as numbers,
            closing(self._dictionaries(names, row)) as texts,
        ):
            streams = [numbers] * bool(others) + [texts] * bool(names)
            for parts in _side_by_side(streams):
                found = {
                    field.name: column
                    for part in parts
                    for field, column in zip(part.schema, part.columns, strict=True)
                }
                table = pa.RecordBatch.from_pydict({name: found[name] for name in columns})
                token = {"row": row} if row else None
                yield Batch(table, row + 1, row + table.num_rows, self.name, token=token)
                row += table.num_rows

    def _plain(self, columns: list[str], begin: int) -> Ahead:
        mean = sum(self._groups) // max(1, len(self._groups))
        if mean < _USUAL[0] or max(self._groups) > _USUAL[1]:
            scan = self._scan(columns)
            chunk = MOST_ROWS if mean < _SMALL_GROUP else None
            rest = scan.slice(begin) if begin else scan
            frames = rest.collect_batches(chunk_size=chunk, maintain_order=True)
            return prefetch((batch for frame in frames for batch in _record_batches(frame)), 2)
        edges = enumerate(pairwise(accumulate(self._groups, initial=0)))
        spans = ((number, max(start, begin), end) for number, (start, end) in edges)
        rests = ((number, start, end) for number, start, end in spans if start < end)
        waiting = min(_MOST_WAITING, _USUAL[1] // max(self._groups))
        return parallel(partial(self._group, columns), rests, _THREADS, waiting)

    def _group(self, names: list[str], rest: tuple[int, int, int]) -> pa.RecordBatch:
        """Columns of the rest of a row group: its number, its first row, and where it ends."""
        number, start, end = rest
        skipped = self._groups[number] - (end - start)
        numbers = self._numbers.decoded(number, names)
        columns = {name: column[skipped:] for name, column in numbers.items()}
        others = [name for name in names if name not in columns]
        if others:
            frame = self._scan(others).slice(start, end - start).collect()
            columns |= dict(zip(others, _record_batches(frame)[0].columns, strict=True))
        return pa.RecordBatch.from_pydict({name: columns[name] for name in names})

    def _scan(self, columns: list[str]) -> pl.LazyFrame:
        return pl.scan_parquet(self.path, glob=False).select(columns)

    def _dictionaries(self, columns: list[str], begin: int) -> Ahead:
        return prefetch(self._decoded(columns, begin), 2)

    def _decoded(self, columns: list[str], begin: int) -> Iterator[pa.RecordBatch]:
        ends = list(accumulate(self._groups))
        groups = [number for number, end in enumerate(ends) if end > begin]
        skip = begin - (ends[groups[0]] - self._groups[groups[0]]) if groups else 0
        with pq.ParquetFile(self.path, read_dictionary=columns, pre_buffer=False) as file:
            for batch in file.iter_batches(
                MOST_ROWS, row_groups=groups, columns=columns, use_threads=False
            ):
                if skip < batch.num_rows:
                    yield batch.slice(skip)
                skip = max(0, skip - batch.num_rows)


def _record_batches(frame: pl.DataFrame) -> list[pa.RecordBatch]:
    batches: list[pa.RecordBatch] = frame.rechunk().to_arrow().to_batches()
    return batches


def _side_by_side(streams: Sequence[Iterator[pa.RecordBatch]]) -> Iterator[list[pa.RecordBatch]]:
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
    except TacitError:
        raise
    except (Exception, PanicException) as error:  # damage may raise anything
        raise SourceError(
            f"{name} cannot be read as Parquet ({type(error).__name__}): it is another kind of "
            "file, was cut short or is damaged. Write or copy it again, or check its suffix."
        ) from error
