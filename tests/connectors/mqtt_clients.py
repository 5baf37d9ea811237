"""The other ends of MQTT connectors: a publisher and a subscriber, by the client library."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any

from paho.mqtt.client import Client, MQTTMessage, MQTTv5
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.services import program

PATIENCE = 20.0


class Peer:
    """A client that is connected for as long as it is used as a context manager."""

    def __init__(
        self,
        port: int,
        name: str = "",
        *,
        topics: str = "",
        login: tuple[str, str] | None = None,
        ca: Path | None = None,
    ) -> None:
        self.messages: list[MQTTMessage] = []
        self._ready = threading.Event()
        self._topics = topics
        self._client = Client(CallbackAPIVersion.VERSION2, client_id=name, protocol=MQTTv5)
        self._client.reconnect_delay_set(1, 1)
        self._client.max_inflight_messages_set(1000)
        if login is not None:
            self._client.username_pw_set(*login)
        if ca is not None:
            self._client.tls_set(str(ca))
        self._client.on_connect = self._connected
        self._client.on_subscribe = lambda *_: self._ready.set()
        self._client.on_message = lambda _, __, message: self.messages.append(message)
        self._port = port
        self._keep = bool(name)

    def __enter__(self) -> Peer:
        properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        properties.SessionExpiryInterval = 3600 if self._keep else 0
        properties.ReceiveMaximum = 65_535
        self._client.connect("127.0.0.1", self._port, clean_start=False, properties=properties)
        self._client.loop_start()
        assert self._ready.wait(PATIENCE)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._client.disconnect()
        with suppress(AttributeError):  # paho: its thread may end while it is being joined
            self._client.loop_stop()

    def publish(
        self, messages: Iterable[tuple[str, bytes]], qos: int = 1, *, retain: bool = False
    ) -> None:
        """Publish, and wait until the broker has acknowledged all."""
        sent = [
            self._client.publish(topic, payload, qos, retain=retain) for topic, payload in messages
        ]
        for info in sent:
            info.wait_for_publish(PATIENCE)
            assert info.is_published(), "not acknowledged by the broker in time"

    def _connected(self, client: Client, *_: Any) -> None:
        if self._topics:
            client.subscribe(self._topics, 1)
        else:
            self._ready.set()


def until(done: Callable[[], bool], what: str, patience: float = PATIENCE) -> None:
    """Wait for something to come true."""
    deadline = time.monotonic() + patience
    while not done():
        assert time.monotonic() < deadline, f"not {what} in time"
        time.sleep(0.01)


def certificates(folder: Path) -> Sequence[str]:
    """An authority, certificates of a broker and a client, made once; the broker's settings."""
    for name, content in _made_once().items():
        (folder / name).write_bytes(content)
    return [
        f"cafile {folder}/ca.pem",
        f"certfile {folder}/broker.pem",
        f"keyfile {folder}/broker.key",
    ]


@cache
def _made_once() -> Mapping[str, bytes]:
    with TemporaryDirectory() as name:
        make_certificates(Path(name))
        return {path.name: path.read_bytes() for path in Path(name).iterdir()}


def make_certificates(folder: Path) -> None:
    """A new authority, and certificates of a broker and a client."""
    openssl = program("openssl")

    def run(*arguments: str) -> None:
        subprocess.run([openssl, *arguments], check=True, capture_output=True, cwd=folder)

    def key(name: str) -> list[str]:
        return ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", name]

    run("req", "-x509", *key("ca.key"), "-out", "ca.pem", "-subj", "/CN=authority", "-days", "2")
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost")
    for name in ("broker", "client"):
        run("req", *key(f"{name}.key"), "-out", f"{name}.csr", "-subj", f"/CN={name}")
        signed = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2"]
        run("x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.pem", *signed,
            "-extfile", "names")  # fmt: skip


def passwords(folder: Path, users: dict[str, str]) -> Sequence[str]:
    """Users and their passwords; the broker's settings."""
    path = folder / "passwords"
    path.write_text("".join(f"{user}:{password}\n" for user, password in users.items()))
    path.chmod(0o600)
    subprocess.run([program("mosquitto_passwd"), "-U", str(path)], check=True, capture_output=True)
    return ["allow_anonymous false", f"password_file {path}"]
