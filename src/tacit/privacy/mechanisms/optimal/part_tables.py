"""The parts of a component's queries as functions of its variables, for compiled loops.

The variables are put into blocks, each with at most 2**6 values. What is known about a block is a
probability for each of its values. The probability of a part then follows: the sum over the
choices of its variables for which it is true, where different blocks count as independent.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tacit.kernels import compiled, lean
from tacit.privacy.components import Component

Bits = NDArray[np.bool_]
Floats = NDArray[np.float64]
Whole = NDArray[np.int64]
Words = NDArray[np.uint64]

_MOST_FUNCTIONS: Final = 128
"""The largest number of functions of a block that its channels are designed for."""


class PartTables:
    """The parts of a component in flat arrays, for variables in blocks.

    A *reading* is the distribution of some variables of one block that some part depends on. A
    block's readings are stored one after the other: those of one symbol are a row of `chances`.
    """

    def __init__(self, component: Component, blocks: Sequence[Sequence[int]]) -> None:
        self.component = component
        self.blocks = tuple(tuple(block) for block in blocks)
        self._home = {
            variable: number for number, block in enumerate(self.blocks) for variable in block
        }
        self._readings: list[dict[tuple[int, ...], int]] = [{} for _ in self.blocks]
        self._widths = [0] * len(self.blocks)
        firsts, first_views = [0], [0]
        cofactors: list[int] = []
        views: list[tuple[int, int, int]] = []
        choices: list[int] = []
        for part in component.parts:
            cofactors += part.cofactors
            firsts.append(len(cofactors))
            numbers = np.arange(len(part.cofactors))
            for block in sorted({self._home[variable] for variable in part.variables}):
                own = [v for v in part.variables if self._home[v] == block]
                views.append((block, self._reading(block, tuple(own)), len(choices)))
                places = [part.variables.index(v) for v in own]
                choices += _extract(numbers, places).tolist()
            first_views.append(len(views))
        self.cofactors = np.array(cofactors, np.int64)
        self.first_cofactor = np.array(firsts, np.int64)
        self.views = np.array(views, np.int64).reshape(-1, 3)
        """`[view]`: a block of a part, where its reading begins, and where its choices begin."""
        self.first_view = np.array(first_views, np.int64)
        self.choices = np.array(choices, np.int64)
        """For each view and choice of the part's variables, the choice of those in the block."""

    def _reading(self, block: int, variables: tuple[int, ...]) -> int:
        begin = self._readings[block].get(variables)
        if begin is None:
            begin = self._readings[block][variables] = self._widths[block]
            self._widths[block] += 1 << len(variables)
        return begin

    @property
    def width(self) -> int:
        """The length of a row of `chances`."""
        return max(self._widths, default=0)

    @property
    def arrays(self) -> tuple[Whole, Whole, Whole, Whole, Whole]:
        """The arrays that compiled loops take."""
        return self.cofactors, self.first_cofactor, self.views, self.first_view, self.choices

    @cached_property
    def sums(self) -> list[Floats]:
        """For each block, the matrix that turns the probabilities of its values into readings."""
        sums = []
        for block, readings in zip(self.blocks, self._readings, strict=True):
            values = np.arange(1 << len(block))
            matrix = np.zeros((len(values), self.width))
            for own, begin in readings.items():
                choice = _extract(values, [block.index(variable) for variable in own])
                matrix[values, begin + choice] = 1.0
            sums.append(matrix)
        return sums

    def chances(self, block: int, probabilities: Floats) -> Floats:
        """Return the readings of a block, given the probabilities of its values `[...][value]`."""
        return np.asarray(probabilities @ self.sums[block])

    def weigh_functions(
        self, signals: Words, windows: Floats, stakes: Floats, block: int, others: Floats
    ) -> BlockFunctions:
        """Return what open parts are as functions of one block, over contexts of history.

        A part that also depends on other blocks is one function for each choice of their
        variables, and counts with the probability of that choice by the readings
        `others[block]`. The stakes of a function are the sum over the parts that have it.
        """
        expand = np.zeros((len(self.views), 1 << len(self.blocks[block])), np.int64)
        values = np.arange(expand.shape[1])
        for own, begin in self._readings[block].items():
            here = (self.views[:, 0] == block) & (self.views[:, 1] == begin)
            places = [self.blocks[block].index(variable) for variable in own]
            expand[here] = _extract(values, places)
        room = int(np.diff(self.first_cofactor).sum()) * len(signals)
        functions, parts = np.empty(room, np.uint64), np.empty(room, np.int64)
        weights = np.empty(room)
        found = _tabulate(
            signals, windows, block, others, expand, *self.arrays, functions, parts, weights
        )
        distinct, place = np.unique(functions[:found], return_inverse=True)
        sums: list[Floats] = [
            np.bincount(
                place.ravel(), weights[:found] * stake[parts[:found]], len(distinct)
            ).astype(np.float64)
            for stake in stakes.T
        ]
        order = np.argsort(-(sums[0] + sums[1]), kind="stable")[:_MOST_FUNCTIONS]
        table = (distinct[order] >> values.astype(np.uint64)[:, np.newaxis]) & np.uint64(1)
        return BlockFunctions(table.astype(np.bool_), sums[0][order], sums[1][order])


class BlockFunctions(NamedTuple):
    """Functions of a block's value, each with its stakes."""

    answers: Bits
    """`[value][function]`"""
    reward: Floats
    penalty: Floats


def _extract(numbers: Whole, places: Sequence[int]) -> Whole:
    """Return the numbers made of some bits of other numbers."""
    found = np.zeros_like(numbers)
    for n, place in enumerate(places):
        found |= ((numbers >> place) & 1) << n
    return found


@lean
def holds(cofactor: int, signals: Words) -> bool:
    """Return the value of a cofactor: 0 is false, 1 true, and others are signals."""
    if cofactor < 2:
        return cofactor == 1
    signal = np.uint64(cofactor - 2)
    return bool((signals[signal >> np.uint64(6)] >> (signal & np.uint64(63))) & np.uint64(1))


@compiled
def _tabulate(
    signals: Words,
    windows: Floats,
    block: int,
    others: Floats,
    expand: Whole,
    cofactors: Whole,
    first_cofactor: Whole,
    views: Whole,
    first_view: Whole,
    choices: Whole,
    functions: Words,
    parts: Whole,
    weights: Floats,
) -> int:
    """Write the functions of the block that open parts are, and return their number."""
    found = 0
    one = np.uint64(1)
    for row in range(len(signals)):
        for part in range(len(first_cofactor) - 1):
            own = -1
            for view in range(first_view[part], first_view[part + 1]):
                if views[view, 0] == block:
                    own = view
            if own < 0:
                continue
            begin = first_cofactor[part]
            size = first_cofactor[part + 1] - begin
            seen = np.zeros(size, np.bool_)
            for choice in range(size):
                if seen[choice]:
                    continue
                # All choices that agree with this one outside of the block.
                small, weight = np.uint64(0), windows[row]
                for view in range(first_view[part], first_view[part + 1]):
                    if view != own:
                        reading = views[view, 1] + choices[views[view, 2] + choice]
                        weight *= others[views[view, 0], reading]
                for other in range(choice, size):
                    same = True
                    for view in range(first_view[part], first_view[part + 1]):
                        place = views[view, 2]
                        if view != own and choices[place + other] != choices[place + choice]:
                            same = False
                    if same:
                        seen[other] = True
                        if holds(cofactors[begin + other], signals[row]):
                            small |= one << np.uint64(choices[views[own, 2] + other])
                function, full = np.uint64(0), True
                for value in range(expand.shape[1]):
                    bit = (small >> np.uint64(expand[own, value])) & one
                    function |= bit << np.uint64(value)
                    full &= bit == one
                if function != 0 and not full:
                    functions[found] = function
                    parts[found] = part
                    weights[found] = weight
                    found += 1
    return found


@lean
def part_probability(
    part: int,
    signals: Words,
    codes: NDArray[np.int32],
    chances: Floats,
    cofactors: Whole,
    first_cofactor: Whole,
    views: Whole,
    first_view: Whole,
    choices: Whole,
) -> float:
    """Return the probability that a part is true, given a row of `chances` for each block."""
    begin, end = first_cofactor[part], first_cofactor[part + 1]
    likely, yes, no = 0.0, False, False
    for place in range(begin, end):
        if not holds(cofactors[place], signals):
            no = True
            continue
        yes = True
        chance = 1.0
        for view in range(first_view[part], first_view[part + 1]):
            # Codes of books are negative, from -2 downwards; -1 is no symbol.
            code = -2 - codes[views[view, 0]]
            if code >= 0:
                chance *= chances[code, views[view, 1] + choices[views[view, 2] + place - begin]]
        likely += chance
    if not no:
        return 1.0
    return likely if yes else 0.0
