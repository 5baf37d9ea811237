"""Staged files: what shards have told, as Flink commits it, until it is in the ledger."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tacit.engines.flink.folders import Folders
from tacit.engines.sharded.counts import COUNTS, TupleCounts, latest, refusals
from tacit.engines.sharded.lines import ShardLine, letter_in
from tacit.pipeline.refusals import Refusals

_BEFORE_ALL: Final = -(1 << 62)
_AFTER_ALL: Final = 1 << 62


@dataclass
class _File:
    last: int = _BEFORE_ALL
    """The last window that it tells of; past all where it says that a shard is finished."""
    letters: list[str] = field(default_factory=list)


class StagedFiles:
    """The files that Flink has committed; each is read once."""

    def __init__(self, folders: Folders) -> None:
        self._folder = folders.staged
        self._letters = folders.letters
        self._counted = folders.counts
        self._read: dict[Path, _File] = {}
        self._counts: dict[str, TupleCounts] = {}
        """The last counts of each reader and shard."""
        if self._counted.exists():
            texts = self._counted.read_text("utf-8").splitlines()
            self._counts = latest(map(TupleCounts.read, texts))

    @property
    def refusals(self) -> Refusals:
        """How much of the input was refused since the job began, and why."""
        return refusals(self._counts.values())

    def lines(self) -> Iterator[ShardLine]:
        """What is new; one look more finds what was committed before what is found."""
        while new := self._new():
            for path in new:
                self._read[path] = file = _File()
                with path.open(encoding="utf-8", newline="\n") as texts:
                    for text in texts:
                        written = letter_in(text)
                        if written is not None:
                            file.letters.append(written)
                            continue
                        if text.startswith(COUNTS):
                            self._count(TupleCounts.read(text))
                            continue
                        line = ShardLine.read(text)
                        file.last = _AFTER_ALL if line.finished else max(file.last, line.window)
                        yield line

    def drop(self, next_window: int | None) -> None:
        """Remove the files that tell of nothing but windows before this one."""
        until = _BEFORE_ALL + 1 if next_window is None else next_window
        dropped = [path for path, file in self._read.items() if file.last < until]
        if dropped:
            self._write_counts()
        for path in dropped:
            self._write(path)
            path.unlink(missing_ok=True)
            del self._read[path]

    def write_letters(self) -> None:
        """Write the dead letters of files that are kept, too."""
        for path in self._read:
            self._write(path)

    def _count(self, counts: TupleCounts) -> None:
        known = self._counts.get(counts.origin)
        self._counts |= latest([counts] if known is None else [known, counts])

    def _write_counts(self) -> None:
        """Keep what files told of that are removed now."""
        _replace(self._counted, "".join(f"{one.written()}\n" for one in self._counts.values()))

    def _write(self, path: Path) -> None:
        """Under the staged file's name, so that letters are there once whatever happens."""
        letters = self._read[path].letters
        if letters:
            _replace(self._letters / f"{path.name}.jsonl", "".join(letters))

    def _new(self) -> list[Path]:
        found = self._folder.glob("**/part-*")
        return sorted(path for path in found if _whole(path) and path not in self._read)


def _replace(path: Path, text: str) -> None:
    """Put a text into a file at once, for its owner alone."""
    beside = path.with_name(f".{path.name}")
    beside.touch(mode=0o600)
    beside.chmod(0o600)
    beside.write_text(text, "utf-8")
    beside.replace(path)


def _whole(path: Path) -> bool:
    """Whether Flink has committed a file: until then its name says that it has not."""
    return "inprogress" not in path.name and not path.name.startswith(".")
