"""Turn symbols about blocks of variables into answers and posteriors of parts.

A symbol about a block, together with the prior of a group of contexts, gives a probability for
each value of the block. What parts need of it, its *readings*, is a row of `chances`, and
its number is a *code*. Codes are stored from -2 downwards; -1 stands for no symbol.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tacit.kernels import compiled
from tacit.kernels.threads import CORES, run_in_threads
from tacit.privacy.components import Component
from tacit.privacy.mechanisms.optimal.part_tables import (
    Bits,
    Floats,
    PartTables,
    Whole,
    Words,
    holds,
    part_probability,
)
from tacit.privacy.prior import Prior
from tacit.privacy.thresholds import LEVELS, PosteriorCounts

Codes = NDArray[np.int32]

_TABULATED: Final = 6
"""Up to this many signals, the answers of a part are tabulated."""
_SHARED: Final = 1 << 16
"""From so many posteriors on, all cores count them."""
FIRST_CODE: Final = -2
"""How code 0 is stored; the next ones are below it."""


class SymbolReadings:
    """The readings of symbols in each group of contexts, and what parts follow from them."""

    def __init__(self, component: Component, prior: Prior, blocks: Sequence[Sequence[int]]) -> None:
        self.component = component
        self.prior = prior
        self.tables = PartTables(component, blocks)
        self.chances = np.empty((0, self.tables.width))
        """`[code]`: readings by posterior."""
        self.likelihoods = self.chances
        """`[code]`: readings by likelihood alone, for literal answers."""
        self._decisions = np.empty((0, len(component.parts)), np.uint64)
        """`[1 + code][part]`: the answer for each combination of the part's signals, as bits."""
        self._probabilities: dict[int, Floats] = {}
        """For some parts `[1 + code][combination of the part's signals]`."""

    def find_groups(self, signals: Words) -> Whole:
        """Return the group of each row of signals."""
        octets = np.ascontiguousarray(signals).astype("<u8").view(np.uint8)
        width = len(self.component.signals)
        bits = np.unpackbits(octets, axis=1, bitorder="little", count=width)
        return self.prior.group(bits.astype(np.bool_))

    def find_needed(self, signals: Words) -> Bits:
        """Return `[row][block]`: whether some open part depends on the block."""
        needed = np.zeros((len(signals), len(self.tables.blocks)), np.bool_)
        _find_needed(signals, *self.tables.arrays[:4], needed)
        return needed

    def add(self, group: int, block: int, likely: Floats) -> int:
        """Add symbols with these likelihoods `[symbol][value]`; return the first code."""
        prior = self.prior.choices(group, self.tables.blocks[block])
        first = len(self.chances)
        self.chances = np.concatenate([self.chances, self._read(block, likely * prior)])
        self.likelihoods = np.concatenate([self.likelihoods, self._read(block, likely)])
        return first

    def _read(self, block: int, joint: Floats) -> Floats:
        return self.tables.chances(block, joint / joint.sum(axis=1, keepdims=True))

    def answer(
        self,
        chosen: Whole,
        signals: Words,
        codes: Codes,
        thresholds: Floats,
        words: Words,
        *,
        literal: bool = False,
    ) -> None:
        """Write the answers of all parts for the chosen rows, lowest bit first.

        Thresholds, and whether answers are literal, must be the same in all calls.
        """
        chances = self.likelihoods if literal else self.chances
        arrays = self.tables.arrays
        known, number = len(self._decisions), len(chances) + 1
        if known < number:
            new = np.zeros((number - known, len(thresholds)), np.uint64)
            width = signals.shape[1]
            _tabulate_answers(known, *self._local, width, chances, *arrays, thresholds, new)
            self._decisions = np.concatenate([self._decisions, new])
        _answer(
            chosen,
            signals,
            codes,
            chances,
            *arrays,
            thresholds,
            *self._local,
            self._decisions,
            words,
        )

    @cached_property
    def _local(self) -> tuple[Whole, Whole]:
        """The different signals of each part, and where they begin.

        A part with too many signals, or of several blocks, has none here: it is not tabulated.
        """
        signals: list[int] = []
        firsts = [0]
        views = np.diff(self.tables.first_view)
        for part, several in zip(self.component.parts, (views > 1).tolist(), strict=True):
            own = sorted({cofactor - 2 for cofactor in part.cofactors if cofactor > 1})
            if not several and len(own) <= _TABULATED:
                signals += own
            firsts.append(len(signals))
        return np.array(signals, np.int64), np.array(firsts, np.int64)

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
        """Multiply `likely` by the probability that a part is true (or false)."""
        arrays = self.tables.arrays
        local, first_local = self._local
        own = local[first_local[part] : first_local[part + 1]]
        table = self._tabulate_part(part, own, len(chosen), signals.shape[1])
        if table is None:
            _weigh(chosen, signals, codes, part, self.chances, *arrays, true, likely)
        else:
            block = int(self.tables.views[self.tables.first_view[part], 0])
            _weigh_by_table(chosen, signals, codes, block, own, table, true, likely)

    def _tabulate_part(self, part: int, own: Whole, rows: int, width: int) -> Floats | None:
        """Return `[code][combination of its signals]`: how likely a part is.

        None if that is more work than to compute the probabilities of the rows.
        """
        known = self._probabilities.get(part, np.empty((0, 1 << len(own))))
        number = len(self.chances) + 1
        if not len(own) or (number - len(known)) << len(own) > rows:
            return None
        if len(known) < number:
            new = np.empty((number - len(known), 1 << len(own)))
            _tabulate_probabilities(
                part, len(known), own, width, self.chances, *self.tables.arrays, new
            )
            known = self._probabilities[part] = np.concatenate([known, new])
        return known

    def count(
        self,
        signals: Words,
        values: Words,
        codes: Codes,
        windows: Floats,
        counts: PosteriorCounts,
        majority: float | None = None,
    ) -> None:
        """Count windows of each part by the level of its posterior, given true values.

        With a `majority`, answers are literal: they count as posteriors of 0 and 1.
        """
        parts = len(counts.true)
        number = 1 if parts * len(signals) < _SHARED else min(parts, CORES)
        bounds = [parts * n // number for n in range(number + 1)]
        calls = [
            partial(
                _count,
                begin,
                end,
                signals,
                values,
                codes,
                windows,
                self.chances if majority is None else self.likelihoods,
                *self.tables.arrays,
                *self._own,
                np.nan if majority is None else majority,
                LEVELS,
                counts.true,
                counts.false,
            )
            for begin, end in pairwise(bounds)
        ]
        run_in_threads(calls)  # each counts other parts

    @cached_property
    def _own(self) -> tuple[Whole, Whole]:
        """The variables of each part, and where they begin."""
        parts = self.component.parts
        return (
            np.array([variable for part in parts for variable in part.variables], np.int64),
            np.cumsum([0, *(len(part.variables) for part in parts)]),
        )


class PriorReadings(SymbolReadings):
    """Readings without symbols: what the prior says in each group of contexts."""

    def __init__(self, component: Component, prior: Prior, blocks: Sequence[Sequence[int]]) -> None:
        super().__init__(component, prior, blocks)
        self._codes = np.full((prior.groups, len(self.tables.blocks)), -1, np.int32)

    def read(self, signals: Words) -> Codes:
        """Return `[row][block]`: the codes of each row of signals."""
        groups = self.find_groups(signals)
        for group in np.unique(groups).tolist():
            if (self._codes[group] == -1).any():
                for number, block in enumerate(self.tables.blocks):
                    code = self.add(group, number, np.ones((1, 1 << len(block))))
                    self._codes[group, number] = FIRST_CODE - code
        return np.asarray(self._codes[groups])


@compiled
def _find_needed(
    signals: Words,
    cofactors: Whole,
    first_cofactor: Whole,
    views: Whole,
    first_view: Whole,
    needed: Bits,
) -> None:
    """Mark the blocks that some open part depends on."""
    for row in range(len(signals)):
        left = needed.shape[1]
        for part in range(len(first_cofactor) - 1):
            begin, end = first_cofactor[part], first_cofactor[part + 1]
            first = holds(cofactors[begin], signals[row])
            for place in range(begin + 1, end):
                if holds(cofactors[place], signals[row]) != first:
                    for view in range(first_view[part], first_view[part + 1]):
                        if not needed[row, views[view, 0]]:
                            needed[row, views[view, 0]] = True
                            left -= 1
                    break
            if left == 0:
                break


@compiled
def _tabulate_probabilities(
    part: int,
    first: int,
    own: Whole,
    width: int,
    chances: Floats,
    cofactors: Whole,
    first_cofactor: Whole,
    views: Whole,
    first_view: Whole,
    choices: Whole,
    table: Floats,
) -> None:
    """Write the probability of a part for each combination of its signals, from a code on."""
    signals = np.zeros(width, np.uint64)
    one, low = np.uint64(1), np.uint64(63)
    codes = np.empty(views[:, 0].max() + 1, np.int32)
    for row in range(len(table)):
        codes[:] = FIRST_CODE - (first + row - 1)
        for pattern in range(table.shape[1]):
            for place in range(len(own)):
                signal = np.uint64(own[place])
                if pattern >> place & 1:
                    signals[signal >> np.uint64(6)] |= one << (signal & low)
            table[row, pattern] = part_probability(
                part,
                signals,
                codes,
                chances,
                cofactors,
                first_cofactor,
                views,
                first_view,
                choices,
            )
            for place in range(len(own)):
                signals[own[place] >> 6] = np.uint64(0)


@compiled
def _tabulate_answers(
    first: int,
    local: Whole,
    first_local: Whole,
    width: int,
    chances: Floats,
    cofactors: Whole,
    first_cofactor: Whole,
    views: Whole,
    first_view: Whole,
    choices: Whole,
    thresholds: Floats,
    decisions: Words,
) -> None:
    """Write the answers of parts for each combination of their signals, from a code on."""
    for part in range(len(thresholds)):
        own = local[first_local[part] : first_local[part + 1]]
        if len(own) == 0:
            continue
        table = np.empty((len(decisions), 1 << len(own)))
        _tabulate_probabilities(
            part,
            first,
            own,
            width,
            chances,
            cofactors,
            first_cofactor,
            views,
            first_view,
            choices,
            table,
        )
        for row in range(len(decisions)):
            for pattern in range(table.shape[1]):
                if table[row, pattern] >= thresholds[part]:
                    decisions[row, part] |= np.uint64(1) << np.uint64(pattern)


@compiled
def _answer(
    chosen: Whole,
    signals: Words,
    codes: Codes,
    chances: Floats,
    cofactors: Whole,
    first_cofactor: Whole,
    views: Whole,
    first_view: Whole,
    choices: Whole,
    thresholds: Floats,
    local: Whole,
    first_local: Whole,
    decisions: Words,
    words: Words,
) -> None:
    one, low = np.uint64(1), np.uint64(63)
    for i in chosen:
        for word in range(words.shape[1]):
            words[i, word] = np.uint64(0)
        for part in range(len(thresholds)):
            begin, end = first_local[part], first_local[part + 1]
            if begin < end:
                pattern = np.uint64(0)
                for place in range(begin, end):
                    signal = np.uint64(local[place])
                    bit = (signals[i, signal >> np.uint64(6)] >> (signal & low)) & one
                    pattern |= bit << np.uint64(place - begin)
                row = 1 + FIRST_CODE - codes[i, views[first_view[part], 0]]
                yes = (decisions[row, part] >> pattern) & one
            else:
                likely = part_probability(
                    part,
                    signals[i],
                    codes[i],
                    chances,
                    cofactors,
                    first_cofactor,
                    views,
                    first_view,
                    choices,
                )
                yes = np.uint64(likely >= thresholds[part])
            words[i, part >> 6] |= yes << np.uint64(part & 63)


@compiled
def _weigh(
    chosen: Whole,
    signals: Words,
    codes: Codes,
    part: int,
    chances: Floats,
    cofactors: Whole,
    first_cofactor: Whole,
    views: Whole,
    first_view: Whole,
    choices: Whole,
    true: bool,
    likely: Floats,
) -> None:
    for i in chosen:
        value = part_probability(
            part,
            signals[i],
            codes[i],
            chances,
            cofactors,
            first_cofactor,
            views,
            first_view,
            choices,
        )
        likely[i] *= value if true else 1 - value


@compiled
def _weigh_by_table(
    chosen: Whole,
    signals: Words,
    codes: Codes,
    block: int,
    own: Whole,
    table: Floats,
    true: bool,
    likely: Floats,
) -> None:
    one, low = np.uint64(1), np.uint64(63)
    for i in chosen:
        pattern = np.uint64(0)
        for place in range(len(own)):
            signal = np.uint64(own[place])
            bit = (signals[i, signal >> np.uint64(6)] >> (signal & low)) & one
            pattern |= bit << np.uint64(place)
        value = table[1 + FIRST_CODE - codes[i, block], pattern]
        likely[i] *= value if true else 1 - value


@compiled
def _count(
    first_part: int,
    end_part: int,
    signals: Words,
    values: Words,
    codes: Codes,
    windows: Floats,
    chances: Floats,
    cofactors: Whole,
    first_cofactor: Whole,
    views: Whole,
    first_view: Whole,
    choices: Whole,
    variables: Whole,
    first_variable: Whole,
    threshold: float,
    levels: Floats,
    true: Floats,
    false: Floats,
) -> None:
    """Add each row's windows to the level of each part's posterior, for some parts."""
    one, low = np.uint64(1), np.uint64(63)
    for i in range(len(signals)):
        for part in range(first_part, end_part):
            likely = part_probability(
                part,
                signals[i],
                codes[i],
                chances,
                cofactors,
                first_cofactor,
                views,
                first_view,
                choices,
            )
            if not np.isnan(threshold):
                likely = 1.0 if likely >= threshold else 0.0
            choice = np.int64(0)
            for place in range(first_variable[part], first_variable[part + 1]):
                variable = np.uint64(variables[place])
                bit = (values[i, variable >> np.uint64(6)] >> (variable & low)) & one
                choice |= np.int64(bit) << (place - first_variable[part])
            below, above = 0, len(levels)
            while above - below > 1:
                middle = (below + above) // 2
                if levels[middle] <= likely:
                    below = middle
                else:
                    above = middle
            if holds(cofactors[first_cofactor[part] + choice], signals[i]):
                true[part, below] += windows[i]
            else:
                false[part, below] += windows[i]
