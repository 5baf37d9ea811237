"""Sightings: in how many panes of a sliding window an element shows, and what noise makes of it.

Noise is drawn pane by pane, and a window shows an element if any of its panes does after that.
So an element that is in none of the k panes shows with probability 1 - (1 - f)**k, where f is
the chance of a flip; one that is in c of them does not with probability f**c * (1 - f)**(k - c).
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
    """For each element, how many of a window's panes it is in where it is in the window."""

    panes: int
    shares: Mapping[str, Floats]
    """`[c - 1]`: of the windows that have the element, the share in which c panes have it.

    It is taken to be the same whatever else is in the window.
    """

    @classmethod
    def counted(cls, panes: int, windows: Mapping[str, Floats]) -> PaneCounts:
        """From history: `[c]` is the number of windows with the element in c of their panes."""
        shares = {}
        for name, counts in windows.items():
            rate = (counts[1:].sum() + 0.5) / (counts.sum() + 1)
            # A window by the base rate is added, so that there is one.
            shares[name] = (counts[1:] + evenly(panes, rate)) / (counts[1:].sum() + 1)
        return cls(panes, shares)

    @classmethod
    def by_rates(cls, panes: int, rates: Mapping[str, float]) -> PaneCounts:
        """By hand: how likely each element is in a window, all panes being alike."""
        return cls(panes, {name: evenly(panes, rate) for name, rate in rates.items()})

    def noise(self, names: Iterable[str], flips: Floats) -> Floats:
        """`[element]`: how likely one that is not there shows, and one that is there does not."""
        return np.array(
            [self.pair(name, flip) for name, flip in zip(names, flips.tolist(), strict=True)]
        ).reshape(-1, 2)

    def pair(self, name: str, flip: float) -> tuple[float, float]:
        """The same for one element."""
        there = np.arange(1, self.panes + 1)
        missed = flip**there * (1 - flip) ** (self.panes - there)
        return 1 - (1 - flip) ** self.panes, float(self.shares[name] @ missed)


def evenly(panes: int, rate: float) -> Floats:
    """`[c - 1]`: how an element that is in a window with this rate is spread over its panes."""
    each = 1 - (1 - min(max(rate, 1e-9), 1 - 1e-9)) ** (1 / panes)
    chances = np.array(
        [comb(panes, c) * each**c * (1 - each) ** (panes - c) for c in range(1, panes + 1)]
    )
    return np.asarray(chances / chances.sum())
