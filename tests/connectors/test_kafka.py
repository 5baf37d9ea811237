"""Kafka: the shared list of checks and what is Kafka's own, on a real server with TLS."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import cbor2
import pytest
from confluent_kafka import Producer

from tacit.connectors.kafka import sink as kafka_sink
from tacit.connectors.openers import open_input, open_resumable_sink
from tacit.errors import SinkError, SourceError, TacitError, UnreachableError
from tacit.pipeline.sinks import ReleaseBatch
from tests.connectors.checks import (
    COLUMNS,
    PATIENCE,
    Feed,
    Reading,
    SinkChecks,
    SourceChecks,
    answers,
    assert_same,
    batch,
    begin_with,
    numbers,
    tuples,
)
from tests.connectors.kafka_ends import (
    KafkaFeed,
    KafkaReceiver,
    config,
    settings,
)
from tests.engines.forking import Forks
from tests.services import Kafka, make_certificate

__all__ = ["config"]  # a fixture


@pytest.fixture
def feed(kafka: Kafka, config: Path, request: pytest.FixtureRequest) -> KafkaFeed:
    """A topic that is read with TLS, unless the parameter says otherwise."""
    if getattr(request, "param", "tls") == "plain":
        return KafkaFeed(kafka.servers, plain(kafka, config.with_name("plain.properties")))
    return KafkaFeed(kafka.secure, config)


def plain(kafka: Kafka, path: Path) -> Path:
    """The settings of a client that is let in without TLS."""
    path.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
        f"sasl.username={kafka.user}\nsasl.password={kafka.password}\n"
    )
    return path


@pytest.fixture
def receiver(kafka: Kafka, config: Path, monkeypatch: pytest.MonkeyPatch) -> KafkaReceiver:
    monkeypatch.setattr(kafka_sink, "_TIMEOUT", 10.0)
    return KafkaReceiver(kafka, config)


class TestKafkaSource(SourceChecks):
    """Topics that are read pass the list of checks."""

    @pytest.mark.parametrize("feed", ["plain"], indirect=True)
    def test_a_slow_reader_holds_it_back_and_memory_stays_bounded(self, feed: Feed) -> None:
        """Without TLS, which would only take the server's time."""
        super().test_a_slow_reader_holds_it_back_and_memory_stays_bounded(feed)


class TestKafkaSink(SinkChecks):
    """Topics that are written to pass the list of checks."""


def test_what_a_transaction_gave_up_is_not_read(feed: KafkaFeed) -> None:
    producer = Producer({**settings(feed.servers, feed.config), "transactional.id": feed.topic})
    producer.init_transactions(10)
    for number, row in enumerate(tuples(0, 4)):
        producer.begin_transaction()
        producer.produce(feed.topic, json.dumps(row), partition=0)
        producer.flush(10)
        (producer.abort_transaction if number % 2 else producer.commit_transaction)(10)
    assert numbers(Reading(feed.open()).take(2)) == [0, 2]


def test_the_key_can_be_a_column(feed: KafkaFeed) -> None:
    feed.options = "key=subject"
    at = 1_200_000_000_000
    feed.produce([(b'{"at": %d, "n": 0}' % at, "taxi 1", at), (b'{"n": 1}', None, at)])
    assert Reading(feed.open()).take(2) == [
        {"subject": "taxi 1", "at": at, "n": 0},
        {"subject": None, "at": None, "n": 1},
    ]


def test_cbor_is_read_like_json(feed: KafkaFeed) -> None:
    feed.options = "payload=cbor"
    feed.produce([(cbor2.dumps(row), None, row["at"]) for row in tuples(0, 5)])
    feed.produce([(b"\xff", None, 0), (None, None, 0)])
    reading = Reading(feed.open())
    assert reading.take(5) == tuples(0, 5)
    assert [line.raw for line in reading.rejected] == ["ff", ""]


def test_no_message_is_needed_to_know_the_columns(feed: KafkaFeed) -> None:
    source = feed.open()
    assert source.keyed
    assert source.schema().names == []
    assert source.declared_types() == {}
    reading = Reading(source)
    assert reading.next().table.schema.names == list(COLUMNS)
    feed.send([row | {"door": True} for row in tuples(0, 3)])
    assert reading.take(3) == tuples(0, 3)


def test_values_are_text_until_they_are_given_types(feed: KafkaFeed) -> None:
    feed.send(tuples(0, 2))
    source = feed.open()
    assert source.textual
    found: list[dict[str, str]] = []
    with closing(source.batches(["n", "at", "speed"])) as flow:  # type: ignore[type-var]
        while len(found) < 2:
            found += next(flow).table.to_pylist()
    assert found == [
        {"n": str(row["n"]), "at": str(row["at"]), "speed": None} for row in tuples(0, 2)
    ]


def test_the_address_may_declare_types(feed: KafkaFeed, tmp_path: Path) -> None:
    row = {"subject": "s", "at": "2026-01-01T00:00:00Z", "n": 5, "door": True}
    (tmp_path / "sample.jsonl").write_text(json.dumps(row))
    feed.options = f"sample={tmp_path}/sample.jsonl"
    assert feed.open().declared_types() == {
        "subject": "text",
        "at": "time",
        "n": "number",
        "door": "boolean",
    }
    feed.options = "columns=subject:text,at:time,n:integer"
    assert feed.open().declared_types() == {"subject": "text", "at": "time", "n": "integer"}


def test_a_group_that_begins_at_the_end_reads_only_what_comes(feed: KafkaFeed) -> None:
    feed.options += "&from=end"
    feed.send(tuples(0, 5))
    reading = Reading(feed.open())
    locate(reading, 3)
    reading.close()
    feed.send(tuples(5, 5))
    source = feed.open()
    source.resume_partitions(reading.offsets)
    assert numbers(Reading(source).take(5)) == [5, 6, 7, 8, 9]


def locate(reading: Reading, partitions: int) -> None:
    """Read until the place in so many partitions is known."""
    deadline = time.monotonic() + PATIENCE
    while sum(offset >= 0 for offset in reading.offsets.values()) < partitions:
        assert time.monotonic() < deadline
        reading.next()


@pytest.mark.cases(1)
@pytest.mark.parametrize("start", ["beginning", "end"])
def test_partitions_that_are_added_are_read_from_their_beginning(
    feed: KafkaFeed, start: str
) -> None:
    """Those that are found while it reads, and those that came while it was down."""
    with feed.config.open("a") as file:
        file.write("topic.metadata.refresh.interval.ms=300\n")
    feed.options += f"&from={start}"
    feed.send(tuples(0, 1))
    reading = Reading(feed.open())
    locate(reading, 3)
    feed.add_partitions(4)
    feed.send(tuples(100, 5), 3)
    before = [0] if start == "beginning" else []
    reading.take(5 + len(before) - len(reading.rows))
    assert numbers(reading.rows) == [*before, 100, 101, 102, 103, 104]
    feed.add_partitions(5)
    feed.send(tuples(200, 5), 4)
    source = feed.open()
    source.resume_partitions(reading.offsets)
    assert numbers(Reading(source).take(5)) == [200, 201, 202, 203, 204]


def test_an_idle_partition_is_not_awaited(feed: KafkaFeed) -> None:
    feed.options += "&idle=300ms"
    feed.send(tuples(0, 3), 1)
    reading = Reading(feed.open())
    awaited: dict[str, bool] = {}
    deadline = time.monotonic() + PATIENCE
    while len(awaited) < 3 or any(awaited.values()):
        assert time.monotonic() < deadline
        awaited |= {part.name: part.awaited for part in reading.next().partitions}
    assert len(reading.rows) == 3
    feed.send(tuples(3, 1), 1)
    while not awaited[f"{feed.topic}/1"]:
        assert time.monotonic() < deadline
        awaited |= {part.name: part.awaited for part in reading.next().partitions}
    assert not awaited[f"{feed.topic}/0"]
    reading.close()


def test_a_position_of_the_version_before_is_read_as_it_was(feed: KafkaFeed) -> None:
    """It merged partitions by the largest timestamp so far, and cut them into batches."""
    sent = {part: [row for row in tuples(0, 30) if row["n"] % 3 == part] for part in range(3)}
    for part, rows in sent.items():
        feed.send(rows, part)
    token = {
        "offsets": {feed.topic: {"0": 2, "1": 1, "2": 0}},
        "ends": {feed.topic: {"0": 5, "1": 5}},
        "rows": 7,
    }
    source = feed.open()
    source.resume(token)
    reading = Reading(source)
    merged = [rows for part in (0, 1) for rows in sent[part][2 - part : 5]]
    assert reading.take(7, close=False) == sorted(merged, key=lambda row: row["n"])
    assert reading.resume(feed.open(), 3) == 3, "a place in it is a place in the old batch"
    rest = [row for part in range(3) for row in sent[part][5 if part < 2 else 0 :]]
    found = reading.take(len(rest))
    assert sorted(found, key=lambda row: row["n"]) == sorted(rest, key=lambda row: row["n"])


def test_without_tls_a_password_is_enough(kafka: Kafka, tmp_path: Path) -> None:
    feed = KafkaFeed(kafka.servers, plain(kafka, tmp_path / "plain.properties"))
    feed.send(tuples(0, 3))
    assert numbers(Reading(feed.open()).take(3)) == [0, 1, 2]


def test_a_broker_whose_certificate_is_not_trusted_gets_nothing(
    receiver: KafkaReceiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other").mkdir()
    make_certificate(tmp_path / "other")
    own = str(receiver.broker.authority)
    text = receiver.config.read_text().replace(own, f"{tmp_path}/other/cert.pem")
    receiver.config.write_text(text)
    assert "_SSL" in find_failure(receiver, "_SSL", monkeypatch)


def find_failure(receiver: KafkaReceiver, what: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Why the sink does not reach the broker; it waits longer until that is known."""
    said = ""
    for seconds in (0.5, 2.0, 10.0):
        monkeypatch.setattr(kafka_sink, "_TIMEOUT", seconds)
        with receiver.open() as sink, pytest.raises(UnreachableError) as found:
            sink.recover(None)
        said += str(found.value)
        if what in said:
            break
    return said


def test_another_engine_of_the_same_group_takes_over(feed: KafkaFeed) -> None:
    feed.send(tuples(0, 5))
    first = Reading(feed.open())
    first.take(5, close=False)
    second = Reading(feed.open())
    second.take(5, close=False)
    with pytest.raises(SourceError, match="another engine of the same group"):
        first.take(1)
    second.close()


def test_partitions_move_between_the_members_of_a_group(feed: KafkaFeed) -> None:
    with feed.config.open("a") as file:
        file.write("group.instance.id=\nheartbeat.interval.ms=200\nsession.timeout.ms=6000\n")
    for part in range(3):
        feed.send(tuples(1000 * part, 20), part)
    first = Reading(feed.open())
    first.take(60, close=False)
    first.acknowledge()
    second = Reading(feed.open())
    read_both(first, second, until=lambda: second_has_some(feed, second))
    for part in range(3):
        feed.send(tuples(1000 * part + 500, 20), part)
    fresh = {1000 * part + 500 + n for part in range(3) for n in range(20)}
    read_both(first, second, until=lambda: fresh <= {*numbers(first.rows), *numbers(second.rows)})
    read_both(first, second, until=None)
    both = [row["n"] for row in [*first.rows, *second.rows] if row["n"] in fresh]
    assert sorted(both) == sorted(fresh)
    first.close()
    second.close()


def second_has_some(feed: KafkaFeed, second: Reading) -> bool:
    """Send tuples to all partitions until the second member reads one."""
    for part in range(3):
        feed.send(tuples(1000 * part + 100, 1), part)
    return bool(second.rows)


def read_both(first: Reading, second: Reading, until: Callable[[], bool] | None) -> None:
    for _ in range(200 if until else 10):
        first.next()
        second.next()
        first.acknowledge()
        second.acknowledge()
        if until and until():
            return
    assert until is None, "it did not come to that"


def test_every_message_has_its_release_and_its_subject(receiver: KafkaReceiver) -> None:
    with receiver.open() as sink:
        sink.recover(None)
        sink.deliver(batch(7))
    for message, row in receiver.messages():
        assert dict(message.headers() or []) == {"release": b"7"}
        assert (message.key() or b"").decode() == row["subject"]
        consumer = "clinic" if row["query"] == "visit" else "city"
        assert message.topic() == f"{receiver.prefix}-{consumer}-{row['query']}"


KILLED = """
import os, signal, sys
from confluent_kafka import Producer
from tacit.connectors.kafka import sink as kafka_sink
from tacit.connectors.openers import open_resumable_sink
from tests.connectors.checks import batch

class Dying(Producer):
    def commit_transaction(self, timeout):
        self.flush(10)
        if sys.argv[2] == "after":
            super().commit_transaction(timeout)
        if self.dies:
            os.kill(os.getpid(), signal.SIGKILL)
        super().commit_transaction(timeout)

kafka_sink.Producer = Dying
Dying.dies = False
sink = open_resumable_sink(sys.argv[1])
sink.recover(None)
if sys.argv[2] != "after":
    sink.deliver(batch(1))
Dying.dies = True
sink.deliver(batch(2))
"""


@pytest.mark.soak
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_kill_at_the_commit_leaves_each_answer_once(
    receiver: KafkaReceiver, when: str, forks: Forks
) -> None:
    topic = f"{receiver.prefix}-{{consumer}}-{{query}}"
    url = f"kafka://{receiver.broker.secure}/{topic}?config={receiver.config}"
    done = subprocess.run([forks.program, "-c", KILLED, url, when], capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    before = [] if when == "after" else [batch(1)]
    assert_same(receiver.received(), answers(*before, *([batch(2)] if when == "after" else [])))
    with receiver.open() as sink:
        sink.recover({"release": 1} if before else None)
        sink.deliver(batch(2))
        sink.deliver(batch(3))
    assert_same(receiver.received(), answers(*before, batch(2), batch(3)))


class CrashError(Exception):
    """The process ends here."""


def test_a_transaction_that_was_left_open_is_aborted_and_delivered_anew(
    receiver: KafkaReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Dying(Producer):
        def commit_transaction(self, *_: Any) -> None:
            self.flush(10)  # the broker has all of it
            raise CrashError

    with receiver.open() as sink:
        sink.recover(None)
        sink.deliver(batch(1))
    with monkeypatch.context() as patched, receiver.open() as sink:
        patched.setattr(kafka_sink, "Producer", Dying)
        with pytest.raises(CrashError):
            begin_with(sink, {"release": 1}, batch(2))
    with receiver.open() as sink:
        sink.recover({"release": 1})
        sink.deliver(batch(2))
        sink.deliver(batch(3))
    assert_same(receiver.received(), answers(batch(1), batch(2), batch(3)))


def test_answers_of_another_ledger_are_not_taken_for_delivered(receiver: KafkaReceiver) -> None:
    with receiver.open() as sink:
        sink.recover(None)
        sink.deliver(batch(3))
    before = receiver.received()
    for other in (batch(3, 13), batch(2)):
        with receiver.open() as sink, pytest.raises(SinkError, match="from another ledger"):
            begin_with(sink, None, other)
    assert_same(receiver.received(), before)


def test_who_knows_no_password_is_told_so_without_the_password(
    receiver: KafkaReceiver, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver.config.write_text(
        receiver.config.read_text().replace("open sesame", "open barley")
        + "socket.timeout.ms=1000\n"
    )
    said = find_failure(receiver, "_AUTHENTICATION", monkeypatch)
    assert "_AUTHENTICATION" in said
    assert "barley" not in f"{said}{caplog.text}"


def test_settings_that_the_client_refuses_are_explained_without_their_values(
    feed: KafkaFeed, receiver: KafkaReceiver
) -> None:
    feed.send(tuples(0, 1))
    receiver.config.write_text(receiver.config.read_text() + "sasl.mechanism=open barley\n")
    with receiver.open() as sink, pytest.raises(SinkError, match="mechanism") as found:
        sink.recover(None)
    with pytest.raises(SourceError, match="mechanism") as also:
        Reading(feed.open()).next()
    assert "barley" not in f"{found.value}{also.value}"


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("kafka://user:secret@host/gps", "into a settings file"),
        ("kafka://host", "expected topics"),
        ("kafka://host/a b", "expected topics"),
        ("kafka://host/gps?grup=x", "Did you mean 'group'"),
        ("kafka://host/gps?payload=xml", "json or cbor, not 'xml'"),
        ("kafka://host/gps?columns=ts", "written name:type"),
        ("kafka://host/gps?from=now", "beginning or end"),
        ("kafka://host/gps?columns=a:text&sample=b.csv", "not both"),
        ("kafka://host/gps?group=a&group=b", "is given twice"),
        ("kafka://host/gps?config=missing.properties", "cannot be read from missing.properties"),
    ],
)
def test_a_mistake_in_a_source_is_explained(url: str, says: str) -> None:
    with pytest.raises(SourceError, match=says) as found:
        open_input(url)
    assert "secret" not in str(found.value)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("kafka://host/answers", "needs {consumer}"),
        ("kafka://host/{consumer}-{qery}", "Did you mean 'query'"),
        ("kafka://host/{consumer}/x", "not a valid topic"),
        ("kafka://host/{consumer}?group=x", "no option 'group'"),
    ],
)
def test_a_mistake_in_a_sink_is_explained(url: str, says: str) -> None:
    with pytest.raises(SinkError, match=says):
        open_resumable_sink(url)


def test_a_consumer_whose_name_is_no_topic_is_explained(receiver: KafkaReceiver) -> None:
    strange = ReleaseBatch(1, batch(1).table, {"jam": "city hall", "rush": "a", "visit": "b"})
    with receiver.open() as sink, pytest.raises(SinkError, match="letters, digits"):
        begin_with(sink, None, strange)


def test_without_the_client_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tacit.connectors.urls.find_spec", lambda _: None)
    for attempt in (open_input, open_resumable_sink):
        with pytest.raises(TacitError, match=r"pip install 'tacit\[kafka\]'"):
            attempt("kafka://host/gps-{consumer}")
