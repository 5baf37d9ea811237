"""The exact audit: check that neighbouring rows of a table are within their epsilon."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from math import prod
from operator import index
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tacit.errors import AuditError, PrivacyError
from tacit.privacy.exponentials import Exact, exp_below, format_epsilon, log_above, parse_epsilon

CEILING = Fraction(45)
"""Entries of a table are below 2**64 < exp(45), so a larger epsilon forbids nothing more."""


@lru_cache(1 << 12)
def largest_ratio(epsilon: Fraction) -> Fraction:
    """Return the largest allowed ratio of two entries: a lower bound of exp(epsilon)."""
    return exp_below(min(epsilon, CEILING))


@dataclass(frozen=True, slots=True)
class Neighbours:
    """A group of rows, any two of which must be within epsilon of each other.

    All inputs that agree on everything but one private pattern's elements are neighbours of
    each other, so groups of rows are enough; a single pair is a group of two.
    """

    rows: tuple[int, ...]
    epsilon: Fraction

    def __init__(self, rows: Iterable[int], epsilon: Exact) -> None:
        object.__setattr__(self, "rows", tuple(map(index, rows)))
        object.__setattr__(self, "epsilon", parse_epsilon(epsilon))
        if not self.rows or len(set(self.rows)) < len(self.rows):
            raise PrivacyError("neighbours are one row or more, each named once")

    def __repr__(self) -> str:
        return f"Neighbours({len(self.rows)} rows, epsilon {format_epsilon(self.epsilon)})"


def check_rows(neighbours: Iterable[Neighbours], rows: int) -> None:
    """Raise PrivacyError if neighbours name a row that a table of `rows` rows does not have."""
    if any(not 0 <= row < rows for group in neighbours for row in group.rows):
        raise PrivacyError(f"neighbours must be rows of the channel, 0 to {rows - 1}")


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """The largest ratio between two rows of a group of neighbours.

    In `column`, row `high` is `ratio` times as likely as row `low`. The ratio is None if an
    output is possible for one row and impossible for the other.
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
        """A certified upper bound of the group's true epsilon; None if it is infinite."""
        if self.ratio is None:
            return None
        true = Fraction(log_above(self.ratio))
        return min(true, self.asked) if self.passed else true


@dataclass(frozen=True, slots=True)
class Audit:
    """The result of a channel's audit, with one finding for each group of neighbours."""

    findings: tuple[AuditFinding, ...] = field(repr=False)

    @property
    def passed(self) -> bool:
        """Whether every group stays within its epsilon."""
        return all(finding.passed for finding in self.findings)

    @property
    def worst(self) -> AuditFinding | None:
        """The finding with the largest ratio; None for a channel without neighbours."""
        infinite = [finding for finding in self.findings if finding.ratio is None]
        return next(iter(infinite), None) or max(
            self.findings, key=lambda finding: finding.ratio or 0, default=None
        )

    @property
    def epsilon(self) -> Fraction | None:
        """The true epsilon: the largest of any group, rounded up; None if it is infinite."""
        return Fraction(0) if self.worst is None else self.worst.epsilon

    def check(self) -> None:
        """Raise AuditError for the first group that exceeds its epsilon."""
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

    Any two rows of a group are neighbours. So it is enough to compare the largest and the
    smallest entry of each column, which takes one pass over the group's rows.
    """
    by_size: dict[int, list[int]] = {}
    for number, group in enumerate(neighbours):
        by_size.setdefault(len(group.rows), []).append(number)
    found: dict[int, AuditFinding] = {}
    for numbers in by_size.values():
        findings = _examine(table, [neighbours[number] for number in numbers])
        found.update(zip(numbers, findings, strict=True))
    return Audit(tuple(found[number] for number in range(len(neighbours))))


def _examine(table: NDArray[np.uint64], groups: Sequence[Neighbours]) -> Iterator[AuditFinding]:
    """Yield the finding of each group; all of them have the same number of rows."""
    entries = table[np.array([group.rows for group in groups])]
    most, least = entries.max(axis=1), entries.min(axis=1)
    columns = [*map(_find_widest, most.tolist(), least.tolist())]
    there = np.arange(len(groups))
    chosen = entries[there, :, columns]
    for group, column, highest, lowest, high, low in zip(
        groups,
        columns,
        chosen.argmax(axis=1).tolist(),
        chosen.argmin(axis=1).tolist(),
        most[there, columns].tolist(),
        least[there, columns].tolist(),
        strict=True,
    ):
        ratio = Fraction(high, low) if low else None
        yield AuditFinding(group.epsilon, ratio, group.rows[highest], group.rows[lowest], column)


def _find_widest(most: list[int], least: list[int]) -> int:
    """Return the first column with the largest quotient; columns of zeros do not count."""
    pairs = [*zip(most, least, strict=True)]
    widest = 0, 1
    for pair in set(pairs):
        if pair[0] * widest[1] > widest[0] * pair[1]:  # the larger quotient, also if infinite
            widest = pair
    return pairs.index(widest)


Ratio: TypeAlias = Fraction | None
"""How many times likelier an output is for one input than for another; None is infinite."""


def row_ratio(table: NDArray[np.uint64], rows: Iterable[int]) -> Ratio:
    """Return the largest ratio between any two of these rows, in any column."""
    neighbours = Neighbours(dict.fromkeys(rows), 0)
    return audit(table, [neighbours]).findings[0].ratio


def multiply_ratios(ratios: Iterable[Ratio]) -> Ratio:
    """Multiply the ratios of independent draws."""
    known = list(ratios)
    return None if None in known else prod((r for r in known if r), start=Fraction(1))


def largest_of(ratios: Iterable[Ratio]) -> Ratio:
    """Return the largest ratio, at least 1."""
    known = list(ratios)
    return None if None in known else max((r for r in known if r), default=Fraction(1))
