"""Our own release of counts over a day, and the paper's way, for comparison with baselines."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final

import numpy as np

from tacit.durations import MICROSECONDS
from tacit.evaluation.baselines.count_series import (
    CountSetting,
    Floats,
    ReleasedSeries,
    check_epsilon,
)
from tacit.planning.count_models import CountLimit, follow_history, learn_count_memory
from tacit.privacy.count_memory import CountHistory, CountMemory
from tacit.privacy.randomness import SeededSource

_DAY: Final = MICROSECONDS["d"]


@dataclass(frozen=True, slots=True, eq=False)
class PacedCounts:
    """What a run of the engine does with a limit per day: the same channel, filter and spending.

    Guarantee: epsilon-DP for a subject's whole day.
    Neighbours: the windows of a day of one subject.
    Why: a draw for k windows has k/T of epsilon, by the audited two-sided geometric channel, and
    the next one comes k windows later; a draw is for no window after midnight. So the T windows of
    a day spend epsilon at most. Which windows are drawn follows from history and released counts.
    Spends: epsilon * k/T at a draw for k windows.
    """

    name: str = "own channel"
    memory: CountMemory | None = None
    """What was learned from history; by default it is learned for each release."""

    def choose(self, setting: CountSetting, epsilon: float) -> PacedCounts:
        """Learn from history."""
        limit = CountLimit(Fraction(epsilon), _DAY)
        found = learn_count_memory(
            _to_history(setting.history, setting, 0), _DAY // setting.day, limit.epsilon, limit
        )
        return replace(self, memory=found)

    def release(
        self, counts: Floats, setting: CountSetting, epsilon: float, random: np.random.Generator
    ) -> ReleasedSeries:
        """Release the counts as a run does."""
        check_epsilon(epsilon)
        memory = self.memory or self.choose(setting, epsilon).memory
        assert memory is not None, "all subjects are open"
        history = _to_history(counts, setting, len(setting.history) * setting.day)
        source = SeededSource(int(random.integers(1 << 31)))
        found = list(
            follow_history(memory, history, _DAY // setting.day, Fraction(epsilon), source)
        )
        values = np.array([estimate.value[0] for _, estimate in found])
        return ReleasedSeries(values, np.array([float(spent) for spent, _ in found]))


def _to_history(counts: Floats, setting: CountSetting, first: int) -> CountHistory:
    """Return counts of windows from a number on, with all subjects open."""
    detected = np.rint(counts).astype(np.int64).reshape(-1, 1)
    local = (first + np.arange(len(detected), dtype=np.int64)) * (_DAY // setting.day)
    opened = np.full_like(detected, setting.subjects)
    return CountHistory(("",), local, np.zeros_like(detected), opened, detected)


@dataclass(frozen=True, slots=True)
class SummedResponses:
    """The paper's way: every subject's answer by randomised response, summed and corrected.

    Guarantee: epsilon-DP for a subject's whole day.
    Neighbours: the windows of a day of one subject.
    Why: each of the T answers is flipped with epsilon/T.
    Spends: epsilon/T at every step.
    Source: Gu et al., the paper; the sum is corrected for the flips, so that it is unbiased.
    """

    name: str = "summed responses"

    def release(
        self, counts: Floats, setting: CountSetting, epsilon: float, random: np.random.Generator
    ) -> ReleasedSeries:
        """Flip every answer of every window."""
        check_epsilon(epsilon)
        each = epsilon / setting.day
        flipped = 1 / (1 + np.exp(each))
        true = counts.astype(np.int64)
        yes = random.binomial(true, 1 - flipped)
        yes = yes + random.binomial(setting.subjects - true, flipped)
        found = (yes - setting.subjects * flipped) / (1 - 2 * flipped)
        clipped = np.clip(found, 0, setting.subjects)
        return ReleasedSeries(clipped, np.full(len(counts), each))
