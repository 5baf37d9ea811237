"""Evaluators compute bit columns from closed windows. Every run has one:

- `ProtectedEvaluator` (`protected_evaluator.py`): protected answers; `tacit run` and the service.
- `Detector`: the true answers; `tacit.detect`, and the default where there is no plan.
- `CountingDetector`: the same with counts of event types; `tacit detect`.
- `HistorySurvey` (`survey.py`): statistics of history, for the planner.

All of them match patterns, so each declares which events must be kept until a window closes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from tacit.errors import PrivacyError
from tacit.kernels.threads import ALL_CORES, Workers
from tacit.patterns.bits import ChainBits
from tacit.patterns.booleans import to_columns
from tacit.privacy.certainty import Certainty
from tacit.privacy.mechanisms.counts import (
    CountBits,
    CountDraws,
    CountLayout,
    ReleasedBits,
    count_exactly,
)
from tacit.privacy.mechanisms.mechanism import RunMemory
from tacit.privacy.prices import Claim
from tacit.spec.groups import SubjectGroups
from tacit.spec.queries import compile_queries
from tacit.spec.specification import Specification
from tacit.windows.panes import ClosedPanes
from tacit.windows.queries import Queries


class Evaluator(ABC):
    """Computes bit columns from closed windows: one for each of `names`.

    `queries` are all patterns that it matches.
    """

    private = True
    """Whether the noise, if any, comes from a cryptographic source and not from a seed."""
    protects = False
    """Whether answers are protected. Then every subject in a private pattern must be registered."""
    remembers = False
    """Whether it uses what is remembered from the windows before."""
    workers: Workers = ALL_CORES
    """The threads of the run."""

    def __init__(
        self, names: Sequence[str], queries: Sequence[Queries], consumers: Sequence[str] = ()
    ) -> None:
        self.names = tuple(names)
        self.consumers = tuple(consumers)
        """The consumer of each name; empty for statistics."""
        self.queries = queries

    @abstractmethod
    def answer(
        self,
        closed: ClosedPanes,
        rows: Mapping[str, pl.DataFrame],
        policies: NDArray[np.int32],
        memory: RunMemory | None = None,
    ) -> tuple[NDArray[np.uint64], Certainty | None]:
        """Return `bits[window][name][word]`, and their certainty if they are protected.

        `policies` holds the number of each subject's policy. Where a subject does not pay, as
        when its limit is reached, the number of policies is added to it. `memory` is what is
        remembered from the windows before, and receives what is remembered of these.
        """

    def count_subjects(
        self,
        closed: ClosedPanes,  # noqa: ARG002
        rows: Mapping[str, pl.DataFrame],  # noqa: ARG002
        policies: NDArray[np.int32],  # noqa: ARG002
        since: NDArray[np.int64],  # noqa: ARG002
        subjects: pa.Array,  # noqa: ARG002
        memory: RunMemory | None = None,  # noqa: ARG002
    ) -> CountDraws | None:
        """Return the counts of windows that were answered last; None if there are none.

        `since` is the first window of each subject, and `subjects` are their names. `policies` and
        `memory` are as for `answer`; another policy number means that a subject is left out.
        """
        return None

    layout: CountLayout | None = None
    """The rows of its counts; None if there are none."""

    def read_counts(
        self,
        closed: ClosedPanes,  # noqa: ARG002
        rows: Mapping[str, pl.DataFrame],  # noqa: ARG002
        policies: NDArray[np.int32],  # noqa: ARG002
    ) -> CountBits | None:
        """Return what counts of windows that were answered last are made of; None without counts.

        An engine that is distributed draws them elsewhere, for all its subjects together.
        """
        return None

    def draw_counts(
        self,
        bits: CountBits,  # noqa: ARG002
        silent: NDArray[np.bool_],  # noqa: ARG002
        since: NDArray[np.int64],  # noqa: ARG002
        subjects: pa.Array,  # noqa: ARG002
        memory: RunMemory | None = None,  # noqa: ARG002
        answers: ReleasedBits | None = None,  # noqa: ARG002
    ) -> CountDraws:
        """Return the counts that `bits` give; subjects in `silent` do not pay, and are left out.

        By default there are none, as `read_counts` says.
        """
        raise PrivacyError("there are no counts to draw")

    def price(
        self,
        closed: ClosedPanes,
        rows: Mapping[str, pl.DataFrame],  # noqa: ARG002
        policies: NDArray[np.int32],
        claims: Sequence[Claim],
        memory: RunMemory | None = None,  # noqa: ARG002
    ) -> NDArray[np.int64]:
        """Return `[window][claim][subject]`: what the answers cost; 0 if they are not protected."""
        return np.zeros((len(closed.words), len(claims), len(policies)), np.int64)

    def price_counts(
        self,
        policies: NDArray[np.int32],  # noqa: ARG002
        claims: Sequence[Claim],  # noqa: ARG002
        subjects: pa.Array,  # noqa: ARG002
    ) -> NDArray[np.int64] | None:
        """Return what the counts of the windows that were priced last cost; None without counts."""
        return None

    def price_count_bits(
        self,
        bits: CountBits,  # noqa: ARG002
        claims: Sequence[Claim],
        subjects: pa.Array,
        memory: RunMemory | None = None,  # noqa: ARG002
    ) -> NDArray[np.int64]:
        """Return what counts cost that `draw_counts` draws; 0 if they are not protected."""
        return np.zeros((1, len(claims), len(subjects)), np.int64)

    def gains(self, policies: NDArray[np.int32]) -> NDArray[np.float64]:
        """Return by subject what the draws of the window that was priced last gain; inf if unknown.

        It depends on public events, and on what was released before, alone.
        """
        return np.full(len(policies), np.inf)

    @property
    def uses_presence(self) -> bool:
        """Whether anything is computed from the presence of event types in a window."""
        return True

    @property
    def ordered_types(self) -> NDArray[np.uint64]:
        """The event types whose events are kept in order, as mask words."""
        words = [part.matcher.ordered_types for part in self.queries]
        return np.asarray(np.bitwise_or.reduce(words))

    @property
    def automaton(self) -> ChainBits | None:
        """The automaton that runs as tuples arrive; None if a query needs all events in order."""
        return self.queries[0].automaton if len(self.queries) == 1 else None

    @property
    def attributes(self) -> dict[str, tuple[str, ...]]:
        """The attributes that conditions compare, by stream."""
        found: dict[str, dict[str, None]] = {}
        for part in self.queries:
            for stream, columns in part.attributes.items():
                found.setdefault(stream, {}).update(dict.fromkeys(columns))
        return {stream: tuple(columns) for stream, columns in found.items()}

    @property
    def compared_types(self) -> NDArray[np.uint64]:
        """The event types whose tuples appear in conditions, as mask words."""
        return np.asarray(np.bitwise_or.reduce([part.compared_types for part in self.queries]))


def count_occurrences(closed: ClosedPanes, types: int) -> NDArray[np.int64]:
    """Return for each event type the number of windows of subjects in which it occurs."""
    present = np.bitwise_count(to_columns(closed.words, types))
    return np.asarray(present.sum(axis=(0, 2), dtype=np.int64))


class Detector(Evaluator):
    """Computes the true answers."""

    def __init__(self, spec: Specification, groups: SubjectGroups | None = None) -> None:
        """`groups` are those of counts; by default they are read from the registry file."""
        asked, counted = spec.query_patterns, spec.count_patterns
        queries = compile_queries(spec, [*asked.values(), *counted.values()])
        consumers = [query.consumer for query in spec.boolean_queries]
        super().__init__(list(asked), [queries], consumers)
        self._counted = np.empty((0, len(counted), 0), np.uint64)
        """The bits of the counted patterns, in the windows that were answered last."""
        if counted:
            self.layout = CountLayout(spec, groups or SubjectGroups.read(spec))

    @property
    def uses_presence(self) -> bool:
        """Whether a query depends on the presence of event types."""
        return self.queries[0].matcher.uses_presence

    def answer(
        self,
        closed: ClosedPanes,
        rows: Mapping[str, pl.DataFrame],
        policies: NDArray[np.int32],  # noqa: ARG002 - true answers ignore policies
        memory: RunMemory | None = None,  # noqa: ARG002
    ) -> tuple[NDArray[np.uint64], None]:
        """Return what was detected."""
        bits, asked = self.queries[0].match(closed, rows), len(self.names)
        self._counted = bits[:, asked:]
        return bits[:, :asked], None

    def count_subjects(
        self,
        closed: ClosedPanes,
        rows: Mapping[str, pl.DataFrame],  # noqa: ARG002
        policies: NDArray[np.int32],  # noqa: ARG002
        since: NDArray[np.int64],
        subjects: pa.Array,
        memory: RunMemory | None = None,  # noqa: ARG002
    ) -> CountDraws | None:
        """Return the true counts."""
        if self.layout is None:
            return None
        return count_exactly(self.layout, self._counted, since, closed.first, subjects)

    def read_counts(
        self,
        closed: ClosedPanes,
        rows: Mapping[str, pl.DataFrame],  # noqa: ARG002
        policies: NDArray[np.int32],  # noqa: ARG002
    ) -> CountBits | None:
        """Return for whom the patterns are detected; nothing is open where answers are true."""
        if self.layout is None:
            return None
        return CountBits(closed.first, np.zeros_like(self._counted), self._counted)

    def draw_counts(
        self,
        bits: CountBits,
        silent: NDArray[np.bool_],  # noqa: ARG002
        since: NDArray[np.int64],
        subjects: pa.Array,
        memory: RunMemory | None = None,  # noqa: ARG002
        answers: ReleasedBits | None = None,  # noqa: ARG002
    ) -> CountDraws:
        """Return the true counts."""
        assert self.layout is not None, "there are counts"
        return count_exactly(self.layout, bits.detected, since, bits.first, subjects)


class CountingDetector(Detector):
    """Computes the true answers, and counts the windows in which each event type occurs."""

    def __init__(self, spec: Specification) -> None:
        super().__init__(spec)
        self._types = list(spec.types)
        self._occurrences = np.zeros(len(self._types), np.int64)

    @property
    def uses_presence(self) -> bool:
        """Presence is counted, whether queries depend on it or not."""
        return True

    @property
    def occurrences(self) -> dict[str, int]:
        """In how many windows of subjects each event type occurred so far."""
        return dict(zip(self._types, self._occurrences.tolist(), strict=True))

    def answer(
        self,
        closed: ClosedPanes,
        rows: Mapping[str, pl.DataFrame],
        policies: NDArray[np.int32],
        memory: RunMemory | None = None,
    ) -> tuple[NDArray[np.uint64], None]:
        """Return what was detected."""
        self._occurrences += count_occurrences(closed, len(self._types))
        return super().answer(closed, rows, policies, memory)
