"""The evaluator of a run with a plan: closed windows become protected answers.

Each subject is answered by the mechanism of its policy.

Nothing that depends on private events leaves a mechanism except through `Noise`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from types import MappingProxyType

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from tacit.errors import PrivacyError
from tacit.kernels.threads import ALL_CORES, Workers
from tacit.pipeline.evaluators import Evaluator
from tacit.privacy.certainty import Certainty, CertaintyByPolicy
from tacit.privacy.count_answers import AnswerCount, AnswerEstimator
from tacit.privacy.count_memory import CountMemory
from tacit.privacy.mechanisms.counts import (
    CountBits,
    CountDraws,
    CountLayout,
    CountRelease,
    ReleasedBits,
)
from tacit.privacy.mechanisms.mechanism import (
    Columns,
    Mechanism,
    PatternIndex,
    RunMemory,
    RunSetup,
    WindowBits,
    pack_slots,
)
from tacit.privacy.mechanisms.optimal.memory.protector import MemoryProtector
from tacit.privacy.noise import Noise
from tacit.privacy.prices import Claim
from tacit.spec.groups import SubjectGroups
from tacit.spec.queries import compile_queries
from tacit.spec.specification import Specification
from tacit.windows.panes import ClosedPanes


def name_policy(number: int) -> str:
    """Return the name under which the draws and the memory of a policy are saved."""
    return f"policy{number}"


class ProtectedEvaluator(Evaluator):
    """Matches patterns and has protectors draw the answers, policy by policy."""

    protects = True

    def __init__(
        self,
        spec: Specification,
        mechanisms: Sequence[Mechanism],
        noise: Noise,
        counts: Mapping[str, Fraction] = MappingProxyType({}),
        groups: SubjectGroups | None = None,
        count_memories: Mapping[str, CountMemory] = MappingProxyType({}),
        answer_counts: Mapping[str, AnswerCount] = MappingProxyType({}),
        workers: Workers = ALL_CORES,
    ) -> None:
        queries = tuple(spec.query_patterns.values())
        index = PatternIndex()
        self.private = noise.private
        self.workers = workers
        self.protectors = [
            mechanism.start(RunSetup(spec, queries, index, noise, name_policy(number), workers))
            for number, mechanism in enumerate(mechanisms)
        ]
        self.remembers = any(protector.remembers for protector in self.protectors)
        limited = any(private.limit is not None for private in spec.private)
        replaced = limited or spec.windows.panes > 1
        self.public_only = [
            mechanism.public_only.start(queries, index) for mechanism in mechanisms if replaced
        ]
        """The replacement of each mechanism where private events must not be used: for subjects
        whose limit is reached, and for all subjects for a while after a reload.
        """
        self._counts: CountRelease | None = None
        if spec.count_queries:
            self.layout = CountLayout(spec, groups or SubjectGroups.read(spec))
            numbers = {name: number for number, name in enumerate(spec.query_patterns)}
            estimators = {
                name: AnswerEstimator(one, numbers[one.query], mechanisms, spec.windows.panes)
                for name, one in answer_counts.items()
            }
            self._counts = CountRelease(
                spec, counts, self.layout, index, noise, count_memories, estimators
            )
        self._released: ReleasedBits | None = None
        """The answers of the windows that were answered last, if there are counts."""
        self._last: WindowBits | None = None
        """The windows that were priced or answered last: they are answered or counted next."""
        read = [own.queries for own in self.protectors if own.queries is not None]
        self._matched = compile_queries(spec, index.patterns, walk=not read)
        super().__init__(
            [query.name for query in spec.boolean_queries],
            [self._matched, *read],
            [query.consumer for query in spec.boolean_queries],
        )

    def price(
        self,
        closed: ClosedPanes,
        rows: Mapping[str, pl.DataFrame],
        policies: NDArray[np.int32],
        claims: Sequence[Claim],
        memory: RunMemory | None = None,
    ) -> NDArray[np.int64]:
        """Compute what the answers about single subjects cost each claim.

        It depends on public events and released answers alone. A subject that is answered by
        `public_only` pays nothing.
        """
        windows = self._last = replace(self._match(closed, rows), memory=memory or RunMemory({}))
        if len(self.protectors) == 1 and int(policies.max(initial=0)) == 0:
            return self.protectors[0].price(windows, claims)
        prices = np.zeros((len(windows.bits), len(claims), windows.slots), np.int64)
        for number, protector in enumerate(self.protectors):
            own = policies == number
            if own.any():
                found = protector.price(replace(windows, own=own), claims)
                prices[:, :, own] = found[:, :, own]
        return prices

    def price_counts(
        self, policies: NDArray[np.int32], claims: Sequence[Claim], subjects: pa.Array
    ) -> NDArray[np.int64] | None:
        """Compute what the counts of the windows that were priced last cost each claim."""
        if self._counts is None:
            return None
        assert self._last is not None, "windows are priced first"
        return self._counts.price(self._last, policies, claims, subjects)

    def price_count_bits(
        self,
        bits: CountBits,
        claims: Sequence[Claim],
        subjects: pa.Array,
        memory: RunMemory | None = None,
    ) -> NDArray[np.int64]:
        """Compute what counts cost that `draw_counts` draws."""
        assert self._counts is not None, "there are counts"
        return self._counts.price_bits(bits, claims, subjects, memory)

    def gains(self, policies: NDArray[np.int32]) -> NDArray[np.float64]:
        """Return by subject what the draws of the window that was priced last gain."""
        windows = self._last
        assert windows is not None, "windows are priced first"
        found = np.full(len(policies), np.inf)
        for number, protector in enumerate(self.protectors):
            own = policies == number
            if isinstance(protector, MemoryProtector) and own.any():
                given = windows if len(self.protectors) == 1 else replace(windows, own=own)
                found[own] = protector.gains(given)[own]
        return found

    def _match(self, closed: ClosedPanes, rows: Mapping[str, pl.DataFrame]) -> WindowBits:
        """Match all patterns, unless it was done for the price of these windows."""
        if self._last is not None and self._last.closed is closed:
            return self._last
        return WindowBits(self._matched.match(closed, rows), closed, rows)

    def count_subjects(
        self,
        closed: ClosedPanes,
        rows: Mapping[str, pl.DataFrame],
        policies: NDArray[np.int32],
        since: NDArray[np.int64],
        subjects: pa.Array,
        memory: RunMemory | None = None,
    ) -> CountDraws | None:
        """Draw the counts of windows, each from a channel of its own."""
        if self._counts is None:
            return None
        return self._counts.draw(
            self._match(closed, rows), policies, since, subjects, memory, self._released
        )

    def read_counts(
        self,
        closed: ClosedPanes,
        rows: Mapping[str, pl.DataFrame],
        policies: NDArray[np.int32],
    ) -> CountBits | None:
        """Return for whom counts are open, and who has the patterns."""
        return (
            None if self._counts is None else self._counts.read(self._match(closed, rows), policies)
        )

    def draw_counts(
        self,
        bits: CountBits,
        silent: NDArray[np.bool_],
        since: NDArray[np.int64],
        subjects: pa.Array,
        memory: RunMemory | None = None,
        answers: ReleasedBits | None = None,
    ) -> CountDraws:
        """Draw counts, each from a channel of its own."""
        assert self._counts is not None, "there are counts"
        return self._counts.draw_bits(bits, silent, since, subjects, memory, answers)

    def answer(
        self,
        closed: ClosedPanes,
        rows: Mapping[str, pl.DataFrame],
        policies: NDArray[np.int32],
        memory: RunMemory | None = None,
    ) -> tuple[Columns, Certainty]:
        """Compute the protected answers, with each subject's own policy."""
        bits, certainty = self._answer(closed, rows, policies, memory)
        if self._counts is not None:
            self._released = ReleasedBits(bits, certainty, policies)
        return bits, certainty

    def _answer(
        self,
        closed: ClosedPanes,
        rows: Mapping[str, pl.DataFrame],
        policies: NDArray[np.int32],
        memory: RunMemory | None,
    ) -> tuple[Columns, Certainty]:
        windows = replace(self._match(closed, rows), memory=memory or RunMemory({}))
        if self._counts is not None:
            self._last = windows
        number = len(self.protectors)
        exhausted = int(policies.max(initial=0)) >= number
        if len(self.protectors) == 1 and not exhausted:
            return self.protectors[0].protect(windows, None)
        silent = policies >= number
        parts: list[tuple[NDArray[np.bool_], tuple[Columns, Certainty]]] = []
        for place, protector in enumerate(self.protectors):
            own = policies % number == place
            if protector.remembers:
                whole = own if number > 1 else None
                given = replace(windows, own=whole, silent=silent if exhausted else None)
                parts.append((own, protector.protect(given, whole)))
                continue
            paying = own & ~silent
            parts.append((paying, protector.protect(windows, paying)))
            if (own & silent).any():
                if not self.public_only:
                    raise PrivacyError("no private pattern has a limit, so no limit can be reached")
                parts.append((own & silent, self.public_only[place].protect(windows, own & silent)))
        result = np.zeros_like(parts[0][1][0])
        numbers = np.zeros(len(policies), np.int32)
        for place, (own, (bits, _)) in enumerate(parts):
            result |= bits & pack_slots(own)
            numbers[own] = place
        return result, CertaintyByPolicy(numbers, [certainty for _, (_, certainty) in parts])
