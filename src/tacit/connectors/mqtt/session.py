"""A subscription that survives reconnections, and the messages that wait to be read."""

from __future__ import annotations

import threading
import time
import zlib
from collections import deque
from typing import Any, Final

from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from tacit.connectors.mqtt.address import MqttAddress, MqttSourceOptions
from tacit.connectors.mqtt.connection import Connection, Receiver, log
from tacit.connectors.mqtt.messages import Message
from tacit.connectors.mqtt.unacknowledged import UnacknowledgedMessages
from tacit.errors import SourceError

MOST: Final = 4096
"""The most messages in a batch."""
_GATHER: Final = 0.05
"""Seconds to wait for more messages after the first."""
_TIMEOUT: Final = 0.2
"""Seconds to wait for the first message."""
_ROOM: Final = 1 << 24
"""The most bytes that may wait to be read; then reading from the broker pauses."""
_OVERHEAD: Final = 256
"""The approximate bytes of a message besides its payload."""


class Subscription(Receiver):
    """The messages that a connection's thread adds, and a reader takes."""

    def __init__(self, place: str, options: MqttSourceOptions) -> None:
        self._place = place
        self._options = options
        self._held = UnacknowledgedMessages()
        self._inbox: deque[Message] = deque()
        self._arrived = threading.Event()
        self._received = 0
        self._taken = 0
        self._settled = 0
        self._sessions = 0
        self._refusal: str | None = None
        self.resumed: bool | None = None
        """Whether the broker knew the session at the last connection."""
        self.listening = 0.0
        """The time of the last confirmed subscription, by the monotonic clock."""

    def take(self) -> list[Message]:
        """Return the new messages, in order; an empty list after a while without any."""
        if not self._inbox:
            self._arrived.clear()
            if not self._inbox:
                self._arrived.wait(_TIMEOUT)
        if 0 < len(self._inbox) < MOST:
            time.sleep(_GATHER)
        messages = [self._inbox.popleft() for _ in range(min(len(self._inbox), MOST))]
        self._taken += sum([len(message.payload) for message in messages])
        self._taken += _OVERHEAD * len(messages)
        return messages

    def settle(self, count: int) -> None:
        """Let messages up to this one be acknowledged: they are safe."""
        self._settled = max(self._settled, count)

    def on_connect(self, client: Client, resumed: bool, _: Properties | None) -> None:
        """Subscribe, also in a resumed session: the filter may be new."""
        if self._sessions and not resumed:
            log.warning(
                "%s no longer had the session: the messages that it kept for it are lost",
                self._place,
            )
        self._sessions += 1
        self.resumed = resumed
        self._held.on_connect(resumed=resumed)
        client.on_subscribe = self._on_subscribe
        options = SubscribeOptions(
            qos=self._options.qos,
            retainHandling=SubscribeOptions.RETAIN_SEND_IF_NEW_SUB,
        )
        client.subscribe(self._options.topics, options=options)

    def on_message(self, message: MQTTMessage) -> None:
        """Store a message, unless it repeats one that was stored before."""
        payload = bytes(message.payload)
        try:
            topic = message.topic
        except UnicodeDecodeError:  # no broker should accept it
            topic = "\ufffd"
        number = message.mid if message.qos else 0
        mark = zlib.crc32(payload, zlib.crc32(topic.encode()))
        count = self._held.add(number, mark, again=message.dup)
        if count:
            identity = number << 32 | mark if number else 0
            now = time.time()
            self._inbox.append(Message(count, identity, message.dup, topic, payload, now))
            self._received += len(payload) + _OVERHEAD

    def on_idle(self) -> None:
        """Wake the reader."""
        self._arrived.set()

    def take_packets(self) -> bytes:
        """Return the acknowledgements of messages that are safe."""
        self._held.settle(self._settled)
        return self._held.take_acknowledgements()

    def is_full(self) -> bool:
        """Return whether too many bytes wait."""
        return self._received - self._taken > _ROOM

    def find_refusal(self) -> str | None:
        """Return why the broker refused the subscription, or None."""
        return self._refusal

    def _on_subscribe(self, _client: Client, _: Any, __: int, reasons: Any, ___: Any) -> None:
        self.listening = time.monotonic()
        for reason in reasons:
            if reason.is_failure:
                self._refusal = f"it refuses the subscription to {self._options.topics}: {reason}"
            elif reason.value < self._options.qos:
                log.warning(
                    "%s grants only quality of service %d: messages in transit are lost in a crash",
                    self._place,
                    reason.value,
                )


class Session:
    """A subscription, and the connection that receives its messages."""

    def __init__(self, address: MqttAddress, options: MqttSourceOptions) -> None:
        self.subscription = Subscription(address.place, options)
        properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        properties.SessionExpiryInterval = options.session
        properties.ReceiveMaximum = options.receive
        properties.MaximumPacketSize = options.largest
        self._link = Connection(address, self.subscription, properties, clean=False)
        self._link.start()

    def gather(self) -> list[Message]:
        """Return the new messages, in order; an empty list after a while without any."""
        messages = self.subscription.take()
        if messages:
            self._link.wake()  # it may have stopped reading
        elif (refusal := self._link.find_refusal()) is not None:
            raise SourceError(f"{self._link.address.place}: {refusal}")
        return messages

    def settle(self, count: int) -> None:
        """Acknowledge messages up to this one: they are safe."""
        self.subscription.settle(count)
        self._link.wake()

    def close(self) -> None:
        """Disconnect; the broker keeps the session."""
        self._link.close()
