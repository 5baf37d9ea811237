"""The channels of a component: each context's open parts in blocks, one channel per block."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from tacit.privacy.channel_audit import Neighbours
from tacit.privacy.components import Component
from tacit.privacy.prior import Bits, Prior
from tacit.privacy.staircase import ChannelProblem, Design, design, merge, solve

MOST_CLASSES = 16
"""With more classes than this, queries are split into groups."""
GROUPED_VARIABLES = 3
"""The largest number of variables of a group, unless a single part has more."""
MOST_VARIABLES = 12
"""The largest number of variables of which all choices are listed."""
_TIE = 1e-9
"""Likelihoods that differ by less than this are considered equal."""


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


@dataclass(frozen=True)
class ComponentChannels:
    """Designs the channels of one component's contexts, each on first use."""

    component: Component
    prior: Prior
    stakes: NDArray[np.float64]
    """`[part]`: the reward of a true yes, and the penalty of a false one."""
    _choices: dict[Hashable, tuple[ChannelProblem, NDArray[np.int64]]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    _designs: dict[int, tuple[ChannelProblem, Design]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """Caches: many contexts have the same channel problem."""

    def context(self, signals: Bits) -> Context:
        """Return the channels for a context, audited."""
        return self.design_context(self.outline(signals))

    def design_context(self, outline: ContextOutline) -> Context:
        """Design the channels for an outline; they are audited."""
        blocks = tuple((block, self._design(block.choice)) for block in outline.blocks)
        return Context(outline.decided, blocks)

    def _design(self, choice: ChannelProblem) -> Design:
        if id(choice) not in self._designs:
            self._designs[id(choice)] = choice, design(choice)
        return self._designs[id(choice)][1]

    def outline(self, signals: Bits) -> ContextOutline:
        """Return the decided parts of a context, and the blocks of open parts."""
        tables = self.component.tables(signals)
        open_parts = [n for n, table in enumerate(tables) if not (table == table[0]).all()]
        decided = np.array([bool(table.all()) for table in tables], np.bool_)
        blocks: list[ChannelBlock] = []
        for parts in _linked(self.component, open_parts):
            blocks += self._blocks(parts, tables, signals)
        return ContextOutline(decided, tuple(blocks))

    def _blocks(
        self, parts: list[int], tables: Sequence[Bits], signals: Bits
    ) -> list[ChannelBlock]:
        """Return one block for all of these parts, or several if there are too many classes."""
        whole = self._block(parts, tables, signals, MOST_CLASSES)
        return [whole] if whole else _best_shares(self._groups(parts, tables, signals))

    def _groups(
        self, parts: list[int], tables: Sequence[Bits], signals: Bits
    ) -> list[ChannelBlock]:
        """Split parts into groups of few variables, and so of few classes.

        A group starts with the part that has most variables. Then variables are added while the
        group is small, first those that add most parts.
        """
        pending = {part: frozenset(self.component.parts[part].variables) for part in parts}
        groups = []
        while pending:
            first = max(pending, key=lambda part: (len(pending[part]), -part))
            used = set(pending[first])
            while len(used) < GROUPED_VARIABLES:
                wider = [own - used for own in pending.values() if len(own | used) == len(used) + 1]
                if not wider:
                    break
                more = Counter(variable for rest in wider for variable in rest)
                used.add(max(sorted(more), key=lambda variable: more[variable]))
            chosen = sorted(part for part, own in pending.items() if own <= used)
            if len(used) > GROUPED_VARIABLES:
                chosen = [first]
            groups.append(self._block(chosen, tables, signals, None))
            pending = {part: own for part, own in pending.items() if part not in chosen}
        return groups

    @overload
    def _block(
        self, parts: list[int], tables: Sequence[Bits], signals: Bits, most: None
    ) -> ChannelBlock: ...

    @overload
    def _block(
        self, parts: list[int], tables: Sequence[Bits], signals: Bits, most: int
    ) -> ChannelBlock | None: ...

    def _block(
        self, parts: list[int], tables: Sequence[Bits], signals: Bits, most: int | None
    ) -> ChannelBlock | None:
        """Return the block of these parts, or None if it has more than `most` classes."""
        used = sorted({v for part in parts for v in self.component.parts[part].variables})
        if most is not None and len(used) > MOST_VARIABLES:
            return None
        choices = np.arange(1 << len(used))
        answers = np.empty((len(choices), len(parts)), np.bool_)
        for column, part in enumerate(parts):
            own = self.component.parts[part].variables
            index = sum(((choices >> used.index(v)) & 1) << n for n, v in enumerate(own))
            answers[:, column] = tables[part][index]
        if most is not None and len(np.unique(answers, axis=0)) > most:
            return None
        # Parts with the same answers everywhere become one query, with the sum of their stakes.
        different, columns = np.unique(answers, axis=1, return_inverse=True)
        reward, penalty = combine_stakes(self.stakes[parts], columns.ravel())
        prior = self.prior.choice_probabilities(signals, used)
        key = (*used, different.tobytes(), reward.tobytes(), penalty.tobytes(), prior.tobytes())
        if key not in self._choices:
            neighbours = _cliques(self.component, used, choices)
            whole = ChannelProblem(different, prior, neighbours, reward, penalty)
            self._choices[key] = merge(whole, MOST_CLASSES)
        choice, place = self._choices[key]
        return ChannelBlock(
            tuple(parts), tuple(columns.ravel().tolist()), tuple(used), place, choice
        )


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


def _linked(component: Component, parts: Sequence[int]) -> list[list[int]]:
    """Group the parts so that no private pattern affects two groups."""
    groups: list[tuple[set[int], list[int]]] = []
    for part in parts:
        own = set(component.parts[part].variables)
        touching = {n for n, changed in enumerate(component.changes) if not changed.isdisjoint(own)}
        joined = [group for group in groups if group[0] & touching]
        groups = [group for group in groups if not group[0] & touching]
        patterns = touching.union(*(group[0] for group in joined))
        groups.append((patterns, sorted([part, *(p for group in joined for p in group[1])])))
    return sorted(group[1] for group in groups)


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


def _best_shares(groups: list[ChannelBlock]) -> list[ChannelBlock]:
    """Split epsilon equally among the best few groups, by expected utility; others get none.

    The shares add up to 1, so that for every private pattern the epsilons add up to its own.
    """
    gains = [_utility([group]) - _utility([_scaled(group, 0)]) for group in groups]
    order = sorted(range(len(groups)), key=lambda n: -gains[n])
    best: list[ChannelBlock] = []
    worth = -np.inf
    doubled = {min(1 << n, len(groups)) for n in range(len(groups).bit_length() + 1)}
    for few in sorted(doubled):
        chosen = set(order[:few])
        shared = [_scaled(group, Fraction(n in chosen, few)) for n, group in enumerate(groups)]
        utility = _utility(shared)
        if utility > worth:
            best, worth = shared, utility
    return best


def _scaled(block: ChannelBlock, share: Fraction | int) -> ChannelBlock:
    """Return the block with a share of its epsilon."""
    neighbours = tuple(
        Neighbours(group.rows, group.epsilon * share) for group in block.choice.neighbours
    )
    return replace(block, choice=replace(block.choice, neighbours=neighbours))


def _utility(blocks: Sequence[ChannelBlock]) -> float:
    return sum(solve(block.choice).utility for block in blocks)
