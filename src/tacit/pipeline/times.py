"""Format times for people."""

from __future__ import annotations

import numpy as np


def format_time(microseconds: int) -> str:
    """Format a time as ISO 8601 in UTC, for any year.

    >>> format_time(1_201_910_400_000_000)
    '2008-02-02T00:00:00Z'
    """
    moment = np.datetime64(microseconds, "us")
    if microseconds % 1_000_000:
        return str(np.datetime_as_string(moment, timezone="UTC"))
    return str(np.datetime_as_string(moment, unit="s", timezone="UTC"))
