"""Answers reach a real broker: every one, under its consumer's topic, at least once."""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import cbor2
import pytest
from paho.mqtt.client import MQTTMessage

from tacit.connectors.mqtt import sink as mqtt_sink
from tacit.connectors.mqtt.address import PASSWORD
from tacit.connectors.openers import open_resumable_sink
from tacit.errors import SinkError, UnreachableError
from tacit.pipeline.sinks import Sink
from tests.connectors.checks import CONSUMERS, Receiver, SinkChecks, answers, batch
from tests.connectors.mqtt_clients import Peer, certificates, passwords, until
from tests.services import Mosquitto


class Subscriber(Receiver):
    """A session that keeps all answers, behind TLS and a password."""

    exactly_once = False
    secrets = ("swordfish",)

    def __init__(self, broker: Mosquitto, folder: Path) -> None:
        self._broker = broker
        self._ca = folder / "ca.pem"
        self._url = (
            f"mqtts://engine@127.0.0.1:{broker.port}/answers/{{consumer}}/{{query}}?ca={self._ca}"
        )
        self._rows: list[tuple[int, dict[str, Any]]] = []
        self._listen()

    def open(self) -> Sink:
        """The sink to this broker."""
        return open_resumable_sink(self._url)

    def received(self) -> list[dict[str, Any]]:
        """Release by release; a message holds the answers of a query."""
        self._listen()
        self._rows.sort(key=lambda row: (row[0], row[1]["id"]))
        return [row for _, row in self._rows]

    @contextmanager
    def away(self) -> Iterator[None]:
        """The broker is stopped for a while."""
        self._broker.stop()
        yield
        self._broker.start()

    def _listen(self) -> None:
        """Take what the broker kept for the session."""
        login = ("city", "fish")
        with Peer(
            self._broker.port, "consumer", topics="answers/#", login=login, ca=self._ca
        ) as peer:
            seen = -1
            while len(peer.messages) > seen:
                seen = len(peer.messages)
                time.sleep(0.3)
            for message in peer.messages:
                release = int(dict(properties(message)["UserProperty"])["release"])
                self._rows += [(release, row) for row in json.loads(message.payload)]


def properties(message: MQTTMessage) -> dict[str, Any]:
    found: dict[str, Any] = message.properties.json()  # type: ignore[union-attr]
    return found


USERS = {"engine": "swordfish", "city": "fish", "clinic": "cat"}


@pytest.fixture
def receiver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Subscriber]:
    monkeypatch.setenv(PASSWORD, "swordfish")
    settings = [*certificates(tmp_path), *passwords(tmp_path, USERS)]
    with Mosquitto(tmp_path, settings) as broker:
        yield Subscriber(broker, tmp_path)


class TestMqttSink(SinkChecks):
    """What every sink must do."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mosquitto]:
    with Mosquitto(tmp_path_factory.mktemp("mosquitto")) as running:
        yield running


def messages(broker: Mosquitto, rest: str, topics: str, count: int) -> list[MQTTMessage]:
    """What a subscriber sees of a batch."""
    with (
        Peer(broker.port, topics=topics) as peer,
        open_resumable_sink(f"mqtt://127.0.0.1:{broker.port}/{rest}") as sink,
    ):
        sink.deliver(batch(7))
        until(lambda: len(peer.messages) >= count, "received")
        time.sleep(0.2)
    return peer.messages


def test_a_consumer_has_a_topic_for_each_query(broker: Mosquitto) -> None:
    found = messages(broker, "", "tacit/answers/city/+", 2)
    assert [message.topic for message in found] == [
        "tacit/answers/city/jam",
        "tacit/answers/city/rush",
    ]
    wanted = [row for row in answers(batch(7)) if row["query"] == "jam"]
    assert json.loads(found[0].payload) == wanted
    assert found[0].qos == 1
    assert properties(found[0])["ContentType"] == "application/json"
    assert properties(found[0])["PayloadFormatIndicator"] == 1
    assert properties(found[0])["UserProperty"] == [("release", "7")]


def test_answers_may_come_one_by_one_in_cbor_by_subject(broker: Mosquitto) -> None:
    rest = "one/{subject}/{consumer}/{query}?per=answer&payload=cbor"
    found = messages(broker, rest, "one/#", 12)
    rows = [cbor2.loads(message.payload) for message in found]
    table = batch(7).table.to_pylist()
    assert sorted(rows, key=lambda row: row["id"]) == table
    assert rows[0]["window_start"] == datetime(2008, 2, 2, 13, 37, tzinfo=UTC)
    topics = {row["id"]: message.topic for row, message in zip(rows, found, strict=True)}
    assert topics[table[0]["id"]] == "one/plain/city/jam"
    assert topics[table[2]["id"]] == "one/new%0Aline/clinic/visit"
    assert properties(found[0])["ContentType"] == "application/cbor"


@pytest.mark.parametrize("payload", ["json", "cbor"])
@pytest.mark.parametrize("retain", ["true", "false"])
def test_the_last_answers_are_retained_on_request(
    broker: Mosquitto, retain: str, payload: str
) -> None:
    where = f"kept-{retain}-{payload}"
    messages(broker, f"{where}/{{consumer}}/{{query}}?retain={retain}&payload={payload}", "x", 0)
    with Peer(broker.port, topics=f"{where}/#") as late:
        time.sleep(0.3)
    assert len(late.messages) == (3 if retain == "true" else 0)


def test_messages_are_no_larger_than_the_broker_takes(tmp_path: Path) -> None:
    settings = ["allow_anonymous true", "max_packet_size 20000"]
    with (
        Mosquitto(tmp_path, settings) as broker,
        Peer(broker.port, topics="tacit/#") as peer,
        open_resumable_sink(f"mqtt://127.0.0.1:{broker.port}") as sink,
    ):
        sink.deliver(batch(1, 3000))
        rows = [row for message in peer.messages for row in json.loads(message.payload)]
        until(
            lambda: sum(len(json.loads(message.payload)) for message in peer.messages) == 3000,
            "received",
        )
        rows = [row for message in peer.messages for row in json.loads(message.payload)]
    assert sorted(row["id"] for row in rows) == [row["id"] for row in answers(batch(1, 3000))]
    assert max(len(message.payload) for message in peer.messages) <= 20_000


def test_no_more_is_under_way_than_the_broker_takes(tmp_path: Path) -> None:
    settings = ["allow_anonymous true", "max_inflight_messages 5"]
    with (
        Mosquitto(tmp_path, settings) as broker,
        Peer(broker.port, topics="tacit/#") as peer,
        open_resumable_sink(f"mqtt://127.0.0.1:{broker.port}?per=answer") as sink,
    ):
        sink.deliver(batch(1, 500))
        until(lambda: len(peer.messages) == 500, "received")


def test_a_consumer_sees_its_own_answers_alone_by_the_brokers_rules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PASSWORD, "swordfish")
    (tmp_path / "rules").write_text(
        "user engine\ntopic write tacit/answers/#\n\npattern read tacit/answers/%u/#\n"
    )
    settings = [*passwords(tmp_path, USERS), f"acl_file {tmp_path}/rules"]
    with (
        Mosquitto(tmp_path, settings) as broker,
        Peer(broker.port, topics="#", login=("city", "fish")) as city,
        Peer(broker.port, topics="tacit/answers/#", login=("clinic", "cat")) as clinic,
        open_resumable_sink(f"mqtt://engine@127.0.0.1:{broker.port}") as sink,
    ):
        sink.deliver(batch(1))
        until(lambda: len(city.messages) == 2 and len(clinic.messages) == 1, "received")
        with (
            open_resumable_sink(
                f"mqtt://engine@127.0.0.1:{broker.port}/shut/{{consumer}}"
            ) as other,
            pytest.raises(SinkError, match="refused an answer: Not authorized"),
        ):
            other.deliver(batch(2))
        time.sleep(0.3)
    queries = {json.loads(message.payload)[0]["query"] for message in city.messages}
    assert {CONSUMERS[query] for query in queries} == {"city"}
    assert len(clinic.messages) == 1


def test_a_refused_sink_says_so_without_its_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv(PASSWORD, "wrong-horse")
    with (
        Mosquitto(tmp_path, passwords(tmp_path, USERS)) as broker,
        open_resumable_sink(f"mqtt://engine@127.0.0.1:{broker.port}") as sink,
        pytest.raises(SinkError, match="refuses the connection") as caught,
    ):
        sink.deliver(batch(1))
    assert not isinstance(caught.value, UnreachableError)
    assert "wrong-horse" not in f"{caught.value!r} {caplog.text} {sink!r} {vars(sink)}"


def test_a_broker_that_acknowledges_nothing_is_tried_again_on_another_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mqtt_sink, "_TIMEOUT", 0.5)
    accepted = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            for _ in range(2):
                connection, _ = server.accept()
                accepted.append(connection)
                connection.recv(1000)
                connection.sendall(b"\x20\x03\x00\x00\x00")

        thread = threading.Thread(target=accept)
        thread.start()
        with open_resumable_sink(f"mqtt://127.0.0.1:{server.getsockname()[1]}") as sink:
            with pytest.raises(UnreachableError, match="does not acknowledge"):
                sink.deliver(batch(1))
            until(lambda: len(accepted) == 2, "connected again")
        thread.join(300)
        for connection in accepted:
            connection.close()
