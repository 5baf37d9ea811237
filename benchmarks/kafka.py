"""Compare reading a topic with eight partitions with how it was done before, and a bare client.

All contestants read the same messages from the same Kafka server, from the beginning. Ours reads,
parses, extracts events and merges the partitions by event time, as a run does. *In one thread* is
the way that this was done before partitions were separate sequences, without its bookkeeping: one
thread reads all partitions message by message, merges them by timestamp, parses and extracts. The
bare client reads messages and does nothing.
The target is three times as fast as in one thread, or as fast as the bare client if that is less.
"""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.jobs import Setting, UnequalError
from benchmarks.latency import skip_reason
from benchmarks.measuring import race
from benchmarks.report import OURS, Finding, Skipped
from tacit.connectors.files import open_source
from tacit.connectors.jsonlines import parse_objects
from tacit.events.subjects import Subjects
from tacit.pipeline.batches import Rows
from tacit.pipeline.compiled_spec import CompiledSpec
from tacit.pipeline.reader import Input, Reader, RegistryExtractor
from tacit.pipeline.sources import encode_keys
from tacit.spec.yaml_reader import loads

_JOB = "Kafka in, eight partitions"
_BEFORE = "in one thread, message by message"
_BARE = "bare client, only counting"
_TARGET = 3.0
_SHARE = 20
_PARTITIONS = 8
_SUBJECTS = 10_000
_TIMEOUT = 60.0
_TOGETHER = 1 << 15
"""How many messages were parsed together."""
_LOGIN = ("tacit", "benchmark")
_START = 1_767_225_600_000
_COLUMNS = ["subject", "at", "speed"]
_SPEC = loads(f"""
streams: {{gps: {{subject: subject, time: at, unit: ms}}}}
windows: {{size: 1 min, lateness: 10 s}}
subjects: [{", ".join(f"s{number}" for number in range(_SUBJECTS))}]
events:
  slow: {{stream: gps, where: "speed < 8"}}
  fast: {{stream: gps, where: "speed > 60"}}
queries:
  - {{name: jam, consumer: city, pattern: "SEQ(fast, slow)"}}
""")


def kafka(setting: Setting) -> Iterator[Finding | Skipped]:
    """Measure our source against the same work in one thread, and the client alone."""
    from tests.services import Kafka

    count = max(100_000, setting.scale.events // _SHARE)
    with tempfile.TemporaryDirectory() as folder:
        try:
            server = Kafka(Path(folder), *_LOGIN)
        except skip_reason() as reason:
            yield Skipped(_JOB, str(reason))
            return
        try:
            server.start()
            topic = _Topic(server.servers, Path(folder))
            topic.fill(count)
            contestants: dict[str, Callable[[], int]] = {
                OURS: lambda: topic.read(count),
                _BEFORE: lambda: topic.read_before(count),
                _BARE: lambda: topic.count(count),
            }
            outcomes = race(
                contestants, setting.rounds, lambda name, seen: _checked(name, seen, count)
            )
        finally:
            server.stop()
    seconds = {name: outcome.spent for name, outcome in outcomes.items()}
    ours, before, bare = (seconds[name] for name in (OURS, _BEFORE, _BARE))
    yield Finding(
        _JOB,
        f"times as fast as {_BEFORE}",
        before.elapsed / ours.elapsed,
        before.processor / ours.processor,
        min(_TARGET, before.elapsed / bare.elapsed),
        seconds=seconds,
        note=f"{count / ours.elapsed:,.0f} messages a second",
    )
    yield Finding(
        _JOB,
        f"times as fast as {_BARE}",
        bare.elapsed / ours.elapsed,
        bare.processor / ours.processor,
        note=f"{count / bare.elapsed:,.0f} messages a second by the client alone",
    )


def _checked(name: str, found: int, count: int) -> int:
    if found != count:
        raise UnequalError(f"{name} read {found} messages of {count}")
    return found


class _Topic:
    """A topic, and the ways to read it."""

    def __init__(self, servers: str, folder: Path) -> None:
        user, password = _LOGIN
        self._servers = servers
        self._config = folder / "client.properties"
        self._settings: dict[str, Any] = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": user,
            "sasl.password": password,
        }
        lines = (f"{name}={value}\n" for name, value in self._settings.items())
        self._config.write_text("".join(lines))
        self._settings["bootstrap.servers"] = servers
        subjects = Subjects()
        subjects.add(pa.array([f"s{number}" for number in range(_SUBJECTS)]))
        self._extractor = RegistryExtractor(CompiledSpec(_SPEC), subjects)

    def fill(self, count: int) -> None:
        """Produce messages, a millisecond of event time apart."""
        from confluent_kafka import Producer
        from confluent_kafka.admin import AdminClient
        from confluent_kafka.cimpl import NewTopic

        admin = AdminClient(self._settings)
        admin.create_topics([NewTopic("gps", _PARTITIONS, 1)])["gps"].result(_TIMEOUT)
        producer = Producer(self._settings | {"compression.type": "lz4", "linger.ms": 50})
        random = np.random.default_rng(1)
        subjects = random.integers(0, _SUBJECTS, count).tolist()
        speeds = random.uniform(0, 80, count).round(1).tolist()
        for number, (subject, speed) in enumerate(zip(subjects, speeds, strict=True)):
            stamp = _START + number
            value = f'{{"subject":"s{subject}","at":{stamp},"speed":{speed},"n":{number}}}'
            while True:
                try:
                    place = number % _PARTITIONS
                    producer.produce("gps", value.encode(), partition=place, timestamp=stamp)
                    break
                except BufferError:
                    producer.poll(0.1)
        if producer.flush(_TIMEOUT):
            raise UnequalError("the server did not take all messages")

    def read(self, count: int) -> int:
        """Read as a run does."""
        place = f"kafka://{self._servers}/gps?group={uuid.uuid4().hex}&config={self._config}"
        source = open_source(place)
        reader = Reader(
            _SPEC.streams, [Input("gps", source)], self._extractor, _SPEC.windows.jumps[1]
        )
        found, last = 0, -1
        with closing(reader.read()) as batches:
            for batch in batches:
                if batch is not None and len(batch):
                    if int(batch.times[0]) < last:
                        raise UnequalError("the partitions are not in order of time")
                    found, last = found + len(batch), int(batch.times[-1])
                if found >= count:
                    break
        return found

    def read_before(self, count: int) -> int:
        """Read message by message, merge by timestamps, parse and extract, in one thread."""
        types = self._extractor.column_types("gps", open_source(f"kafka://{self._servers}/gps"))
        found = 0
        for values in self._merge_by_timestamp(count):
            lines = [value.strip().replace(b"\n", b" ") for value in values]
            table = parse_objects(lines, _COLUMNS).frame.rechunk().to_arrow()
            (batch,) = table.to_batches()
            converted = types.convert(encode_keys(batch, ["subject"]))
            found += len(self._extractor.extract(Rows("gps", converted)).times)
        return found

    def _merge_by_timestamp(self, count: int) -> Iterator[Sequence[bytes]]:
        waiting: dict[tuple[str, int], list[tuple[int, int, bytes]]] = {}
        held, left = 0, count
        for messages in self._consume(1000):
            for message in messages:
                if message.error() is None:
                    own = waiting.setdefault((message.topic(), message.partition()), [])
                    own.append((message.timestamp()[1], message.offset(), message.value()))
            held, left = held + len(messages), left - len(messages)
            if left and held < _TOGETHER:
                continue
            parts = list(waiting.values())
            stamps = np.array([stamp for part in parts for stamp, _, _ in part], np.int64)
            values = [value for part in parts for _, _, value in part]
            yield [values[number] for number in np.argsort(stamps, kind="stable").tolist()]
            waiting.clear()
            held = 0
            if not left:
                return

    def count(self, count: int) -> int:
        """Read messages and do nothing."""
        found = 0
        for messages in self._consume(10_000):
            found += len(messages)
            if found >= count:
                return found
        return found

    def _consume(self, most: int) -> Iterator[list[Any]]:
        from confluent_kafka import Consumer

        own = {"group.id": uuid.uuid4().hex, "auto.offset.reset": "earliest"}
        consumer = Consumer(self._settings | own | {"enable.auto.commit": False})
        with closing(consumer):
            consumer.subscribe(["gps"])
            while True:
                yield consumer.consume(most, 0.2)
