"""What releases cost: amounts for subjects, private patterns and windows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil, floor
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tacit.durations import MICROSECONDS

if TYPE_CHECKING:
    from tacit.spec.specification import Private

NANO = 10**9
"""Nano-epsilon in an epsilon."""
LONGEST = MICROSECONDS["d"]
"""The windows of one charge start within so long, so that those of a horizon are soon found."""


@dataclass(frozen=True, slots=True, eq=False)
class Account:
    """What a window costs the subjects of a private pattern, and what they may spend."""

    name: str
    """The private pattern's."""
    amount: int
    """For one window, in nano-epsilon."""
    limit: int | None
    """What may be spent in a horizon, in nano-epsilon; None: there is no limit."""
    horizon: int
    """How long a horizon is, in microseconds; horizons are counted from 1970 in UTC."""
    mask: NDArray[np.bool_]
    """Which of an engine's subjects keep it private."""

    @classmethod
    def of(cls, private: Private, mask: NDArray[np.bool_], share: Fraction | int = 1) -> Account:
        """The account for a private pattern; a window costs a share of its epsilon.

        Costs are rounded up and limits down; without a limit the horizon is a day.
        """
        limit = private.limit
        return cls(
            private.name,
            ceil(Fraction(private.epsilon) * share * NANO),
            None if limit is None else floor(limit.amount * NANO),
            MICROSECONDS["d"] if limit is None else limit.horizon,
            mask,
        )


@dataclass(frozen=True, slots=True, eq=False)
class Charge:
    """What consecutive windows cost some subjects for one private pattern."""

    private: str
    amount: int
    """For each of the windows, in nano-epsilon."""
    first: int
    """When the first of the windows starts."""
    horizon: int
    ids: NDArray[np.bool_]
    """Who is charged: a truth value for each ledger id, or for the first of them."""
    limit: int | None = None
    """What these subjects may have spent in the horizon, this charge included."""
    windows: int = 1
    slide: int = 1
    """From the start of one window to that of the next."""

    @property
    def last(self) -> int:
        """When the last of the windows starts."""
        return self.first + (self.windows - 1) * self.slide

    @property
    def horizon_start(self) -> int:
        """When the horizon of the first window starts."""
        return self.first // self.horizon * self.horizon

    def __post_init__(self) -> None:
        if min(self.amount, self.horizon, self.windows, self.slide) < 1:
            raise ValueError("a charge has an amount, a horizon and windows, all more than 0")

    def within(self, start: int, end: int) -> int:
        """How many of the windows start in `[start, end)`."""
        return windows_within(self.first, self.windows, self.slide, start, end)


def windows_within(first: int, windows: int, slide: int, start: int, end: int) -> int:
    """How many of some windows start in `[start, end)`.

    >>> windows_within(first=0, windows=10, slide=5, start=10, end=21)
    3
    """
    before, reached = (-(-(moment - first) // slide) for moment in (start, end))
    return max(0, min(windows, reached) - max(0, before))


def merged(charges: Sequence[Charge], slide: int) -> Iterator[Charge]:
    """Charges, those that differ in nothing but the window put together.

    None reaches over the end of its horizon, or over a day.
    """
    growing: dict[tuple[object, ...], Charge] = {}
    for charge in charges:
        kind = (charge.private, charge.amount, charge.horizon, charge.limit)
        before = growing.get(kind)
        if before is not None and _follows(before, charge, slide):
            growing[kind] = replace(before, windows=before.windows + charge.windows)
            continue
        if before is not None:
            yield before
        growing[kind] = replace(charge, slide=slide)
    yield from growing.values()


def _follows(before: Charge, charge: Charge, slide: int) -> bool:
    return (
        charge.first == before.last + slide
        and charge.last < before.first + LONGEST
        and charge.horizon_start == before.horizon_start
        and (charge.ids is before.ids or np.array_equal(charge.ids, before.ids))
    )
