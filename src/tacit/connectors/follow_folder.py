"""Follow a folder to which files are added; read them in order of name.

A file is read when it has its final name: the writer renames it into place, with a later name than
all files before it.
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from tacit.connectors.file_pieces import translate_read_errors
from tacit.connectors.files import find_kind, open_file, read_unified
from tacit.errors import SourceError
from tacit.pipeline.sources import Batch, EmptySourceError, Source, encode_keys

_POLL_SECONDS: Final = 0.1
"""Seconds between two checks of a folder that does not grow."""
_PAUSE_FACTOR: Final = 10
"""The pause after listing the folder, as a multiple of the listing's duration."""
_UNFINISHED: Final = (".", "_")
"""Prefixes of files that are being written; unknown suffixes, such as .tmp, are ignored too."""

log = logging.getLogger(__name__)


class FollowFolderSource(Source):
    """Follows a folder of files of one kind."""

    live = True
    ahead = 0  # each file is read ahead by itself

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self._path = path
        self._kind: str | None = None
        self._schema: pa.Schema | None = None
        self._begin: dict[str, Any] | None = None
        self._delimiter = ","

    def separate_by(self, delimiter: str) -> None:
        """Set the character between the fields of CSV files."""
        self._delimiter = delimiter

    def schema(self) -> pa.Schema:
        """Return the columns of the first file that is not empty; wait until there is one."""
        if self._schema is None:
            folder = _Folder(self._path)
            while self._schema is None:
                name = folder.next_file()
                if name is None:
                    log.debug("waiting for the first file in %s", self.name)
                    time.sleep(_POLL_SECONDS)
                    continue
                with suppress(EmptySourceError):
                    first = self._open(name)
                    self._schema = first.schema()
                    self.textual, self.keyed = first.textual, first.keyed
        return self._schema

    def resume(self, token: Any) -> None:
        """Start in a file, or after one, when it is read next."""
        self._begin = token

    def read(self, columns: Sequence[str], keys: Sequence[str]) -> Iterator[Batch]:
        """Yield the rows of each file; yield an empty batch while there is no new file."""
        taken = 0
        for batch in self._read_files(columns, keys):
            taken += batch.table.num_rows
            yield replace(batch, position=taken)

    def _read_files(self, columns: Sequence[str], keys: Sequence[str]) -> Iterator[Batch]:
        known = self.schema()
        schema = pa.schema(
            [(name, pa.string() if self.keyed else known.field(name).type) for name in columns]
        )
        empty = encode_keys(pa.RecordBatch.from_pylist([], schema), keys)
        begin, self._begin = self._begin, None
        folder = _Folder(self._path, begin)
        if begin is not None and "file" in begin:
            yield from self._read_rest(begin, columns, keys)
        while True:
            name = folder.next_file()
            if name is not None:
                yield from self._rows(self._open(name), columns, keys)
            else:
                token = {"after": folder.last} if folder.last else None
                yield Batch(empty, 1, 0, self.name, token=token)
                time.sleep(_POLL_SECONDS)

    def _read_rest(
        self, begin: dict[str, Any], columns: Sequence[str], keys: Sequence[str]
    ) -> Iterator[Batch]:
        """Yield the rest of the file that was being read."""
        path = self._path / begin["file"]
        if not path.is_file() or path.stat().st_size != begin["size"]:
            raise SourceError(f"{path} was being read, and is missing or changed now; restore it")
        source = self._open(begin["file"])
        source.resume(begin["at"])
        yield from self._rows(source, columns, keys)

    def _rows(self, source: Source, columns: Sequence[str], keys: Sequence[str]) -> Iterator[Batch]:
        path = Path(source.name)
        with translate_read_errors(source.name):
            size = path.stat().st_size
        for batch in read_unified(source, self.schema(), columns, keys):
            token = {"file": path.name, "size": size, "at": batch.token}
            yield replace(batch, token=token)

    def _open(self, name: str) -> Source:
        path = self._path / name
        self._kind = self._kind or find_kind(path)
        if find_kind(path) != self._kind:
            raise SourceError(
                f"{path} is of another kind than the files before it, which are .{self._kind}; "
                "follow a folder for each kind"
            )
        source = open_file(path)
        source.separate_by(self._delimiter)
        return source


class _Folder:
    """Tracks the files that were read, and finds the next one."""

    def __init__(self, path: Path, begin: dict[str, Any] | None = None) -> None:
        self.last: str = "" if begin is None else begin.get("file") or begin["after"]
        """The name of the last file."""
        self._path = path
        self._known: set[str] = set()
        self._known = {name for name in self._names() if name <= self.last}
        self._waiting: deque[str] = deque()
        self._due = 0.0

    def next_file(self) -> str | None:
        """Return the name of the next file, if there is one."""
        if time.monotonic() >= self._due:
            self._list()
        if not self._waiting:
            return None
        self.last = self._waiting.popleft()
        self._known.add(self.last)
        return self.last

    def _list(self) -> None:
        started = time.monotonic()
        found = self._names()
        newest = max(found, default="")
        if newest > self.last:
            # Listing may miss files that are added meanwhile, even if it finds a later one. Files
            # before the newest exist by now, so listing again finds them.
            found = self._names()
        self._waiting = deque(sorted(name for name in found if self.last < name <= newest))
        self._known &= found
        for name in sorted(name for name in found if name <= self.last and name not in self._known):
            self._known.add(name)
            log.warning(
                "%s was added after %s was read, and is ignored: add files in order of name",
                self._path / name,
                self.last,
            )
        self._due = time.monotonic() + _PAUSE_FACTOR * (time.monotonic() - started)

    def _names(self) -> set[str]:
        """Return the names of the finished files."""
        with translate_read_errors(str(self._path)), os.scandir(self._path) as entries:
            return {one.name for one in entries if one.name in self._known or _is_ready(one)}


def _is_ready(entry: os.DirEntry[str]) -> bool:
    """Return whether it is a file of a known kind under its final name."""
    if entry.name.startswith(_UNFINISHED):
        return False
    return bool(find_kind(Path(entry.name))) and entry.is_file()
