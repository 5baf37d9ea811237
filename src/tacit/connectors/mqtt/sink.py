"""Answers to an MQTT broker: a topic for each consumer and query, delivered at least once."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any, Final

from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tacit.connectors.mqtt.address import MqttAddress, MqttSinkOptions
from tacit.connectors.mqtt.answer_messages import AnswerMessage, letters
from tacit.connectors.mqtt.connection import Connection, Receiver
from tacit.errors import SinkError, UnreachableError
from tacit.pipeline.sinks import ReleaseBatch, Sink

_PATIENCE: Final = 30.0
"""Seconds that a broker may take to acknowledge something, or to take a connection."""
_UNDER_WAY: Final = 1000
"""The most messages that wait for an acknowledgement."""
_LARGEST: Final = (1 << 28) - 1
"""Bytes of the largest message that MQTT knows."""
_CONTENT: Final = {"json": "application/json", "cbor": "application/cbor"}


class MqttSink(Sink):
    """Publishes answers with quality of service 1.

    A batch is delivered when the broker has acknowledged all of its messages. One that failed
    is published as a whole again, with the same ids.
    """

    def __init__(self, address: MqttAddress, outward: MqttSinkOptions) -> None:
        self.name = f"{address.place}/{outward.topic}"
        self._outward = outward
        self._desk = _InFlight()
        properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        self._link = Connection(address, self._desk, properties, clean=True)
        self._link.start()

    def deliver(self, batch: ReleaseBatch) -> None:
        """Publish the answers and wait until the broker has them all."""
        wire = self._connected()
        properties = self._properties(batch.release)
        for letter in letters(batch, self._outward, wire.largest):
            self._publish(wire, letter, properties)
        self._await(wire, 0)

    def close(self) -> None:
        """Disconnect."""
        self._link.close()

    def _connected(self) -> _SinkConnection:
        """The connection that stands; fails with the first attempt to make one that does."""
        failures = self._link.failures
        deadline = time.monotonic() + _PATIENCE
        with self._desk.changed:
            while (wire := self._desk.wire) is None or self._link.client is not wire.client:
                self._check()
                if self._link.failures > failures or time.monotonic() > deadline:
                    raise UnreachableError(f"{self.name} does not answer; it is tried again")
                self._desk.changed.wait(1.0)
        return wire

    def _publish(
        self, wire: _SinkConnection, letter: AnswerMessage, properties: Properties
    ) -> None:
        if len(letter.payload) > wire.largest:
            raise SinkError(
                f"{self.name}: an answer is larger than the broker takes; raise its limit"
            )
        self._await(wire, wire.window - 1)
        with self._desk.changed:
            wire.waiting += 1
        wire.client.publish(
            letter.topic, letter.payload, 1, retain=self._outward.retain, properties=properties
        )

    def _await(self, wire: _SinkConnection, most: int) -> None:
        """Wait until at most so many messages are not acknowledged."""
        deadline = time.monotonic() + _PATIENCE
        with self._desk.changed:
            before = wire.waiting
            while wire.waiting > most:
                self._check()
                if self._link.client is not wire.client:
                    raise UnreachableError(f"{self.name} went away; it is tried again")
                self._desk.changed.wait(1.0)
                if wire.waiting < before:
                    before, deadline = wire.waiting, time.monotonic() + _PATIENCE
                if time.monotonic() > deadline:
                    self._link.drop(wire.client)
                    raise UnreachableError(f"{self.name} acknowledges nothing; it is tried again")
            self._check()

    def _check(self) -> None:
        refusal = self._link.refused() or self._desk.refusal
        if refusal is not None:
            raise SinkError(f"{self.name}: {refusal}")

    def _properties(self, release: int) -> Properties:
        properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
        properties.ContentType = _CONTENT[self._outward.payload]
        properties.UserProperty = [("release", str(release))]
        if self._outward.payload == "json":
            properties.PayloadFormatIndicator = 1
        return properties


@dataclass(slots=True)
class _SinkConnection:
    """A connection, what the broker allows on it, and what it has not acknowledged."""

    client: Client
    window: int
    largest: int
    waiting: int = 0


class _InFlight(Receiver):
    """Keeps account of the connection that stands."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.wire: _SinkConnection | None = None
        self.refusal: str | None = None

    def connected(self, client: Client, _: bool, properties: Properties | None) -> None:
        """Learn what the broker allows."""
        allowed: Any = properties
        window = min(getattr(allowed, "ReceiveMaximum", 65_535), _UNDER_WAY)
        largest = min(getattr(allowed, "MaximumPacketSize", _LARGEST), _LARGEST)
        self.wire = wire = _SinkConnection(client, window, largest)
        client.on_publish = lambda _, __, ___, reason, ____: self._published(wire, reason)
        self.rested()

    def received(self, message: MQTTMessage) -> None:
        """Nothing is subscribed to."""

    def rested(self) -> None:
        """Wake the threads that wait."""
        with self.changed:
            self.changed.notify_all()

    def outgoing(self) -> bytes:
        """The library writes all by itself."""
        return b""

    def full(self) -> bool:
        """Acknowledgements can always be read."""
        return False

    def _published(self, wire: _SinkConnection, reason: Any) -> None:
        with self.changed:
            wire.waiting -= 1
            if reason.is_failure:
                self.refusal = f"the broker does not take an answer: {reason}"
