"""Deliver answers to Kafka: one transaction per release.

The same transaction commits the release's number as an offset of a consumer group that has no
readers. So the broker itself stores the last release, and after a crash no release is delivered
twice to consumers with isolation level read_committed.
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
from tacit.connectors.kafka.client_log import ClientLog
from tacit.connectors.writers import format_json_lines
from tacit.errors import SinkError, UnreachableError
from tacit.pipeline.sinks import ReleaseBatch, Sink

_ROWS: Final = 1 << 14
"""Answers that are passed to the client together."""
_KEPT: Final = 16
"""Releases whose digests the broker stores."""
_TIMEOUT: Final = 15.0
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
_CLIENT_LOG: Final = ClientLog(log)


class _TransactionalProducer(NamedTuple):
    """A transactional producer, and the consumer group that stores its position."""

    producer: Producer
    group: Consumer


class KafkaSink(Sink):
    """Delivers each answer as a message; the subject is its key."""

    once = True

    def __init__(self, address: KafkaAddress, options: KafkaSinkOptions) -> None:
        self.name = f"kafka://{address.servers}/{options.topic}"
        self._address = address
        self._options = options
        self._link: _TransactionalProducer | None = None
        self._digests: dict[str, dict[int, str]] = {}
        """The last releases with their digests, by the topic that stores the position."""
        self._last_error = ""

    def recover(self, position: Any) -> None:  # noqa: ARG002 - the broker stores the position
        """Abort the open transaction of an earlier run, and fence it off."""
        with self._translate_errors():
            self._connect()

    def deliver(self, batch: ReleaseBatch) -> dict[str, Any]:
        """Deliver a batch, unless the broker has it already."""
        topics = {
            query: self._options.format_topic(consumer, query)
            for query, consumer in batch.consumers.items()
        }
        first_topic = min(topics.values())
        with self._translate_errors():
            link = self._connect()
            if not self._has_batch(link, first_topic, batch):
                link.producer.begin_transaction()
                for topic in sorted(set(topics.values())):
                    queries = [query for query, name in topics.items() if name == topic]
                    self._send(
                        link.producer, topic, _select_queries(batch.table, queries), batch.release
                    )
                self._commit(link, first_topic, batch)
        return {"release": batch.release}

    def close(self) -> None:
        """Close the clients; the brokers drop what is not committed."""
        link, self._link = self._link, None
        if link is not None:
            with suppress(KafkaException):
                link.producer.purge()
            # The producer is dropped and not closed: closing would wait for brokers.
            link.group.close()

    def _connect(self) -> _TransactionalProducer:
        if self._link is None:
            self._digests = {}
            self._last_error = ""
            self._link = self._create_clients()
            self._link.producer.init_transactions(_TIMEOUT)
        return self._link

    def _create_clients(self) -> _TransactionalProducer:
        try:
            return _TransactionalProducer(
                Producer(self._settings(self._producer_settings()), logger=_CLIENT_LOG),
                Consumer(self._settings(self._consumer_settings()), logger=_CLIENT_LOG),
            )
        except KafkaException as error:
            what = self._address.scrub(error.args[0].str())
            raise SinkError(f"{self.name}: the client refuses its settings: {what}") from None

    def _settings(self, own: dict[str, Any]) -> dict[str, Any]:
        """Return a client's settings; the settings file cannot override required ones."""
        return {
            "client.id": "tacit",
            "socket.timeout.ms": 15_000,
            **self._address.settings,
            "bootstrap.servers": self._address.servers,
            "error_cb": self._on_error,
            **own,
        }

    def _producer_settings(self) -> dict[str, Any]:
        defaults = {"compression.type": "lz4", "linger.ms": "20"}
        return {
            **{name: self._address.settings.get(name, value) for name, value in defaults.items()},
            "transactional.id": self._options.identity,
            "delivery.report.only.error": True,
            "on_delivery": self._on_delivery,
        }

    def _consumer_settings(self) -> dict[str, Any]:
        return {
            "group.id": self._options.identity,
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }

    def _has_batch(
        self, link: _TransactionalProducer, first_topic: str, batch: ReleaseBatch
    ) -> bool:
        """Return whether the broker has this batch; raise if it has one of another ledger."""
        if first_topic not in self._digests:
            asked = [TopicPartition(first_topic, 0)]
            self._digests[first_topic] = _parse_digests(
                link.group.committed(asked, timeout=_TIMEOUT)[0]
            )
        known = self._digests[first_topic]
        if batch.release > max(known, default=0):
            return False
        if known.get(batch.release) != _digest(batch):
            raise SinkError(
                f"{self.name} has other answers for release {batch.release}, perhaps from another "
                "ledger; choose another topic, or another name with id="
            )
        return True

    def _send(self, producer: Producer, topic: str, table: pa.Table, release: int) -> None:
        headers: dict[str, str | bytes | None] = {"release": str(release)}
        for start in range(0, table.num_rows, _ROWS):
            part = table.slice(start, _ROWS)
            subjects = part["subject"].cast(pa.string()).to_pylist()
            for value, subject in zip(format_json_lines(part).splitlines(), subjects, strict=True):
                _produce(producer, topic, value, subject, headers)
            producer.poll(0)

    def _commit(self, link: _TransactionalProducer, first_topic: str, batch: ReleaseBatch) -> None:
        known = {**self._digests[first_topic], batch.release: _digest(batch)}
        last = dict(sorted(known.items())[-_KEPT:])
        text = " ".join(f"{release}:{digest}" for release, digest in last.items())
        place = TopicPartition(first_topic, 0, batch.release, text)
        metadata = link.group.consumer_group_metadata()
        link.producer.flush(_TIMEOUT)  # a topic may be created only now, and must exist
        link.producer.send_offsets_to_transaction([place], metadata, _TIMEOUT)
        link.producer.commit_transaction(_TIMEOUT)
        self._digests[first_topic] = last

    def _on_error(self, error: KafkaError) -> None:
        # That no broker is left follows from an earlier error, which says why.
        if not self._last_error or error.code() != KafkaError._ALL_BROKERS_DOWN:
            self._last_error = error.name()

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is not None and error.code() != KafkaError._PURGE_QUEUE:
            self._last_error = f"{message.topic()}: {error.name()}"

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Turn errors into SinkError; after a failure reconnect and read the position again."""
        try:
            yield
        except (KafkaException, SystemError) as error:
            self.close()
            # After a fatal error the client still reports deliveries. Python then refuses the
            # result of the callback with a SystemError, whose cause is the fatal error.
            known = error if isinstance(error, KafkaException) else error.__cause__
            if not isinstance(known, KafkaException):
                raise
            cause: KafkaError = known.args[0]
            raise self._explain_error(cause) from error
        except BaseException:
            self.close()
            raise

    def _explain_error(self, error: KafkaError) -> SinkError:
        if error.code() in _FENCED:
            return SinkError(
                f"{self.name}: another engine delivers under the name {self._options.identity}; "
                "stop one of them, or give each its own id="
            )
        if error.code() in _DENIED:
            return SinkError(f"{self.name} refuses answers: {error.name()}; ask its operator")
        what = self._last_error or error.name()
        return UnreachableError(f"{self.name} does not answer now ({what}); retrying")


def _produce(
    producer: Producer,
    topic: str,
    value: bytes,
    subject: str,
    headers: dict[str, str | bytes | None],
) -> None:
    deadline = time.monotonic() + _TIMEOUT
    while True:
        try:
            producer.produce(topic, value, subject, headers=headers)
            return
        except BufferError:
            if time.monotonic() > deadline:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT)) from None
            producer.poll(0.1)


def _select_queries(table: pa.Table, queries: list[str]) -> pa.Table:
    """Select the answers to these queries, in their order."""
    return table.filter(pc.is_in(table["query"].cast(pa.string()), pa.array(queries)))


def _digest(batch: ReleaseBatch) -> str:
    """Hash a release, to distinguish it from one of the same number in another ledger."""
    found = hashlib.sha256()
    for name in ("id", "detected"):
        found.update(batch.table[name].to_numpy().tobytes())
    return found.hexdigest()[:16]


def _parse_digests(place: TopicPartition) -> dict[int, str]:
    """Parse the last releases that a broker has, with their digests."""
    pairs = (part.partition(":") for part in (place.metadata or "").split())
    return {int(release): digest for release, _, digest in pairs}
