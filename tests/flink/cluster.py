"""A real standalone cluster for tests, started with the scripts of the pyflink package itself."""

from __future__ import annotations

import contextlib
import http.client
import os
import random
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

import psutil
import yaml

from tacit.engines.flink.rest import Cluster
from tacit.errors import EngineError
from tests.services import free_port, make_certificate, program

_TIMEOUT: Final = 180.0
MARK: Final = "TACIT_TEST_CLUSTER"
_SETTINGS: Final[Mapping[str, object]] = {
    "jobmanager.rpc.address": "localhost",
    "jobmanager.bind-host": "localhost",
    "jobmanager.memory.process.size": "1000m",
    "taskmanager.host": "localhost",
    "taskmanager.bind-host": "localhost",
    "taskmanager.memory.process.size": "1300m",
    "taskmanager.memory.managed.fraction": 0.2,
    "taskmanager.load-balance.mode": "SLOTS",
    "heartbeat.interval": 500,
    # A killed process is noticed by its closed port; a busy machine may stop one for seconds.
    "heartbeat.timeout": 30_000,
    "heartbeat.rpc-failure-threshold": 2,
    "pekko.startup-timeout": "2 min",
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.attempts": 1_000_000,
    "restart-strategy.fixed-delay.delay": "200 ms",
}


def flink_home() -> Path:
    """Where the installed package has its scripts and jars."""
    import pyflink

    return Path(pyflink.__file__).parent


def leash() -> list[str]:
    """What makes a process end with the one that started it, where there is such a program."""
    program = shutil.which("setpriv")
    return [program, "--pdeathsig", "KILL", "--"] if program else []


class Proxy:
    """A proxy before a cluster: it speaks HTTPS, adds a path, and wants a token."""

    TOKEN: Final = "Bearer secret"
    _PASSWORD: Final = "changeit"

    def __init__(self, port: int, folder: Path) -> None:
        """Start it; `folder` gets its certificate, and a truststore for Java."""

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._forward()

            def do_POST(self) -> None:
                self._forward()

            def do_PATCH(self) -> None:
                self._forward()

            def _forward(self) -> None:
                body = self._read()
                if self.headers["Authorization"] != Proxy.TOKEN:
                    self._answer(401, b"<html>who are you?</html>")
                    return
                if not self.path.startswith("/flink/"):
                    self._answer(404, b"<html>what?</html>")
                    return
                cluster = http.client.HTTPConnection("localhost", port, timeout=_TIMEOUT)
                kind = {"Content-Type": self.headers.get("Content-Type", "application/json")}
                cluster.request(self.command, self.path.removeprefix("/flink"), body, kind)
                answer = cluster.getresponse()
                self._answer(answer.status, answer.read())
                cluster.close()

            def _read(self) -> bytes:
                if self.headers.get("Transfer-Encoding") != "chunked":
                    return self.rfile.read(int(self.headers.get("Content-Length") or 0))
                parts = []
                while size := int(self.rfile.readline().split(b";")[0], 16):
                    parts.append(self.rfile.read(size))
                    self.rfile.readline()
                self.rfile.readline()
                return b"".join(parts)

            def _answer(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", "application/json; charset=UTF-8")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                pass

        key = make_certificate(folder)
        self.certificate = folder / "cert.pem"
        self._truststore = folder / "trust.p12"
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, key)
        self._server = ThreadingHTTPServer(("localhost", 0), Handler)
        self._server.socket = context.wrap_socket(
            self._server.socket, server_side=True, do_handshake_on_connect=False
        )
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.address = f"https://localhost:{self._server.server_port}/flink"
        command = [program("keytool"), "-importcert", "-noprompt", "-alias", "proxy"]
        command += ["-file", str(self.certificate), "-keystore", str(self._truststore)]
        command += ["-storetype", "PKCS12", "-storepass", self._PASSWORD]
        subprocess.run(command, check=True, capture_output=True, timeout=_TIMEOUT)

    @property
    def settings(self) -> dict[str, str]:
        """The settings with which Flink's client, which is written in Java, trusts it."""
        return {
            "security.ssl.rest.truststore": str(self._truststore),
            "security.ssl.rest.truststore-password": self._PASSWORD,
        }

    def close(self) -> None:
        """Stop it."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class StandaloneCluster:
    """A JobManager and some TaskManagers, each a process, in a folder and on ports of their own."""

    def __init__(
        self,
        *,
        taskmanagers: int = 2,
        slots: int = 2,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="tacit-flink-"))
        self.port = free_port()
        self.jobmanager: subprocess.Popen[bytes] | None = None
        self.taskmanagers: list[subprocess.Popen[bytes]] = []
        self._wanted = taskmanagers
        self._slots = slots
        self._configure(settings or {})

    @property
    def address(self) -> str:
        """HOST:PORT of its REST API."""
        return f"localhost:{self.port}"

    @property
    def rest(self) -> Cluster:
        """A client of its REST API."""
        return Cluster(self.address)

    @property
    def environment(self) -> dict[str, str]:
        """The environment in which Flink's scripts know this cluster."""
        return {
            **os.environ,
            MARK: str(self.folder),
            "FLINK_CONF_DIR": str(self.folder / "conf"),
            "FLINK_LIB_DIR": str(self.folder / "lib"),
            "FLINK_LOG_DIR": str(self.folder / "log"),
            "FLINK_PID_DIR": str(self.folder / "tmp"),
            "FLINK_PLUGINS_DIR": str(self.folder / "plugins"),
        }

    @property
    def pids(self) -> list[int]:
        """The process numbers of the TaskManagers."""
        return [process.pid for process in self.taskmanagers]

    def start(self) -> None:
        """Start everything and wait until all TaskManagers have registered."""
        self.start_jobmanager()
        self.wait_for_taskmanagers()  # none yet: one might take the JobManager's port
        self.taskmanagers = [self._run("taskmanager.sh") for _ in range(self._wanted)]
        self.wait_for_taskmanagers()

    def start_jobmanager(self) -> None:
        """Start the JobManager, or another one in place of one that was killed."""
        self.jobmanager = self._run("jobmanager.sh")

    def kill_jobmanager(self) -> None:
        """Kill the JobManager with SIGKILL."""
        assert self.jobmanager is not None
        self.jobmanager.kill()
        self.jobmanager.wait(_TIMEOUT)

    def kill_taskmanager(self, which: random.Random | None = None) -> None:
        """Kill one of the TaskManagers with its workers, as when a machine goes."""
        for worker in self.kill_taskmanager_alone(which):
            with contextlib.suppress(psutil.NoSuchProcess):
                worker.kill()

    def kill_taskmanager_alone(self, which: random.Random | None = None) -> list[psutil.Process]:
        """Kill one of the TaskManagers with SIGKILL, at random; the Python workers that it had."""
        alive = [process for process in self.taskmanagers if process.poll() is None]
        victim = (which or random.Random()).choice(alive)
        workers: list[psutil.Process] = psutil.Process(victim.pid).children(recursive=True)
        self.taskmanagers.remove(victim)
        victim.send_signal(signal.SIGKILL)
        victim.wait(_TIMEOUT)
        return workers

    def start_taskmanager(self) -> int:
        """Start one more TaskManager; its process number. It registers a while later."""
        self.taskmanagers.append(self._run("taskmanager.sh"))
        return self.taskmanagers[-1].pid

    def heal(self) -> None:
        """Start a new TaskManager for each one that was killed or has ended by itself."""
        self.taskmanagers = [process for process in self.taskmanagers if process.poll() is None]
        while len(self.taskmanagers) < self._wanted:
            self.start_taskmanager()

    def wait_for_taskmanagers(self) -> None:
        """Wait until exactly the TaskManagers that run are registered, with all their slots."""
        deadline = time.monotonic() + _TIMEOUT
        slots = self._slots * len(self.taskmanagers)
        while True:
            try:
                overview = self.rest.get_overview()
                if (overview.taskmanagers, overview.slots) == (len(self.taskmanagers), slots):
                    return
            except EngineError:
                pass
            if time.monotonic() > deadline or self._dead():
                raise AssertionError(f"the cluster does not come up:\n{self.logs()}")
            time.sleep(0.1)

    def logs(self, last: int = 4000) -> str:
        """The ends of what its processes have said."""
        paths = sorted((self.folder / "log").iterdir())
        return "\n".join(f"== {path.name}\n{path.read_text()[-last:]}" for path in paths)

    def close(self) -> None:
        """Kill everything that belongs to it, workers that have outlived their parents too."""
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK) == str(self.folder):
                    process.kill()
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        for started in [self.jobmanager, *self.taskmanagers]:
            if started is not None:
                started.kill()
                started.wait(_TIMEOUT)
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> StandaloneCluster:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _configure(self, settings: Mapping[str, object]) -> None:
        for name in ("conf", "lib", "log", "plugins", "tmp"):
            (self.folder / name).mkdir()
        home = flink_home()
        for jar in (*home.glob("lib/*.jar"), *home.glob("opt/flink-python-*.jar")):
            (self.folder / "lib" / jar.name).symlink_to(jar)
        shipped = home / "conf"
        options = yaml.safe_load((shipped / "config.yaml").read_text())["env"]["java"]["opts"]
        configuration = {
            **_SETTINGS,
            "env.java.opts.all": options["all"],
            "rest.address": "localhost",
            "rest.port": self.port,
            "jobmanager.rpc.port": free_port(),
            "taskmanager.numberOfTaskSlots": self._slots,
            "io.tmp.dirs": str(self.folder / "tmp"),
            **settings,
        }
        (self.folder / "conf/config.yaml").write_text(
            yaml.safe_dump(configuration, width=sys.maxsize)
        )
        for name in ("log4j-console.properties", "logback-console.xml"):
            shutil.copy(shipped / name, self.folder / "conf" / name)

    def _run(self, script: str, *words: str) -> subprocess.Popen[bytes]:
        # In the foreground the scripts end in `exec java`: the process keeps its number.
        with (self.folder / "log" / f"{script}.out").open("ab") as output:
            return subprocess.Popen(
                [*leash(), str(flink_home() / "bin" / script), "start-foreground", *words],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _dead(self) -> bool:
        started = [self.jobmanager, *self.taskmanagers]
        return any(process is not None and process.poll() is not None for process in started)


class ApplicationCluster(StandaloneCluster):
    """A cluster that is started for one job: its JobManager runs the command that submits it."""

    def __init__(self, *command: str, taskmanagers: int = 1, slots: int = 2) -> None:
        """`command` is that of `tacit`, without the word."""
        settings = {"python.client.executable": sys.executable}
        super().__init__(taskmanagers=taskmanagers, slots=slots, settings=settings)
        self._command = command

    def start_jobmanager(self) -> None:
        """Start the JobManager, or another one in place of one that was killed."""
        words = ("--job-classname", "org.apache.flink.client.python.PythonDriver")
        command = (*self._command, "--application", "--cluster", self.address)
        self.jobmanager = self._run("standalone-job.sh", *words, "-pym", "tacit", *command)
