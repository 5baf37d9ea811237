"""Fetch messages from the partitions that a consumer group assigns.

One client reads all partitions: it fetches and decompresses in threads of its own. Nothing is done
for each message here except by functions of the client.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka import Message as Fetched
from numpy.typing import NDArray

from tacit.errors import SourceError

AWAY_SECONDS: Final = 5.0
"""Seconds after which others no longer wait for a partition that has messages but sends none."""
_POLL_SECONDS: Final = 0.1
_BACKLOG_SECONDS: Final = 0.4
"""Seconds to fetch messages before they are passed on, while there are many."""
_FETCHED: Final = 2000
_MOST: Final = 1 << 15
"""The most messages that are passed on together."""
_MOST_BYTES: Final = 1 << 22
_TIMEOUT: Final = 10.0
"""Seconds that a broker may take to return committed offsets."""

Partition: TypeAlias = tuple[str, int]
Offsets: TypeAlias = dict[Partition, int]

log = logging.getLogger(__name__)


class FetchedPart(NamedTuple):
    """Some messages of one partition, or none."""

    partition: Partition
    begin: int
    end: int
    token: int
    after: int
    awaited: bool


@dataclass(frozen=True, slots=True)
class FetchedMessages:
    """Messages in columns, those of each partition together and in order."""

    offsets: NDArray[np.int64]
    values: Sequence[bytes]
    keys: Sequence[bytes | None]
    parts: Sequence[FetchedPart]


@dataclass(slots=True)
class _Lane:
    """A partition that is assigned."""

    next: int | None
    """The offset of the next message."""
    silence: float = 0.0
    """Seconds of fetching since its last message."""
    ended: bool = False
    """Whether it has no more messages for now."""
    received: bool = False
    """Whether any message has come."""
    changed: bool = True
    """Whether the reader of the source must be notified of it although there is no message."""
    awaited: bool = True

    def advance(self, after: int, *, ended: bool) -> None:
        """Record messages up to an offset."""
        self.next, self.silence, self.ended = after, 0.0, ended
        self.received, self.awaited, self.changed = True, True, False

    def end(self, offset: int) -> None:
        """Record that there are no more messages for now."""
        self.ended = True
        if self.next is None or offset > self.next:
            self.next, self.changed = offset, True

    def update(self, seconds: float, idle: float) -> None:
        """Decide whether others wait for it, after so many seconds of fetching."""
        self.silence += seconds
        patience = AWAY_SECONDS
        if self.ended:
            patience = idle if self.received else 0.0
        awaited = self.silence < patience
        self.changed |= awaited != self.awaited
        self.awaited = awaited


@dataclass(slots=True)
class _Columns:
    """Messages in the order in which the client returned them."""

    codes: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    values: list[bytes] = field(default_factory=list)
    keys: list[bytes | None] = field(default_factory=list)
    size: int = 0
    ends: Offsets = field(default_factory=dict)
    """Partitions without more messages for now, and their ends."""

    def add(self, messages: Sequence[Fetched], topics: Mapping[str, int], *, keyed: bool) -> None:
        """Append messages. The number of a partition is `partition * topics + topic`."""
        codes: Iterable[Any] = map(Fetched.partition, messages)
        if len(topics) > 1:
            names = map(topics.__getitem__, map(Fetched.topic, messages))  # type: ignore[arg-type]
            count = len(topics)
            codes = (code * count + name for code, name in zip(codes, names, strict=True))
        self.codes.extend(codes)
        self.offsets.extend(map(Fetched.offset, messages))  # type: ignore[arg-type]
        values: list[Any] = list(map(Fetched.value, messages))
        if None in values:
            values = [value or b"" for value in values]
        self.values.extend(values)
        self.size += sum(map(len, values))
        if keyed:
            self.keys.extend(map(Fetched.key, messages))

    def sort(self) -> tuple[NDArray[np.int64], FetchedMessages]:
        """Return the messages by partition, and the numbers of their partitions."""
        codes = np.array(self.codes, np.int64)
        offsets = np.array(self.offsets, np.int64)
        values, keys = self.values, self.keys
        if len(codes) and (np.diff(codes) < 0).any():
            # The client returns long runs of one partition: they are moved as a whole.
            starts = np.concatenate([[0], np.flatnonzero(np.diff(codes)) + 1])
            stops = np.append(starts[1:], len(codes))
            order = np.argsort(codes[starts], kind="stable")
            runs = [slice(a, b) for a, b in zip(starts[order], stops[order], strict=True)]
            values = list(chain.from_iterable(values[run] for run in runs))
            keys = list(chain.from_iterable(keys[run] for run in runs)) if keys else keys
            offsets = np.concatenate([offsets[run] for run in runs])
            codes = np.concatenate([codes[run] for run in runs])
        return codes, FetchedMessages(offsets, values, keys, ())


class PartitionFetcher:
    """Fetches messages of the assigned partitions, and reports which of them are awaited.

    `offsets` are where a resumed run continues. `idle` is for how many seconds others wait for a
    partition that has no more messages. `alone` means that no other member of the group reads
    these topics.
    """

    def __init__(
        self,
        name: str,
        topics: Sequence[str],
        offsets: Offsets | None,
        *,
        keyed: bool,
        idle: float,
        from_end: bool,
        alone: bool,
    ) -> None:
        self._name = name
        self._topics = {topic: number for number, topic in enumerate(topics)}
        self._names = list(topics)
        self._keyed = keyed
        self._idle = idle
        self._from_end = from_end
        self._alone = alone
        self._begin: Offsets = dict(offsets or {})
        self._resumed = offsets is not None
        self._known: Offsets = {}
        """The next offset of partitions that were assigned before."""
        self._lanes: dict[Partition, _Lane] = {}
        self._gone: list[Partition] = []
        self._paused: AbstractSet[Partition] = frozenset()
        self._warned = 0.0
        self._fatal: KafkaError | None = None
        self._joined = False
        self._looked: float | None = None
        """When it last looked for partitions."""

    @property
    def listening(self) -> bool:
        """Whether it receives all messages that are sent from now on."""
        return self._joined and all(lane.next is not None for lane in list(self._lanes.values()))

    def fetch(self, consumer: Consumer, crowded: AbstractSet[Partition]) -> FetchedMessages:
        """Fetch messages for a moment; read no more of crowded partitions."""
        self._pause(consumer, crowded)
        columns = _Columns()
        begin = time.monotonic()
        left = _POLL_SECONDS
        while left > 0 and len(columns.offsets) < _MOST and columns.size < _MOST_BYTES:
            found = consumer.consume(_FETCHED, left)
            self._add(found, columns)
            if self._fatal is not None:
                self._fail(self._fatal)
            # Large batches cost less, and the rest of a backlog may wait.
            full = len(found) == _FETCHED
            left = begin + (_BACKLOG_SECONDS if full else _POLL_SECONDS) - time.monotonic()
        return self._sort(columns, min(time.monotonic() - begin, 2 * _POLL_SECONDS))

    def _add(self, messages: list[Fetched], columns: _Columns) -> None:
        errors = list(map(Fetched.error, messages))
        if KafkaError in map(type, errors):  # comparing such an error with None fails
            for message, error in zip(messages, errors, strict=True):
                if error is not None and error.code() == KafkaError._PARTITION_EOF:
                    place = message.topic() or "", message.partition() or 0
                    columns.ends[place] = message.offset() or 0
                elif error is not None:
                    self._fail(error)
            messages = [message for message in messages if message.error() is None]
        columns.add(messages, self._topics, keyed=self._keyed)

    def _sort(self, columns: _Columns, seconds: float) -> FetchedMessages:
        codes, messages = columns.sort()
        numbers, begins = np.unique(codes, return_index=True)
        stops = codes.searchsorted(numbers, "right")
        parts: list[FetchedPart] = []
        for code, begin, stop in zip(
            numbers.tolist(), begins.tolist(), stops.tolist(), strict=True
        ):
            partition = self._names[code % len(self._names)], code // len(self._names)
            if partition in self._lanes:
                end = columns.ends.pop(partition, -1)
                parts += self._take(partition, messages.offsets, begin, stop, end)
        heard = {part.partition for part in parts}
        for partition, end in columns.ends.items():
            if partition in self._lanes:
                self._lanes[partition].end(end)
        for partition, lane in self._lanes.items():
            if partition not in heard and partition not in self._paused:
                lane.update(seconds, self._idle)
            if lane.changed:
                place = -1 if lane.next is None else lane.next
                parts.append(FetchedPart(partition, 0, 0, place, place, lane.awaited))
                lane.changed = False
        for partition in self._gone:
            place = self._known.get(partition, -1)
            parts.append(FetchedPart(partition, 0, 0, place, place, awaited=False))
        self._gone.clear()
        return FetchedMessages(messages.offsets, messages.values, messages.keys, parts)

    def _take(
        self, partition: Partition, offsets: NDArray[np.int64], begin: int, stop: int, end: int
    ) -> list[FetchedPart]:
        """Return the messages of a partition that are new; `end` is its end if it was reached."""
        lane = self._lanes[partition]
        # Messages fetched before a seek or a revocation may still arrive.
        begin += int(offsets[begin:stop].searchsorted(lane.next or 0))
        if begin == stop:
            return []
        last = int(offsets[stop - 1]) + 1
        after = max(last, end)  # markers of transactions have offsets too
        lane.advance(after, ended=end >= last)
        return [FetchedPart(partition, begin, stop, int(offsets[begin]), after, awaited=True)]

    def on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Start at the run's position, or else at the group's."""
        if self._alone:
            partitions = self._add_missing(consumer, partitions)
        again = [p for p in partitions if (p.topic, p.partition) in self._known]
        if again:
            # Other consumers may have read more in the meantime.
            for place, offset in _read_committed(consumer, again).items():
                self._known[place] = max(self._known[place], offset)
        starts = {**self._begin, **self._known}
        fresh = [p for p in partitions if (p.topic, p.partition) not in starts]
        if fresh and self._from_end and (self._joined or self._resumed):
            # Added while the group was reading: all of their messages are new.
            found = _read_committed(consumer, fresh)
            for partition in fresh:
                if found.get((partition.topic, partition.partition), -1) < 0:
                    partition.offset = OFFSET_BEGINNING
        for partition in partitions:
            place = partition.topic, partition.partition
            if place in starts:
                partition.offset = starts[place]
            self._lanes[place] = _Lane(starts.get(place))
        consumer.assign(partitions)
        self._joined = True

    def find_partitions(self, consumer: Consumer, number: int, count: int, every: float) -> None:
        """Start to read every `count`th partition from `number` on; look for new ones now and then.

        A partition that was added later has only new messages, and is read from its beginning.
        """
        if self._looked is not None and time.monotonic() - self._looked < every:
            return
        self._looked = time.monotonic()
        fresh = []
        for topic in self._names:
            try:
                known = consumer.list_topics(topic, timeout=_TIMEOUT).topics[topic].partitions
            except KafkaException as error:
                self.on_error(error.args[0])
                self._looked = None  # not all are known yet
                continue
            fresh += [
                TopicPartition(topic, one)
                for one in sorted(known)
                if one % count == number and (topic, one) not in self._lanes
            ]
        for partition in fresh:
            place = partition.topic, partition.partition
            start = self._begin.get(place)
            if start is not None:
                partition.offset = start
            elif self._joined or self._resumed:
                partition.offset = OFFSET_BEGINNING
            self._lanes[place] = _Lane(start)
        if fresh:
            consumer.incremental_assign(fresh)
        self._joined |= self._looked is not None

    def _add_missing(
        self, consumer: Consumer, partitions: list[TopicPartition]
    ) -> list[TopicPartition]:
        """Add partitions that came while the run was down.

        A static member that comes back gets the partitions that it had, and no others.
        """
        assigned = {(p.topic, p.partition): p for p in partitions}
        for topic in self._names:
            with suppress(KafkaException):
                known = consumer.list_topics(topic, timeout=_TIMEOUT).topics[topic].partitions
                for number in known:
                    assigned.setdefault((topic, number), TopicPartition(topic, number))
        return [assigned[place] for place in sorted(assigned)]

    def on_revoke(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        """Wait no more for partitions that others read now."""
        if self._alone:
            partitions = [TopicPartition(*place) for place in self._lanes]
        for partition in partitions:
            place = partition.topic, partition.partition
            lane = self._lanes.pop(place, None)
            if lane is not None:
                self._gone.append(place)
                if lane.next is not None:
                    self._known[place] = lane.next
        self._paused -= {(p.topic, p.partition) for p in partitions}

    def on_error(self, error: KafkaError) -> None:
        """Log from time to time that brokers do not answer; the client retries."""
        if error.code() == KafkaError._FATAL:
            self._fatal = error
        elif time.monotonic() - self._warned > 60:
            self._warned = time.monotonic()
            log.warning("%s does not answer now (%s); retrying", self._name, error.name())

    def _pause(self, consumer: Consumer, crowded: AbstractSet[Partition]) -> None:
        wanted = crowded & self._lanes.keys()
        if fresh := wanted - self._paused:
            consumer.pause([TopicPartition(*partition) for partition in fresh])
        if again := self._paused - wanted:
            consumer.resume([TopicPartition(*partition) for partition in again])
        self._paused = frozenset(wanted)

    def _fail(self, error: KafkaError) -> None:
        if "fenced" in error.str().lower():
            raise SourceError(
                f"{self._name} is read by another engine of the same group; give each its group="
            )
        if error is self._fatal or error.fatal() or error.code() in _DENIED:
            raise SourceError(f"{self._name} cannot be read: {error.name()}; ask its operator")
        self.on_error(error)


_DENIED: Final = (
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
)


def _read_committed(consumer: Consumer, partitions: list[TopicPartition]) -> Offsets:
    """Return the group's offsets, as far as brokers report them."""
    with suppress(KafkaException):
        found = consumer.committed(partitions, timeout=_TIMEOUT)
        return {(one.topic, one.partition): one.offset for one in found}
    return {}
