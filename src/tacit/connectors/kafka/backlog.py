"""Merge the messages of several partitions by their timestamps, as far as possible.

Brokers send partition after partition. In that order, old messages of one partition would come
after new messages of another, and be late. So messages wait until no partition can have earlier
ones: each has sent a later one, has no more for now, or has been idle for too long.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

MOST: Final = 1 << 15
"""The most messages that are taken together."""
IDLE_SECONDS: Final = 5.0
"""Seconds after which the others no longer wait for an idle partition."""
_HELD: Final = 1 << 24
"""The approximate bytes that may wait in all partitions before some are paused."""
_OWN: Final = 200
"""The approximate bytes of a message besides its contents."""

Partition: TypeAlias = tuple[str, int]
Offsets: TypeAlias = dict[Partition, int]
Columns: TypeAlias = tuple[list[Any], ...]


@dataclass(frozen=True, slots=True)
class Messages:
    """Messages in columns."""

    offsets: list[int] = field(default_factory=list)
    stamps: list[int] = field(default_factory=list)
    values: list[bytes] = field(default_factory=list)
    keys: list[bytes | None] = field(default_factory=list)

    @property
    def columns(self) -> Columns:
        """All columns."""
        return self.offsets, self.stamps, self.values, self.keys

    @property
    def size(self) -> int:
        """The approximate bytes in memory."""
        return sum(map(len, self.values)) + _OWN * len(self.values)

    def __len__(self) -> int:
        return len(self.offsets)

    def add(self, others: Messages) -> None:
        """Append other messages."""
        for own, other in zip(self.columns, others.columns, strict=True):
            own.extend(other)

    def pop(self, count: int) -> Messages:
        """Remove and return the first `count` messages."""
        first = Messages(*(column[:count] for column in self.columns))
        for column in self.columns:
            del column[:count]
        return first

    def progress(self) -> NDArray[np.int64]:
        """Return the largest timestamp so far, at each message."""
        return np.maximum.accumulate(np.array(self.stamps, np.int64))


@dataclass(slots=True)
class _PartitionQueue:
    """The waiting messages of one partition."""

    last_message: float
    messages: Messages = field(default_factory=Messages)
    size: int = 0
    ended: int | None = None
    """The end offset of the partition, if it was reached last."""

    @property
    def newest(self) -> int:
        """The largest timestamp."""
        return max(self.messages.stamps)


@dataclass(frozen=True, slots=True)
class GatheredMessages:
    """Messages in order, and the offsets of each partition before and after them."""

    messages: Messages = field(default_factory=Messages)
    before: Offsets = field(default_factory=dict)
    after: Offsets = field(default_factory=dict)
    """Only of the partitions that the messages come from."""


class Backlog:
    """The waiting messages, and the next offset of each partition."""

    def __init__(self, offsets: Mapping[Partition, int]) -> None:
        self.offsets: Offsets = dict(offsets)
        """The offset of the next message to take, by partition."""
        self._waiting: dict[Partition, _PartitionQueue] = {}

    @property
    def located(self) -> bool:
        """Whether the next offset of all partitions is known."""
        return all(partition in self.offsets for partition in self._waiting)

    def assign(self, partitions: Iterable[Partition], now: float) -> None:
        """Start to expect messages of these partitions."""
        self._waiting |= {partition: _PartitionQueue(now) for partition in partitions}

    def revoke(self, partitions: Iterable[Partition]) -> None:
        """Drop these partitions; another consumer reads them now."""
        for partition in partitions:
            self._waiting.pop(partition, None)

    def add(self, partition: Partition, messages: Messages, now: float) -> None:
        """Add messages of a partition."""
        waiting = self._waiting.get(partition)
        # Messages fetched before a seek or a revocation may still arrive.
        if waiting is None or messages.offsets[0] < self.offsets.get(partition, 0):
            return
        self.offsets.setdefault(partition, messages.offsets[0])
        waiting.messages.add(messages)
        waiting.size += messages.size
        waiting.ended, waiting.last_message = None, now

    def end(self, partition: Partition, offset: int, now: float) -> None:
        """Record that a partition has no more messages for now."""
        waiting = self._waiting.get(partition)
        if waiting is not None:
            waiting.ended, waiting.last_message = offset, now
            self.offsets.setdefault(partition, offset)

    def find_crowded(self) -> tuple[list[Partition], list[Partition]]:
        """Find partitions with enough waiting messages, and those with room for more."""
        most = _HELD // max(1, len(self._waiting))
        full = [partition for partition, found in self._waiting.items() if found.size >= most]
        room = [partition for partition, found in self._waiting.items() if found.size < most // 2]
        return full, room

    def has_reached(self, ends: Offsets) -> bool:
        """Return whether all existing messages before these offsets are here."""
        return all(self._has_reached(partition, end) for partition, end in ends.items())

    def _has_reached(self, partition: Partition, end: int) -> bool:
        waiting = self._waiting.get(partition)
        if waiting is None:
            return False
        newest = waiting.messages.offsets[-1] + 1 if waiting.messages.offsets else 0
        return max(newest, waiting.ended or 0) >= end

    def take_until(self, ends: Offsets) -> GatheredMessages:
        """Take the messages before these offsets."""
        counts = {
            partition: int(np.searchsorted(self._waiting[partition].messages.offsets, end))
            for partition, end in ends.items()
        }
        return self._take(counts, ends)

    def take(self, now: float) -> GatheredMessages:
        """Take the messages that no earlier ones can precede, at most `MOST`."""
        bound = self._bound(now)
        parts = {place: found.messages.progress() for place, found in self._waiting.items()}
        ready = [part[part <= bound] for part in parts.values() if len(part)]
        if sum(map(len, ready)) > MOST:
            progress = np.concatenate(ready)
            # Equal timestamps may reduce it, but never to 0.
            bound = max(int(np.partition(progress, MOST)[MOST]) - 1, int(progress.min()))
        counts = {place: int(part.searchsorted(bound, "right")) for place, part in parts.items()}
        return self._take({place: min(count, MOST) for place, count in counts.items() if count})

    def _bound(self, now: float) -> float:
        """Return the timestamp up to which no awaited partition can have more messages."""
        bounds = [
            found.newest if len(found.messages) else -np.inf
            for found in self._waiting.values()
            if found.ended is None
            and (len(found.messages) or now - found.last_message < IDLE_SECONDS)
        ]
        return min(bounds, default=np.inf)

    def _take(
        self, counts: Mapping[Partition, int], ends: Offsets | None = None
    ) -> GatheredMessages:
        before = dict(self.offsets)
        taken = {}
        for partition in sorted(counts):
            waiting = self._waiting[partition]
            taken[partition] = part = waiting.messages.pop(counts[partition])
            waiting.size -= part.size
            self.offsets[partition] = ends[partition] if ends else part.offsets[-1] + 1
        after = {partition: self.offsets[partition] for partition in taken}
        return GatheredMessages(
            _interleave([part for part in taken.values() if len(part)]), before, after
        )


def _interleave(parts: Sequence[Messages]) -> Messages:
    """Merge by progress and partition: the order is the same in every run."""
    if len(parts) < 2:
        return parts[0] if parts else Messages()
    order = np.argsort(np.concatenate([part.progress() for part in parts]), kind="stable").tolist()
    whole = Messages()
    for part in parts:
        whole.add(part)
    return Messages(*(_reorder(column, order) for column in whole.columns))


def _reorder(column: list[Any], order: Sequence[int]) -> list[Any]:
    return [column[number] for number in order] if column else column
