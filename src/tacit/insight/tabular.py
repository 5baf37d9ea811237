"""Format rows as text with aligned columns, and convert values for JSON."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

from tacit.privacy.exponentials import format_epsilon


def align(rows: Sequence[Sequence[str]]) -> list[str]:
    """Format rows as lines with aligned columns; all but the first are right-aligned.

    >>> print("\\n".join(align([("query", "Q"), ("jam", "0.93")])))
      query     Q
      jam    0.93
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  "
        + "  ".join(
            cell.rjust(width) if place else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def to_plain(value: Any) -> Any:
    """Convert a value to JSON types; exact numbers become text, so that none is rounded."""
    match value:
        case dict():
            return {key: to_plain(inner) for key, inner in value.items()}
        case tuple() | list():
            return [to_plain(inner) for inner in value]
        case Fraction():
            return format_epsilon(value)
        case Decimal():
            return str(value)
        case _:
            return value
