"""The charges of releases: amounts per subject, private pattern and window."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil, floor
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tacit.durations import MICROSECONDS
from tacit.privacy.prices import NANO

if TYPE_CHECKING:
    from tacit.spec.specification import Private

LONGEST = MICROSECONDS["d"]
"""The longest time between the first and last window of one charge. It bounds the search for the
charges of a horizon."""


@dataclass(frozen=True, slots=True, eq=False)
class Account:
    """The cost of a window for the subjects of a private pattern, and their limit."""

    name: str
    """The name of the private pattern."""
    amount: int
    """The most that a window, or a pane, costs, in nano-epsilon."""
    limit: int | None
    """The limit per horizon, in nano-epsilon; None for no limit."""
    horizon: int
    """The length of a horizon, in microseconds; counted from 1970 in the subject's local time."""
    mask: NDArray[np.bool_]
    """The engine's subjects for which the pattern is private."""
    elements: frozenset[str] = frozenset()
    """The event types whose release is charged to it."""
    until: int | None = None
    """If it was withdrawn: it counts in the horizon of this time, and not after it."""
    counts: int = 0
    """How much of `amount` is for counts."""

    @classmethod
    def of(
        cls,
        private: Private,
        mask: NDArray[np.bool_],
        share: Fraction | int = 1,
        elements: frozenset[str] = frozenset(),
        counts: int = 0,
    ) -> Account:
        """Create the account of a private pattern; a window costs at most a share of its epsilon.

        `counts` is what counts cost beside that. Costs are rounded up and limits down; without a
        limit the horizon is a day.
        """
        limit = private.limit
        return cls(
            private.name,
            ceil(Fraction(private.epsilon) * share * NANO) + counts,
            None if limit is None else floor(limit.amount * NANO),
            MICROSECONDS["d"] if limit is None else limit.horizon,
            mask,
            elements,
            counts=counts,
        )


@dataclass(frozen=True, slots=True, eq=False)
class Charge:
    """The charge of consecutive windows to some subjects, for one private pattern.

    A charge of 0 records windows that were answered and revealed nothing about the pattern.
    """

    private: str
    amount: int
    """The cost of each window, in nano-epsilon."""
    first: int
    """The start time of the first window."""
    horizon: int
    ids: NDArray[np.bool_]
    """The charged subjects: a bool for each ledger id; missing ones at the end are False."""
    limit: int | None = None
    """The limit of these subjects in the horizon, including this charge."""
    windows: int = 1
    slide: int = 1
    """The time between the starts of two windows."""
    offset: int = 0
    """How far the subjects' local time is ahead of UTC in these windows, in microseconds."""

    @property
    def last(self) -> int:
        """The start time of the last window."""
        return self.first + (self.windows - 1) * self.slide

    @property
    def horizon_start(self) -> int:
        """The start of the horizon of the first window, in local time."""
        return (self.first + self.offset) // self.horizon * self.horizon

    def __post_init__(self) -> None:
        if min(self.horizon, self.windows, self.slide) < 1 or self.amount < 0:
            raise ValueError(
                "the horizon, windows and slide of a charge must be positive, and its amount not"
                " negative"
            )

    def count_within(self, start: int, end: int) -> int:
        """Count the windows that start in `[start, end)`, in local time."""
        return count_windows(self.first + self.offset, self.windows, self.slide, start, end)


def count_windows(first: int, windows: int, slide: int, start: int, end: int) -> int:
    """Count the windows that start in `[start, end)`.

    >>> count_windows(first=0, windows=10, slide=5, start=10, end=21)
    3
    """
    before, reached = (-(-(moment - first) // slide) for moment in (start, end))
    return max(0, min(windows, reached) - max(0, before))


def merge_charges(charges: Sequence[Charge], slide: int) -> Iterator[Charge]:
    """Merge charges that differ only in the window.

    No result crosses the end of its horizon, or is longer than a day.
    """
    growing: dict[tuple[object, ...], Charge] = {}
    for charge in charges:
        kind = (charge.private, charge.amount, charge.horizon, charge.limit, charge.offset)
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
