"""Draw and decode one component's windows in a protected run.

The signals (patterns over public events) select a window's context; the values of the variables
select the row of its channels. The answers are the decided parts and the readings of the drawn
symbols. A new context gets channels of its own within a budget, and is served by a book otherwise.
This depends on public events only, and so does the time that it takes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from tacit.kernels import compiled
from tacit.patterns.booleans import pack_rows
from tacit.privacy.keys import KeyTable
from tacit.privacy.mechanisms.optimal.blocks import (
    ChannelBlock,
    ComponentChannels,
    Context,
    read_literally,
)
from tacit.privacy.mechanisms.optimal.book_draws import BookDraws
from tacit.privacy.mechanisms.optimal.channel_books import ChannelBook
from tacit.privacy.mechanisms.optimal.new_contexts import DesignedContexts, NewContexts
from tacit.privacy.noise import Noise
from tacit.privacy.prices import Claim, price_ratio
from tacit.privacy.prior import Bits
from tacit.privacy.ranges import count_up, find_begins
from tacit.privacy.sampling import Sampler
from tacit.privacy.staircase import Design

_Number = TypeVar("_Number", bound=np.generic)

_NONE: Final = -1
_NARROW: Final = 6
"""Up to this many variables, rows are tabulated for all combinations of values."""


@dataclass(frozen=True, slots=True)
class DrawnSymbols:
    """For each window and subject, the number of its context and a symbol for each block.

    A *code* is a symbol's number among those of all channels of the component.
    """

    contexts: NDArray[np.int32]
    """-1 for a context that is served by the book."""
    codes: NDArray[np.int32]
    """`[row][block]`"""
    signals: NDArray[np.uint64]
    """`[row][word]`"""
    other: NDArray[np.int64]
    """The rows that are served by the book."""


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


class ContextTables(NamedTuple):
    """The tables of a component's contexts, which have at most one block each.

    An entry is a code of a context with a block, or, after all of these, a context.
    """

    keys: KeyTable
    rows: NDArray[np.int64]
    """`[context][values of the variables]`: the row to draw from; -1 if nothing is drawn."""
    codes: NDArray[np.int32]
    """`[context]`: its first code, or -1."""
    sampler: Sampler
    contexts: NDArray[np.int32]
    """`[entry]`: its context."""
    answers: NDArray[np.uint64]
    """`[entry]`: the answers of all parts as bits."""
    chances: NDArray[np.float64]
    """`[entry][part]`: how likely the part is."""


class Contexts:
    """The contexts of a component, their channels, and the book for all other contexts.

    The answer of each part is yes from its posterior threshold on; without `thresholds`, symbols
    are read literally. Without `design`, the book serves all contexts that are not planned.
    """

    def __init__(
        self,
        channels: ComponentChannels,
        book: ChannelBook,
        noise: Noise,
        thresholds: NDArray[np.float64] | None,
        planned: Mapping[bytes, Context] | None = None,
        *,
        design: bool = True,
    ) -> None:
        self.channels = channels
        self.parts = len(channels.component.parts)
        self._signals = len(channels.component.signals)
        self._thresholds = thresholds
        self._words = -(-self.parts // 64)
        self.sampler = noise.new_sampler()
        self._book_sampler = noise.new_sampler()
        self._keys = KeyTable(max(1, -(-self._signals // 64)), self._signals)
        self._most_blocks = 1
        nothing, zero = np.empty(0, np.int64), np.zeros(1, np.int64)
        self._blocks = _BlockTables(zero, nothing, zero, nothing, nothing, nothing, nothing)
        self._width = len(channels.component.variables)
        # The last row of these arrays is for contexts that the book serves, numbered -1.
        self._direct = np.full((1, 1 << min(self._width, _NARROW)), _NONE, np.int64)
        self._code = np.full(1, _NONE, np.int32)
        self._codes = 0
        self._rows: dict[int, int] = {}
        self._decided = np.zeros((1, self._words), np.uint64)
        self._readings = np.empty((0, self._words), np.uint64)
        self._posterior = np.full((1, self.parts), np.nan)
        """`[code][part]`: NaN if the code says nothing about the part; the last row always."""
        self._read_before: dict[int, tuple[Design, Bits]] = {}
        """By the id of the design, which is kept so that no id is used again."""
        self._known: dict[int, NDArray[np.float64]] = {}
        self._contexts: list[Context] = []
        self._prices: dict[tuple[Claim, ...], NDArray[np.int64]] = {}
        self._planned_book = book
        self._new = NewContexts(channels) if design else None
        if planned:
            packed = np.frombuffer(b"".join(planned), np.uint8).reshape(len(planned), -1)
            signals = np.unpackbits(packed, axis=1, count=self._signals).astype(np.bool_)
            keys = pack_rows(signals) if self._signals else np.zeros((1, 1), np.uint64)
            self._append(keys, list(planned.values()))

    def draw(
        self,
        signals: NDArray[np.uint64],
        values: NDArray[np.uint64],
        windows: int,
        counted: Bits | None = None,
    ) -> DrawnSymbols:
        """Draw the symbols of some windows, given as words: `[window and subject][word]`.

        Which contexts get channels of their own depends on the `counted` rows alone; None is all.
        """
        if not self._signals:
            signals = np.zeros((len(values), 1), np.uint64)
        numbers = self._keys.look_up(signals)
        if self._new is not None:
            if numbers.min(initial=0) < 0:
                self._add_new(self._new, signals, numbers, windows, counted)
            self.pass_windows(_count_rows(counted, len(signals)))
        none_other = numbers.min(initial=0) >= 0
        other = np.empty(0, np.int64) if none_other else np.flatnonzero(numbers < 0)
        width = max(self._most_blocks, self._book.blocks if len(other) else 1)
        codes = np.full((len(numbers), width), _NONE, np.int32)
        rows = np.empty(codes.size, np.int64)
        places = np.empty(codes.size, np.int64)
        if self.has_single_blocks:
            drawn = _find_rows_at_once(
                numbers, values.reshape(-1), self._direct, self._code, codes, rows, places
            )
        else:
            drawn = self._find_rows(numbers, values, codes, rows, places)
        if drawn:
            _add(self.sampler.sample(rows[:drawn]), places[:drawn], codes.reshape(-1))
        if len(other):
            self._book.draw(other, signals, values, codes)
        return DrawnSymbols(numbers, codes, signals, other)

    def _add_new(
        self,
        designing: NewContexts,
        signals: NDArray[np.uint64],
        numbers: NDArray[np.int32],
        windows: int,
        counted: Bits | None,
    ) -> None:
        """Design contexts that are new, as far as the budget allows, window by window."""
        size = len(signals) // windows
        unknown = numbers < 0 if counted is None else (numbers < 0) & counted
        for window in np.unique(np.flatnonzero(unknown) // size).tolist():
            own = slice(window * size, (window + 1) * size)
            self._append_designed(designing.collect())
            unknown = self._keys.look_up(signals[own]) < 0
            if counted is not None:
                unknown &= counted[own]
            if unknown.any():
                stop = (window + 1) * size
                passed = _count_rows(None if counted is None else counted[:stop], stop)
                self._append_designed(designing.design(signals[own][unknown], passed))
            numbers[own] = self._keys.look_up(signals[own])

    def _append_designed(self, designed: DesignedContexts | None) -> None:
        if designed is not None:
            self._append(*designed)

    def price(self, signals: NDArray[np.uint64], claims: tuple[Claim, ...]) -> NDArray[np.int64]:
        """Return `[claim][row]`: what the draws of these rows cost at most, in nano-epsilon.

        A context without channels of its own may get some before it is drawn from. So it costs all
        of epsilon where something is open that the claim's elements may change.
        """
        if not self._signals:
            signals = np.zeros((len(signals), 1), np.uint64)
        numbers = self._keys.look_up(signals)
        component = self.channels.component
        changed = [component.find_changed(claim.elements) for claim in claims]
        table = self._prices.get(claims, np.empty((len(claims), 0), np.int64))
        if later := self._contexts[table.shape[1] :]:
            new = [
                [price_ratio(context.find_ratio(own), claim.most) for context in later]
                for claim, own in zip(claims, changed, strict=True)
            ]
            new_columns = np.array(new, np.int64).reshape(len(claims), len(later))
            table = np.concatenate([table, new_columns], axis=1)
            self._prices = {claims: table}
        # The last column is for contexts without channels of their own, numbered -1.
        prices = np.concatenate([table, np.zeros((len(claims), 1), np.int64)], axis=1)[:, numbers]
        other = np.flatnonzero(numbers < 0)
        if len(other):
            needed = self._book.find_needed(signals[other])
            for row, claim, own in zip(prices, claims, changed, strict=True):
                row[other] = np.where(needed[:, self._book.touch(own)].any(axis=1), claim.most, 0)
        return prices

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
        if len(drawn.other):
            self._book.answer(drawn.other, drawn.signals, drawn.codes, words)
        return words

    def add_words(self, drawn: DrawnSymbols, begin: int, words: NDArray[np.uint64]) -> None:
        """Write the answers of all parts into the bits of `words` from `begin` on."""
        if self.parts:
            _gather_into(
                drawn.contexts, drawn.codes, self._decided, self._readings, np.uint64(begin), words
            )
            if len(other := drawn.other):
                own = np.empty((len(words), 1), np.uint64)
                self._book.answer(other, drawn.signals, drawn.codes, own)
                words[other] |= own[other, 0] << np.uint64(begin)

    @cached_property
    def _book(self) -> BookDraws:
        """What serves contexts without channels of their own; most runs need none."""
        given = self.channels, self._planned_book, self._book_sampler
        return BookDraws(*given, self._thresholds)

    @property
    def table_sizes(self) -> tuple[int, int]:
        """The number of codes, and of contexts with channels of their own."""
        return self._codes, len(self._contexts)

    @property
    def has_single_blocks(self) -> bool:
        """Whether every context has at most one block, and there are few variables."""
        return self._most_blocks == 1 and self._width <= _NARROW

    def pass_windows(self, number: int) -> None:
        """Count windows that were drawn for: the time for new contexts grows with them."""
        if self._new is not None:
            self._new.pass_windows(number)

    def list_tables(self) -> ContextTables:
        """Return the tables for a single pass; contexts have single blocks, parts fit a word."""
        decided = self._decided[:-1, 0]
        owners = np.repeat(
            [number for number, context in enumerate(self._contexts) for _ in context.blocks],
            [design.channel.table.shape[1] for c in self._contexts for _, design in c.blocks],
        ).astype(np.int64)
        sure = np.stack([self._sure(part)[:-1] for part in range(self.parts)], axis=1)
        numbers = np.append(owners, np.arange(len(decided)))
        return ContextTables(
            self._keys,
            self._direct[:-1],
            self._code[:-1],
            self.sampler,
            numbers.astype(np.int32),
            np.concatenate([self._readings[:, 0] | decided[owners], decided]),
            np.concatenate([self._posterior[:-1], sure]),
        )

    def weigh(
        self, drawn: DrawnSymbols, part: int, likely: NDArray[np.float64], *, true: bool = True
    ) -> None:
        """Multiply `likely` by the probability that a part is true (or false), given the draw."""
        sure = self._sure(part)
        sure[-1] = true
        table = np.ascontiguousarray(self._posterior[:, part])
        _weigh(drawn.contexts, drawn.codes, sure, table, true, likely)
        if len(drawn.other):
            self._book.weigh(drawn.other, drawn.signals, drawn.codes, part, likely, true=true)

    def posterior(self, drawn: DrawnSymbols, part: int) -> NDArray[np.float64]:
        """Return the probability that a part is true, given the draw."""
        likely = np.ones(len(drawn.contexts))
        self.weigh(drawn, part, likely)
        return likely

    def _sure(self, part: int) -> NDArray[np.float64]:
        """Return by context whether a part is true where it is decided; the last is not used."""
        sure = self._known.get(part)
        if sure is None or len(sure) < len(self._decided):
            word, bit = divmod(part, 64)
            bits = (self._decided[:, word] >> np.uint64(bit)) & np.uint64(1)
            sure = self._known[part] = bits.astype(np.float64)
        return sure

    def _append(self, keys: NDArray[np.uint64], contexts: list[Context]) -> None:
        """Append contexts with channels of their own."""
        self._contexts += contexts
        blocks = [block for context in contexts for block in context.blocks]
        counts = [len(context.blocks) for context in contexts]
        decided = np.array([context.decided for context in contexts], np.bool_)
        if blocks:
            self._append_blocks(blocks, decided.repeat(counts, axis=0), np.repeat(counts, counts))
        self._blocks.blocks = np.append(
            self._blocks.blocks, self._blocks.blocks[-1] + np.cumsum(counts, dtype=np.int64)
        )
        self._most_blocks = max(self._most_blocks, *counts)
        self._decided = _append_rows(self._decided, pack_rows(decided))
        if self._width <= _NARROW:
            self._append_direct(contexts, len(self._blocks.blocks) - 1 - len(contexts))
        self._keys.add(keys)

    def _append_direct(self, contexts: list[Context], first: int) -> None:
        """Tabulate the row and code for each combination of values, for contexts of one block."""
        values = np.arange(1 << self._width)
        rows = np.full((len(contexts), len(values)), _NONE, np.int64)
        codes = np.full(len(contexts), _NONE, np.int32)
        alike: dict[tuple[int, ...], list[int]] = {}
        for place, context in enumerate(contexts):
            if len(context.blocks) == 1:
                alike.setdefault(context.blocks[0][0].variables, []).append(place)
        for variables, own in alike.items():
            choice = np.zeros_like(values)
            for n, variable in enumerate(variables):
                choice |= ((values >> variable) & 1) << n
            numbers = self._blocks.blocks[first + np.array(own)]
            places = self._blocks.places[self._blocks.first_place[numbers, np.newaxis] + choice]
            rows[own] = self._blocks.first_row[numbers, np.newaxis] + places
            codes[own] = self._blocks.first_code[numbers]
        self._direct = _append_rows(self._direct, rows)
        self._code = _append_rows(self._code, codes)

    def _append_blocks(
        self,
        blocks: list[tuple[ChannelBlock, Design]],
        decided: Bits,
        counts_of_blocks: NDArray[np.int64],
    ) -> None:
        """Append the channels of new blocks.

        Given are also the decided parts of each block's context, and its number of blocks.
        """
        tables = self._blocks
        widths = [design.channel.table.shape[1] for _, design in blocks]
        sizes = [len(block.place) for block, _ in blocks]
        counts = [len(block.variables) for block, _ in blocks]
        tables.first_row = np.append(tables.first_row, self._first_rows([d for _, d in blocks]))
        tables.first_code = np.append(tables.first_code, find_begins(widths, self._codes))
        tables.first_place = np.append(tables.first_place, find_begins(sizes, len(tables.places)))
        tables.first_variable = np.append(
            tables.first_variable, tables.first_variable[-1] + np.cumsum(counts, dtype=np.int64)
        )
        variables = [variable for block, _ in blocks for variable in block.variables]
        tables.variables = np.append(tables.variables, np.array(variables, np.int64))
        tables.places = np.concatenate([tables.places, *(block.place for block, _ in blocks)])
        self._codes += sum(widths)
        # In a context of several blocks, a symbol says nothing about the parts of other blocks.
        known = np.where((counts_of_blocks == 1)[:, np.newaxis], decided, np.nan)
        posterior = known.repeat(widths, axis=0)
        readings = np.zeros(posterior.shape, np.bool_)
        told = [design.posterior for _, design in blocks]
        rows, parts, places = _find_places([block for block, _ in blocks], told)
        posterior[rows, parts] = _join(told)[places]
        if self._thresholds is None:
            answers = [self._read_literally(block, design) for block, design in blocks]
            readings[rows, parts] = _join(answers)[places]
        else:
            readings[rows, parts] = posterior[rows, parts] >= self._thresholds[parts]
        self._readings = np.concatenate([self._readings, pack_rows(readings)])
        self._posterior = _append_rows(self._posterior, posterior)

    def _read_literally(self, block: ChannelBlock, design: Design) -> Bits:
        """Return `[symbol][query]`: the answers; many contexts have the same channel."""
        if id(design) not in self._read_before:
            table = design.channel.table.T.astype(np.float64)
            answers = read_literally(table, block.choice.answers)
            self._read_before[id(design)] = design, answers
        return self._read_before[id(design)][1]

    def _first_rows(self, designs: list[Design]) -> NDArray[np.int64]:
        """Return where the rows of channels begin in the sampler; each channel is added once."""
        new = {id(d.channel): d.channel for d in designs if id(d.channel) not in self._rows}
        heights = [len(channel.table) for channel in new.values()]
        begins = find_begins(heights, self.sampler.rows).tolist()
        self._rows |= dict(zip(new, begins, strict=True))
        self.sampler.extend(list(new.values()))
        return np.array([self._rows[id(d.channel)] for d in designs], np.int64)


def _count_rows(counted: Bits | None, rows: int) -> int:
    """Return how many of some rows count; None is all."""
    return rows if counted is None else int(np.count_nonzero(counted))


def _find_places(
    blocks: list[ChannelBlock], told: list[NDArray[np.float64]]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return each symbol of each block with each part, and its place in `_join(told)`.

    Symbols are numbered over all blocks; `told` is a table `[symbol][column]` for each block.
    """
    parts = np.array([part for block in blocks for part in block.parts], np.int64)
    columns = np.array([column for block in blocks for column in block.columns], np.int64)
    counts = np.array([len(block.parts) for block in blocks], np.int64)
    heights = np.array([len(table) for table in told], np.int64)
    widths = np.array([table.shape[1] for table in told], np.int64)
    owner, _ = count_up(heights)
    rows, n = count_up(counts[owner])
    part = find_begins(counts)[owner[rows]] + n
    return rows, parts[part], find_begins(widths[owner])[rows] + columns[part]


def _join(tables: Sequence[NDArray[_Number]]) -> NDArray[_Number]:
    """Return the entries of several tables, one after the other."""
    return np.concatenate([table.reshape(-1) for table in tables])


def _append_rows(array: NDArray[_Number], more: NDArray[_Number]) -> NDArray[_Number]:
    """Append rows before the last one."""
    return np.concatenate([array[:-1], more, array[-1:]])


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
