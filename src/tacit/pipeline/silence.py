"""Answers for subjects whose limit is reached: from public events and the prior alone.

Nothing here ever sees a private event or draws anything. A `Silent` says which patterns it
asks for, all of them over public events, and is shown the bits of these and nothing else.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tacit.answers.certainty import Certainty, Shares
from tacit.answers.contexts import distinct, packed
from tacit.answers.decoding import Decoded, decoding_program, tables
from tacit.errors import PrivacyError
from tacit.patterns.booleans import to_columns
from tacit.patterns.tree import Pattern, elements
from tacit.planning.alone import likely_parts
from tacit.planning.schemes import ElementScheme, OptimalScheme
from tacit.privacy.components import Component, Question
from tacit.privacy.keys import Keys
from tacit.privacy.prior import Prior

Columns = NDArray[np.uint64]


class Silent(ABC):
    """Says what public events decide, and what is likely of the rest.

    Guarantee: pattern-level 0-DP: what private events do changes no answer and no confidence.
    Neighbours: windows that differ anywhere inside a private pattern's elements.
    Why: neighbours agree on all bits that it is shown, and the rest is a fixed function of
    them: there is no other input, and no draw.
    Spends: nothing.
    """

    asks: tuple[Pattern, ...]
    """The patterns whose bits it is shown, in this order; none has a private element."""

    def __init__(self, asks: Sequence[Pattern], private: AbstractSet[str]) -> None:
        self.asks = tuple(dict.fromkeys(asks))
        if any(not private.isdisjoint(elements(pattern)) for pattern in self.asks):
            raise PrivacyError("past a limit answers must come from public events alone")
        self.numbers = {pattern: number for number, pattern in enumerate(self.asks)}

    def columns(self, patterns: Sequence[Pattern]) -> list[int]:
        """Where the bits of some of the patterns are."""
        return [self.numbers[pattern] for pattern in patterns]

    @abstractmethod
    def answer(
        self, bits: Columns, slots: NDArray[np.int64], subjects: int
    ) -> tuple[Columns, Certainty]:
        """`[window][query][word]` for the subjects at `slots`, from `[window][asked][word]`."""


class SilentElements(Silent):
    """In place of flipped elements: for each query a table of its contexts."""

    def __init__(self, scheme: ElementScheme, queries: Sequence[Pattern]) -> None:
        touched = {part.query for part in scheme.touched}
        self._exact = [n for n in range(len(queries)) if n not in touched]
        exact = [queries[n] for n in self._exact]
        signals = [signal for part in scheme.touched for signal in part.signals]
        super().__init__([*exact, *signals], scheme.elements.policy.private)
        self._exact_columns = self.columns(exact)
        numbers: dict[Hashable, int] = dict(self.numbers.items())
        decoders = list(scheme.silent_decoders())
        self._tables = tables(decoders, numbers)
        self._program = decoding_program(decoders, numbers)

    def answer(
        self,
        bits: Columns,
        slots: NDArray[np.int64],  # noqa: ARG002 - tables are read for all subjects at once
        subjects: int,  # noqa: ARG002
    ) -> tuple[Columns, Certainty]:
        """Read from the tables."""
        windows, _, words = bits.shape
        result = np.empty((windows, len(self._exact) + len(self._tables), words), np.uint64)
        result[:, self._exact] = bits[:, self._exact_columns]
        result[:, list(self._tables)] = self._program.run(bits)
        return result, Decoded(self._tables, bits)


class SilentComponents(Silent):
    """In place of draws from channels: what the prior says in the context of each component."""

    def __init__(self, scheme: OptimalScheme, queries: Sequence[Pattern]) -> None:
        self._questions = scheme.exposure.questions
        self._threshold = scheme.silent_threshold
        parts = [question.parts for question in self._questions]
        self._exact = [query for query, found in enumerate(parts) if not found]
        self._several = [query for query, found in enumerate(parts) if len(found) > 1]
        exact = [queries[query] for query in self._exact]
        components = scheme.exposure.components
        signals = [signal for component in components for signal in component.signals]
        super().__init__([*exact, *signals], scheme.fine.private)
        self._exact_columns = self.columns(exact)
        self._signals = [self.columns(component.signals) for component in components]
        self._outlooks = [
            _Outlook(component, prior, self._threshold)
            for component, prior in zip(components, scheme.priors, strict=True)
        ]
        self._single = [
            [(query, found[0][1]) for query, found in enumerate(parts) if _only(found, number)]
            for number in range(len(components))
        ]

    def answer(
        self, bits: Columns, slots: NDArray[np.int64], subjects: int
    ) -> tuple[Columns, Certainty]:
        """Find the contexts, then put the queries together from their parts."""
        windows = len(bits)
        result = np.empty((windows, len(self._questions), bits.shape[2]), np.uint64)
        result[:, self._exact] = bits[:, self._exact_columns]
        contexts = []
        for outlook, columns, single in zip(
            self._outlooks, self._signals, self._single, strict=True
        ):
            words = to_columns(np.ascontiguousarray(bits[:, columns]), subjects)[:, slots]
            found = outlook.contexts(words.reshape(windows * len(slots), words.shape[2]))
            contexts.append(found.reshape(windows, len(slots)))
            parts = _spread(outlook.yes[contexts[-1]], slots, subjects)
            result[:, [query for query, _ in single]] = parts[:, [part for _, part in single]]
        certainty = Likely(self._outlooks, self._questions, contexts, slots)
        for query in self._several:
            yes = certainty.posterior(query) >= self._threshold
            result[:, query] = _spread(yes[:, :, np.newaxis].astype(np.uint64), slots, subjects)[
                :, 0
            ]
        return result, certainty


def _only(parts: Sequence[tuple[int, int]], component: int) -> bool:
    """Whether a query has one part, in this component."""
    return len(parts) == 1 and parts[0][0] == component


def _spread(words: Columns, slots: NDArray[np.int64], subjects: int) -> Columns:
    """Answers `[window][own subject][word]` as bit columns of all subjects."""
    full = np.zeros((len(words), subjects, words.shape[2]), np.uint64)
    full[:, slots] = words
    return to_columns(full, 64 * words.shape[2])


class _Outlook:
    """How likely the parts of a component are in each context, worked out as contexts come."""

    def __init__(self, component: Component, prior: Prior, threshold: float) -> None:
        self._component = component
        self._prior = prior
        self._threshold = threshold
        self._keys = Keys(max(1, -(-len(component.signals) // 64)))
        self.likely = np.empty((0, len(component.parts)))
        """`[context][part]`"""
        self.yes = packed(self.likely >= threshold)
        """`[context][word]`: the parts that are likely enough."""

    def contexts(self, signals: NDArray[np.uint64]) -> NDArray[np.int32]:
        """The number of the context of each row of signals, given as words."""
        if not self._component.signals:
            signals = np.zeros((len(signals), 1), np.uint64)
        numbers = self._keys.numbers(signals)
        if numbers.min(initial=0) < 0:
            self._learn(distinct(signals[numbers < 0]))
            numbers = self._keys.numbers(signals)
        return numbers

    def _learn(self, keys: NDArray[np.uint64]) -> None:
        octets = keys.astype("<u8").view(np.uint8)
        width = len(self._component.signals)
        rows = np.unpackbits(octets, axis=1, bitorder="little", count=width).astype(np.bool_)
        likely = np.array([likely_parts(self._component, self._prior, row) for row in rows])
        self.likely = np.concatenate([self.likely, likely])
        self.yes = np.concatenate([self.yes, packed(likely >= self._threshold)])
        self._keys.add(keys)


@dataclass(frozen=True, slots=True, eq=False)
class Likely(Certainty):
    """The contexts of some subjects, and how likely queries are in them."""

    outlooks: Sequence[_Outlook]
    questions: Sequence[Question]
    contexts: Sequence[NDArray[np.int32]]
    """For each component `[window][own subject]`."""
    slots: NDArray[np.int64]

    def posterior(
        self, query: int, windows: slice = slice(None), own: slice = slice(None)
    ) -> Shares:
        """`[window][own subject]`: how likely a query is true."""
        question = self.questions[query]
        told: Shares = np.ones(())
        # Parts of different components are taken as independent.
        for component, part in question.parts:
            likely = self.outlooks[component].likely[self.contexts[component][windows, own], part]
            told = told * (likely if question.every else 1 - likely)
        return told if question.every else 1 - told

    def right(self, query: int, windows: slice, slots: slice, answers: NDArray[np.bool_]) -> Shares:
        """How likely the answer that was given is true."""
        likely = np.ones(answers.shape)
        if not self.questions[query].parts:
            return likely
        begin, end = np.searchsorted(self.slots, [slots.start, slots.stop])
        own = self.slots[begin:end] - slots.start
        likely[:, own] = self.posterior(query, windows, slice(int(begin), int(end)))
        return np.where(answers, likely, 1 - likely)
