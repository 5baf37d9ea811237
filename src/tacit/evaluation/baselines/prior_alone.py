"""Prior alone: answers from public events and base rates, independent of private events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tacit.evaluation.baselines.releases import Amount, NoisyPresence, check_epsilon
from tacit.evaluation.baselines.setting import Presence, Setting
from tacit.evaluation.baselines.suppression import hide_types


@dataclass(frozen=True, slots=True)
class PriorAlone:
    """Release public events unchanged and no private events.

    Guarantee: pattern-level 0-DP.
    Neighbours: windows that differ anywhere inside a pattern's elements.
    Why: what is released does not depend on any element of any private pattern.
    Spends: nothing. Every mechanism should be at least as good.
    """

    name: str = "prior alone"
    uses_epsilon: ClassVar[bool] = False

    def release(
        self,
        presence: Presence,
        setting: Setting,
        epsilon: Amount,
        random: np.random.Generator,  # noqa: ARG002 - nothing is drawn
    ) -> NoisyPresence:
        """Remove the private types; the same for every epsilon."""
        check_epsilon(epsilon)
        setting.streams(presence)
        return hide_types(presence, setting.private_columns.tolist(), 0.0)
