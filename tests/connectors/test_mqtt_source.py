"""Tuples from a real broker: each comes once, and none that is not safe is forgotten."""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import cbor2
import pytest

from tacit.connectors.files import open_source
from tacit.connectors.mqtt import session
from tacit.connectors.mqtt.address import PASSWORD
from tacit.connectors.mqtt.messages import BatchRange
from tacit.connectors.mqtt.source import MqttSource
from tacit.errors import SourceError
from tacit.pipeline.sources import Batch
from tests.connectors.checks import column_types
from tests.connectors.mqtt_clients import (
    PATIENCE,
    Peer,
    certificates,
    make_certificates,
    passwords,
    until,
)
from tests.services import Mosquitto

COLUMNS = "columns=n:integer"
TYPES = column_types(n="integer")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mosquitto]:
    with Mosquitto(tmp_path_factory.mktemp("mosquitto")) as running:
        yield running


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic that no other test uses."""
    return str(abs(hash(request.node.nodeid)))


def opened(broker: Mosquitto, rest: str) -> MqttSource:
    return opened_at(broker.port, rest)


def opened_at(port: int, rest: str) -> MqttSource:
    found = open_source(f"mqtt://127.0.0.1:{port}/{rest}")
    assert isinstance(found, MqttSource)
    return found


def numbered(topic: str, numbers: Sequence[int]) -> list[tuple[str, bytes]]:
    return [(topic, json.dumps({"n": number}).encode()) for number in numbers]


class Reading:
    """A source that is being read, and what it gave."""

    def __init__(self, source: MqttSource, columns: Sequence[str] = ("n",)) -> None:
        self.source = source
        self.batches: list[Batch] = []
        self._reader = source.batches(columns, ["subject"], TYPES)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """All rows."""
        return [row for batch in self.batches for row in batch.table.to_pylist()]

    @property
    def numbers(self) -> list[int]:
        """The column n of all rows."""
        return [row["n"] for row in self.rows]

    def step(self) -> Batch:
        """The next batch."""
        self.batches.append(next(self._reader))
        return self.batches[-1]

    def until(self, count: int, *, acknowledge: bool = False) -> None:
        """Read on until there are so many rows."""
        deadline = time.monotonic() + PATIENCE
        while len(self.rows) < count:
            receipt = self.step().receipt
            if acknowledge and receipt is not None:
                self.source.acknowledge(receipt)
            assert time.monotonic() < deadline, f"{len(self.rows)} rows of {count} in time"

    def settle(self) -> None:
        """Acknowledge all that came, as a run does with its next checkpoint."""
        while self.step().table.num_rows:
            pass
        if self.batches[-1].receipt is not None:
            self.source.acknowledge(self.batches[-1].receipt)
        self.step()

    def silence(self) -> None:
        """Nothing more comes."""
        for _ in range(3):
            assert self.step().table.num_rows == 0

    def close(self) -> None:
        """Read no more."""
        self._reader.close()  # type: ignore[attr-defined]


def listening(flow: Reading) -> float:
    """When the broker last confirmed the subscription."""
    assert flow.source._session is not None
    return flow.source._session.subscription.listening


@contextmanager
def reading(source: MqttSource, columns: Sequence[str] = ("n",)) -> Iterator[Reading]:
    with closing(Reading(source, columns)) as flow:
        flow.step()  # it is connected by now, or soon
        until(lambda: listening(flow) > 0, "subscribed")
        yield flow


def test_topics_with_wildcards_give_subject_topic_and_levels(broker: Mosquitto, topic: str) -> None:
    source = opened(broker, f"{topic}/+/{{what}}/#?subject=topic:2&{COLUMNS}")
    with (
        Peer(broker.port) as publisher,
        reading(source, ["subject", "n", "topic", "what"]) as flow,
    ):
        publisher.publish(numbered(f"{topic}/anna/gps", [1]))
        publisher.publish(numbered(f"{topic}/elsewhere", [2]))
        publisher.publish(numbered(f"{topic}/bert/odo/meter/x", [3]))
        flow.until(2)
        flow.silence()
    first, second = flow.rows
    assert first == {"subject": "anna", "n": 1, "topic": f"{topic}/anna/gps", "what": "gps"}
    assert second["subject"] == "bert"
    assert second["topic"] == f"{topic}/bert/odo/meter/x"


def test_the_subject_may_be_a_field_of_another_name(broker: Mosquitto, topic: str) -> None:
    source = opened(broker, f"{topic}?subject=taxi&columns=taxi:text,n:integer")
    with Peer(broker.port) as publisher, reading(source, ["subject", "n"]) as flow:
        publisher.publish([(topic, b'{"taxi": "a", "n": 1}'), (topic, b'{"n": 2}')])
        flow.until(2)
    assert flow.rows == [{"subject": "a", "n": 1}, {"subject": None, "n": 2}]


@pytest.mark.parametrize("coding", ["json", "cbor"])
def test_bad_payloads_are_rejected_and_the_flow_goes_on(
    broker: Mosquitto, topic: str, coding: str
) -> None:
    pack = cbor2.dumps if coding == "cbor" else lambda value: json.dumps(value).encode()
    payloads = [pack({"n": 1}), b"\xff\xfe", pack([{"n": 2}, {"n": 3}]), pack(7), pack({"n": 4})]
    source = opened(broker, f"{topic}?payload={coding}&{COLUMNS}")
    with Peer(broker.port) as publisher, reading(source) as flow:
        publisher.publish([(topic, payload) for payload in payloads])
        flow.until(4)
    assert flow.numbers == [1, 2, 3, 4]
    rejected = [line for batch in flow.batches for line in batch.rejected]
    assert [line.place for line in rejected] == [2, 4]
    assert rejected[0].raw == ("fffe" if coding == "cbor" else "\ufffd\ufffd")
    places = [int(p) for b in flow.batches for p in (b.places if b.places is not None else [])]
    assert places == [1, 3, 3, 5]


def test_silence_gives_several_empty_batches_in_a_second(broker: Mosquitto, topic: str) -> None:
    with reading(opened(broker, f"{topic}?{COLUMNS}")) as flow:
        began = time.monotonic()
        flow.silence()
        assert time.monotonic() - began < 1.5
    assert flow.source.live
    assert flow.source.once


def test_no_message_is_needed_to_know_the_columns(broker: Mosquitto, topic: str) -> None:
    source = opened(broker, topic)
    assert source.textual
    assert source.keyed
    assert source.schema().names == []
    assert source.declared_types() == {}
    with Peer(broker.port) as publisher, reading(source, ["n", "x"]) as flow:
        assert flow.batches[0].table.schema.names == ["n", "x"]
        publisher.publish([(topic, b'{"n": 1}'), (topic, b'{"x": 2.5}'), (topic, b'{"n": "a"}')])
        flow.until(3)
    assert flow.rows == [
        {"n": 1, "x": None},
        {"n": None, "x": "2.5"},  # no type was given for it
        {"n": None, "x": None},
    ]


def test_the_address_may_declare_types(tmp_path: Path) -> None:
    (tmp_path / "sample.csv").write_text("n,x,who\n1,2.5,anna\n")
    found = open_source(f"mqtt://127.0.0.1/a?sample={tmp_path}/sample.csv")
    assert found.declared_types() == {"n": "number", "x": "number", "who": "text"}
    found = open_source("mqtt://127.0.0.1/a?columns=n:integer,ts:time")
    assert found.declared_types() == {"n": "integer", "ts": "time"}


def test_a_retained_message_comes_once(broker: Mosquitto, topic: str) -> None:
    with Peer(broker.port) as publisher:
        publisher.publish(numbered(topic, [1]), retain=True)
        with reading(opened(broker, f"{topic}?{COLUMNS}")) as flow:
            flow.until(1)
            flow.settle()
        with reading(opened(broker, f"{topic}?{COLUMNS}")) as flow:
            flow.silence()


def test_a_group_shares_the_messages(broker: Mosquitto, topic: str) -> None:
    shared = f"$share/{topic}/{topic}/+?subject=topic:2&{COLUMNS}&client={topic}"
    with (
        Peer(broker.port) as publisher,
        reading(opened(broker, f"{shared}-1"), ["subject", "n"]) as first,
        reading(opened(broker, f"{shared}-2"), ["subject", "n"]) as second,
    ):
        publisher.publish(numbered(f"{topic}/anna", range(100)))
        until(
            lambda: (
                bool(first.step() and second.step()) and len(first.rows) + len(second.rows) == 100
            ),
            "shared",
        )
    assert sorted(first.numbers + second.numbers) == list(range(100))
    assert first.numbers
    assert second.numbers
    assert {row["subject"] for row in first.rows} == {"anna"}


def test_the_broker_restarts_and_nothing_is_lost_or_doubled(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tacit.mqtt")
    with (
        Mosquitto(tmp_path) as broker,
        reading(opened(broker, f"a?{COLUMNS}")) as flow,
    ):
        with Peer(broker.port) as publisher:
            publisher.publish(numbered("a", range(50)))
            flow.until(50)
        safe = flow.step().receipt
        listened = [listening(flow)]
        with Peer(broker.port) as publisher:
            publisher.publish(numbered("a", range(50, 80)))
        flow.until(80)
        for restart in range(2):
            broker.stop()
            flow.silence()
            if restart == 0:
                flow.source.acknowledge(safe)  # while nobody can hear it
            broker.start()
            until(lambda: bool(flow.step()) and listening(flow) > listened[-1], "connected")
            listened.append(listening(flow))
        with Peer(broker.port) as publisher:
            publisher.publish(numbered("a", range(80, 100)))
        flow.until(100)
        flow.settle()
        flow.silence()
        flow.close()
        with reading(opened(broker, f"a?{COLUMNS}")) as after:
            after.silence()  # all was acknowledged, what was acknowledged in vain as well
    assert flow.numbers == list(range(100))
    told = [(record.levelname, "connected again" in record.message) for record in caplog.records]
    assert told == [("WARNING", False), ("INFO", True)] * 2


def test_a_broker_that_forgot_the_session_is_told_and_gone_on_with(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        Mosquitto(tmp_path) as broker,
        reading(opened(broker, f"a?{COLUMNS}")) as flow,
    ):
        with Peer(broker.port) as publisher:
            publisher.publish(numbered("a", range(5)))
        flow.until(5)
        broker.stop()
        (tmp_path / "mosquitto.db").unlink()
        broker.start()
        until(lambda: bool(flow.step()) and "no longer had" in caplog.text, "told")
        flow.settle()
        with Peer(broker.port) as publisher:
            publisher.publish(numbered("a", range(5, 10)))
        flow.until(10)
        flow.settle()
    assert flow.numbers == list(range(10))


@contextmanager
def crashing(source: MqttSource) -> Iterator[Reading]:
    """Read until the connection ends as in a crash: nothing more is written to the broker."""
    with reading(source) as flow:
        yield flow
        assert source._session is not None
        link: Any = source._session._link
        link._write = lambda *_: b""
        link._disconnect = lambda *_: None


def test_what_was_not_acknowledged_before_a_crash_comes_again(
    broker: Mosquitto, topic: str
) -> None:
    url = f"{topic}?{COLUMNS}"
    with Peer(broker.port) as publisher:
        with crashing(opened(broker, url)) as flow:
            publisher.publish(numbered(topic, range(20)))
            flow.until(20)
        with crashing(opened(broker, url)) as flow:
            flow.until(20)
            flow.settle()
        assert flow.numbers == list(range(20))
        with crashing(opened(broker, url)) as flow:
            flow.silence()


@pytest.mark.parametrize("acknowledged", [False, True])
def test_a_run_resumes_at_the_batch_it_was_in_whatever_was_acknowledged(
    broker: Mosquitto, topic: str, acknowledged: bool
) -> None:
    """As the engine does it: a position is a token and the rows taken from there."""
    with Peer(broker.port) as publisher:
        with crashing(opened(broker, f"{topic}?{COLUMNS}")) as flow:
            for start in range(0, 60, 20):
                publisher.publish(numbered(topic, range(start, start + 20)))
                flow.until(start + 20, acknowledge=acknowledged)
        publisher.publish(numbered(topic, range(60, 70)))
    last = [batch for batch in flow.batches if batch.table.num_rows][-1]
    source, held = opened(broker, f"{topic}?{COLUMNS}"), last.table["n"].to_pylist()
    source.resume(json.loads(json.dumps(last.token)))
    with reading(source) as again:
        again.until(len(held) + 10)
        again.silence()
    assert again.numbers == list(range(held[0], 70))
    first = next(batch for batch in again.batches if batch.table.num_rows)
    assert (first.token, first.table["n"].to_pylist()) == (last.token, held)


def test_a_run_resumes_after_an_empty_batch_without_what_came_before(
    broker: Mosquitto, topic: str
) -> None:
    with Peer(broker.port) as publisher:
        with crashing(opened(broker, f"{topic}?{COLUMNS}")) as flow:
            publisher.publish(numbered(topic, range(10)))
            flow.until(10)
            while flow.step().table.num_rows:
                pass
        source = opened(broker, f"{topic}?{COLUMNS}")
        source.resume(json.loads(json.dumps(flow.batches[-1].token)))
        with reading(source) as again:
            publisher.publish(numbered(topic, range(10, 20)))
            again.until(10)
    assert again.numbers == list(range(10, 20))


def test_rows_that_were_counted_and_never_come_again_hold_nothing(
    broker: Mosquitto, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    source = opened(broker, f"{topic}?{COLUMNS}")
    with Peer(broker.port) as publisher:
        with reading(source) as flow:
            publisher.publish([(topic, b'[{"n": 1}, {"n": 2}]'), *numbered(topic, [3])])
            flow.until(3)
            position = next(batch.token for batch in flow.batches if batch.table.num_rows)
            flow.settle()
        token = json.loads(json.dumps(position))
        assert BatchRange.from_json(token).rows.tolist() == [2, 1]
        source.resume(token)
        with reading(source) as flow:
            publisher.publish(numbered(topic, [4]))
            flow.until(4)
    assert flow.numbers == [None, None, None, 4]
    assert "did not repeat" in caplog.text


def test_a_damaged_position_is_refused(broker: Mosquitto, topic: str) -> None:
    for token in ({}, {"after": 0, "messages": "x", "rows": None}, 7):
        with pytest.raises(SourceError, match="position"):
            opened(broker, topic).resume(token)


def test_no_more_comes_than_may_be_under_way_until_it_is_acknowledged(
    broker: Mosquitto, topic: str
) -> None:
    source = opened(broker, f"{topic}?{COLUMNS}&receive=50")
    with Peer(broker.port) as publisher, reading(source) as flow:
        publisher.publish(numbered(topic, range(500)))
        flow.until(50)
        flow.silence()
        assert len(flow.rows) == 50
        flow.until(500, acknowledge=True)
    assert flow.numbers == list(range(500))


def test_memory_is_bounded_while_nobody_reads(
    broker: Mosquitto, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "_ROOM", 100_000)
    source = opened(broker, f"{topic}?{COLUMNS}")
    with Peer(broker.port) as publisher, reading(source) as flow:
        # Nobody acknowledges these, so that nothing else would hold them back.
        payload = b'{"n": 1, "long": "' + b"x" * 10_000 + b'"}'
        assert source._session is not None
        waiting = source._session.subscription
        publisher.publish([(topic, payload)] * 3000, qos=0)
        publisher.publish([(topic, payload)] * 300)
        time.sleep(0.5)
        assert waiting._received - waiting._taken < 100_000 + 512 * 11_000
        assert len(waiting._inbox) < 600
        deadline = time.monotonic() + PATIENCE
        while flow.batches[-1].table.num_rows or len(flow.rows) < 300:
            flow.step()
            assert time.monotonic() < deadline
        assert waiting.is_full() is False
        publisher.publish(numbered(topic, [7]))
        until(lambda: bool(flow.step()) and flow.numbers[-1:] == [7], "gone on")


def test_two_runs_under_one_name_are_reported(
    broker: Mosquitto, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"{topic}?{COLUMNS}"
    with (
        reading(opened(broker, url)),
        reading(opened(broker, url)) as second,
    ):
        until(lambda: bool(second.step()) and "Give each run its own name" in caplog.text, "told")


@pytest.mark.parametrize(
    ("packets", "message"),
    [
        ([b"\xe0\x01\x8e"], r"taken over the session .* client="),
        ([b"", b"\x90\x04\x00\x01\x00\x87"], "refuses the subscription to a: Not authorized"),
    ],
)
def test_what_cannot_get_better_by_itself_stops_a_run(packets: list[bytes], message: str) -> None:
    """Mosquitto takes over without a word and refuses no subscription, other brokers do."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"\x20\x03\x00\x00\x00" + packets[0])
                for packet in packets[1:]:
                    connection.recv(1000)
                    connection.sendall(packet)
                connection.recv(1000)

        thread = threading.Thread(target=answer)
        thread.start()
        source = opened_at(server.getsockname()[1], f"a?{COLUMNS}")
        with closing(Reading(source)) as flow, pytest.raises(SourceError, match=message):
            flow.until(1)
        thread.join(300)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Mosquitto, Path]]:
    """A broker with TLS, passwords and rules about topics."""
    folder = tmp_path_factory.mktemp("guarded")
    (folder / "rules").write_text("user alice\ntopic readwrite open/#\n")
    settings = [
        *certificates(folder),
        *passwords(folder, {"alice": "swordfish"}),
        f"acl_file {folder}/rules",
    ]
    (folder / "secret").write_text("swordfish\n")
    with Mosquitto(folder, settings) as running:
        yield running, folder


def guarded_url(guarded: tuple[Mosquitto, Path], rest: str) -> str:
    broker, folder = guarded
    sign = "&" if "?" in rest else "?"
    return f"mqtts://alice@127.0.0.1:{broker.port}/{rest}{sign}ca={folder}/ca.pem&{COLUMNS}"


def read_one(url: str) -> None:
    source = open_source(url)
    assert isinstance(source, MqttSource)
    with closing(Reading(source)) as flow:
        until(lambda: bool(flow.step().table.num_rows), "received")


def test_tls_with_a_password_from_a_file(
    guarded: tuple[Mosquitto, Path], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    broker, folder = guarded
    source = open_source(guarded_url(guarded, f"open/+?password_file={folder}/secret"))
    assert isinstance(source, MqttSource)

    def publish(numbers: Sequence[int]) -> None:
        with Peer(broker.port, login=("alice", "swordfish"), ca=folder / "ca.pem") as publisher:
            publisher.publish(numbered("open/a", numbers))

    with reading(source) as flow:
        publish(range(3000))
        flow.until(3000, acknowledge=True)
        broker.stop()
        flow.silence()
        broker.start()
        publish([3000])
        flow.until(3001)
    assert flow.numbers == list(range(3001))
    assert "swordfish" not in caplog.text + repr(source) + source.name


def test_a_wrong_password_is_told_and_not_shown(
    guarded: tuple[Mosquitto, Path],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv(PASSWORD, "wrong-horse")
    with pytest.raises(SourceError, match="refuses the connection: Not authorized") as caught:
        read_one(guarded_url(guarded, "open/+"))
    assert "wrong-horse" not in f"{caught.value!r} {caught.value.__cause__!r} {caplog.text}"


def test_a_broker_that_cannot_be_trusted_is_not_spoken_to(
    guarded: tuple[Mosquitto, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PASSWORD, "swordfish")
    make_certificates(tmp_path)  # by another authority
    url = f"mqtts://alice@127.0.0.1:{guarded[0].port}/open/+?ca={tmp_path}/ca.pem&{COLUMNS}"
    with pytest.raises(SourceError, match="is not trusted"):
        read_one(url)


def test_a_client_may_show_a_certificate(tmp_path: Path) -> None:
    settings = [*certificates(tmp_path), "require_certificate true", "allow_anonymous true"]
    with Mosquitto(tmp_path, settings) as broker:
        url = f"mqtts://localhost:{broker.port}/a?{COLUMNS}&ca={tmp_path}/ca.pem"
        source = open_source(f"{url}&cert={tmp_path}/client.pem&key={tmp_path}/client.key")
        assert isinstance(source, MqttSource)
        with reading(source) as flow:
            flow.silence()
        with closing(Reading(open_source(url))) as flow:  # type: ignore[arg-type]
            flow.silence()
            assert flow.source._session is not None
            assert flow.source._session.subscription.resumed is None


def test_plain_values_come_with_their_topic_and_time_of_arrival(
    broker: Mosquitto, topic: str
) -> None:
    source = opened(broker, f"{topic}/{{home}}/+/state?payload=value&received=at")
    before = time.time()
    with (
        Peer(broker.port) as publisher,
        reading(source, ["home", "topic", "value", "at"]) as flow,
    ):
        publisher.publish([(f"{topic}/h1/door/state", b"ON"), (f"{topic}/h2/t/state", b"21.5")])
        flow.until(2)
    rows = flow.rows
    assert [(row["home"], row["value"]) for row in rows] == [("h1", "ON"), ("h2", "21.5")]
    assert rows[0]["topic"] == f"{topic}/h1/door/state"
    arrived = [datetime.fromisoformat(row["at"]).timestamp() for row in rows]
    assert before - 1 <= arrived[0] <= arrived[1] <= time.time() + 1
