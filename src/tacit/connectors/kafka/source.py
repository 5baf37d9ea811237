"""Tuples from Kafka: a consumer group whose place is kept by the run, not by the group.

A batch is made of one stretch of offsets of each of some partitions. Its token names these, so
that it can be made again as it was. Offsets are committed to the group when they are safe, for
others to watch; a run that is resumed does not look at them.
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

_PULSE: Final = 0.1
_FETCHED: Final = 1000
_PATIENCE: Final = 10.0
"""Seconds that a broker may take to say what is committed."""

log = logging.getLogger(__name__)


class KafkaSource(Source):
    """The messages in some topics."""

    textual = True
    keyed = True
    live = True
    once = True

    def __init__(self, address: KafkaAddress, inward: KafkaSourceOptions) -> None:
        topics = ",".join(inward.topics)
        self.name = f"kafka://{address.servers}/{topics}?group={inward.group}"
        self._address = address
        self._inward = inward
        self._token: dict[str, Any] | None = None
        self._consumer: Consumer | None = None
        self._reader: _TopicReader | None = None

    @property
    def listening(self) -> bool:
        """Whether partitions are assigned, and it is known where in each of them to begin."""
        return self._reader is not None and self._reader.listening

    def schema(self) -> pa.Schema:
        """None: payloads name their own columns."""
        return pa.schema([])

    def declared_types(self) -> Mapping[str, ColumnType]:
        """What the URL says of columns, or its sample."""
        return declared_types(self._inward.columns, self._inward.sample)

    def resume(self, token: Any) -> None:
        """Begin with the batch of this token, whatever the group has committed."""
        self._token = token

    def acknowledge(self, receipt: Any) -> None:
        """Commit offsets to the group, for others to watch."""
        consumer = self._consumer
        if consumer is not None:
            with suppress(KafkaException, RuntimeError):  # it may be closed by now
                consumer.commit(offsets=_listed(_offsets(receipt)), asynchronous=True)

    def read(self, columns: Sequence[str], keys: Sequence[str]) -> Iterator[Batch]:
        """Batches of what no earlier messages can come before, and empty ones in silence."""
        rows = _Rows(self._inward, columns, keys)
        token, self._token = self._token, None
        offsets = None if token is None else _offsets(token["offsets"])
        self._reader = reader = _TopicReader(self.name, offsets, keyed=self._inward.key in columns)
        self._consumer = consumer = self._client(error_cb=reader.trouble)
        try:
            consumer.subscribe(
                list(self._inward.topics),
                on_assign=reader.assigned,
                on_revoke=reader.revoked,
                on_lost=reader.revoked,
            )
            if token is not None:
                yield from self._again(reader, consumer, rows, token)
            while True:
                reader.fetch(consumer)
                yield rows.batch(reader.backlog.take(time.monotonic()), self.name)
        except KafkaException as error:
            raise SourceError(f"{self.name} cannot be read any more: {_reason(error)}") from error
        finally:
            self._consumer = self._reader = None
            consumer.close()

    def _again(
        self, reader: _TopicReader, consumer: Consumer, rows: _Rows, token: dict[str, Any]
    ) -> Iterator[Batch]:
        """The batch of a token as it was."""
        ends = _offsets(token["ends"])
        nothing = rows.batch(GatheredMessages(), self.name).table
        while not reader.backlog.reached(ends):
            # No place to resume at is given: the one there was still holds, with its rows.
            yield Batch(nothing, 1, 0, self.name)
            reader.fetch(consumer, ends)
        batch = rows.batch(reader.backlog.take_until(ends), self.name, token["rows"])
        if batch.table.num_rows > int(token["rows"]):
            raise SourceError(f"{self.name}: the topics are not those that were read before")
        reader.settled = True
        yield batch

    def _client(self, **more: Any) -> Consumer:
        try:
            return Consumer(self._settings(**more), logger=log)
        except KafkaException as error:
            what = self._address.scrub(error.args[0].str())
            raise SourceError(f"{self.name}: the client refuses its settings: {what}") from None

    def _settings(self, **more: Any) -> dict[str, Any]:
        """What the client must know; the file of settings cannot undo what we rely on."""
        shared = ",".join([self._inward.group, *self._inward.topics])
        return {
            "client.id": "tacit",
            "queued.max.messages.kbytes": 4096,
            "fetch.queue.backoff.ms": 10,
            "fetch.message.max.bytes": 262_144,
            # A slow outlet holds the source back for as long as it takes.
            "max.poll.interval.ms": 3_600_000,
            # So that a run that comes back after a crash is let in at once.
            "group.instance.id": f"tacit-{sha256(shared.encode()).hexdigest()[:16]}",
            **self._address.settings,
            "bootstrap.servers": self._address.servers,
            "group.id": self._inward.group,
            "auto.offset.reset": "earliest" if self._inward.start == "beginning" else "latest",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            **more,
        }


class _TopicReader:
    """Fetches messages into a backlog, and keeps it in step with what is assigned."""

    def __init__(self, name: str, offsets: Offsets | None, *, keyed: bool) -> None:
        self._name = name
        self._keyed = keyed
        self.backlog = Backlog(offsets or {})
        self.settled = offsets is None
        """Whether a run that is resumed has come to where it was."""
        self._paused: set[Partition] = set()
        self._complained = 0.0
        self._fatal: KafkaError | None = None
        self._joined = False

    @property
    def listening(self) -> bool:
        """Whether nothing that is sent from now on is missed."""
        return self._joined and self.backlog.located

    def fetch(self, consumer: Consumer, ends: Offsets | None = None) -> None:
        """Take in what comes within a moment; partitions of which much waits are paused.

        Those that are awaited up to `ends` are not, until they have come so far.
        """
        deadline = time.monotonic() + _PULSE
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

    def assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Begin where the run was; where it was not, where the group was."""
        known = [p for p in partitions if (p.topic, p.partition) in self.backlog.offsets]
        if known and self.settled:
            # Others may have read on in the meantime.
            with suppress(KafkaException):
                for partition in consumer.committed(known, timeout=_PATIENCE):
                    place = partition.topic, partition.partition
                    self.backlog.offsets[place] = max(self.backlog.offsets[place], partition.offset)
        for partition in known:
            partition.offset = self.backlog.offsets[partition.topic, partition.partition]
        self.backlog.assign([(p.topic, p.partition) for p in partitions], time.monotonic())
        consumer.assign(partitions)
        self._joined = True

    def revoked(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        """Forget what waits of partitions that others read from now on."""
        gone = [(p.topic, p.partition) for p in partitions]
        self.backlog.revoke(gone)
        self._paused -= set(gone)

    def trouble(self, error: KafkaError) -> None:
        """Say at times that brokers do not answer; the client goes on trying."""
        if error.code() == KafkaError._FATAL:
            self._fatal = error
        elif time.monotonic() - self._complained > 60:
            self._complained = time.monotonic()
            log.warning("%s does not answer now (%s); going on trying", self._name, error.name())

    def _pause(self, consumer: Consumer, ends: Offsets) -> None:
        full, room = self.backlog.crowded()
        awaited = {place for place, end in ends.items() if not self.backlog.reached({place: end})}
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
        self.trouble(error)


_DENIED: Final = (
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
)


class _Rows:
    """Turns messages into batches of these columns."""

    def __init__(
        self,
        inward: KafkaSourceOptions,
        columns: Sequence[str],
        keys: Sequence[str],
    ) -> None:
        self._columns = list(columns)
        self._keys = keys
        self._key = inward.key if inward.key in columns else None
        wanted = [name for name in columns if name != inward.key]
        self._parser = PayloadParser(wanted, inward.payload)
        self._hidden = inward.payload == "cbor"
        self._count = 0

    def batch(self, gathered: GatheredMessages, name: str, expected: int = 0) -> Batch:
        """The rows of messages, at least so many: those that are lacking hold nothing."""
        messages = gathered.messages
        parsed = self._parser.parse(messages.values)
        frame = parsed.frame
        if self._key is not None:
            texts = [key_text(key) for key in messages.keys]
            own = pl.Series(self._key, texts, pl.String)[parsed.origin]
            frame = frame.with_columns(own)
        places = np.array(messages.offsets, np.int64)[parsed.origin]
        lacking = max(0, expected - frame.height)
        if lacking:
            log.warning("%s: %d messages that had been read are gone", name, lacking)
            frame = pl.concat([frame.clear(lacking), frame])
            places = np.concatenate([np.full(lacking, -1), places])
        table = frame.select(self._columns).rechunk().to_arrow()
        batch, *_ = table.to_batches() or [pa.RecordBatch.from_pylist([], table.schema)]
        first, self._count = self._count, self._count + len(messages)
        return Batch(
            encode_keys(batch, self._keys),
            first + 1,
            self._count,
            name,
            tuple(
                Rejected(messages.offsets[number], reason, self._shown(messages.values[number]))
                for number, reason in parsed.rejected
            ),
            places,
            {
                "offsets": _plain(gathered.before),
                "ends": _plain(gathered.after),
                "rows": frame.height,
            },
            _plain(gathered.before | gathered.after) or None,
        )

    def _shown(self, payload: bytes) -> str:
        return payload.hex() if self._hidden else payload.decode(errors="replace")


def _columns(messages: Sequence[Fetched], *, keys: bool) -> Messages:
    return Messages(
        [message.offset() or 0 for message in messages],
        [message.timestamp()[1] for message in messages],
        [message.value() or b"" for message in messages],
        [message.key() for message in messages] if keys else [],
    )


def _listed(offsets: Mapping[Partition, int]) -> list[TopicPartition]:
    return [TopicPartition(topic, number, offset) for (topic, number), offset in offsets.items()]


def _plain(offsets: Mapping[Partition, int]) -> dict[str, dict[str, int]]:
    """Offsets as they are kept in a checkpoint: of each topic, of each partition."""
    plain: dict[str, dict[str, int]] = {}
    for (topic, number), offset in sorted(offsets.items()):
        plain.setdefault(topic, {})[str(number)] = offset
    return plain


def _offsets(plain: Mapping[str, Mapping[str, int]]) -> Offsets:
    return {
        (topic, int(number)): offset
        for topic, parts in plain.items()
        for number, offset in parts.items()
    }


def key_text(key: bytes | str | None) -> str | None:
    """The key of a message; bytes that are no UTF-8 are replaced."""
    return key.decode(errors="replace") if isinstance(key, bytes) else key


def _reason(error: KafkaException) -> str:
    return str(error.args[0].name())
