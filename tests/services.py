"""Real servers for tests: PostgreSQL, Mosquitto and Kafka, each in a folder and on its own port."""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

_PATIENCE: Final = 30.0


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def program(name: str, *places: str) -> str:
    """The path of a program; the test is skipped where there is none."""
    candidates = (path for place in places for path in sorted(glob.glob(place)))
    found = shutil.which(name) or next(candidates, None)
    if found is None:
        pytest.skip(f"{name} is not installed; make test installs it where it may")
    return found


class Postgres:
    """A PostgreSQL server of one's own, reached through a socket in its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._postgres = program("postgres", "/usr/lib/postgresql/*/bin/postgres")
        initdb = program("initdb", "/usr/lib/postgresql/*/bin/initdb")
        if os.geteuid() == 0:
            shutil.chown(folder, "postgres", "postgres")
        self._as_owner([initdb, "-D", f"{folder}/data", "-U", "tacit", "-A", "trust", "--no-sync"])
        self._server: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """What a ledger in it is called."""
        return f"postgresql://tacit@/postgres?host={self.folder}"

    def start(self) -> None:
        """Start it and wait until it answers."""
        # -F: nothing is forced to disk, which matters only if the whole machine goes down.
        folder = str(self.folder)
        arguments = [self._postgres, "-F", "-D", f"{folder}/data", "-k", folder, "-h", ""]
        self._server = subprocess.Popen(
            arguments,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=self.folder,
            start_new_session=True,
            **self._owner(),
        )
        import psycopg

        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                psycopg.connect(self.url).close()
                return
            except psycopg.OperationalError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop it: SIGINT breaks all connections, SIGQUIT is as sudden as a crash."""
        if self._server is None:
            return
        pid = int((self.folder / "data/postmaster.pid").read_text().split()[0])
        os.kill(pid, how)
        self._server.wait(_PATIENCE)
        self._server = None

    def database(self, name: str) -> str:
        """The URL of a new, empty database."""
        import psycopg

        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}"')
        return f"postgresql://tacit@/{name}?host={self.folder}"

    @staticmethod
    def _owner() -> dict[str, Any]:
        # PostgreSQL refuses to run as root. `runuser` would stay between it and us, and would stop
        # for good if all processes are stopped for a moment.
        if os.geteuid() != 0:
            return {}
        return {"user": "postgres", "group": "postgres", "extra_groups": []}

    def _as_owner(self, arguments: Sequence[str]) -> None:
        subprocess.run(
            arguments, check=True, stdout=subprocess.DEVNULL, cwd=self.folder, **self._owner()
        )


@contextlib.contextmanager
def postgres_server() -> Iterator[Postgres]:
    """A running PostgreSQL server."""
    # Not in the folder of pytest: the owner must reach it, and names of sockets are short.
    folder = Path(tempfile.mkdtemp(prefix="tacit-pg-"))
    try:
        server = Postgres(folder)
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


KAFKA_JARS: Final = Path(__file__).parent.parent / ".kafka"
"""Where `make test` puts the Kafka server, from Maven Central."""
QUICK_JAVA: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""A server that lives for a minute: its code is compiled as little as possible."""


class Kafka:
    """A Kafka server that asks for a password, at one port with TLS and at another without."""

    def __init__(self, folder: Path, user: str, password: str) -> None:
        self._java = program("java")
        if not any(KAFKA_JARS.glob("kafka_*.jar")):
            pytest.skip("the Kafka server is not there; make test fetches it if there is Maven")
        self.user, self.password = user, password
        self.authority = folder / "cert.pem"
        key = make_certificate(folder)
        self._port, self._secure_port, controller = free_port(), free_port(), free_port()
        self._settings = folder / "server.properties"
        self._formatted = False
        module = "org.apache.kafka.common.security.plain.PlainLoginModule"
        login = f'username="{user}" password="{password}" user_{user}="{password}"'
        scram = "org.apache.kafka.common.security.scram.ScramLoginModule"
        places = {"SASL_PLAINTEXT": self._port, "SASL_SSL": self._secure_port}
        lines = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@localhost:{controller}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL,"
            "CONTROLLER:PLAINTEXT",
            "listeners": ",".join(
                f"{name}://localhost:{port}"
                for name, port in {**places, "CONTROLLER": controller}.items()
            ),
            "inter.broker.listener.name": "SASL_PLAINTEXT",
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            "listener.name.sasl_plaintext.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl_ssl.sasl.enabled.mechanisms": "SCRAM-SHA-512",
            "listener.name.sasl_plaintext.plain.sasl.jaas.config": f"{module} required {login};",
            "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": f"{scram} required;",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.certificate.chain": self.authority.read_text().replace("\n", "\\n"),
            "ssl.keystore.key": key.read_text().replace("\n", "\\n"),
            "log.dirs": folder / "data",
            # Messages of tests may be years old: they are not removed for that.
            "log.retention.ms": -1,
            "num.partitions": 3,
            "offsets.topic.replication.factor": 1,
            "offsets.topic.num.partitions": 3,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "transaction.state.log.num.partitions": 3,
            "group.initial.rebalance.delay.ms": 0,
        }
        text = "".join(f"{name}={value}\n" for name, value in lines.items())
        self._settings.write_text(text)
        self._server: subprocess.Popen[bytes] | None = None

    @property
    def servers(self) -> str:
        """Its address without TLS."""
        return f"localhost:{self._port}"

    @property
    def secure(self) -> str:
        """Its address with TLS."""
        return f"localhost:{self._secure_port}"

    def start(self) -> None:
        """Start it, prepared before the first start, and wait until it listens."""
        run = [self._java, "-Xmx256m", *QUICK_JAVA, "-cp", f"{KAFKA_JARS}/*"]
        if not self._formatted:
            name, place = "MkU3OEVBNTcwNTJENDM2Qg", str(self._settings)
            login = f"SCRAM-SHA-512=[name={self.user},password={self.password}]"
            format_ = ["kafka.tools.StorageTool", "format", "-t", name, "-c", place, "-S", login]
            subprocess.run([*run, *format_], check=True, capture_output=True, timeout=120)
            self._formatted = True
        with (self._settings.parent / "log").open("ab") as log:
            self._server = subprocess.Popen(
                [*run, "kafka.Kafka", str(self._settings)], stdout=log, stderr=log
            )
        deadline = time.monotonic() + 4 * _PATIENCE
        for port in (self._port, self._secure_port):
            while True:
                try:
                    socket.create_connection(("localhost", port), 1).close()
                    break
                except OSError:
                    if time.monotonic() > deadline or self._server.poll() is not None:
                        raise
                    time.sleep(0.1)

    @contextlib.contextmanager
    def away(self) -> Iterator[None]:
        """It is there, and does not answer."""
        assert self._server is not None
        self._server.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._server.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """Kill it; what it has acknowledged is in its folder, for the next start."""
        if self._server is not None:
            self._server.kill()
            self._server.wait(_PATIENCE)
            self._server = None


def make_certificate(folder: Path) -> Path:
    """A certificate for localhost in `cert.pem`, signed by its own key; where the key is."""
    openssl, key = program("openssl"), folder / "key.pem"
    request = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"]
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    files = ["-keyout", str(key), "-out", str(folder / "cert.pem")]
    subprocess.run([openssl, *request, *names, *files], check=True, capture_output=True)
    return key


class Mosquitto:
    """A Mosquitto broker; settings are lines of its configuration."""

    def __init__(self, folder: Path, settings: Sequence[str] = ("allow_anonymous true",)) -> None:
        self.port = free_port()
        self._program = program("mosquitto", "/usr/sbin/mosquitto")
        self._configuration = folder / "mosquitto.conf"
        lines = [
            "per_listener_settings false",
            "persistence true",
            f"persistence_location {folder}/",
            "autosave_interval 1",
            "max_inflight_messages 0",
            "max_queued_messages 0",
            f"listener {self.port} 127.0.0.1",
            *([f"user {os.environ.get('USER', 'root')}"] if os.geteuid() == 0 else []),
            *settings,
        ]
        self._configuration.write_text("\n".join(lines) + "\n")
        self._server: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it listens."""
        self._server = subprocess.Popen(
            [self._program, "-c", str(self._configuration)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                if time.monotonic() > deadline or self._server.poll() is not None:
                    raise
                time.sleep(0.02)

    def stop(self) -> None:
        """Stop it; what it has acknowledged is kept in its folder."""
        if self._server is not None:
            self._server.terminate()
            self._server.wait(_PATIENCE)
            self._server = None

    def __enter__(self) -> Mosquitto:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
