"""Dead letters: refused tuples and the reasons. They are for the operator only."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import IO, TypedDict

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from tacit.errors import SinkError
from tacit.events.times import NO_TIME
from tacit.pipeline.batches import Rows
from tacit.pipeline.sinks import check_regular
from tacit.pipeline.sources import Rejected

_SCHEMA = {
    "stream": pl.String(),
    "source": pl.String(),
    "place": pl.Int64(),
    "reason": pl.String(),
    "time": pl.String(),
    "subject": pl.String(),
    "raw": pl.String(),
}


class LettersMark(TypedDict):
    """How far a file of dead letters goes at a checkpoint."""

    file: int
    """The number of the file in its file system."""
    size: int


class DeadLetters:
    """Writes refused tuples as JSON lines, readable by the owner only, and counts them.

    The file is created with the first entry, or immediately with `always`. A file of an earlier run
    is replaced, or appended to with `keep`. Without a path tuples are only counted. Any thread
    may call its methods.
    """

    def __init__(
        self, path: Path | None = None, *, always: bool = False, keep: bool = False
    ) -> None:
        self.path = path
        self._how = os.O_APPEND if keep else os.O_TRUNC
        self.counts: Counter[tuple[str, str]] = Counter()
        """How many tuples were refused, by stream and reason."""
        self._file: IO[bytes] | None = None
        self._lock = threading.Lock()
        self._unsynced = False
        self._mark: LettersMark | None = None
        if path is not None:
            check_regular(path)
            if not keep:
                path.unlink(missing_ok=True)
            if always:
                self._open()

    @classmethod
    def to_file(cls, file: IO[bytes]) -> DeadLetters:
        """Write dead letters to an open file."""
        dead_letters = cls()
        dead_letters._file = file
        return dead_letters

    def add_lines(self, stream: str, source: str, rejected: Sequence[Rejected]) -> None:
        """Add unreadable lines."""
        with self._lock:
            self.counts.update((stream, line.reason) for line in rejected)
        self._write(
            pl.DataFrame(
                {
                    "place": [line.place for line in rejected],
                    "reason": [line.reason for line in rejected],
                    "raw": [line.raw for line in rejected],
                },
                schema={name: _SCHEMA[name] for name in ("place", "reason", "raw")},
            ),
            stream,
            source,
        )

    def add_rows(
        self,
        rows: Rows,
        chosen: NDArray[np.int64],
        reason: str,
        times: NDArray[np.int64] | None = None,
        subject: str | None = None,
    ) -> None:
        """Add the chosen rows; `times` are theirs, `subject` names the column of subjects."""
        if not len(chosen):
            return
        with self._lock:
            self.counts[rows.stream, reason] += len(chosen)
        if self._counts_only:
            return
        original = rows.table if rows.raw is None else rows.raw
        frame = pl.DataFrame(pa.Table.from_batches([original]))[chosen]
        columns = {
            "place": pl.Series(rows.number_rows(chosen)),
            "reason": pl.Series([reason]).new_from_index(0, len(chosen)),
            "raw": frame.select(pl.struct(pl.all()).struct.json_encode()).to_series(),
        }
        if times is not None:
            columns["time"] = _times(times)
        if subject is not None:
            columns["subject"] = frame[subject].cast(pl.String)
        self._write(pl.DataFrame(columns), rows.stream, rows.source)

    def sync(self) -> LettersMark | None:
        """Make sure that all entries are on disk; return how far the file goes."""
        if self.path is None or self._file is None:
            return self._mark
        if self._unsynced:
            os.fsync(self._file.fileno())
            self._unsynced = False
            status = os.fstat(self._file.fileno())
            self._mark = {"file": status.st_ino, "size": status.st_size}
        return self._mark

    def rewind(self, mark: LettersMark | None) -> None:
        """Remove entries after a mark: the tuples of those are read again.

        Nothing is removed from another file.
        """
        self._mark = mark
        if self.path is None or not self.path.exists():
            return
        status = self.path.stat()
        size = 0 if mark is None else mark["size"]
        if mark is not None and status.st_ino == mark["file"] and status.st_size > size:
            os.truncate(self.path, size)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> DeadLetters:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, entries: pl.DataFrame, stream: str, source: str) -> None:
        if self._counts_only or not entries.height:
            return
        missing = [
            pl.lit(None, kind).alias(name)
            for name, kind in _SCHEMA.items()
            if name not in entries.columns
        ]
        whole = entries.with_columns(missing).with_columns(
            stream=pl.lit(stream), source=pl.lit(source)
        )
        try:
            with self._lock:
                file = self._file or self._open()
                whole.select(list(_SCHEMA)).write_ndjson(file)
                file.flush()
                self._unsynced = True
        except (OSError, pl.exceptions.PolarsError) as error:
            raise SinkError(
                f"dead letters cannot be written to {self.path}; free some space or choose "
                "another place"
            ) from error

    @property
    def _counts_only(self) -> bool:
        return self.path is None and self._file is None

    def _open(self) -> IO[bytes]:
        path = self.path
        assert path is not None, "without a path nothing is written"
        try:
            number = os.open(path, os.O_WRONLY | os.O_CREAT | self._how, 0o600)
        except OSError as error:
            raise SinkError(
                f"{path} cannot be written: {os.strerror(error.errno or 0)}; choose another place"
            ) from error
        self._file = os.fdopen(number, "wb")
        return self._file


def _times(times: NDArray[np.int64]) -> pl.Series:
    """Format times as ISO 8601 in UTC, or as numbers beyond the calendar; no time is null."""
    numbers = pl.Series("time", times)
    known = numbers.set(numbers == NO_TIME, None)
    sane = known.is_between(-62_135_596_800_000_000, 253_402_300_799_999_999)
    dates = known.set(~sane, None).cast(pl.Datetime("us")).dt.strftime("%Y-%m-%dT%H:%M:%S%.fZ")
    return dates.fill_null(known.cast(pl.String))
