"""Draw and decode one component's windows in a protected run.

The signals (patterns over public events) select a window's context; the values of the variables
select the row of its channels. The answers are the decided parts and the readings of the drawn
symbols. A new context is planned when it first occurs. This depends on public events only, and so
does the time that it takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tacit.kernels import compiled
from tacit.patterns.booleans import distinct_rows, pack_rows
from tacit.privacy.keys import KeyTable
from tacit.privacy.mechanisms.optimal.blocks import (
    ChannelBlock,
    ComponentChannels,
    Context,
    read_literally,
)
from tacit.privacy.noise import Noise
from tacit.privacy.prior import Bits
from tacit.privacy.staircase import Design

_NONE: Final = -1
_NARROW: Final = 6
"""Up to this many variables, rows are tabulated for all combinations of values."""


@dataclass(frozen=True, slots=True)
class DrawnSymbols:
    """For each window and subject, the number of its context and a symbol for each block.

    A *code* is a symbol's number among those of all channels of the component.
    """

    contexts: NDArray[np.int32]
    codes: NDArray[np.int32]


@dataclass(slots=True)
class _BlockTables:
    """The blocks of all contexts in flat arrays, for the compiled look-up."""

    blocks: NDArray[np.int64]
    """`[context]`: the number of its first block; one more at the end."""
    variables: NDArray[np.int64]
    first_variable: NDArray[np.int64]
    """`[block]`: where its variables begin; one more at the end."""
    places: NDArray[np.int64]
    first_place: NDArray[np.int64]
    first_row: NDArray[np.int64]
    first_code: NDArray[np.int64]


class Contexts:
    """The contexts of a component, planned on first use, and their channels.

    The answer is yes from the posterior `threshold` on; without one, symbols are read literally.
    """

    def __init__(
        self,
        channels: ComponentChannels,
        noise: Noise,
        threshold: float | None,
        planned: Mapping[bytes, Context] | None = None,
    ) -> None:
        self.channels = channels
        self.parts = len(channels.component.parts)
        self._signals = len(channels.component.signals)
        self._threshold = threshold
        self._planned = dict(planned or {})
        self._words = -(-self.parts // 64)
        self._sampler = noise.new_sampler()
        self._keys = KeyTable(max(1, -(-self._signals // 64)))
        self._contexts: list[Context] = []
        self._most_blocks = 1
        nothing, zero = np.empty(0, np.int64), np.zeros(1, np.int64)
        self._blocks = _BlockTables(zero, nothing, zero, nothing, nothing, nothing, nothing)
        self._width = len(channels.component.variables)
        self._direct = np.empty((0, 1 << min(self._width, _NARROW)), np.int64)
        self._code = np.empty(0, np.int32)
        self._codes = 0
        self._rows: dict[int, int] = {}
        self._decided = np.empty((0, self._words), np.uint64)
        self._readings = np.empty((0, self._words), np.uint64)
        self._tables: dict[int, NDArray[np.float64]] = {}
        self._known: dict[int, NDArray[np.float64]] = {}

    def draw(self, signals: NDArray[np.uint64], values: NDArray[np.uint64]) -> DrawnSymbols:
        """Draw the symbols for windows, given as words: `[window and subject][word]`."""
        if not self._signals:
            signals = np.zeros((len(values), 1), np.uint64)
        numbers = self._keys.look_up(signals)
        if numbers.min(initial=0) < 0:
            self._plan(distinct_rows(signals[numbers < 0]))
            numbers = self._keys.look_up(signals)
        codes = np.full((len(numbers), self._most_blocks), _NONE, np.int32)
        rows = np.empty(codes.size, np.int64)
        places = np.empty(codes.size, np.int64)
        if self._most_blocks == 1 and self._width <= _NARROW:
            drawn = _find_rows_at_once(
                numbers, values.reshape(-1), self._direct, self._code, codes, rows, places
            )
        else:
            drawn = self._find_rows(numbers, values, codes, rows, places)
        if drawn:
            _add(self._sampler.sample(rows[:drawn]), places[:drawn], codes.reshape(-1))
        return DrawnSymbols(numbers, codes)

    def _find_rows(
        self,
        numbers: NDArray[np.int32],
        values: NDArray[np.uint64],
        codes: NDArray[np.int32],
        rows: NDArray[np.int64],
        places: NDArray[np.int64],
    ) -> int:
        tables = self._blocks
        found: int = _find_rows(
            numbers,
            values,
            tables.blocks,
            tables.first_variable,
            tables.variables,
            tables.first_place,
            tables.places,
            tables.first_row,
            tables.first_code,
            codes,
            rows,
            places,
        )
        return found

    def words(self, drawn: DrawnSymbols) -> NDArray[np.uint64]:
        """Return the answers of all parts, `[window and subject][word]`, lowest bit first."""
        words = np.empty((len(drawn.contexts), self._words), np.uint64)
        _gather(drawn.contexts, drawn.codes, self._decided, self._readings, words)
        return words

    def add_words(self, drawn: DrawnSymbols, begin: int, words: NDArray[np.uint64]) -> None:
        """Write the answers of all parts into the bits of `words` from `begin` on."""
        if self.parts:
            _gather_into(
                drawn.contexts, drawn.codes, self._decided, self._readings, np.uint64(begin), words
            )

    def weigh(
        self, drawn: DrawnSymbols, part: int, likely: NDArray[np.float64], *, true: bool = True
    ) -> None:
        """Multiply `likely` by the probability that a part is true (or false), given the draw."""
        _weigh(drawn.contexts, drawn.codes, self._sure(part), self._table(part), true, likely)

    def posterior(self, drawn: DrawnSymbols, part: int) -> NDArray[np.float64]:
        """Return the probability that a part is true, given the draw."""
        likely = np.ones(len(drawn.contexts))
        self.weigh(drawn, part, likely)
        return likely

    def _sure(self, part: int) -> NDArray[np.float64]:
        """Return by context whether a part is true where it is decided."""
        sure = self._known.get(part)
        if sure is None or len(sure) < len(self._decided):
            word, bit = divmod(part, 64)
            bits = (self._decided[:, word] >> np.uint64(bit)) & np.uint64(1)
            sure = self._known[part] = bits.astype(np.float64)
        return sure

    def _table(self, part: int) -> NDArray[np.float64]:
        """Return by code the posterior of a part; NaN if the code belongs to another block."""
        table = self._tables.get(part)
        if table is None or len(table) <= self._codes:
            table = np.full(self._codes + 1, np.nan)
            firsts = iter(self._blocks.first_code.tolist())
            for context in self._contexts:
                for block, design in context.blocks:
                    first = next(firsts)
                    there = slice(first, first + len(design.posterior))
                    if part in block.parts:
                        column = block.columns[block.parts.index(part)]
                        table[there] = design.posterior[:, column]
                    elif len(context.blocks) == 1:
                        table[there] = context.decided[part]
            self._tables[part] = table
        return table

    def _plan(self, keys: NDArray[np.uint64]) -> None:
        """Plan contexts that occur for the first time."""
        octets = keys.astype("<u8").view(np.uint8)
        signals = np.unpackbits(octets, axis=1, bitorder="little", count=self._signals)
        contexts = []
        for row in signals.astype(np.bool_):
            planned = self._planned.get(np.packbits(row).tobytes())
            contexts.append(self.channels.context(row) if planned is None else planned)
        self._contexts += contexts
        self._append_blocks([block for context in contexts for block in context.blocks])
        counts = [len(context.blocks) for context in contexts]
        self._blocks.blocks = np.append(
            self._blocks.blocks, self._blocks.blocks[-1] + np.cumsum(counts, dtype=np.int64)
        )
        self._most_blocks = max(self._most_blocks, *counts)
        decided = pack_rows(np.array([context.decided for context in contexts], np.bool_))
        self._decided = np.concatenate([self._decided, decided])
        if self._width <= _NARROW:
            self._append_direct(contexts, len(self._blocks.blocks) - 1 - len(contexts))
        self._keys.add(keys)

    def _append_direct(self, contexts: list[Context], first: int) -> None:
        """Tabulate the row and code for each combination of values, for contexts of one block."""
        values = np.arange(1 << self._width)
        rows = np.full((len(contexts), len(values)), _NONE, np.int64)
        codes = np.full(len(contexts), _NONE, np.int32)
        for place, context in enumerate(contexts):
            if len(context.blocks) == 1:
                number = self._blocks.blocks[first + place]
                block, _ = context.blocks[0]
                choice = sum(((values >> v) & 1) << n for n, v in enumerate(block.variables))
                rows[place] = self._blocks.first_row[number] + block.place[choice]
                codes[place] = self._blocks.first_code[number]
        self._direct = np.concatenate([self._direct, rows])
        self._code = np.append(self._code, codes)

    def _append_blocks(self, blocks: list[tuple[ChannelBlock, Design]]) -> None:
        """Append the channels of new blocks."""
        tables = self._blocks
        widths = [design.channel.table.shape[1] for _, design in blocks]
        sizes = [len(block.place) for block, _ in blocks]
        counts = [len(block.variables) for block, _ in blocks]
        tables.first_row = np.append(tables.first_row, self._first_rows([d for _, d in blocks]))
        tables.first_code = np.append(tables.first_code, _begins(self._codes, widths))
        tables.first_place = np.append(tables.first_place, _begins(len(tables.places), sizes))
        tables.first_variable = np.append(
            tables.first_variable, tables.first_variable[-1] + np.cumsum(counts, dtype=np.int64)
        )
        tables.variables = np.concatenate(
            [tables.variables, *(np.array(block.variables, np.int64) for block, _ in blocks)]
        )
        tables.places = np.concatenate([tables.places, *(block.place for block, _ in blocks)])
        self._codes += sum(widths)
        readings = np.zeros((sum(widths), self.parts), np.bool_)
        for (block, design), begin in zip(blocks, _begins(0, widths), strict=True):
            there = readings[begin : begin + len(design.posterior)]
            there[:, list(block.parts)] = self._read(block, design)[:, list(block.columns)]
        self._readings = np.concatenate([self._readings, pack_rows(readings)])

    def _first_rows(self, designs: list[Design]) -> NDArray[np.int64]:
        """Return where the rows of channels begin in the sampler; each channel is added once."""
        new = {id(d.channel): d.channel for d in designs if id(d.channel) not in self._rows}
        heights = [len(channel.table) for channel in new.values()]
        begins = _begins(self._sampler.rows, heights).tolist()
        self._rows |= dict(zip(new, begins, strict=True))
        self._sampler.extend(list(new.values()))
        return np.array([self._rows[id(d.channel)] for d in designs], np.int64)

    def _read(self, block: ChannelBlock, design: Design) -> Bits:
        """Return `[symbol][query of the problem]`: the answers that each symbol means."""
        if self._threshold is not None:
            return np.asarray(design.posterior >= self._threshold)
        return read_literally(design.channel.table.T.astype(np.float64), block.choice.answers)


def _begins(first: int, lengths: list[int]) -> NDArray[np.int64]:
    """Return the beginnings of consecutive ranges of these lengths."""
    return first + np.cumsum([0, *lengths], dtype=np.int64)[:-1]


@compiled
def _find_rows(
    contexts: NDArray[np.int32],
    values: NDArray[np.uint64],
    blocks: NDArray[np.int64],
    first_variable: NDArray[np.int64],
    variables: NDArray[np.int64],
    first_place: NDArray[np.int64],
    places_of: NDArray[np.int64],
    first_row: NDArray[np.int64],
    first_code: NDArray[np.int64],
    codes: NDArray[np.int32],
    rows: NDArray[np.int64],
    places: NDArray[np.int64],
) -> int:
    """Write for each block of each window's context its first code, and the row to draw from.

    The rows are written consecutively, each with the place of its code. Return their number.
    """
    one, low = np.uint64(1), np.uint64(63)
    drawn = 0
    for i in range(len(contexts)):
        begin = blocks[contexts[i]]
        for block in range(begin, blocks[contexts[i] + 1]):
            choice = np.int64(0)
            start = first_variable[block]
            for place in range(start, first_variable[block + 1]):
                variable = np.uint64(variables[place])
                bit = (values[i, variable >> np.uint64(6)] >> (variable & low)) & one
                choice |= np.int64(bit) << (place - start)
            rows[drawn] = first_row[block] + places_of[first_place[block] + choice]
            places[drawn] = i * codes.shape[1] + block - begin
            codes[i, block - begin] = first_code[block]
            drawn += 1
    return drawn


@compiled
def _find_rows_at_once(
    contexts: NDArray[np.int32],
    values: NDArray[np.uint64],
    direct: NDArray[np.int64],
    code: NDArray[np.int32],
    codes: NDArray[np.int32],
    rows: NDArray[np.int64],
    places: NDArray[np.int64],
) -> int:
    """Do the same if every context has at most one block and there are few variables."""
    drawn = 0
    for i in range(len(contexts)):
        row = direct[contexts[i], values[i]]
        rows[drawn] = row
        places[drawn] = i
        codes[i, 0] = code[contexts[i]]
        drawn += row >= 0
    return drawn


@compiled
def _gather(
    contexts: NDArray[np.int32],
    codes: NDArray[np.int32],
    decided: NDArray[np.uint64],
    readings: NDArray[np.uint64],
    words: NDArray[np.uint64],
) -> None:
    """Write the decided answers and the readings of the symbols."""
    for i in range(len(contexts)):
        for word in range(words.shape[1]):
            found = decided[contexts[i], word]
            for block in range(codes.shape[1]):
                if codes[i, block] >= 0:
                    found |= readings[codes[i, block], word]
            words[i, word] = found


@compiled
def _gather_into(
    contexts: NDArray[np.int32],
    codes: NDArray[np.int32],
    decided: NDArray[np.uint64],
    readings: NDArray[np.uint64],
    begin: np.uint64,
    words: NDArray[np.uint64],
) -> None:
    """Do the same for answers of one word, added to the bits of `words` from `begin` on."""
    if not len(readings):
        for i in range(len(contexts)):
            words[i] |= decided[contexts[i], 0] << begin
        return
    for i in range(len(contexts)):
        found = decided[contexts[i], 0]
        for block in range(codes.shape[1]):
            # Whether there is a symbol is unpredictable, so select without a branch.
            read = readings[max(codes[i, block], np.int32(0)), 0]
            found |= read if codes[i, block] >= 0 else np.uint64(0)
        words[i] |= found << begin


@compiled
def _add(symbols: NDArray[np.int32], places: NDArray[np.int64], codes: NDArray[np.int32]) -> None:
    """Add the drawn symbols to the first codes."""
    for i in range(len(symbols)):
        codes[places[i]] += symbols[i]


@compiled
def _weigh(
    contexts: NDArray[np.int32],
    codes: NDArray[np.int32],
    sure: NDArray[np.float64],
    table: NDArray[np.float64],
    true: bool,
    likely: NDArray[np.float64],
) -> None:
    """Use the last code that has a posterior of the part; if none does, the part is decided."""
    if codes.shape[1] == 1:
        for i in range(len(contexts)):
            value = table[codes[i, 0]] if codes[i, 0] >= 0 else sure[contexts[i]]
            likely[i] *= value if true else 1 - value
        return
    for i in range(len(contexts)):
        value = sure[contexts[i]]
        for block in range(codes.shape[1]):
            code = codes[i, block]
            if code >= 0 and not np.isnan(table[code]):
                value = table[code]
        likely[i] *= value if true else 1 - value
