"""Draw the symbols of contexts that have no channels of their own, from a book."""

from __future__ import annotations

from typing import Final

import numpy as np

from tacit.kernels import compiled
from tacit.privacy.mechanisms.optimal.blocks import ComponentChannels
from tacit.privacy.mechanisms.optimal.channel_books import ChannelBook
from tacit.privacy.mechanisms.optimal.part_tables import Bits, Floats, Whole, Words
from tacit.privacy.mechanisms.optimal.symbol_readings import FIRST_CODE, Codes, SymbolReadings
from tacit.privacy.sampling import Sampler
from tacit.privacy.thresholds import PosteriorCounts

_UNKNOWN: Final = -1
_MAJORITY: Final = 0.5 * (1 + 1e-9)
"""Literally, the answer is yes if it has more than half of the symbol's likelihood."""


class BookDraws:
    """Draws from the channels of a book, and turns symbols into answers and posteriors.

    The answer of each part is yes from its posterior threshold on; without `thresholds`, symbols
    are read literally.
    """

    def __init__(
        self,
        channels: ComponentChannels,
        book: ChannelBook,
        sampler: Sampler,
        thresholds: Floats | None,
    ) -> None:
        self.blocks = len(book.blocks)
        self._book = book
        self._readings = SymbolReadings(
            channels.component, channels.prior, [block.variables for block in book.blocks]
        )
        self._sampler = sampler
        self._literal = thresholds is None
        parts = len(channels.component.parts)
        self._thresholds = np.full(parts, _MAJORITY) if thresholds is None else thresholds
        heights = [[len(channel.table) for channel in own] for own in book.channels]
        begins = sampler.rows + np.cumsum([0, *(height for own in heights for height in own)])
        places = iter(begins.tolist())
        self._first_row = [[next(places) for _ in own] for own in heights]
        sampler.extend([channel for own in book.channels for channel in own])
        self._variables = np.array([v for b in book.blocks for v in b.variables], np.int64)
        self._first_variable = np.cumsum([0, *(len(b.variables) for b in book.blocks)])
        self._rows = np.zeros(book.chosen.shape, np.int64)
        self._codes = np.full(book.chosen.shape, _UNKNOWN, np.int64)
        """`[group][block]`: the first code; groups are prepared when they first occur."""

    def draw(self, chosen: Whole, signals: Words, values: Words, codes: Codes) -> None:
        """Draw the symbols of the chosen rows, where something is open, and write their codes."""
        own = np.ascontiguousarray(signals[chosen])
        groups = self._readings.find_groups(own)
        needed = self._readings.find_needed(own)
        for group in np.unique(groups[needed.any(axis=1)]).tolist():
            self._prepare(group)
        rows, places, first = np.empty((3, int(needed.sum())), np.int64)
        _find_rows(
            chosen,
            groups,
            needed,
            values,
            self._first_variable,
            self._variables,
            self._rows,
            self._codes,
            codes.shape[1],
            rows,
            places,
            first,
        )
        if len(rows):
            drawn = first + self._sampler.sample(rows)
            codes.reshape(-1)[places] = FIRST_CODE - drawn.astype(np.int32)

    def find_needed(self, signals: Words) -> Bits:
        """Return `[row][block]`: whether some open part depends on the block."""
        return self._readings.find_needed(np.ascontiguousarray(signals))

    def touch(self, changed: frozenset[int]) -> list[int]:
        """Return the blocks that have some of these variables."""
        return [n for n, b in enumerate(self._book.blocks) if not changed.isdisjoint(b.variables)]

    def _prepare(self, group: int) -> None:
        """Compute the readings of all symbols that a group of contexts can draw."""
        for number in range(self.blocks):
            if self._codes[group, number] != _UNKNOWN:
                continue
            chosen = int(self._book.chosen[group, number])
            channel = self._book.channels[number][chosen]
            likely = channel.table.T / 2.0**channel.bits
            self._rows[group, number] = self._first_row[number][chosen]
            self._codes[group, number] = self._readings.add(group, number, likely)

    def answer(self, chosen: Whole, signals: Words, codes: Codes, words: Words) -> None:
        """Write the answers of all parts for the chosen rows, lowest bit first."""
        self._readings.answer(
            chosen, signals, codes, self._thresholds, words, literal=self._literal
        )

    def weigh(
        self,
        chosen: Whole,
        signals: Words,
        codes: Codes,
        part: int,
        likely: Floats,
        *,
        true: bool,
    ) -> None:
        """Multiply `likely` by the probability that a part is true (or false), given the draw."""
        self._readings.weigh(chosen, signals, codes, part, likely, true=true)

    def count(
        self, signals: Words, values: Words, codes: Codes, windows: Floats, counts: PosteriorCounts
    ) -> None:
        """Count windows by posterior, given true values; see `SymbolReadings.count`."""
        majority = _MAJORITY if self._literal else None
        self._readings.count(signals, values, codes, windows, counts, majority)


@compiled
def _find_rows(
    chosen: Whole,
    groups: Whole,
    needed: Bits,
    values: Words,
    first_variable: Whole,
    variables: Whole,
    first_rows: Whole,
    first_codes: Whole,
    width: int,
    rows: Whole,
    places: Whole,
    first: Whole,
) -> None:
    """Write the row to draw from for each block that is needed, its place and its first code."""
    one, low = np.uint64(1), np.uint64(63)
    drawn = 0
    for i in range(len(chosen)):
        for block in range(needed.shape[1]):
            if not needed[i, block]:
                continue
            value, begin = np.int64(0), first_variable[block]
            for place in range(begin, first_variable[block + 1]):
                variable = np.uint64(variables[place])
                bit = (values[chosen[i], variable >> np.uint64(6)] >> (variable & low)) & one
                value |= np.int64(bit) << (place - begin)
            rows[drawn] = first_rows[groups[i], block] + value
            places[drawn] = chosen[i] * width + block
            first[drawn] = first_codes[groups[i], block]
            drawn += 1
