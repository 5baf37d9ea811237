"""Follow files of lines that grow, such as logs, also across log rotation.

Only whole lines are read. If a file is replaced under its name, the old file is finished first, and
then the new one is read. A file that is emptied is read from its start.
"""

from __future__ import annotations

import logging
import os
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Protocol

import pyarrow as pa

from tacit.connectors import csv, jsonlines
from tacit.connectors.file_pieces import (
    BOM,
    LONGEST_LINE,
    PIECE,
    UTF_16_BOMS,
    translate_read_errors,
)
from tacit.errors import SourceError
from tacit.pipeline.sources import Batch, Source, check_columns, encode_keys

_POLL_SECONDS: Final = 0.1
"""Seconds between two reads of a file that does not grow."""
_GRACE: Final = 1.0
"""Seconds without new lines after which a replaced file counts as finished."""
_SEAL: Final = 64
"""Bytes before an offset that identify a file."""

log = logging.getLogger(__name__)


class FollowFileSource(Source):
    """Follows a file of JSON lines or CSV to which other programs append."""

    unit = "bytes"
    textual = True
    live = True
    once = True  # lines that were read are not read again

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self._path = path
        self._parser = _choose_parser(path)
        self.keyed = isinstance(self._parser, _JsonLines)
        self._schema = pa.schema([]) if self.keyed else None
        self._token: dict[str, Any] | None = None
        self._delimiter = ","

    def schema(self) -> pa.Schema:
        """Return the header's names; wait until there is a header."""
        while self._schema is None:
            with translate_read_errors(self.name):
                head = _read_head(self._path)
            if head.startswith(UTF_16_BOMS):
                raise SourceError(f"{self.name} is UTF-16 text; convert it to UTF-8")
            first = _first_block(head, self._delimiter)
            if first is None:
                log.debug("waiting for the first line of %s", self.name)
                time.sleep(_POLL_SECONDS)
            else:
                names = csv.parse_header(self.name, first, self._delimiter)
                self._schema = pa.schema([(name, pa.string()) for name in names])
        return self._schema

    def separate_by(self, delimiter: str) -> None:
        """Set the character between the fields of CSV."""
        self._delimiter = delimiter
        if isinstance(self._parser, _Csv):
            self._parser = _Csv(self.name, delimiter)

    def resume(self, token: Any) -> None:
        """Start at a line of a file when it is read next."""
        self._token = token

    def read(self, columns: Sequence[str], keys: Sequence[str]) -> Iterator[Batch]:
        """Parse lines as they arrive; yield an empty batch while none arrive."""
        schema = pa.schema([(name, pa.string()) for name in columns])
        empty = encode_keys(pa.RecordBatch.from_pylist([], schema), keys)
        token, self._token = self._token, None
        file = self._find_file(token)
        try:
            if _read_head(file.number).startswith(UTF_16_BOMS):
                raise SourceError(f"{self.name} is UTF-16 text; convert it to UTF-8")
            self._parser.begin(columns, keys, _read_head(file.number) if file.offset else None)
            while True:
                with translate_read_errors(self.name):
                    yield from self._read_until_replaced(file, empty)
                log.info("%s was replaced; continuing with the new file", self.name)
                file.close()
                file = self._open()
                self._parser.begin(columns, keys, None)
        finally:
            file.close()

    def _read_until_replaced(self, file: _OpenFile, empty: pa.RecordBatch) -> Iterator[Batch]:
        last_read = time.monotonic()
        while True:
            if file.read():
                yield from self._take_lines(file, last=False)
                last_read = time.monotonic()
            elif file.is_emptied():
                log.warning("%s was emptied; reading it from its start", self.name)
                file.rewind()
                self._parser.rewind()
            elif file.is_replaced(self._path) and time.monotonic() - last_read > _GRACE:
                yield from self._take_lines(file, last=True)
                return
            else:
                yield Batch(empty, file.line, file.position, self.name, token=file.token())
                time.sleep(_POLL_SECONDS)

    def _take_lines(self, file: _OpenFile, *, last: bool) -> Iterator[Batch]:
        """Yield batches of whole lines; keep the rest for later."""
        batches, rest, line = self._parser.take(file.rest, file.line, file.position, last=last)
        for batch in batches:
            token = file.token(batch.token["offset"], batch.token["line"])
            yield replace(batch, position=file.position, source=self.name, token=token)
        file.rest, file.line = rest, line
        if len(rest) > LONGEST_LINE:
            raise SourceError(f"{self.name} has a line of more than {LONGEST_LINE >> 20} MiB")

    def _open(self) -> _OpenFile:
        """Open the file; it may be missing for a moment while it is replaced."""
        while True:
            with translate_read_errors(self.name), suppress(FileNotFoundError):
                return _OpenFile(self._path)
            time.sleep(_POLL_SECONDS)

    def _find_file(self, token: dict[str, Any] | None) -> _OpenFile:
        """Find the file of a token, which may have another name by now."""
        if token is None:
            return self._open()
        folder = self._path.absolute().parent
        for path in (self._path, *folder.iterdir()):
            with suppress(OSError):
                if path.stat().st_ino == token["inode"] and path.is_file():
                    file = _OpenFile(path, token["offset"], token["line"])
                    if file.token() == token:
                        return file
                    file.close()
        raise SourceError(
            f"{self.name} is not the file that was followed, and that file is not in the same "
            f"folder: its last lines may be lost. Move it back into {folder} under any name, or "
            "start another run"
        )


class _OpenFile:
    """An open file, its position, and the bytes of its last incomplete line."""

    def __init__(self, path: Path, offset: int = 0, line: int = 1) -> None:
        self.number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.position = offset
        self.line = line
        self.rest = b""
        self._inode = os.fstat(self.number).st_ino

    @property
    def offset(self) -> int:
        """The start of the first incomplete line."""
        return self.position - len(self.rest)

    def read(self) -> bool:
        """Read more bytes; return whether there were any."""
        data = os.pread(self.number, PIECE, self.position)
        if self.position == 0 and data != BOM and BOM.startswith(data):
            return False  # nothing yet, or the first part of a byte order mark
        self.rest += data.removeprefix(BOM) if self.position == 0 else data
        self.position += len(data)
        return bool(data)

    def is_emptied(self) -> bool:
        """Return whether it is shorter than the bytes read so far."""
        return os.fstat(self.number).st_size < self.position

    def rewind(self) -> None:
        """Go back to the start."""
        self.position, self.line, self.rest = 0, 1, b""

    def is_replaced(self, path: Path) -> bool:
        """Return whether another file has its name now."""
        with suppress(FileNotFoundError):
            return path.stat().st_ino != self._inode
        return False

    def token(self, offset: int | None = None, line: int | None = None) -> dict[str, Any]:
        """Return a token for a line, by default for the first incomplete line."""
        offset = self.offset if offset is None else offset
        start = max(0, offset - _SEAL)
        seal = zlib.crc32(os.pread(self.number, offset - start, start))
        line = self.line if line is None else line
        return {"inode": self._inode, "offset": offset, "line": line, "seal": seal}

    def close(self) -> None:
        """Close the file."""
        with suppress(OSError):
            os.close(self.number)
        self.number = -1


class _Lines(Protocol):
    """Parses lines into rows."""

    def begin(self, columns: Sequence[str], keys: Sequence[str], head: bytes | None) -> None:
        """Start a file; `head` is its first bytes if reading does not start there."""

    def rewind(self) -> None:
        """Go back to the start of the file."""

    def take(
        self, data: bytes, line: int, position: int, *, last: bool
    ) -> tuple[list[Batch], bytes, int]:
        """Return the rows of whole lines, with tokens without the file; the rest, and its line."""


class _JsonLines:
    """Parses JSON lines."""

    def __init__(self) -> None:
        self._columns: Sequence[str] = ()
        self._keys: Sequence[str] = ()

    def begin(
        self,
        columns: Sequence[str],
        keys: Sequence[str],
        head: bytes | None,  # noqa: ARG002 - only CSV has a header
    ) -> None:
        """Set the columns: each line names its own."""
        self._columns, self._keys = columns, keys

    def rewind(self) -> None:
        """Do nothing: there is no header."""

    def take(
        self, data: bytes, line: int, position: int, *, last: bool
    ) -> tuple[list[Batch], bytes, int]:
        """Parse all whole lines into one batch."""
        end = len(data) if last else data.rfind(b"\n") + 1
        if not end:
            return [], data, line
        batch = jsonlines.parse_batch(data[:end], line, self._columns, self._keys)
        token = {"offset": position - len(data), "line": line}
        return [replace(batch, token=token)], data[end:], line + data.count(b"\n", 0, end)


class _Csv:
    """Parses CSV, with a header in each file."""

    def __init__(self, source: str, delimiter: str = ",") -> None:
        self._source = source
        self._delimiter = delimiter
        self._columns: Sequence[str] = ()
        self._keys: Sequence[str] = ()
        self._parser: csv.CsvParser | None = None

    def begin(self, columns: Sequence[str], keys: Sequence[str], head: bytes | None) -> None:
        """Expect a header, or read it from the file's first bytes."""
        self._columns, self._keys = columns, keys
        self._parser = None
        if head is not None and (first := _first_block(head, self._delimiter)) is not None:
            self._take_header(first)

    def rewind(self) -> None:
        """Expect a header."""
        self._parser = None

    def take(
        self, data: bytes, line: int, position: int, *, last: bool
    ) -> tuple[list[Batch], bytes, int]:
        """Parse all whole lines into one batch."""
        block, rest, after = csv.split_block(
            data, line, position, last=last, delimiter=self._delimiter
        )
        if block is None or (self._parser is None and not len(block.starts)):
            return [], rest, after
        token = {"offset": block.offset, "line": block.line}
        if self._parser is None:
            batch = self._take_header(block).parse(csv.drop_header(block))
        else:
            batch = self._parser.parse(block)
        return [replace(batch, token=token)], rest, after

    def _take_header(self, block: csv.CsvBlock) -> csv.CsvParser:
        names = csv.parse_header(self._source, block, self._delimiter)
        check_columns(self._source, self._columns, names)
        self._parser = csv.CsvParser(names, self._columns, self._keys, self._delimiter)
        return self._parser


def _first_block(head: bytes, delimiter: str) -> csv.CsvBlock | None:
    first = head.removeprefix(BOM)
    block, _, _ = csv.split_block(first, 1, len(head), last=False, delimiter=delimiter)
    return block if block is not None and len(block.starts) else None


def _read_head(place: Path | int) -> bytes:
    """Read the first bytes of a file."""
    if isinstance(place, int):
        return os.pread(place, PIECE, 0)
    with place.open("rb") as file:
        return file.read(PIECE)


def _choose_parser(path: Path) -> _Lines:
    suffix = path.suffix.lower()
    if suffix not in (".jsonl", ".ndjson", ".csv"):
        raise SourceError(
            f"{path} cannot be followed; expected a .jsonl, .ndjson or .csv file, or a folder"
        )
    if not path.is_file():
        raise SourceError(f"{path} is not a file that can be followed; check the path")
    return _Csv(str(path)) if suffix == ".csv" else _JsonLines()
