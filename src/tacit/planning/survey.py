"""Survey: count in history what the planner needs, for the subjects of one policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tacit.patterns.residuals import boolean_form
from tacit.patterns.tree import And, Name, Not, Or, Pattern, elements
from tacit.planning.tallies import CombinationCounts
from tacit.privacy.affected_queries import AffectedQuery, find_affected
from tacit.privacy.components import Component, find_exposure
from tacit.privacy.evidence import Evidence
from tacit.privacy.pane_counts import PaneCounts
from tacit.privacy.policies import Policy
from tacit.privacy.prior import Bits, Prior
from tacit.privacy.refinement import refine
from tacit.privacy.sampled_evidence import SampledEvidence, WideEvidence
from tacit.privacy.statistics import AnyEvidence, Statistics

Column: TypeAlias = Callable[[Pattern], int]
"""Registers a pattern to be matched and returns the number of its bit column."""
STRENGTHS = (1.0, 4.0, 16.0, 64.0, 256.0, 1024.0)
"""Candidates for the number of windows that the base rates count for."""


def assume_statistics(
    policy: Policy, queries: Sequence[Pattern], rates: Mapping[str, float], panes: int = 1
) -> Statistics:
    """Build statistics from given rates: the probability of each event type, 1/2 by default.

    They say nothing about public events, so they cannot predict quality. With sliding windows,
    all `panes` of a window are assumed to be alike.
    """
    fine = refine(policy, queries)
    found = find_exposure(fine, queries)
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
        tuple(_by_hand(part, [rate(Name(name)) for name in part.elements]) for part in parts),
        None
        if panes == 1
        else PaneCounts.from_rates(panes, {name: rate(Name(name)) for name in policy.private}),
    )


def _by_hand(part: AffectedQuery, rates: Sequence[float]) -> AnyEvidence:
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

    def __init__(self, policy: Policy, queries: Sequence[Pattern], column: Column) -> None:
        self.policy = policy
        self.fine = refine(policy, queries)
        self.exposure = find_exposure(self.fine, queries)
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
        self._queries = [CombinationCounts([column(query)]) for query in queries]

    def add(self, bits: NDArray[np.uint64], chosen: NDArray[np.bool_]) -> None:
        """Count the windows and subjects where `chosen[window][subject]` is true."""
        for tally in (*self._components, *self._parts, *self._queries):
            tally.add(bits, chosen)

    def statistics(
        self,
        readings: Sequence[NDArray[np.float64] | None],
        pane_counts: PaneCounts | None = None,
    ) -> Statistics:
        """Return the counts as statistics; `readings` are literal answers of ordered queries."""
        positives = []
        windows = 0.0
        for tally in self._queries:
            found, counts = tally.rows()
            windows = float(counts.sum())
            positives.append(float(counts[found[:, 0]].sum()))
        return Statistics(
            self.policy,
            self.fine,
            self.exposure,
            self.affected,
            windows,
            np.array(positives),
            tuple(
                _prior(component, *tally.rows())
                for component, tally in zip(self.exposure.components, self._components, strict=True)
            ),
            tuple(
                _evidence(part, public, *tally.rows(), read)
                for part, public, tally, read in zip(
                    self.affected, self._public, self._parts, readings, strict=True
                )
            ),
            pane_counts,
        )


def _prior(component: Component, rows: Bits, counts: NDArray[np.float64]) -> Prior:
    width = len(component.signals)
    order = np.lexsort(rows[:, :width].T) if width and len(rows) else np.arange(len(rows))
    signals, values, counts = rows[order, :width], rows[order, width:], counts[order]
    rates = np.array(
        [
            _rate(component, number, signals, values[:, number], counts)
            for number in range(len(component.variables))
        ]
    )
    strength = _strength(signals, values, counts, rates)
    return Prior(rates, signals, values, counts, strength)


def _rate(
    component: Component,
    number: int,
    signals: Bits,
    values: Bits,
    counts: NDArray[np.float64],
) -> float:
    """Return how often a variable is true; for a sub-pattern, only where it is open."""
    if not isinstance(component.variables[number].atom, Name):
        free = _free(component, number, signals)
        values, counts = values[free], counts[free]
    # Half a window of each kind is added, so that nothing is impossible.
    return float((counts[values].sum() + 0.5) / (counts.sum() + 1.0))


def _free(component: Component, number: int, signals: Bits) -> Bits:
    """Return the rows in whose context a variable makes a difference."""
    free = np.zeros(len(signals), np.bool_)
    known = np.concatenate([np.zeros((len(signals), 1)), np.ones((len(signals), 1)), signals], 1)
    for part in component.parts:
        if number not in part.variables:
            continue
        bit = 1 << part.variables.index(number)
        for choice, cofactor in enumerate(part.cofactors):
            if not choice & bit:
                free |= known[:, cofactor] != known[:, part.cofactors[choice | bit]]
    return free


def _strength(
    signals: Bits,
    values: Bits,
    counts: NDArray[np.float64],
    rates: NDArray[np.float64],
) -> float:
    """Choose the number of windows that base rates count for, by maximum likelihood."""
    from scipy.special import gammaln

    if not len(counts):
        return STRENGTHS[1]
    base = np.where(values, rates, 1 - rates).prod(axis=1)
    new = np.append(True, (signals[1:] != signals[:-1]).any(axis=1))
    totals = np.add.reduceat(counts, np.flatnonzero(new))

    def likely(strength: float) -> float:
        prior = strength * base
        each = (gammaln(counts + prior) - gammaln(prior)).sum()
        return float(each + (gammaln(strength) - gammaln(totals + strength)).sum())

    return max(STRENGTHS, key=likely)


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
        atom for atom in _atoms(boolean_form(part.pattern)) if hidden.isdisjoint(elements(atom))
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
    form = boolean_form(part.pattern)

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
