"""Publish answers to an MQTT broker: a topic per consumer and query, at least once."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any, Final

from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tacit.connectors.mqtt.address import MqttAddress, MqttSinkOptions
from tacit.connectors.mqtt.answer_messages import AnswerMessage, make_messages
from tacit.connectors.mqtt.connection import Connection, Receiver
from tacit.errors import SinkError, UnreachableError
from tacit.pipeline.sinks import ReleaseBatch, Sink

_TIMEOUT: Final = 30.0
"""Seconds that a broker may take to acknowledge a message, or to accept a connection."""
_MOST_IN_FLIGHT: Final = 1000
"""The most messages that wait for an acknowledgement."""
_LARGEST: Final = (1 << 28) - 1
"""Bytes of the largest message in MQTT."""
_CONTENT: Final = {"json": "application/json", "cbor": "application/cbor"}


class MqttSink(Sink):
    """Publishes answers with quality of service 1.

    A batch is delivered when the broker has acknowledged all of its messages. A failed batch is
    published again as a whole, with the same ids.
    """

    def __init__(self, address: MqttAddress, options: MqttSinkOptions) -> None:
        self.name = f"{address.place}/{options.topic}"
        self._options = options
        self._in_flight = _InFlight()
        properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        self._link = Connection(address, self._in_flight, properties, clean=True)
        self._link.start()

    def deliver(self, batch: ReleaseBatch) -> None:
        """Publish the answers and wait until the broker has them all."""
        connection = self._await_connection()
        properties = self._properties(batch.release)
        for message in make_messages(batch, self._options, connection.largest):
            self._publish(connection, message, properties)
        self._await(connection, 0)

    def close(self) -> None:
        """Disconnect."""
        self._link.close()

    def _await_connection(self) -> _SinkConnection:
        """Wait for a connection; raise if the next attempt to connect fails."""
        failures = self._link.failures
        deadline = time.monotonic() + _TIMEOUT
        with self._in_flight.changed:
            while (
                connection := self._in_flight.connection
            ) is None or self._link.client is not connection.client:
                self._check()
                if self._link.failures > failures or time.monotonic() > deadline:
                    raise UnreachableError(f"{self.name} does not answer; retrying")
                self._in_flight.changed.wait(1.0)
        return connection

    def _publish(
        self, connection: _SinkConnection, message: AnswerMessage, properties: Properties
    ) -> None:
        if len(message.payload) > connection.largest:
            raise SinkError(
                f"{self.name}: an answer exceeds the broker's size limit; raise the limit"
            )
        self._await(connection, connection.window - 1)
        with self._in_flight.changed:
            connection.waiting += 1
        connection.client.publish(
            message.topic, message.payload, 1, retain=self._options.retain, properties=properties
        )

    def _await(self, connection: _SinkConnection, most: int) -> None:
        """Wait until at most `most` messages are not acknowledged."""
        deadline = time.monotonic() + _TIMEOUT
        with self._in_flight.changed:
            before = connection.waiting
            while connection.waiting > most:
                self._check()
                if self._link.client is not connection.client:
                    raise UnreachableError(f"{self.name} closed the connection; retrying")
                self._in_flight.changed.wait(1.0)
                if connection.waiting < before:
                    before, deadline = connection.waiting, time.monotonic() + _TIMEOUT
                if time.monotonic() > deadline:
                    self._link.drop(connection.client)
                    raise UnreachableError(f"{self.name} does not acknowledge messages; retrying")
            self._check()

    def _check(self) -> None:
        refusal = self._link.find_refusal() or self._in_flight.find_refusal()
        if refusal is not None:
            raise SinkError(f"{self.name}: {refusal}")

    def _properties(self, release: int) -> Properties:
        properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
        properties.ContentType = _CONTENT[self._options.payload]
        properties.UserProperty = [("release", str(release))]
        if self._options.payload == "json":
            properties.PayloadFormatIndicator = 1
        return properties


@dataclass(slots=True)
class _SinkConnection:
    """A connection, the broker's limits, and the number of unacknowledged messages."""

    client: Client
    window: int
    largest: int
    waiting: int = 0


class _InFlight(Receiver):
    """Tracks the current connection and its unacknowledged messages."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.connection: _SinkConnection | None = None
        self._refusal: str | None = None

    def on_connect(self, client: Client, _: bool, properties: Properties | None) -> None:
        """Store the broker's limits."""
        allowed: Any = properties
        window = min(getattr(allowed, "ReceiveMaximum", 65_535), _MOST_IN_FLIGHT)
        largest = min(getattr(allowed, "MaximumPacketSize", _LARGEST), _LARGEST)
        self.connection = connection = _SinkConnection(client, window, largest)
        client.on_publish = lambda _, __, ___, reason, ____: self._published(connection, reason)
        self.on_idle()

    def on_message(self, message: MQTTMessage) -> None:
        """Do nothing: a sink does not subscribe."""

    def on_idle(self) -> None:
        """Wake the threads that wait."""
        with self.changed:
            self.changed.notify_all()

    def take_packets(self) -> bytes:
        """Return nothing: the library writes all packets."""
        return b""

    def is_full(self) -> bool:
        """Return False: acknowledgements can always be read."""
        return False

    def find_refusal(self) -> str | None:
        """Return why the broker refused an answer, or None."""
        return self._refusal

    def _published(self, connection: _SinkConnection, reason: Any) -> None:
        with self.changed:
            connection.waiting -= 1
            if reason.is_failure:
                self._refusal = f"the broker refused an answer: {reason}"
