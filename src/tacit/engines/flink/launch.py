"""Start a job on Flink: in this process, or on an existing cluster."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tacit.engines.flink.failures import Failure
from tacit.engines.flink.folders import Folders
from tacit.engines.flink.key_groups import choose_groups, choose_keys
from tacit.engines.flink.rest import Cluster, ClusterAddress
from tacit.engines.flink.state_places import StatePlaces
from tacit.errors import EngineError, OptionError
from tacit.options import option

_ALWAYS: Final = {
    "execution.checkpointing.mode": "EXACTLY_ONCE",
    # A batch is for the shards that a task has: none may be in flight when tasks change.
    "execution.checkpointing.unaligned.enabled": "false",
    "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
    "execution.checkpointing.num-retained": "2",
}
_RECOVERY: Final = "execution.state-recovery.path"
_INTERVAL: Final = "execution.checkpointing.interval"
_FEW_SHARDS: Final = 16
"""The most shards of a task with which a checkpoint every second costs little: the state of each
takes about a millisecond.
"""
_DEFAULTS: Final = {
    "execution.checkpointing.min-pause": "200 ms",
    "execution.checkpointing.timeout": "10 min",
    "execution.checkpointing.tolerable-failed-checkpoints": "10",
    "python.fn-execution.bundle.time": "50",
    "restart-strategy.type": "exponential-delay",
    "restart-strategy.exponential-delay.initial-backoff": "200 ms",
    "restart-strategy.exponential-delay.max-backoff": "10 s",
    "restart-strategy.exponential-delay.reset-backoff-threshold": "30 s",
    "restart-strategy.exponential-delay.attempts-before-reset-backoff": "20",
}


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A running job and its cluster."""

    cluster: Cluster
    job: str
    savepoints: str
    """The URI of the folder for savepoints."""
    client: Any = None
    """Flink's job client, if the cluster is part of this process."""

    def stop(self) -> str:
        """Stop the job with a savepoint; return the savepoint's path."""
        folder = self.savepoints
        if self.client is None:
            return self.cluster.stop(self.job, folder)
        from pyflink.java_gateway import get_gateway

        formats = get_gateway().jvm.org.apache.flink.core.execution.SavepointFormatType
        try:  # PyFlink's own call is for an older Java API
            stopped = self.client._j_job_client.stopWithSavepoint(False, folder, formats.CANONICAL)
            return str(stopped.get())
        except Exception as error:  # from Java
            raise EngineError(
                f"the job could not be stopped with a savepoint: {_first_line(error)}"
            ) from error

    def find_end_reason(self) -> str | None:
        """Return why a job inside this process has ended, or None if it has not."""
        if self.client is None:
            return None
        result = self.client.get_job_execution_result()
        if not result.done():
            return None
        try:
            result.result()
        except Exception as error:  # from Java
            return Failure.parse(time.time(), str(error)).reason
        return "it was cancelled"

    def finish(self) -> None:
        """End a job whose input has ended: with a savepoint if possible, else cancel it."""
        try:
            self.stop()
        except EngineError:
            self.cancel()

    def cancel(self) -> None:
        """End the job without a savepoint; its last checkpoint stays."""
        if self.client is None:
            self.cluster.cancel(self.job)
        else:
            self.client.cancel()


def find_running(
    name: str, folders: Folders, address: str | None, settings: Mapping[str, str]
) -> RunningJob | None:
    """Find a running job by its name; raise if no cluster answers at the address."""
    if address is None:
        return None
    cluster = Cluster(address)
    cluster.get_overview()
    running = cluster.find_running(name)
    savepoints = StatePlaces.choose(folders, settings).savepoints
    return None if running is None else RunningJob(cluster, running.id, savepoints)


def start(
    name: str,
    folders: Folders,
    partitions: int,
    shards: int,
    parallelism: int,
    address: str | None,
    settings: Mapping[str, str],
    python: str | None = None,
    *,
    application: bool = False,
) -> RunningJob:
    """Start a job, from its last checkpoint or savepoint if there is one.

    `python` is the interpreter on the cluster's machines; the default is the path of this one. An
    application's cluster has started this process, and runs the job itself.
    """
    groups = choose_groups(shards)
    if parallelism > groups:
        raise OptionError(
            f"{option('parallelism')} is {parallelism}, but a job of {shards} shards runs in at"
            f" most {groups} tasks: give {option('shards')} at least {parallelism}"
        )
    if address is not None:
        cluster = Cluster(address)
        cluster.check(parallelism)
        settings = {**_client_settings(cluster.endpoint), **settings}
    else:
        cluster = Cluster(f"localhost:{_free_port()}")
        settings = {
            **settings,
            "rest.address": "localhost",
            "rest.bind-port": str(cluster.endpoint.port),
            "rest.port": str(cluster.endpoint.port),
            "taskmanager.numberOfTaskSlots": str(parallelism),
        }
    chosen = {**_DEFAULTS, **settings, **_ALWAYS}
    places = StatePlaces.choose(folders, settings)
    chosen.setdefault(_INTERVAL, choose_interval(shards, parallelism))
    chosen["pipeline.max-parallelism"] = str(groups)
    chosen.setdefault("python.state.cache-size", str(1000 + shards))
    chosen["execution.checkpointing.dir"] = places.checkpoints
    chosen["python.executable"] = python or sys.executable
    chosen["python.client.executable"] = sys.executable
    state = places.find_latest(folders)
    if state is not None:
        chosen.setdefault(_RECOVERY, state)
    env = _environment(chosen, None if address is None or application else cluster)
    env.set_parallelism(parallelism)
    from tacit.engines.flink.program import build

    build(env, folders, choose_keys(partitions, groups), choose_keys(shards, groups))
    try:
        client = env.execute_async(name)
    except Exception as error:  # from Java
        reason = Failure.parse(time.time(), str(error)).reason
        raise EngineError(f"Flink refused the job: {reason}") from error
    job = str(client.get_job_id())
    folders.add_job_id(job)
    return RunningJob(cluster, job, places.savepoints, client=None if address else client)


def choose_interval(shards: int, parallelism: int) -> str:
    """Return how often there is a checkpoint by default; answers wait for one."""
    return "1 s" if shards <= _FEW_SHARDS * parallelism else "2 s"


def _client_settings(endpoint: ClusterAddress) -> dict[str, str]:
    """Return the settings with which Flink's own client reaches a cluster behind a proxy."""
    settings = {"rest.path": endpoint.path} if endpoint.path else {}
    return settings | ({"security.ssl.rest.enabled": "true"} if endpoint.secure else {})


def _environment(settings: Mapping[str, str], remote: Cluster | None) -> Any:
    from pyflink.common import Configuration
    from pyflink.datastream import StreamExecutionEnvironment
    from pyflink.java_gateway import get_gateway

    configuration = Configuration()
    for key, value in settings.items():
        configuration.set_string(key, value)
    if remote is None:
        # Otherwise all functions share this process and its interpreter lock.
        os.environ["_python_worker_execution_mode"] = "process"  # noqa: SIM112 - PyFlink's own
        return StreamExecutionEnvironment.get_execution_environment(configuration)
    gateway = get_gateway()
    jars = [] if remote.has_python() else [os.fspath(jar) for jar in _python_jars()]
    given = gateway.new_array(gateway.jvm.java.lang.String, len(jars))
    for place, jar in enumerate(jars):
        given[place] = jar
    environments = gateway.jvm.org.apache.flink.streaming.api.environment
    java_environment = environments.StreamExecutionEnvironment.createRemoteEnvironment(
        remote.endpoint.host, remote.endpoint.port, configuration._j_configuration, given
    )
    return StreamExecutionEnvironment(java_environment)


def _python_jars() -> list[Path]:
    """Find the JAR that lets Flink call Python; jobs ship it if the cluster lacks it."""
    import pyflink

    return sorted(Path(pyflink.__file__).parent.glob("opt/flink-python-*.jar"))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port: int = probe.getsockname()[1]
        return port


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
