"""Event-level privacy: randomised response on every event type."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tacit.evaluation.baselines.releases import (
    Amount,
    NoisyPresence,
    compute_event_share,
    flip,
)
from tacit.evaluation.baselines.setting import Presence, Setting


@dataclass(frozen=True, slots=True)
class EventLevel:
    """Flip the presence of every event type, independently of the private patterns.

    Guarantee: event-level epsilon/m-DP, so pattern-level epsilon-DP.
    Neighbours: streams that differ in one event; a pattern's are m of these apart.
    Why: one bit's ratio is at most (1 - p) / p = exp(epsilon/m); m of them multiply.
    Spends: epsilon/m for each event of each window, epsilon for a pattern of m elements.
    Source: Warner 1965; the level is that of Dwork, Naor, Pitassi, Rothblum 2010.
    """

    name: str = "event-level"
    uses_epsilon: ClassVar[bool] = True

    def release(
        self, presence: Presence, setting: Setting, epsilon: Amount, random: np.random.Generator
    ) -> NoisyPresence:
        """Flip every bit."""
        setting.streams(presence)
        return flip(presence, compute_event_share(setting, epsilon), random)
