"""Compare our MQTT source, which parses and acknowledges, with a bare client.

Both receive the same messages from the same Mosquitto, one after the other: each round empties a
session that the broker has filled before. The rival only counts, and acknowledges with the client
library.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import socket
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.jobs import Setting, UnequalError
from benchmarks.measuring import race
from benchmarks.report import OURS, Finding, Skipped, against
from tacit.connectors.files import open_source

_JOB = "MQTT in, parsed and acknowledged"
_RIVAL = "paho-mqtt, only counting"
_TARGET = 0.8
_SHARE = 400
_TIMEOUT = 600.0
_COLUMNS = "n:integer,ts:time,speed:number,lon:number,lat:number,hired:boolean"


def mqtt(setting: Setting) -> Iterator[Finding | Skipped]:
    """Measure our source against the client library alone."""
    places = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
    program = shutil.which("mosquitto", path=places)
    if program is None:
        yield Skipped(_JOB, "mosquitto is not installed")
        return
    count = max(5_000, setting.scale.events // _SHARE)
    with tempfile.TemporaryDirectory() as folder, _broker(program, Path(folder)) as port:
        names = [f"session-{number}" for number in range(2 * (setting.rounds + 1))]
        for name in names:
            _receive_plainly(port, name, 0)
        _publish(port, count)
        sessions = iter(names)
        contestants: dict[str, Callable[[], int]] = {
            OURS: lambda: _receive(port, next(sessions), count),
            _RIVAL: lambda: _receive_plainly(port, next(sessions), count),
        }
        outcomes = race(contestants, setting.rounds, lambda name, seen: _checked(name, seen, count))
    seconds = {name: outcome.spent for name, outcome in outcomes.items()}
    rate = count / seconds[OURS].elapsed
    yield against(_JOB, seconds, _TARGET, note=f"{rate:,.0f} messages a second; all of them came")


def _checked(name: str, found: int, count: int) -> int:
    if found != count:
        raise UnequalError(f"{name} received {found} messages of {count}")
    return found


def _receive(port: int, name: str, count: int) -> int:
    """Read rows as a run does; those of the last batch are acknowledged on close."""
    url = f"mqtt://127.0.0.1:{port}/taxis/#?client={name}&subject=topic:2&columns={_COLUMNS}"
    source = open_source(url)
    columns = ["subject", "n", "ts", "speed", "lon", "lat", "hired"]
    seen: int = 0
    with closing(source.batches(columns, ["subject"])) as flow:  # type: ignore[type-var]
        for batch in flow:
            seen += int(batch.table.num_rows)
            if batch.receipt is not None:
                source.acknowledge(batch.receipt)
            if seen >= count:
                return seen
    raise AssertionError("a live source has no end")


def _receive_plainly(port: int, name: str, count: int) -> int:
    """Use the client library with a callback that counts; a count of 0 only subscribes."""
    from paho.mqtt.client import Client, MQTTv5
    from paho.mqtt.enums import CallbackAPIVersion
    from paho.mqtt.packettypes import PacketTypes
    from paho.mqtt.properties import Properties

    client = Client(CallbackAPIVersion.VERSION2, client_id=name, protocol=MQTTv5)
    seen, done = itertools.count(1), threading.Event()

    def on_message(*_: Any) -> None:
        if next(seen) == count:
            done.set()

    client.on_message = on_message
    if not count:
        client.on_connect = lambda *_: client.subscribe("taxis/#", 1) and None
        client.on_subscribe = lambda *_: done.set()
    properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
    properties.SessionExpiryInterval = 3600
    properties.ReceiveMaximum = 65_535
    client.connect("127.0.0.1", port, clean_start=False, properties=properties)
    client.loop_start()
    if not done.wait(_TIMEOUT):
        raise TimeoutError(f"the broker did not send {count} messages")
    client.disconnect()
    client.loop_stop()
    return next(seen) - 1


def _publish(port: int, count: int) -> None:
    """Fill the sessions; packets are written in bulk, since publishing is not measured."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(b"\x10\x10\x00\x04MQTT\x05\x02\x00\x00\x00\x00\x03pub")
        connection.recv(1000)
        for start in range(0, count, 1000):
            numbers = range(start, min(start + 1000, count))
            connection.sendall(b"".join(_packet(number) for number in numbers))
            _await_acknowledgements(connection, numbers)


def _packet(number: int) -> bytes:
    topic = f"taxis/{number % 1000}/position".encode()
    row = {"n": number, "ts": 1_700_000_000_000 + number, "speed": number % 50 / 2}
    payload = json.dumps(row | {"lon": 116.3, "lat": 39.9, "hired": number % 2 == 0}).encode()
    body = struct.pack(f">H{len(topic)}sHB", len(topic), topic, number % 1000 + 1, 0) + payload
    more, low = divmod(len(body), 128)
    return b"\x32" + (bytes([low | 128, more]) if more else bytes([low])) + body


def _await_acknowledgements(connection: socket.socket, numbers: Sequence[int]) -> None:
    rest, found = b"", 0
    while found < len(numbers):
        rest += connection.recv(1 << 16)
        while len(rest) > 1 and len(rest) >= 2 + rest[1]:
            rest, found = rest[2 + rest[1] :], found + 1


@contextmanager
def _broker(program: str, folder: Path) -> Iterator[int]:
    """Start a Mosquitto without limits; yield its port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    settings = ["allow_anonymous true", "max_inflight_messages 0", "max_queued_messages 0"]
    (folder / "mosquitto.conf").write_text("\n".join([f"listener {port} 127.0.0.1", *settings, ""]))
    server = subprocess.Popen(
        [program, "-c", str(folder / "mosquitto.conf")],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 30
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
        yield port
    finally:
        server.terminate()
        server.wait()
