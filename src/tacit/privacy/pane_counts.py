"""Pane counts: in how many panes of a sliding window an element occurs, and the effect of noise.

Noise is drawn per pane, and a noisy window has an element if any of its noisy panes has it. With
flip probability f, an element in none of the k panes is present after noise with probability
1 - (1 - f)**k. An element in c of them is absent with probability f**c * (1 - f)**(k - c).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import comb

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class PaneCounts:
    """For each element, the distribution of the number of panes that have it in a window."""

    panes: int
    shares: Mapping[str, Floats]
    """`[c - 1]`: of the windows that have the element, the share in which c panes have it.

    It is assumed to be independent of everything else in the window.
    """

    @classmethod
    def from_counts(cls, panes: int, windows: Mapping[str, Floats]) -> PaneCounts:
        """Estimate from history: `[c]` is the number of windows with c panes that have it."""
        shares = {}
        for name, counts in windows.items():
            rate = (counts[1:].sum() + 0.5) / (counts.sum() + 1)
            # One window with the base rate is added, so that the sum is never 0.
            shares[name] = (counts[1:] + spread_evenly(panes, rate)) / (counts[1:].sum() + 1)
        return cls(panes, shares)

    @classmethod
    def from_rates(cls, panes: int, rates: Mapping[str, float]) -> PaneCounts:
        """Derive from the probability of each element in a window, with independent panes."""
        return cls(panes, {name: spread_evenly(panes, rate) for name, rate in rates.items()})

    def window_flips(self, names: Iterable[str], flips: Floats) -> Floats:
        """Return `[element]`: the probabilities of a false alarm and of a miss in a window."""
        return np.array(
            [self.window_flip(name, flip) for name, flip in zip(names, flips.tolist(), strict=True)]
        ).reshape(-1, 2)

    def window_flip(self, name: str, flip: float) -> tuple[float, float]:
        """Return the probabilities of a false alarm and of a miss for one element."""
        there = np.arange(1, self.panes + 1)
        missed = flip**there * (1 - flip) ** (self.panes - there)
        return 1 - (1 - flip) ** self.panes, float(self.shares[name] @ missed)


def spread_evenly(panes: int, rate: float) -> Floats:
    """Return `[c - 1]`: the share of windows with c panes, if panes are independent."""
    each = 1 - (1 - min(max(rate, 1e-9), 1 - 1e-9)) ** (1 / panes)
    chances = np.array(
        [comb(panes, c) * each**c * (1 - each) ** (panes - c) for c in range(1, panes + 1)]
    )
    return np.asarray(chances / chances.sum())
