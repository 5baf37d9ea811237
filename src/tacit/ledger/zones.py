"""Time zones of subjects: which horizon a window belongs to.

Horizons are counted from 1970 in the subject's local time, so a day begins at midnight where the
subject is. A charge stores how far local time was ahead of UTC, so that nothing that was charged
depends on later changes of the time zone database.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo

import numpy as np
from numpy.typing import NDArray

from tacit.durations import MICROSECONDS

FURTHEST: Final = MICROSECONDS["d"]
"""No local time is further from UTC."""
ALWAYS: Final = -(1 << 62)
"""The time since when a subject's first zone applies."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

History = tuple[tuple[str, int], ...]
"""The zones of a subject, each with the window start from which it was registered."""
UTC_ALWAYS: Final[History] = (("UTC", ALWAYS),)


@dataclass(frozen=True, slots=True, eq=False)
class Zones:
    """The time zones of an engine's subjects."""

    places: NDArray[np.int32]
    """For each subject, the place of its history."""
    histories: Sequence[History]

    @classmethod
    def utc(cls, subjects: int) -> Zones:
        """Return the zones of subjects that are all counted in UTC."""
        return cls(np.zeros(subjects, np.int32), [UTC_ALWAYS])

    def take(self, chosen: NDArray[np.int64]) -> Zones:
        """Return the zones of some subjects."""
        return Zones(self.places[chosen], self.histories)

    def split(self, start: int, horizon: int) -> Iterator[tuple[int, NDArray[np.bool_] | None]]:
        """Yield how far local time is ahead of UTC in a window, with the subjects; None is all."""
        offsets = np.array([find_offset(one, horizon, start) for one in self.histories], np.int64)
        distinct = np.unique(offsets)
        for offset in distinct.tolist():
            yield offset, None if len(distinct) == 1 else (offsets == offset)[self.places]


def find_offset(history: History, horizon: int, start: int) -> int:
    """Return how far local time is ahead of UTC for a window, in microseconds.

    A change of zone takes effect when the horizon in which it was registered has ended: until then
    the old zone counts.

    >>> hour = 3_600_000_000
    >>> moved = (("Asia/Tokyo", ALWAYS), ("Europe/Berlin", 10 * hour))
    >>> [find_offset(moved, 24 * hour, n * hour) // hour for n in (0, 12, 14, 15)]
    [9, 9, 9, 1]
    """
    zone = history[0][0]
    for following, since in history[1:]:
        if start < _find_end(zone, horizon, since):
            break
        zone = following
    return _offset(zone, start)


def _find_end(zone: str, horizon: int, moment: int) -> int:
    """Return when the horizon of a moment ends; not too early where clocks are changed."""
    local = moment + _offset(zone, moment)
    end = (local // horizon + 1) * horizon
    guess = end - _offset(zone, moment)
    return max(guess, end - _offset(zone, guess))


@lru_cache(1 << 12)
def _offset(zone: str, moment: int) -> int:
    if zone == "UTC":
        return 0
    try:
        local = (_EPOCH + timedelta(microseconds=moment)).astimezone(ZoneInfo(zone))
    except OverflowError:  # beyond the calendar
        return 0
    return (local.utcoffset() or timedelta()) // timedelta(microseconds=1)
