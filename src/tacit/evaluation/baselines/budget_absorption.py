"""w-event privacy by budget absorption (BA)."""

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
class BudgetAbsorption:
    """Publish when the data have changed, with the shares of skipped steps added.

    Half of the budget E is for finding out whether they have changed, E/(2w) at each step; of
    the other half each step has E/(2w). A publication absorbs the shares of skipped steps, up
    to w in all, and as many steps after it are nullified: repeated, without a test.

    Guarantee: w-event E-DP, with E = (epsilon/m) / (1/(2w) + 1/2).
    Neighbours: streams that differ in one event at each of w steps in a row.
    Why: what is released at a step depends on that step's events and on earlier releases
    alone. A test costs E/(2w), since one event changes the distance by at most 1/d and its
    noise has scale 2w/(E d). A publication of n shares replaces n - 1 steps before it and
    blocks n - 1 after it, so w steps in a row spend at most w shares, E/2.
    Pattern-level: m events of one step change these m times as much, so the step reveals
    m * (E/(2w) + n * E/(2w)) <= m * E * (1/(2w) + 1/2) = epsilon, with equality where n = w.
    Spends: E/(2w) for each event at a test, n times as much at a publication.
    Source: Kellaris, Papadopoulos, Xiao, Papadias 2014. The first step is published in
    any case, with one share.

    The calibration "total" and randomised response are as in budget distribution.
    """

    w: int = 2
    noise: NoiseKind = "laplace"
    calibration: Calibration = "peak"
    name: str = "w-event BA"
    uses_epsilon: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_steps(self.w)
        check_variant(self.noise, self.calibration)

    @property
    def largest_share(self) -> float:
        """How much of E a single step may spend."""
        return 1 / (2 * self.w) + 1 / 2

    def release(
        self, presence: Presence, setting: Setting, epsilon: Amount, random: np.random.Generator
    ) -> NoisyPresence:
        """Process each subject's windows in order."""
        streams, total = setting.streams(presence), self.budget(setting, epsilon)
        noise = draw_noise(random, streams.shape, self.noise)
        doubt = draw_laplace(random, streams.shape[:2])
        spent, tested, bars = absorb(streams, total, self.w, noise, doubt, self.noise == "response")
        spent, tested, bars = (part.reshape(presence.shape[:-1]) for part in (spent, tested, bars))
        values = noise.reshape(presence.shape)
        return make_graded_release(values, spent, tested, total / 2, self.noise, bars)

    def budget(self, setting: Setting, epsilon: Amount) -> float:
        """Return E, the epsilon of w steps."""
        share = compute_event_share(setting, epsilon)
        return share / self.largest_share if self.calibration == "peak" else self.w * share


@compiled
def absorb(
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
    unit = total / (2 * w)
    for subject in range(subjects):
        skipped, nullified = 0, 0
        for step in range(windows):
            here = noise[subject, step]
            shares = min(1 + skipped, w)
            if step > 0:
                last = noise[subject, step - 1]
                if nullified > 0:
                    nullified -= 1
                    here[:] = last
                    continue
                tested[subject, step] = unit
                found = distance(last, streams[subject, step])
                found += doubt[subject, step] / (unit * types)
                bars[subject, step] = compute_error(shares * unit, response)
                if not found > bars[subject, step]:
                    skipped += 1
                    here[:] = last
                    continue
            spent[subject, step] = shares * unit
            nullified, skipped = shares - 1, 0
            publish(here, streams[subject, step], shares * unit, response)
    return spent, tested, bars
