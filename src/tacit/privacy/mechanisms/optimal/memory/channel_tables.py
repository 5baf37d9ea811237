"""The contexts of a component in a run, with the channels that memory chooses from.

A context of the plan, or one that was designed in the run, has blocks of its own. Any other
context is served by the book of the plan: the blocks that open parts depend on, with the channel
of the context's group. All of them are rows in flat arrays, for the compiled loops (`kernels`).
Which context a window has depends on public events only.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tacit.kernels.lanes import LANES, fill_lanes
from tacit.patterns.booleans import pack_rows
from tacit.privacy.channels import Channel
from tacit.privacy.keys import KeyTable
from tacit.privacy.mechanisms.optimal.blocks import (
    ChannelBlock,
    ComponentChannels,
    Context,
    value_ratio,
)
from tacit.privacy.mechanisms.optimal.channel_books import ChannelBook
from tacit.privacy.mechanisms.optimal.memory import kernels
from tacit.privacy.mechanisms.optimal.memory.candidates import BlockQueries, CandidateBook
from tacit.privacy.mechanisms.optimal.memory.kernels import Numbers, Octets, Singles, Whole, Words
from tacit.privacy.mechanisms.optimal.new_contexts import DesignedContexts, NewContexts
from tacit.privacy.mechanisms.optimal.symbol_readings import SymbolReadings
from tacit.privacy.noise import Noise
from tacit.privacy.prices import Claim, price_ratio
from tacit.privacy.ranges import count_up, find_begins
from tacit.privacy.sampling import Sampler
from tacit.privacy.staircase import ChannelProblem

Floats = NDArray[np.float64]
Bits = NDArray[np.bool_]

_MOST_TRUTHS: Final = 1 << 22
"""The largest number of values and parts, of all contexts, that are tabulated."""


class _Block(NamedTuple):
    """A block of open parts, before it is in the flat arrays."""

    variables: tuple[int, ...]
    place: Whole
    """The class of each choice of the variables' values."""
    queries: BlockQueries | None
    """None if it has no channels to judge."""
    channels: tuple[Channel, ...]


class ChannelTables:
    """Finds the contexts of windows, and holds their channels in flat arrays."""

    def __init__(
        self,
        channels: ComponentChannels,
        book: ChannelBook,
        candidates: CandidateBook,
        planned: Mapping[bytes, Context],
        noise: Noise,
        *,
        joint: bool,
        gains: bool = True,
        design: bool = True,
    ) -> None:
        self.component = channels.component
        self.joint = joint
        self.gains = gains
        """Whether gains are known where there is nothing to choose from."""
        self._signals = len(self.component.signals)
        self._book = book
        self._candidates = candidates
        self.sampler: Sampler = noise.new_sampler()
        self._rows: dict[int, int] = {}
        """Where the rows of each channel begin in the sampler, which keeps the channels."""
        self._keys = KeyTable(max(1, -(-self._signals // 64)), self._signals)
        self._own = np.full(1, -1, np.int32)
        """The number of each context that has channels of its own; -1 at the end for others."""
        self.group_of = np.empty(0, np.int16)
        """`[context]`: its group of contexts."""
        self.is_open = np.empty(0, np.bool_)
        """`[context]`: whether anything is open in it."""
        self.is_choice = np.empty(0, np.bool_)
        """`[context]`: whether a block has several channels to choose from."""
        self._shared: dict[Hashable, tuple[ChannelProblem, _Block]] = {}
        """Blocks by their problem and channels; problems are kept, so that no id is used again."""
        self._listed: dict[int, tuple[_Block, list[int]]] = {}
        """The row of each block that is in the flat arrays, by its id."""
        self._choices: dict[tuple[int, ...], Whole] = {}
        """The choice of some variables' values for each value of a joint belief."""
        self._served = KeyTable(1 + -(-len(book.blocks) // 64))
        """What the book serves, by group and open blocks."""
        self._served_numbers = np.empty(0, np.int32)
        """The number of each context in `_served`."""
        self._planned: dict[bytes, int] = {}
        self._prior = channels.prior
        self._new = NewContexts(channels) if design else None
        """None if the book serves all contexts that are not in the plan."""
        self.most_blocks = 1
        self.most_classes = LANES
        self.most_queries = 1
        self.first_block: Whole = np.zeros(1, np.int64)
        self.blocks: Whole = np.empty((0, 8), np.int64)
        self.candidates: Whole = np.empty((0, 4), np.int64)
        self.class_of: Whole = np.empty(0, np.int64)
        self.variables: Whole = np.empty(0, np.int64)
        self.places: Whole = np.empty(0, np.int64)
        self.likely: Singles = np.ones(LANES, np.float32)
        """Ones come first, for windows in which nothing is drawn."""
        self.mixed: Singles = np.empty(0, np.float32)
        self.rows: Numbers = np.empty(0, np.int32)
        """`[context and value]`: the sampler's row to draw from, or what `kernels` says instead."""
        self.factors: Numbers = np.empty(0, np.int32)
        """`[context]`: the first likelihood of its channel, if it has only one."""
        self.columns = fill_lanes(max(1, len(self.component.parts)))
        """The number of parts with those that fill lanes."""
        self.values = 1 << len(self.component.variables) if joint else 2
        """The number of values of a chain."""
        self.width = fill_lanes(self.values) if joint else 2
        """The same with the zeros that fill lanes."""
        blocks = self.columns // LANES
        self.truths: Octets = np.empty((0, blocks, self.values, LANES), np.uint8)
        """`[context][block][value][lane]`: whether a part is true, or that it is not tabulated."""
        self.all_tabulated = True
        """Whether truths of all contexts are tabulated."""
        self._room = self.truths
        """The same with space for more contexts."""
        self._priced: list[tuple[Channel, tuple[int, ...], Whole]] = []
        """For each candidate its channel, and the variables and classes of its block."""
        self._prices: dict[tuple[Claim, ...], NDArray[np.int64]] = {}
        if planned:
            packed = np.frombuffer(b"".join(planned), np.uint8).reshape(len(planned), -1)
            signals = np.unpackbits(packed, axis=1, count=self._signals).astype(np.bool_)
            keys = pack_rows(signals) if self._signals else np.zeros((1, 1), np.uint64)
            self._append_own(keys, list(planned.values()))
            self._planned = dict(zip(planned, self._own[:-1].tolist(), strict=True))

    def find_contexts(self, signals: Words, counted: Bits | None = None) -> Numbers:
        """Return the number of each row's context.

        The rows are the subjects of one window, whatever they draw. Which contexts get channels of
        their own depends on the `counted` rows alone; None is all.
        """
        found = self._keys.look_up(signals)
        is_new = found.min(initial=0) < 0
        if self._new is not None:
            own = signals if counted is None else signals[counted]
            if is_new and (counted is None or found[counted].min(initial=0) < 0):
                self._append_designed(self._new.collect())
                unknown = self._keys.look_up(own) < 0
                if unknown.any():
                    self._append_designed(self._new.design(own[unknown], len(own)))
                found = self._keys.look_up(signals)
            self._new.pass_windows(len(own))
        # Without contexts that the book serves, keys and contexts have the same numbers.
        numbers = self._own[found] if len(self._served) else found
        if is_new and found.min() < 0:
            other = np.flatnonzero(found < 0)
            numbers[other] = self._serve(signals[other])
        return numbers

    def find_all_contexts(self, signals: Words, counted: Sequence[Bits | None]) -> Numbers:
        """Do the same for several windows, in order: `[window][row]`."""
        windows, rows, words = signals.shape
        found = self._keys.look_up(signals.reshape(windows * rows, words)).reshape(windows, rows)
        if found.min(initial=0) < 0:  # a window may give channels to contexts of the next
            several = [self.find_contexts(*one) for one in zip(signals, counted, strict=True)]
            return np.stack(several)
        if self._new is not None:
            for own in counted:
                self._new.pass_windows(rows if own is None else int(np.count_nonzero(own)))
        return self._own[found] if len(self._served) else found

    def _serve(self, signals: Words) -> Numbers:
        """Return the numbers of contexts that the book serves."""
        needed = self._readings.find_needed(np.ascontiguousarray(signals))
        groups = self._readings.find_groups(signals)
        keys = np.column_stack([groups.astype(np.uint64), pack_rows(needed)])
        found = self._served.look_up(keys)
        if found.min(initial=0) < 0:
            new = np.flatnonzero(found < 0)
            distinct, firsts = np.unique(keys[new], axis=0, return_index=True)
            numbers = [
                self._append_served(int(groups[row]), needed[row].tolist()) for row in new[firsts]
            ]
            self._served.add(distinct)
            self._served_numbers = np.append(self._served_numbers, np.array(numbers, np.int32))
            found = self._served.look_up(keys)
        return np.asarray(self._served_numbers[found])

    def list_open(self, contexts: Numbers, beliefs: Singles) -> Iterator[tuple[bytes, int, Floats]]:
        """Yield the beliefs about each block's classes, by context of the plan and block."""
        for key, number in self._planned.items():
            rows = beliefs[contexts == number]
            if not len(rows):
                continue
            begin, end = self.first_block[number : number + 2].tolist()
            for block in range(begin, end):
                found = np.empty((len(rows), int(self.blocks[block, kernels.CLASSES])), np.float32)
                kernels.list_classes(
                    rows,
                    self.joint,
                    self.values,
                    block,
                    self.blocks,
                    self.class_of,
                    self.variables,
                    self.places,
                    found,
                )
                yield key, block - begin, found.astype(np.float64)

    def price(self, claims: tuple[Claim, ...]) -> NDArray[np.int64]:
        """Return `[claim][candidate]`: what a draw costs, in nano-epsilon."""
        table = self._prices.get(claims, np.empty((len(claims), 0), np.int64))
        later = self._priced[table.shape[1] :]
        if later:
            changed = [self.component.find_changed(claim.elements) for claim in claims]
            new = [
                [
                    price_ratio(value_ratio(channel, variables, own, place), claim.most)
                    for channel, variables, place in later
                ]
                for claim, own in zip(claims, changed, strict=True)
            ]
            columns = np.array(new, np.int64).reshape(len(claims), len(later))
            table = np.concatenate([table, columns], axis=1)
            self._prices = {claims: table}
        return table

    def _append_designed(self, designed: DesignedContexts | None) -> None:
        if designed is not None:
            self._append_own(*designed)

    def _append_own(self, keys: Words, contexts: list[Context]) -> None:
        """Append contexts with channels of their own."""
        octets = np.ascontiguousarray(keys).astype("<u8").view(np.uint8)
        signals = np.unpackbits(octets, axis=1, bitorder="little", count=self._signals)
        found = []
        for key, context in zip(np.packbits(signals, axis=1), contexts, strict=True):
            chosen = self._candidates.find(key.tobytes(), context)
            found.append(
                [
                    self._share(block, channels)
                    for (block, _), channels in zip(context.blocks, chosen, strict=True)
                ]
            )
        groups = self._prior.group(signals.astype(np.bool_))
        self._tabulate_truths(signals)
        numbers = np.array(self._append(found, groups), np.int32)
        self._own = np.concatenate([self._own[:-1], numbers, self._own[-1:]])
        self._keys.add(keys)

    def _share(self, block: ChannelBlock, channels: tuple[Channel, ...]) -> _Block:
        """Return a block; contexts whose blocks are the same share one."""
        place = block.variables, block.place.tobytes()
        key = id(block.choice), *place, *map(id, channels)
        if key not in self._shared:
            judged = self.gains or len(channels) > 1
            queries = BlockQueries.of(block.choice) if judged else None
            made = _Block(block.variables, block.place, queries, channels)
            self._shared[key] = block.choice, made
        return self._shared[key][1]

    def _append_served(self, group: int, needed: Sequence[bool]) -> int:
        blocks = []
        for number, block in enumerate(self._book.blocks):
            if needed[number]:
                size = len(block.variables)
                values = np.arange(1 << size)
                bits = ((values[:, np.newaxis] >> np.arange(size)) & 1).astype(np.bool_)
                queries = BlockQueries(bits, np.full(size, 1 / size))
                channel = self._book.channels[number][int(self._book.chosen[group, number])]
                blocks.append(_Block(block.variables, values, queries, (channel,)))
        self._append_truths(1)
        self.all_tabulated = False
        return self._append([blocks], np.array([group]))[0]

    def _tabulate_truths(self, signals: NDArray[np.uint8]) -> None:
        """Append which parts are true for each value, in contexts with these signals."""
        new = self._append_truths(len(signals))
        if self.joint and self.truths.size <= _MOST_TRUTHS:
            known = np.concatenate([np.tile([0, 1], (len(signals), 1)), signals], axis=1)
            full = np.zeros((len(new), self.values, self.columns), np.uint8)
            full[:, :, : len(self.component.parts)] = known[:, self._cofactors]
            new[:] = full.reshape(len(new), self.values, -1, LANES).transpose(0, 2, 1, 3)
        else:
            self.all_tabulated = False

    @cached_property
    def _readings(self) -> SymbolReadings:
        """What tells which blocks of the book are open; most runs need none."""
        blocks = [block.variables for block in self._book.blocks]
        return SymbolReadings(self.component, self._prior, blocks)

    @cached_property
    def _cofactors(self) -> Whole:
        """`[value][part]`: the cofactor of a part for a value of the component."""
        values = np.arange(self.values)
        found = np.empty((self.values, len(self.component.parts)), np.int64)
        for number, part in enumerate(self.component.parts):
            choice = np.zeros_like(values)
            for place, variable in enumerate(part.variables):
                choice |= ((values >> variable) & 1) << place
            found[:, number] = np.array(part.cofactors)[choice]
        return found

    def _append_truths(self, contexts: int) -> Octets:
        """Append so many contexts whose truths are not tabulated, and return them."""
        before, after = len(self.truths), len(self.truths) + contexts
        if after > len(self._room):
            self._room = np.empty((2 * after, *self.truths.shape[1:]), np.uint8)
            self._room[:before] = self.truths
        self.truths = self._room[:after]
        self.truths[before:] = kernels.UNKNOWN
        return self.truths[before:]

    def _append(self, contexts: Sequence[Sequence[_Block]], groups: Whole) -> range:
        """Append contexts with these blocks and groups; return their numbers."""
        blocks = [block for one in contexts for block in one]
        new = {id(block): block for block in blocks if id(block) not in self._listed}
        if new:
            rows = self._append_blocks(list(new.values()))
            self._listed |= dict(zip(new, zip(new.values(), rows, strict=True), strict=True))
        if blocks:
            rows = [self._listed[id(block)][1] for block in blocks]
            self.blocks = np.concatenate([self.blocks, np.array(rows, np.int64)])
        counts = [len(one) for one in contexts]
        first = len(self.first_block) - 1
        self.most_blocks = max(self.most_blocks, *counts)
        self.group_of = np.append(self.group_of, groups.astype(np.int16))
        self.is_open = np.append(self.is_open, np.array(counts) > 0)
        several = [any(len(block.channels) > 1 for block in one) for one in contexts]
        self.is_choice = np.append(self.is_choice, several)
        self.first_block = np.append(self.first_block, self.first_block[-1] + np.cumsum(counts))
        if self.joint:
            self._append_rows(first)
        return range(first, first + len(contexts))

    def _append_blocks(self, blocks: Sequence[_Block]) -> list[list[int]]:
        """Append the candidates of blocks; return for each block the row that describes it."""
        channels = [channel for block in blocks for channel in block.channels]
        self._add_channels(channels)
        self._priced += [
            (c, block.variables, block.place) for block in blocks for c in block.channels
        ]
        numbers = np.array([len(block.channels) for block in blocks])
        owners = np.arange(len(blocks)).repeat(numbers)
        variables = [len(block.variables) for block in blocks]
        first_place = find_begins([len(block.place) for block in blocks], len(self.places))
        self.places = np.concatenate([self.places, *(block.place for block in blocks)])
        class_of = np.empty((len(blocks), 0), np.int64)
        if self.joint:
            choices = np.array([self._list_choices(block.variables) for block in blocks])
            class_of = self.places[first_place[:, np.newaxis] + choices]
        classes, symbols = np.array([channel.table.shape for channel in channels]).T
        sizes = classes * symbols
        bits = np.array([channel.bits for channel in channels]).repeat(sizes)
        entries = np.concatenate([channel.table.reshape(-1) for channel in channels])
        tables = np.ldexp(entries.astype(np.float64), -bits).astype(np.float32)
        first_entry = find_begins(sizes)
        likely = tables
        if self.joint:
            owner, symbol = count_up(symbols)
            begin = (first_entry[owner] + symbol)[:, np.newaxis]
            own = class_of[owners[owner]] * symbols[owner, np.newaxis]
            likely = np.zeros((len(owner), self.width), np.float32)
            likely[:, : self.values] = tables[begin + own]
            sizes = symbols * self.width
        nothing = np.empty(0, np.float32)
        mixed = []
        for block, own in zip(blocks, class_of, strict=True):
            if block.queries is None:
                mixed.append(nothing)
            else:
                mixed += self._mix(block.queries, block.channels, own)
        first_row = [self._rows[id(channel)] for channel in channels]
        first_likely = find_begins(sizes, len(self.likely))
        first_mixed = find_begins(list(map(len, mixed)), len(self.mixed))
        made = np.stack([first_row, symbols, first_likely, first_mixed], axis=1)
        asked = [0 if one.queries is None else len(one.queries.weights) for one in blocks]
        rows = np.stack(
            [
                len(self.class_of) + class_of.shape[1] * np.arange(len(blocks)),
                classes[find_begins(numbers)],
                find_begins(numbers, len(self.candidates)),
                numbers,
                asked,
                find_begins(variables, len(self.variables)),
                variables,
                first_place,
            ],
            axis=1,
        )
        self.most_classes = max(self.most_classes, *classes.tolist())
        self.most_queries = max(self.most_queries, *asked)
        self.candidates = np.concatenate([self.candidates, made])
        self.class_of = np.append(self.class_of, class_of)
        flat = np.array([v for one in blocks for v in one.variables], np.int64)
        self.variables = np.append(self.variables, flat)
        self.likely = np.append(self.likely, likely)
        self.mixed = np.concatenate([self.mixed, *mixed])
        listed: list[list[int]] = rows.tolist()
        return listed

    def _append_rows(self, first: int) -> None:
        """Append the rows to draw from in contexts from number `first` on."""
        begin, opened = self.first_block[first:-1], np.diff(self.first_block[first:])
        rows = np.full((len(opened), self.values), kernels.SEVERAL, np.int32)
        rows[opened == 0] = kernels.NOTHING
        factors = np.zeros(len(opened), np.int32)
        single = np.flatnonzero(opened == 1)
        single = single[self.blocks[begin[single], kernels.CANDIDATES] == 1]
        own = self.blocks[begin[single]]
        channels = self.candidates[own[:, kernels.CANDIDATE]]
        classes = self.class_of[own[:, kernels.CLASS_MAP, np.newaxis] + np.arange(self.values)]
        rows[single] = channels[:, kernels.ROW, np.newaxis] + classes
        factors[single] = channels[:, kernels.LIKELY]
        self.rows = np.append(self.rows, rows)
        self.factors = np.append(self.factors, factors)

    def _mix(
        self, queries: BlockQueries, channels: Sequence[Channel], class_of: Whole
    ) -> list[Singles]:
        """Return for each channel of a block what it is judged by.

        These are the likelihoods of symbols, and their products with the queries' answers.
        """
        few = 0 < len(class_of) <= LANES
        rows = class_of if few else np.arange(len(queries.answers))
        factors = np.ones((len(rows), 1 + len(queries.weights), 1))
        factors[:, 1:, 0] = (queries.answers * np.sqrt(queries.weights))[rows]
        found = []
        for channel in channels:
            table = (channel.table / 2.0**channel.bits).astype(np.float32)
            symbols = table.shape[1]
            shape = (LANES if few else len(rows), factors.shape[1], fill_lanes(symbols))
            mixed = np.zeros(shape, np.float32)
            mixed[: len(rows), :, :symbols] = factors * table[rows, np.newaxis]
            found.append(mixed.ravel())
        return found

    def _list_choices(self, variables: tuple[int, ...]) -> Whole:
        """Return the choice of some variables' values for each value of a joint belief."""
        if variables not in self._choices:
            values = np.arange(self.values)
            choice = np.zeros_like(values)
            for place, variable in enumerate(variables):
                choice |= ((values >> variable) & 1) << place
            self._choices[variables] = choice
        return self._choices[variables]

    def _add_channels(self, channels: Sequence[Channel]) -> None:
        """Add channels to the sampler, each once."""
        new = {id(one): one for one in channels if id(one) not in self._rows}
        first = self.sampler.rows
        for number, channel in new.items():
            self._rows[number] = first
            first += len(channel.table)
        self.sampler.extend(list(new.values()))
