"""The progress of readers, so that none runs far ahead of the others.

This affects only the speed of readers, never an answer: the values may be old or missing. Shards
store tuples that come too early; a reader that waits for the others keeps these few.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Final

from tacit.windows.clock import NONE

_NOT_AWAITED: Final = "-"


class Progress:
    """A small file for each partition: its first open window."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._reported: dict[int, int | None] = {}

    def report(self, partition: int, closed: int | None) -> None:
        """Report a reader's first open window; None if others need not wait for it."""
        if partition in self._reported and self._reported[partition] == closed:
            return
        self._reported[partition] = closed
        temporary = self._folder / f".{partition}"
        with suppress(OSError):
            temporary.write_text(_NOT_AWAITED if closed is None else str(closed))
            temporary.rename(self._folder / str(partition))

    def is_too_far_ahead(self, partition: int, closed: int, most: int) -> bool:
        """Return whether another reader has not started, or is more than `most` windows behind."""
        others = self._others(str(partition))
        return any(other is None or (closed != NONE and other < closed - most) for other in others)

    def has_begun(self) -> bool:
        """Return whether all readers have started."""
        return all(other is not None for other in self._others(""))

    def is_over(self) -> bool:
        """Return whether no reader has to be awaited any more."""
        return not self._others("")

    def _others(self, own: str) -> list[int | None]:
        """Return the first open windows of awaited readers; None for one that has not started."""
        found: list[int | None] = []
        for path in self._folder.iterdir():
            if path.name == own or path.name.startswith("."):
                continue
            with suppress(OSError, ValueError):
                text = path.read_text()
                if text != _NOT_AWAITED:
                    found.append(int(text) if text else None)
        return found
