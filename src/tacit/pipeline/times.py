"""Format times for people."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def format_time(microseconds: int) -> str:
    """Format a time as ISO 8601 in UTC, for any year.

    >>> format_time(1_201_910_400_000_000), format_time(253_402_300_800_000_000)
    ('2008-02-02T00:00:00Z', '10000-01-01T00:00:00Z')
    """
    try:
        return (_EPOCH + timedelta(microseconds=microseconds)).isoformat().replace("+00:00", "Z")
    except OverflowError:
        import numpy as np  # only here: it would slow the start of the command line

        moment = np.datetime64(microseconds, "us")
        return f"{moment if microseconds % 1_000_000 else moment.astype('datetime64[s]')}Z"
