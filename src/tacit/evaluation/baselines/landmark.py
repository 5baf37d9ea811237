"""Landmark privacy: protects all windows with a private element, and one other window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from tacit.errors import PrivacyError
from tacit.evaluation.baselines.publication import compute_error, publish
from tacit.evaluation.baselines.releases import (
    Amount,
    NoiseKind,
    NoisyPresence,
    check_variant,
    compute_event_share,
    draw_noise,
    make_graded_release,
)
from tacit.evaluation.baselines.setting import Presence, Setting
from tacit.evaluation.baselines.w_event import add_noise
from tacit.kernels import compiled


@dataclass(frozen=True, slots=True)
class LandmarkUniform:
    """Publish every window with the same share of the budget, by the Laplace mechanism.

    Guarantee: landmark E-DP, with E = (L + 1) * epsilon/m for a subject with L landmarks.
    Neighbours: streams that differ in one event at each landmark and in one other window.
    Why: each window spends E/(L + 1) per event, and L + 1 of them add up to E. A pattern's m
    events are in one window, where they lose m * E/(L + 1) = epsilon.
    Spends: epsilon/m for each event. After the conversion the noise does not depend on L, so
    nothing is revealed about which windows are landmarks.
    Source: Katsomallos, Tzompanaki, Kotzinos 2022.
    """

    noise: NoiseKind = "laplace"
    name: str = "landmark uniform"
    uses_epsilon: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_variant(self.noise)

    def release(
        self, presence: Presence, setting: Setting, epsilon: Amount, random: np.random.Generator
    ) -> NoisyPresence:
        """Add noise of scale m/epsilon to every bit."""
        return add_noise(
            presence, setting, compute_event_share(setting, epsilon), random, self.noise
        )


@dataclass(frozen=True, slots=True)
class LandmarkAdaptive:
    """Publish at a rate that follows the releases: less often while they are similar; else repeat.

    After a publication the rate falls by the share `fall` of itself if the release is closer to
    the last one than the scale of the noise. Otherwise it rises by the share `rise` of its
    distance to 1.

    Guarantee: landmark E-DP, with E = (L + 1) * epsilon/m for a subject with L landmarks.
    Neighbours: streams that differ in one event at each landmark and in one other window.
    Why: the rate depends on releases alone; a window that is published spends E/(L + 1) per
    event, a repeated one nothing. A pattern's m events lose m * E/(L + 1) = epsilon at most.
    Spends: epsilon/m for each event of a published window.
    Source: Katsomallos, Tzompanaki, Kotzinos 2022. What a repetition saves is not added to
    later windows: they would spend more than epsilon.
    """

    fall: float = 0.1
    rise: float = 0.9
    noise: NoiseKind = "laplace"
    name: str = "landmark adaptive"
    uses_epsilon: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_variant(self.noise)
        if not (0 <= self.fall <= 1 and 0 <= self.rise <= 1):
            raise PrivacyError("fall and rise are shares: expected numbers from 0 to 1")

    def release(
        self, presence: Presence, setting: Setting, epsilon: Amount, random: np.random.Generator
    ) -> NoisyPresence:
        """Process each subject's windows in order."""
        streams, share = setting.streams(presence), compute_event_share(setting, epsilon)
        noise = draw_noise(random, streams.shape, self.noise)
        luck = random.random(streams.shape[:2])
        habits, response = (self.fall, self.rise), self.noise == "response"
        spent = sample(streams, share, habits, noise, luck, response)
        windows = presence.shape[:-1]
        values, spent = noise.reshape(presence.shape), spent.reshape(windows)
        return make_graded_release(values, spent, np.zeros(windows), share, self.noise)


@compiled
def sample(
    streams: NDArray[np.bool_],
    share: float,
    habits: tuple[float, float],
    noise: NDArray[np.float64],
    luck: NDArray[np.float64],
    response: bool,
) -> NDArray[np.float64]:
    """Turn noise into the releases, in place; return what publications spend.

    A window is published if its random number is below the rate; the first one always.
    """
    subjects, windows, types = streams.shape
    spent = np.zeros((subjects, windows))
    fall, rise = habits
    for subject in range(subjects):
        rate = 1.0
        for step in range(windows):
            here = noise[subject, step]
            if step > 0 and luck[subject, step] >= rate:
                here[:] = noise[subject, step - 1]
                continue
            spent[subject, step] = share
            publish(here, streams[subject, step], share, response)
            if step > 0:
                moved = 0.0
                for kind in range(types):
                    moved += abs(here[kind] - noise[subject, step - 1, kind])
                if moved / types < compute_error(share, response):
                    rate -= fall * rate
                else:
                    rate += rise * (1 - rate)
    return spent
