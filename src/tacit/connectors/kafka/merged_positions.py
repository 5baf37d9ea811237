"""Positions of earlier versions, which merged the partitions by their messages' timestamps.

Such a position is a batch, with a range of offsets of each of some partitions, and the number of
its rows that are done. So this batch is made once more, as it was; then each partition is read from
the offset after it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from tacit.connectors.kafka.partitions import FetchedMessages, Offsets, Partition

_POLL_SECONDS: Final = 0.1


@dataclass(frozen=True, slots=True)
class MergedPosition:
    """The batch of such a position."""

    offsets: Offsets
    """The next offset of each partition before it."""
    ends: Offsets
    """The same after it, of the partitions that are in it."""
    rows: int

    @property
    def following(self) -> Offsets:
        """The offsets after it."""
        return {**self.offsets, **self.ends}

    @classmethod
    def from_token(cls, token: Mapping[str, Any]) -> MergedPosition:
        """Decode a token in a checkpoint."""
        return cls(_from_json(token["offsets"]), _from_json(token["ends"]), int(token["rows"]))

    def to_token(self) -> dict[str, Any]:
        """Encode it as it was."""
        return {
            "offsets": _to_json(self.offsets),
            "ends": _to_json(self.ends),
            "rows": self.rows,
        }


def read_merged(
    consumer: Consumer, merged: MergedPosition, *, keyed: bool
) -> Iterator[FetchedMessages | None]:
    """Yield None while messages are fetched, and last the messages of the batch in its order."""
    found: dict[Partition, list[Message]] = {partition: [] for partition in merged.ends}
    missing = {
        partition
        for partition, end in merged.ends.items()
        if merged.offsets.get(partition, 0) < end
    }
    consumer.assign([TopicPartition(*one, merged.offsets.get(one, 0)) for one in sorted(missing)])
    while missing:
        begin = time.monotonic()
        for message in consumer.consume(1000, _POLL_SECONDS):
            error, partition = message.error(), (message.topic() or "", message.partition() or 0)
            offset = message.offset() or 0
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                if error.fatal():
                    raise KafkaException(error)
                continue
            if error is None and offset < merged.ends[partition]:
                found[partition].append(message)
            if offset >= merged.ends[partition] - (error is None):
                missing.discard(partition)
        if time.monotonic() - begin >= _POLL_SECONDS:
            yield None
    yield _arrange([found[partition] for partition in sorted(found)], keyed=keyed)


def _arrange(parts: Sequence[Sequence[Message]], *, keyed: bool) -> FetchedMessages:
    """Merge by the largest timestamp so far and by partition, as it was done."""
    messages = [message for part in parts for message in part]
    progress = [
        np.maximum.accumulate(np.array([message.timestamp()[1] for message in part], np.int64))
        for part in parts
        if part
    ]
    order = np.argsort(np.concatenate(progress), kind="stable").tolist() if progress else []
    chosen = [messages[number] for number in order]
    return FetchedMessages(
        np.array([message.offset() or 0 for message in chosen], np.int64),
        [message.value() or b"" for message in chosen],
        [message.key() for message in chosen] if keyed else [],
        (),
    )


def _from_json(plain: Mapping[str, Mapping[str, int]]) -> Offsets:
    return {
        (topic, int(number)): offset
        for topic, parts in plain.items()
        for number, offset in parts.items()
    }


def _to_json(offsets: Mapping[Partition, int]) -> dict[str, dict[str, int]]:
    plain: dict[str, dict[str, int]] = {}
    for (topic, number), offset in sorted(offsets.items()):
        plain.setdefault(topic, {})[str(number)] = offset
    return plain
