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
        context, hour = self.strengths
        mixed = smooth_contexts(full.sum(axis=3), context, joint=self.joint)
        by_hour = np.repeat(mixed[:, :, :, np.newaxis], self.layout.slots, axis=3)
        if self.layout.slots > 1:
            by_hour *= self._compare_hours(full, by_hour)
            by_hour /= by_hour.sum(axis=-1, keepdims=True)
        return mix(full, by_hour, hour).reshape(counts.shape)

    def _compare_hours(self, full: Floats, usual: Floats) -> Floats:
        """Return how much more often each step occurs at an hour than at all hours together.

        Contexts, levels and profiles have it in common, so that a few days are enough to tell
        hours apart.
        """
        common = (0, 1, 2, 4) if self.joint else (0, 1, 2)
        expected = (full.sum(axis=-1, keepdims=True) * usual).sum(axis=common, keepdims=True)
        found = full.sum(axis=common, keepdims=True)
        return compare_hours(found, expected, self.strengths[1], axis=3)

    @cached_property
    def start(self) -> Singles:
        """`[kind of group][chain][value]`: the belief about a subject that is new."""
        everywhere = self.starts.sum(axis=0)
        base = mix(everywhere, np.full(self.values, 1 / self.values), 1.0)
        found = mix(self.starts, base, self.strengths[0])
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


def smooth_contexts(counts: Floats, strength: float, *, joint: bool) -> Floats:
    """Turn counts of steps at all hours into probabilities.

    Both are `[group before][group][level][chain][value before][value]`.
    """
    values = counts.shape[-1]
    # What all profiles have in common; variables have nothing in common.
    pooled = counts.sum(axis=3, keepdims=True) if joint else counts
    everywhere = pooled.sum(axis=(0, 1, 2))
    base = mix(everywhere.sum(axis=-2), np.full(values, 1 / values), 1.0)
    mixed = mix(everywhere, base[..., np.newaxis, :], strength)
    mixed = mix(pooled.sum(axis=(0, 2)), mixed, strength)
    mixed = mix(pooled.sum(axis=2), mixed, strength)
    mixed = mix(pooled, mixed[:, :, np.newaxis], strength)
    return mix(counts, mixed, strength) if joint else mixed


def compare_hours(found: Floats, expected: Floats, strength: float, axis: int) -> Floats:
    """Return how much more often steps occur at each hour than expected, smoothed towards 1."""
    total = expected.sum(axis=axis, keepdims=True)
    prior = strength * total / np.maximum(total.sum(axis=-1, keepdims=True), 1e-9)
    return np.asarray((found + prior + 1e-9) / (expected + prior + 1e-9))


def mix(counts: Floats, base: Floats, strength: float) -> Floats:
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
