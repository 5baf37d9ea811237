"""Cells of raw tuples: plain ones, and ones that look like values of other types."""

from __future__ import annotations

from enum import Enum, auto
from math import inf, nan
from random import Random
from typing import Any, Final, TypeAlias

Cell: TypeAlias = Any
"""None, a text, a number, a truth value; in JSON also a list or an object."""

COLUMNS: Final = ("kind", "tag", "v", "w", "ok", "seen", "lon", "lat", "secret", "note")

_PLAIN: Final[dict[str, tuple[Cell, ...]]] = {
    "tag": ("x", "y", "xx", "X", "", "2024-01-31", "31/01/2024", "2024-07-01", "7", "é", None),
    "v": (0, 1, 2, 3, 0.5, -1, None),
    "w": (0, 1, 2, 3, 0.5, -1, None),
    "ok": (True, False, None),
    "seen": ("2023-05-01T00:00:00Z", "2024-02-03T04:05:06Z", 1_700_000_000, 1_710_000_000, None),
    "lon": (10.5, 10.25, 50, None),
    "lat": (40.5, 40.25, 70, None),
    "secret": (0, 1, 2, 3, 4, 5, None),
    "note": ("", "a note", 7, None),
}
ODD: Final[tuple[Cell, ...]] = (
    "unknown", "", " ", "NaN", "nan", "inf", "-Infinity", "1e400", "-1e400", "9" * 40, "0x1F",
    "1_000", "١٢", "2024-01-31", "31/01/2024", "01/31/2024", "2024-01-31T10:00:00Z",
    "2024-01-31 10:00", "20240131", "10:30", "true", "TRUE", "yes", "null", "None", "[1, 2]",
    '{"a": 1}', "é", "e\u0301", "\u200b", "\ufeff", "007", "7.", ".5", "+7", "-0", "1,5", 'a"b',
    '"', "a,b", "'", "\\", "\\N", "NA", "#N/A", "x" * 300, "1700000000", "1700000000000", "1e9",
    0, 1, -1, 7.5, -0.0, 2**53 + 1, 2**63 - 1, 2**63, 1e308, 5e-324, True, False,
)  # fmt: skip
"""What may stand in any column of a line that can be read."""
WILD: Final[tuple[Cell, ...]] = (
    nan, inf, -inf, 2**64, 10**38, 10**39, -(10**40), [1, "a"], [], [[1.5]], {"a": {"b": 1}}, {},
    "\x00", "a\x00b", "a\nb", "a\r\nb", "\r", "\t", "\x1a", "\U0001f600",
)  # fmt: skip
"""What may make a line unreadable."""


class Broken(Enum):
    """How a line is broken; each coding has its own way to do so."""

    UNCLOSED_QUOTE = auto()
    BAD_UTF8 = auto()
    TRUNCATED = auto()
    HUGE_FLOAT = auto()
    HUGE_INTEGER = auto()
    LONE_SURROGATE = auto()
    LIST = auto()
    NUL = auto()
    FEW_FIELDS = auto()
    MANY_FIELDS = auto()
    BLANK = auto()
    NOT_AN_OBJECT = auto()
    TWICE = auto()
    DEEP = auto()
    GARBAGE = auto()


def plain_cell(rng: Random, column: str) -> Cell:
    """A value that fits its column."""
    return rng.choice(_PLAIN[column])


def well_formed(rng: Random, column: str, odd: float) -> Cell:
    """A value that may not fit its column, but does not make its line unreadable."""
    return rng.choice(ODD) if rng.random() < odd else plain_cell(rng, column)


def any_cell(rng: Random, column: str, odd: float) -> Cell:
    """Any value at all."""
    if rng.random() < 0.2 * odd:
        return rng.choice(WILD)
    return well_formed(rng, column, odd)
