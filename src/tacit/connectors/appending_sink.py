"""Append answers to one file, each exactly once, even after a crash.

The position of a delivery is the length of the file after it. Bytes after the recorded position
were written by an interrupted delivery: they are removed, and the delivery is repeated.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import io
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import polars as pl
import pyarrow as pa

from tacit.connectors.sinks import sync_folder
from tacit.connectors.writers import TextWriter
from tacit.errors import SinkError, UnreachableError
from tacit.pipeline.sinks import ReleaseBatch, Sink

_ROWS: Final = 1 << 18
"""Rows that are formatted at a time."""
_SEAL: Final = 1 << 12
"""Bytes before a position that identify the file."""
_TEMPORARY: Final = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EIO,
    errno.ESTALE,
    errno.ETIMEDOUT,
    errno.ENOTCONN,
    errno.EROFS,
    errno.EAGAIN,
)
"""Errors that may be temporary."""

log = logging.getLogger(__name__)


class AppendingSink(Sink):
    """Appends each release to a file of lines, CSV or JSON.

    The file is locked while it is open. If it is moved away between two releases, a new one is
    started.
    """

    once = True

    def __init__(
        self,
        path: Path,
        lines: Callable[[pa.Table], bytes],
        header: Callable[[pa.Schema], bytes] | None = None,
        codec: str | None = None,
    ) -> None:
        self.name = os.path.abspath(path)
        self._path = Path(self.name)
        self._lines = lines
        self._header = header
        self._codec = codec
        self._file: io.FileIO | None = None
        self._position: dict[str, Any] | None = None

    def recover(self, position: Any) -> None:
        """Start at the end of the last recorded delivery."""
        self._position = position
        with translate_errors(self.name):
            self._reopen()

    def is_missing(self, release: int, position: Any) -> bool:  # noqa: ARG002
        """Return whether the file is gone, or shorter than it was."""
        try:
            return position is not None and self._path.stat().st_size < position["offset"]
        except FileNotFoundError:
            return True

    def deliver(self, batch: ReleaseBatch) -> dict[str, Any]:
        """Append the answers and sync them to disk."""
        columns = list(batch.table.schema.names)
        with translate_errors(self.name):
            file = self._reopen()
            offset = self._find_end(file, batch.table)
            file.truncate(offset)
            file.seek(offset)
            for text in self._encode_texts(batch.table, header=offset == 0):
                _write(file, text)
            os.fsync(file.fileno())
            end = file.tell()
            self._position = {"offset": end, "seal": _hash_tail(file, end), "columns": columns}
        return self._position

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _reopen(self) -> io.FileIO:
        """Return the file of this name, which may be a new one."""
        if self._file is not None and _is_same_file(self._file, self._path):
            return self._file
        self.close()
        fresh = not self._path.exists()
        file = open_locked(self._path, self.name)
        if not _is_same_file(file, self._path):
            file.close()
            raise UnreachableError(f"{self.name} was moved away just now; retrying")
        if fresh:
            sync_folder(self._path.parent)
        self._file = file
        return file

    def _find_end(self, file: io.FileIO, table: pa.Table) -> int:
        """Find the end of the earlier deliveries; 0 in a new file."""
        last = self._position
        if last is not None and _hash_tail(file, last["offset"]) == last["seal"]:
            if self._header is not None and last["columns"] != table.schema.names:
                raise SinkError(
                    f"{self.name} has the columns {', '.join(last['columns'])}; answers now have "
                    f"{', '.join(table.schema.names)}. Move it away to start a new file"
                )
            offset = int(last["offset"])
            if not self._can_continue(file, offset, table):
                raise SinkError(
                    f"{self.name} has answers that are not in the ledger: was an older ledger "
                    "restored? Noise would be drawn again for them. Move the file away to start a "
                    "new one"
                )
            return offset
        if not self._can_continue(file, 0, table):
            what = "has other content" if last is None else "was changed by another program"
            raise SinkError(
                f"{self.name} exists and {what}; choose another name, or move it away to start a "
                "new file"
            )
        if last is not None:
            log.warning("%s was moved away or emptied; starting a new file", self.name)
        return 0

    def _can_continue(self, file: io.FileIO, offset: int, table: pa.Table) -> bool:
        """Return whether the rest of the file can be an interrupted delivery of these answers."""
        if os.fstat(file.fileno()).st_size <= offset:
            return True
        file.seek(offset)
        for text in self._encode_texts(table, header=offset == 0):
            found = file.read(len(text))
            if found != text:
                # After a power failure there may be zeros instead of the content.
                written = found.rstrip(b"\0")
                return text.startswith(written) and not file.read().strip(b"\0")
        return not file.read(1)

    def _encode_texts(self, table: pa.Table, *, header: bool) -> Iterator[bytes]:
        text = io.BytesIO()
        writer = TextWriter(
            text, table.schema, self._lines, self._header if header else None, self._codec
        )
        for start in range(0, table.num_rows, _ROWS):
            writer.write(table.slice(start, _ROWS))
            yield text.getvalue()
            text.seek(0)
            text.truncate()
        if text.tell():
            yield text.getvalue()


@contextlib.contextmanager
def translate_errors(name: str) -> Iterator[None]:
    """Turn a failed write into a SinkError; temporary ones are retried."""
    try:
        yield
    except OSError as error:
        raise explain_error(name, error) from error
    except (pa.ArrowException, pl.exceptions.PolarsError) as error:
        raise SinkError(f"{name} cannot be written: {type(error).__name__}") from error


def explain_error(name: str, error: OSError) -> SinkError:
    """Explain a failed write as a SinkError."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return UnreachableError(f"{name}: the disk is full; free some space. Retrying")
    what = os.strerror(error.errno) if error.errno else type(error).__name__
    if error.errno in _TEMPORARY:
        return UnreachableError(f"{name} cannot be written now: {what}; retrying")
    if error.errno == errno.ENOENT:
        return SinkError(f"{name}: its folder does not exist; create it or choose another place")
    return SinkError(f"{name} cannot be written: {what}; choose another place")


def _write(file: io.FileIO, text: bytes) -> None:
    rest = memoryview(text)
    while rest:
        rest = rest[file.write(rest) or 0 :]


def open_locked(path: Path, name: str) -> io.FileIO:
    """Open and lock the file at this path; create it if necessary.

    Raises UnreachableError if another process holds the lock.
    """
    file = io.FileIO(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666), "r+")
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        if isinstance(error, BlockingIOError):
            raise UnreachableError(
                f"another process delivers to {name}; stop it. Retrying"
            ) from error
        raise
    return file


def _is_same_file(file: io.FileIO, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _hash_tail(file: io.FileIO, offset: int) -> str:
    """Hash the bytes before this offset."""
    start = max(0, offset - _SEAL)
    return hashlib.sha256(os.pread(file.fileno(), offset - start, start)).hexdigest()
