"""Public only: answers from public events and the prior, for subjects whose limit is reached.

Nothing here uses private events or draws noise. A protector gets only the bits of the patterns
in its `inputs`, which are all over public events.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.errors import PlanError, PrivacyError
from tacit.patterns.booleans import to_columns
from tacit.patterns.tree import Pattern, elements
from tacit.privacy.affected_queries import AffectedQuery
from tacit.privacy.certainty import Certainty, Shares
from tacit.privacy.components import Exposure, Question
from tacit.privacy.decoding import TableCertainty, TableDecoder, build_tables, compile_decoders
from tacit.privacy.evidence import DecoderCells, Evidence
from tacit.privacy.mechanisms.mechanism import (
    Columns,
    Floats,
    PatternIndex,
    Prices,
    Protector,
    WindowBits,
)
from tacit.privacy.mechanisms.optimal.expectation import (
    EVALUATED,
    count_prior,
    count_queries,
    read_prior,
)
from tacit.privacy.mechanisms.optimal.joint_expectation import PriorParts, count_several
from tacit.privacy.mechanisms.optimal.part_tables import Words
from tacit.privacy.mechanisms.optimal.symbol_readings import Codes, PriorReadings
from tacit.privacy.prices import Claim
from tacit.privacy.prior import Prior
from tacit.privacy.quality import Confusion
from tacit.privacy.sampled_evidence import WideEvidence
from tacit.privacy.statistics import AnyEvidence, Statistics
from tacit.privacy.thresholds import PosteriorCounts


class PublicOnly(ABC):
    """Answer from public events where they decide, and by the prior elsewhere.

    Guarantee: pattern-level 0-DP per subject, pattern and window: private events change no answer
    and no confidence.
    Neighbours: windows that differ anywhere inside a private pattern's elements.
    Why: neighbours agree on all bits that it gets, and the answers are a fixed function of these
    bits: there is no other input, and no draw.
    Spends: nothing.
    Paper: not included; the paper has no limits. Differs: we limit epsilon per horizon, and this
    mechanism answers once the limit is reached.
    Proof: docs/guarantee.md#limits
    """

    @abstractmethod
    def start(self, queries: Sequence[Pattern], index: PatternIndex) -> PublicProtector:
        """Return the protector that answers in a run."""

    @abstractmethod
    def count_posteriors(self, statistics: Statistics) -> PosteriorCounts:
        """Count the windows of each query by its probability."""

    @abstractmethod
    def expect(self, statistics: Statistics) -> Confusion[Floats]:
        """Return the expected counts of each query."""


class PublicProtector(Protector):
    """Answers from the bits of public patterns. Nothing else reaches `answer`."""

    inputs: tuple[Pattern, ...]
    """The patterns whose bits it gets, in this order; none of them has a private element."""

    def __init__(
        self, inputs: Sequence[Pattern], private: AbstractSet[str], index: PatternIndex
    ) -> None:
        self.inputs = tuple(dict.fromkeys(inputs))
        if any(not private.isdisjoint(elements(pattern)) for pattern in self.inputs):
            raise PrivacyError("past a limit answers must come from public events alone")
        self.numbers = {pattern: number for number, pattern in enumerate(self.inputs)}
        self._columns = index.columns(self.inputs)

    def columns(self, patterns: Sequence[Pattern]) -> list[int]:
        """Return the positions of some patterns among the inputs."""
        return [self.numbers[pattern] for pattern in patterns]

    def protect(
        self, windows: WindowBits, own: NDArray[np.bool_] | None
    ) -> tuple[Columns, Certainty]:
        """Answer from public events and the prior."""
        slots = np.arange(windows.slots) if own is None else np.flatnonzero(own)
        return self.answer(windows.bits[:, self._columns], slots, windows.slots)

    def price(self, windows: WindowBits, claims: Sequence[Claim]) -> Prices:
        """Return 0: nothing private is used."""
        return np.zeros((len(windows.bits), len(claims), windows.slots), np.int64)

    @abstractmethod
    def answer(
        self, bits: Columns, slots: NDArray[np.int64], subjects: int
    ) -> tuple[Columns, Certainty]:
        """Return `[window][query][word]` for the subjects at `slots`, from the input bits."""


@dataclass(frozen=True, eq=False)
class PublicTables(PublicOnly):
    """Tables of the probability of each affected query, by context."""

    private: frozenset[str]
    """The private elements."""
    affected: tuple[AffectedQuery, ...]
    likely: tuple[Floats, ...]
    """For each affected query `[context]`: its probability; 0 or 1 where it is decided."""
    thresholds: Floats
    """For each query, the probability from which on the answer is yes."""

    @classmethod
    def plan(cls, statistics: Statistics, thresholds: Floats) -> PublicTables:
        """Estimate the probabilities from history."""
        likely = tuple(map(estimate_contexts, statistics.affected, statistics.evidence))
        return cls(statistics.policy.private, statistics.affected, likely, thresholds)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data that can be written as JSON."""
        return {
            str(part.query): likely.tolist()
            for part, likely in zip(self.affected, self.likely, strict=True)
        }

    @classmethod
    def from_dict(
        cls,
        plain: Mapping[str, Any] | None,
        private: frozenset[str],
        parts: tuple[AffectedQuery, ...],
        thresholds: Floats,
    ) -> PublicTables:
        """Read what `to_dict` wrote; old plans have no tables (`plain` is None)."""
        likely = tuple(_read_table(part, plain) for part in parts)
        return cls(private, parts, likely, thresholds)

    def decoders(self) -> list[TableDecoder]:
        """Return the decoder of each affected query."""
        return [
            TableDecoder(
                part.query,
                part.signals,
                np.stack([1 - p, p], axis=-1),
                p >= self.thresholds[part.query],
            )
            for part, p in zip(self.affected, self.likely, strict=True)
        ]

    def start(self, queries: Sequence[Pattern], index: PatternIndex) -> PublicProtector:
        """Return a protector that looks answers up by context."""
        return TableLookup(self, queries, index)

    def count_posteriors(self, statistics: Statistics) -> PosteriorCounts:
        """Count the windows of each context."""
        counts = PosteriorCounts.zeros(len(statistics.positives))
        for query, positives in enumerate(statistics.exact.tolist()):
            counts.add_exact(query, positives)
        for part, known, likely in zip(
            self.affected, statistics.evidence, self.likely, strict=True
        ):
            false, true = _count_contexts(part, known)
            counts.add(part.query, likely, true, false)
        return counts

    def expect(self, statistics: Statistics) -> Confusion[Floats]:
        """Compute the expected counts over the contexts of history."""
        counts = np.zeros((3, len(statistics.positives)))
        counts[0] = statistics.exact
        for part, known, likely in zip(
            self.affected, statistics.evidence, self.likely, strict=True
        ):
            false, true = _count_contexts(part, known)
            found = DecoderCells(likely, true, false).confusion(self.thresholds[part.query])
            counts[:, part.query] += found.tp, found.fp, found.fn
        return Confusion(*counts)


@dataclass(frozen=True, eq=False)
class PublicContexts(PublicOnly):
    """Answers by each component's prior in the context of a window."""

    private: frozenset[str]
    """The private elements."""
    exposure: Exposure
    priors: tuple[Prior, ...]
    """For each component."""
    thresholds: Floats
    """For each query, the probability from which on the answer is yes."""

    def start(self, queries: Sequence[Pattern], index: PatternIndex) -> PublicProtector:
        """Return a protector that evaluates parts by the prior of their context."""
        return ContextLookup(self, queries, index)

    def count_posteriors(self, statistics: Statistics) -> PosteriorCounts:
        """Count the windows of all contexts; a sample for queries over several components."""
        readings = list(map(read_prior, self.exposure.components, self.priors))
        parts = list(map(count_prior, readings, statistics.contexts))
        counts = count_queries(self.exposure, parts, statistics.positives)
        if statistics.joint is not None:

            def read(component: int, signals: Words, values: Words) -> PriorParts:  # noqa: ARG001
                return PriorParts(readings[component], signals)

            windows = statistics.windows
            count_several(self.exposure, statistics.joint, windows, EVALUATED, read, counts)
        return counts

    def expect(self, statistics: Statistics) -> Confusion[Floats]:
        """Compute the expected counts in closed form; of a sample for some queries."""
        return self.count_posteriors(statistics).confusion(self.thresholds)


class TableLookup(PublicProtector):
    """Answers by one boolean program over the bits of public patterns."""

    def __init__(
        self, planned: PublicTables, queries: Sequence[Pattern], index: PatternIndex
    ) -> None:
        affected = {part.query for part in planned.affected}
        self._exact = [n for n in range(len(queries)) if n not in affected]
        exact = [queries[n] for n in self._exact]
        signals = [signal for part in planned.affected for signal in part.signals]
        super().__init__([*exact, *signals], planned.private, index)
        self._exact_columns = self.columns(exact)
        numbers: dict[Hashable, int] = dict(self.numbers.items())
        decoders = planned.decoders()
        self._tables = build_tables(decoders, numbers)
        self._program = compile_decoders(decoders, numbers)

    def answer(
        self,
        bits: Columns,
        slots: NDArray[np.int64],  # noqa: ARG002 - tables are read for all subjects at once
        subjects: int,  # noqa: ARG002
    ) -> tuple[Columns, Certainty]:
        """Look the answers up in the tables."""
        windows, _, words = bits.shape
        result = np.empty((windows, len(self._exact) + len(self._tables), words), np.uint64)
        result[:, self._exact] = bits[:, self._exact_columns]
        if self._tables:
            result[:, list(self._tables)] = self._program.run(bits)
        return result, TableCertainty(self._tables, bits)


class ContextLookup(PublicProtector):
    """Finds the context of each component, and answers by the prior in that context."""

    def __init__(
        self, planned: PublicContexts, queries: Sequence[Pattern], index: PatternIndex
    ) -> None:
        self._questions = planned.exposure.questions
        self._thresholds = planned.thresholds
        parts = [question.parts for question in self._questions]
        self._exact = [query for query, found in enumerate(parts) if not found]
        self._several = [query for query, found in enumerate(parts) if len(found) > 1]
        exact = [queries[query] for query in self._exact]
        components = planned.exposure.components
        signals = [signal for component in components for signal in component.signals]
        super().__init__([*exact, *signals], planned.private, index)
        self._exact_columns = self.columns(exact)
        self._signals = [self.columns(component.signals) for component in components]
        self._readings = [
            read_prior(component, prior)
            for component, prior in zip(components, planned.priors, strict=True)
        ]
        self._single = [
            [
                (query, found[0][1])
                for query, found in enumerate(parts)
                if _is_only_part(found, number)
            ]
            for number in range(len(components))
        ]

    def answer(
        self, bits: Columns, slots: NDArray[np.int64], subjects: int
    ) -> tuple[Columns, Certainty]:
        """Find the contexts, then combine the queries from their parts."""
        windows = len(bits)
        result = np.empty((windows, len(self._questions), bits.shape[2]), np.uint64)
        result[:, self._exact] = bits[:, self._exact_columns]
        found = []
        for readings, columns, single in zip(
            self._readings, self._signals, self._single, strict=True
        ):
            words = to_columns(np.ascontiguousarray(bits[:, columns]), subjects)[:, slots]
            signals = words.reshape(windows * len(slots), words.shape[2])
            if not columns:
                signals = np.zeros((len(signals), 1), np.uint64)
            found.append((signals, readings.read(signals)))
            own = [part.query for part in readings.component.parts]
            yes = np.empty((len(signals), -(-len(own) // 64)), np.uint64)
            every = np.arange(len(signals))
            readings.answer(every, *found[-1], self._thresholds[own], yes)
            parts = _spread(yes.reshape(windows, len(slots), yes.shape[1]), slots, subjects)
            result[:, [query for query, _ in single]] = parts[:, [part for _, part in single]]
        certainty = ContextCertainty(self._readings, self._questions, found, windows, slots)
        for query in self._several:
            yes = certainty.posterior(query) >= self._thresholds[query]
            result[:, query] = _spread(yes[:, :, np.newaxis].astype(np.uint64), slots, subjects)[
                :, 0
            ]
        return result, certainty


def _read_table(part: AffectedQuery, plain: Mapping[str, Any] | None) -> Floats:
    """Read the probabilities of a query by public events; 1/2 if the plan has none.

    Decided contexts come from the specification; the plan only gives the other probabilities.
    """
    likely = np.full(len(part.decided), 0.5)
    if plain is not None:
        likely = np.array(plain[str(part.query)], np.float64)
        if likely.shape != part.decided.shape or not ((likely >= 0) & (likely <= 1)).all():
            raise PlanError("the plan's tables do not fit the specification; make a new plan")
    return np.where(part.decided < 0, likely, part.decided)


def _is_only_part(parts: Sequence[tuple[int, int]], component: int) -> bool:
    """Return whether a query has exactly one part, in this component."""
    return len(parts) == 1 and parts[0][0] == component


def _spread(words: Columns, slots: NDArray[np.int64], subjects: int) -> Columns:
    """Turn answers `[window][own subject][word]` into bit columns of all subjects."""
    full = np.zeros((len(words), subjects, words.shape[2]), np.uint64)
    full[:, slots] = words
    return to_columns(full, 64 * words.shape[2])


@dataclass(frozen=True, slots=True, eq=False)
class ContextCertainty(Certainty):
    """The contexts of some subjects, and the probabilities of queries in them."""

    readings: Sequence[PriorReadings]
    questions: Sequence[Question]
    found: Sequence[tuple[NDArray[np.uint64], Codes]]
    """For each component, signals and codes of all windows and own subjects."""
    windows: int
    slots: NDArray[np.int64]

    def posterior(
        self, query: int, windows: slice = slice(None), own: slice = slice(None)
    ) -> Shares:
        """Return `[window][own subject]`: the probability that a query is true."""
        question = self.questions[query]
        shape = self.windows, len(self.slots)
        numbers = np.arange(shape[0] * shape[1]).reshape(shape)
        chosen = numbers[windows, own]
        likely = np.ones(numbers.size)
        # Parts of different components are assumed to be independent.
        for component, part in question.parts:
            self.readings[component].weigh(
                chosen.ravel(), *self.found[component], part, likely, true=question.every
            )
        product = likely[chosen]
        return product if question.every else 1 - product

    def compute_confidence(
        self, query: int, windows: slice, slots: slice, answers: NDArray[np.bool_]
    ) -> Shares:
        """Return the probability that the given answers are true."""
        likely = np.ones(answers.shape)
        if not self.questions[query].parts:
            return likely
        begin, end = np.searchsorted(self.slots, [slots.start, slots.stop])
        own = self.slots[begin:end] - slots.start
        likely[:, own] = self.posterior(query, windows, slice(int(begin), int(end)))
        return np.where(answers, likely, 1 - likely)


def estimate_contexts(part: AffectedQuery, known: AnyEvidence) -> Floats:
    """Return `[context]`: the probability of a query by its context; 0 or 1 if decided."""
    if isinstance(known, Evidence):
        weights: Floats = known.expected.sum(axis=2)
        likely = weights[:, 1] / weights.sum(axis=1)
    else:
        false, true = _count_contexts(part, known)
        total = (false + true).sum()
        rate = true.sum() / total if total else 0.5
        likely = (true + known.strength * rate) / (false + true + known.strength)
    return np.where(part.decided < 0, likely, part.decided)


def _count_contexts(part: AffectedQuery, known: AnyEvidence) -> tuple[Floats, Floats]:
    """Return `[context]`: the number of windows where the query is false, and where true."""
    if isinstance(known, Evidence):
        windows: Floats = known.counts.sum(axis=2)
        return windows[:, 0], windows[:, 1]
    contexts = (
        known.context_numbers[known.contexts] if isinstance(known, WideEvidence) else known.contexts
    )
    false, true = (
        np.bincount(contexts[chosen], known.counts[chosen], len(part.decided))
        for chosen in (~known.truth, known.truth)
    )
    return false.astype(np.float64), true.astype(np.float64)
