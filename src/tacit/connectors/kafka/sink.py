"""Answers to Kafka: a transaction for each release.

In the same transaction the release's number is committed as an offset of a consumer group that
nobody reads with. So the broker itself knows which release was the last, and after a crash
none is delivered twice to consumers that read what is committed.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from tacit.connectors.kafka.address import KafkaAddress, KafkaSinkOptions
from tacit.connectors.writers import json_lines
from tacit.errors import SinkError, UnreachableError
from tacit.pipeline.sinks import ReleaseBatch, Sink

_ROWS: Final = 1 << 14
"""Answers that are handed to the client at a time."""
_KEPT: Final = 16
"""Releases whose digests the broker keeps."""
_PATIENCE: Final = 15.0
"""Seconds to wait for the brokers before a delivery counts as failed."""
_FENCED: Final = (
    KafkaError._FENCED,
    KafkaError.PRODUCER_FENCED,
    KafkaError.INVALID_PRODUCER_EPOCH,
)
_DENIED: Final = (
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
)

log = logging.getLogger(__name__)


class _TransactionalProducer(NamedTuple):
    """A producer that no other of its name can disturb, and the group of its place."""

    producer: Producer
    group: Consumer


class KafkaSink(Sink):
    """Topics in which each answer is a message; the subject is its key."""

    once = True

    def __init__(self, address: KafkaAddress, outward: KafkaSinkOptions) -> None:
        self.name = f"kafka://{address.servers}/{outward.topic}"
        self._address = address
        self._outward = outward
        self._link: _TransactionalProducer | None = None
        self._digests: dict[str, dict[int, str]] = {}
        """For each topic that keeps the place: the last releases in it, with their digests."""
        self._trouble = ""

    def recover(self, position: Any) -> None:  # noqa: ARG002 - the broker knows the place better
        """End what an earlier run has begun, and keep it from going on."""
        with self._delivering():
            self._connected()

    def deliver(self, batch: ReleaseBatch) -> dict[str, Any]:
        """Deliver a batch, unless the broker has it."""
        topics = {
            query: self._outward.topic_of(consumer, query)
            for query, consumer in batch.consumers.items()
        }
        home = min(topics.values())
        with self._delivering():
            link = self._connected()
            if not self._there(link, home, batch):
                link.producer.begin_transaction()
                for topic in sorted(set(topics.values())):
                    queries = [query for query, name in topics.items() if name == topic]
                    self._send(link.producer, topic, _of(batch.table, queries), batch.release)
                self._conclude(link, home, batch)
        return {"release": batch.release}

    def close(self) -> None:
        """Let go of the brokers; what is not committed is dropped by them."""
        link, self._link = self._link, None
        if link is not None:
            with suppress(KafkaException):
                link.producer.purge()
            # The producer is not closed but dropped: to close it would wait for brokers.
            link.group.close()

    def _connected(self) -> _TransactionalProducer:
        if self._link is None:
            self._digests = {}
            self._trouble = ""
            self._link = self._made()
            self._link.producer.init_transactions(_PATIENCE)
        return self._link

    def _made(self) -> _TransactionalProducer:
        try:
            return _TransactionalProducer(
                Producer(self._settings(self._producing()), logger=log),
                Consumer(self._settings(self._placing()), logger=log),
            )
        except KafkaException as error:
            what = self._address.scrub(error.args[0].str())
            raise SinkError(f"{self.name}: the client refuses its settings: {what}") from None

    def _settings(self, own: dict[str, Any]) -> dict[str, Any]:
        """What a client must know; the file of settings cannot undo what we rely on."""
        return {
            "client.id": "tacit",
            "socket.timeout.ms": 15_000,
            **self._address.settings,
            "bootstrap.servers": self._address.servers,
            "error_cb": self._note,
            **own,
        }

    def _producing(self) -> dict[str, Any]:
        usual = {"compression.type": "lz4", "linger.ms": "20"}
        return {
            **{name: self._address.settings.get(name, value) for name, value in usual.items()},
            "transactional.id": self._outward.identity,
            "delivery.report.only.error": True,
            "on_delivery": self._undelivered,
        }

    def _placing(self) -> dict[str, Any]:
        return {
            "group.id": self._outward.identity,
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }

    def _there(self, link: _TransactionalProducer, home: str, batch: ReleaseBatch) -> bool:
        """Whether the broker has this batch; it must not have one of another ledger."""
        if home not in self._digests:
            asked = [TopicPartition(home, 0)]
            self._digests[home] = _read(link.group.committed(asked, timeout=_PATIENCE)[0])
        known = self._digests[home]
        if batch.release > max(known, default=0):
            return False
        if known.get(batch.release) != _digest(batch):
            raise SinkError(
                f"{self.name} has other answers of release {batch.release}, perhaps of another "
                "ledger; choose another topic, or another name with id="
            )
        return True

    def _send(self, producer: Producer, topic: str, table: pa.Table, release: int) -> None:
        headers: dict[str, str | bytes | None] = {"release": str(release)}
        for start in range(0, table.num_rows, _ROWS):
            part = table.slice(start, _ROWS)
            subjects = part["subject"].cast(pa.string()).to_pylist()
            for value, subject in zip(json_lines(part).splitlines(), subjects, strict=True):
                _produce(producer, topic, value, subject, headers)
            producer.poll(0)

    def _conclude(self, link: _TransactionalProducer, home: str, batch: ReleaseBatch) -> None:
        known = {**self._digests[home], batch.release: _digest(batch)}
        last = dict(sorted(known.items())[-_KEPT:])
        text = " ".join(f"{release}:{digest}" for release, digest in last.items())
        place = TopicPartition(home, 0, batch.release, text)
        metadata = link.group.consumer_group_metadata()
        link.producer.flush(_PATIENCE)  # a topic may be made only now, and must be there
        link.producer.send_offsets_to_transaction([place], metadata, _PATIENCE)
        link.producer.commit_transaction(_PATIENCE)
        self._digests[home] = last

    def _note(self, error: KafkaError) -> None:
        self._trouble = error.name()

    def _undelivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None and error.code() != KafkaError._PURGE_QUEUE:
            self._trouble = f"{message.topic()}: {error.name()}"

    @contextmanager
    def _delivering(self) -> Iterator[None]:
        """After any failure the brokers are asked anew what they have."""
        try:
            yield
        except KafkaException as error:
            self.close()
            cause: KafkaError = error.args[0]
            raise self._explained(cause) from error
        except BaseException:
            self.close()
            raise

    def _explained(self, error: KafkaError) -> SinkError:
        if error.code() in _FENCED:
            return SinkError(
                f"{self.name}: another engine delivers under the name {self._outward.identity}; "
                "stop one of them, or give each its own id="
            )
        if error.code() in _DENIED:
            return SinkError(f"{self.name} refuses answers: {error.name()}; ask its operator")
        what = self._trouble or error.name()
        return UnreachableError(f"{self.name} does not answer now ({what}). It is tried again")


def _produce(
    producer: Producer,
    topic: str,
    value: bytes,
    subject: str,
    headers: dict[str, str | bytes | None],
) -> None:
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            producer.produce(topic, value, subject, headers=headers)
            return
        except BufferError:
            if time.monotonic() > deadline:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT)) from None
            producer.poll(0.1)


def _of(table: pa.Table, queries: list[str]) -> pa.Table:
    """The answers to these queries, in their order."""
    return table.filter(pc.is_in(table["query"].cast(pa.string()), pa.array(queries)))


def _digest(batch: ReleaseBatch) -> str:
    """What tells a release from one of the same number in another ledger."""
    found = hashlib.sha256()
    for name in ("id", "detected"):
        found.update(batch.table[name].to_numpy().tobytes())
    return found.hexdigest()[:16]


def _read(place: TopicPartition) -> dict[int, str]:
    """The last releases that a broker has, with their digests."""
    pairs = (part.partition(":") for part in (place.metadata or "").split())
    return {int(release): digest for release, _, digest in pairs}
