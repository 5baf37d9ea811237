"""Survey: count in history what the planner needs, for the subjects of one policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tacit.patterns.residuals import lift_booleans
from tacit.patterns.tree import And, Name, Not, Or, Pattern, elements
from tacit.planning.combination_counts import (
    UNDIVIDED,
    ChosenRows,
    CombinationCounts,
    Division,
    PositiveCounts,
)
from tacit.privacy.affected_queries import AffectedQuery, find_affected
from tacit.privacy.components import Exposure
from tacit.privacy.context_counts import ContextCounts
from tacit.privacy.evidence import Evidence
from tacit.privacy.joint_counts import JointColumns, JointCounts
from tacit.privacy.pane_counts import PaneCounts
from tacit.privacy.policies import Policy
from tacit.privacy.prior import Bits, Prior
from tacit.privacy.prior_tree import fit_prior
from tacit.privacy.refinement import refine_exposure
from tacit.privacy.sampled_evidence import SampledEvidence, WideEvidence
from tacit.privacy.sequences import Sequences, SequenceSample
from tacit.privacy.statistics import AnyEvidence, Fold, Statistics

Column: TypeAlias = Callable[[Pattern], int]
"""Registers a pattern to be matched and returns the number of its bit column."""
Floats = NDArray[np.float64]

_ONE_FOLD: Final = np.zeros(1, np.int64)
_JOINT: Final = 1 << 26
"""The largest number of bits of whole windows that are kept; windows beyond them are sampled."""


def assume_statistics(
    policy: Policy, queries: Sequence[Pattern], rates: Mapping[str, float], panes: int = 1
) -> Statistics:
    """Build statistics from given rates: the probability of each event type, 1/2 by default.

    They say nothing about public events, so they cannot predict quality. With sliding windows,
    all `panes` of a window are assumed to be alike.
    """
    fine, found = refine_exposure(policy, queries)
    parts = find_affected(policy, queries)

    def rate(atom: Pattern) -> float:
        return rates.get(atom.name, 0.5) if isinstance(atom, Name) else 0.5

    return Statistics(
        policy,
        fine,
        found,
        parts,
        0.0,
        np.zeros(len(queries)),
        tuple(
            Prior.from_rates(
                np.array([rate(variable.atom) for variable in component.variables]),
                len(component.signals),
            )
            for component in found.components
        ),
        tuple(
            _build_evidence(part, [rate(Name(name)) for name in part.elements]) for part in parts
        ),
        None
        if panes == 1
        else PaneCounts.from_rates(panes, {name: rate(Name(name)) for name in policy.private}),
        contexts=tuple(
            ContextCounts.empty(len(component.signals), len(component.variables))
            for component in found.components
        ),
    )


def _build_evidence(part: AffectedQuery, rates: Sequence[float]) -> AnyEvidence:
    """Build evidence equal to one window, spread over all possible contents."""
    contexts = 1 << len(part.signals)
    if part.wide:
        rows = np.arange(contexts)
        present = np.zeros((contexts, len(rates)), np.bool_)
        none = np.zeros(contexts)
        return SampledEvidence(
            part.elements,
            rows,
            present,
            rows < 0,
            none,
            lambda noisy, _: np.asarray(noisy.any(axis=1)),
        )
    choices = np.arange(1 << len(rates))
    bits = (choices[:, np.newaxis] >> np.arange(len(rates))) & 1
    chance = np.where(bits, rates, 1 - np.array(rates)).prod(axis=1)
    if part.table is not None:
        windows = np.broadcast_to(chance, part.table.shape).copy()
        return Evidence.of_presence(part.elements, part.table, windows)
    counts = np.broadcast_to(chance / 2, (contexts, 2, len(choices))).copy()
    return Evidence(part.elements, counts, np.full((*counts.shape, len(choices)), 0.5))


class Survey:
    """Counts the windows of one policy's subjects, as far as a plan needs them."""

    def __init__(
        self, policy: Policy, queries: Sequence[Pattern], column: Column, zone: str = "UTC"
    ) -> None:
        self.policy = policy
        self.fine, self.exposure = refine_exposure(policy, queries)
        self.affected = find_affected(policy, queries)
        self._components = [
            CombinationCounts(
                [
                    *(column(signal) for signal in component.signals),
                    *(column(variable.atom) for variable in component.variables),
                ]
            )
            for component in self.exposure.components
        ]
        self._sequences = SequenceSample(
            [
                (
                    [column(signal) for signal in component.signals],
                    [column(variable.atom) for variable in component.variables],
                )
                for component in self.exposure.components
            ],
            zone,
        )
        self._public = [_public_atoms(part) if part.wide else () for part in self.affected]
        self._parts = [
            CombinationCounts(
                [
                    *map(column, part.signals),
                    *(column(Name(name)) for name in part.elements),
                    column(part.pattern),
                    *map(column, public),
                ]
            )
            for part, public in zip(self.affected, self._public, strict=True)
        ]
        self._queries = PositiveCounts([column(query) for query in queries])
        self._joint_columns, joint = _list_joint(self.exposure, queries, column)
        self._joint = CombinationCounts(joint, _JOINT // len(joint)) if joint else None

    def add(
        self,
        bits: NDArray[np.uint64],
        chosen: NDArray[np.bool_],
        division: Division = UNDIVIDED,
        starts: NDArray[np.int64] | None = None,
    ) -> None:
        """Count the windows and subjects where `chosen[window][subject]` is true.

        `starts` are the start times of windows that follow those of the call before.
        """
        rows = ChosenRows.choose(chosen, division)
        self._queries.add(bits, rows)
        for tally in (*self._components, *self._parts):
            tally.add(bits, rows)
        if self._joint is not None:
            self._joint.add(bits, rows)
        if starts is not None and self.exposure.components:
            self._sequences.add(starts, bits, chosen)

    def statistics(
        self,
        readings: Sequence[NDArray[np.float64] | None],
        pane_counts: PaneCounts | None = None,
        folds: NDArray[np.int64] = _ONE_FOLD,
    ) -> Statistics:
        """Return the statistics of all windows counted so far, given the fold of each stretch.

        `readings` has for each affected query the mean answer under noise, or None where it was
        not tried.
        """
        windows, positives = np.zeros(1), np.zeros((0, 1))
        if self._queries.columns:  # else there is nothing to plan for
            windows, positives = self._queries.count(folds)
        history = _History(
            self,
            readings,
            pane_counts,
            windows,
            positives,
            [
                ContextCounts.from_rows(*tally.rows(folds), len(component.signals))
                for component, tally in zip(self.exposure.components, self._components, strict=True)
            ],
            [tally.rows(folds) for tally in self._parts],
            None
            if self._joint is None
            else JointCounts(*self._joint.words(folds), self._joint_columns),
        )
        return history.statistics()

    @property
    def sequences(self) -> Sequences | None:
        """Windows of some subjects in order of time."""
        return self._sequences.collect()

    def build_evidence(
        self, number: int, rows: Bits, counts: Floats, read: Floats | None
    ) -> AnyEvidence:
        """Build the evidence of an affected query from rows of its columns."""
        return _evidence(self.affected[number], self._public[number], rows, counts, read)


@dataclass(frozen=True, slots=True)
class _History:
    """All counts of one policy's windows, in folds."""

    survey: Survey
    readings: Sequence[Floats | None]
    pane_counts: PaneCounts | None
    windows: Floats
    """`[fold]`"""
    positives: Floats
    """`[query][fold]`"""
    contexts: Sequence[ContextCounts]
    parts: Sequence[tuple[Bits, Floats]]
    """For each affected query the rows of its columns, and their counts `[row][fold]`."""
    joint: JointCounts | None

    def statistics(self) -> Statistics:
        """Return the statistics of all folds together, and of each fold and the others."""
        fitted = [
            fit_prior(component, counts)
            for component, counts in zip(
                self.survey.exposure.components, self.contexts, strict=True
            )
        ]
        numbers = np.arange(len(self.windows))
        seen = np.flatnonzero(self.windows)
        folds = [
            Fold(
                self._choose(numbers != fold, tuple(found.without[fold] for found in fitted)),
                self._choose(numbers == fold, ()),
            )
            for fold in seen.tolist()
            if len(seen) > 1
        ]
        whole = self._choose(numbers >= 0, tuple(found.whole for found in fitted))
        return replace(whole, folds=tuple(folds), sequences=self.survey.sequences)

    def _choose(self, folds: Bits, priors: tuple[Prior, ...]) -> Statistics:
        """Return the statistics of some folds."""
        survey = self.survey
        return Statistics(
            survey.policy,
            survey.fine,
            survey.exposure,
            survey.affected,
            float(self.windows[folds].sum()),
            self.positives[:, folds].sum(axis=1),
            priors,
            tuple(
                survey.build_evidence(number, rows, counts[:, folds].sum(axis=1), read)
                for number, ((rows, counts), read) in enumerate(
                    zip(self.parts, self.readings, strict=True)
                )
            ),
            self.pane_counts,
            contexts=tuple(counts.choose_folds(folds) for counts in self.contexts),
            joint=None if self.joint is None else self.joint.choose_folds(folds),
        )


def _list_joint(
    exposure: Exposure, queries: Sequence[Pattern], column: Column
) -> tuple[JointColumns, list[int]]:
    """List the bit columns of queries over several components, and of these components."""
    found: list[int] = []

    def add(patterns: Sequence[Pattern]) -> NDArray[np.int64]:
        begin = len(found)
        found.extend(map(column, patterns))
        return np.arange(begin, len(found))

    several = [n for n, question in enumerate(exposure.questions) if len(question.parts) > 1]
    used = sorted({component for n in several for component, _ in exposure.questions[n].parts})
    own = {number: exposure.components[number] for number in used}
    columns = JointColumns(
        {number: add(component.signals) for number, component in own.items()},
        {number: add([v.atom for v in component.variables]) for number, component in own.items()},
        dict(zip(several, add([queries[n] for n in several]).tolist(), strict=True)),
    )
    return columns, found


def _evidence(
    part: AffectedQuery,
    public: tuple[Pattern, ...],
    rows: Bits,
    counts: NDArray[np.float64],
    read: NDArray[np.float64] | None,
) -> AnyEvidence:
    signals, size = len(part.signals), len(part.elements)
    contexts = rows[:, :signals] @ (1 << np.arange(signals))
    is_open = part.decided[contexts] < 0
    is_open &= counts > 0
    rows, contexts, counts = rows[is_open], contexts[is_open], counts[is_open]
    present, truth = rows[:, signals : signals + size], rows[:, signals + size]
    if part.wide:
        situation_rows, situations = np.unique(
            np.column_stack([contexts, rows[:, signals + size + 1 :]]), axis=0, return_inverse=True
        )
        return WideEvidence(
            part.elements,
            situations.ravel(),
            present,
            truth,
            counts,
            _reader(part, public, situation_rows[:, 1:].astype(np.bool_)),
            context_numbers=situation_rows[:, 0],
            number=1 << signals,
        )
    shape = (1 << signals, 2, 1 << size)
    found = np.zeros(shape)
    np.add.at(found, (contexts, truth.astype(int), present @ (1 << np.arange(size))), counts)
    if part.table is not None:
        return Evidence(part.elements, found, part.table.astype(np.float64))
    literal = np.zeros((*shape, shape[2])) if read is None else read
    return Evidence(part.elements, found, literal)


def _public_atoms(part: AffectedQuery) -> tuple[Pattern, ...]:
    """Return the public sub-patterns of a wide query."""
    hidden = set(part.elements)
    return tuple(
        atom for atom in _atoms(lift_booleans(part.pattern)) if hidden.isdisjoint(elements(atom))
    )


def _atoms(pattern: Pattern) -> tuple[Pattern, ...]:
    if not isinstance(pattern, And | Or | Not):
        return (pattern,)
    parts = pattern.parts if isinstance(pattern, And | Or) else (pattern.part,)
    return tuple(dict.fromkeys(atom for part in parts for atom in _atoms(part)))


def _reader(
    part: AffectedQuery, public: tuple[Pattern, ...], known: Bits
) -> Callable[[Bits, NDArray[np.int64]], Bits]:
    """Return a function that answers a wide query from noisy presence and situations.

    `known[situation]` are the values of the public atoms. An ordered sub-pattern with private
    elements counts as detected if all of its elements are present.
    """
    form = lift_booleans(part.pattern)

    def value(pattern: Pattern, noisy: Bits, situations: NDArray[np.int64]) -> Bits:
        if pattern in public:
            return np.asarray(known[situations, public.index(pattern)])
        match pattern:
            case And(parts):
                found = [value(inner, noisy, situations) for inner in parts]
                return np.asarray(np.logical_and.reduce(found))
            case Or(parts):
                found = [value(inner, noisy, situations) for inner in parts]
                return np.asarray(np.logical_or.reduce(found))
            case Not(inner):
                return ~value(inner, noisy, situations)
        own = [part.elements.index(name) for name in elements(pattern) if name in part.elements]
        return np.asarray(noisy[:, own].all(axis=1))

    return lambda noisy, situations: value(form, noisy, situations)
