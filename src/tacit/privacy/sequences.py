"""Windows of history in order of time: what memory is planned from.

Counts say how often something occurs, and not what follows what. So the windows of some subjects
are kept as they came, as signals and variables of each component.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeVar
from zoneinfo import ZoneInfo

import numpy as np
from numpy.typing import NDArray

from tacit.patterns.booleans import to_columns

Words = NDArray[np.uint64]
Bits = NDArray[np.bool_]
Whole = NDArray[np.int64]
Kind = TypeVar("Kind", bound=np.generic)

HOURS: Final = 168
"""The hours of a week; hour 0 is the first hour of Monday."""
_MOST_WORDS: Final = 1 << 22
"""The largest number of words that are kept; more subjects are left out if they would exceed it."""
_HOUR: Final = 3_600_000_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, eq=False)
class ComponentSequence:
    """The windows of one component, `[window][subject][word]`."""

    signals: Words
    values: Words
    """The values of the variables."""


@dataclass(frozen=True, slots=True, eq=False)
class Sequences:
    """The windows of some subjects, in order of time."""

    local: Whole
    """`[window]`: its start in the specification's time zone, in microseconds."""
    known: Bits
    """`[window][subject]`: whether the subject was registered."""
    components: tuple[ComponentSequence, ...]
    fits: dict[str, Any] = field(default_factory=dict)
    """What was fitted to these windows, by name: the same for every epsilon."""

    @property
    def windows(self) -> int:
        """The number of windows."""
        return len(self.local)

    @property
    def hours(self) -> Whole:
        """`[window]`: the hour of the week in which it starts."""
        return find_hours(self.local)

    def cut(self, begin: int, end: int) -> Sequences:
        """Return some of the windows."""
        return replace(
            self,
            local=self.local[begin:end],
            known=self.known[begin:end],
            components=tuple(
                ComponentSequence(part.signals[begin:end], part.values[begin:end])
                for part in self.components
            ),
            fits={},
        )

    def thin(self, rows: int) -> Sequences:
        """Leave out subjects, evenly, so that at most about so many windows are left."""
        step = max(1, self.known.size // max(1, rows))
        subjects: int = self.known.shape[1]
        return self._choose(np.arange(0, subjects, min(step, max(1, subjects))))

    def repeat(self, times: int) -> Sequences:
        """Return every subject so many times, to draw for it as often."""
        return self._choose(np.tile(np.arange(self.known.shape[1]), times))

    def _choose(self, subjects: Whole) -> Sequences:
        """Return the windows of these subjects."""
        return replace(
            self,
            known=self.known[:, subjects],
            components=tuple(
                ComponentSequence(part.signals[:, subjects], part.values[:, subjects])
                for part in self.components
            ),
            fits={},
        )


class SequenceSample:
    """Collects the windows of subjects, and leaves out every second subject if they are too many.

    `columns` has for each component the bit columns of its signals, and those of its variables.
    """

    def __init__(self, columns: Sequence[tuple[list[int], list[int]]], zone: str) -> None:
        self._columns = columns
        self._zone = zone
        self._step = 1
        self._local: list[Whole] = []
        self._known: list[Bits] = []
        self._words: list[list[Words]] = []
        """For each batch of windows, the signals and variables of all components in turn."""
        self._size = 0

    def add(self, starts: Whole, bits: Words, chosen: Bits) -> None:
        """Add windows that start at these times, of the chosen subjects `[window][subject]`."""
        slots = chosen.shape[1]
        own = slice(None, None, self._step)
        words = [
            to_columns(np.ascontiguousarray(bits[:, part]), slots)[:, own]
            if part
            else np.zeros((len(bits), len(range(slots)[own]), 1), np.uint64)
            for pair in self._columns
            for part in pair
        ]
        self._local.append(to_local(starts, self._zone))
        self._known.append(chosen[:, own])
        self._words.append(words)
        self._size += sum(part.size for part in words)
        while self._size > _MOST_WORDS and self._known[-1].shape[1] > 1:
            self._halve()

    def _halve(self) -> None:
        """Leave out every second subject."""
        self._step *= 2
        self._known = [known[:, ::2] for known in self._known]
        self._words = [[part[:, ::2].copy() for part in words] for words in self._words]
        self._size = sum(part.size for words in self._words for part in words)

    def collect(self) -> Sequences | None:
        """Return all windows; None if there are none."""
        if not self._known:
            return None
        subjects = self._known[-1].shape[1]
        known = np.concatenate([_widen(part, subjects) for part in self._known])
        words = [
            np.concatenate([_widen(part, subjects) for part in parts])
            for parts in zip(*self._words, strict=True)
        ]
        own = known.any(axis=0)
        pairs = zip(words[::2], words[1::2], strict=True)
        return Sequences(
            np.concatenate(self._local),
            known[:, own],
            tuple(
                ComponentSequence(
                    np.ascontiguousarray(signals[:, own]), np.ascontiguousarray(values[:, own])
                )
                for signals, values in pairs
            ),
        )


def _widen(part: NDArray[Kind], subjects: int) -> NDArray[Kind]:
    """Add subjects without events: the registry may have grown."""
    missing = subjects - part.shape[1]
    return np.pad(part, ((0, 0), (0, missing), *((0, 0),) * (part.ndim - 2)))


def find_hours(local: Whole) -> Whole:
    """Return the hour of the week of each local time, in microseconds since 1970.

    >>> find_hours(np.array([0, 3_600_000_000])).tolist()  # a Thursday
    [72, 73]
    """
    return (local // _HOUR + 72) % HOURS


def to_local(starts: Whole, zone: str) -> Whole:
    """Return times in a time zone, in microseconds.

    >>> int(to_local(np.array([0]), "Asia/Tokyo")[0]) // 3_600_000_000
    9
    """
    if zone == "UTC":
        return starts
    place = ZoneInfo(zone)
    # The offset changes at most a few times a year: look it up once an hour.
    hours, where = np.unique(starts // _HOUR, return_inverse=True)
    offsets = [_find_offset(hour, place) for hour in hours.tolist()]
    return np.asarray(starts + np.array(offsets, np.int64)[where.ravel()])


def _find_offset(hour: int, place: ZoneInfo) -> int:
    offset = (_EPOCH + timedelta(hours=hour)).astimezone(place).utcoffset()
    assert offset is not None
    return int(offset.total_seconds()) * 1_000_000
