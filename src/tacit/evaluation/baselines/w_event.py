"""w-event privacy, independent of the data: Uniform and Sample."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tacit.evaluation.baselines.releases import (
    Amount,
    Calibration,
    NoiseKind,
    NoisyPresence,
    check_steps,
    check_variant,
    compute_event_share,
    draw_laplace,
    flip,
    make_graded_release,
    make_uniform_release,
)
from tacit.evaluation.baselines.setting import Presence, Setting


@dataclass(frozen=True, slots=True)
class WEventUniform:
    """Publish every step with a w-th of the budget, by the Laplace mechanism.

    With randomised response it is event-level privacy.

    Guarantee: w-event E-DP, with E = w * epsilon/m.
    Neighbours: streams that differ in one event at each of w steps in a row.
    Why: a step spends E/w per event, w of them E. A pattern's m events are in one step, where
    the sum of what they change is m: its loss is m * E/w = epsilon.
    Spends: epsilon/m for each event, for every w, which only determines E.
    Source: Kellaris, Papadopoulos, Xiao, Papadias 2014.
    """

    w: int = 2
    noise: NoiseKind = "laplace"
    name: str = "w-event uniform"
    uses_epsilon: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_steps(self.w)
        check_variant(self.noise)

    def release(
        self, presence: Presence, setting: Setting, epsilon: Amount, random: np.random.Generator
    ) -> NoisyPresence:
        """Add noise of scale m/epsilon to every bit."""
        return add_noise(
            presence, setting, compute_event_share(setting, epsilon), random, self.noise
        )


@dataclass(frozen=True, slots=True)
class WEventSample:
    """Publish the first of every w steps with the whole budget, and repeat it until the next.

    Guarantee: w-event E-DP, with E = epsilon/m.
    Neighbours: streams that differ in one event at each of w steps in a row.
    Why: of w steps in a row one is published, with E per event; a pattern's m events in that
    step lose m * E = epsilon, in the others nothing.
    Spends: epsilon/m for each event at one step of w, nothing at the others.
    Source: Kellaris, Papadopoulos, Xiao, Papadias 2014.

    With the calibration "total", E = w * epsilon/m, all of it at the published step.
    """

    w: int = 2
    noise: NoiseKind = "laplace"
    calibration: Calibration = "peak"
    name: str = "w-event sample"
    uses_epsilon: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_steps(self.w)
        check_variant(self.noise, self.calibration)

    def release(
        self, presence: Presence, setting: Setting, epsilon: Amount, random: np.random.Generator
    ) -> NoisyPresence:
        """Publish every w-th window, and repeat it."""
        streams, total = setting.streams(presence), self.budget(setting, epsilon)
        published = streams[:, :: self.w]
        sampled = add_noise(published, setting, total, random, self.noise)
        steps = np.arange(streams.shape[1])
        values = sampled.values[:, steps // self.w].reshape(presence.shape)
        spent = np.broadcast_to(np.where(steps % self.w, 0.0, total), presence.shape[:-1])
        return make_graded_release(values, spent, np.zeros_like(spent), total, self.noise)

    def budget(self, setting: Setting, epsilon: Amount) -> float:
        """Return E, the epsilon of w steps."""
        share = compute_event_share(setting, epsilon)
        return share if self.calibration == "peak" else self.w * share


def add_noise(
    presence: Presence,
    setting: Setting,
    share: float,
    random: np.random.Generator,
    noise: NoiseKind,
) -> NoisyPresence:
    """Publish every bit of every window with epsilon `share` per event."""
    setting.streams(presence)
    if noise == "response":
        return flip(presence, share, random)
    values = draw_laplace(random, presence.shape)
    values /= share
    values += presence
    flips = np.full(presence.shape[-1], np.exp(-share / 2) / 2)
    return make_uniform_release(values, flips, share)
