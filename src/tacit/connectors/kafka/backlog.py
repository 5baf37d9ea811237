"""Messages of several partitions in one order, as near to that of their time stamps as can be.

Brokers hand over partition after partition. Taken like that, one partition's past would come
after another's present, and be late. So messages wait until no partition can bring earlier
ones: each has either brought a later one, or has no more for now, or has been silent too long.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

MOST: Final = 1 << 15
"""Messages that are handed on together at most."""
PATIENCE: Final = 5.0
"""Seconds after which a partition that neither brings messages nor ends is not waited for."""
_HELD: Final = 1 << 24
"""Bytes that wait in all partitions together, about, before some are told to pause."""
_OWN: Final = 200
"""Bytes that a message takes besides its contents, about."""

Partition: TypeAlias = tuple[str, int]
Offsets: TypeAlias = dict[Partition, int]
Columns: TypeAlias = tuple[list[Any], ...]


@dataclass(frozen=True, slots=True)
class Messages:
    """Some messages, in columns."""

    offsets: list[int] = field(default_factory=list)
    stamps: list[int] = field(default_factory=list)
    values: list[bytes] = field(default_factory=list)
    keys: list[bytes | None] = field(default_factory=list)

    @property
    def columns(self) -> Columns:
        """All of them."""
        return self.offsets, self.stamps, self.values, self.keys

    @property
    def size(self) -> int:
        """Bytes that they take, about."""
        return sum(map(len, self.values)) + _OWN * len(self.values)

    def __len__(self) -> int:
        return len(self.offsets)

    def add(self, others: Messages) -> None:
        """Put others behind these."""
        for own, other in zip(self.columns, others.columns, strict=True):
            own.extend(other)

    def cut(self, count: int) -> Messages:
        """Take away the first so many."""
        first = Messages(*(column[:count] for column in self.columns))
        for column in self.columns:
            del column[:count]
        return first

    def progress(self) -> NDArray[np.int64]:
        """The largest time stamp so far, at each."""
        return np.maximum.accumulate(np.array(self.stamps, np.int64))


@dataclass(slots=True)
class _PartitionQueue:
    """What waits of one partition."""

    heard: float
    messages: Messages = field(default_factory=Messages)
    size: int = 0
    ended: int | None = None
    """The offset at which there was no more, if that was the last that was heard."""

    @property
    def newest(self) -> int:
        """The largest time stamp."""
        return max(self.messages.stamps)


@dataclass(frozen=True, slots=True)
class GatheredMessages:
    """Messages in order, and the offsets of each partition before and after them."""

    messages: Messages = field(default_factory=Messages)
    before: Offsets = field(default_factory=dict)
    after: Offsets = field(default_factory=dict)
    """Of the partitions alone that the messages are from."""


class Backlog:
    """The messages that wait, and how far each partition was handed on."""

    def __init__(self, offsets: Mapping[Partition, int]) -> None:
        self.offsets: Offsets = dict(offsets)
        """The next message of each partition that is handed on."""
        self._waiting: dict[Partition, _PartitionQueue] = {}

    @property
    def located(self) -> bool:
        """Whether it is known of all partitions which message comes next."""
        return all(partition in self.offsets for partition in self._waiting)

    def assign(self, partitions: Iterable[Partition], now: float) -> None:
        """Expect messages of these partitions."""
        self._waiting |= {partition: _PartitionQueue(now) for partition in partitions}

    def revoke(self, partitions: Iterable[Partition]) -> None:
        """Expect no more of these; what waits of them others will bring."""
        for partition in partitions:
            self._waiting.pop(partition, None)

    def add(self, partition: Partition, messages: Messages, now: float) -> None:
        """Messages came."""
        waiting = self._waiting.get(partition)
        # What was fetched before a seek or a revocation may still be under way.
        if waiting is None or messages.offsets[0] < self.offsets.get(partition, 0):
            return
        self.offsets.setdefault(partition, messages.offsets[0])
        waiting.messages.add(messages)
        waiting.size += messages.size
        waiting.ended, waiting.heard = None, now

    def end(self, partition: Partition, offset: int, now: float) -> None:
        """A partition has no more for now."""
        waiting = self._waiting.get(partition)
        if waiting is not None:
            waiting.ended, waiting.heard = offset, now
            self.offsets.setdefault(partition, offset)

    def crowded(self) -> tuple[list[Partition], list[Partition]]:
        """Partitions of which enough waits, and those of which there is room for more."""
        most = _HELD // max(1, len(self._waiting))
        full = [partition for partition, found in self._waiting.items() if found.size >= most]
        room = [partition for partition, found in self._waiting.items() if found.size < most // 2]
        return full, room

    def reached(self, ends: Offsets) -> bool:
        """Whether all messages before these offsets are here, as far as there are any."""
        return all(self._reached(partition, end) for partition, end in ends.items())

    def _reached(self, partition: Partition, end: int) -> bool:
        waiting = self._waiting.get(partition)
        if waiting is None:
            return False
        newest = waiting.messages.offsets[-1] + 1 if waiting.messages.offsets else 0
        return max(newest, waiting.ended or 0) >= end

    def take_until(self, ends: Offsets) -> GatheredMessages:
        """The messages before these offsets."""
        counts = {
            partition: int(np.searchsorted(self._waiting[partition].messages.offsets, end))
            for partition, end in ends.items()
        }
        return self._take(counts, ends)

    def take(self, now: float) -> GatheredMessages:
        """The messages that no earlier ones can come before, as many as are handed on at once."""
        bound = self._bound(now)
        parts = {place: found.messages.progress() for place, found in self._waiting.items()}
        ready = [part[part <= bound] for part in parts.values() if len(part)]
        if sum(map(len, ready)) > MOST:
            progress = np.concatenate(ready)
            # Equal stamps may make it fewer, but never none.
            bound = max(int(np.partition(progress, MOST)[MOST]) - 1, int(progress.min()))
        counts = {place: int(part.searchsorted(bound, "right")) for place, part in parts.items()}
        return self._take({place: min(count, MOST) for place, count in counts.items() if count})

    def _bound(self, now: float) -> float:
        """The time stamp up to which no partition that is waited for can bring more."""
        bounds = [
            found.newest if len(found.messages) else -np.inf
            for found in self._waiting.values()
            if found.ended is None and (len(found.messages) or now - found.heard < PATIENCE)
        ]
        return min(bounds, default=np.inf)

    def _take(
        self, counts: Mapping[Partition, int], ends: Offsets | None = None
    ) -> GatheredMessages:
        before = dict(self.offsets)
        taken = {}
        for partition in sorted(counts):
            waiting = self._waiting[partition]
            taken[partition] = part = waiting.messages.cut(counts[partition])
            waiting.size -= part.size
            self.offsets[partition] = ends[partition] if ends else part.offsets[-1] + 1
        after = {partition: self.offsets[partition] for partition in taken}
        return GatheredMessages(
            _interleaved([part for part in taken.values() if len(part)]), before, after
        )


def _interleaved(parts: Sequence[Messages]) -> Messages:
    """In order of progress and of partition: the same whenever these messages are read."""
    if len(parts) < 2:
        return parts[0] if parts else Messages()
    order = np.argsort(np.concatenate([part.progress() for part in parts]), kind="stable").tolist()
    whole = Messages()
    for part in parts:
        whole.add(part)
    return Messages(*(_ordered(column, order) for column in whole.columns))


def _ordered(column: list[Any], order: Sequence[int]) -> list[Any]:
    return [column[number] for number in order] if column else column
