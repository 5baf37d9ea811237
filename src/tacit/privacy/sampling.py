"""Draw from channels with exactly the probabilities in their tables, in compiled code.

A draw is a uniform whole number below 2**bits, looked up among the row's running sums. Its first
byte nearly always decides, so the other bytes are used only if necessary. Each byte is used once,
in order, and none is rejected: a decision to use more bytes, or to discard unread ones, never
depends on a byte that is used later.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.errors import PrivacyError
from tacit.kernels import compiled, lean
from tacit.privacy.channels import Channel
from tacit.privacy.randomness import RandomSource

_BLOCK = 1 << 16
"""Random bytes drawn at a time: OpenSSL's largest request, which fits into the cache."""
_OPEN = -1
"""In a guide: the first byte does not decide, or the symbol's number does not fit."""
_LARGEST = 127
_EVERY = np.array([~np.uint64(0)])
"""All lanes."""
_USUAL_OCTETS = 2
"""Random bytes that a draw gets in advance if the source is seeded; more are drawn if necessary."""
_USUAL_WORDS = 12
"""Random words that nearly always decide all 64 lanes; more are drawn if necessary."""
_NO_ROW = -1
"""Returned in place of the number of draws if a row does not exist."""
NO_CELL = ~np.uint64(0)
"""Larger than every cell."""
_HALF_WORD = np.uint64(32)
_LOW = np.uint64(2**32 - 1)


class Sampler:
    """Draws output symbols from the rows of one channel, or of several channels in sequence.

    The rows of channel number `c` begin at `offsets[c]`. If the source is seeded, `private` is
    False, and nothing that was drawn is private.
    """

    def __init__(self, channels: Channel | Sequence[Channel], source: RandomSource) -> None:
        self.channels: tuple[Channel, ...] = ()
        self.source = source
        self.rows = 0
        self.offsets = np.empty(0, np.int64)
        self._sums = np.empty((0, 0), np.uint64)
        self._shifts = np.empty(0, np.uint64)
        self._guide = np.empty((0, 256), np.int8)
        self.extend((channels,) if isinstance(channels, Channel) else channels)

    def extend(self, channels: Sequence[Channel]) -> None:
        """Append channels."""
        if not channels:
            return
        heights = [len(channel.table) for channel in channels]
        shifts = np.repeat(np.array([64 - c.bits for c in channels], np.uint64), heights)
        sums = _running_sums(channels)
        guide = _guide(sums, shifts)
        self.offsets = np.append(self.offsets, self.rows + np.cumsum([0, *heights[:-1]]))
        self.rows += sum(heights)
        self.channels += tuple(channels)
        self._sums = _stack_sums(self._sums, sums)
        self._shifts = np.append(self._shifts, shifts)
        self._guide = np.concatenate([self._guide, guide])

    @property
    def private(self) -> bool:
        """Whether answers drawn with this sampler are private."""
        return self.source.private

    @property
    def tables(self) -> tuple[NDArray[np.int8], NDArray[np.uint64], NDArray[np.uint64]]:
        """What draws need: the guide, the running sums and the shifts of all rows."""
        return self._guide, self._sums, self._shifts

    def sample(self, rows: NDArray[np.integer[Any]]) -> NDArray[np.int32]:
        """Draw an output symbol for each row number, independently; return symbol numbers."""
        if not self.channels:
            raise PrivacyError("a sampler needs a channel to draw from")
        if rows.dtype.kind not in "iu":
            raise PrivacyError(f"rows must be given by their numbers; got {rows.dtype}")
        numbers = np.ascontiguousarray(rows, dtype=np.int64)
        symbols = np.empty(numbers.shape, dtype=np.int32)
        flat, drawn = numbers.reshape(-1), symbols.reshape(-1)
        done = 0
        while done < len(flat):
            left = len(flat) - done
            octets = self.draw_octets(left)
            done = _look_up(flat, drawn, done, octets, self._guide, self._sums, self._shifts)
            if done == _NO_ROW:
                raise PrivacyError(f"the rows to draw from must be between 0 and {self.rows - 1}")
        return symbols

    def draw_octets(self, draws: int, least: int = 1) -> NDArray[np.uint8]:
        """Draw the random bytes that some draws probably need, or those of a part of them.

        They are enough for at least the first `least` draws.
        """
        return self.source.draw_octets(
            min(_BLOCK, 8 * draws, 8 * least + self._expect_octets(draws))
        )

    def _expect_octets(self, draws: int) -> int:
        """Return about how many random bytes some draws need: nearly always one each.

        A seed gives the same draws as ever, so there this number may not change.
        """
        return draws + draws // 4 if self.private else _USUAL_OCTETS * draws

    def __repr__(self) -> str:
        note = "" if self.private else ", NOT PRIVATE: the source is seeded"
        several = "" if len(self.channels) == 1 else "s"
        return f"Sampler({len(self.channels)} channel{several}, {self.rows} rows{note})"


def flip_bits(
    words: NDArray[np.uint64],
    channel: Channel,
    source: RandomSource,
    lanes: NDArray[np.uint64] | None = None,
) -> NDArray[np.uint64]:
    """Send each bit of each word through a flip channel, independently, 64 at a time.

    Bits that are not set in `lanes` (of the same shape) are returned unchanged.

    Why it is exact: the channel flips with probability F / 2**bits. Each lane compares a uniform
    number U below 2**bits with F, most significant bit first, and is flipped if U < F. The
    lane's bit of a random word is the next bit of its U. While U and F agree, the lane is
    undecided; at the first bit in which they differ, it is flipped if F has the 1. Each lane uses
    only its own bits, so lanes are independent. Further bits of a decided U would not change
    U < F, so they are not drawn. After F's last 1, U can no longer be below F.
    """
    depth, threshold = _threshold(channel)
    mask = _EVERY if lanes is None else lanes
    if words.dtype != np.uint64 or mask.dtype != np.uint64:
        raise PrivacyError(f"bits are flipped in words of uint64; got {words.dtype}, {mask.dtype}")
    if lanes is not None and lanes.shape != words.shape:
        raise PrivacyError("lanes must have the shape of the words that they choose from")
    flat, chosen = (np.ascontiguousarray(array).reshape(-1) for array in (words, mask))
    flipped = np.empty_like(flat)
    done = 0
    while done < len(flat):
        left = len(flat) - done
        random = source.draw_words(min(_BLOCK // 8, depth * left, depth + _USUAL_WORDS * left))
        done = _flip(flat, flipped, chosen, done, random, threshold, depth)
    return flipped.reshape(words.shape)


@lru_cache(maxsize=1024)
def _threshold(channel: Channel) -> tuple[int, np.uint64]:
    """Return how many bits of a lane's number matter, and the flips shifted to the top bit."""
    table = channel.table
    flips = int(table[0, -1])
    if table.shape != (2, 2) or flips != table[1, 0] or not 0 < 2 * flips <= 2**channel.bits:
        raise PrivacyError("bits are flipped by a channel made with Channel.flip")
    zeros = (flips & -flips).bit_length() - 1
    return channel.bits - zeros, np.uint64(flips << (64 - channel.bits))


@lean
def _flip(
    words: NDArray[np.uint64],
    flipped: NDArray[np.uint64],
    lanes: NDArray[np.uint64],
    done: int,
    random: NDArray[np.uint64],
    threshold: np.uint64,
    depth: int,
) -> int:
    """Flip words from number `done` on, while enough random words are left."""
    one, top = np.uint64(1), np.uint64(63)
    used = 0
    while done < len(words) and used + depth <= len(random):
        undecided = lanes[done if len(lanes) > 1 else 0]
        mask, left = np.uint64(0), threshold
        # The threshold is shifted out to the left, so the loop ends after its last 1.
        while undecided and left:
            bits = random[used]
            used += 1
            if left >> top:
                mask |= undecided & ~bits
                undecided &= bits
            else:
                undecided &= ~bits
            left <<= one
        flipped[done] = words[done] ^ mask
        done += 1
    return done


def _stack_sums(above: NDArray[np.uint64], below: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Stack two sets of running sums; shorter rows are padded with their last sum."""
    width = max(above.shape[1], below.shape[1])
    parts = [
        part
        if part.shape[1] == width
        else np.pad(part, ((0, 0), (0, width - part.shape[1])), mode="edge")
        for part in (above, below)
        if len(part)
    ]
    return np.concatenate(parts)


def join_tables(
    samplers: Sequence[Sampler],
) -> tuple[NDArray[np.int8], NDArray[np.uint64], NDArray[np.uint64]]:
    """Return the tables of several samplers, one after the other.

    The guide has one more row, which always gives symbol 0.
    """
    guides, sums, shifts = zip(*(one.tables for one in samplers), strict=True)
    guide = np.concatenate([*guides, np.zeros((1, 256), np.int8)])
    return guide, reduce(_stack_sums, sums), np.concatenate(shifts)


def _running_sums(channels: Sequence[Channel]) -> NDArray[np.uint64]:
    """Return `[row][symbol]`: the sum of a row up to and including a symbol, padded."""
    heights, widths = np.array([channel.table.shape for channel in channels]).T
    used = np.arange(widths.max()) < widths.repeat(heights)[:, np.newaxis]
    sums = np.zeros(used.shape, np.uint64)
    sums[used] = np.concatenate([channel.table.reshape(-1) for channel in channels])
    return np.cumsum(sums, axis=1, out=sums)


@compiled
def _guide(sums: NDArray[np.uint64], shifts: NDArray[np.uint64]) -> NDArray[np.int8]:
    """Return `[row][first byte]`: the symbol, if it is the same whatever bytes follow."""
    guide = np.full((len(sums), 256), np.int8(_OPEN))  # small, to stay in the cache
    one, rest = np.uint64(1), np.uint64(2**56 - 1)
    for row in range(len(sums)):
        begin = np.uint64(0)
        for symbol in range(min(sums.shape[1], _LARGEST + 1)):
            if sums[row, symbol] == 0:
                continue
            # The last eight bytes for which it is this symbol, or one before.
            last = ((sums[row, symbol] - one) << shifts[row]) | ((one << shifts[row]) - one)
            after = (last >> np.uint64(56)) + one
            end = after if last & rest == rest else after - one
            for byte in range(begin, end):
                guide[row, byte] = symbol
            begin = after
    return guide


@lean
def _look_up(
    rows: NDArray[np.int64],
    symbols: NDArray[np.int32],
    done: int,
    octets: NDArray[np.uint8],
    guide: NDArray[np.int8],
    sums: NDArray[np.uint64],
    shifts: NDArray[np.uint64],
) -> int:
    """Draw from number `done` on, while enough random bytes are left."""
    used = 0
    while done < len(rows) and used + 8 <= len(octets):
        row = rows[done]
        if row < 0 or row >= len(guide):
            return _NO_ROW
        symbol = np.int32(guide[row, octets[used]])
        if symbol == _OPEN:
            symbol = decide(octets[used : used + 8], sums[row], shifts[row])
            used += 8
        else:
            used += 1
        symbols[done] = symbol
        done += 1
    return done


def make_cells(rows: NDArray[np.int64], entries: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return cells for `draw_entries`: the row to draw from, and the entry of its first symbol."""
    return (rows.astype(np.uint64) << _HALF_WORD) | entries.astype(np.uint64)


@lean
def draw_entries(
    cells: NDArray[np.uint64],
    octets: NDArray[np.uint8],
    used: int,
    guide: NDArray[np.int8],
    sums: NDArray[np.uint64],
    shifts: NDArray[np.uint64],
    entries: NDArray[np.int32],
) -> int:
    """Draw from the row of each cell, and write the cell's entry plus the symbol.

    A cell with the number of rows for its row takes no random byte. Bytes are taken from number
    `used` on; there must be eight for each cell. Return the number of the next one. The loop is not
    shared with `_look_up`: passing arrays to a common step for each draw took three times as long.
    """
    rows = np.uint64(len(shifts))
    for n in range(len(cells)):
        row = cells[n] >> _HALF_WORD  # an unsigned index cannot count from the end
        symbol = np.int32(guide[row, octets[np.uint64(used)]])
        if symbol == _OPEN:
            symbol = decide(octets[used : used + 8], sums[row], shifts[row])
            used += 8
        else:
            used += int(row < rows)
        entries[n] = np.int32(cells[n] & _LOW) + symbol
    return used


@lean
def decide(octets: NDArray[np.uint8], sums: NDArray[np.uint64], shift: np.uint64) -> np.int32:
    """Look a number of eight bytes up among a row's running sums."""
    number = np.uint64(0)
    for place in range(8):
        number = (number << np.uint64(8)) | np.uint64(octets[place])
    return np.int32(np.searchsorted(sums, number >> shift, side="right"))
