"""Public only: answers from public events and the prior, for subjects whose limit is reached.

Nothing here sees a private event or draws anything: a protector gets the bits of the patterns
that it names, all of them over public events, and no others.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tacit.errors import PlanError, PrivacyError
from tacit.patterns.booleans import distinct_rows, pack_rows, to_columns
from tacit.patterns.tree import Pattern, elements
from tacit.privacy.affected_queries import AffectedQuery
from tacit.privacy.certainty import Certainty, Shares
from tacit.privacy.components import Component, Exposure, Question
from tacit.privacy.decoding import Decoded, TableDecoder, decoding_program, tables
from tacit.privacy.evidence import DecoderCells, Evidence
from tacit.privacy.keys import KeyTable
from tacit.privacy.mechanisms.mechanism import (
    Columns,
    Floats,
    PatternIndex,
    Protector,
    WindowBits,
)
from tacit.privacy.mechanisms.optimal.expectation import PartSpread, combine_spreads
from tacit.privacy.prior import Bits, Prior
from tacit.privacy.quality import Confusion
from tacit.privacy.sampled_evidence import WideEvidence
from tacit.privacy.statistics import Found, Statistics

_CONTEXTS: Final = 1000
"""For expectations so many contexts of a component are looked at, the most common ones."""


class PublicOnly(ABC):
    """Give what public events decide, and what is likely of the rest.

    Guarantee: pattern-level 0-DP per subject, pattern and window: private events change no answer
    and no confidence.
    Neighbours: windows that differ anywhere inside a private pattern's elements.
    Why: neighbours agree on all bits that it is given, and the rest is a fixed function of them:
    there is no other input, and no draw.
    Spends: nothing.
    Paper: not there; it has no limits. Differs: an infinite stream has a limit in a stretch of
    time, and this is what answers once it is reached.
    Proof: docs/guarantee.md#limits
    """

    @abstractmethod
    def start(self, queries: Sequence[Pattern], index: PatternIndex) -> PublicProtector:
        """What answers in a run."""

    @abstractmethod
    def expect(self, statistics: Statistics) -> Confusion[Floats]:
        """What to expect of the answers to each query."""


class PublicProtector(Protector):
    """Answers from the bits of public patterns. Nothing else reaches `answer`."""

    asks: tuple[Pattern, ...]
    """The patterns whose bits it gets, in this order; none has a private element."""

    def __init__(
        self, asks: Sequence[Pattern], private: AbstractSet[str], index: PatternIndex
    ) -> None:
        self.asks = tuple(dict.fromkeys(asks))
        if any(not private.isdisjoint(elements(pattern)) for pattern in self.asks):
            raise PrivacyError("past a limit answers must come from public events alone")
        self.numbers = {pattern: number for number, pattern in enumerate(self.asks)}
        self._columns = index.columns(self.asks)

    def columns(self, patterns: Sequence[Pattern]) -> list[int]:
        """Where the bits of some of the patterns are."""
        return [self.numbers[pattern] for pattern in patterns]

    def protect(
        self, windows: WindowBits, own: NDArray[np.bool_] | None
    ) -> tuple[Columns, Certainty]:
        """From public events and the prior alone."""
        slots = np.arange(windows.slots) if own is None else np.flatnonzero(own)
        return self.answer(windows.bits[:, self._columns], slots, windows.slots)

    @abstractmethod
    def answer(
        self, bits: Columns, slots: NDArray[np.int64], subjects: int
    ) -> tuple[Columns, Certainty]:
        """`[window][query][word]` for the subjects at `slots`, from `[window][asked][word]`."""


@dataclass(frozen=True, eq=False)
class PublicTables(PublicOnly):
    """For each query that private elements touch a table: how likely it is in each context."""

    private: frozenset[str]
    """The private elements."""
    touched: tuple[AffectedQuery, ...]
    likely: tuple[Floats, ...]
    """For each touched query `[context]`: how likely it is true; 0 or 1 where it is decided."""
    threshold: float
    """The answer is yes from this probability on."""

    @classmethod
    def plan(cls, statistics: Statistics, threshold: float) -> PublicTables:
        """The planning hook: what history says of each context."""
        likely = tuple(map(likely_contexts, statistics.touched, statistics.evidence))
        return cls(statistics.policy.private, statistics.touched, likely, threshold)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, fit for JSON."""
        return {
            str(part.query): likely.tolist()
            for part, likely in zip(self.touched, self.likely, strict=True)
        }

    @classmethod
    def from_dict(
        cls,
        plain: Mapping[str, Any] | None,
        private: frozenset[str],
        parts: tuple[AffectedQuery, ...],
        threshold: float,
    ) -> PublicTables:
        """What was written, for the queries of the specification; old plans have no tables."""
        likely = tuple(_read_table(part, plain) for part in parts)
        return cls(private, parts, likely, threshold)

    def decoders(self) -> list[TableDecoder]:
        """How each touched query is answered."""
        return [
            TableDecoder(
                part.query, part.signals, np.stack([1 - p, p], axis=-1), p >= self.threshold
            )
            for part, p in zip(self.touched, self.likely, strict=True)
        ]

    def start(self, queries: Sequence[Pattern], index: PatternIndex) -> PublicProtector:
        """Look answers up by context."""
        return TableLookup(self, queries, index)

    def expect(self, statistics: Statistics) -> Confusion[Floats]:
        """By the contexts of history."""
        counts = np.zeros((3, len(statistics.positives)))
        counts[0] = statistics.exact
        for part, known, likely in zip(self.touched, statistics.evidence, self.likely, strict=True):
            false, true = _seen(part, known)
            found = DecoderCells(likely, true, false).confusion(self.threshold)
            counts[:, part.query] += found.tp, found.fp, found.fn
        return Confusion(*counts)


@dataclass(frozen=True, eq=False)
class PublicContexts(PublicOnly):
    """For each component what its prior says in the contexts that windows are in."""

    private: frozenset[str]
    """The private elements."""
    exposure: Exposure
    priors: tuple[Prior, ...]
    """For each component."""
    threshold: float
    """The answer is yes from this probability on."""

    def start(self, queries: Sequence[Pattern], index: PatternIndex) -> PublicProtector:
        """Work contexts out as windows come."""
        return ContextLookup(self, queries, index)

    def expect(self, statistics: Statistics) -> Confusion[Floats]:
        """By the most common contexts of history."""
        counts = np.zeros((3, len(statistics.positives)))
        parts = self._spreads()
        for query, question in enumerate(self.exposure.questions):
            if not question.parts:
                counts[0, query] = statistics.positives[query]
                continue
            whole = combine_spreads([parts[c][p] for c, p in question.parts], question)
            found = whole.cells.confusion(self.threshold)
            counts[:, query] = found.tp, found.fp, found.fn
        return Confusion(*counts)

    def _spreads(self) -> list[list[PartSpread]]:
        """For each part of each component how likely it is in the contexts of history."""
        spreads = []
        for component, prior in zip(self.exposure.components, self.priors, strict=True):
            met = prior.contexts[:_CONTEXTS]
            windows = np.array([number for _, number in met])
            windows *= prior.counts.sum() / windows.sum()
            likely = np.array([likely_parts(component, prior, signals) for signals, _ in met]).T
            spreads.append(
                [PartSpread(column, column >= self.threshold, windows) for column in likely]
            )
        return spreads


class TableLookup(PublicProtector):
    """Answers by one boolean program over the bits of public patterns."""

    def __init__(
        self, planned: PublicTables, queries: Sequence[Pattern], index: PatternIndex
    ) -> None:
        touched = {part.query for part in planned.touched}
        self._exact = [n for n in range(len(queries)) if n not in touched]
        exact = [queries[n] for n in self._exact]
        signals = [signal for part in planned.touched for signal in part.signals]
        super().__init__([*exact, *signals], planned.private, index)
        self._exact_columns = self.columns(exact)
        numbers: dict[Hashable, int] = dict(self.numbers.items())
        decoders = planned.decoders()
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
        if self._tables:
            result[:, list(self._tables)] = self._program.run(bits)
        return result, Decoded(self._tables, bits)


class ContextLookup(PublicProtector):
    """Finds the context of each component, and answers by what the prior says there."""

    def __init__(
        self, planned: PublicContexts, queries: Sequence[Pattern], index: PatternIndex
    ) -> None:
        self._questions = planned.exposure.questions
        self._threshold = planned.threshold
        parts = [question.parts for question in self._questions]
        self._exact = [query for query, found in enumerate(parts) if not found]
        self._several = [query for query, found in enumerate(parts) if len(found) > 1]
        exact = [queries[query] for query in self._exact]
        components = planned.exposure.components
        signals = [signal for component in components for signal in component.signals]
        super().__init__([*exact, *signals], planned.private, index)
        self._exact_columns = self.columns(exact)
        self._signals = [self.columns(component.signals) for component in components]
        self._outlooks = [
            _LikelyParts(component, prior, self._threshold)
            for component, prior in zip(components, planned.priors, strict=True)
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
        certainty = ContextCertainty(self._outlooks, self._questions, contexts, slots)
        for query in self._several:
            yes = certainty.posterior(query) >= self._threshold
            result[:, query] = _spread(yes[:, :, np.newaxis].astype(np.uint64), slots, subjects)[
                :, 0
            ]
        return result, certainty


def _read_table(part: AffectedQuery, plain: Mapping[str, Any] | None) -> Floats:
    """How likely a query is by public events alone; plans did not always say.

    What is decided comes from the specification: a plan can only say how likely the rest is.
    """
    likely = np.full(len(part.decided), 0.5)
    if plain is not None:
        likely = np.array(plain[str(part.query)], np.float64)
        if likely.shape != part.decided.shape or not ((likely >= 0) & (likely <= 1)).all():
            raise PlanError("the plan's tables do not fit the specification; make a new plan")
    return np.where(part.decided < 0, likely, part.decided)


def _only(parts: Sequence[tuple[int, int]], component: int) -> bool:
    """Whether a query has one part, in this component."""
    return len(parts) == 1 and parts[0][0] == component


def _spread(words: Columns, slots: NDArray[np.int64], subjects: int) -> Columns:
    """Answers `[window][own subject][word]` as bit columns of all subjects."""
    full = np.zeros((len(words), subjects, words.shape[2]), np.uint64)
    full[:, slots] = words
    return to_columns(full, 64 * words.shape[2])


class _LikelyParts:
    """How likely the parts of a component are in each context, worked out as contexts come."""

    def __init__(self, component: Component, prior: Prior, threshold: float) -> None:
        self._component = component
        self._prior = prior
        self._threshold = threshold
        self._keys = KeyTable(max(1, -(-len(component.signals) // 64)))
        self.likely = np.empty((0, len(component.parts)))
        """`[context][part]`"""
        self.yes = pack_rows(self.likely >= threshold)
        """`[context][word]`: the parts that are likely enough."""

    def contexts(self, signals: NDArray[np.uint64]) -> NDArray[np.int32]:
        """The number of the context of each row of signals, given as words."""
        if not self._component.signals:
            signals = np.zeros((len(signals), 1), np.uint64)
        numbers = self._keys.numbers(signals)
        if numbers.min(initial=0) < 0:
            self._learn(distinct_rows(signals[numbers < 0]))
            numbers = self._keys.numbers(signals)
        return numbers

    def _learn(self, keys: NDArray[np.uint64]) -> None:
        octets = keys.astype("<u8").view(np.uint8)
        width = len(self._component.signals)
        rows = np.unpackbits(octets, axis=1, bitorder="little", count=width).astype(np.bool_)
        likely = np.array([likely_parts(self._component, self._prior, row) for row in rows])
        self.likely = np.concatenate([self.likely, likely])
        self.yes = np.concatenate([self.yes, pack_rows(likely >= self._threshold)])
        self._keys.add(keys)


@dataclass(frozen=True, slots=True, eq=False)
class ContextCertainty(Certainty):
    """The contexts of some subjects, and how likely queries are in them."""

    outlooks: Sequence[_LikelyParts]
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


def likely_parts(component: Component, prior: Prior, signals: Bits) -> Floats:
    """`[part]`: how likely each part of a component is true in a context; 0 or 1 if decided."""
    known: dict[tuple[int, ...], Floats] = {}
    likely = np.empty(len(component.parts))
    for number, table in enumerate(component.tables(signals)):
        if (table == table[0]).all():
            likely[number] = table[0]
            continue
        variables = component.parts[number].variables
        if variables not in known:
            known[variables] = prior.of_choices(signals, list(variables))
        likely[number] = known[variables][table].sum()
    return likely


def likely_contexts(part: AffectedQuery, known: Found) -> Floats:
    """`[context]`: how likely a query is true by its context alone; 0 or 1 if decided."""
    if isinstance(known, Evidence):
        weights: Floats = known.expected.sum(axis=2)
        likely = weights[:, 1] / weights.sum(axis=1)
    else:
        false, true = _seen(part, known)
        total = (false + true).sum()
        rate = true.sum() / total if total else 0.5
        likely = (true + known.strength * rate) / (false + true + known.strength)
    return np.where(part.decided < 0, likely, part.decided)


def _seen(part: AffectedQuery, known: Found) -> tuple[Floats, Floats]:
    """`[context]`: in how many windows the query is false, and in how many it is true."""
    if isinstance(known, Evidence):
        windows: Floats = known.counts.sum(axis=2)
        return windows[:, 0], windows[:, 1]
    contexts = known.homes[known.contexts] if isinstance(known, WideEvidence) else known.contexts
    false, true = (
        np.bincount(contexts[chosen], known.counts[chosen], len(part.decided))
        for chosen in (~known.truth, known.truth)
    )
    return false.astype(np.float64), true.astype(np.float64)
