"""A real Kafka server passes the same checks as the tests' own broker.

Tests that are imported here run again with the fixtures of this module: on the server.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tacit.connectors.kafka import sink as kafka_sink
from tests.connectors.checks import SinkChecks, SourceChecks
from tests.connectors.kafka_ends import LOGIN, KafkaFeed, KafkaReceiver, config
from tests.connectors.test_kafka import (
    test_a_crash_at_the_commit_leaves_each_answer_once,
    test_another_engine_of_the_same_group_takes_over,
    test_answers_of_another_ledger_are_not_taken_for_delivered,
    test_every_message_has_its_release_and_its_subject,
    test_partitions_move_between_the_members_of_a_group,
    test_partitions_that_are_read_one_after_the_other_are_merged_by_time,
    test_what_a_transaction_gave_up_is_not_read,
)
from tests.services import Kafka

__all__ = [
    "config",
    "test_a_crash_at_the_commit_leaves_each_answer_once",
    "test_another_engine_of_the_same_group_takes_over",
    "test_answers_of_another_ledger_are_not_taken_for_delivered",
    "test_every_message_has_its_release_and_its_subject",
    "test_partitions_move_between_the_members_of_a_group",
    "test_partitions_that_are_read_one_after_the_other_are_merged_by_time",
    "test_what_a_transaction_gave_up_is_not_read",
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    user, _, password = LOGIN.partition(":")
    kafka = Kafka(tmp_path_factory.mktemp("kafka"), user, password)
    kafka.start()
    yield kafka
    kafka.stop()


@pytest.fixture
def feed(server: Kafka, config: Path) -> KafkaFeed:
    return KafkaFeed(server.servers, config)


@pytest.fixture
def receiver(server: Kafka, config: Path, monkeypatch: pytest.MonkeyPatch) -> KafkaReceiver:
    monkeypatch.setattr(kafka_sink, "_TIMEOUT", 10.0)
    return KafkaReceiver(server, config)


class TestKafkaServerAsSource(SourceChecks):
    """Tuples from a real server; how much is held in memory does not depend on it."""

    test_a_slow_reader_holds_it_back_and_memory_stays_bounded = None  # type: ignore[assignment]


class TestKafkaServerAsSink(SinkChecks):
    """Answers to a real server."""
