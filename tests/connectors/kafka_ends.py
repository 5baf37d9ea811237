"""Both ends of a Kafka broker, for tests: what produces tuples and what consumes answers."""

# ruff: noqa: D102 - what they do is said where the checks are
from __future__ import annotations

import contextlib
import json
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from tacit.cli.main import main
from tacit.connectors.kafka import sink as kafka_sink
from tacit.connectors.openers import open_input, open_resumable_sink
from tacit.pipeline.sinks import Sink
from tacit.pipeline.sources import Source
from tests.connectors.checks import Feed, Receiver
from tests.services import Kafka

_QUIET_SECONDS = 4.0


@pytest.fixture
def config(kafka: Kafka, tmp_path: Path) -> Path:
    """The settings of a client that is let in, with TLS."""
    path = tmp_path / "kafka.properties"
    path.write_text(
        "# how to be let in\n"
        "security.protocol=SASL_SSL\n"
        "sasl.mechanism=SCRAM-SHA-512\n"
        f"sasl.username={kafka.user}\n"
        f"sasl.password={kafka.password}\n"
        f"ssl.ca.location={kafka.authority}\n"
        "reconnect.backoff.max.ms=500\n"
        "socket.timeout.ms=2000\n"
    )
    return path


class KafkaFeed(Feed):
    """A topic that messages are produced to."""

    partitions = 3
    acknowledges = True
    secrets = ("open sesame",)

    def __init__(self, servers: str, config: Path, topic: str | None = None) -> None:
        self.servers = servers
        self.topic = topic or f"t{uuid.uuid4().hex}"
        self.config = config
        self.options = "payload=json"

    def open(self) -> Source:
        place = f"kafka://{self.servers}/{self.topic}?group=g-{self.topic}"
        return open_input(f"{place}&config={self.config}&{self.options}")

    def send(self, rows: Sequence[dict[str, Any]], partition: int = 0) -> None:
        messages = [(json.dumps(row).encode(), None, row["at"]) for row in rows]
        self.produce(messages, partition)

    def send_raw(self, payload: bytes) -> None:
        self.produce([(payload, None, 1_200_000_000_000)])

    def add_partitions(self, count: int) -> None:
        """From now on the topic has so many partitions."""
        admin = AdminClient(settings(self.servers, self.config))
        wanted = [NewPartitions(self.topic, count)]
        for done in admin.create_partitions(wanted, request_timeout=20).values():
            done.result(20)

    def produce(
        self, messages: Sequence[tuple[bytes | None, str | None, int]], partition: int = 0
    ) -> None:
        producer = Producer(settings(self.servers, self.config))
        for value, key, stamp in messages:
            producer.produce(self.topic, value, key, partition=partition, timestamp=stamp)
        assert producer.flush(20) == 0


class KafkaReceiver(Receiver):
    """Topics that are read by a consumer of what is committed."""

    secrets = ("open sesame",)

    def __init__(self, broker: Kafka, config: Path) -> None:
        self.broker = broker
        self.config = config
        self.prefix = f"t{uuid.uuid4().hex}"

    def open(self) -> Sink:
        topic = f"{self.prefix}-{{consumer}}-{{query}}"
        return open_resumable_sink(f"kafka://{self.broker.secure}/{topic}?config={self.config}")

    def received(self) -> list[dict[str, Any]]:
        found = [row for _, row in self.messages()]
        return sorted(found, key=lambda row: row["id"])

    def messages(self) -> list[tuple[Message, dict[str, Any]]]:
        """All that is committed, each partition in its order."""
        own = settings(self.broker.secure, self.config)
        own |= {"group.id": "reader", "enable.partition.eof": True, "fetch.wait.max.ms": 20}
        consumer = Consumer(own)
        with contextlib.closing(consumer):
            known = consumer.list_topics(timeout=10).topics
            places = [
                TopicPartition(name, number, 0)
                for name, topic in known.items()
                if name.startswith(self.prefix)
                for number in topic.partitions
            ]
            # Asked first: the server would answer each of them only after a fetch that waits.
            ends = {_key(one): self._end(consumer, one) for one in places}
            consumer.assign(places)
            found, quiet = [], float("inf")
            ended: set[tuple[str, int]] = set()
            # A server ends a transaction shortly after it has answered, so its answers may still
            # come. One that nobody ends holds them back: then nothing comes.
            while len(ended) < len(places) and time.monotonic() < quiet:
                for message in consumer.consume(1000, 0.05):
                    if message.error() is None:
                        found.append((message, json.loads(message.value() or b"")))
                    elif (message.offset() or 0) >= ends[_key(_place(message))]:
                        ended.add(_key(_place(message)))
                    quiet = time.monotonic() + _QUIET_SECONDS
        for place in places:
            ids = [row["id"] for message, row in found if _place(message) == place]
            assert ids == sorted(ids)
        return found

    @staticmethod
    def _end(consumer: Consumer, place: TopicPartition) -> int:
        return int(consumer.get_watermark_offsets(place, timeout=10)[1])

    @contextlib.contextmanager
    def away(self) -> Iterator[None]:
        """Meanwhile the sink waits only a short time for an answer."""
        with mock.patch.object(kafka_sink, "_TIMEOUT", 1.0), self.broker.away():
            yield


def _place(message: Message) -> TopicPartition:
    return TopicPartition(message.topic() or "", message.partition() or 0)


def _key(place: TopicPartition) -> tuple[str, int]:
    return place.topic, place.partition


def settings(servers: str, config: Path) -> dict[str, Any]:
    """What a client of the tests' own needs."""
    lines = [line.partition("=") for line in config.read_text().splitlines() if "=" in line]
    known = {name: value for name, _, value in lines if name != "group.instance.id"}
    return {"bootstrap.servers": servers, "log_level": 0, **known}


def wait(until: Callable[[], object], patience: float = 60) -> None:
    """Wait until something is true."""
    deadline = time.monotonic() + patience
    while not until():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def detect_in_file(folder: Path, rows: list[dict[str, Any]]) -> dict[tuple[str, str, str], bool]:
    """The answers of an unbroken run over a file."""
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    command = ["detect", f"{folder}/spec.yaml", f"{folder}/rows.jsonl"]
    command += ["--to", f"{folder}/truth.jsonl"]
    assert CliRunner().invoke(main, command).exit_code == 0
    lines = map(json.loads, (folder / "truth.jsonl").read_text().splitlines())
    return {(row["window_start"], row["subject"], row["query"]): row["detected"] for row in lines}
