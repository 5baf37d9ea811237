"""What shards tell, as lines of text: any engine can carry those, and write them to files."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tacit.engines.sharded.shard import ShardAnswers
from tacit.errors import StateError

LETTERS: Final = b"letters\n"
"""What dead letters begin with that take the way of pieces."""
_LETTER: Final = "letter "


def letter(text: str) -> str:
    """A dead letter as a line among others."""
    return f"{_LETTER}{text}"


def letter_in(text: str) -> str | None:
    """The dead letter in a line, if it is one."""
    return text.removeprefix(_LETTER) if text.startswith(_LETTER) else None


@dataclass(frozen=True, slots=True)
class ShardLine:
    """The answers of a window for a shard's subjects, or word that the shard is finished."""

    shard: int
    window: int = 0
    first: int = 0
    """The first window of the schedule."""
    exhausted: NDArray[np.bool_] | None = None
    body: bytes = b""
    """Empty where the shard is finished."""
    mark: str = ""

    @classmethod
    def of(cls, shard: int, told: ShardAnswers) -> ShardLine:
        """What a shard told."""
        return cls(shard, told.window, told.first, told.exhausted, told.body, told.mark)

    @property
    def finished(self) -> bool:
        """Whether the shard has closed all its windows."""
        return not self.body

    def written(self) -> str:
        """One line."""
        if self.finished:
            return f"{self.shard} finished"
        people = "-"
        if self.exhausted is not None:
            bits = np.packbits(self.exhausted, bitorder="little").tobytes()
            people = f"{len(self.exhausted)}:{base64.b64encode(bits).decode()}"
        body = base64.b64encode(self.body).decode()
        return f"{self.shard} {self.window} {self.first} {people} {self.mark} {body}"

    @classmethod
    def read(cls, text: str) -> ShardLine:
        """What `written` gave."""
        try:
            shard, window, *rest = text.split()
            if window == "finished":
                return cls(int(shard))
            first, people, mark, body = rest
            exhausted = None
            if people != "-":
                count, _, bits = people.partition(":")
                octets = np.frombuffer(base64.b64decode(bits), np.uint8)
                exhausted = np.unpackbits(octets, count=int(count), bitorder="little").view(
                    np.bool_
                )
            whole = base64.b64decode(body, validate=True)
            return cls(int(shard), int(window), int(first), exhausted, whole, mark)
        except ValueError as error:
            raise StateError("what a shard has told cannot be read: it is damaged") from error
