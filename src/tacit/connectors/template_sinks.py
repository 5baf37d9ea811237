"""Write answers to several files: one for each consumer, query or subject."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from tacit.connectors.appending_sink import open_locked, translate_errors
from tacit.connectors.placeholders import FileTemplate
from tacit.connectors.sinks import FileSink, TableSink
from tacit.errors import SinkError
from tacit.pipeline.sinks import ReleaseBatch, Sink

_OPEN: Final = 64
"""The most files that stay open between two releases."""


class TemplateSink(TableSink):
    """Writes files that get their names when all of them are complete.

    Every query has a file, even without rows. A subject's file is created with its first answer.
    Every registered subject has an answer in every window, so this reveals nothing. There may be
    too many subjects to keep all files open, so their rows are held until the end.
    """

    def __init__(
        self,
        template: FileTemplate,
        schema: pa.Schema | None,
        consumers: Mapping[str, str],
        make: Callable[[Path], FileSink],
    ) -> None:
        self.name = template.text
        self._template = template
        self._make = make
        self._files: dict[Path, FileSink] = {}
        self._held: dict[Path, list[pa.Table]] | None = {} if "subject" in template.names else None
        known = template.names if schema is None else schema.names
        lacking = [name for name in template.names if name not in known]
        if lacking:
            raise SinkError(f"{self.name}: the output has no column '{lacking[0]}'")
        if not template.base.is_dir():
            raise SinkError(f"{template.base} does not exist; create it or choose another place")
        try:
            for names in template.keys(consumers):
                self._open_file(template.path(names))
        except BaseException:
            self.abort()
            raise

    def write(self, table: pa.Table) -> None:
        """Add these rows, each to its file."""
        for names, part in self._template.split(table):
            path = self._template.path(names)
            if self._held is None:
                self._open_file(path).write(part)
            else:
                self._held.setdefault(path, []).append(part)

    def close(self) -> None:
        """Write all files to disk, then give them their names."""
        try:
            for path, parts in (self._held or {}).items():
                for part in parts:
                    self._open_file(path).write(part)
                self._open_file(path).finish()
            for file in self._files.values():
                file.finish()
            for file in self._files.values():
                file.close()
        except BaseException:
            self.abort()
            raise

    def abort(self) -> None:
        """Remove the files that have no name yet."""
        for file in self._files.values():
            file.abort()

    def _open_file(self, path: Path) -> FileSink:
        if path not in self._files:
            make_folders(path.parent, self._template.base, self.name)
            self._files[path] = self._make(path)
        return self._files[path]


class ResumableTemplateSink(Sink):
    """Delivers to several files or folders, each a sink of its own.

    The position of a delivery has the positions of all files. If a delivery fails in one file, it
    is repeated in all of them, from the recorded positions.
    """

    once = True

    def __init__(self, template: FileTemplate, make: Callable[[Path], Sink]) -> None:
        self.name = template.text
        self._template = template
        self._make = make
        self._sinks: dict[str, Sink] = {}
        self._positions: dict[str, Any] = {}
        self._lock: io.FileIO | None = None

    def recover(self, position: Any) -> None:
        """Start at the end of the last recorded delivery, in every file."""
        self._positions = dict(position or {})
        self._lock_folder()

    def is_missing(self, release: int, position: Any) -> bool:
        """Return whether any of the files is gone, or shorter than it was."""
        return any(
            self._make(self._template.base / place).is_missing(release, own)
            for place, own in (position or {}).items()
        )

    def deliver(self, batch: ReleaseBatch) -> dict[str, Any]:
        """Deliver to every file its rows; a query without rows has a file, too."""
        self._lock_folder()
        nothing = batch.table.slice(0, 0)
        parts = {
            self._template.path(names): nothing for names in self._template.keys(batch.consumers)
        }
        for names, table in self._template.split(batch.table):
            parts[self._template.path(names)] = table
        delivered = {}
        for path, table in parts.items():
            sink, place = self._open_sink(path)
            sink.recover(self._positions.get(place))
            delivered[place] = sink.deliver(ReleaseBatch(batch.release, table, batch.consumers))
            if len(self._sinks) > _OPEN:
                sink.close()
        self._positions |= delivered
        return dict(self._positions)

    def close(self) -> None:
        """Close all files and release the lock."""
        for sink in self._sinks.values():
            sink.close()
        self._sinks = {}
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _lock_folder(self) -> None:
        """Lock the folder that all files share."""
        if self._lock is None:
            base = self._template.base
            tail = os.path.relpath(self.name, base).replace("/", "%2F")
            with translate_errors(self.name):
                self._lock = open_locked(base / f".{tail}.lock", self.name)

    def _open_sink(self, path: Path) -> tuple[Sink, str]:
        place = os.path.relpath(path, self._template.base)
        if place not in self._sinks:
            make_folders(path.parent, self._template.base, self.name)
            self._sinks[place] = self._make(path)
        return self._sinks[place], place


def make_folders(folder: Path, base: Path, name: str) -> None:
    """Create the folders for placeholders, below the one that must exist."""
    with translate_errors(name):
        for missing in reversed([folder, *folder.parents][: len(folder.parts) - len(base.parts)]):
            missing.mkdir(exist_ok=True)
