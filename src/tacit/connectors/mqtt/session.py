"""A subscription that outlives its connections, and the messages that wait to be read."""

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
"""The most messages that are taken at once."""
_GATHER: Final = 0.05
"""Seconds in which messages are gathered after the first."""
_SILENCE: Final = 0.2
"""Seconds after which nothing is what came."""
_ROOM: Final = 1 << 24
"""Bytes that may wait to be taken; then the broker has to wait."""
_OVERHEAD: Final = 256
"""Bytes that a message takes beside its payload, about."""


class Session(Receiver):
    """Messages go in by the thread of the connection and out by that of the reader."""

    def __init__(self, address: MqttAddress, inward: MqttSourceOptions) -> None:
        self._inward = inward
        self._held = UnacknowledgedMessages()
        self._inbox: deque[Message] = deque()
        self._arrived = threading.Event()
        self._came = 0
        self._taken = 0
        self._settled = 0
        self._sessions = 0
        self.resumed: bool | None = None
        """Whether the broker knew the session when the connection was last made."""
        self.listening = 0.0
        """When the subscription was last confirmed, by the monotonic clock."""
        properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        properties.SessionExpiryInterval = inward.session
        properties.ReceiveMaximum = inward.receive
        properties.MaximumPacketSize = inward.largest
        self._link = Connection(address, self, properties, clean=False)
        self._link.start()

    def gather(self) -> list[Message]:
        """What came, in order; in silence, nothing after a while."""
        if not self._inbox:
            self._arrived.clear()
            if not self._inbox:
                self._arrived.wait(_SILENCE)
        if 0 < len(self._inbox) < MOST:
            time.sleep(_GATHER)
        messages = [self._inbox.popleft() for _ in range(min(len(self._inbox), MOST))]
        if not messages:
            self._check()
            return messages
        waiting = self.full()
        self._taken += sum([len(message.payload) for message in messages])
        self._taken += _OVERHEAD * len(messages)
        if waiting:
            self._link.wake()
        return messages

    def settle(self, count: int) -> None:
        """Messages up to this one are safe."""
        self._settled = max(self._settled, count)
        self._link.wake()

    def close(self) -> None:
        """Disconnect; the broker keeps the session."""
        self._link.close()

    def connected(self, client: Client, resumed: bool, _: Properties | None) -> None:
        """Subscribe, in a resumed session too: the filter may be a new one."""
        if self._sessions and not resumed:
            log.warning(
                "%s no longer knew the session: what it had kept for it is lost",
                self._link.address.place,
            )
        self._sessions += 1
        self.resumed = resumed
        self._held.connected(resumed=resumed)
        client.on_subscribe = self._subscribed
        options = SubscribeOptions(
            qos=self._inward.qos,
            retainHandling=SubscribeOptions.RETAIN_SEND_IF_NEW_SUB,
        )
        client.subscribe(self._inward.topics, options=options)

    def received(self, message: MQTTMessage) -> None:
        """Keep a message, unless it is a repetition of one that was kept before."""
        payload = bytes(message.payload)
        try:
            topic = message.topic
        except UnicodeDecodeError:  # no broker should let it through
            topic = "\ufffd"
        number = message.mid if message.qos else 0
        mark = zlib.crc32(payload, zlib.crc32(topic.encode()))
        count = self._held.arrived(number, mark, again=message.dup)
        if count:
            identity = number << 32 | mark if number else 0
            self._inbox.append(Message(count, identity, message.dup, topic, payload))
            self._came += len(payload) + _OVERHEAD

    def rested(self) -> None:
        """Tell the reader."""
        self._arrived.set()

    def outgoing(self) -> bytes:
        """Acknowledgements of what is safe by now."""
        self._held.settle(self._settled)
        return self._held.acknowledgements()

    def full(self) -> bool:
        """Whether messages wait in such numbers that no more should come."""
        return self._came - self._taken > _ROOM

    def _subscribed(self, _client: Client, _: Any, __: int, reasons: Any, ___: Any) -> None:
        self.listening = time.monotonic()
        for reason in reasons:
            if reason.is_failure:
                self._link.refuse(f"it refuses the subscription to {self._inward.topics}: {reason}")
            elif reason.value < self._inward.qos:
                log.warning(
                    "%s gives quality of service %d only: what is under way in a crash is lost",
                    self._link.address.place,
                    reason.value,
                )

    def _check(self) -> None:
        refusal = self._link.refused()
        if refusal is not None:
            raise SourceError(f"{self._link.address.place}: {refusal}")
