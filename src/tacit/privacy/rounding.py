"""Rounding towards privacy: turn any real-valued table into whole numbers that pass the audit.

The proof, for every table and every neighbour relation, is in `docs/channels.md`.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import isfinite

import numpy as np
from numpy.typing import NDArray

from tacit.errors import PrivacyError
from tacit.privacy.channel_audit import CEILING, Neighbours, check_rows, largest_ratio

Whole = NDArray[np.object_]
"""Python's whole numbers of any size, `[row][column]`."""

_FINE = 128
"""The precision of the target table in bits; the result has at most 63."""


def round_table(
    target: Sequence[Sequence[float | Fraction]], neighbours: Sequence[Neighbours], bits: int
) -> tuple[Whole, list[int]]:
    """Return whole entries in proportion to the target, and the remainder of each row to 2**bits.

    The entries, with the remainder as one more column, keep neighbours within their epsilon.
    Only proportions matter. The remainder is tiny if all rows of the target have the same sum and
    neighbours are within their epsilon; otherwise it is as large as necessary.
    """
    ideal = _whole_numbers(target)
    check_rows(neighbours, len(ideal))
    _raise_lows(ideal, neighbours)
    entries: Whole = ideal * 0
    share = _largest_share(ideal, neighbours, bits)
    if share > 0:
        entries = ideal * share.numerator // share.denominator
        _raise_lows(entries, neighbours)
    return entries, [2**bits - int(total) for total in entries.sum(axis=1)]


def to_fraction(value: float | Fraction) -> Fraction:
    """Return a probability or weight as an exact fraction; raise PrivacyError if invalid."""
    if (not isinstance(value, Fraction) and not isfinite(value)) or value < 0:
        raise PrivacyError("probabilities and weights must be finite and not negative")
    return value if isinstance(value, Fraction) else Fraction(float(value))


def _whole_numbers(target: Sequence[Sequence[float | Fraction]]) -> Whole:
    """Return the target in units of 2**-128 of its largest entry."""
    rows = [[to_fraction(entry) for entry in row] for row in target]
    if len({len(row) for row in rows}) != 1 or not rows[0]:
        raise PrivacyError("a channel has a row or more, and as many entries in each row")
    unit = 2**_FINE / (max(map(max, rows)) or Fraction(1))
    return np.array([[int(entry * unit) for entry in row] for row in rows], dtype=np.object_)


def _raise_lows(entries: Whole, neighbours: Sequence[Neighbours]) -> None:
    """Raise small entries until all ratios between neighbours are allowed."""
    groups = [(list(group.rows), largest_ratio(group.epsilon)) for group in neighbours]
    changed = True
    while changed:
        changed = False
        for rows, limit in groups:
            part = entries[rows]
            least = -(-part.max(axis=0) * limit.denominator // limit.numerator)
            raised = np.maximum(part, least)
            if (raised != part).any():
                entries[rows] = raised
                changed = True


def _largest_share(ideal: Whole, neighbours: Sequence[Neighbours], bits: int) -> Fraction:
    """Return the largest factor on the ideal for which the remainder column is valid."""
    sums = ideal.sum(axis=1)
    most, least = int(sums.max()), int(sums.min())
    if most == 0:
        return Fraction(0)
    if (ideal == ideal[0]).all():
        return Fraction(2**bits, most)
    limit = largest_ratio(min((group.epsilon for group in neighbours), default=CEILING))
    high, low = limit.numerator, limit.denominator
    if high == low:
        return Fraction(0)
    astray = ideal.shape[1] * _hops(neighbours, len(ideal))
    margin = -(-astray * (high + low) // (high - low))
    return Fraction(max(0, 2**bits - margin) * (high - low), high * most - low * least)


def _hops(neighbours: Sequence[Neighbours], rows: int) -> int:
    """Return by how many units raising may change an entry: one for each hop."""
    named = [row for group in neighbours for row in group.rows]
    return 1 if len(set(named)) == len(named) else rows
