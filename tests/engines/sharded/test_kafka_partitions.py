"""The partitions of a topic in readers of their own, with a real broker."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tacit.engines.sharded.batches import ShardBatch
from tacit.engines.sharded.job import Partition, ShardedJob
from tacit.engines.sharded.preparation import check_same, check_same_request, prepare
from tacit.engines.sharded.reader import PartitionReader
from tacit.errors import SourceError, StateError
from tacit.ledger.ledger import Ledger
from tacit.pipeline.versions import SpecVersion
from tacit.planning.planner import plan_without_history
from tacit.spec.yaml_reader import loads
from tests.connectors.checks import tuples
from tests.connectors.kafka_ends import KafkaFeed, config
from tests.connectors.test_kafka_runs import SPEC
from tests.services import Kafka

__all__ = ["config"]  # a fixture


class Topic:
    """A topic of three partitions, and a job that reads it."""

    def __init__(self, kafka: Kafka, config: Path, folder: Path, **options: Any) -> None:
        with config.open("a") as file:
            file.write("topic.metadata.refresh.interval.ms=1000\n")
        self.feed = KafkaFeed(kafka.secure, config)
        self.source = f"kafka://{kafka.secure}/{self.feed.topic}?config={config}&payload=json"
        self.spec = loads(SPEC)
        self.version = SpecVersion(self.spec, plan_without_history(self.spec, "uniform"))
        self.folder = folder
        self.rows = tuples(0, 1200)
        for part in range(3):
            self.feed.send(self.rows[part:600:3], part)
        self.job = self.prepare(**options)

    def prepare(self, **options: Any) -> ShardedJob:
        with Ledger.open(str(self.folder / "ledger.db")) as ledger:
            lease = ledger.take_over("job", self.spec.fingerprint)
            return prepare(self.version, [(None, self.source)], lease, **options)


@pytest.fixture
def topic(kafka: Kafka, config: Path, tmp_path: Path) -> Topic:
    return Topic(kafka, config, tmp_path)


def read(reader: PartitionReader, wanted: int) -> list[int]:
    """The times of the tuples that a reader sends, until it has accepted so many."""
    found: list[int] = []
    deadline = time.monotonic() + 120
    while reader.counts.taken < wanted:
        assert time.monotonic() < deadline, reader.counts
        for _, given in reader.step().batches:
            found += ShardBatch.from_bytes(given).times.tolist()
    return found


@pytest.fixture
def opened() -> Iterator[Callable[..., PartitionReader]]:
    """Opens readers, which are closed at the end."""
    with ExitStack() as stack:
        yield lambda *given: stack.enter_context(closing(PartitionReader(*given)))


def test_each_partition_has_a_reader_that_is_restored_where_it_was(
    topic: Topic, opened: Callable[..., PartitionReader]
) -> None:
    """It is lost in the middle; messages that come meanwhile, also to a new partition, are read."""
    assert topic.job.partitions == tuple(
        Partition("gps", topic.source, False, (number, 3)) for number in range(3)
    )
    used = {row["at"] * 1000 for row in topic.rows if row["n"] % 3 == 1 or row["n"] % 10 == 0}
    sent: list[int] = []
    states = []
    for number in range(3):
        reader = opened(topic.job, number)
        sent += read(reader, 200)
        state = reader.state()
        sent_later = reader.step()  # what comes after the checkpoint is lost
        assert not sent_later.dead_letters
        states.append(state)
    assert set(sent) == {row["at"] * 1000 for row in topic.rows[:600]} & used
    topic.feed.add_partitions(4)
    for part in range(4):
        topic.feed.send(topic.rows[600 + part :: 4], part)
    for number, wanted in enumerate((500, 350, 350)):  # the first has two partitions now
        sent += read(opened(topic.job, number, states[number]), wanted)
    assert len(sent) == len(set(sent))
    assert set(sent) == used


def test_an_unreadable_message_is_reported_once_by_the_reader_of_its_partition(
    topic: Topic, opened: Callable[..., PartitionReader]
) -> None:
    for part in range(3):
        topic.feed.produce([(b"{ %d" % part, None, 1_200_000_600_000)], part)
        topic.feed.send(topic.rows[600 + part : 900 : 3], part)
    for number in range(3):
        reader, letters = opened(topic.job, number), b""
        deadline, after = time.monotonic() + 120, 0
        while after < 20:  # and a few steps more, two seconds
            assert time.monotonic() < deadline
            step = reader.step()
            letters += step.dead_letters
            if step.batches:
                reader.close()
                reader = opened(topic.job, number, reader.state())
            after += reader.counts.taken == 300
        assert [json.loads(one)["raw"] for one in letters.splitlines()] == [f"{{ {number}"]


def test_a_reader_that_has_no_more_messages_is_idle_and_the_others_do_not_wait(
    topic: Topic, opened: Callable[..., PartitionReader]
) -> None:
    reader = opened(replace(topic.job, idle=2_000_000), 1)
    read(reader, 200)
    assert reader.blocks_others
    deadline = time.monotonic() + 60
    batches = []
    while reader.blocks_others:
        assert time.monotonic() < deadline
        batches += reader.step().batches
    assert ShardBatch.from_bytes(batches[-1][1]).idle
    assert np.all(ShardBatch.from_bytes(batches[-1][1]).counts == 0)


def test_a_topic_that_has_grown_is_the_same_source_and_few_shards_mean_few_readers(
    topic: Topic,
) -> None:
    topic.feed.add_partitions(5)
    again = topic.prepare()
    assert len(again.partitions) == 5
    check_same(again, topic.job)
    check_same_request(topic.version, [topic.source], topic.job.shards, topic.job)
    with pytest.raises(StateError, match="the sources"):
        check_same_request(topic.version, [f"{topic.source}&key=a"], topic.job.shards, topic.job)
    assert [one.share for one in topic.prepare(shards=2).partitions] == [(0, 2), (1, 2)]
    topic.job.write(topic.folder / "job")
    assert ShardedJob.read(topic.folder / "job").partitions == topic.job.partitions


def test_a_topic_with_64_partitions_has_as_many_readers_as_there_are_slots(
    topic: Topic, opened: Callable[..., PartitionReader]
) -> None:
    topic.feed.add_partitions(64)
    assert len(topic.prepare(shards=64).partitions) == 64
    assert len(topic.prepare(tasks=8).partitions) == topic.job.shards == 16
    job = topic.prepare(tasks=48)
    assert [one.share for one in job.partitions] == [(number, 48) for number in range(48)]
    for place, part in enumerate((15, 63, 48)):
        topic.feed.send(topic.rows[600 + place :: 3], part)
    sent = read(opened(job, 15), 400) + read(opened(job, 0), 400)
    rows = [*topic.rows[:600:3], *topic.rows[600:]]
    used = [row["at"] * 1000 for row in rows if row["n"] % 3 == 1 or row["n"] % 10 == 0]
    assert sorted(sent) == used


def test_a_file_has_no_partitions(tmp_path: Path) -> None:
    from tacit.connectors.files import open_source

    path = tmp_path / "rows.jsonl"
    path.write_text('{"subject": "s1"}\n')
    source = open_source(path)
    assert source.count_partitions() == 1
    source.take_share(0, 1)
    with pytest.raises(SourceError, match="no partitions"):
        source.take_share(1, 2)
