"""Count the answers that optimal would give on windows of history, by their posterior.

For contexts with channels of their own the counts are expectations in closed form. For contexts
that a book serves, symbols are drawn with a seed: there are too many combinations to list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tacit.patterns.booleans import pack_rows
from tacit.privacy.components import Component, Exposure
from tacit.privacy.context_counts import ContextCounts
from tacit.privacy.keys import KeyTable
from tacit.privacy.mechanisms.optimal.blocks import (
    ChannelBlock,
    ComponentChannels,
    Context,
    read_literally,
)
from tacit.privacy.mechanisms.optimal.book_draws import BookDraws
from tacit.privacy.mechanisms.optimal.channel_books import ChannelBook, divide_variables
from tacit.privacy.mechanisms.optimal.part_tables import Bits, Floats, Whole, Words
from tacit.privacy.mechanisms.optimal.symbol_readings import PriorReadings
from tacit.privacy.noise import Noise
from tacit.privacy.prior import Prior
from tacit.privacy.randomness import SeededSource
from tacit.privacy.staircase import Design
from tacit.privacy.thresholds import PosteriorCounts

EVALUATED: Final = 4_000_000
"""The number of draws and parts that an expectation is made from, where symbols are drawn."""
_MOST_DRAWN: Final = 64
"""The largest number of draws for a row."""


@dataclass(frozen=True, slots=True, eq=False)
class PlannedComponent:
    """All that is planned for one component."""

    channels: ComponentChannels
    contexts: Mapping[bytes, Context]
    """The contexts with channels of their own, by packed signals."""
    book: ChannelBook

    def count_posteriors(
        self, history: ContextCounts, work: int, *, literal: bool
    ) -> PosteriorCounts:
        """Count the windows of each part by posterior; literal answers count as 0 or 1.

        Rows that the book serves are drawn repeatedly, or some of them are left out, so that
        `work` is about the number of draws times the number of parts.
        """
        counts = PosteriorCounts.zeros(len(self.channels.component.parts))
        if not len(history.signals):
            return counts
        found = self._find_contexts(history.signals[history.begins])
        lengths = np.diff(np.append(history.begins, len(history.signals)))
        other = np.repeat(found < 0, lengths)
        contexts = list(self.contexts.values())
        adding = _CountBuffer(counts)
        for place in np.flatnonzero(found >= 0).tolist():
            begin = int(history.begins[place])
            rows = slice(begin, begin + int(lengths[place]))
            context = contexts[found[place]]
            adding.add_context(context, history.values[rows], history.windows[rows], literal)
        adding.finish()
        if other.any():
            self._draw(history, np.flatnonzero(other), counts, work, literal=literal)
        return counts

    def _find_contexts(self, signals: Bits) -> NDArray[np.int32]:
        """Return the number of each context among those with channels of their own, or -1."""
        width = signals.shape[1]
        keys = [np.frombuffer(key, np.uint8) for key in self.contexts]
        table = KeyTable(max(1, -(-width // 64)))
        if keys:
            known = np.unpackbits(np.array(keys).reshape(len(keys), -1), axis=1, count=width)
            table.add(pack_signals(known.astype(np.bool_)))
        return table.look_up(pack_signals(signals))

    def _draw(
        self,
        history: ContextCounts,
        rows: Whole,
        counts: PosteriorCounts,
        work: int,
        *,
        literal: bool,
    ) -> None:
        """Draw the symbols of rows that the book serves, and count posteriors."""
        draws = max(1, work // max(1, len(counts.true)))
        windows = history.windows[rows]
        if len(rows) > draws:
            rows = rows[np.linspace(0, len(rows) - 1, draws).astype(np.int64)]
        rows = np.repeat(rows, min(_MOST_DRAWN, max(1, draws // len(rows))))
        weights = history.windows[rows]
        weights = weights * (windows.sum() / weights.sum())
        signals, values = pack_signals(history.signals[rows]), pack_rows(history.values[rows])
        sampler = Noise(SeededSource(0)).new_sampler()
        thresholds = None if literal else np.full(len(counts.true), 0.5)
        book = BookDraws(self.channels, self.book, sampler, thresholds)
        codes = np.full((len(rows), max(1, book.blocks)), -1, np.int32)
        book.draw(np.arange(len(rows)), signals, values, codes)
        book.count(signals, values, codes, weights, counts)


def pack_signals(signals: Bits) -> Words:
    """Return `[row][word]`, with one word at least."""
    words = pack_rows(signals)
    return words if words.shape[1] else np.zeros((len(signals), 1), np.uint64)


def read_prior(component: Component, prior: Prior) -> PriorReadings:
    """Return what the prior says about the parts of a component."""
    return PriorReadings(component, prior, [b.variables for b in divide_variables(component)])


def count_prior(readings: PriorReadings, history: ContextCounts) -> PosteriorCounts:
    """Count the windows of each part by its probability without any symbol."""
    counts = PosteriorCounts.zeros(len(readings.component.parts))
    signals = pack_signals(history.signals)
    readings.count(
        signals, pack_rows(history.values), readings.read(signals), history.windows, counts
    )
    return counts


class _CountBuffer:
    """Collects counts, to add them at once."""

    def __init__(self, counts: PosteriorCounts) -> None:
        self._counts = counts
        self._found: list[tuple[Whole, Floats, Floats, Floats]] = []

    def add_context(self, context: Context, values: Bits, windows: Floats, literal: bool) -> None:
        """Add the windows of one context, with these values of the variables."""
        false = ~context.decided
        for block, design in context.blocks:
            false[list(block.parts)] = False
            self._add_block(block, design, values, windows, literal)
        self._counts.true[context.decided, -1] += windows.sum()
        self._counts.false[false, 0] += windows.sum()

    def _add_block(
        self, block: ChannelBlock, design: Design, values: Bits, windows: Floats, literal: bool
    ) -> None:
        choice = values[:, block.variables] @ (1 << np.arange(len(block.variables)))
        classes = np.bincount(block.place[choice], windows, len(block.choice.answers))
        likely = design.channel.table / 2.0**design.channel.bits * classes[:, np.newaxis]
        true = likely.T @ block.choice.answers
        false = likely.sum(axis=0)[:, np.newaxis] - true
        posterior = design.posterior
        if literal:
            columns = design.channel.table.T.astype(np.float64)
            posterior = read_literally(columns, block.choice.answers).astype(np.float64)
        own = list(block.columns)
        parts = np.tile(np.array(block.parts, np.int64), len(posterior))
        cells = posterior[:, own].ravel(), true[:, own].ravel(), false[:, own].ravel()
        self._found.append((parts, *cells))

    def finish(self) -> None:
        """Add everything."""
        if not self._found:
            return
        parts, posterior, true, false = (
            np.concatenate(part) for part in zip(*self._found, strict=True)
        )
        self._counts.add(parts, posterior, true, false)


def count_queries(
    exposure: Exposure, parts: Sequence[PosteriorCounts], positives: Floats
) -> PosteriorCounts:
    """Return the counts of queries with one part, and of those that depend on nothing private.

    `positives` are the true windows of each query, for the latter.
    """
    counts = PosteriorCounts.zeros(len(exposure.questions))
    for query, question in enumerate(exposure.questions):
        if not question.parts:
            counts.add_exact(query, float(positives[query]))
        elif len(question.parts) == 1:
            component, part = question.parts[0]
            counts.true[query] = parts[component].true[part]
            counts.false[query] = parts[component].false[part]
    return counts
