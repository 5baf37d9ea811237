"""Read Arrow files and Arrow streams (also known as Feather and IPC)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from tacit.errors import SourceError, TacitError
from tacit.pipeline.sources import Batch, Source, check_names, encode_keys

_FILE = b"ARROW1"


class ArrowSource(Source):
    """Reads a file in Arrow's file format or stream format, detected by its first bytes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = str(path)
        with self._open(None) as reader:
            self._schema = reader.schema
            check_names(self.name, self._schema.names)
            if isinstance(reader, pa.RecordBatchFileReader) and reader.num_record_batches:
                self.total = self._count(reader)

    def schema(self) -> pa.Schema:
        """Return the columns from the file's metadata."""
        return self._schema

    def read(self, columns: Sequence[str], keys: Sequence[str]) -> Iterator[Batch]:
        """Read these columns batch by batch, as they were written."""
        row = 0
        with self._open(columns) as reader:
            for table in _batches(reader):
                table.validate(full=True)  # offsets and indices are used unchecked from here on
                batch = encode_keys(table.select(columns), keys)
                yield Batch(batch, row + 1, row + batch.num_rows, self.name)
                row += batch.num_rows

    def _count(self, reader: pa.RecordBatchFileReader) -> int:
        """Count the rows; with an older PyArrow, by reading one column."""
        if hasattr(reader, "count_rows"):
            return int(reader.count_rows())
        with self._open(self._schema.names[:1]) as narrow:
            return sum(batch.num_rows for batch in _batches(narrow))

    @contextmanager
    def _open(
        self, columns: Sequence[str] | None
    ) -> Iterator[pa.RecordBatchFileReader | pa.RecordBatchStreamReader]:
        fields = columns and [self._schema.get_field_index(name) for name in columns]
        options = pa.ipc.IpcReadOptions(included_fields=fields)
        try:
            # not memory-mapped: mapped pages would count as resident memory
            with pa.OSFile(str(self.path)) as file:
                start = file.read(len(_FILE))
                file.seek(0)
                kind = pa.ipc.open_file if start == _FILE else pa.ipc.open_stream
                with kind(file, options=options) as reader:
                    yield reader
        except TacitError:
            raise
        except Exception as error:  # a damaged file may raise anything
            raise SourceError(
                f"{self.name} cannot be read as Arrow ({type(error).__name__}): it does not exist, "
                "is another kind of file, was cut short or is damaged. "
                "Write or copy it again, or check its path and suffix."
            ) from error


def _batches(
    reader: pa.RecordBatchFileReader | pa.RecordBatchStreamReader,
) -> Iterator[pa.RecordBatch]:
    if isinstance(reader, pa.RecordBatchFileReader):
        for number in range(reader.num_record_batches):
            yield reader.get_batch(number)
    else:
        yield from reader
