"""Pacing: which windows are worth their price, so that a limit lasts until its horizon ends.

A window has a price, the epsilon of its draws, and a gain: how much the draws are expected to
improve the answers, given the belief about the subject. History shows how much epsilon a subject
spends in each hour of the day if it pays for all windows whose gain per epsilon reaches a *ratio*,
for several ratios. The rest of a limit goes to the windows that gain most. Where it is enough for
some windows of a level and not for all, each of them is paid for with the same chance, so that
windows that gain the same share it evenly over the rest of the horizon. Gains follow from beliefs,
and beliefs from public events and released symbols; so does what is left. Nothing else decides who
pays, except random numbers that are independent of all events.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tacit.durations import MICROSECONDS
from tacit.errors import PlanError
from tacit.privacy.prices import NANO

Floats = NDArray[np.float64]

EXPLORED: Final = 1 / 64
"""The least chance of a window to be paid for, even if it is not worth its price: a wrong model
would otherwise never be corrected."""
_HOUR: Final = MICROSECONDS["h"]


class SpendingLimit(NamedTuple):
    """The limit of a private pattern, and how it is spent."""

    amount: Fraction
    horizon: int
    """In microseconds."""
    paced: bool


@dataclass(frozen=True, slots=True, eq=False)
class Pacing:
    """What subjects of a policy would spend, for each ratio of gain to epsilon."""

    ratios: Floats
    """`[level]`: increasing; the first is 0."""
    demand: Mapping[str, Floats]
    """By private pattern, `[level][hour of the day]`: epsilon per hour and subject."""

    def find_chances(
        self, name: str, left: Floats, ratios: Floats, local: int, horizon: int
    ) -> Floats:
        """Return for each subject the chance with which a window is paid for.

        `left` is what is left of a limit, in epsilon, and `ratios` the gain per epsilon. `local` is
        the start of the window in the subjects' local time, in microseconds.
        """
        demand = self.demand.get(name)
        if demand is None:
            return np.ones(len(left))
        remaining = np.minimum.accumulate(demand @ _count_hours(local, horizon))
        level = np.maximum(np.searchsorted(self.ratios, ratios, "right") - 1, 0)
        better = np.append(remaining[1:], 0.0)
        own = (remaining - better)[level]
        share = np.clip(left - better[level], 0, own) / np.where(own > 0, own, 1)
        return np.where(own > 0, share, left >= remaining[level])

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {
            "ratios": self.ratios.tolist(),
            "demand": {name: table.round(6).tolist() for name, table in self.demand.items()},
        }

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Pacing:
        """Read what `to_dict` wrote; raise PlanError if it is damaged."""
        try:
            ratios = np.array(plain["ratios"], np.float64)
            demand = {
                str(name): np.array(table, np.float64) for name, table in plain["demand"].items()
            }
            shape = (len(ratios), 24)
            tables = [ratios, *demand.values()]
            if any(not (np.isfinite(table) & (table >= 0)).all() for table in tables):
                raise ValueError("numbers")
            if any(table.shape != shape for table in demand.values()) or not len(ratios):
                raise ValueError("shape")
            if (np.diff(ratios) < 0).any():
                raise ValueError("order")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise PlanError("the plan's pacing is damaged; make a new plan") from error
        return cls(ratios, demand)


def _count_hours(local: int, horizon: int) -> Floats:
    """Return how much of the rest of a horizon is in each hour of the day, in hours."""
    left = horizon - local % horizon
    found = np.full(24, left // (24 * _HOUR), np.float64)
    rest, now = left % (24 * _HOUR), local
    while rest > 0:
        step = min(rest, _HOUR - now % _HOUR)
        found[now // _HOUR % 24] += step / _HOUR
        now, rest = now + step, rest - step
    return found


def find_chances(
    pacing: Pacing,
    name: str,
    left: NDArray[np.int64],
    gains: Floats,
    prices: NDArray[np.int64],
    local: int,
    horizon: int,
) -> Floats:
    """Return for each subject the chance with which a window is paid for.

    `left` and `prices` are in nano-epsilon: what is left of this pattern's limit, and what the
    window costs all paced patterns together.
    """
    costs = np.where(prices > 0, prices, NANO) / NANO
    chances = pacing.find_chances(name, left / NANO, gains / costs, local, horizon)
    return np.where(prices > 0, np.maximum(chances, EXPLORED), 1.0)
