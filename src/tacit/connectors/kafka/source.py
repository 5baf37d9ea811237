"""Read tuples from Kafka, as a consumer group; the run and not the group stores the position.

Several readers may divide the partitions of a topic among each other (`take_share`). They do not
join the group: each is given its partitions.

Each partition is a sequence of its own: it has its own position, an offset, and its own watermark.
Offsets are committed to the group when they are safe, for monitoring only: a resumed run does not
use them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import closing, suppress
from hashlib import sha256
from typing import Any, Final

import numpy as np
import polars as pl
import pyarrow as pa
from confluent_kafka import Consumer, KafkaException, TopicPartition

from tacit.connectors.kafka.address import KafkaAddress, KafkaSourceOptions
from tacit.connectors.kafka.client_log import ClientLog
from tacit.connectors.kafka.merged_positions import MergedPosition, read_merged
from tacit.connectors.kafka.partitions import (
    FetchedMessages,
    FetchedPart,
    Offsets,
    Partition,
    PartitionFetcher,
)
from tacit.connectors.payloads import PayloadParser, declared_types
from tacit.errors import SourceError
from tacit.events.streams import ColumnType
from tacit.pipeline.prefetch import prefetch
from tacit.pipeline.sources import Batch, PartitionRows, Rejected, Source, encode_keys

_TIMEOUT: Final = 10.0
_REFRESH: Final = "topic.metadata.refresh.interval.ms"
_FETCHED_AHEAD: Final = 1
"""How many batches are fetched while others are parsed."""

log = logging.getLogger(__name__)
_CLIENT_LOG: Final = ClientLog(log)


class KafkaSource(Source):
    """Reads the messages in some topics."""

    textual = True
    keyed = True
    live = True
    once = True

    def __init__(self, address: KafkaAddress, options: KafkaSourceOptions) -> None:
        topics = ",".join(options.topics)
        self.name = f"kafka://{address.servers}/{topics}?group={options.group}"
        self._address = address
        self._options = options
        self._merged: MergedPosition | None = None
        self._offsets: Offsets = {}
        self._crowded: AbstractSet[Partition] = frozenset()
        self._share: tuple[int, int] | None = None
        self._consumer: Consumer | None = None
        self._fetcher: PartitionFetcher | None = None

    @property
    def listening(self) -> bool:
        """Whether partitions are assigned, and the next offset in each is known."""
        return self._fetcher is not None and self._fetcher.listening

    def schema(self) -> pa.Schema:
        """Return an empty schema: payloads name their own columns."""
        return pa.schema([])

    def declared_types(self) -> Mapping[str, ColumnType]:
        """Return the column types from the URL or its sample."""
        return declared_types(self._options.columns, self._options.sample)

    def resume(self, token: Any) -> None:
        """Start at a position of an earlier version, which merged the partitions by itself."""
        self._merged = None if token is None else MergedPosition.from_token(token)
        self._offsets = {}

    def resume_partitions(self, tokens: Mapping[str, int]) -> None:
        """Start at these offsets; ignore the group's committed offsets."""
        self._offsets = {_parse_name(name): offset for name, offset in tokens.items()}

    def count_partitions(self) -> int:
        """Ask the broker how many partitions the largest topic has."""
        try:
            with closing(self._create_consumer(**{"group.instance.id": ""})) as consumer:
                known = consumer.list_topics(timeout=_TIMEOUT).topics
        except KafkaException as error:
            raise SourceError(f"{self.name} does not answer: {_reason(error)}") from error
        counts = [len(known[topic].partitions) for topic in self._options.topics if topic in known]
        return max([1, *counts])

    def take_share(self, number: int, count: int) -> None:
        """Read only some partitions, without the other members of the group."""
        self._share = number, count

    def pause(self, partitions: AbstractSet[str]) -> None:
        """Fetch no more from these partitions for now."""
        self._crowded = frozenset(map(_parse_name, partitions))

    def acknowledge(self, receipt: Any) -> None:
        """Commit offsets to the group, for monitoring."""
        consumer = self._consumer
        if consumer is not None:
            places = [
                TopicPartition(topic, int(number), offset)
                for topic, parts in receipt.items()
                for number, offset in parts.items()
            ]
            with suppress(KafkaException, RuntimeError):  # it may be closed by now
                consumer.commit(offsets=places, asynchronous=True)

    def read(self, columns: Sequence[str], keys: Sequence[str]) -> Iterator[Batch]:
        """Yield batches of all partitions, and empty ones while nothing arrives."""
        rows = _MessageBatches(self._options, columns, keys, self.name)
        merged, offsets = self._merged, self._offsets
        self._merged, self._offsets, self._crowded = None, {}, frozenset()
        starts = {**(merged.following if merged else {}), **offsets}
        self._fetcher = fetcher = PartitionFetcher(
            self.name,
            self._options.topics,
            starts if merged or offsets else None,
            keyed=rows.keyed,
            idle=self._options.idle,
            from_end=self._options.start == "end",
            alone="group.instance.id" not in self._address.settings,
        )
        try:
            if merged is not None and not offsets:
                yield from self._read_again(rows, merged)
            # Messages are fetched in one thread and parsed in another.
            with closing(prefetch(self._fetch(fetcher), _FETCHED_AHEAD)) as fetched:
                yield from map(rows.make_batch, fetched)
        except KafkaException as error:
            raise SourceError(f"{self.name} cannot be read: {_reason(error)}") from error
        finally:
            self._fetcher = None

    def _fetch(self, fetcher: PartitionFetcher) -> Iterator[FetchedMessages]:
        """Join the group and yield messages, also while there are none."""
        self._consumer = consumer = self._create_consumer(error_cb=fetcher.on_error)
        try:
            if self._share is not None:
                every = float(self._settings()[_REFRESH]) / 1000
                while True:
                    fetcher.find_partitions(consumer, *self._share, every)
                    yield fetcher.fetch(consumer, self._crowded)
            consumer.subscribe(
                list(self._options.topics),
                on_assign=fetcher.on_assign,
                on_revoke=fetcher.on_revoke,
                on_lost=fetcher.on_revoke,
            )
            while True:
                yield fetcher.fetch(consumer, self._crowded)
        finally:
            self._consumer = None
            consumer.close()

    def _read_again(self, rows: _MessageBatches, merged: MergedPosition) -> Iterator[Batch]:
        """Yield the batch of an earlier version's position again, unchanged."""
        nothing = rows.make_batch(FetchedMessages(np.empty(0, np.int64), [], [], ())).table
        messages = None
        # It is no member of the group that keeps its partitions.
        with closing(self._create_consumer(**{"group.instance.id": ""})) as consumer:
            for messages in read_merged(consumer, merged, keyed=rows.keyed):
                if messages is None:
                    yield Batch(nothing, 1, 0, self.name)
        assert messages is not None
        yield rows.make_merged_batch(messages, merged)

    def _create_consumer(self, **more: Any) -> Consumer:
        try:
            return Consumer(self._settings(**more), logger=_CLIENT_LOG)
        except KafkaException as error:
            what = self._address.scrub(error.args[0].str())
            raise SourceError(f"{self.name}: the client refuses its settings: {what}") from None

    def _settings(self, **more: Any) -> dict[str, Any]:
        """Return the client's settings; the settings file cannot override required ones."""
        shared = ",".join([self._options.group, *self._options.topics])
        return {
            "client.id": "tacit",
            "queued.max.messages.kbytes": 4096,
            "fetch.queue.backoff.ms": 10,
            "fetch.message.max.bytes": 262_144,
            # Partitions that are added to a topic are found within this time.
            _REFRESH: 30_000,
            # A slow sink blocks the source for as long as it takes.
            "max.poll.interval.ms": 3_600_000,
            # So that a run that restarts after a crash joins the group at once.
            "group.instance.id": f"tacit-{sha256(shared.encode()).hexdigest()[:16]}",
            **self._address.settings,
            "bootstrap.servers": self._address.servers,
            "group.id": self._options.group,
            "auto.offset.reset": "earliest" if self._options.start == "beginning" else "latest",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            **more,
        }


class _MessageBatches:
    """Turns messages into batches of these columns."""

    def __init__(
        self, options: KafkaSourceOptions, columns: Sequence[str], keys: Sequence[str], name: str
    ) -> None:
        self._columns = list(columns)
        self._keys = keys
        self._key = options.key if options.key in columns else None
        wanted = [name for name in columns if name != options.key]
        self._parser = PayloadParser(wanted, options.payload)
        self._hidden = options.payload == "cbor"
        self._name = name
        self._count = 0

    @property
    def keyed(self) -> bool:
        """Whether keys of messages are read."""
        return self._key is not None

    def make_batch(self, messages: FetchedMessages) -> Batch:
        """Return the rows of messages."""
        frame, origin, rejected = self._parse(messages)
        batch = self._encode(frame)
        self._count += len(messages.values)
        return Batch(
            batch,
            1,
            self._count,
            self._name,
            places=messages.offsets[origin],
            partitions=tuple(self._describe(part, origin, rejected) for part in messages.parts),
        )

    def make_merged_batch(self, messages: FetchedMessages, merged: MergedPosition) -> Batch:
        """Return the rows of messages, as many as before at least; missing rows are null."""
        frame, origin, rejected = self._parse(messages)
        places = messages.offsets[origin]
        missing = max(0, merged.rows - frame.height)
        if missing:
            log.warning("%s: %d messages that were read before are gone", self._name, missing)
            frame = pl.concat([frame.clear(missing), frame])
            places = np.concatenate([np.full(missing, -1), places])
        if frame.height > merged.rows:
            raise SourceError(f"{self._name}: the topics have other messages than before")
        return Batch(
            self._encode(frame),
            1,
            0,
            self._name,
            tuple(line for _, line in rejected),
            places,
            merged.to_token(),
        )

    def _parse(
        self, messages: FetchedMessages
    ) -> tuple[pl.DataFrame, np.ndarray[Any, np.dtype[np.int64]], list[tuple[int, Rejected]]]:
        """Return the rows, the message of each, and the messages that cannot be read."""
        parsed = self._parser.parse(messages.values)
        frame = parsed.frame
        if self._key is not None:
            texts = [decode_key(key) for key in messages.keys]
            frame = frame.with_columns(pl.Series(self._key, texts, pl.String)[parsed.origin])
        rejected = []
        for number, reason in parsed.rejected:
            place, raw = int(messages.offsets[number]), self._show(messages.values[number])
            rejected.append((number, Rejected(place, reason, raw)))
        return frame, parsed.origin, rejected

    def _encode(self, frame: pl.DataFrame) -> pa.RecordBatch:
        table = frame.select(self._columns).rechunk().to_arrow()
        batch, *_ = table.to_batches() or [pa.RecordBatch.from_pylist([], table.schema)]
        return encode_keys(batch, self._keys)

    def _describe(
        self,
        part: FetchedPart,
        origin: np.ndarray[Any, np.dtype[np.int64]],
        rejected: Sequence[tuple[int, Rejected]],
    ) -> PartitionRows:
        begin, end = origin.searchsorted([part.begin, part.end]).tolist()
        topic, number = part.partition
        return PartitionRows(
            f"{topic}/{number}",
            begin,
            end,
            part.token,
            part.after,
            {topic: {str(number): part.after}} if part.begin < part.end else None,
            tuple(line for place, line in rejected if part.begin <= place < part.end),
            part.awaited,
        )

    def _show(self, payload: bytes) -> str:
        return payload.hex() if self._hidden else payload.decode(errors="replace")


def _parse_name(name: str) -> Partition:
    """Parse the name of a partition, such as `gps/3`."""
    topic, _, number = name.rpartition("/")
    return topic, int(number)


def decode_key(key: bytes | str | None) -> str | None:
    """Decode the key of a message; invalid UTF-8 is replaced."""
    return key.decode(errors="replace") if isinstance(key, bytes) else key


def _reason(error: KafkaException) -> str:
    return str(error.args[0].name())
