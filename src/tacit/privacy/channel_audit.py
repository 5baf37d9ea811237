"""The exact audit: does a table keep neighbouring rows as close as it promises?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import prod
from operator import index
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tacit.errors import AuditError, PrivacyError
from tacit.privacy.exponentials import Exact, exact, exp_below, log_above, written

CEILING = Fraction(45)
"""Entries of a table are below 2**64 < exp(45), so a larger epsilon forbids nothing more."""


def largest_ratio(epsilon: Fraction) -> Fraction:
    """How many times another an entry may be: a lower bound of exp(epsilon)."""
    return exp_below(min(epsilon, CEILING))


@dataclass(frozen=True, slots=True)
class Neighbours:
    """Rows that must be hard to tell apart: any two of them, by at most epsilon.

    Inputs that agree on everything but one private pattern's elements are neighbours of each
    other, all of them, so groups of rows say it all; a single pair is a group of two.
    """

    rows: tuple[int, ...]
    epsilon: Fraction

    def __init__(self, rows: Iterable[int], epsilon: Exact) -> None:
        object.__setattr__(self, "rows", tuple(map(index, rows)))
        object.__setattr__(self, "epsilon", exact(epsilon))
        if not self.rows or len(set(self.rows)) < len(self.rows):
            raise PrivacyError("neighbours are one row or more, each named once")

    def __repr__(self) -> str:
        return f"Neighbours({len(self.rows)} rows, epsilon {written(self.epsilon)})"


def check_rows(neighbours: Iterable[Neighbours], rows: int) -> None:
    """Refuse neighbours that are no rows of a table with so many."""
    if any(not 0 <= row < rows for group in neighbours for row in group.rows):
        raise PrivacyError(f"neighbours must be rows of the channel, 0 to {rows - 1}")


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """How far apart a group of neighbours is where it is furthest apart.

    In `column`, row `high` is `ratio` times as likely as row `low`; None stands for a row
    that is possible beside one that is not.
    """

    asked: Fraction
    ratio: Fraction | None
    high: int
    low: int
    column: int

    @property
    def passed(self) -> bool:
        """Whether the ratio is at most a lower bound of exp(asked)."""
        return self.ratio is not None and self.ratio <= largest_ratio(self.asked)

    @property
    def epsilon(self) -> Fraction | None:
        """The true epsilon of these neighbours: a certified upper bound; None if there is none."""
        if self.ratio is None:
            return None
        true = Fraction(log_above(self.ratio))
        return min(true, self.asked) if self.passed else true


@dataclass(frozen=True, slots=True)
class Audit:
    """What the audit of a channel found, one finding for each group of neighbours."""

    findings: tuple[AuditFinding, ...] = field(repr=False)

    @property
    def passed(self) -> bool:
        """Whether every group keeps its promise."""
        return all(finding.passed for finding in self.findings)

    @property
    def worst(self) -> AuditFinding | None:
        """The group that is furthest apart, or None for a channel without neighbours."""
        infinite = [finding for finding in self.findings if finding.ratio is None]
        return next(iter(infinite), None) or max(
            self.findings, key=lambda finding: finding.ratio or 0, default=None
        )

    @property
    def epsilon(self) -> Fraction | None:
        """The true epsilon: the largest of any group, rounded up; None if there is none."""
        return Fraction(0) if self.worst is None else self.worst.epsilon

    def check(self) -> None:
        """Raise AuditError for the first group that does not keep its promise."""
        for finding in self.findings:
            if not finding.passed:
                raise AuditError(
                    asked=finding.asked,
                    true=finding.epsilon,
                    high=finding.high,
                    low=finding.low,
                    column=finding.column,
                )

    def __str__(self) -> str:
        if self.epsilon is None:
            return "failed: some output is possible for one row and impossible for its neighbour"
        word = "passed" if self.passed else "failed"
        return f"{word}: true epsilon at most {float(self.epsilon):.12g} per draw"


def audit(table: NDArray[np.uint64], neighbours: Sequence[Neighbours]) -> Audit:
    """Compare all neighbouring rows in all columns, in whole numbers.

    Of a group in which any two rows are neighbours, the largest and the smallest entry of
    a column say it for all pairs: the time is that of reading the group's rows once.
    """
    return Audit(tuple(_examine(table, group) for group in neighbours))


def _examine(table: NDArray[np.uint64], group: Neighbours) -> AuditFinding:
    part = table[list(group.rows)]
    most, least = part.max(axis=0), part.min(axis=0)
    # Columns with the same two entries are judged once; a column that never comes, not at all.
    extremes = {pair for pair in zip(most.tolist(), least.tolist(), strict=True) if pair[0]}
    impossible = [pair for pair in extremes if pair[1] == 0]
    high, low = impossible[0] if impossible else max(extremes, key=lambda pair: Fraction(*pair))
    column = int(np.flatnonzero((most == high) & (least == low))[0])
    return AuditFinding(
        group.epsilon,
        Fraction(high, low) if low else None,
        group.rows[int(part[:, column].argmax())],
        group.rows[int(part[:, column].argmin())],
        column,
    )


Ratio: TypeAlias = Fraction | None
"""How many times likelier an output is for one input than for another; None is no limit."""


def row_ratio(table: NDArray[np.uint64], rows: Iterable[int]) -> Ratio:
    """The largest ratio between any two of some rows, in any column."""
    neighbours = Neighbours(dict.fromkeys(rows), 0)
    return audit(table, [neighbours]).findings[0].ratio


def multiply_ratios(ratios: Iterable[Ratio]) -> Ratio:
    """Independent draws: their ratios multiply."""
    known = list(ratios)
    return None if None in known else prod((r for r in known if r), start=Fraction(1))


def largest_of(ratios: Iterable[Ratio]) -> Ratio:
    """The largest, at least 1."""
    known = list(ratios)
    return None if None in known else max((r for r in known if r), default=Fraction(1))
