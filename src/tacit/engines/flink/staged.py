"""Staged files: what shards have told, as Flink commits it, until it is in the ledger."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tacit.engines.sharded.lines import Line, letter_in

_BEFORE_ALL: Final = -(1 << 62)
_AFTER_ALL: Final = 1 << 62


@dataclass
class _File:
    last: int = _BEFORE_ALL
    """The last window that it tells of; past all where it says that a shard is finished."""
    letters: list[str] = field(default_factory=list)


class Staged:
    """The files that Flink has committed; each is read once."""

    def __init__(self, folder: Path, letters: Path) -> None:
        self._folder = folder
        self._letters = letters
        self._read: dict[Path, _File] = {}

    def lines(self) -> Iterator[Line]:
        """What is new; one look more finds what was committed before what is found."""
        while new := self._new():
            for path in new:
                self._read[path] = file = _File()
                with path.open(encoding="utf-8") as texts:
                    for text in texts:
                        written = letter_in(text)
                        if written is not None:
                            file.letters.append(written)
                            continue
                        line = Line.read(text)
                        file.last = _AFTER_ALL if line.finished else max(file.last, line.window)
                        yield line

    def drop(self, next_window: int | None) -> None:
        """Remove the files that tell of nothing but windows before this one."""
        until = _BEFORE_ALL + 1 if next_window is None else next_window
        for path in [path for path, file in self._read.items() if file.last < until]:
            self._write(path)
            path.unlink(missing_ok=True)
            del self._read[path]

    def write_letters(self) -> None:
        """Write the dead letters of files that are kept, too."""
        for path in self._read:
            self._write(path)

    def _write(self, path: Path) -> None:
        """Under the staged file's name, so that letters are there once whatever happens."""
        letters = self._read[path].letters
        if letters:
            beside = self._letters / f".{path.name}"
            beside.write_text("".join(letters), "utf-8")
            beside.chmod(0o600)
            beside.replace(self._letters / f"{path.name}.jsonl")

    def _new(self) -> list[Path]:
        found = self._folder.glob("**/part-*")
        return sorted(path for path in found if _whole(path) and path not in self._read)


def _whole(path: Path) -> bool:
    """Whether Flink has committed a file: until then its name says that it has not."""
    return "inprogress" not in path.name and not path.name.startswith(".")
