"""Measure how long after the end of a window its answers are with the consumer.

A `tacit run` with a ledger reads tuples from a growing file, a real Mosquitto or a real Kafka
server, and writes its answers to the same kind of place. Tuples carry the time at which they are
sent, a few every 50 ms. Windows have one second and close by event time, so the next tuples close
them: that is part of the latency. It ends when the last answer of the window has been read. Windows
that ended before the run was up do not count.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.jobs import Setting, UnequalError
from benchmarks.report import Finding, Skipped

_SUBJECTS = 200
_TICK, _TUPLES = 0.05, 20
"""Seconds between two sends, and tuples in each."""
_WARM = 3
"""Windows count that end so many seconds after the first answer came, or later."""
_TIMEOUT = 300.0
_LOGIN = "tacit", "secret"
_SPEC = """
version: 1
streams: {s: {subject: who, time: at, columns: {who: text, at: time, kind: text}}}
subjects: {file: subjects.txt}
windows: {size: 1 s}
events:
  a: {stream: s, where: "kind = 'a'"}
  b: {stream: s, where: "kind = 'b'"}
patterns: {visit: "SEQ(a, b)"}
private:
  - {pattern: visit, epsilon: 2}
queries:
  - {name: both, consumer: city, pattern: "AND(a, b)"}
mechanism: uniform
"""


class Ends(ABC):
    """Both ends of a run: where tuples come from, and where answers go."""

    options: Sequence[str] = ()
    source: str
    sink: str

    def __init__(self) -> None:
        self.received: list[tuple[float, bytes]] = []
        """JSON that came, one answer or an array of them, and when."""

    def take(self) -> list[tuple[float, bytes]]:
        """Return what came since the last call; another thread may add to it."""
        number = len(self.received)
        taken = self.received[:number]
        del self.received[:number]
        return taken

    @abstractmethod
    def send(self, rows: list[dict[str, str]]) -> None:
        """Send tuples."""

    @abstractmethod
    def receive(self) -> None:
        """Wait a moment for answers."""

    @abstractmethod
    def close(self) -> None:
        """End both."""


class FileEnds(Ends):
    """A CSV file that grows, and a file of JSON lines."""

    options = ("--follow",)

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.source, self.sink = "tuples.csv", "answers.jsonl"
        self._tuples = (folder / self.source).open("w", buffering=1)
        self._tuples.write("who,at,kind\n")
        self._answers = folder / self.sink
        self._place = 0
        self._rest = b""

    def send(self, rows: list[dict[str, str]]) -> None:
        """Append lines."""
        self._tuples.write("".join(f"{','.join(row.values())}\n" for row in rows))
        self._tuples.flush()

    def receive(self) -> None:
        """Read what was appended."""
        time.sleep(0.005)
        if self._answers.exists() and self._answers.stat().st_size > self._place:
            with self._answers.open("rb") as file:
                file.seek(self._place)
                found = file.read()
            moment = time.time()
            self._place += len(found)
            *lines, self._rest = (self._rest + found).split(b"\n")
            self.received += [(moment, line) for line in lines]

    def close(self) -> None:
        """Close the file of tuples."""
        self._tuples.close()


class MqttEnds(Ends):
    """Topics of a broker."""

    def __init__(self, port: int) -> None:
        from paho.mqtt.client import Client, MQTTv5
        from paho.mqtt.enums import CallbackAPIVersion

        super().__init__()
        self.source = f"mqtt://127.0.0.1:{port}/taxis"
        self.sink = f"mqtt://127.0.0.1:{port}/answers/{{consumer}}/{{query}}"
        self._client = Client(CallbackAPIVersion.VERSION2, protocol=MQTTv5)
        self._client.on_message = lambda _client, _data, message: self.received.append(
            (time.time(), bytes(message.payload))
        )
        self._client.connect("127.0.0.1", port)
        self._client.subscribe("answers/#", 1)
        self._client.loop_start()

    def send(self, rows: list[dict[str, str]]) -> None:
        """Publish a message for each tuple."""
        for row in rows:
            self._client.publish("taxis", json.dumps(row), qos=1)

    def receive(self) -> None:
        """Leave it to the client's thread."""
        time.sleep(0.05)

    def close(self) -> None:
        """Disconnect."""
        self._client.disconnect()
        self._client.loop_stop()


class KafkaEnds(Ends):
    """Topics of a Kafka server."""

    def __init__(self, servers: str, folder: Path) -> None:
        from confluent_kafka import Consumer, Producer
        from confluent_kafka.admin import AdminClient
        from confluent_kafka.cimpl import NewTopic

        super().__init__()
        user, password = _LOGIN
        settings = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": user,
            "sasl.password": password,
        }
        lines = "".join(f"{name}={value}\n" for name, value in settings.items())
        (folder / "kafka.properties").write_text(lines)
        common: dict[str, Any] = settings | {"bootstrap.servers": servers}
        admin = AdminClient(common)
        made = admin.create_topics([NewTopic(name, 1, 1) for name in ("taxis", "answers-city")])
        for topic in made.values():
            topic.result(_TIMEOUT)
        self.source = f"kafka://{servers}/taxis?group=tacit&config=kafka.properties"
        self.sink = f"kafka://{servers}/answers-{{consumer}}?config=kafka.properties"
        self._producer = Producer(common | {"linger.ms": 0})
        reading = {"group.id": "reader", "auto.offset.reset": "earliest"}
        self._consumer = Consumer(common | reading)
        self._consumer.subscribe(["answers-city"])

    def send(self, rows: list[dict[str, str]]) -> None:
        """Produce a message for each tuple."""
        for row in rows:
            self._producer.produce("taxis", json.dumps(row).encode(), key=row["who"])
        self._producer.poll(0)

    def receive(self) -> None:
        """Consume what is there."""
        found = self._consumer.consume(1000, 0.01)
        moment = time.time()
        for message in found:
            value = message.value()
            if message.error() is None and value is not None:
                self.received.append((moment, bytes(value)))

    def close(self) -> None:
        """Disconnect."""
        self._producer.flush(1)
        self._consumer.close()


def latency(setting: Setting) -> Iterator[Finding | Skipped]:
    """Measure files, MQTT and Kafka."""
    windows = 5 if setting.scale.events < 10_000_000 else 30
    for name in ("files", "MQTT", "Kafka"):
        before = os.getloadavg()[0]
        with tempfile.TemporaryDirectory(dir=setting.folder) as text, ExitStack() as stack:
            folder = Path(text)
            try:
                ends = _open_ends(name, folder, stack)
            except skip_reason() as reason:
                yield Skipped(f"latency, {name}", str(reason))
                continue
            with closing(ends):
                seconds = _measure(ends, folder, windows)
        half, most, last = np.percentile(seconds, [50, 99, 100])
        yield Finding(
            f"latency, {name}",
            "from the end of a window to its last answer, 99th percentile",
            float(most),
            unit="s",
            note=f"median {half:.3f} s, last {last:.3f} s of {len(seconds)} windows of 1 s,"
            f" {_SUBJECTS} answers each; tuples every {_TICK:g} s; load average {before:.1f}",
        )


def skip_reason() -> type[BaseException]:
    """Return what is raised where a server is not installed."""
    import pytest

    return pytest.skip.Exception


def _open_ends(name: str, folder: Path, stack: ExitStack) -> Ends:
    from tests.services import Kafka, Mosquitto

    if name == "files":
        return FileEnds(folder)
    if name == "MQTT":
        return MqttEnds(stack.enter_context(Mosquitto(folder)).port)
    server = Kafka(folder, *_LOGIN)
    stack.callback(server.stop)
    server.start()
    return KafkaEnds(server.servers, folder)


def _measure(ends: Ends, folder: Path, windows: int) -> list[float]:
    """Run, and return how late the last answer of each window was."""
    names = [f"taxi {number}" for number in range(_SUBJECTS)]
    (folder / "subjects.txt").write_text("".join(f"{name}\n" for name in names))
    (folder / "spec.yaml").write_text(_SPEC)
    stop = threading.Event()

    def send() -> None:
        random = np.random.default_rng(1)
        while not stop.wait(_TICK):
            moment = datetime.now().astimezone().isoformat()
            ends.send(
                [
                    {"who": names[number], "at": moment, "kind": "ab"[number % 2]}
                    for number in random.integers(0, _SUBJECTS, _TUPLES)
                ]
            )

    sender = threading.Thread(target=send)
    with _running(ends, folder) as process:
        sender.start()
        try:
            deadline = time.monotonic() + _TIMEOUT
            late: dict[float, tuple[int, float]] = {}
            first: float | None = None
            chosen: list[float] = []
            while len(chosen) <= windows:  # the last one may be incomplete
                ends.receive()
                _count(ends.take(), late)
                first = time.time() if late and first is None else first
                chosen = [end for end in sorted(late) if first and end > first + _WARM]
                if process.poll() is not None or time.monotonic() > deadline:
                    log = (folder / "log.txt").read_text()
                    raise RuntimeError(f"the run ended, or answered too little: {log}")
        finally:
            stop.set()
            sender.join()
    chosen = chosen[:windows]
    if any(late[window][0] != _SUBJECTS for window in chosen):
        raise UnequalError(f"windows have {[late[window][0] for window in chosen]} answers")
    return [late[window][1] for window in chosen]


def _count(received: list[tuple[float, bytes]], late: dict[float, tuple[int, float]]) -> None:
    """Count the answers of each window, and how late the last one was."""
    for moment, text in received:
        found = json.loads(text)
        for row in found if isinstance(found, list) else [found]:
            end = datetime.fromisoformat(row["window_end"]).timestamp()
            count, most = late.get(end, (0, 0.0))
            late[end] = count + 1, max(most, moment - end)


@contextmanager
def _running(ends: Ends, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run `tacit run` until the end."""
    arguments = ["run", "spec.yaml", ends.source, "--ledger", "ledger.db", "--to", ends.sink]
    program = "from tacit.cli.main import main; main()"
    command = [sys.executable, "-c", program, *arguments, *ends.options]
    with (folder / "log.txt").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(_TIMEOUT)
