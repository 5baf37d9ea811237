"""Learning: memory follows the present, from released symbols and public events alone.

Each window's beliefs predict steps from value to value; its symbols correct them. Where symbols
keep correcting in the same direction, the world has moved away from history. For each cell (the
hours of a week together) both are added up: the steps that history predicts, and the steps as the
symbols have them. Their quotient corrects the transitions. This is expectation-maximisation, one
step at a time; old windows are forgotten. Thresholds follow the posteriors of recent answers.

All of it is computed from what was released, so it costs no privacy. Only registered subjects
count. Where subjects are learned, the order in which they are stored depends on when they first
occurred, which is private: sums are therefore made in whole numbers, and samples taken by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tacit.errors import StateError
from tacit.kernels.lanes import LANES, allocate_lanes
from tacit.privacy.mechanisms.optimal.memory import kernels
from tacit.privacy.mechanisms.optimal.memory.beliefs import (
    BeliefFilter,
    BeliefState,
    Given,
    Prediction,
    Update,
)
from tacit.privacy.mechanisms.optimal.memory.kernels import Singles
from tacit.privacy.mechanisms.optimal.memory.transitions import Transitions
from tacit.privacy.quality import Confusion, QualityObjective, micro_alpha

Floats = NDArray[np.float64]
Bits = NDArray[np.bool_]
Arrays = Mapping[str, NDArray[Any]]

LEVELS: Final = 256
"""The number of levels of a stated probability."""
HALF_LIFE: Final = 3 * 86_400_000_000
"""The time after which a window counts half, in microseconds."""
_COUNTED: Final = 5
"""Steps are counted in one of so many windows. Days and weeks are no multiples of usual windows
times five, so all hours have their turn."""
_ENOUGH: Final = 2048
"""The number of subjects whose steps and answers are enough for a window."""
_MOST: Final = 256
"""At least one in so many subjects is counted: their names are hashed to so many numbers."""
_REFRESHED: Final = 15
"""The number of windows between two corrections: a multiple of `_COUNTED`."""
_STRENGTH: Final = 100.0
"""The number of steps that no correction counts for."""
_LEAST: Final = 5000.0
"""The number of answers after which thresholds may follow."""
_BETTER: Final = 0.002
"""How much better a threshold must be expected to be."""


@dataclass(frozen=True, slots=True, eq=False)
class LearnedSteps:
    """What was learned about one component."""

    steps: Singles
    """`[predicted or corrected][cell][chain][before][value]`: recent steps."""
    factors: Singles
    """`[cell][chain][before][value]`: the correction in use."""

    @classmethod
    def start(cls, transitions: Transitions) -> LearnedSteps:
        """Return the state before anything was learned."""
        shape = find_shape(transitions)
        return cls(np.zeros((2, *shape), np.float32), np.ones(shape, np.float32))

    @classmethod
    def from_arrays(cls, arrays: Arrays, transitions: Transitions) -> LearnedSteps:
        """Read what `to_arrays` returned; raise StateError if it does not fit."""
        shape = find_shape(transitions)
        steps, factors = arrays.get("steps"), arrays.get("factors")
        if (
            steps is None
            or factors is None
            or steps.dtype != np.float32
            or factors.dtype != np.float32
            or steps.shape != (2, *shape)
            or factors.shape != shape
        ):
            raise StateError("what the saved memory has learned does not fit the plan")
        return cls(steps, factors)

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return plain arrays for a snapshot."""
        return {"steps": self.steps, "factors": self.factors}


def is_counted(window: int) -> bool:
    """Return whether steps are counted in a window, by its number in the schedule."""
    return window % _COUNTED == 0


def is_used(window: int) -> bool:
    """Return whether what was learned up to a window is used from the next one on."""
    return window % _REFRESHED == 0


def choose_sample(registered: int) -> int:
    """Return one in how many subjects is counted in a window, for a number that is registered.

    What is learned needs a number of steps and answers, not a share of them, so of many subjects
    fewer are counted: in turn, chosen by their names. It is a power of two.

    >>> [choose_sample(number) for number in (100, 4095, 4096, 10_000, 1_000_000)]
    [1, 1, 2, 4, 256]
    """
    step = 1
    while 2 * step <= _MOST and registered >= _ENOUGH * 2 * step:
        step *= 2
    return step


def find_shape(transitions: Transitions) -> tuple[int, int, int, int]:
    """Return the shape of what is learned: the hours of a week are one cell."""
    layout = transitions.layout
    return layout.cells // layout.slots, *transitions.counts.shape[1:]


class StepLearner:
    """Learns the transitions of one component.

    `forget` is the share of what is known that is left after a window.
    """

    def __init__(self, one: BeliefFilter, forget: float) -> None:
        self._filter = one
        self._forget = np.float32(forget**_COUNTED)
        self._corrected: tuple[Singles | None, int, Singles] = (None, -1, np.empty(0, np.float32))
        """The factors and the part of the week in use, and the tables that follow from them."""
        self._steps = np.zeros(find_shape(one.transitions), np.int64)
        self._starts = np.zeros(self._steps.shape[:3], np.int64)

    def tables(self, learned: LearnedSteps, slot: int) -> Singles:
        """Return the corrected transitions in a part of the week."""
        factors, at, tables = self._corrected
        if factors is not learned.factors or at != slot:
            planned = self._filter.find_tables(slot)
            tables = allocate_lanes(planned.shape)
            tables[:] = planned
            tables[..., : learned.factors.shape[-1]] *= learned.factors
            tables /= tables.sum(axis=-1, keepdims=True)
            self._corrected = learned.factors, slot, tables
        return tables

    def count(
        self,
        learned: LearnedSteps,
        state: BeliefState,
        predicted: Prediction,
        updated: Update,
        counted: Bits,
    ) -> None:
        """Count the steps of a window, of some of its subjects; `state` is from before it."""
        given: Given = (
            np.flatnonzero(counted),
            state.beliefs,
            updated.lanes,
            predicted.lanes,
            predicted.groups_before,
            predicted.cells,
            self.tables(learned, predicted.slot),
        )
        found: Given = self._starts, self._steps
        if self._filter.few and self._filter.transitions.values == LANES:
            kernels.count_steps_of_eight(*given, *found)
            return
        _, chains, width = updated.lanes.shape
        shares, ratios = np.empty((2, chains * width), np.float32)
        room: Given = self._filter.joint, shares, ratios
        kernels.count_steps(*given, *room, *found)

    def learn(self, learned: LearnedSteps, slot: int, window: int) -> LearnedSteps:
        """Add what was counted in a window, in this part of the week.

        The windows before it in which nothing was counted are forgotten with it.
        """
        steps = np.empty(learned.steps.shape, np.float32)
        kernels.fold_steps(
            self._starts,
            self._steps,
            self._filter.find_tables(slot),
            self._forget,
            np.ascontiguousarray(learned.steps),
            steps,
        )
        factors = learned.factors
        if is_used(window):
            factors = (steps[1] + _STRENGTH) / (steps[0] + _STRENGTH)
        return LearnedSteps(steps, factors.astype(np.float32, copy=False))


def measure_drift(arrays: Arrays) -> float | None:
    """Return the share of recent steps that history does not predict; None if none were counted.

    0 is no drift, and 1 the most there can be. `arrays` is what a run remembers.
    """
    found = []
    for name, part in arrays.items():
        if name.endswith(".steps"):
            predicted, corrected = part.astype(np.float64)
            total = predicted.sum()
            if total > 0:
                found.append(float(np.abs(corrected - predicted).sum() / (2 * total)))
    return max(found) if found else None


def count_recent_steps(arrays: Arrays) -> float:
    """Return how many recent steps drift is measured on, for the component with the fewest."""
    found = [float(part[0].sum()) for name, part in arrays.items() if name.endswith(".steps")]
    return min(found, default=0.0)


@dataclass(frozen=True, slots=True, eq=False)
class LearnedThresholds:
    """Recent answers by their stated probability, and the thresholds in use."""

    levels: Singles
    """`[query][level]`"""
    thresholds: Floats

    @classmethod
    def start(cls, thresholds: Floats) -> LearnedThresholds:
        """Return the state before anything was learned."""
        return cls(np.zeros((len(thresholds), LEVELS), np.float32), thresholds)

    @classmethod
    def from_arrays(cls, arrays: Arrays, queries: int) -> LearnedThresholds:
        """Read what `to_arrays` returned; raise StateError if it does not fit."""
        levels, thresholds = arrays.get("levels"), arrays.get("thresholds")
        if (
            levels is None
            or thresholds is None
            or levels.dtype != np.float32
            or levels.shape != (queries, LEVELS)
            or thresholds.dtype != np.float64
            or thresholds.shape != (queries,)
        ):
            raise StateError("the thresholds of the saved memory do not fit the plan")
        return cls(levels, thresholds)

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return plain arrays for a snapshot."""
        return {"levels": self.levels, "thresholds": self.thresholds}


class ThresholdLearner:
    """Moves thresholds where recent posteriors promise clearly better answers."""

    def __init__(
        self,
        planned: Floats,
        confidences: Floats,
        objective: QualityObjective,
        private: Sequence[int],
        forget: float,
    ) -> None:
        self._planned = planned
        self._confidences = confidences
        self._objective = objective
        self._private = [query for query in private if objective.free[query]]
        """The queries that private events may change, and whose threshold can be chosen."""
        self._forget = np.float32(forget)

    def learn(
        self, learned: LearnedThresholds, new: NDArray[np.int64] | None, window: int
    ) -> LearnedThresholds:
        """Add the answers of a window, `[query][level]`, if there are any."""
        levels = learned.levels * self._forget
        if new is not None:
            levels += new.astype(np.float32)
        thresholds = learned.thresholds
        if is_used(window) and self._private:
            thresholds = self._choose(levels.astype(np.float64))
        return LearnedThresholds(levels, thresholds)

    def _choose(self, levels: Floats) -> Floats:
        """Return the best thresholds for recent answers, or the plan's if they are as good."""
        if levels[self._private].sum() < _LEAST * len(self._private):
            return self._planned
        own = levels[self._private]
        planned = self._planned[self._private]
        thresholds = self._planned.copy()
        alphas = np.array(self._objective.alphas)[self._private]
        if self._objective.separate:
            for place, query in enumerate(self._private):
                thresholds[query] = self._best(own[[place]], float(alphas[place]), planned[[place]])
            return thresholds
        if len(np.unique(planned)) == 1:
            alpha = micro_alpha(tuple(alphas.tolist()))
            thresholds[self._private] = self._best(own, alpha, planned)
        return thresholds

    def _best(self, levels: Floats, alpha: float, planned: Floats) -> float:
        """Return the threshold with the best expected quality for some queries together."""
        true = (levels * self._confidences).sum(axis=0)
        false = (levels * (1 - self._confidences)).sum(axis=0)
        tp, fp = (np.cumsum(part[::-1])[::-1] for part in (true, false))
        quality = Confusion(tp, fp, true.sum() - tp).quality(alpha)
        quality[0] = -1.0  # what is certainly false is never answered yes
        now = int(np.searchsorted(self._confidences, planned[0]))
        best = int(np.argmax(quality))
        better = quality[best] > quality[min(now, LEVELS - 1)] + _BETTER
        return float(self._confidences[best]) if better else float(planned[0])
