"""w-event privacy, independent of the data: Uniform and Sample."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tacit.evaluation.baselines.releases import (
    Amount,
    NoisyPresence,
    check_steps,
    draw_laplace,
    for_each_subject,
    make_laplace_release,
    make_uniform_release,
    per_event,
)
from tacit.evaluation.baselines.setting import Floats, Presence, Setting


@dataclass(frozen=True, slots=True)
class WEventUniform:
    """Publish every step with a w-th of the budget, by the Laplace mechanism.

    Guarantee: w-event E-DP, with E = w * epsilon/m.
    Neighbours: streams that differ in one event at each of w steps in a row.
    Why: a step spends E/w per event, w of them E. A pattern's m events are in one step, where
    the sum of what they change is m: its loss is m * E/w = epsilon.
    Spends: epsilon/m for each event, for every w, which only determines E.
    Source: Kellaris, Papadopoulos, Xiao, Papadias 2014.
    """

    w: int = 2
    name: str = "w-event uniform"
    uses_epsilon: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_steps(self.w)

    def own_epsilon(self, presence: Presence, setting: Setting, epsilon: Amount) -> Floats:
        """Return the epsilon of w steps."""
        return for_each_subject(presence, setting, self.w * per_event(setting, epsilon))

    def release(
        self, presence: Presence, setting: Setting, epsilon: Amount, random: np.random.Generator
    ) -> NoisyPresence:
        """Add noise of scale m/epsilon to every bit."""
        return add_noise(presence, setting, per_event(setting, epsilon), random)


@dataclass(frozen=True, slots=True)
class WEventSample:
    """Publish the first of every w steps with the whole budget, and repeat it until the next.

    Guarantee: w-event E-DP, with E = epsilon/m.
    Neighbours: streams that differ in one event at each of w steps in a row.
    Why: of w steps in a row one is published, with E per event; a pattern's m events in that
    step lose m * E = epsilon, in the others nothing.
    Spends: epsilon/m for each event at one step of w, nothing at the others.
    Source: Kellaris, Papadopoulos, Xiao, Papadias 2014.
    """

    w: int = 2
    name: str = "w-event sample"
    uses_epsilon: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_steps(self.w)

    def own_epsilon(self, presence: Presence, setting: Setting, epsilon: Amount) -> Floats:
        """Return the epsilon of w steps."""
        return for_each_subject(presence, setting, per_event(setting, epsilon))

    def release(
        self, presence: Presence, setting: Setting, epsilon: Amount, random: np.random.Generator
    ) -> NoisyPresence:
        """Add noise of scale m/epsilon to every w-th window, and repeat it."""
        streams, share = setting.streams(presence), per_event(setting, epsilon)
        published = streams[:, :: self.w]
        noise = draw_laplace(random, published.shape) / share
        steps = np.arange(streams.shape[1])
        values = (published + noise)[:, steps // self.w].reshape(presence.shape)
        spent = np.broadcast_to(np.where(steps % self.w, 0.0, share), presence.shape[:-1])
        return make_laplace_release(values, spent, np.zeros_like(spent), share)


def add_noise(
    presence: Presence, setting: Setting, share: float, random: np.random.Generator
) -> NoisyPresence:
    """Add Laplace noise of scale 1/share to every bit of every window."""
    setting.streams(presence)
    values = draw_laplace(random, presence.shape)
    values /= share
    values += presence
    flips = np.full(presence.shape[-1], np.exp(-share / 2) / 2)
    return make_uniform_release(values, flips, share)
