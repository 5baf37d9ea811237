"""Messages of shards as lines of text, which any engine can transport and write to files."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tacit.engines.sharded.shard import ShardAnswers
from tacit.errors import LedgerError, StateError
from tacit.ledger.codec import pack_amounts, unpack_amounts

DEAD_LETTERS: Final = b"letters\n"
"""The prefix of dead letters that are sent like batches."""
_LETTER: Final = "letter "


def format_dead_letter(text: str) -> str:
    """Format a dead letter as a line."""
    return f"{_LETTER}{text}"


def parse_dead_letter(text: str) -> str | None:
    """Return the dead letter in a line, or None if it is another line."""
    return text.removeprefix(_LETTER) if text.startswith(_LETTER) else None


@dataclass(frozen=True, slots=True)
class ShardLine:
    """The answers of a window for a shard's subjects, or the message that the shard is finished."""

    shard: int
    window: int = 0
    first: int = 0
    """The first window of the schedule."""
    exhausted: NDArray[np.bool_] | None = None
    body: bytes = b""
    """Empty if the shard is finished."""
    mark: str = ""
    prices: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    """`[account][subject]`, or all of them in a row, without the zeros at the end."""

    @classmethod
    def of(cls, shard: int, answers: ShardAnswers) -> ShardLine:
        """Create the line of a shard's answers."""
        return cls(
            shard,
            answers.window,
            answers.first,
            answers.exhausted,
            answers.body,
            answers.mark,
            answers.prices,
        )

    @property
    def finished(self) -> bool:
        """Whether the shard has closed all its windows."""
        return not self.body

    def to_line(self) -> str:
        """Format it as one line."""
        if self.finished:
            return f"{self.shard} finished"
        exhausted_text = "-"
        if self.exhausted is not None:
            bits = np.packbits(self.exhausted, bitorder="little").tobytes()
            exhausted_text = f"{len(self.exhausted)}:{base64.b64encode(bits).decode()}"
        body = base64.b64encode(self.body).decode()
        prices = base64.b64encode(pack_amounts(self.prices.reshape(-1))).decode()
        head = f"{self.shard} {self.window} {self.first} {exhausted_text} {self.mark}"
        return f"{head} {prices} {body}"

    @classmethod
    def from_line(cls, text: str) -> ShardLine:
        """Parse what `to_line` returned."""
        try:
            shard, window, *rest = text.split()
            if window == "finished":
                return cls(int(shard))
            first, exhausted_text, mark, prices_text, body = rest
            exhausted = None
            if exhausted_text != "-":
                count, _, bits = exhausted_text.partition(":")
                octets = np.frombuffer(base64.b64decode(bits), np.uint8)
                exhausted = np.unpackbits(octets, count=int(count), bitorder="little").view(
                    np.bool_
                )
            whole = base64.b64decode(body, validate=True)
            prices = unpack_amounts(base64.b64decode(prices_text, validate=True))
            return cls(int(shard), int(window), int(first), exhausted, whole, mark, prices)
        except (ValueError, LedgerError) as error:
            raise StateError("a line from a shard is damaged") from error
