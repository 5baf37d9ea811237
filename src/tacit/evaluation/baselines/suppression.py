"""Suppression: never release one element of each private pattern."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import prod
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from tacit.evaluation.baselines.releases import (
    Amount,
    NoisyPresence,
    check_epsilon,
    make_uniform_release,
)
from tacit.evaluation.baselines.setting import Presence, Setting
from tacit.privacy.quality import Confusion, micro_alpha

_MOST_CHOICES = 1024


@dataclass(frozen=True, slots=True)
class Suppression:
    """Remove all events of one element of each private pattern: the one that costs least quality.

    Guarantee: none that epsilon measures. No private pattern can be seen as a whole, but its
    other elements are released unchanged: an input without them is distinguished with certainty.
    Neighbours: it hides the difference between inputs that differ in suppressed types alone.
    Why: what is released does not depend on the suppressed types.
    Spends: nothing on what is suppressed, and no epsilon bounds the rest.
    Source: Wang, He, Rundensteiner, Naughton 2013 (type-level suppression); they weigh the
    matches that are lost, we the quality Q on history with literal decoding.
    """

    name: str = "suppression"
    uses_epsilon: ClassVar[bool] = False

    def release(
        self,
        presence: Presence,
        setting: Setting,
        epsilon: Amount,
        random: np.random.Generator,  # noqa: ARG002 - nothing is drawn
    ) -> NoisyPresence:
        """Remove the suppressed types; the same for every epsilon."""
        check_epsilon(epsilon)
        setting.streams(presence)
        hidden = choose_suppressed(setting)
        whole = len(hidden) == len(setting.private_columns)
        return hide_types(presence, hidden, 0.0 if whole else np.inf)


def hide_types(presence: Presence, hidden: Iterable[int], spent: float) -> NoisyPresence:
    """Return presence without the hidden types, whose bits carry no information."""
    columns = list(hidden)
    shown = presence.copy()
    shown[..., columns] = False
    flips = np.zeros(presence.shape[-1])
    flips[columns] = 0.5
    return make_uniform_release(shown, flips, spent)


@lru_cache(maxsize=4)
def choose_suppressed(setting: Setting) -> tuple[int, ...]:
    """Choose one element of each private pattern, so that Q on history is best without them.

    All choices are tried; if there are too many, one pattern after the other.
    """
    options = [sorted(map(setting.types.index, pattern)) for pattern in setting.private]
    if prod(map(len, options)) <= _MOST_CHOICES:
        choices = {tuple(sorted(set(choice))) for choice in product(*options)}
        return _best(setting, choices)
    chosen: tuple[int, ...] = ()
    for option in options:
        chosen = _best(setting, {tuple(sorted({*chosen, column})) for column in option})
    return chosen


def _best(setting: Setting, choices: set[tuple[int, ...]]) -> tuple[int, ...]:
    return max(sorted(choices), key=lambda choice: _quality(setting, choice))


def _quality(setting: Setting, hidden: tuple[int, ...]) -> float:
    """Compute the micro Q on history with the hidden types absent."""
    counts: NDArray[np.float64] = np.zeros(3)
    for asked in setting.asked:
        seen = sum(1 << n for n, column in enumerate(asked.columns) if column not in hidden)
        found = asked.table[np.arange(len(asked.table)) & seen]
        true = asked.table
        counts += [
            asked.windows[part].sum() for part in (true & found, ~true & found, true & ~found)
        ]
    return Confusion(*map(float, counts)).quality(micro_alpha(setting.alphas))
