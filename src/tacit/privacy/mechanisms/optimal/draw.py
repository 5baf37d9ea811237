"""The draws of optimal in a run: find contexts, draw symbols, and decode them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tacit.buffers import allocate
from tacit.kernels import compiled
from tacit.kernels.threads import run_in_turn
from tacit.patterns.booleans import spread_square, to_columns
from tacit.privacy.certainty import Certainty, Shares
from tacit.privacy.components import Question
from tacit.privacy.mechanisms.mechanism import (
    Columns,
    Prices,
    Protector,
    RunSetup,
    WindowBits,
)
from tacit.privacy.mechanisms.optimal.contexts import Contexts, DrawnSymbols
from tacit.privacy.mechanisms.optimal.single_pass import SinglePass
from tacit.privacy.prices import Claim

if TYPE_CHECKING:
    from tacit.privacy.mechanisms.optimal.mechanism import Optimal


class ChannelProtector(Protector):
    """Gives decided answers, and draws the open ones from channels."""

    def __init__(self, planned: Optimal, run: RunSetup) -> None:
        self._questions = planned.exposure.questions
        self._literal = planned.literal
        self._thresholds = planned.thresholds
        parts = [question.parts for question in self._questions]
        self._exact = [query for query, found in enumerate(parts) if not found]
        self._exact_columns = run.index.columns([run.queries[query] for query in self._exact])
        self._several = [query for query, found in enumerate(parts) if len(found) > 1]
        self._single: list[tuple[list[int], list[int]]] = [
            ([], []) for _ in planned.exposure.components
        ]
        for query, found in enumerate(parts):
            if len(found) == 1:
                self._single[found[0][0]][0].append(query)
                self._single[found[0][0]][1].append(found[0][1])
        self._contexts = [
            Contexts(
                channels,
                book,
                run.noise,
                None
                if planned.literal
                else planned.thresholds[[part.query for part in channels.component.parts]],
                known,
            )
            for channels, book, known in zip(
                planned.component_channels, planned.books, planned.planned, strict=True
            )
        ]
        # Seeded draws must come in the same order every time.
        self._parallel = run.workers.run if run.noise.private else run_in_turn
        self._signals = [
            run.index.columns(component.signals) for component in planned.exposure.components
        ]
        self._variables = [
            run.index.columns([variable.atom for variable in component.variables])
            for component in planned.exposure.components
        ]
        self._pass = SinglePass(
            self._contexts,
            self._questions,
            None if planned.literal else planned.thresholds,
            self._signals,
            self._variables,
        )
        self._source, self._workers = run.noise.source, run.workers

    def protect(
        self, windows: WindowBits, own: NDArray[np.bool_] | None
    ) -> tuple[Columns, Certainty]:
        """Draw for every component, then combine the queries from their parts."""
        slots = np.arange(windows.slots) if own is None else np.flatnonzero(own)
        shape = (len(windows.bits), len(self._questions), windows.bits.shape[2])
        result = np.empty(shape, np.uint64)
        result[:, self._exact] = windows.bits[:, self._exact_columns]
        counted = windows.find_counted(slots)
        if own is None:
            symbols = self._pass.run(
                windows.bits, windows.slots, self._source, self._workers, result, counted
            )
            if symbols is not None:
                return result, self._make_certainty(symbols, windows, slots)
        inputs = zip(self._contexts, self._inputs(windows, slots, own), strict=True)
        drawn = self._parallel(
            [
                partial(contexts.draw, signals, variables, len(windows.bits), counted)
                for contexts, (signals, variables) in inputs
            ]
        )
        certainty = self._make_certainty(drawn.__getitem__, windows, slots)
        parts = self._answers(drawn, windows, slots, own)
        for component, (queries, numbers) in enumerate(self._single):
            result[:, queries] = parts[component][:, numbers]
        for query in self._several:
            question = self._questions[query]
            result[:, query] = self._combined(question, parts, certainty, query, windows.slots)
        return result, certainty

    def _make_certainty(
        self,
        drawn: Callable[[int], DrawnSymbols],
        windows: WindowBits,
        slots: NDArray[np.int64],
    ) -> SymbolCertainty:
        return SymbolCertainty(self._contexts, drawn, self._questions, len(windows.bits), slots)

    def price(self, windows: WindowBits, claims: Sequence[Claim]) -> Prices:
        """Charge the audited loss of the draws in each component's context."""
        slots = np.arange(windows.slots)
        shape = (len(claims), len(windows.bits), windows.slots)
        prices = np.zeros((len(claims), len(windows.bits) * windows.slots), np.int64)
        for contexts, columns in zip(self._contexts, self._signals, strict=True):
            signals = gather_words(windows, columns, slots, None)
            prices += contexts.price(signals, tuple(claims))
        most = np.array([claim.most for claim in claims], np.int64)
        # If a pattern is refined, its elements are rounded up one by one.
        np.minimum(prices, most[:, np.newaxis], out=prices)
        return prices.reshape(shape).transpose(1, 0, 2)

    def _inputs(
        self, windows: WindowBits, slots: NDArray[np.int64], own: NDArray[np.bool_] | None
    ) -> Iterator[tuple[NDArray[np.uint64], NDArray[np.uint64]]]:
        """Yield each component's signals and variables, as words by window and subject."""
        found = gather_each(windows, [*self._signals, *self._variables], slots, own)
        return zip(found[: len(self._signals)], found[len(self._signals) :], strict=True)

    def _answers(
        self,
        drawn: Sequence[DrawnSymbols],
        windows: WindowBits,
        slots: NDArray[np.int64],
        own: NDArray[np.bool_] | None,
    ) -> list[Columns]:
        """Return the answers of each component's parts as bit columns."""
        pairs = list(zip(self._contexts, drawn, strict=True))
        edges = list(accumulate((contexts.parts for contexts in self._contexts), initial=0))
        if edges[-1] > 64:
            return [
                _by_window(contexts.words(one), contexts.parts, windows, slots, own)
                for contexts, one in pairs
            ]
        # Transpose the bits once for all components, then split them.
        words = np.zeros(len(windows.bits) * len(slots), np.uint64)
        for (contexts, one), begin in zip(pairs, edges, strict=False):
            contexts.add_words(one, begin, words)
        columns = _by_window(words.reshape(-1, 1), edges[-1], windows, slots, own)
        return [columns[:, begin:end] for begin, end in pairwise(edges)]

    def _combined(
        self,
        question: Question,
        parts: Sequence[Columns],
        certainty: SymbolCertainty,
        query: int,
        slots: int,
    ) -> Columns:
        """Return the answer to a query with parts in several components."""
        if self._literal:
            columns = [parts[component][:, part] for component, part in question.parts]
            combine = np.bitwise_and if question.every else np.bitwise_or
            joined: Columns = combine.reduce(columns)
            return joined
        likely = certainty.posterior(query)
        claims = np.zeros((len(likely), -(-slots // 64)), np.uint64)
        _claim(likely, float(self._thresholds[query]), certainty.slots, claims)
        return claims


@dataclass(frozen=True, slots=True, eq=False)
class SymbolCertainty(Certainty):
    """The symbols drawn for each component, for some of the subjects."""

    contexts: Sequence[Contexts]
    drawn: Callable[[int], DrawnSymbols]
    """The symbols of a component."""
    questions: Sequence[Question]
    windows: int
    slots: NDArray[np.int64]

    def posterior(
        self, query: int, windows: slice = slice(None), own: slice = slice(None)
    ) -> Shares:
        """Return `[window][own subject]`: the probability that a query is true."""
        question = self.questions[query]
        likely = np.ones(len(range(self.windows)[windows]) * len(self.slots[own]))
        # Parts of different components are assumed to be independent.
        for component, part in question.parts:
            drawn = self._part(component, windows, own)
            self.contexts[component].weigh(drawn, part, likely, true=question.every)
        if not question.every:
            likely = 1 - likely
        return likely.reshape(len(range(self.windows)[windows]), -1)

    def _part(self, component: int, windows: slice, own: slice) -> DrawnSymbols:
        """Return the symbols of some windows and subjects."""
        drawn = self.drawn(component)
        if windows == own == slice(None):
            return drawn
        shape = (self.windows, len(self.slots))
        codes = drawn.codes.reshape(*shape, drawn.codes.shape[1])[windows, own]
        signals = drawn.signals.reshape(*shape, drawn.signals.shape[1])[windows, own]
        contexts = drawn.contexts.reshape(shape)[windows, own].ravel()
        return DrawnSymbols(
            contexts,
            codes.reshape(-1, codes.shape[2]),
            np.ascontiguousarray(signals.reshape(len(contexts), signals.shape[2])),
            np.flatnonzero(contexts < 0),
        )

    def compute_confidence(
        self, query: int, windows: slice, slots: slice, answers: NDArray[np.bool_]
    ) -> Shares:
        """Return the posterior of the given answers."""
        likely = np.ones(answers.shape)
        if not self.questions[query].parts:
            return likely
        begin, end = np.searchsorted(self.slots, [slots.start, slots.stop])
        own = self.slots[begin:end] - slots.start
        if len(own):
            likely[:, own] = self.posterior(query, windows, slice(int(begin), int(end)))
        return np.where(answers, likely, 1 - likely)


@compiled
def _gather(
    bits: Columns,
    columns: NDArray[np.int64],
    widths: NDArray[np.int64],
    slots: int,
    found: NDArray[np.uint64],
) -> None:
    """Turn bit columns into words by subject, and split them into numbers of the given widths."""
    square = np.empty(64, np.uint64)
    for window in range(len(bits)):
        for word in range(bits.shape[2]):
            for column in range(len(columns)):
                square[column] = bits[window, columns[column], word]
            square[len(columns) :] = np.uint64(0)
            spread_square(square, len(columns))
            first = window * slots + 64 * word
            count = min(64, slots - 64 * word)
            begin = np.uint64(0)
            for part in range(len(widths)):
                width = np.uint64(widths[part])
                mask = ~np.uint64(0) if width == 64 else (np.uint64(1) << width) - np.uint64(1)
                own = found[part, first : first + count]
                for i in range(count):
                    own[i] = (square[i] >> begin) & mask
                begin += width


@compiled
def _claim(
    likely: NDArray[np.float64],
    threshold: float,
    slots: NDArray[np.int64],
    claims: NDArray[np.uint64],
) -> None:
    """Set the bits of the subjects whose posterior reaches the threshold."""
    for window in range(len(likely)):
        for i in range(len(slots)):
            slot = np.uint64(slots[i])
            yes = np.uint64(likely[window, i] >= threshold)
            claims[window, slot >> np.uint64(6)] |= yes << (slot & np.uint64(63))


def _by_window(
    words: NDArray[np.uint64],
    width: int,
    windows: WindowBits,
    slots: NDArray[np.int64],
    own: NDArray[np.bool_] | None,
) -> Columns:
    """Turn words by window and subject into bit columns."""
    words = words.reshape(len(windows.bits), len(slots), words.shape[1])
    if own is not None:
        full = np.zeros((len(windows.bits), windows.slots, words.shape[2]), np.uint64)
        full[:, slots] = words
        words = full
    return to_columns(words, width)


def gather_each(
    windows: WindowBits,
    columns: Sequence[list[int]],
    slots: NDArray[np.int64],
    own: NDArray[np.bool_] | None,
) -> Sequence[NDArray[np.uint64]]:
    """Turn several lists of bit columns into words by window and subject, at least one each."""
    if sum(map(len, columns)) > 64:
        rows = len(windows.bits) * len(slots)
        return [
            gather_words(windows, one, slots, own) if one else np.zeros((rows, 1), np.uint64)
            for one in columns
        ]
    # Transpose the bits once for all, then split them.
    whole = np.array([n for one in columns for n in one], np.int64)
    widths = np.array([len(one) for one in columns], np.int64)
    found = allocate((len(columns), len(windows.bits) * windows.slots), np.uint64)
    _gather(windows.bits, whole, widths, windows.slots, found)
    if own is not None:
        found = found.reshape(len(columns), len(windows.bits), -1)[:, :, slots]
    return list(found.reshape(len(columns), -1, 1))


def gather_words(
    windows: WindowBits,
    columns: list[int],
    slots: NDArray[np.int64],
    own: NDArray[np.bool_] | None,
) -> NDArray[np.uint64]:
    """Turn some bit columns into words by window and subject."""
    words = to_columns(np.ascontiguousarray(windows.bits[:, columns]), windows.slots)
    if own is not None:
        words = words[:, slots]
    return words.reshape(len(words) * len(slots), -(-len(columns) // 64))
