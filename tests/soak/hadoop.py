"""Real servers of Hadoop for tests: HDFS, and YARN with a Flink session."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final
from xml.sax.saxutils import escape

import psutil
import pytest

from tacit.errors import EngineError
from tests.flink.cluster import MARK, StandaloneCluster, flink_home, leash
from tests.services import free_port, program

_TIMEOUT: Final = 180.0
_HDFS: Final = "org.apache.hadoop.hdfs.server"
_YARN: Final = "org.apache.hadoop.yarn.server"


def fetch_hadoop(folder: Path) -> None:
    """Fetch the jars with Maven, or skip the test."""
    pom = Path(__file__).with_name("hadoop-pom.xml")
    command = [program("mvn"), "-q", "-B", "-f", str(pom), "dependency:copy-dependencies"]
    command += [f"-DoutputDirectory={folder}"]
    if subprocess.run(command, capture_output=True, timeout=600).returncode:
        pytest.skip("Hadoop could not be fetched")


class Hadoop:
    """A NameNode, a DataNode, a ResourceManager and a NodeManager, each a process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._jars = folder / "jars"
        fetch_hadoop(self._jars)
        self._files, self._web, self._cluster = free_port(), free_port(), free_port()
        self._servers: list[subprocess.Popen[bytes]] = []
        self._configure()

    @property
    def url(self) -> str:
        """The URL of the file system."""
        return f"hdfs://localhost:{self._files}"

    @property
    def environment(self) -> dict[str, str]:
        """The environment in which Flink finds Hadoop."""
        return {"HADOOP_CLASSPATH": self._client, "HADOOP_CONF_DIR": str(self.folder / "conf")}

    def start_hdfs(self) -> None:
        """Start the file system, and wait until files can be written."""
        format_it = [*self._java(f"{_HDFS}.namenode.NameNode"), "-format", "-nonInteractive"]
        subprocess.run(format_it, check=True, capture_output=True, timeout=_TIMEOUT)
        self._start(f"{_HDFS}.namenode.NameNode")
        self._start(f"{_HDFS}.datanode.DataNode")
        query = "jmx?qry=Hadoop:service=NameNode,name=FSNamesystemState"
        self._wait_for(
            self._web,
            query,
            lambda found: found["beans"][0]["NumLiveDataNodes"] == 1,
        )

    def start_yarn(self) -> None:
        """Start YARN, and wait until containers can be started."""
        self._start(f"{_YARN}.resourcemanager.ResourceManager")
        self._start(f"{_YARN}.nodemanager.NodeManager")
        self._wait_for(
            self._cluster,
            "ws/v1/cluster/nodes",
            lambda found: found["nodes"][0]["state"] == "RUNNING",
        )

    def close(self) -> None:
        """Kill all servers."""
        for server in self._servers:
            server.kill()
            server.wait(_TIMEOUT)

    def __enter__(self) -> Hadoop:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _client(self) -> str:
        names = ("hadoop-client-api", "hadoop-client-runtime", "commons-logging")
        return ":".join(str(path) for name in names for path in self._jars.glob(f"{name}-*.jar"))

    def _configure(self) -> None:
        for name in ("conf", "log"):
            (self.folder / name).mkdir()
        logging = "log4j.rootLogger=INFO,console\nlog4j.appender.console=org.apache.log4j."
        logging += "ConsoleAppender\nlog4j.appender.console.layout=org.apache.log4j.SimpleLayout\n"
        (self.folder / "conf" / "log4j.properties").write_text(logging)
        scheduler = "yarn.scheduler.capacity."
        self._write("core", {"fs.defaultFS": self.url, "hadoop.tmp.dir": self.folder / "tmp"})
        self._write(
            "hdfs",
            {
                "dfs.replication": 1,
                "dfs.namenode.http-address": f"localhost:{self._web}",
                "dfs.datanode.address": "localhost:0",
                "dfs.datanode.http.address": "localhost:0",
                "dfs.datanode.ipc.address": "localhost:0",
            },
        )
        self._write(
            "yarn",
            {
                "yarn.resourcemanager.hostname": "localhost",
                "yarn.resourcemanager.webapp.address": f"localhost:{self._cluster}",
                **{
                    f"yarn.resourcemanager.{name}address": f"localhost:{free_port()}"
                    for name in ("", "scheduler.", "resource-tracker.", "admin.")
                },
                "yarn.nodemanager.hostname": "localhost",
                "yarn.nodemanager.localizer.address": "localhost:0",
                "yarn.nodemanager.webapp.address": "localhost:0",
                "yarn.nodemanager.resource.memory-mb": 8192,
                "yarn.nodemanager.log-dirs": self.folder / "log" / "containers",
                "yarn.nodemanager.disk-health-checker.enable": "false",
                "yarn.nodemanager.vmem-check-enabled": "false",
                "yarn.nodemanager.env-whitelist": f"JAVA_HOME,PATH,HADOOP_CONF_DIR,{MARK}",
                "yarn.scheduler.minimum-allocation-mb": 128,
                "yarn.application.classpath": f"$HADOOP_CONF_DIR:{self._client}".replace(":", ","),
            },
        )
        self._write(
            "capacity-scheduler",
            {
                f"{scheduler}root.queues": "default",
                f"{scheduler}root.default.capacity": 100,
                f"{scheduler}maximum-am-resource-percent": 1,
            },
        )

    def _write(self, name: str, values: Mapping[str, object]) -> None:
        properties = "".join(
            f"<property><name>{key}</name><value>{escape(str(value))}</value></property>\n"
            for key, value in values.items()
        )
        file = name if name == "capacity-scheduler" else f"{name}-site"
        path = self.folder / "conf" / f"{file}.xml"
        path.write_text(f"<configuration>\n{properties}</configuration>\n")

    def _java(self, name: str) -> list[str]:
        # Libraries of YARN's servers look into Java's own classes.
        options = ["--add-opens=java.base/java.lang=ALL-UNNAMED", "-Xmx300m"]
        return [program("java"), *options, "-cp", f"{self.folder}/conf:{self._jars}/*", name]

    def _start(self, name: str) -> None:
        home = Path(program("java")).resolve().parents[1]
        environment = {**os.environ, **self.environment, "JAVA_HOME": str(home)}
        environment[MARK] = str(self.folder)
        with (self.folder / "log" / name.rpartition(".")[2]).open("ab") as output:
            self._servers.append(
                subprocess.Popen(
                    [*leash(), *self._java(name)],
                    env=environment,
                    cwd=self.folder,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )

    def _wait_for(self, port: int, path: str, ready: Callable[[Any], bool]) -> None:
        deadline = time.monotonic() + _TIMEOUT
        while True:
            try:
                with urllib.request.urlopen(f"http://localhost:{port}/{path}", timeout=10) as page:
                    if ready(json.load(page)):
                        return
            except (OSError, ValueError, LookupError):  # it is starting
                pass
            assert time.monotonic() < deadline, path
            assert all(server.poll() is None for server in self._servers), path
            time.sleep(0.2)


class YarnSession(StandaloneCluster):
    """A Flink session on YARN, which makes TaskManagers on demand."""

    def __init__(self, hadoop: Hadoop, *, slots: int = 2) -> None:
        self._hadoop = hadoop
        super().__init__(taskmanagers=0, slots=slots)
        for name in ("log4j.properties", "log4j-session.properties"):
            shutil.copy(flink_home() / "conf" / name, self.folder / "conf")
        settings = self.folder / "conf" / "config.yaml"
        # YARN chooses a port if none is given like this.
        settings.write_text(f'{settings.read_text()}rest.bind-port: "{self.port}"\n')

    @property
    def environment(self) -> dict[str, str]:
        """The environment of Flink's scripts."""
        return {**super().environment, **self._hadoop.environment}

    def start(self) -> None:
        """Start the session; it has no TaskManager before a job needs one."""
        command = ["bash", str(flink_home() / "bin" / "yarn-session.sh"), "-d"]
        with (self.folder / "log" / "session").open("wb") as log:
            subprocess.run(
                command, env=self.environment, stdout=log, stderr=log, check=True, timeout=_TIMEOUT
            )
        self.wait_for_taskmanagers()

    def heal(self) -> None:
        """Do nothing: YARN starts new TaskManagers."""

    def wait_for_taskmanagers(self) -> None:
        """Wait for the REST API only: TaskManagers come with jobs."""
        deadline = time.monotonic() + _TIMEOUT
        while True:
            try:
                self.rest.get_overview()
                return
            except EngineError:
                assert time.monotonic() < deadline, self.logs()
                time.sleep(0.2)

    def kill_taskmanager(self, which: random.Random | None = None) -> None:
        """Kill one of the TaskManagers with its workers."""
        victim = (which or random.Random()).choice(self._find_taskmanagers())
        for process in [victim, *victim.children(recursive=True)]:
            process.send_signal(signal.SIGKILL)

    def close(self) -> None:
        """Kill all containers; the servers of YARN have the same mark, so they end too."""
        for process in self._find_processes():
            process.kill()
        super().close()

    def _find_taskmanagers(self) -> list[psutil.Process]:
        return [
            process
            for process in self._find_processes()
            if process.name() == "java"
            and any("YarnTaskExecutorRunner" in word for word in process.cmdline())
        ]

    def _find_processes(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK) == str(self._hadoop.folder):
                    found.append(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return found
