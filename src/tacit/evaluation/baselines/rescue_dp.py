"""RescueDP: sample counts adaptively, with a budget that follows the sampling interval."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tacit.evaluation.baselines.count_series import (
    CountSetting,
    Floats,
    ReleasedSeries,
    check_epsilon,
    release_samples,
)


@dataclass(frozen=True, slots=True)
class RescueDp:
    """Publish sampled windows with a part of what is left of the day's budget; filter the rest.

    Guarantee: w-event epsilon-DP with w = T, a day of windows.
    Neighbours: streams that differ in T windows in a row of one subject.
    Why: a sample gets a share of epsilon minus what the T - 1 steps before have spent, so no T
    steps in a row spend more than epsilon. Each sample has Laplace noise of scale 1 over its
    share (a subject changes a count by at most 1).
    Spends: min(p * left, largest) at a sample, with p = min(phi * ln(interval + 1), p_max).
    Source: Wang, Zhang, Lu, Wang, Qin, Ren 2018, Real-time and Spatio-temporal Crowd-sourced Social
    Network Data Publishing with Differential Privacy. Differs: there is one series, so nothing is
    grouped; the variance of the process comes from history.
    """

    phi: float = 0.2
    p_max: float = 0.6
    theta: float = 10.0
    """How far the interval may grow at a time."""
    name: str = "RescueDP"

    def release(
        self, counts: Floats, setting: CountSetting, epsilon: float, random: np.random.Generator
    ) -> ReleasedSeries:
        """Sample, filter, and choose the next sample by the error relative to the noise."""
        check_epsilon(epsilon)
        feedback = 0.0

        def choose_epsilon(step: int, spent: Floats, interval: float) -> float:
            left = epsilon - float(spent[max(0, step - setting.day + 1) :].sum())
            part = min(self.phi * np.log(interval + 1), self.p_max)
            return float(max(part * left, 1e-9 * epsilon))

        def compute_growth(value: float, predicted: float, own: float) -> float:
            nonlocal feedback
            feedback = 0.9 * abs(value - predicted) + 0.1 * feedback
            return self.theta * (1 - (feedback * own) ** 2)

        return release_samples(counts, setting, random, choose_epsilon, compute_growth)
