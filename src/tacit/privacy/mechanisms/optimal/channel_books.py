"""Books of channels: for contexts that have no channels of their own.

A context of its own is designed for exactly the parts that are open in it. Where contexts are
many, that takes too long, and most of them never occur again. A book is prepared when a plan is
made: channels over the values of blocks of variables, whatever parts are open. Each group of
contexts (a leaf of the prior's tree) uses the channel of the book that is best for it, and decodes
symbols with its own prior.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tacit.errors import PlanError
from tacit.patterns.booleans import pack_rows
from tacit.privacy.channel_audit import (
    Neighbours,
    Ratio,
    largest_of,
    multiply_ratios,
)
from tacit.privacy.channels import Channel
from tacit.privacy.components import Component
from tacit.privacy.context_counts import ContextCounts
from tacit.privacy.mechanisms.optimal.blocks import value_ratio
from tacit.privacy.mechanisms.optimal.part_tables import BlockFunctions, Floats, PartTables
from tacit.privacy.prior import Prior
from tacit.privacy.staircase import ChannelProblem, design, merge

LARGE_BLOCK: Final = 6
"""The largest number of variables of a block."""
SMALL_BLOCK: Final = 4
"""The same if the component has more variables than fit into one block."""
_SAMPLED: Final = 64
"""The number of contexts of a group that represent it."""
_GAIN: Final = 1e-3
"""A channel is added to a book if it gains a group more than this share of its utility."""


@dataclass(frozen=True, slots=True)
class VariableBlock:
    """Variables of a component that share a draw, and which of their values are neighbours."""

    variables: tuple[int, ...]
    neighbours: tuple[Neighbours, ...]


@dataclass(frozen=True, slots=True, eq=False)
class ChannelBook:
    """Audited channels for each block of variables, and the choice of each group of contexts.

    Guarantee: for every private pattern, its epsilon per window.
    Why: each block's channel is audited for the neighbours of the block. The epsilons of the
    blocks that a pattern may change add up to at most the pattern's.
    """

    blocks: tuple[VariableBlock, ...]
    channels: tuple[tuple[Channel, ...], ...]
    """`[block][number]`"""
    chosen: NDArray[np.int64]
    """`[group][block]`: the number of the channel."""

    def widest_ratio(self, changed: frozenset[int]) -> Ratio:
        """Return the largest ratio between values that differ in the changed variables."""
        return multiply_ratios(
            largest_of(value_ratio(channel, block.variables, changed) for channel in own)
            for block, own in zip(self.blocks, self.channels, strict=True)
        )

    def regroup(
        self,
        before: NDArray[np.int64],
        after: NDArray[np.int64],
        windows: Floats,
        groups: int,
    ) -> ChannelBook:
        """Return the book for other groups, given both groups of contexts and their windows.

        A group uses the channel that most of its windows had before.
        """
        chosen = np.zeros((groups, len(self.blocks)), np.int64)
        for block, own in enumerate(self.channels):
            votes = np.zeros((groups, len(own)))
            np.add.at(votes, (after, self.chosen[before, block]), windows)
            chosen[:, block] = votes.argmax(axis=1)
        return replace(self, chosen=chosen)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {
            "channels": [[write_table(channel) for channel in own] for own in self.channels],
            "chosen": self.chosen.tolist(),
        }

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any], component: Component, groups: int) -> ChannelBook:
        """Read what `to_dict` wrote; audit the channels for the component's blocks."""
        blocks = divide_variables(component)
        channels = tuple(
            tuple(Channel(read_table(table), block.neighbours) for table in own)
            for block, own in zip(blocks, plain["channels"], strict=True)
        )
        chosen = np.array(plain["chosen"], np.int64).reshape(groups, len(blocks))
        fitting = all(
            len(channel.table) == 1 << len(block.variables)
            for block, own in zip(blocks, channels, strict=True)
            for channel in own
        )
        numbers = np.array([len(own) for own in channels])
        if not fitting or (chosen < 0).any() or (chosen >= numbers).any():
            raise PlanError("the plan's channels do not fit the specification; make a new plan")
        return cls(blocks, channels, chosen)


def divide_variables(component: Component) -> tuple[VariableBlock, ...]:
    """Put the variables of a component into blocks with few values.

    All variables are one block if they fit. Otherwise variables that a private pattern changes
    together stay together if they fit, and so do, after that, variables that parts of queries
    have in common.
    """
    number = len(component.variables)
    blocks = [[variable] for variable in range(number)]
    if number <= LARGE_BLOCK:
        blocks = [list(range(number))] if number else []
    else:
        for changed in sorted(component.changes, key=len):
            blocks = _join(blocks, changed, LARGE_BLOCK)
        for part in component.parts:
            blocks = _join(blocks, frozenset(part.variables), SMALL_BLOCK)
    return tuple(_add_neighbours(component, tuple(block), blocks) for block in blocks)


def _join(blocks: list[list[int]], variables: frozenset[int], most: int) -> list[list[int]]:
    """Join the blocks that have some variables, if the result has at most so many."""
    touching = [block for block in blocks if not variables.isdisjoint(block)]
    if len(touching) < 2 or sum(map(len, touching)) > most:
        return blocks
    joined = sorted(variable for block in touching for variable in block)
    return sorted([joined, *(block for block in blocks if block not in touching)])


def _add_neighbours(
    component: Component, variables: tuple[int, ...], blocks: Sequence[Sequence[int]]
) -> VariableBlock:
    """Return a block; a pattern that changes several blocks has an equal share in each."""
    values = np.arange(1 << len(variables))
    found: dict[tuple[tuple[int, ...], Fraction], None] = {}
    for pattern, changed in zip(component.patterns, component.changes, strict=True):
        inside = sum(1 << place for place, v in enumerate(variables) if v in changed)
        if not inside:
            continue
        share = Fraction(1, sum(not changed.isdisjoint(block) for block in blocks))
        outside = values & ~inside
        for fixed in np.unique(outside):
            found[tuple(values[outside == fixed].tolist()), pattern.epsilon * share] = None
    return VariableBlock(variables, tuple(Neighbours(rows, e) for rows, e in found))


def design_book(
    component: Component, prior: Prior, stakes: Floats, history: ContextCounts, groups: int
) -> ChannelBook:
    """Design the channels of a book for history's contexts.

    The first channel is for all contexts together. Then the most common groups get channels of
    their own where these are clearly better, at most `groups` of them.
    """
    blocks = divide_variables(component)
    tables = PartTables(component, [block.variables for block in blocks])
    sampled = _sample_contexts(component, prior, history)
    readings, probabilities = _group_readings(prior, tables)
    channels, chosen = [], np.zeros((prior.groups, len(blocks)), np.int64)
    for number, block in enumerate(blocks):
        problems = _problems(tables, block, number, stakes, sampled, readings, probabilities)
        known = [problem for problem in problems if problem is not None]
        whole = known[-1] if known else _guess_variables(block, probabilities[-1][number])
        own, chosen[:, number] = _choose_channels(whole, problems[:-1], sampled.windows, groups)
        channels.append(own)
    return ChannelBook(blocks, tuple(channels), chosen)


@dataclass(frozen=True, slots=True, eq=False)
class _SampledContexts:
    """Some contexts of each group; the last group stands for all of them."""

    signals: list[NDArray[np.uint64]]
    weights: list[Floats]
    windows: Floats
    """`[group]`"""


def _sample_contexts(
    component: Component, prior: Prior, history: ContextCounts
) -> _SampledContexts:
    width = len(component.signals)
    if len(history.begins):
        signals = history.signals[history.begins]
        windows = np.add.reduceat(history.windows, history.begins)
    else:
        # Without history, any context is as likely as any other.
        signals = np.random.default_rng(0).random((_SAMPLED, width)) < 0.5
        windows = np.ones(_SAMPLED)
    words = pack_rows(signals) if width else np.zeros((len(signals), 1), np.uint64)
    place = prior.group(signals)
    common = np.argsort(-windows, kind="stable")
    rows, weights = [], []
    for group in range(prior.groups):
        own = common[place[common] == group][:_SAMPLED]
        rows.append(words[own])
        weights.append(windows[own] / max(windows[own].sum(), 1e-300))
    totals = np.bincount(place, windows, prior.groups)
    whole = common[:: -(-len(common) // (4 * _SAMPLED))]
    return _SampledContexts(
        [*rows, words[whole]],
        [*weights, windows[whole] / windows[whole].sum()],
        np.append(totals, totals.sum()),
    )


def _group_readings(prior: Prior, tables: PartTables) -> tuple[list[Floats], list[list[Floats]]]:
    """Return for each group, and for all, readings `[block]` and probabilities of values."""
    readings, probabilities = [], []
    shares = np.bincount(
        np.repeat(np.arange(prior.groups), np.diff(prior.bounds)), prior.counts, prior.groups
    )
    shares = shares / shares.sum() if shares.sum() else np.full(prior.groups, 1 / prior.groups)
    found = [
        [prior.choices(group, block) for block in tables.blocks] for group in range(prior.groups)
    ]
    found.append(
        [
            np.sum([share * own[n] for share, own in zip(shares, found, strict=True)], axis=0)
            for n in range(len(tables.blocks))
        ]
    )
    for own in found:
        probabilities.append(own)
        rows = [tables.chances(number, chances) for number, chances in enumerate(own)]
        readings.append(np.array(rows).reshape(len(rows), tables.width))
    return readings, probabilities


def _problems(
    tables: PartTables,
    block: VariableBlock,
    number: int,
    stakes: Floats,
    sampled: _SampledContexts,
    readings: Sequence[Floats],
    probabilities: Sequence[Sequence[Floats]],
) -> list[ChannelProblem | None]:
    """Return the problem of each group and of all together; None if nothing is open."""
    found: list[ChannelProblem | None] = []
    for signals, weights, others, chances in zip(
        sampled.signals, sampled.weights, readings, probabilities, strict=True
    ):
        functions = tables.weigh_functions(signals, weights, stakes, number, others)
        found.append(_problem(functions, chances[number], block))
    return found


def _problem(
    functions: BlockFunctions, prior: Floats, block: VariableBlock
) -> ChannelProblem | None:
    scale = functions.reward.sum() + functions.penalty.sum()
    if not scale > 0:
        return None
    return ChannelProblem(
        functions.answers,
        prior,
        block.neighbours,
        functions.reward / scale,
        functions.penalty / scale,
    )


def _guess_variables(block: VariableBlock, prior: Floats) -> ChannelProblem:
    """Return the problem for a block that nothing depends on in history: guess each variable."""
    size = len(block.variables)
    bits = (np.arange(1 << size)[:, np.newaxis] >> np.arange(size)) & 1
    even = np.full(size, 0.5 / size)
    return ChannelProblem(bits.astype(np.bool_), prior, block.neighbours, even, even)


def _choose_channels(
    whole: ChannelProblem, own: Sequence[ChannelProblem | None], windows: Floats, groups: int
) -> tuple[tuple[Channel, ...], NDArray[np.int64]]:
    """Design channels for all groups and for the common ones; choose the best for each group."""
    channels = [_design(whole)]
    common = np.argsort(-windows[:-1], kind="stable")[:groups]
    for group in common.tolist():
        problem = own[group]
        if problem is None or len(own) == 1:
            continue
        better = _design(problem)
        best = max(_utility(channel, problem) for channel in channels)
        if _utility(better, problem) > best * (1 + _GAIN):
            channels.append(better)
    chosen = [
        0
        if problem is None
        else int(np.argmax([_utility(channel, problem) for channel in channels]))
        for problem in own
    ]
    return tuple(channels), np.array(chosen, np.int64)


def _design(problem: ChannelProblem) -> Channel:
    """Design the channel over all values of a block; equivalent values have the same row."""
    merged, place = merge(problem)
    return Channel(design(merged).channel.table[place], problem.neighbours)


def _utility(channel: Channel, problem: ChannelProblem) -> float:
    likely = channel.table / 2.0**channel.bits
    return float(np.maximum(likely.T @ problem.gains, 0).sum())


def write_table(channel: Channel) -> list[list[str]]:
    """Return a table as text, since JSON readers may round numbers."""
    return [[str(entry) for entry in row] for row in channel.table.tolist()]


def read_table(plain: Sequence[Sequence[str]]) -> list[list[int]]:
    """Read what `write_table` wrote."""
    # Parsing from text excludes floats.
    return [[int(str(entry)) for entry in row] for row in plain]
