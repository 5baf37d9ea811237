"""The progress of readers, so that none runs far ahead of the others.

This affects only the speed of readers, never an answer: the values may be old or missing. Shards
store tuples that come too early; a reader that waits for the others keeps these few.

Each reader writes its own file and reads the one that has the slowest reader's progress. Only the
job's releaser, which writes that one, reads the files of all readers.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from tacit.windows.clock import NONE

_NOT_AWAITED: Final = "-"
_SLOWEST: Final = "slowest"
_LONGEST: Final = 24
"""The bytes of a file: enough for any number."""


class Progress:
    """A small file for each partition: its first open window."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._reported: dict[int, int | None] = {}
        self._published: str | None = None

    def create(self, partitions: int) -> None:
        """Create the files of all partitions: none has started, unless it did before."""
        for number in range(partitions):
            (self._folder / str(number)).touch()
        (self._folder / _SLOWEST).touch()

    def report(self, partition: int, closed: int | None) -> None:
        """Report a reader's first open window; None if others need not wait for it."""
        if partition in self._reported and self._reported[partition] == closed:
            return
        self._reported[partition] = closed
        self._write(str(partition), _NOT_AWAITED if closed is None else str(closed))

    def publish_slowest(self) -> None:
        """Publish the first open window of the slowest reader, for all readers."""
        windows = list(self._awaited())
        text = _NOT_AWAITED if not windows else ""
        if windows and None not in windows:
            text = str(min(window for window in windows if window is not None))
        if text != self._published:
            self._write(_SLOWEST, text)
            self._published = text

    def is_too_far_ahead(self, closed: int, most: int) -> bool:
        """Return whether a reader has not started, or is more than `most` windows behind."""
        try:
            text = (self._folder / _SLOWEST).read_text().strip()
            if not text:
                return True
            return text != _NOT_AWAITED and closed != NONE and int(text) < closed - most
        except (OSError, ValueError):
            return False

    def has_begun(self) -> bool:
        """Return whether all readers have started."""
        return None not in self._awaited()

    def is_over(self) -> bool:
        """Return whether no reader has to be awaited any more."""
        return not any(True for _ in self._awaited())

    def _write(self, name: str, text: str) -> None:
        """Write a file in place, always with the same number of bytes: a rename takes longer."""
        with suppress(OSError):
            file = os.open(self._folder / name, os.O_WRONLY | os.O_CREAT, 0o666)
            try:
                os.write(file, text.ljust(_LONGEST).encode())
            finally:
                os.close(file)

    def _awaited(self) -> Iterator[int | None]:
        """Yield the first open windows of awaited readers; None for one that has not started."""
        for path in self._folder.iterdir():
            if not path.name.isdecimal():
                continue
            with suppress(OSError, ValueError):
                text = path.read_text().strip()
                if text != _NOT_AWAITED:
                    yield int(text) if text else None
