"""Parse and format durations, such as `10 min`, as whole microseconds."""

from __future__ import annotations

import re
from decimal import Decimal

MICROSECONDS = {
    "us": 1,
    "ms": 1_000,
    "s": 1_000_000,
    "min": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
}
_SPELLINGS = {
    "us": "us", "microsecond": "us", "microseconds": "us",
    "ms": "ms", "millisecond": "ms", "milliseconds": "ms",
    "s": "s", "sec": "s", "second": "s", "seconds": "s",
    "min": "min", "minute": "min", "minutes": "min",
    "h": "h", "hour": "h", "hours": "h",
    "d": "d", "day": "d", "days": "d",
}  # fmt: skip
UNITS = "us, ms, s, min, h or d"
LONGEST = 1 << 62
_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*")


def parse_duration(text: str) -> int:
    """Parse a duration, such as `10 min`, into microseconds.

    >>> parse_duration("10 min")
    600000000
    >>> parse_duration("1.5s")
    1500000
    """
    found = _DURATION.fullmatch(text)
    unit = _SPELLINGS.get(found[2]) if found else None
    if found is None or unit is None:
        raise ValueError(
            f"expected a duration with its unit ({UNITS}), such as '10 min'; got '{text}'"
        )
    exact = Decimal(found[1]) * MICROSECONDS[unit]
    if exact != int(exact):
        raise ValueError(f"'{text}' is finer than a microsecond")
    if exact > LONGEST:
        raise ValueError(f"'{text}' is longer than Tacit can count")
    return int(exact)


def format_duration(microseconds: int) -> str:
    """Format a duration in the largest unit that needs no fraction.

    >>> format_duration(600_000_000)
    '10 min'
    """
    for unit in reversed(MICROSECONDS):
        if microseconds % MICROSECONDS[unit] == 0 and (microseconds or unit == "s"):
            return f"{microseconds // MICROSECONDS[unit]} {unit}"
    raise AssertionError("every whole number is a multiple of a microsecond")
