"""PeGaSus: perturb every count, group similar ones, and smooth within groups."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tacit.evaluation.baselines.count_series import (
    CountSetting,
    Floats,
    ReleasedSeries,
    check_epsilon,
)


@dataclass(frozen=True, slots=True)
class Pegasus:
    """Add noise to every count; release the median of the noisy counts of its group.

    Guarantee: as published, e-DP for one event, with e per step. A subject may be in all T
    windows of a day, so a day is protected with T * e = epsilon.
    Neighbours: the windows of a day of one subject.
    Why: a step's noisy count costs 4/5 of e (Laplace, sensitivity 1). A step is in one group.
    Whether a group continues is a noisy comparison: its deviation, the sum of |count - mean|,
    changes by at most 2 with one count, and noise of scale 4/g on the threshold and 8/g on the
    deviation costs g, the fifth of e that is left. The median is computed from noisy counts.
    Spends: epsilon/T at every step.
    Source: Chen, Machanavajjhala, Hay, Miklau 2017, PeGaSus: Data-Adaptive Differentially Private
    Stream Processing; Algorithms 2 to 4, with the median smoother.
    """

    perturbing: float = 0.8
    """The share of a step's epsilon for its noisy count."""
    tolerance: float = 5.0
    """The threshold of a group's deviation, in units of 1/g."""
    name: str = "PeGaSus"

    def release(
        self, counts: Floats, setting: CountSetting, epsilon: float, random: np.random.Generator
    ) -> ReleasedSeries:
        """Perturb, group and smooth, step by step."""
        check_epsilon(epsilon)
        each = epsilon / setting.day
        grouping = (1 - self.perturbing) * each
        noisy = counts + random.laplace(0, 1 / (self.perturbing * each), len(counts))
        found = np.empty(len(counts))
        begin, threshold, opened = 0, 0.0, False
        for step in range(len(counts)):
            if not opened:
                begin, opened = step, True
                threshold = self.tolerance / grouping + random.laplace(0, 4 / grouping)
            else:
                group = counts[begin : step + 1]
                deviation = float(np.abs(group - group.mean()).sum())
                if deviation + random.laplace(0, 8 / grouping) >= threshold:
                    # A count that ends a group is one by itself: it is compared only once.
                    begin, opened = step, False
            found[step] = np.median(noisy[begin : step + 1])
        return ReleasedSeries(found, np.full(len(counts), each))
