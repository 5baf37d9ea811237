"""The channels of a component: each context's open parts in blocks, one channel per block."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
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
_REMEMBERED = 1 << 12
"""How many groups of classes are cached."""
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


class _PartFacts(NamedTuple):
    """What is known of a component's parts, one after the other."""

    cofactors: NDArray[np.int64]
    """The cofactors of all parts in one row: 0 is no, 1 yes, others are signals plus 2."""
    first: NDArray[np.int64]
    """Where each part's cofactors begin."""
    kinds: NDArray[np.int64]
    """The number of each part's variables among `variables`."""
    variables: tuple[tuple[int, ...], ...]
    """The variables that parts have, without repetition."""
    used: list[int]
    """The variables of each part as bits."""
    touching: list[int]
    """The private patterns that affect each part, as bits."""


@dataclass(frozen=True)
class ComponentChannels:
    """Designs the channels of one component's contexts."""

    component: Component
    prior: Prior
    stakes: NDArray[np.float64]
    """`[part]`: the reward of a true yes, and the penalty of a false one."""
    _choices_of: dict[int, tuple[tuple[int, ...], NDArray[np.int64]]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    _reduced: dict[
        Hashable, tuple[Bits, tuple[int, ...], NDArray[np.float64], NDArray[np.float64]]
    ] = field(default_factory=dict, init=False, repr=False, compare=False)
    _choices: dict[Hashable, tuple[ChannelProblem, NDArray[np.int64]]] = field(
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
        values = known[self._parts.cofactors]
        decided = np.logical_and.reduceat(values, self._parts.first)
        opened = np.logical_or.reduceat(values, self._parts.first) & ~decided
        blocks = []
        for linked in self._link(np.flatnonzero(opened).tolist()):
            block = self._block(linked, values, signals)
            if block is None:
                return None
            blocks.append(block)
        return ContextOutline(decided, tuple(blocks))

    @cached_property
    def _parts(self) -> _PartFacts:
        parts, changes = self.component.parts, self.component.changes
        variables = list(dict.fromkeys(part.variables for part in parts))
        kinds = {own: number for number, own in enumerate(variables)}
        used = {own: sum(1 << variable for variable in own) for own in variables}
        touching = {
            own: sum(1 << n for n, changed in enumerate(changes) if not changed.isdisjoint(own))
            for own in variables
        }
        return _PartFacts(
            np.array([number for part in parts for number in part.cofactors], np.int64),
            np.cumsum([0, *(len(part.cofactors) for part in parts[:-1])]),
            np.array([kinds[part.variables] for part in parts], np.int64),
            tuple(variables),
            [used[part.variables] for part in parts],
            [touching[part.variables] for part in parts],
        )

    def _link(self, opened: list[int]) -> list[list[int]]:
        """Group the open parts so that no private pattern affects two groups."""
        by_patterns: dict[int, list[int]] = {}
        for part in opened:
            by_patterns.setdefault(self._parts.touching[part], []).append(part)
        groups: list[tuple[int, list[int]]] = []
        for patterns, members in by_patterns.items():
            apart = []
            for group in groups:
                if group[0] & patterns:
                    patterns |= group[0]
                    members = members + group[1]
                else:
                    apart.append(group)
            groups = [*apart, (patterns, members)]
        return sorted(sorted(members) for _, members in groups)

    def _block(self, parts: list[int], values: Bits, signals: Bits) -> ChannelBlock | None:
        """Return the block of these parts, or None if it has too many classes.

        `values` are the values of all parts' cofactors.
        """
        bits = 0
        for part in parts:
            bits |= self._parts.used[part]
        if bits.bit_count() > MOST_VARIABLES:
            return None
        used, choices = self._find_choices(bits)
        first, kinds = self._parts.first[parts], self._parts.kinds[parts]
        answers = values[first + choices[:, kinds]]
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
        return ChannelBlock(tuple(parts), numbers, used, place, choice)

    def _find_choices(self, bits: int) -> tuple[tuple[int, ...], NDArray[np.int64]]:
        """Return the variables of these bits, and `[choice of all][kind of part]: choice of own`.

        Choices for parts with other variables are not defined.
        """
        if bits not in self._choices_of:
            used = tuple(n for n in range(bits.bit_length()) if bits >> n & 1)
            place = {variable: n for n, variable in enumerate(used)}
            every = np.arange(1 << len(used))
            found = np.zeros((len(every), len(self._parts.variables)), np.int64)
            for kind, variables in enumerate(self._parts.variables):
                if place.keys() >= set(variables):
                    for n, variable in enumerate(variables):
                        found[:, kind] |= (every >> place[variable] & 1) << n
            self._choices_of[bits] = used, found
        return self._choices_of[bits]

    def _classes(
        self, used: tuple[int, ...], answers: Bits
    ) -> tuple[tuple[Neighbours, ...], NDArray[np.int64]]:
        """Return the neighbours among classes of choices of variables, and the class of each."""
        place = {variable: n for n, variable in enumerate(used)}
        changes = {
            (sum(1 << place[variable] for variable in changed if variable in place), one.epsilon)
            for one, changed in zip(self.component.patterns, self.component.changes, strict=True)
        }
        return _find_classes(tuple(sorted(changes)), np.packbits(answers).tobytes(), answers.shape)


@lru_cache(_REMEMBERED)
def _find_classes(
    changes: tuple[tuple[int, Fraction], ...], packed: bytes, shape: tuple[int, int]
) -> tuple[tuple[Neighbours, ...], NDArray[np.int64]]:
    """Return the neighbours among classes of choices, and the class of each choice.

    `changes` are the variables that a private pattern changes, as bits, and its epsilon. Many
    components have the same answers, so that results are cached.
    """
    bits = np.unpackbits(np.frombuffer(packed, np.uint8), count=shape[0] * shape[1])
    answers = bits.astype(np.bool_).reshape(shape)
    neighbours = _cliques(changes, np.arange(len(answers)))
    place = find_equivalent(answers, neighbours, MOST_CLASSES)
    place.flags.writeable = False
    return map_groups(neighbours, place), place


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
    changes: Sequence[tuple[int, Fraction]], choices: NDArray[np.int64]
) -> tuple[Neighbours, ...]:
    """Return for each private pattern the groups of choices that differ only by its events."""
    found: dict[tuple[tuple[int, ...], Fraction], None] = {}
    for inside, epsilon in changes:
        if inside:
            together = np.argsort(choices & ~inside, kind="stable")
            for group in choices[together].reshape(-1, 1 << inside.bit_count()).tolist():
                found[tuple(group), epsilon] = None
    return tuple(Neighbours(rows, epsilon) for rows, epsilon in found)
