"""Messages of shards as lines of text, which any engine can transport and write to files."""

from __future__ import annotations

import base64
import math
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tacit.engines.sharded.shard import ShardAnswers
from tacit.errors import LedgerError, StateError
from tacit.ledger.codec import pack_amounts, unpack_amounts

DEAD_LETTERS: Final = b"letters\n"
"""The prefix of dead letters that are sent like batches."""
_LETTER: Final = "letter "
_CODEC: Final = "zstd"


def format_dead_letter(text: str) -> str:
    """Format a dead letter as a line."""
    return f"{_LETTER}{text}"


def parse_dead_letter(text: str) -> str | None:
    """Return the dead letter in a line, or None if it is another line."""
    return text.removeprefix(_LETTER) if text.startswith(_LETTER) else None


@dataclass(frozen=True, slots=True)
class ShardLine:
    """The answers of a window for some shards' subjects, or the message that they are finished."""

    shards: tuple[int, ...]
    window: int = 0
    first: int = 0
    """The first window of the schedule."""
    exhausted: NDArray[np.bool_] | None = None
    body: bytes = b""
    """Empty if the shards are finished."""
    mark: str = ""
    prices: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    """`[account][subject]`, or all of them in a row, without the zeros at the end."""
    counts: NDArray[np.bool_] | None = field(default=None, repr=False)
    """`[2][count][subject]`: for whom a count is open, and for whom its pattern is detected."""

    @classmethod
    def of(cls, answers: ShardAnswers) -> ShardLine:
        """Create the line of the answers."""
        return cls(
            answers.shards,
            answers.window,
            answers.first,
            answers.exhausted,
            answers.body,
            answers.mark,
            answers.prices,
            answers.counts,
        )

    @property
    def finished(self) -> bool:
        """Whether the shards have closed all their windows."""
        return not self.body

    def to_line(self) -> str:
        """Format it as one line."""
        if self.finished:
            return f"{_format_shards(self.shards)} finished"
        exhausted_text = "-"
        if self.exhausted is not None:
            bits = np.packbits(self.exhausted, bitorder="little").tobytes()
            exhausted_text = f"{len(self.exhausted)}:{base64.b64encode(bits).decode()}"
        body = base64.b64encode(self.body).decode()
        prices = base64.b64encode(pack_amounts(self.prices.reshape(-1))).decode()
        shards = _format_shards(self.shards)
        head = f"{shards} {self.window} {self.first} {exhausted_text} {self.mark}"
        return f"{head} {prices} {_format_counts(self.counts)} {body}"

    @classmethod
    def from_line(cls, text: str) -> ShardLine:
        """Parse what `to_line` returned."""
        try:
            shards_text, window, *rest = text.split()
            shards = _parse_shards(shards_text)
            if window == "finished":
                return cls(shards)
            first, exhausted_text, mark, prices_text, counts_text, body = rest
            exhausted = None
            if exhausted_text != "-":
                count, _, bits = exhausted_text.partition(":")
                octets = np.frombuffer(base64.b64decode(bits), np.uint8)
                exhausted = np.unpackbits(octets, count=int(count), bitorder="little").view(
                    np.bool_
                )
            whole = base64.b64decode(body, validate=True)
            prices = unpack_amounts(base64.b64decode(prices_text, validate=True))
            counts = _parse_counts(counts_text)
            return cls(shards, int(window), int(first), exhausted, whole, mark, prices, counts)
        except (ValueError, LedgerError) as error:
            raise StateError("a line from a shard is damaged") from error


def _format_counts(counts: NDArray[np.bool_] | None) -> str:
    """Format the contributions to counts: their number, that of subjects, and the bits."""
    if counts is None:
        return "-"
    _, number, subjects = counts.shape
    bits = pa.compress(np.packbits(counts).tobytes(), codec=_CODEC, asbytes=True)
    return f"{number}:{subjects}:{base64.b64encode(bits).decode()}"


def _parse_counts(text: str) -> NDArray[np.bool_] | None:
    """Parse what `_format_counts` returned."""
    if text == "-":
        return None
    number, subjects, bits = text.split(":")
    shape = 2, int(number), int(subjects)
    size = -(-math.prod(shape) // 8)
    packed = base64.b64decode(bits, validate=True)
    try:
        octets = np.frombuffer(pa.decompress(packed, size, codec=_CODEC), np.uint8)
    except (pa.ArrowException, OSError) as error:
        raise ValueError("counts") from error
    if min(shape) < 0 or len(octets) != size:
        raise ValueError("counts")
    return np.unpackbits(octets, count=math.prod(shape)).view(np.bool_).reshape(shape)


def _format_shards(shards: tuple[int, ...]) -> str:
    """Format numbers in ascending order as ranges, such as `0-3,5`."""
    numbers = np.array(shards)
    breaks = np.flatnonzero(np.diff(numbers) != 1)
    firsts, lasts = numbers[np.append(0, breaks + 1)], numbers[np.append(breaks, -1)]
    return ",".join(
        str(first) if first == last else f"{first}-{last}"
        for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True)
    )


def _parse_shards(text: str) -> tuple[int, ...]:
    """Parse what `_format_shards` returned."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    if not found or any(np.diff(found) <= 0):
        raise ValueError("shards")
    return tuple(found)
