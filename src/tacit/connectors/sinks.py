"""Sinks without a ledger: files, complete or absent, and standard output.

A file is written under a temporary name beside its target. It gets the target's name only when it
is complete and on disk.
"""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from abc import abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO

import polars as pl
import pyarrow as pa

from tacit.connectors.writers import SUFFIXES, Writer, format_json_lines
from tacit.errors import ClosedPipeError, SinkError
from tacit.pipeline.sinks import ReleaseBatch, Sink, check_regular

_GROUP = 1 << 20
"""Rows per group in a file."""


class TableSink(Sink):
    """Receives tables of one schema, without a ledger."""

    @abstractmethod
    def write(self, table: pa.Table) -> None:
        """Add these rows."""

    def deliver(self, batch: ReleaseBatch) -> None:
        """Add these answers."""
        self.write(batch.table)


class FileSink(TableSink):
    """Writes a file that gets its name only when it is complete."""

    def __init__(
        self,
        path: Path,
        writer: Callable[[IO[bytes], pa.Schema], Writer],
        schema: pa.Schema | None = None,
    ) -> None:
        self.name = str(path)
        self._target = Path(os.path.realpath(path))
        self._format = writer
        self._schema = schema
        self._writer: Writer | None = None
        self._pending: list[pa.Table] = []
        self._file: IO[bytes] | None = None
        self._finished = False
        self._background: ThreadPoolExecutor | None = None
        self._writing: Future[None] | None = None
        check_regular(path)
        with self._translate_errors():
            number, temporary = tempfile.mkstemp(
                prefix=f".{self._target.name}.", suffix=".partial", dir=self._target.parent
            )
            self._temporary = Path(temporary)
            self._file = os.fdopen(number, "wb")

    def write(self, table: pa.Table) -> None:
        """Add these rows; the first table determines the columns.

        They are written in groups of a fixed size: groups in a file must not reveal when windows
        were closed, which depends on all tuples.
        """
        if self._file is None:
            raise SinkError(f"{self.name} is closed")
        self._pending.append(table)
        while sum(part.num_rows for part in self._pending) >= _GROUP:
            whole = pa.concat_tables(self._pending)
            self._pending = [whole.slice(_GROUP)]
            self._write_group(whole.slice(0, _GROUP))

    def _write_group(self, table: pa.Table) -> None:
        """Write a full group in the background, while the rows of the next one are made."""
        self._wait()
        self._background = self._background or ThreadPoolExecutor(1, "tacit-file")
        self._writing = self._background.submit(self._open(table.schema).write, table)

    def _wait(self) -> None:
        """Wait until the group that is being written is written; raise its error."""
        writing, self._writing = self._writing, None
        if writing is not None:
            with self._translate_errors():
                writing.result()

    def finish(self) -> None:
        """Write everything to disk, under the temporary name."""
        if self._file is None or self._finished:
            return
        self._wait()
        with self._translate_errors():
            if self._pending:
                rest = pa.concat_tables(self._pending)
                self._open(rest.schema).write(rest)
                self._pending = []
            self._open(self._schema or pa.schema([])).close()
            self._file.flush()
            os.fsync(self._file.fileno())
            os.fchmod(self._file.fileno(), _choose_mode(self._target))
            self._file.close()
        self._stop_background()
        self._finished = True

    def close(self) -> None:
        """Write the file to disk, then give it its name."""
        if self._file is None:
            return
        self.finish()
        with self._translate_errors():
            os.replace(self._temporary, self._target)
            sync_folder(self._target.parent)
        self._file = None

    def abort(self) -> None:
        """Remove what was written; an earlier file of the same name stays unchanged."""
        file, self._file = self._file, None
        if file is None:
            return
        self._stop_background()
        with contextlib.suppress(Exception):  # it may fail again for the same reason
            if self._writer is not None:
                self._writer.close()
        with contextlib.suppress(OSError):
            file.close()
        with contextlib.suppress(OSError):
            self._temporary.unlink(missing_ok=True)

    def _stop_background(self) -> None:
        """Stop the thread, after the group that it writes."""
        if self._background is not None:
            self._background.shutdown()
            self._background = None

    def _open(self, schema: pa.Schema) -> Writer:
        if self._file is None:
            raise SinkError(f"{self.name} is closed")
        if self._writer is None:
            self._writer = self._format(self._file, self._schema or schema)
        return self._writer

    @contextlib.contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except (OSError, pa.ArrowException, pl.exceptions.PolarsError) as error:
            self.abort()
            raise _explain(self.name, error) from error


class StandardOutput(TableSink):
    """Writes JSON lines to standard output, or another open descriptor.

    Writes cannot be undone: after a crash the last release may be written again, with the same ids.
    """

    name = "-"

    def __init__(self, descriptor: int = 1) -> None:
        self._descriptor = descriptor

    def write(self, table: pa.Table) -> None:
        """Write these rows immediately."""
        rest = memoryview(format_json_lines(table))
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except BrokenPipeError as error:
            raise ClosedPipeError("standard output was closed by its reader") from error
        except OSError as error:
            raise _explain("standard output", error) from error

    def close(self) -> None:
        """Do nothing: there is no buffer."""


class CallableSink(TableSink):
    """Passes answers to a function, as Arrow tables; its exceptions end the run."""

    def __init__(self, take: Callable[[pa.Table], None], name: str = "python") -> None:
        self._take = take
        self.name = name

    def write(self, table: pa.Table) -> None:
        """Call the function."""
        self._take(table)

    def close(self) -> None:
        """Do nothing: there is no buffer."""


def choose_writer(path: Path) -> Callable[[IO[bytes], pa.Schema], Writer]:
    """Choose the writer for a file, by its suffix."""
    suffix = max((s for s in SUFFIXES if path.name.lower().endswith(s)), key=len, default="")
    if not suffix:
        raise SinkError(
            f"{path}: expected a name ending in {', '.join(SUFFIXES)}, or - for JSON lines on "
            "standard output"
        )
    return SUFFIXES[suffix]


def _explain(name: str, error: Exception) -> SinkError:
    number = getattr(error, "errno", None)
    if number in (errno.ENOSPC, errno.EDQUOT):
        return SinkError(f"{name}: the disk is full; free some space or choose another place")
    if number == errno.ENOENT:
        return SinkError(f"{name}: its folder does not exist; create it or choose another place")
    what = os.strerror(number) if number else type(error).__name__
    return SinkError(f"{name} cannot be written: {what}; choose another place")


def _choose_mode(target: Path) -> int:
    """Return the mode of the file that is replaced, or the default mode."""
    if target.exists():
        return target.stat().st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def sync_folder(folder: Path) -> None:
    """Sync the entries of a folder to disk."""
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
