"""w-event privacy by budget distribution (BD)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from tacit.evaluation.baselines.dissimilarity import distance
from tacit.evaluation.baselines.publication import compute_error, publish
from tacit.evaluation.baselines.releases import (
    Amount,
    Calibration,
    NoiseKind,
    NoisyPresence,
    check_steps,
    check_variant,
    compute_event_share,
    draw_laplace,
    draw_noise,
    make_graded_release,
)
from tacit.evaluation.baselines.setting import Presence, Setting
from tacit.kernels import compiled


@dataclass(frozen=True, slots=True)
class BudgetDistribution:
    """Publish when the data have changed, each time with half of what is left; else repeat.

    Half of the budget E is for finding out whether they have changed, E/(2w) at each step.

    Guarantee: w-event E-DP, with E = (epsilon/m) / (1/(2w) + 1/4).
    Neighbours: streams that differ in one event at each of w steps in a row.
    Why: what is released at a step depends on that step's events and on earlier releases
    alone. The distance from the last release changes by at most 1/d per event, so its noise
    of scale 2w/(E d) costs E/(2w); a publication of scale 1/e costs e, at most half of E/2.
    Pattern-level: m events of one step change these m times as much, so the step reveals
    m * (E/(2w) + e) <= m * E * (1/(2w) + 1/4) = epsilon, with equality at a publication after
    w - 1 steps without one.
    Spends: E/(2w) + e for each event where it is published, E/(2w) where it is repeated.
    Source: Kellaris, Papadopoulos, Xiao, Papadias 2014. The first step is published in
    any case.

    With the calibration "total", E = w * epsilon/m: w windows cost a pattern w * epsilon at most,
    as w windows of a mechanism do that spends epsilon in each; a single one may cost more.
    With randomised response a publication flips each bit with 1/(1 + exp(e)), which costs e as
    well, and the window is published if it is further from the last release than that.
    """

    w: int = 3
    noise: NoiseKind = "laplace"
    calibration: Calibration = "peak"
    name: str = "w-event BD"
    uses_epsilon: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_steps(self.w)
        check_variant(self.noise, self.calibration)

    @property
    def largest_share(self) -> float:
        """How much of E a single step may spend."""
        return 1 / (2 * self.w) + 1 / 4

    def release(
        self, presence: Presence, setting: Setting, epsilon: Amount, random: np.random.Generator
    ) -> NoisyPresence:
        """Process each subject's windows in order."""
        streams, total = setting.streams(presence), self.budget(setting, epsilon)
        noise = draw_noise(random, streams.shape, self.noise)
        doubt = draw_laplace(random, streams.shape[:2])
        spent, tested, bars = distribute(
            streams, total, self.w, noise, doubt, self.noise == "response"
        )
        spent, tested, bars = (part.reshape(presence.shape[:-1]) for part in (spent, tested, bars))
        values = noise.reshape(presence.shape)
        return make_graded_release(values, spent, tested, total / 4, self.noise, bars)

    def budget(self, setting: Setting, epsilon: Amount) -> float:
        """Return E, the epsilon of w steps."""
        share = compute_event_share(setting, epsilon)
        return share / self.largest_share if self.calibration == "peak" else self.w * share


@compiled
def distribute(
    streams: NDArray[np.bool_],
    total: float,
    w: int,
    noise: NDArray[np.float64],
    doubt: NDArray[np.float64],
    response: bool,
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Turn noise into the releases, in place; return what each step spends, and its bar.

    `streams` and `noise` are `[subject][window][type]`, `doubt` is `[subject][window]`.
    """
    subjects, windows, types = streams.shape
    spent, tested = np.zeros((subjects, windows)), np.zeros((subjects, windows))
    bars = np.zeros((subjects, windows))
    for subject in range(subjects):
        for step in range(windows):
            left = total / 2
            for before in range(max(0, step - w + 1), step):
                left -= spent[subject, before]
            share = left / 2
            here = noise[subject, step]
            if step > 0:
                last = noise[subject, step - 1]
                tested[subject, step] = total / (2 * w)
                found = distance(last, streams[subject, step])
                found += doubt[subject, step] * 2 * w / (total * types)
                bars[subject, step] = compute_error(share, response)
                if not found > bars[subject, step]:
                    here[:] = last
                    continue
            spent[subject, step] = share
            publish(here, streams[subject, step], share, response)
    return spent, tested, bars
