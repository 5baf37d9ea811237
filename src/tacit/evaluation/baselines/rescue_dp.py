"""RescueDP: sample counts adaptively, with a budget that follows the sampling interval."""

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
class RescueDp:
    """Publish sampled windows with a part of what is left of the day's budget; filter the rest.

    Guarantee: w-event epsilon-DP with w = T, a day of windows.
    Neighbours: streams that differ in T windows in a row of one subject.
    Why: a sample gets a share of epsilon minus what the T - 1 steps before have spent, so no T
    steps in a row spend more than epsilon. Each sample has Laplace noise of scale 1 over its
    share (a subject changes a count by at most 1).
    Spends: min(p * left, largest * epsilon) at a sample, with p = min(phi * ln(interval + 1),
    p_max).
    Source: Wang, Zhang, Lu, Wang, Qin, Ren 2018, Real-time and Spatio-temporal Crowd-sourced Social
    Network Data Publishing with Differential Privacy. Checked against the publication's description
    and a public implementation of it, parameter by parameter: the budget above; the error of a
    sample, its distance from the one before; the PID error with gains 0.9, 0.1 and 0 over three
    samples; and the next interval max(1, I + theta * (1 - (error / noise)**2)), where the noise is
    the scale that the largest budget of the next step would have. Differs: there is one series, so
    nothing is grouped; the variance of the process comes from history, and that of the noise from
    its epsilon; an interval is at most a day.
    """

    phi: float = 0.2
    p_max: float = 0.6
    largest: float = 0.2
    """The most that one sample spends, as a share of epsilon."""
    theta: float = 10.0
    """How far the interval may grow at a time."""
    proportional: float = 0.9
    integral: float = 0.1
    derivative: float = 0.0
    memory: int = 3
    """How many errors the integral part averages."""
    ahead: bool = True
    """Whether an error is compared with the noise that the next step could have, as published;
    otherwise with the noise of this sample, which is often better."""
    name: str = "RescueDP"

    def release(
        self, counts: Floats, setting: CountSetting, epsilon: float, random: np.random.Generator
    ) -> ReleasedSeries:
        """Sample, filter, and choose the next sample by the error relative to the noise."""
        check_epsilon(epsilon)
        controller = PidController(self.proportional, self.integral, self.derivative, self.memory)
        least, most = 1e-9 * epsilon, self.largest * epsilon

        def find_left(step: int, spent: Floats) -> float:
            return epsilon - float(spent[max(0, step - setting.day + 1) :].sum())

        def choose_epsilon(step: int, spent: Floats, interval: float) -> float:
            part = min(self.phi * np.log(interval + 1), self.p_max)
            return float(max(min(part * find_left(step, spent), most), least))

        def compute_growth(sample: Sample) -> float:
            error = controller.add(sample.step, abs(sample.value - sample.predicted))
            possible = float(sample.spent[-1])
            if self.ahead:
                possible = max(min(find_left(sample.step + 1, sample.spent), most), least)
            return float(self.theta * (1 - (error * possible) ** 2))

        return release_samples(counts, setting, random, choose_epsilon, compute_growth)
