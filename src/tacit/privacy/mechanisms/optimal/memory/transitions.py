"""How the private unknowns of a component change from window to window, by public events.

The *cell* of a window is what is public about the step to it: the group of contexts of the window
before and of this one, how often something was open recently (three levels), the hour of the day,
and whether it is a weekend. Each cell has a table of transitions. Cells with few windows are
smoothed towards larger ones: those of all hours, then of all levels, then of all contexts before,
then of all contexts. What an hour changes is measured on all contexts together, and added to the
cells of all hours.

Subjects differ: what is rare for one is usual for another. So each subject has a *profile*, which
is never known and hardly ever changes. Each profile has its own tables, and the belief about a
subject is over its profile and the values of the variables together.

A component with more than `MOST_JOINT` variables has one chain for each variable instead, and no
profiles.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tacit.errors import PlanError

Floats = NDArray[np.float64]
Singles = NDArray[np.float32]
Whole = NDArray[np.int64]

MOST_JOINT: Final = 6
"""Up to this many variables a belief is over all combinations of their values."""
MOST_VARIABLES: Final = 32
"""A component with more variables has no memory."""
MOST_NUMBERS: Final = 64
"""The largest number of probabilities of a joint belief."""
LEVELS: Final = 3
"""How often something was open recently: rarely, sometimes, often."""
DECAY: Final = 0.9
"""How much of the running average is left after a window."""
SWITCH: Final = 0.005
"""The probability that a subject's profile changes from one window to the next."""
_TABLE_NUMBERS: Final = 1 << 20
"""The largest number of entries of all tables."""
_MOST_GROUPS: Final = 12
"""The largest number of groups of contexts that are told apart; others count as one."""
_SLOTS: Final = (48, 12, 1)
"""Divisions of the week: hours of working days and weekends, four-hour spans, none."""
_MOST_STEPS: Final = 1e15
"""Counts in a plan file are smaller than this."""
_ROUNDS: Final = 12
"""Rounds of expectation-maximisation."""


class StepFeatures(NamedTuple):
    """What is public about each step from one window to the next, `[step]`."""

    before: Whole
    """The group of the context before."""
    here: Whole
    level: Whole
    hour: Whole
    """The hour of the week."""


@dataclass(frozen=True, slots=True)
class CellLayout:
    """Numbers the cells."""

    groups: NDArray[np.int64]
    """For each group of the prior, its number among those that are told apart."""
    kinds: int
    """How many groups are told apart."""
    slots: int
    """How many divisions of the week are told apart."""
    edges: tuple[float, ...]
    """The running averages at which levels begin, without the first."""

    @property
    def cells(self) -> int:
        """The number of cells."""
        return self.kinds * self.kinds * LEVELS * self.slots

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Groups before and here, levels, and divisions of the week."""
        return self.kinds, self.kinds, LEVELS, self.slots

    def number(self, steps: StepFeatures) -> Whole:
        """Return the cell of each step."""
        slot = divide_week(steps.hour, self.slots)
        before, here = self.groups[steps.before], self.groups[steps.here]
        return np.asarray(((before * self.kinds + here) * LEVELS + steps.level) * self.slots + slot)


def divide_week(hours: Whole, slots: int) -> Whole:
    """Return the division of the week of each hour: 48 for hours, 12 for spans of four, or 1."""
    weekend = (hours >= 120).astype(np.int64)
    per_day = max(1, slots // 2)
    place = (hours % 24) * per_day // 24
    return place + weekend * per_day if slots > 1 else np.zeros_like(hours)


def choose_layout(
    group_counts: Floats, numbers: int, edges: tuple[float, ...], slots: int
) -> CellLayout:
    """Tell apart the most common groups, as far as the size of the tables allows.

    `numbers` is the number of entries of one cell's table.
    """
    kinds = min(len(group_counts), _MOST_GROUPS)
    while kinds > 1 and kinds * kinds * LEVELS * numbers > _TABLE_NUMBERS // 4:
        kinds -= 1
    cells = kinds * kinds * LEVELS
    slots = next(
        s for s in _SLOTS if s == 1 or (s <= slots and cells * s * numbers <= _TABLE_NUMBERS)
    )
    groups = np.full(len(group_counts), kinds - 1, np.int64)
    common = np.argsort(-group_counts, kind="stable")[:kinds]
    groups[common] = np.arange(kinds)
    return CellLayout(groups, kinds, slots, edges)


@dataclass(frozen=True, eq=False)
class Transitions:
    """The tables of all cells, from counts.

    A *chain* is a profile of a joint belief, or a variable of a factored one.
    """

    layout: CellLayout
    joint: bool
    weights: Floats
    """`[chain]`: the share of subjects with each profile; all 1 for variables."""
    counts: Floats
    """`[cell][chain][value before][value]`: the number of steps, before smoothing."""
    starts: Floats
    """`[kind of group][chain][value]`: the number of windows, before smoothing."""
    strengths: tuple[float, float]
    """What larger cells count for in smaller ones, in steps: for contexts, and for hours."""

    @property
    def chains(self) -> int:
        """The number of chains."""
        return int(self.counts.shape[1])

    @property
    def values(self) -> int:
        """The number of values of a chain."""
        return int(self.counts.shape[3])

    @cached_property
    def tables(self) -> Singles:
        """`[cell][chain][value before][value]`: the probability of a value after another."""
        return self.smooth(self.counts).astype(np.float32)

    def smooth(self, counts: Floats) -> Floats:
        """Turn counts of steps into probabilities.

        Larger cells come first. Profiles are told apart after contexts and levels, and hours last.
        """
        full = counts.reshape(*self.layout.shape, *counts.shape[1:])
        usual = _smooth_contexts(full.sum(axis=3), self.strengths[0], joint=self.joint)
        by_hour = np.repeat(usual[:, :, :, np.newaxis], self.layout.slots, axis=3)
        if self.layout.slots > 1:
            # Profiles have what an hour changes in common; variables have nothing in common.
            common = (0, 1, 2, 4) if self.joint else (0, 1, 2)
            expected = (full.sum(axis=-1, keepdims=True) * by_hour).sum(axis=common)
            more = _compare_hours(full.sum(axis=common), expected, self.strengths[1])
            by_hour *= more[:, np.newaxis] if self.joint else more
            by_hour /= by_hour.sum(axis=-1, keepdims=True)
        return _mix(full, by_hour, self.strengths[1]).reshape(counts.shape)

    @cached_property
    def start(self) -> Singles:
        """`[kind of group][chain][value]`: the belief about a subject that is new."""
        everywhere = self.starts.sum(axis=0)
        base = _mix(everywhere, np.full(self.values, 1 / self.values), 1.0)
        found = _mix(self.starts, base, self.strengths[0])
        return (found * self.weights[:, np.newaxis]).astype(np.float32)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON: counts that are not zero."""
        return {
            "groups": self.layout.groups.tolist(),
            "kinds": self.layout.kinds,
            "slots": self.layout.slots,
            "edges": list(self.layout.edges),
            "joint": self.joint,
            "weights": self.weights.tolist(),
            "strengths": list(self.strengths),
            "counts": _write_sparse(self.counts),
            "starts": _write_sparse(self.starts),
        }

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any], variables: int, groups: int) -> Transitions:
        """Read what `to_dict` wrote; raise PlanError if it does not fit."""
        try:
            layout = CellLayout(
                np.array(plain["groups"], np.int64),
                int(plain["kinds"]),
                int(plain["slots"]),
                tuple(map(float, plain["edges"])),
            )
            weights = np.array(plain["weights"], np.float64)
            context, hour = map(float, plain["strengths"])
            joint = bool(plain["joint"])
            values = 1 << variables if joint else 2
            chains = len(weights)
            fitting = (
                layout.groups.shape == (groups,)
                and 0 < layout.kinds <= _MOST_GROUPS
                and ((layout.groups >= 0) & (layout.groups < layout.kinds)).all()
                and layout.slots in _SLOTS
                and len(layout.edges) == LEVELS - 1
                and all(0 <= edge <= 1 for edge in layout.edges)
                and list(layout.edges) == sorted(layout.edges)
                and joint == (variables <= MOST_JOINT)
                and (0 < chains * values <= MOST_NUMBERS if joint else chains == variables)
                and ((weights > 0) & (weights <= 1)).all()
                and (not joint or abs(weights.sum() - 1) < 1e-6)
                and all(0 < strength < _MOST_STEPS for strength in (context, hour))
            )
            if not fitting:
                raise ValueError("shape")
            read = cls(
                layout,
                joint,
                weights,
                _read_sparse(plain["counts"], (layout.cells, chains, values, values)),
                _read_sparse(plain["starts"], (layout.kinds, chains, values)),
                (context, hour),
            )
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise PlanError(
                "the plan's memory does not fit or is damaged; make a new plan"
            ) from error
        return read


def _smooth_contexts(counts: Floats, strength: float, *, joint: bool) -> Floats:
    """Turn counts of steps at all hours together into probabilities.

    Both are `[group before][group][level][chain][value before][value]`.
    """
    values = counts.shape[-1]
    # What all profiles have in common; variables have nothing in common.
    pooled = counts.sum(axis=3, keepdims=True) if joint else counts
    everywhere = pooled.sum(axis=(0, 1, 2))
    base = _mix(everywhere.sum(axis=-2), np.full(values, 1 / values), 1.0)
    mixed = _mix(everywhere, base[..., np.newaxis, :], strength)
    mixed = _mix(pooled.sum(axis=(0, 2)), mixed, strength)
    mixed = _mix(pooled.sum(axis=2), mixed, strength)
    mixed = _mix(pooled, mixed[:, :, np.newaxis], strength)
    return _mix(counts, mixed, strength) if joint else mixed


def _compare_hours(found: Floats, expected: Floats, strength: float) -> Floats:
    """Return how much more often each step occurs at an hour than at all hours together.

    `found` and `expected` are steps by hour, `[hour]...[value before][value]`. Contexts, levels and
    profiles have it in common, so that a few days are enough to tell hours apart.
    """
    total = expected.sum(axis=0)
    prior = strength * total / np.maximum(total.sum(axis=-1, keepdims=True), 1e-9)
    return np.asarray((found + prior + 1e-9) / (expected + prior + 1e-9))


def _mix(counts: Floats, base: Floats, strength: float) -> Floats:
    """Turn counts into probabilities; the base counts for some more steps."""
    return np.asarray((counts + strength * base) / (counts.sum(axis=-1, keepdims=True) + strength))


def _write_sparse(counts: Floats) -> dict[str, Any]:
    flat = counts.ravel().round(3)
    places = np.flatnonzero(flat)
    steps = np.diff(places, prepend=0)
    return {"places": steps.tolist(), "counts": flat[places].tolist()}


def _read_sparse(plain: Mapping[str, Any], shape: tuple[int, ...]) -> Floats:
    flat = np.zeros(int(np.prod(shape)))
    steps = np.array(plain["places"], np.int64)
    places = np.cumsum(steps)
    counts = np.array(plain["counts"], np.float64)
    if len(places) and not (places[0] >= 0 and (steps[1:] > 0).all() and places[-1] < len(flat)):
        raise ValueError("places")
    if counts.shape != places.shape or not ((counts >= 0) & (counts < _MOST_STEPS)).all():
        raise ValueError("counts")
    flat[places] = counts
    return flat.reshape(shape)


# Fitting


class Steps(NamedTuple):
    """The steps of history of one component."""

    features: StepFeatures
    subject: Whole
    before: Whole
    """The value before; for a factored belief all variables as bits."""
    value: Whole


def choose_profiles(variables: int) -> tuple[int, ...]:
    """Return the numbers of profiles to try."""
    if variables > MOST_JOINT:
        return (1,)
    return tuple(n for n in (1, 2, 4) if n << variables <= MOST_NUMBERS)


def fit_transitions(
    steps: Steps,
    layout: CellLayout,
    variables: int,
    profiles: int,
    strengths: tuple[float, float],
    firsts: tuple[Whole, Whole, Whole],
) -> Transitions:
    """Fit the tables to steps of history; profiles by expectation-maximisation.

    `firsts` are windows of history: their groups, values and subjects.
    """
    if variables > MOST_JOINT:
        return _fit_factored(steps, layout, variables, strengths, firsts)
    size = 1 << variables
    cells = layout.number(steps.features)
    subjects = int(max(steps.subject.max(initial=0), firsts[2].max(initial=0))) + 1
    shares = _guess_profiles(steps, subjects, profiles, size)
    keys, places = np.unique(
        (cells * size + steps.before) * size + steps.value, return_inverse=True
    )
    taken = _count_pairs(steps.subject, places.ravel(), (subjects, len(keys)))
    rows = _OccurringRows.of(keys, layout, size, strengths)
    for _ in range(_ROUNDS if profiles > 1 else 0):
        likely = taken @ np.log(rows.smooth(taken.T @ shares)) + np.log(_weigh(shares))
        likely -= likely.max(axis=1, keepdims=True)
        shares = np.exp(likely)
        shares /= shares.sum(axis=1, keepdims=True)
    counts = np.zeros((layout.cells, profiles, size, size))
    cell, step = np.divmod(keys, size * size)
    counts.reshape(layout.cells, profiles, -1)[cell, :, step] = taken.T @ shares
    groups, values, owners = firsts
    first = layout.groups[groups] * size + values
    starts = _count_pairs(first, owners, (layout.kinds * size, subjects)) @ shares
    starts = starts.reshape(layout.kinds, size, profiles).swapaxes(1, 2)
    return Transitions(
        layout, True, _weigh(shares), counts, np.ascontiguousarray(starts), strengths
    )


def _count_pairs(first: Whole, second: Whole, shape: tuple[int, int]) -> Any:
    """Count pairs of numbers, as a sparse matrix."""
    from scipy.sparse import csr_array

    return csr_array((np.ones(len(first)), (first, second)), shape)


def _weigh(shares: Floats) -> Floats:
    """Return the weights of profiles, from the shares of all subjects in them."""
    weights = np.maximum(shares.mean(axis=0), 1e-6)
    return np.asarray(weights / weights.sum())


@dataclass(frozen=True)
class _OccurringRows:
    """Smooths only those rows of joint tables that have steps: most have none.

    A row is a cell and a value before.
    """

    layout: CellLayout
    strengths: tuple[float, float]
    row: Whole
    """`[key]`: its row."""
    value: Whole
    """`[key]`: its value."""
    context: Whole
    """`[row]`: its value before, and its cell without the hour."""
    hour: Whole
    """`[row]`: its value before, and its hour."""
    size: int

    @classmethod
    def of(
        cls, keys: Whole, layout: CellLayout, size: int, strengths: tuple[float, float]
    ) -> _OccurringRows:
        """Number the rows of keys."""
        rows, row = np.unique(keys // size, return_inverse=True)
        cell, before = np.divmod(rows, size)
        context, hour = (
            part * size + before for part in (cell // layout.slots, cell % layout.slots)
        )
        return cls(layout, strengths, row.ravel(), keys % size, context, hour, size)

    def smooth(self, counts: Floats) -> Floats:
        """Do what `Transitions.smooth` does, for keys: `[key][profile]`."""
        kinds, _, levels, slots = self.layout.shape
        profiles, size = counts.shape[1], self.size
        full = np.zeros((len(self.context), profiles, size))
        full[self.row, :, self.value] = counts
        by_context = self._add(full, self.context, kinds * kinds * levels)
        usual = _smooth_contexts(
            by_context.reshape(kinds, kinds, levels, size, profiles, size).swapaxes(3, 4),
            self.strengths[0],
            joint=True,
        )
        usual = usual.swapaxes(3, 4).reshape(-1, profiles, size)[self.context]
        if slots > 1:
            expected = (full.sum(axis=-1, keepdims=True) * usual).sum(axis=1)
            more = _compare_hours(
                self._add(full.sum(axis=1), self.hour, slots),
                self._add(expected, self.hour, slots),
                self.strengths[1],
            )
            usual *= more.reshape(-1, 1, size)[self.hour]
            usual /= usual.sum(axis=-1, keepdims=True)
        return _mix(full, usual, self.strengths[1])[self.row, :, self.value]

    def _add(self, rows: Floats, place: Whole, parts: int) -> Floats:
        """Add up rows with the same place: `[part][value before]...`."""
        pairs = _count_pairs(place, np.arange(len(place)), (parts * self.size, len(place)))
        return np.asarray(pairs @ rows.reshape(len(rows), -1)).reshape(
            parts, self.size, *rows.shape[1:]
        )


def _guess_profiles(steps: Steps, subjects: int, profiles: int, size: int) -> Floats:
    """Begin with profiles by how often anything private is there."""
    shares = np.full((subjects, profiles), 0.1 / profiles)
    total = np.bincount(steps.subject, minlength=subjects)
    there = np.bincount(steps.subject, steps.value > 0, subjects) if size > 1 else total * 0.0
    rank = np.argsort(np.argsort(there / np.maximum(1, total), kind="stable"), kind="stable")
    shares[np.arange(subjects), rank * profiles // subjects] += 0.9
    return shares


def _fit_factored(
    steps: Steps,
    layout: CellLayout,
    variables: int,
    strengths: tuple[float, float],
    firsts: tuple[Whole, Whole, Whole],
) -> Transitions:
    cells = layout.number(steps.features)
    counts = np.zeros((layout.cells, variables, 2, 2))
    starts = np.zeros((layout.kinds, variables, 2))
    for variable in range(variables):
        before, value = ((part >> variable) & 1 for part in (steps.before, steps.value))
        found = np.bincount((cells * 2 + before) * 2 + value, minlength=layout.cells * 4)
        counts[:, variable] = found.reshape(layout.cells, 2, 2)
        first = layout.groups[firsts[0]] * 2 + ((firsts[1] >> variable) & 1)
        starts[:, variable] = np.bincount(first, minlength=layout.kinds * 2).reshape(-1, 2)
    return Transitions(layout, False, np.ones(variables), counts, starts, strengths)


def predict_log_likelihood(fitted: Transitions, steps: Steps) -> float:
    """Return the log-likelihood of steps that were held out, given the true values before them.

    Steps must be in order of time. What is known about a subject's profile follows from its steps.
    """
    cells = fitted.layout.number(steps.features)
    if not fitted.joint:
        total = 0.0
        for variable in range(fitted.chains):
            before, value = ((part >> variable) & 1 for part in (steps.before, steps.value))
            total += float(np.log(fitted.tables[cells, variable, before, value]).sum())
        return total
    likely = fitted.tables[cells, :, steps.before, steps.value].astype(np.float64)
    subjects = int(steps.subject.max(initial=0)) + 1
    each = np.log(fitted.weights) + np.zeros((subjects, 1))
    for chain in range(fitted.chains):
        each[:, chain] += np.bincount(steps.subject, np.log(likely[:, chain]), subjects)
    top = each.max(axis=1, keepdims=True)
    return float((np.log(np.exp(each - top).sum(axis=1)) + top[:, 0]).sum())
