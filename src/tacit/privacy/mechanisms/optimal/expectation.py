"""Compute the expected quality of optimal in closed form from history."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tacit.privacy.components import Question
from tacit.privacy.evidence import DecoderCells
from tacit.privacy.mechanisms.optimal.blocks import (
    ChannelBlock,
    ComponentChannels,
    ContextOutline,
    combine_stakes,
    read_literally,
)
from tacit.privacy.mechanisms.optimal.stakes import PartModel, Stakes
from tacit.privacy.policies import Policy
from tacit.privacy.prior import Bits
from tacit.privacy.quality import Confusion
from tacit.privacy.staircase import solve
from tacit.privacy.statistics import Statistics

Floats = NDArray[np.float64]

MOST_CONTEXTS: Final = 1000
"""The number of a policy's contexts that are evaluated; some rare ones represent the others."""
_LEAST_CONTEXTS: Final = 20
_CELLS: Final = 256


@dataclass(frozen=True, slots=True)
class HistoryContext:
    """A context of history: its signals, its outline, and the number of windows it represents."""

    signals: Bits
    outline: ContextOutline
    windows: float


class PartSpread(NamedTuple):
    """The possible outputs for a part: its posterior, its literal answer, and how often."""

    posterior: Floats
    yes: Bits
    """The literal answer."""
    windows: Floats

    @property
    def cells(self) -> DecoderCells:
        """The outputs as cells, with the windows where the part is true and where it is false."""
        true = self.windows * self.posterior
        return DecoderCells(self.posterior, true, self.windows - true)


class OptimalExpectation:
    """The contexts of a policy's history, to be evaluated for any penalty of a false yes."""

    def __init__(self, statistics: Statistics, fine: Policy, caution: float = 0.5) -> None:
        self.statistics = statistics
        self.exposure = statistics.exposure.with_epsilons(fine)
        self._model = PartModel(self.exposure, statistics.priors)
        self.stakes = self._model.stakes(caution)
        most = max(_LEAST_CONTEXTS, MOST_CONTEXTS // max(1, len(self.exposure.components)))
        self._met = [_choose_contexts(channels, most) for channels in self.channels()]
        self._spreads: dict[float, list[PartSpread | None]] = {}

    def channels(self) -> list[ComponentChannels]:
        """Return the channel designer of each component."""
        return [
            ComponentChannels(component, prior, stakes)
            for component, prior, stakes in zip(
                self.exposure.components, self.statistics.priors, self.stakes, strict=True
            )
        ]

    def contexts(self) -> list[list[HistoryContext]]:
        """Return for each component the contexts that were chosen, most common first."""
        return self._met

    @property
    def exact(self) -> float:
        """The number of true windows of queries that depend on nothing private."""
        questions = self.statistics.exposure.questions
        untouched = [n for n, question in enumerate(questions) if not question.parts]
        return float(self.statistics.positives[untouched].sum())

    def spreads(self, caution: float) -> list[PartSpread | None]:
        """Return the possible outputs of each query, for channels with this caution.

        A query that depends on nothing private has None.
        """
        if caution not in self._spreads:
            self._spreads[caution] = self._looked(caution)
        return self._spreads[caution]

    def _looked(self, caution: float) -> list[PartSpread | None]:
        parts = [
            _spreads(len(stakes), met, stakes)
            for met, stakes in zip(self._met, self._model.stakes(caution), strict=True)
        ]
        return [
            combine_spreads([parts[c][p] for c, p in question.parts], question)
            if question.parts
            else None
            for question in self.statistics.exposure.questions
        ]

    def confusion(self, caution: float, threshold: float | None) -> Confusion[Floats]:
        """Return the expected counts of each query; without a threshold, read literally."""
        counts = np.zeros((3, len(self.statistics.positives)))
        for query, spread in enumerate(self.spreads(caution)):
            if spread is None:
                counts[0, query] = self.statistics.positives[query]
                continue
            yes = spread.yes if threshold is None else spread.posterior >= threshold
            true, false = spread.cells.true, spread.cells.false
            counts[:, query] = true[yes].sum(), false[yes].sum(), true[~yes].sum()
        return Confusion(*counts)


def combine_spreads(parts: Sequence[PartSpread], question: Question) -> PartSpread:
    """Combine the parts of a query; contexts of different components count as independent."""
    if len(parts) == 1:
        return parts[0]
    whole = _coarsen(parts[0])
    for part in map(_coarsen, parts[1:]):
        left, right = (
            (whole.posterior, part.posterior)
            if question.every
            else (1 - whole.posterior, 1 - part.posterior)
        )
        both = np.outer(left, right).ravel()
        combine = np.logical_and if question.every else np.logical_or
        whole = _coarsen(
            PartSpread(
                both if question.every else 1 - both,
                combine.outer(whole.yes, part.yes).ravel(),
                np.outer(whole.windows, part.windows).ravel() / part.windows.sum(),
            )
        )
    return whole


def _choose_contexts(channels: ComponentChannels, most: int) -> list[HistoryContext]:
    """Choose the most common contexts of history, and an even selection of the others."""
    contexts = channels.prior.contexts
    half = most // 2
    chosen = contexts[:most]
    if len(contexts) > most:
        rare = contexts[half:]
        step = len(rare) / (most - half)
        picked = [rare[int(n * step)] for n in range(most - half)]
        scale = sum(windows for _, windows in rare) / sum(windows for _, windows in picked)
        chosen = contexts[:half] + [(signals, windows * scale) for signals, windows in picked]
    return [
        HistoryContext(signals, channels.outline(signals), windows) for signals, windows in chosen
    ]


def _spreads(parts: int, met: Sequence[HistoryContext], stakes: Stakes) -> list[PartSpread]:
    """Return the possible outputs of each part, over all contexts."""
    found: list[list[tuple[Floats, Bits, Floats]]] = [[] for _ in range(parts)]
    for context in met:
        opened = {part for block in context.outline.blocks for part in block.parts}
        for part, true in enumerate(context.outline.decided):
            if part not in opened:
                sure = np.array([true])
                found[part].append((sure.astype(float), sure, np.array([context.windows])))
        for block in context.outline.blocks:
            for part, spread in zip(block.parts, _solve_block(block, stakes), strict=True):
                found[part].append((spread[0], spread[1], context.windows * spread[2]))
    none = (np.empty(0), np.empty(0, np.bool_), np.empty(0))
    found = [[none, *cells] for cells in found]
    return [
        PartSpread(*(np.concatenate(column) for column in zip(*cells, strict=True)))
        for cells in found
    ]


def _solve_block(block: ChannelBlock, stakes: Stakes) -> list[tuple[Floats, Bits, Floats]]:
    """Return for each part of a block its posteriors, its literal answers, and frequencies."""
    reward, penalty = combine_stakes(stakes[list(block.parts)], np.array(block.columns))
    choice = replace(block.choice, reward=reward, penalty=penalty)
    columns = solve(choice).columns
    joint = columns * choice.prior
    likely = joint.sum(axis=1)
    posterior = joint @ choice.answers / likely[:, np.newaxis]
    yes = read_literally(columns, choice.answers)
    return [(posterior[:, n], yes[:, n], likely) for n in block.columns]


def _coarsen(spread: PartSpread) -> PartSpread:
    """Merge cells whose posteriors hardly differ."""
    level = np.round(spread.posterior * (_CELLS - 1)).astype(np.int64) * 2 + spread.yes
    windows = np.bincount(level, spread.windows, 2 * _CELLS)
    true = np.bincount(level, spread.windows * spread.posterior, 2 * _CELLS)
    kept = windows > 0
    weights: Floats = windows[kept].astype(np.float64)
    return PartSpread(true[kept] / weights, np.flatnonzero(kept) % 2 == 1, weights)
