"""The channels of a component: each context's open parts in blocks, one channel per block."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tacit.privacy.channel_audit import (
    Neighbours,
    Ratio,
    largest_of,
    multiply_ratios,
    row_ratio,
)
from tacit.privacy.channels import Channel
from tacit.privacy.components import Component
from tacit.privacy.distances import find_firsts, map_groups
from tacit.privacy.prior import Bits, Prior
from tacit.privacy.staircase import ChannelProblem, Design, design, find_equivalent

MOST_CLASSES = 16
"""A context with more classes than this has no channels of its own."""
MOST_VARIABLES = 12
"""The largest number of variables of which all choices are listed."""
_TIE = 1e-9
"""Likelihoods that differ by less than this are considered equal."""


def value_ratio(
    channel: Channel,
    variables: Sequence[int],
    changed: frozenset[int],
    place: NDArray[np.int64] | None = None,
) -> Ratio:
    """Return the largest ratio between rows for values that differ in the changed variables.

    `place` is the row of each value of the variables, by default the value itself.
    """
    inside = sum(1 << n for n, variable in enumerate(variables) if variable in changed)
    if not inside:
        return Fraction(1)
    values = np.arange(1 << len(variables))
    rows = values if place is None else place
    together = np.argsort(values & ~inside, kind="stable")
    groups = np.sort(rows[together].reshape(-1, 1 << inside.bit_count()), axis=1)
    return largest_of(
        row_ratio(channel.table, group.tolist()) for group in np.unique(groups, axis=0)
    )


@dataclass(frozen=True, slots=True)
class ChannelBlock:
    """Open parts of a context that share one draw from one channel."""

    parts: tuple[int, ...]
    """The numbers of the parts in the component."""
    columns: tuple[int, ...]
    """For each part its query in the problem; parts with equal answers share one."""
    variables: tuple[int, ...]
    """The variables that the parts depend on."""
    place: NDArray[np.int64]
    """The class of each choice of the variables' values; bit i is variable i's value."""
    choice: ChannelProblem

    def find_ratio(self, channel: Channel, changed: frozenset[int]) -> Ratio:
        """Return the largest ratio of a channel between values that differ in these variables."""
        return value_ratio(channel, self.variables, changed, self.place)


class ContextOutline(NamedTuple):
    """A context before its channels are designed."""

    decided: Bits
    """For each part, whether it is true whatever private events do."""
    blocks: tuple[ChannelBlock, ...]


@dataclass(frozen=True, slots=True)
class Context:
    """The decided parts and the channels for windows with the same public signals."""

    decided: Bits
    blocks: tuple[tuple[ChannelBlock, Design], ...]

    def find_ratio(self, changed: frozenset[int]) -> Ratio:
        """Return the largest ratio of all draws, which are independent, if these variables change.

        It is 1 where nothing is open, or where the channels reveal nothing.
        """
        return multiply_ratios(
            block.find_ratio(design.channel, changed) for block, design in self.blocks
        )


@dataclass(frozen=True)
class ComponentChannels:
    """Designs the channels of one component's contexts."""

    component: Component
    prior: Prior
    stakes: NDArray[np.float64]
    """`[part]`: the reward of a true yes, and the penalty of a false one."""
    _reduced: dict[
        Hashable, tuple[Bits, tuple[int, ...], NDArray[np.float64], NDArray[np.float64]]
    ] = field(default_factory=dict, init=False, repr=False, compare=False)
    _choices: dict[Hashable, tuple[ChannelProblem, NDArray[np.int64]]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    _merged: dict[Hashable, tuple[tuple[Neighbours, ...], NDArray[np.int64]]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    _designs: dict[int, tuple[ChannelProblem, Design]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """Caches: many contexts have the same channel problem."""

    def context(self, signals: Bits) -> Context | None:
        """Return the channels for a context, audited; None if it has too many classes."""
        outline = self.outline(signals)
        return None if outline is None else self.design_context(outline)

    def design_context(self, outline: ContextOutline) -> Context:
        """Design the channels for an outline; they are audited."""
        blocks = tuple((block, self._design(block.choice)) for block in outline.blocks)
        return Context(outline.decided, blocks)

    def _design(self, choice: ChannelProblem) -> Design:
        if id(choice) not in self._designs:
            self._designs[id(choice)] = choice, design(choice)
        return self._designs[id(choice)][1]

    def outline(self, signals: Bits) -> ContextOutline | None:
        """Return the decided parts of a context, and the blocks of open parts.

        None if a block would have too many classes: then the context is served by a book.
        """
        known = np.concatenate([[False, True], signals])
        decided = np.zeros(len(self.component.parts), np.bool_)
        opened = np.zeros(len(decided), np.bool_)
        tables = {}
        for variables, (parts, cofactors) in self._shapes.items():
            table = known[cofactors]
            decided[parts] = table.all(axis=1)
            opened[parts] = table.any(axis=1) & ~decided[parts]
            tables[variables] = table
        blocks = []
        for linked in self._link(np.flatnonzero(opened)):
            block = self._block(linked, tables, signals)
            if block is None:
                return None
            blocks.append(block)
        return ContextOutline(decided, tuple(blocks))

    @cached_property
    def _shapes(self) -> dict[tuple[int, ...], tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Parts with the same variables: their numbers, and their cofactors `[part][choice]`."""
        found: dict[tuple[int, ...], list[int]] = {}
        for number, part in enumerate(self.component.parts):
            found.setdefault(part.variables, []).append(number)
        return {
            variables: (
                np.array(parts),
                np.array([self.component.parts[part].cofactors for part in parts]),
            )
            for variables, parts in found.items()
        }

    @cached_property
    def _places(self) -> list[tuple[tuple[int, ...], int, frozenset[int]]]:
        """For each part its variables, its place among parts with these, and its patterns."""
        places: dict[int, tuple[tuple[int, ...], int, frozenset[int]]] = {}
        for variables, (parts, _) in self._shapes.items():
            touching = frozenset(
                number
                for number, changed in enumerate(self.component.changes)
                if not changed.isdisjoint(variables)
            )
            places |= {part: (variables, n, touching) for n, part in enumerate(parts.tolist())}
        return [places[part] for part in range(len(places))]

    def _link(self, parts: NDArray[np.int64]) -> list[list[int]]:
        """Group the parts so that no private pattern affects two groups."""
        groups: list[tuple[frozenset[int], list[int]]] = []
        by_patterns: dict[frozenset[int], list[int]] = {}
        for part in parts.tolist():
            by_patterns.setdefault(self._places[part][2], []).append(part)
        for patterns, own in by_patterns.items():
            joined = [group for group in groups if group[0] & patterns]
            groups = [group for group in groups if not group[0] & patterns]
            members = own + [part for group in joined for part in group[1]]
            groups.append((patterns.union(*(group[0] for group in joined)), sorted(members)))
        return sorted(group[1] for group in groups)

    def _block(
        self, parts: list[int], tables: Mapping[tuple[int, ...], Bits], signals: Bits
    ) -> ChannelBlock | None:
        """Return the block of these parts, or None if it has too many classes."""
        used = sorted({v for part in parts for v in self._places[part][0]})
        if len(used) > MOST_VARIABLES:
            return None
        answers = np.empty((1 << len(used), len(parts)), np.bool_)
        own: dict[tuple[int, ...], tuple[list[int], list[int]]] = {}
        for column, part in enumerate(parts):
            variables, number, _ = self._places[part]
            where = own.setdefault(variables, ([], []))
            where[0].append(column)
            where[1].append(number)
        for variables, (theirs, places) in own.items():
            index = _find_choices(variables, tuple(used))
            answers[:, theirs] = tables[variables][places][:, index].T
        same = (*parts, answers.tobytes())
        if same not in self._reduced:
            # Parts with the same answers everywhere become one query, with the sum of their stakes.
            different, columns = _distinct_columns(answers)
            if len(different) > MOST_CLASSES < len(_distinct_columns(different.T)[0].T):
                return None
            stakes = combine_stakes(self.stakes[parts], columns)
            self._reduced[same] = different, tuple(columns.tolist()), *stakes
        different, numbers, reward, penalty = self._reduced[same]
        prior = self.prior.choice_probabilities(signals, used)
        key = (*used, different.tobytes(), reward.tobytes(), penalty.tobytes(), prior.tobytes())
        if key not in self._choices:
            neighbours, place = self._classes(used, different)
            problem = ChannelProblem(
                different[find_firsts(place)],
                np.bincount(place, prior).astype(np.float64),
                neighbours,
                reward,
                penalty,
            )
            self._choices[key] = problem, place
        choice, place = self._choices[key]
        return ChannelBlock(tuple(parts), numbers, tuple(used), place, choice)

    def _classes(
        self, used: list[int], answers: Bits
    ) -> tuple[tuple[Neighbours, ...], NDArray[np.int64]]:
        """Return the neighbours among classes of choices of variables, and the class of each."""
        key = (*used, answers.tobytes())
        if key not in self._merged:
            neighbours = _cliques(self.component, used, np.arange(len(answers)))
            place = find_equivalent(answers, neighbours, MOST_CLASSES)
            self._merged[key] = map_groups(neighbours, place), place
        return self._merged[key]


@lru_cache(maxsize=4096)
def _find_choices(some: tuple[int, ...], variables: tuple[int, ...]) -> NDArray[np.int64]:
    """Return the choice of some variables' values for each choice of the variables' values."""
    choices = np.arange(1 << len(variables))
    found = np.zeros_like(choices)
    for place, variable in enumerate(some):
        found |= ((choices >> variables.index(variable)) & 1) << place
    return found


def _distinct_columns(bits: Bits) -> tuple[Bits, NDArray[np.int64]]:
    """Return the distinct columns of a matrix, and the number of each column among them."""
    keys = [column.tobytes() for column in np.packbits(bits, axis=0).T]
    numbers = {key: number for number, key in enumerate(sorted(set(keys)))}
    columns = np.array([numbers[key] for key in keys], np.int64)
    firsts = np.empty(len(numbers), np.int64)
    firsts[columns[::-1]] = np.arange(len(keys))[::-1]
    return bits[:, firsts], columns


def combine_stakes(
    stakes: NDArray[np.float64], columns: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Add the stakes of parts that share a column, and scale them to a sum of 1.

    Only proportions matter to a channel, and two digits of them are enough.
    """
    sums = np.stack([np.bincount(columns, amounts) for amounts in stakes.T])
    total = sums.sum()
    rounded = np.round(sums / total, 2 + int(np.log10(sums.shape[1]))) if total > 0 else sums
    return rounded[0], rounded[1]


def read_literally(columns: NDArray[np.float64], answers: Bits) -> Bits:
    """Return `[symbol][part]`: the answer that has most of the symbol's likelihood.

    `columns[symbol][class]` are likelihoods up to a factor for each symbol. A tie is a no, in
    floats as well as in the rounded table.
    """
    claimed = columns @ answers
    half = columns.sum(axis=1)[:, np.newaxis] / 2
    return np.asarray(claimed > half * (1 + _TIE))


def _cliques(
    component: Component, used: list[int], choices: NDArray[np.int64]
) -> tuple[Neighbours, ...]:
    """Return for each private pattern the groups of choices that differ only by its events."""
    found: dict[tuple[tuple[int, ...], Fraction], None] = {}
    for pattern, changed in zip(component.patterns, component.changes, strict=True):
        inside = sum(1 << place for place, variable in enumerate(used) if variable in changed)
        if not inside:
            continue
        outside = choices & ~inside
        for fixed in np.unique(outside):
            found[tuple(choices[outside == fixed].tolist()), pattern.epsilon] = None
    return tuple(Neighbours(rows, epsilon) for rows, epsilon in found)
