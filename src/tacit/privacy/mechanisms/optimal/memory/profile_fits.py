"""Fit transitions to steps of history, with profiles by expectation-maximisation.

Most cells are empty: only the combinations of cell, value before and value that occur are
counted and smoothed. The whole tables are made once, at the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tacit.privacy.mechanisms.optimal.memory.transitions import (
    MOST_JOINT,
    MOST_NUMBERS,
    CellLayout,
    StepFeatures,
    Transitions,
    compare_hours,
    mix,
    smooth_contexts,
)

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]

_ROUNDS: Final = 12
"""Rounds of expectation-maximisation."""


class Steps(NamedTuple):
    """The steps of history of one component."""

    features: StepFeatures
    subject: Whole
    before: Whole
    """The value before; for a factored belief all variables as bits."""
    value: Whole


class Firsts(NamedTuple):
    """Windows of history."""

    groups: Whole
    values: Whole
    subjects: Whole


class StepModel(NamedTuple):
    """What is fitted."""

    layout: CellLayout
    variables: int
    profiles: int
    strengths: tuple[float, float]

    @property
    def joint(self) -> bool:
        """Whether beliefs are over all combinations of the variables' values."""
        return self.variables <= MOST_JOINT

    @property
    def size(self) -> int:
        """The number of values of a chain."""
        return 1 << self.variables if self.joint else 2


def choose_profiles(variables: int) -> tuple[int, ...]:
    """Return the numbers of profiles to try."""
    if variables > MOST_JOINT:
        return (1,)
    return tuple(n for n in (1, 2, 4) if n << variables <= MOST_NUMBERS)


def fit_transitions(steps: Steps, model: StepModel, firsts: Firsts) -> Transitions:
    """Fit the tables to steps of history; starts are counted from `firsts`."""
    if not model.joint:
        return _fit_factored(steps, model, firsts)
    subjects = int(max(steps.subject.max(initial=0), firsts.subjects.max(initial=0))) + 1
    index = StepIndex.build(steps, model)
    fitted = _fit_profiles(steps, index, index.places, model, subjects)
    layout, size = model.layout, model.size
    rows = np.zeros((layout.cells * size, model.profiles, size))
    rows[index.rows] = fitted.counts
    counts = rows.reshape(layout.cells, size, model.profiles, size).swapaxes(1, 2)
    first = layout.groups[firsts.groups] * size + firsts.values
    starts = [
        np.bincount(first, own[firsts.subjects], layout.kinds * size).reshape(layout.kinds, size)
        for own in fitted.shares.T
    ]
    return Transitions(
        layout,
        True,
        fitted.weights,
        np.ascontiguousarray(counts),
        np.stack(starts, axis=1),
        model.strengths,
    )


def predict_held_out(known: Steps, held_out: Steps, model: StepModel, subjects: int) -> float:
    """Return the log-likelihood of steps, given the true values before them and a fit to others.

    Steps must be in order of time. What is known about a subject's profile follows from its steps.
    """
    if not model.joint:
        return _predict_factored(known, held_out, model)
    index = StepIndex.build(join_steps([known, held_out]), model)
    here, there = np.split(index.places, [len(known.value)])
    fitted = _fit_profiles(known, index, here, model, subjects)
    tables = index.take(np.log(index.smooth(fitted.counts, model.strengths)))
    each = _add_steps(tables[there], held_out.subject, fitted.weights, subjects)
    top = each.max(axis=1, keepdims=True)
    return float((np.log(np.exp(each - top).sum(axis=1)) + top[:, 0]).sum())


def join_steps(parts: list[Steps]) -> Steps:
    """Return all steps, in this order."""
    features = zip(*(part.features for part in parts), strict=True)
    rest = zip(*(part[1:] for part in parts), strict=True)
    return Steps(StepFeatures(*map(np.concatenate, features)), *map(np.concatenate, rest))


@dataclass(frozen=True, slots=True, eq=False)
class StepIndex:
    """The combinations of cell, value before and value that occur.

    A *row* is a cell and a value before.
    """

    layout: CellLayout
    size: int
    places: Whole
    """`[step]`: the number of its combination."""
    rows: Whole
    """The rows that occur: a cell times `size`, plus the value before."""
    row: Whole
    """`[combination]`: the number of its row."""
    value: Whole
    """`[combination]`"""

    @classmethod
    def build(cls, steps: Steps, model: StepModel) -> StepIndex:
        """Number what occurs in these steps."""
        layout, size = model.layout, model.size
        rows = layout.number(steps.features) * size + steps.before
        keys, places = _number(rows * size + steps.value, layout.cells * size * size)
        found, row = _number(keys // size, layout.cells * size)
        return cls(layout, size, places, found, row, keys % size)

    def count(self, places: Whole, subject: Whole, shares: Floats) -> Floats:
        """Count steps `[row][profile][value]`, each by the likely profile of its subject."""
        counts = np.zeros((len(self.rows), shares.shape[1], self.size))
        for profile, own in enumerate(shares.T):
            found = np.bincount(places, own[subject], len(self.row))
            counts[self.row, profile, self.value] = found
        return counts

    def take(self, tables: Floats) -> Floats:
        """Return `[combination][profile]` of tables `[row][profile][value]`."""
        return np.asarray(tables[self.row, :, self.value])

    def smooth(self, counts: Floats, strengths: tuple[float, float]) -> Floats:
        """Do what `Transitions.smooth` does, for the rows that occur."""
        kinds, _, levels, slots = self.layout.shape
        profiles, size = counts.shape[1:]
        cells, before = np.divmod(self.rows, size)
        contexts, slot = np.divmod(cells, slots)
        context, hour = strengths
        shape = (kinds, kinds, levels, size, profiles, size)
        by_context = _add_rows(contexts * size + before, counts, kinds * kinds * levels * size)
        mixed = smooth_contexts(by_context.reshape(shape).swapaxes(3, 4), context, joint=True)
        mixed = mixed.reshape(-1, profiles, size, size)[contexts, :, before]
        if slots > 1:
            here = slot * size + before
            likely = (counts.sum(axis=-1, keepdims=True) * mixed).sum(axis=1)
            found, expected = (
                _add_rows(here, part, slots * size).reshape(slots, size, size)
                for part in (counts.sum(axis=1), likely)
            )
            more = compare_hours(found, expected, hour, axis=0)
            mixed = mixed * more.reshape(-1, size)[here, np.newaxis]
            mixed /= mixed.sum(axis=-1, keepdims=True)
        return mix(counts, mixed, hour)


def _number(keys: Whole, most: int) -> tuple[Whole, Whole]:
    """Return the distinct keys, which are less than `most`, sorted, and the number of each."""
    if most > 8 * len(keys):
        found, places = np.unique(keys, return_inverse=True)
        return found, places.ravel()
    there = np.zeros(most, np.bool_)
    there[keys] = True
    return np.flatnonzero(there), (np.cumsum(there) - 1)[keys]


def _add_rows(places: Whole, rows: Floats, number: int) -> Floats:
    """Return `[place]...`: the sum of the rows at each place."""
    flat = rows.reshape(len(rows), -1)
    width = flat.shape[1]
    cells = (places * width)[:, np.newaxis] + np.arange(width)
    sums = np.bincount(cells.ravel(), flat.ravel(), number * width).astype(np.float64, copy=False)
    return sums.reshape(number, *rows.shape[1:])


class _ProfileFit(NamedTuple):
    shares: Floats
    """`[subject][profile]`: how likely each profile is."""
    counts: Floats
    """`[row][profile][value]`"""

    @property
    def weights(self) -> Floats:
        """The share of subjects with each profile."""
        weights = np.maximum(self.shares.mean(axis=0), 1e-6)
        return np.asarray(weights / weights.sum())


def _fit_profiles(
    steps: Steps, index: StepIndex, places: Whole, model: StepModel, subjects: int
) -> _ProfileFit:
    """Find how likely each subject has each profile, in some rounds."""
    shares = _guess_profiles(steps, subjects, model.profiles)
    fitted = _ProfileFit(shares, index.count(places, steps.subject, shares))
    for _ in range(_ROUNDS if model.profiles > 1 else 0):
        tables = index.take(np.log(index.smooth(fitted.counts, model.strengths)))
        likely = _add_steps(tables[places], steps.subject, fitted.weights, subjects)
        likely -= likely.max(axis=1, keepdims=True)
        shares = np.exp(likely)
        shares /= shares.sum(axis=1, keepdims=True)
        fitted = _ProfileFit(shares, index.count(places, steps.subject, shares))
    return fitted


def _add_steps(likely: Floats, subject: Whole, weights: Floats, subjects: int) -> Floats:
    """Return `[subject][profile]`: the log-likelihood of its steps with this profile."""
    each = [np.bincount(subject, own, subjects) for own in likely.T]
    return np.asarray(np.stack(each, axis=1) + np.log(weights))


def _guess_profiles(steps: Steps, subjects: int, profiles: int) -> Floats:
    """Begin with profiles by how often anything private is there."""
    shares = np.full((subjects, profiles), 0.1 / profiles)
    total = np.bincount(steps.subject, minlength=subjects)
    there = np.bincount(steps.subject, steps.value > 0, subjects)
    rank = np.argsort(np.argsort(there / np.maximum(1, total), kind="stable"), kind="stable")
    shares[np.arange(subjects), rank * profiles // subjects] += 0.9
    return shares


def _fit_factored(steps: Steps, model: StepModel, firsts: Firsts) -> Transitions:
    layout, variables = model.layout, model.variables
    cells = layout.number(steps.features)
    counts = np.zeros((layout.cells, variables, 2, 2))
    starts = np.zeros((layout.kinds, variables, 2))
    for variable in range(variables):
        before, value = ((part >> variable) & 1 for part in (steps.before, steps.value))
        found = np.bincount((cells * 2 + before) * 2 + value, minlength=layout.cells * 4)
        counts[:, variable] = found.reshape(layout.cells, 2, 2)
        first = layout.groups[firsts.groups] * 2 + ((firsts.values >> variable) & 1)
        starts[:, variable] = np.bincount(first, minlength=layout.kinds * 2).reshape(-1, 2)
    return Transitions(layout, False, np.ones(variables), counts, starts, model.strengths)


def _predict_factored(known: Steps, held_out: Steps, model: StepModel) -> float:
    none = np.empty(0, np.int64)
    fitted = _fit_factored(known, model, Firsts(none, none, none))
    cells = model.layout.number(held_out.features)
    total = 0.0
    for variable in range(model.variables):
        before, value = ((part >> variable) & 1 for part in (held_out.before, held_out.value))
        total += float(np.log(fitted.tables[cells, variable, before, value]).sum())
    return total
