"""How far readers are, so that none runs far ahead of the others.

Only the flow depends on it, never an answer: what is read here may be old or missing. Shards
hold what comes too early, and a reader that waits for the others keeps that small.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Final

from tacit.windows.clock import NONE

_NOT_WAITED_FOR: Final = "-"


class Progress:
    """A small file for each partition: its first open window."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._told: dict[int, int | None] = {}

    def tell(self, partition: int, closed: int | None) -> None:
        """Say how far a reader is; None where nobody has to wait for it."""
        if partition in self._told and self._told[partition] == closed:
            return
        self._told[partition] = closed
        beside = self._folder / f".{partition}"
        with suppress(OSError):
            beside.write_text(_NOT_WAITED_FOR if closed is None else str(closed))
            beside.rename(self._folder / str(partition))

    def too_far_ahead(self, partition: int, closed: int, most: int) -> bool:
        """Whether another reader has not begun, or is more than so many windows behind."""
        others = self._others(str(partition))
        return any(other is None or (closed != NONE and other < closed - most) for other in others)

    def has_begun(self) -> bool:
        """Whether all readers are at work."""
        return all(other is not None for other in self._others(""))

    def is_over(self) -> bool:
        """Whether nobody is waited for any more."""
        return not self._others("")

    def _others(self, own: str) -> list[int | None]:
        """The first open windows of those who are waited for; None for who has not begun."""
        found: list[int | None] = []
        for path in self._folder.iterdir():
            if path.name == own or path.name.startswith("."):
                continue
            with suppress(OSError, ValueError):
                text = path.read_text()
                if text != _NOT_WAITED_FOR:
                    found.append(int(text) if text else None)
        return found
