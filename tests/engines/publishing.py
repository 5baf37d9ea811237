"""A publisher that knows what its broker has acknowledged."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable

import polars as pl
from paho.mqtt.client import Client, MQTTMessageInfo
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties


class Publisher(threading.Thread):
    """Publishes tuples as JSON, each under its subject, as fast as it is told."""

    def __init__(self, port: int, frames: Iterable[pl.DataFrame], pause: float) -> None:
        super().__init__(daemon=True)
        self._frames = list(frames)
        self._pause = pause
        self._port = port
        self._told: list[MQTTMessageInfo] = []
        self.error: BaseException | None = None

    def run(self) -> None:
        """Publish everything, and wait until all of it is acknowledged."""
        try:
            self._publish()
        except BaseException as error:
            self.error = error

    def _publish(self) -> None:
        client = Client(
            CallbackAPIVersion.VERSION2, "publisher", protocol=MQTTProtocolVersion.MQTTv5
        )
        client.max_inflight_messages_set(1000)
        client.max_queued_messages_set(0)
        client.connect("127.0.0.1", self._port)
        client.loop_start()
        for frame in self._frames:
            for row in frame.iter_rows(named=True):
                self._told.append(client.publish(f"home/{row['who']}", json.dumps(row), qos=1))
            time.sleep(self._pause)
        deadline = time.monotonic() + 60
        while not all(info._published for info in self._told):  # it waits while it is cut off
            assert time.monotonic() < deadline
            time.sleep(0.05)
        client.disconnect()
        client.loop_stop()

    def finish(self) -> None:
        """Wait until it is done."""
        self.join(120)
        if self.error is not None:
            raise self.error
        assert not self.is_alive()


def open_session(port: int, name: str, topics: str) -> None:
    """Have the broker keep what is published from now on for a client that will come."""
    ready = threading.Event()
    client = Client(CallbackAPIVersion.VERSION2, name, protocol=MQTTProtocolVersion.MQTTv5)
    client.on_subscribe = lambda *_: ready.set()
    properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
    properties.SessionExpiryInterval = 3600
    client.connect("127.0.0.1", port, clean_start=False, properties=properties)
    client.loop_start()
    client.subscribe(topics, qos=1)
    assert ready.wait(10)
    client.disconnect()
    client.loop_stop()
