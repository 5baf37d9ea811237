"""A reader of a topic with several partitions; `make soak` kills whole runs."""

from __future__ import annotations

import json
import time
from contextlib import closing
from pathlib import Path

import pyarrow as pa

from tacit.events.subjects import Subjects
from tacit.pipeline.compiled_spec import CompiledSpec
from tacit.pipeline.reader import Input, Positions, Reader, RegistryExtractor
from tacit.spec.yaml_reader import loads
from tests.connectors.checks import PATIENCE, tuples
from tests.connectors.kafka_ends import KafkaFeed, config
from tests.services import Kafka

__all__ = ["config"]  # a fixture

SPEC = """
version: 1
streams: {gps: {subject: subject, time: at}}
windows: {size: 1 min, lateness: 2 min}
subjects: [s0, s1, s2, s3, s4, s5, s6]
events:
  third: {stream: gps, where: "n % 3 = 1"}
  tenth: {stream: gps, where: "n % 10 = 0"}
queries:
  - {name: jam, consumer: city, pattern: "SEQ(third, tenth)"}
  - {name: visit, consumer: clinic, pattern: "AND(tenth, third)"}
"""


def test_partitions_are_merged_by_event_time_and_resumed_where_each_was(
    kafka: Kafka, config: Path
) -> None:
    """A backlog is read partition by partition, by several readers one after the other."""
    feed = KafkaFeed(kafka.secure, config)
    rows = tuples(0, 3000)
    for part in range(3):
        # Timestamps tell nothing: a partition of a slow producer is behind in event time.
        messages = [(json.dumps(row).encode(), None, 1_200_000_000_000) for row in rows[part::3]]
        feed.produce(messages, part)
    spec = loads(SPEC)
    subjects = Subjects()
    subjects.add(pa.array([f"s{number}" for number in range(7)]))
    extractor = RegistryExtractor(CompiledSpec(spec), subjects)
    positions: Positions = {}
    times: list[int] = []
    for wanted in (500, 1700, 3000):
        inputs = [Input("gps", feed.open())]
        reader = Reader(spec.streams, inputs, extractor, spec.windows.jumps[1], positions=positions)
        deadline = time.monotonic() + PATIENCE
        with closing(reader.read()) as batches:
            for batch in batches:
                assert time.monotonic() < deadline
                taken = 0 if batch is None else min(len(batch), wanted - len(times))
                if batch is not None:
                    times += batch.times[:taken].tolist()
                    reader.advance(batch, taken)
                if len(times) == wanted:
                    break
        positions = json.loads(json.dumps(reader.positions))
    assert times == [row["at"] * 1000 for row in rows]
