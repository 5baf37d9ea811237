"""MQTT does what every source must do, behind TLS and a password."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tacit.connectors.files import open_source
from tacit.pipeline.sources import Source
from tests.connectors.checks import COLUMNS, TYPES, Feed, SourceChecks
from tests.connectors.mqtt_clients import Peer, certificates, passwords, until
from tests.services import Mosquitto


@dataclass
class Publishing(Feed):
    """A publisher to a topic that a session has been made for."""

    folder: Path
    port: int

    acknowledges = True
    secrets = ("swordfish",)

    def open(self) -> Source:
        """The subscription."""
        return open_source(
            f"mqtts://alice@127.0.0.1:{self.port}/feed/#"
            f"?ca={self.folder}/ca.pem&password_file={self.folder}/secret"
        )

    def send(self, rows: Sequence[dict[str, Any]], partition: int = 0) -> None:
        """Publish a message for each."""
        self._publish([json.dumps(row).encode() for row in rows], f"feed/{partition}")

    def send_raw(self, payload: bytes) -> None:
        """Publish it as it is."""
        self._publish([payload], "feed/0")

    def _publish(self, payloads: Sequence[bytes], topic: str) -> None:
        login = ("alice", "swordfish")
        with Peer(self.port, login=login, ca=self.folder / "ca.pem") as publisher:
            publisher.publish([(topic, payload) for payload in payloads])


@pytest.fixture
def feed(tmp_path: Path) -> Iterator[Publishing]:
    (tmp_path / "secret").write_text("swordfish\n")
    settings = [*certificates(tmp_path), *passwords(tmp_path, {"alice": "swordfish"})]
    with Mosquitto(tmp_path, settings) as broker:
        made = Publishing(tmp_path, broker.port)
        source: Any = made.open()
        with closing(source.batches(COLUMNS, ["subject"], TYPES)) as flow:
            until(lambda: bool(next(flow)) and source.listening, "subscribed")
        yield made


class TestMqttSource(SourceChecks):
    """The list of checks."""
