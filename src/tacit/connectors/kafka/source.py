"""Read tuples from Kafka, as a consumer group; the run and not the group stores the position.

A batch has a range of offsets of each of some partitions. Its token contains these, so the batch
can be read again unchanged. Offsets are committed to the group when they are safe, for monitoring
only: a resumed run does not use them.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import Any, Final

import numpy as np
import polars as pl
import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka import Message as Fetched

from tacit.connectors.kafka.address import KafkaAddress, KafkaSourceOptions
from tacit.connectors.kafka.backlog import Backlog, GatheredMessages, Messages, Offsets, Partition
from tacit.connectors.payloads import PayloadParser, declared_types
from tacit.errors import SourceError
from tacit.events.streams import ColumnType
from tacit.pipeline.sources import Batch, Rejected, Source, encode_keys

_POLL_SECONDS: Final = 0.1
_FETCHED: Final = 1000
_TIMEOUT: Final = 10.0
"""Seconds that a broker may take to return committed offsets."""

log = logging.getLogger(__name__)


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
        self._token: dict[str, Any] | None = None
        self._consumer: Consumer | None = None
        self._reader: _TopicReader | None = None

    @property
    def listening(self) -> bool:
        """Whether partitions are assigned, and the next offset in each is known."""
        return self._reader is not None and self._reader.listening

    def schema(self) -> pa.Schema:
        """Return an empty schema: payloads name their own columns."""
        return pa.schema([])

    def declared_types(self) -> Mapping[str, ColumnType]:
        """Return the column types from the URL or its sample."""
        return declared_types(self._options.columns, self._options.sample)

    def resume(self, token: Any) -> None:
        """Start with the batch of this token; ignore the group's committed offsets."""
        self._token = token

    def acknowledge(self, receipt: Any) -> None:
        """Commit offsets to the group, for monitoring."""
        consumer = self._consumer
        if consumer is not None:
            with suppress(KafkaException, RuntimeError):  # it may be closed by now
                consumer.commit(offsets=_to_partitions(_from_json(receipt)), asynchronous=True)

    def read(self, columns: Sequence[str], keys: Sequence[str]) -> Iterator[Batch]:
        """Yield batches in order of timestamps, and empty ones while nothing arrives."""
        rows = _Rows(self._options, columns, keys)
        token, self._token = self._token, None
        offsets = None if token is None else _from_json(token["offsets"])
        self._reader = reader = _TopicReader(self.name, offsets, keyed=self._options.key in columns)
        self._consumer = consumer = self._create_consumer(error_cb=reader.on_error)
        try:
            consumer.subscribe(
                list(self._options.topics),
                on_assign=reader.on_assign,
                on_revoke=reader.on_revoke,
                on_lost=reader.on_revoke,
            )
            if token is not None:
                yield from self._read_again(reader, consumer, rows, token)
            while True:
                reader.fetch(consumer)
                yield rows.make_batch(reader.backlog.take(time.monotonic()), self.name)
        except KafkaException as error:
            raise SourceError(f"{self.name} cannot be read: {_reason(error)}") from error
        finally:
            self._consumer = self._reader = None
            consumer.close()

    def _read_again(
        self, reader: _TopicReader, consumer: Consumer, rows: _Rows, token: dict[str, Any]
    ) -> Iterator[Batch]:
        """Yield the batch of a token again, unchanged."""
        ends = _from_json(token["ends"])
        nothing = rows.make_batch(GatheredMessages(), self.name).table
        while not reader.backlog.has_reached(ends):
            # Without a token: the previous position stays valid, with its rows.
            yield Batch(nothing, 1, 0, self.name)
            reader.fetch(consumer, ends)
        batch = rows.make_batch(reader.backlog.take_until(ends), self.name, token["rows"])
        if batch.table.num_rows > int(token["rows"]):
            raise SourceError(f"{self.name}: the topics have other messages than before")
        reader.settled = True
        yield batch

    def _create_consumer(self, **more: Any) -> Consumer:
        try:
            return Consumer(self._settings(**more), logger=log)
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


class _TopicReader:
    """Fetches messages of the assigned partitions into a backlog."""

    def __init__(self, name: str, offsets: Offsets | None, *, keyed: bool) -> None:
        self._name = name
        self._keyed = keyed
        self.backlog = Backlog(offsets or {})
        self.settled = offsets is None
        """Whether a resumed run has reached its earlier position."""
        self._paused: set[Partition] = set()
        self._warned = 0.0
        self._fatal: KafkaError | None = None
        self._joined = False

    @property
    def listening(self) -> bool:
        """Whether it receives all messages that are sent from now on."""
        return self._joined and self.backlog.located

    def fetch(self, consumer: Consumer, ends: Offsets | None = None) -> None:
        """Fetch messages for a moment; pause partitions with many waiting messages.

        Partitions that have not reached `ends` are not paused.
        """
        deadline = time.monotonic() + _POLL_SECONDS
        room = True
        while room and (left := deadline - time.monotonic()) > 0:
            self._add(consumer.consume(_FETCHED, left))
            if self._fatal is not None:
                self._fail(self._fatal)
            self._pause(consumer, ends or {})
            room = not self._paused

    def _add(self, messages: Sequence[Fetched]) -> None:
        now = time.monotonic()
        parts: defaultdict[Partition, list[Fetched]] = defaultdict(list)
        ends: Offsets = {}
        for message in messages:
            error = message.error()
            if error is None:
                parts[message.topic() or "", message.partition() or 0].append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                ends[message.topic() or "", message.partition() or 0] = message.offset() or 0
            else:
                self._fail(error)
        for partition, part in parts.items():
            self.backlog.add(partition, _columns(part, keys=self._keyed), now)
        for partition, end in ends.items():
            if partition not in parts or end > (parts[partition][-1].offset() or 0):
                self.backlog.end(partition, end, now)

    def on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Start at the run's position, or else at the group's."""
        known = [p for p in partitions if (p.topic, p.partition) in self.backlog.offsets]
        if known and self.settled:
            # Other consumers may have read more in the meantime.
            with suppress(KafkaException):
                for partition in consumer.committed(known, timeout=_TIMEOUT):
                    place = partition.topic, partition.partition
                    self.backlog.offsets[place] = max(self.backlog.offsets[place], partition.offset)
        for partition in known:
            partition.offset = self.backlog.offsets[partition.topic, partition.partition]
        self.backlog.assign([(p.topic, p.partition) for p in partitions], time.monotonic())
        consumer.assign(partitions)
        self._joined = True

    def on_revoke(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        """Drop the waiting messages of partitions that others read now."""
        gone = [(p.topic, p.partition) for p in partitions]
        self.backlog.revoke(gone)
        self._paused -= set(gone)

    def on_error(self, error: KafkaError) -> None:
        """Log from time to time that brokers do not answer; the client retries."""
        if error.code() == KafkaError._FATAL:
            self._fatal = error
        elif time.monotonic() - self._warned > 60:
            self._warned = time.monotonic()
            log.warning("%s does not answer now (%s); retrying", self._name, error.name())

    def _pause(self, consumer: Consumer, ends: Offsets) -> None:
        full, room = self.backlog.find_crowded()
        awaited = {
            place for place, end in ends.items() if not self.backlog.has_reached({place: end})
        }
        fresh = set(full) - self._paused - awaited
        again = self._paused & set(room)
        if fresh:
            consumer.pause([TopicPartition(*partition) for partition in fresh])
        if again:
            consumer.resume([TopicPartition(*partition) for partition in again])
        self._paused = (self._paused | fresh) - again

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


class _Rows:
    """Turns messages into batches of these columns."""

    def __init__(
        self,
        options: KafkaSourceOptions,
        columns: Sequence[str],
        keys: Sequence[str],
    ) -> None:
        self._columns = list(columns)
        self._keys = keys
        self._key = options.key if options.key in columns else None
        wanted = [name for name in columns if name != options.key]
        self._parser = PayloadParser(wanted, options.payload)
        self._hidden = options.payload == "cbor"
        self._count = 0

    def make_batch(self, gathered: GatheredMessages, name: str, expected: int = 0) -> Batch:
        """Return the rows of messages, at least `expected`; missing rows are null."""
        messages = gathered.messages
        parsed = self._parser.parse(messages.values)
        frame = parsed.frame
        if self._key is not None:
            texts = [decode_key(key) for key in messages.keys]
            own = pl.Series(self._key, texts, pl.String)[parsed.origin]
            frame = frame.with_columns(own)
        places = np.array(messages.offsets, np.int64)[parsed.origin]
        missing = max(0, expected - frame.height)
        if missing:
            log.warning("%s: %d messages that were read before are gone", name, missing)
            frame = pl.concat([frame.clear(missing), frame])
            places = np.concatenate([np.full(missing, -1), places])
        table = frame.select(self._columns).rechunk().to_arrow()
        batch, *_ = table.to_batches() or [pa.RecordBatch.from_pylist([], table.schema)]
        first, self._count = self._count, self._count + len(messages)
        return Batch(
            encode_keys(batch, self._keys),
            first + 1,
            self._count,
            name,
            tuple(
                Rejected(messages.offsets[number], reason, self._show(messages.values[number]))
                for number, reason in parsed.rejected
            ),
            places,
            {
                "offsets": _to_json(gathered.before),
                "ends": _to_json(gathered.after),
                "rows": frame.height,
            },
            _to_json(gathered.before | gathered.after) or None,
        )

    def _show(self, payload: bytes) -> str:
        return payload.hex() if self._hidden else payload.decode(errors="replace")


def _columns(messages: Sequence[Fetched], *, keys: bool) -> Messages:
    return Messages(
        [message.offset() or 0 for message in messages],
        [message.timestamp()[1] for message in messages],
        [message.value() or b"" for message in messages],
        [message.key() for message in messages] if keys else [],
    )


def _to_partitions(offsets: Mapping[Partition, int]) -> list[TopicPartition]:
    return [TopicPartition(topic, number, offset) for (topic, number), offset in offsets.items()]


def _to_json(offsets: Mapping[Partition, int]) -> dict[str, dict[str, int]]:
    """Encode offsets for a checkpoint, by topic and partition."""
    plain: dict[str, dict[str, int]] = {}
    for (topic, number), offset in sorted(offsets.items()):
        plain.setdefault(topic, {})[str(number)] = offset
    return plain


def _from_json(plain: Mapping[str, Mapping[str, int]]) -> Offsets:
    return {
        (topic, int(number)): offset
        for topic, parts in plain.items()
        for number, offset in parts.items()
    }


def decode_key(key: bytes | str | None) -> str | None:
    """Decode the key of a message; invalid UTF-8 is replaced."""
    return key.decode(errors="replace") if isinstance(key, bytes) else key


def _reason(error: KafkaException) -> str:
    return str(error.args[0].name())
