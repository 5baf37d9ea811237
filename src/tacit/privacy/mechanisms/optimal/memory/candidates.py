"""Channels to choose from in a window, each audited for the same neighbours.

Which of them is used depends on the belief about the subject. A channel that is best for one
window alone may say nothing where the answer is nearly certain. With memory every symbol also
helps in later windows. So candidates are designed to lower the squared error of the queries'
probabilities, whatever they are: that is the gain of answering right at every threshold together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tacit.errors import PlanError
from tacit.privacy.channels import Channel
from tacit.privacy.mechanisms.optimal.blocks import ChannelBlock, ComponentChannels, Context
from tacit.privacy.mechanisms.optimal.channel_books import read_table, write_table
from tacit.privacy.prior import Bits
from tacit.privacy.staircase import ChannelProblem, design

Floats = NDArray[np.float64]

_THRESHOLDS: Final = (0.02, 0.08, 0.2, 0.35, 0.5, 0.65, 0.8, 0.92)
"""The thresholds at which answers are judged."""
_MOST_PRIORS: Final = 3
"""The largest number of priors besides the default that a block has channels for."""
_WORTH: Final = 0.005
"""By which share one more channel of a block must raise the mean gain."""
MOST_QUERIES: Final = 12
"""The largest number of queries of a block that channels are judged by: those that count most."""


@dataclass(frozen=True, slots=True, eq=False)
class BlockQueries:
    """The queries of a block that channels are judged by."""

    answers: Bits
    """`[class][query]`"""
    weights: Floats

    @classmethod
    def of(cls, problem: ChannelProblem) -> BlockQueries:
        """Take the queries that count most."""
        weights = problem.reward + problem.penalty
        order = np.argsort(-weights, kind="stable")[:MOST_QUERIES]
        chosen = weights[order]
        total = weights.sum()
        return cls(problem.answers[:, order], chosen / total if total > 0 else chosen)


def design_candidate(problem: ChannelProblem, prior: Floats) -> Channel:
    """Design the channel that lowers the squared error of the queries most, for a prior."""
    queries = BlockQueries.of(problem)
    thresholds = np.array(_THRESHOLDS)
    weights = np.where(queries.weights > 0, queries.weights, 1e-6)
    return design(
        ChannelProblem(
            np.tile(queries.answers, len(thresholds)),
            prior,
            problem.neighbours,
            np.outer(1 - thresholds, weights).ravel(),
            np.outer(thresholds, weights).ravel(),
        )
    ).channel


@dataclass(frozen=True, eq=False)
class CandidateBook:
    """For the common contexts of a component, the channels of each block."""

    contexts: Mapping[bytes, tuple[tuple[Channel, ...], ...]] = field(default_factory=dict)
    """By packed signals: for each block of the context, its channels."""

    def find(self, key: bytes, context: Context) -> list[tuple[Channel, ...]]:
        """Return the channels of each block; by default only that of the plan."""
        known = self.contexts.get(key)
        if known is None:
            return [(made.channel,) for _, made in context.blocks]
        return list(known)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON; each table is written once."""
        numbers: dict[bytes, int] = {}
        tables: list[list[list[str]]] = []
        contexts = []
        for key, blocks in self.contexts.items():
            listed = []
            for channels in blocks:
                own = []
                for channel in channels:
                    content = _describe(channel)
                    if content not in numbers:
                        numbers[content] = len(tables)
                        tables.append(write_table(channel))
                    own.append(numbers[content])
                listed.append(own)
            contexts.append({"signals": key.hex(), "blocks": listed})
        return {"tables": tables, "contexts": contexts}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any], channels: ComponentChannels) -> CandidateBook:
        """Read what `to_dict` wrote, and audit every table for the specification's neighbours."""
        width = len(channels.component.signals)
        tables = [read_table(table) for table in plain["tables"]]
        audited: dict[tuple[int, Any], Channel] = {}
        found = {}
        for context in plain["contexts"]:
            key = bytes.fromhex(context["signals"])
            signals = np.unpackbits(np.frombuffer(key, np.uint8), count=width).astype(np.bool_)
            outline = channels.outline(signals)
            fitting = (
                outline is not None
                and len(outline.blocks) == len(context["blocks"])
                and len(key) == -(-width // 8)
                and all(context["blocks"])  # a block without channels would use those of another
            )
            if outline is None or not fitting:
                raise PlanError("the plan's memory does not fit the specification; make a new plan")
            blocks = []
            for block, numbers in zip(outline.blocks, context["blocks"], strict=True):
                made = []
                for number in numbers:
                    place = int(number), block.choice.neighbours
                    if place not in audited:
                        audited[place] = Channel(tables[place[0]], place[1])
                    if len(audited[place].table) != len(block.choice.answers):
                        raise PlanError(
                            "the plan's memory does not fit the specification; make a new plan"
                        )
                    made.append(audited[place])
                blocks.append(tuple(made))
            found[key] = tuple(blocks)
        return cls(found)


def _describe(channel: Channel) -> bytes:
    """Return a table as bytes, to compare it."""
    return repr(channel.table.shape).encode() + channel.table.tobytes()


def choose_priors(default: Floats, beliefs: Floats) -> list[Floats]:
    """Return representative priors: the default, and the means of beliefs by likeliest class.

    `beliefs[window][class]` are those of windows of history before their symbols.
    """
    found = [default]
    if not len(beliefs) or beliefs.shape[1] < 3:
        return found
    likeliest = beliefs.argmax(axis=1)
    classes, counts = np.unique(likeliest, return_counts=True)
    for number in classes[np.argsort(-counts, kind="stable")][:_MOST_PRIORS].tolist():
        mean = beliefs[likeliest == number].mean(axis=0)
        mean = 0.999 * mean / mean.sum() + 0.001 / len(mean)
        found.append(mean)
    return found


def design_candidates(block: ChannelBlock, beliefs: Floats) -> tuple[Channel, ...]:
    """Design the channels of a block for representative priors.

    Those that hardly ever gain more than others, with beliefs of history, are left out.
    """
    made: dict[bytes, Channel] = {}
    for prior in choose_priors(block.choice.prior, beliefs):
        channel = design_candidate(block.choice, prior)
        made.setdefault(_describe(channel), channel)
    found = tuple(made.values())
    if len(found) == 1:
        return found
    gains = _find_gains(BlockQueries.of(block.choice), found, beliefs)
    kept = [int(gains.mean(axis=0).argmax())]
    while len(kept) < len(found):
        best = gains[:, kept].max(axis=1)
        better = np.maximum(gains, best[:, np.newaxis]).mean(axis=0)
        number = int(better.argmax())
        if better[number] <= best.mean() * (1 + _WORTH):
            break
        kept.append(number)
    return tuple(found[number] for number in kept)


def _find_gains(queries: BlockQueries, channels: tuple[Channel, ...], beliefs: Floats) -> Floats:
    """Return `[belief][channel]`: by how much the queries' squared error falls with a symbol."""
    answers = queries.answers * np.sqrt(queries.weights)
    known = ((beliefs @ answers) ** 2).sum(axis=1)
    gains = np.empty((len(beliefs), len(channels)))
    for number, channel in enumerate(channels):
        likely = channel.table / 2.0**channel.bits
        chances = beliefs @ likely
        both = (beliefs[:, np.newaxis] * answers.T) @ likely
        squares = (both**2).sum(axis=1) / np.maximum(chances, 1e-30)
        gains[:, number] = squares.sum(axis=1) - known
    return gains
