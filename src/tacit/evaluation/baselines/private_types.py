"""A baseline that gets the list of private event types."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tacit.evaluation.baselines.releases import Amount, Baseline, NoisyPresence
from tacit.evaluation.baselines.setting import Floats, Presence, Setting


@dataclass(frozen=True, slots=True)
class PrivateTypes:
    """Run a baseline on the private event types, and release the public ones unchanged.

    Guarantee: that of the baseline, for streams that differ in private event types alone.
    Neighbours: those of the baseline, as far as they agree on all public event types.
    Why: neighbours with respect to a private pattern agree on all public types, so releasing them
    reveals nothing more. What remains is the baseline on a window with fewer bits: m, and so
    the conversion of epsilon, stay the same. Only d, the number of types, gets smaller.
    Spends: what the baseline spends.
    Source: not in the baselines' papers; it is what Tacit's own mechanisms do. Event-level
    randomised response on private types is the mechanism `uniform`, if patterns are equally long.
    """

    inner: Baseline

    @property
    def name(self) -> str:
        """The name of the baseline."""
        return self.inner.name

    @property
    def uses_epsilon(self) -> bool:
        """Whether its releases depend on epsilon."""
        return self.inner.uses_epsilon

    def release(
        self, presence: Presence, setting: Setting, epsilon: Amount, random: np.random.Generator
    ) -> NoisyPresence:
        """Release private types by the baseline, and public types as they are."""
        setting.streams(presence)
        columns = setting.private_columns
        part = self.inner.release(presence[..., columns], setting.private_part, epsilon, random)
        values: Floats = presence.astype(np.float64)
        values[..., columns] = part.values
        flips = np.zeros((len(part.flips), len(setting.types)))
        flips[:, columns] = part.flips
        return replace(part, values=values, flips=flips)
