"""Turn closed windows of history into the statistics for plans."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tacit.answers.answers import Answers
from tacit.patterns.booleans import to_columns
from tacit.patterns.tree import Name
from tacit.pipeline.evaluators import Evaluator, count_occurrences
from tacit.planning.combination_counts import ChosenRows, CombinationCounts, Stretches
from tacit.planning.survey import Survey
from tacit.privacy.affected_queries import AffectedQuery
from tacit.privacy.count_memory import CountHistory
from tacit.privacy.mechanisms.counts import CountLayout, CountStatus, read_history, tally_groups
from tacit.privacy.mechanisms.mechanism import PatternIndex, RunMemory
from tacit.privacy.mechanisms.noisy_windows import NoisyWindows
from tacit.privacy.mechanisms.pane_noise import draw_pane_times
from tacit.privacy.noise import Noise
from tacit.privacy.pane_counts import PaneCounts
from tacit.privacy.policies import Policies
from tacit.privacy.randomness import SeededSource
from tacit.privacy.sequences import to_local
from tacit.privacy.statistics import Statistics
from tacit.spec.groups import SubjectGroups
from tacit.spec.queries import compile_queries
from tacit.spec.specification import Specification
from tacit.windows.clock import NEVER
from tacit.windows.panes import ClosedPanes, PaneSequence
from tacit.windows.sliding import combine_panes

_ROUNDS: Final = 4
"""How often ordered queries are evaluated on windows with random private elements."""
_TOGETHER: Final = 1 << 16
"""The number of windows and subjects that are counted together."""
_HELD: Final = 1 << 26
"""The largest number of bytes of windows that wait to be counted."""


class _PendingWindows(NamedTuple):
    """Windows that wait to be counted."""

    bits: NDArray[np.uint64]
    registered: NDArray[np.bool_]
    starts: NDArray[np.int64]
    """`[window]`: when it starts."""
    policies: NDArray[np.int32]


class HistorySurvey(Evaluator):
    """Evaluates windows of history for the surveys of all policies.

    With `literal`, queries with order or conditions are also evaluated on windows in which each
    private element is present at random. That shows how literal evaluation reacts to noise. The
    randomness is seeded, so that planning is reproducible.
    """

    def __init__(self, spec: Specification, *, literal: bool) -> None:
        queries = tuple(spec.query_patterns.values())
        index = PatternIndex()
        self.policies = Policies(spec)
        self.surveys = [
            Survey(policy, queries, index.column, spec.zone) for policy in self.policies.policies
        ]
        self._counts = _CountRecorder(spec, index) if spec.count_queries else None
        self._types = list(spec.types)
        self._occurrences = np.zeros(len(self._types), np.int64)
        self._stretches = Stretches()
        self._waiting: list[_PendingWindows] = []
        self._noise = Noise(SeededSource(1))
        first = len(index.patterns)
        self._trials: list[_NoisyTrial] = []
        for number, survey in enumerate(self.surveys):
            parts = [part for part in survey.affected if part.table is None and not part.wide]
            if literal and parts:
                trial = _NoisyTrial(spec, number, parts, index, first)
                self._trials.append(trial)
                first += trial.width
        self._matched = compile_queries(spec, index.patterns, walk=not self._trials)
        self._pane_counts = [_PaneCounter(spec, survey.policy.private) for survey in self.surveys]
        if spec.windows.panes == 1:
            self._pane_counts = []
        for pane_counts in self._pane_counts:
            first = pane_counts.assign_columns(first)
        readings = [trial.reading.queries for trial in self._trials]
        super().__init__([str(number) for number in range(first)], [self._matched, *readings])

    def answer(
        self,
        closed: ClosedPanes,
        rows: Mapping[str, pl.DataFrame],
        policies: NDArray[np.int32],  # noqa: ARG002 - `count` separates them
        memory: RunMemory | None = None,  # noqa: ARG002
    ) -> tuple[NDArray[np.uint64], None]:
        """Return the bits of the index, then those of the trials of each policy."""
        self._occurrences += count_occurrences(closed, len(self._types))
        bits = [self._matched.match(closed, rows)]
        for trial in self._trials:
            bits += trial.answer(closed, rows, self._noise)
        bits += [pane_counts.sum_panes(closed) for pane_counts in self._pane_counts]
        return np.concatenate(bits, axis=1), None

    def count(self, answers: Answers, policies: NDArray[np.int32]) -> None:
        """Count answered windows, each subject's for its policy; small batches wait for more."""
        if self._counts is not None:
            self._counts.add(answers, policies)
        starts = (answers.first + np.arange(answers.windows)) * answers.step
        batch = _PendingWindows(answers.bits, answers.registered, starts, policies)
        if self._waiting and not np.array_equal(self._waiting[0].policies, policies):
            self._count_waiting()
        self._waiting.append(batch)
        if (
            sum(waiting.registered.size for waiting in self._waiting) >= _TOGETHER
            or sum(waiting.bits.nbytes for waiting in self._waiting) >= _HELD
        ):
            self._count_waiting()

    def _count_waiting(self) -> None:
        if not self._waiting:
            return
        bits, known, starts = (
            np.concatenate([batch[place] for batch in self._waiting]) for place in range(3)
        )
        policies = self._waiting[0].policies
        self._waiting = []
        division = self._stretches.divide(*known.shape)
        for number, survey in enumerate(self.surveys):
            chosen = known & (policies == number)
            survey.add(bits, chosen, division, starts)
            for trial in self._trials:
                if trial.policy == number:
                    trial.count(bits, chosen)
            if self._pane_counts:
                self._pane_counts[number].count(bits, chosen)

    def statistics(self) -> list[Statistics]:
        """Return the statistics of each policy."""
        self._count_waiting()
        found = []
        for number, survey in enumerate(self.surveys):
            read = {
                part.query: table
                for trial in self._trials
                if trial.policy == number
                for part, table in trial.tables()
            }
            counts = self._pane_counts[number].to_pane_counts() if self._pane_counts else None
            readings = [read.get(part.query) for part in survey.affected]
            statistics = survey.statistics(readings, counts, self._stretches.folds())
            found.append(replace(statistics, occurrences=self.occurrences))
        if self._counts is not None:
            found[0] = replace(found[0], counts=self._counts.to_histories())
        return found

    @property
    def occurrences(self) -> dict[str, int]:
        """In how many windows of subjects each event type occurs."""
        return dict(zip(self._types, self._occurrences.tolist(), strict=True))


class _NoisyTrial:
    """Evaluates ordered queries of one policy on windows with random private elements."""

    def __init__(
        self,
        spec: Specification,
        policy: int,
        parts: list[AffectedQuery],
        index: PatternIndex,
        first: int,
    ) -> None:
        self.policy = policy
        self.parts = parts
        private = {name for part in parts for name in part.elements}
        self.reading = NoisyWindows(spec, [part.pattern for part in parts], private)
        self._elements = self.reading.private
        self._pane = spec.windows.pane
        self._types = len(spec.types)
        self._numbers = [spec.types[name] for name in self._elements]
        round_width = len(self._elements) + len(parts)
        self.width = _ROUNDS * round_width
        self._tallies = []
        for place, part in enumerate(parts):
            true = [
                *map(index.column, part.signals),
                index.column(part.pattern),
                *(index.column(Name(name)) for name in part.elements),
            ]
            rounds = []
            for number in range(_ROUNDS):
                begin = first + number * round_width
                drawn = [begin + self._elements.index(name) for name in part.elements]
                answer = begin + len(self._elements) + place
                rounds.append(CombinationCounts([*true, *drawn, answer]))
            self._tallies.append(rounds)

    def answer(
        self, closed: ClosedPanes, rows: Mapping[str, pl.DataFrame], noise: Noise
    ) -> list[NDArray[np.uint64]]:
        """Return the drawn elements and the answers of each round."""
        if closed.panes is not None:
            return self._answer_panes(closed, closed.panes, rows, noise)
        windows, slots, _ = closed.words.shape
        words = -(-slots // 64)
        found = []
        for _ in range(_ROUNDS):
            flat = noise.source.draw_words(windows * len(self._elements) * words)
            coins = flat.reshape(windows, len(self._elements), words)
            found += [coins, self.reading.answer(closed, rows, coins, noise)]
        return found

    def _answer_panes(
        self,
        closed: ClosedPanes,
        paned: PaneSequence,
        rows: Mapping[str, pl.DataFrame],
        noise: Noise,
    ) -> list[NDArray[np.uint64]]:
        """Do the same for sliding windows: flip one in four of the bits of panes.

        The panes in which an element is present matter. This noise is neither much weaker nor much
        stronger than that of a plan, which is accurate enough.
        """
        true = to_columns(paned.words, self._types)[:, self._numbers]
        slots, timed = paned.words.shape[1], self.reading.timed
        found = []
        for _ in range(_ROUNDS):
            one, other = (noise.source.draw_words(true.size).reshape(true.shape) for _ in range(2))
            panes = true ^ (one & other)
            moments = draw_pane_times(panes, timed, paned.first, slots, self._pane, noise)
            read = self.reading.answer_panes(closed, rows, panes, moments)
            found += [combine_panes(panes, paned.count), read]
        return found

    def count(self, bits: NDArray[np.uint64], chosen: NDArray[np.bool_]) -> None:
        """Count the answers."""
        rows = ChosenRows.choose(chosen)
        for rounds in self._tallies:
            for tally in rounds:
                tally.add(bits, rows)

    def tables(self) -> list[tuple[AffectedQuery, NDArray[np.float64]]]:
        """Return the share of positive answers of each query, `[context][truth][x][y]`."""
        return [
            (part, _mean_answer(part, rounds))
            for part, rounds in zip(self.parts, self._tallies, strict=True)
        ]


class _PaneCounter:
    """Counts in how many panes of each window private elements are, in bit columns."""

    def __init__(self, spec: Specification, private: AbstractSet[str]) -> None:
        self._panes = spec.windows.panes
        self._types = {name: spec.types[name] for name in sorted(private)}
        self._all = len(spec.types)
        self._tallies: dict[str, CombinationCounts] = {}

    def assign_columns(self, first: int) -> int:
        """Assign columns from `first` on; return the column after the last."""
        width = self._panes.bit_length()
        for number, name in enumerate(self._types):
            begin = first + number * width
            self._tallies[name] = CombinationCounts(range(begin, begin + width))
        return first + len(self._types) * width

    def sum_panes(self, closed: ClosedPanes) -> NDArray[np.uint64]:
        """Return for each element the bits of its number of panes, lowest first."""
        assert closed.panes is not None
        columns = to_columns(closed.panes.words, self._all)[:, list(self._types.values())]
        windows, width = closed.panes.windows, self._panes.bit_length()
        sums = np.zeros((windows, len(self._types), width, columns.shape[2]), np.uint64)
        for pane in range(self._panes):
            carry = columns[pane : pane + windows]
            for bit in range(width):
                carry, sums[:, :, bit] = sums[:, :, bit] & carry, sums[:, :, bit] ^ carry
        return sums.reshape(windows, -1, columns.shape[2])

    def count(self, bits: NDArray[np.uint64], chosen: NDArray[np.bool_]) -> None:
        """Count windows."""
        rows = ChosenRows.choose(chosen)
        for tally in self._tallies.values():
            tally.add(bits, rows)

    def to_pane_counts(self) -> PaneCounts:
        """Return the counts."""
        windows = {}
        for name, tally in self._tallies.items():
            rows, counts = tally.rows()
            windows[name] = np.zeros(self._panes + 1)
            windows[name][rows @ (1 << np.arange(rows.shape[1]))] = counts
        return PaneCounts.from_counts(self._panes, windows)


class _CountRecorder:
    """The true counts of windows of history, in order of time."""

    def __init__(self, spec: Specification, index: PatternIndex) -> None:
        self._names = list(spec.count_patterns)
        self._layout = CountLayout(spec, SubjectGroups.read(spec))
        self._status = CountStatus(spec, index)
        self._pane, self._zone = spec.windows.pane, spec.zone
        self._starts: list[NDArray[np.int64]] = []
        self._tallies: list[NDArray[np.int64]] = []

    def add(self, answers: Answers, policies: NDArray[np.int32]) -> None:
        """Count windows that follow those of the call before."""
        opened, decided = self._status.decide(answers.bits, policies)
        bits = answers.bits[:, self._status.columns]
        subjects = answers.subjects[: len(answers.since)]
        # History may have subjects that are not registered, and so are in no group.
        known = (self._layout.find_rows(subjects) >= 0).all(axis=0)
        since = np.where(known, answers.since, NEVER)
        nobody = np.zeros(len(since), np.bool_)
        self._tallies.append(
            tally_groups(
                self._layout, bits, opened, decided, nobody, since, answers.first, subjects
            )
        )
        self._starts.append((answers.first + np.arange(answers.windows)) * self._pane)

    def to_histories(self) -> dict[str, CountHistory]:
        """Return the history of each count, by name."""
        if not self._tallies:
            return {}
        tally, starts = np.concatenate(self._tallies), np.concatenate(self._starts)
        local = to_local(starts, self._zone)
        return {
            name: read_history(tally[:, rows], self._layout.groups[rows], local)
            for name, rows in zip(self._names, self._layout.rows, strict=True)
        }


def _mean_answer(part: AffectedQuery, rounds: list[CombinationCounts]) -> NDArray[np.float64]:
    signals, size = len(part.signals), len(part.elements)
    seen = np.zeros((2, 1 << signals, 2, 1 << size, 1 << size))
    for tally in rounds:
        rows, counts = tally.rows()
        context = rows[:, :signals] @ (1 << np.arange(signals))
        truth = rows[:, signals].astype(np.int64)
        true, drawn = (
            rows[:, begin : begin + size] @ (1 << np.arange(size))
            for begin in (signals + 1, signals + 1 + size)
        )
        np.add.at(seen, (rows[:, -1].astype(np.int64), context, truth, true, drawn), counts)
    # A combination that was never drawn uses the share of its context, or 0.
    pooled = seen.sum(axis=(2, 3), keepdims=True)
    share = pooled[1] / np.maximum(pooled.sum(axis=0), 1)
    return np.asarray((seen[1] + share) / (seen.sum(axis=0) + 1))
