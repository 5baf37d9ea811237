"""Staged files: lines from shards that Flink has committed, until they are in the ledger."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tacit.engines.flink.folders import Folders
from tacit.engines.flink.private_files import replace_file
from tacit.engines.sharded.counts import COUNTS, TupleCounts, keep_latest, sum_refusals
from tacit.engines.sharded.lines import ShardLine, parse_dead_letter
from tacit.pipeline.refusals import Refusals

_BEFORE_ALL: Final = -(1 << 62)
_AFTER_ALL: Final = 1 << 62
_ABANDONED_SECONDS: Final = 3600.0
"""Flink commits a file with the next checkpoint. One that is so much older than a committed file
was left behind by a task that was lost.
"""


@dataclass
class _File:
    last: int = _BEFORE_ALL
    """Its last window; `_AFTER_ALL` if it says that a shard is finished."""
    dead_letters: list[str] = field(default_factory=list)


class StagedFiles:
    """The files that Flink has committed; each is read once."""

    def __init__(self, folders: Folders) -> None:
        self._folder = folders.staged
        self._dead_letters = folders.dead_letters
        self._counts_file = folders.counts
        self._read: dict[Path, _File] = {}
        self._counts: dict[str, TupleCounts] = {}
        """The last counts of each reader and shard."""
        if self._counts_file.exists():
            texts = self._counts_file.read_text("utf-8").splitlines()
            self._counts = keep_latest(map(TupleCounts.from_line, texts))

    @property
    def refusals(self) -> Refusals:
        """How many tuples were refused since the job started, and why."""
        return sum_refusals(self._counts.values())

    def read_lines(self) -> Iterator[ShardLine]:
        """Yield the new lines; look again for files that were committed meanwhile."""
        while new := self._find_new():
            for path in new:
                self._read[path] = file = _File()
                with path.open(encoding="utf-8", newline="\n") as texts:
                    for text in texts:
                        dead_letter = parse_dead_letter(text)
                        if dead_letter is not None:
                            file.dead_letters.append(dead_letter)
                            continue
                        if text.startswith(COUNTS):
                            self._count(TupleCounts.from_line(text))
                            continue
                        line = ShardLine.from_line(text)
                        file.last = _AFTER_ALL if line.finished else max(file.last, line.window)
                        yield line

    def drop(self, next_window: int | None) -> None:
        """Delete the files that contain only windows before this one."""
        until = _BEFORE_ALL + 1 if next_window is None else next_window
        dropped = [path for path, file in self._read.items() if file.last < until]
        if dropped:
            self._write_counts()
        for path in dropped:
            self._write(path)
            self._remove_abandoned(path.stat().st_mtime - _ABANDONED_SECONDS)
            path.unlink(missing_ok=True)
            del self._read[path]

    def _remove_abandoned(self, before: float) -> None:
        """Remove files that Flink will never commit."""
        for path in self._folder.glob(".part-*.inprogress.*"):
            with suppress(OSError):
                if path.stat().st_mtime < before:
                    path.unlink()

    def write_dead_letters(self) -> None:
        """Write the dead letters of the files that are not deleted."""
        for path in self._read:
            self._write(path)

    def _count(self, counts: TupleCounts) -> None:
        known = self._counts.get(counts.origin)
        self._counts |= keep_latest([counts] if known is None else [known, counts])

    def _write_counts(self) -> None:
        """Save the counts of the files that are deleted now."""
        lines = (f"{one.to_line()}\n" for one in self._counts.values())
        replace_file(self._counts_file, "".join(lines))

    def _write(self, path: Path) -> None:
        """Write a file's dead letters under its name, so that they exist once after a crash."""
        dead_letters = self._read[path].dead_letters
        if dead_letters:
            replace_file(self._dead_letters / f"{path.name}.jsonl", "".join(dead_letters))

    def _find_new(self) -> list[Path]:
        found = self._folder.glob("part-*")
        return sorted(path for path in found if _is_committed(path) and path not in self._read)


def _is_committed(path: Path) -> bool:
    """Return whether Flink has committed a file, by its name."""
    return "inprogress" not in path.name and not path.name.startswith(".")
