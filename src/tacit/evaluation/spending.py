"""Spending policies: how a limit of epsilon per day is divided among a day's windows.

A policy is an entry of `POLICIES`. It has candidates for the epsilon of a window, and says which
windows are paid for with it; the others are answered from public events and history. Which ones
may depend on public events alone. The candidate with the best quality on history is used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tacit.evaluation.baselines.decoding import compare, compute_true_answers
from tacit.evaluation.baselines.setting import Floats, Presence, Setting
from tacit.evaluation.measurement import answer, compute_mre, compute_statistics
from tacit.planning.plan import Plan
from tacit.planning.planner import make_plan
from tacit.privacy.noise import Noise
from tacit.privacy.quality import Confusion
from tacit.privacy.randomness import SeededSource
from tacit.privacy.statistics import Statistics
from tacit.spec.specification import Specification

Part: TypeAlias = Literal["history", "test"]
_WINDOW_EPSILONS: Final = tuple(map(Fraction, ("0.5", "1", "2", "3", "5", "8")))
"""The candidates of policies that do not pay for every window."""


@dataclass(frozen=True, eq=False)
class Day:
    """Streams of whole days, with a limit per day for each subject and private pattern.

    History ends, and the test begins, at midnight.
    """

    spec: Specification
    """Its private patterns have a limit, so that a plan also says what comes after it."""
    history: Presence
    """`[subject][window][event type]`"""
    test: Presence
    windows: int
    """The number of windows of a day."""
    seed: int
    _answers: dict[tuple[Fraction, Part], Presence] = field(default_factory=dict, repr=False)
    _plans: dict[Fraction, Plan] = field(default_factory=dict, repr=False)

    @cached_property
    def setting(self) -> Setting:
        """The setting of baselines."""
        return Setting.of(self.spec, self.history)

    @property
    def alphas(self) -> list[float]:
        """The weight of precision for each query."""
        return [query.alpha for query in self.spec.queries]

    def part(self, part: Part) -> Presence:
        """Return the streams of history or test."""
        return self.history if part == "history" else self.test

    def count_before(self, marked: Presence, part: Part) -> NDArray[np.int64]:
        """Count the marked windows of the same day before each window, `[subject][window]`."""
        windows = marked.shape[1]
        steps = np.arange(windows) - (windows if part == "history" else 0)
        begins = np.searchsorted(steps // self.windows, steps // self.windows)
        before = np.concatenate([np.zeros((len(marked), 1), np.int64), marked.cumsum(axis=1)], 1)
        return np.asarray(before[:, :-1] - before[:, begins])

    def find_open(self, part: Part) -> Presence:
        """Return whether any query is open in each window; public events decide this."""
        found = [
            asked.find_open(self.setting)[asked.read(self.part(part))]
            for asked in self.setting.asked
        ]
        return np.asarray(np.logical_or.reduce(found))

    def protect(self, epsilon: Fraction, part: Part) -> Presence:
        """Return the answers of `optimal` with an epsilon per window, `[query][subject][window]`.

        Epsilon 0 stands for the answers past a limit.
        """
        if (epsilon, part) not in self._answers:
            streams = self.part(part)
            windows = streams.reshape(-1, streams.shape[-1])
            noise = Noise(SeededSource(self.seed))
            found = answer(self._plan(epsilon), windows, noise, exhausted=not epsilon)
            self._answers[epsilon, part] = found.reshape(len(found), *streams.shape[:2])
        return self._answers[epsilon, part]

    def compare(self, answers: Presence, part: Part) -> Confusion[Floats]:
        """Count errors for each query."""
        return compare(compute_true_answers(self.setting, self.part(part)), answers)

    @cached_property
    def _statistics(self) -> list[Statistics]:
        return compute_statistics(self.spec, self.history.reshape(-1, self.history.shape[-1]))

    def _plan(self, epsilon: Fraction) -> Plan:
        if epsilon not in self._plans:
            largest = max(Fraction(private.epsilon) for private in self.spec.private)
            share = (epsilon or Fraction(1)) / largest
            self._plans[epsilon] = make_plan(
                self.spec, self._statistics, "optimal", "posterior", share
            )
        return self._plans[epsilon]


@dataclass(frozen=True, slots=True)
class SpendingPolicy:
    """How a limit per day is divided among windows."""

    name: str
    candidates: Callable[[Day, Fraction], tuple[Fraction, ...]]
    """The epsilons of a window that are tried on history, for a limit per day."""
    pays: Callable[[Day, Fraction, Fraction, Part], Presence]
    """Which windows are paid for: the limit, the epsilon of a window; `[subject][window]`."""

    def measure(self, day: Day, limit: Fraction) -> Confusion[Floats]:
        """Count the errors on test windows, with the candidate that is best on history."""
        some = self.candidates(day, limit)
        best = some[0]
        if len(some) > 1:
            best = min(some, key=lambda epsilon: self._error(day, limit, epsilon))
        return day.compare(self.answer(day, limit, best, "test"), "test")

    def answer(self, day: Day, limit: Fraction, epsilon: Fraction, part: Part) -> Presence:
        """Answer paid windows by `optimal`, and the others from public events and history."""
        paid = self.pays(day, limit, epsilon, part)
        return np.where(paid, day.protect(epsilon, part), day.protect(Fraction(0), part))

    def _error(self, day: Day, limit: Fraction, epsilon: Fraction) -> float:
        answers = self.answer(day, limit, epsilon, "history")
        return compute_mre(day.compare(answers, "history"), day.alphas)


def _divide_evenly(day: Day, limit: Fraction) -> tuple[Fraction, ...]:
    return (limit / day.windows,)


def _try_some(_day: Day, limit: Fraction) -> tuple[Fraction, ...]:
    return tuple(epsilon for epsilon in _WINDOW_EPSILONS if epsilon <= limit)


def _pay_all(day: Day, _limit: Fraction, _epsilon: Fraction, part: Part) -> Presence:
    return np.ones(day.part(part).shape[:2], np.bool_)


def _pay_first(day: Day, limit: Fraction, epsilon: Fraction, part: Part) -> Presence:
    windows = _pay_all(day, limit, epsilon, part)
    return day.count_before(windows, part) < limit // epsilon


def _pay_open(day: Day, limit: Fraction, epsilon: Fraction, part: Part) -> Presence:
    windows = day.find_open(part)
    return windows & (day.count_before(windows, part) < limit // epsilon)


POLICIES: Final = (
    SpendingPolicy("even epsilon per window", _divide_evenly, _pay_all),
    SpendingPolicy("every window until exhausted", _try_some, _pay_first),
    SpendingPolicy("every open window until exhausted", _try_some, _pay_open),
)
