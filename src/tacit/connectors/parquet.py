"""Read Parquet files with Polars and PyArrow.

Polars decodes most columns, because it is the faster of the two. PyArrow decodes subjects that are
text, because it can return a column as the dictionary that the file stores: then names need
not be hashed row by row. Both read the same rows, and their columns are joined side by side.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from polars.exceptions import PanicException

from tacit.errors import SourceError, TacitError
from tacit.pipeline.prefetch import prefetch
from tacit.pipeline.sources import MOST_ROWS, Batch, Source, check_names, is_text

_SMALL_GROUP = 1 << 16
"""Row groups with fewer rows on average are joined into larger batches, which costs a copy."""


class ParquetSource(Source):
    """Reads a Parquet file of any size."""

    ahead = 0  # the columns are read ahead separately

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = str(path)
        with self._translate_errors(), pq.ParquetFile(path) as file:
            stored = file.schema_arrow
            self.total: int = file.metadata.num_rows
            self._groups = [
                file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)
            ]
            check_names(self.name, stored.names)
            self._texts = {field.name for field in stored if is_text(field.type)}
            frame = pl.scan_parquet(path, glob=False).collect_schema().to_frame()
            self._schema = frame.to_arrow().schema
        self._begin = 0

    def schema(self) -> pa.Schema:
        """Return the columns from the file's metadata."""
        return self._schema

    def resume(self, token: Any) -> None:
        """Start at a row when it is read next."""
        self._begin = 0 if token is None else int(token["row"])
        if self._begin > self.total:
            raise SourceError(f"{self.name} is shorter than it was: it is another file")

    def read(self, columns: Sequence[str], keys: Sequence[str]) -> Iterator[Batch]:
        """Decode these columns and no others, row group by row group."""
        texts = [name for name in columns if name in keys and name in self._texts]
        others = [name for name in columns if name not in texts]
        row, self._begin = self._begin, 0
        with (
            closing(prefetch(self._decode(others, row), 2)) as decoded,
            closing(prefetch(self._decode_dictionaries(texts, row), 2)) as dictionaries,
        ):
            streams = [decoded] * bool(others) + [dictionaries] * bool(texts)
            parts = _join_columns(streams)
            while row < self.total:
                with self._translate_errors(row):
                    found = next(parts, None)
                    if found is None:
                        raise EOFError
                    table = pa.RecordBatch.from_pydict({name: found[name] for name in columns})
                token = {"row": row} if row else None
                yield Batch(table, row + 1, row + table.num_rows, self.name, token=token)
                row += table.num_rows

    def _decode(self, columns: list[str], begin: int) -> Iterator[pa.RecordBatch]:
        mean = self.total // max(1, len(self._groups))
        scan = pl.scan_parquet(self.path, glob=False).select(columns)
        frames = (scan.slice(begin) if begin else scan).collect_batches(
            chunk_size=MOST_ROWS if mean < _SMALL_GROUP else None, maintain_order=True
        )
        for frame in frames:
            yield from frame.rechunk().to_arrow().to_batches()

    def _decode_dictionaries(self, columns: list[str], begin: int) -> Iterator[pa.RecordBatch]:
        ends = list(accumulate(self._groups))
        groups = [number for number, end in enumerate(ends) if end > begin]
        skip = begin - (ends[groups[0]] - self._groups[groups[0]]) if groups else 0
        with pq.ParquetFile(self.path, read_dictionary=columns, pre_buffer=False) as file:
            for batch in file.iter_batches(
                MOST_ROWS, row_groups=groups, columns=columns, use_threads=False
            ):
                if skip < batch.num_rows:
                    rest = batch.slice(skip)
                    rest.validate(full=True)  # unlike Polars, PyArrow does not check the encoding
                    yield rest
                skip = max(0, skip - batch.num_rows)

    @contextmanager
    def _translate_errors(self, row: int | None = None) -> Iterator[None]:
        """Turn any error into a SourceError with the file and the row."""
        try:
            yield
        except TacitError:
            raise
        except (Exception, PanicException) as error:  # a damaged file may raise anything
            place = "" if row is None else f" after row {row}"
            raise SourceError(
                f"{self.name} cannot be read as Parquet{place} ({type(error).__name__}): it is "
                "another kind of file, was cut short or is damaged. Write or copy it again, or "
                "check its suffix."
            ) from error


def _join_columns(streams: Sequence[Iterator[pa.RecordBatch]]) -> Iterator[dict[str, pa.Array]]:
    """Join columns of the same rows from streams with different batch sizes."""
    heads = [pa.RecordBatch.from_pydict({}) for _ in streams]
    while True:
        for number, stream in enumerate(streams):
            while heads[number].num_rows == 0:
                following = next(stream, None)
                if following is None:
                    return
                heads[number] = following
        rows = min(head.num_rows for head in heads)
        parts = [head.slice(0, rows) for head in heads]
        yield {
            name: column
            for part in parts
            for name, column in zip(part.schema.names, part.columns, strict=True)
        }
        heads = [head.slice(rows) for head in heads]
