"""User-level privacy: randomised response whose budget is that of a subject's whole stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from tacit.errors import PrivacyError
from tacit.evaluation.baselines.releases import (
    Amount,
    NoisyPresence,
    compute_event_share,
    flip,
)
from tacit.evaluation.baselines.setting import Presence, Setting


@dataclass(frozen=True, slots=True)
class UserLevel:
    """Divide the budget of a subject's stream evenly among all bits of its T windows.

    Guarantee: user-level E-DP, with E = T * d * epsilon/m for d event types.
    Neighbours: whole streams of one subject.
    Why: each of the T * d bits is flipped with E/(T * d), and these add up to E. Inputs that
    differ in a pattern's m elements in one window differ in m bits: m * E/(T * d) = epsilon.
    Spends: epsilon/m for each event. After this conversion it is the event-level mechanism: the
    axis of the plot does not show what user-level privacy guarantees beyond one window.
    Source: Dwork, Naor, Pitassi, Rothblum 2010.

    With `over="stream"` epsilon is that of a pattern's elements in all windows of a subject,
    which is a T times stronger guarantee than that of the others: for context only.
    """

    over: Literal["window", "stream"] = "window"
    uses_epsilon: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.over not in ("window", "stream"):
            raise PrivacyError(f"over must be 'window' or 'stream'; got {self.over!r}")

    @property
    def name(self) -> str:
        """The name of the variant."""
        return "user-level" if self.over == "window" else "user-level, whole stream"

    def release(
        self, presence: Presence, setting: Setting, epsilon: Amount, random: np.random.Generator
    ) -> NoisyPresence:
        """Flip every bit."""
        setting.streams(presence)
        return flip(presence, self._share(presence, setting, epsilon), random)

    def _share(self, presence: Presence, setting: Setting, epsilon: Amount) -> float:
        share = compute_event_share(setting, epsilon)
        return share if self.over == "window" else share / max(1, presence.shape[-2])
