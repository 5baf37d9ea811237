"""FAST: sample counts adaptively, and filter them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tacit.evaluation.baselines.count_series import (
    CountSetting,
    Floats,
    PidController,
    ReleasedSeries,
    Sample,
    check_epsilon,
    release_samples,
)


@dataclass(frozen=True, slots=True)
class Fast:
    """Publish at most M of the T windows of a day, chosen by a controller; predict the others.

    Guarantee: epsilon-DP for a subject's whole day.
    Neighbours: the windows of a day of one subject.
    Why: at most M windows of a day are sampled, each with epsilon/M by the Laplace mechanism
    (a subject changes a count by at most 1). Everything else is computed from the samples.
    Spends: epsilon/M at a sample, nothing elsewhere; at most epsilon in a day.
    Source: Fan, Xiong 2014, An Adaptive Approach to Real-Time Aggregate Monitoring with
    Differential Privacy. Checked against the publication's description: a Kalman filter for a
    constant process, which predicts at every step and is corrected at samples; the error of a
    sample |posterior - prior| / max(posterior, 1); the PID error of it; and the next interval
    max(1, I + theta * (1 - exp((error - target) / target))). Differs: the variance of the process
    comes from history, and that of the noise from its epsilon, which is better than a guess; M is
    for a day, and an interval is at most a day.
    """

    share: float = 0.25
    """M/T"""
    proportional: float = 0.9
    integral: float = 0.1
    derivative: float = 0.0
    memory: int = 5
    """How many errors the integral part averages."""
    theta: float = 5.0
    """How far the interval may grow at a time."""
    target: float = 0.1
    """The error at which the interval stays the same."""
    name: str = "FAST"

    def release(
        self, counts: Floats, setting: CountSetting, epsilon: float, random: np.random.Generator
    ) -> ReleasedSeries:
        """Sample, filter, and choose the next sample by the relative error of the prediction."""
        check_epsilon(epsilon)
        day = setting.day
        most = max(1, int(self.share * day))
        controller = PidController(self.proportional, self.integral, self.derivative, self.memory)

        def choose_epsilon(step: int, spent: Floats, _: float) -> float:
            today = np.count_nonzero(spent[step // day * day :])
            return epsilon / most if today < most else 0.0

        def compute_growth(sample: Sample) -> float:
            error = abs(sample.value - sample.predicted) / max(abs(sample.value), 1.0)
            feedback = controller.add(sample.step, error)
            beyond = min(50.0, (feedback - self.target) / self.target)
            return float(self.theta * (1 - np.exp(beyond)))

        return release_samples(counts, setting, random, choose_epsilon, compute_growth)
