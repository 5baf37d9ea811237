"""A cluster as its REST API shows it: who it is, what runs on it, and how to stop that."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any, Final

from tacit.engines.flink.failures import Failure
from tacit.engines.flink.java import installed_flink, minor
from tacit.errors import EngineError

_PATIENCE: Final = 10.0
_ENDED: Final = frozenset({"FAILED", "CANCELED", "FINISHED"})


@dataclass(frozen=True, slots=True)
class Overview:
    """What a cluster is and has."""

    version: str
    taskmanagers: int
    slots: int
    free_slots: int
    running: int


@dataclass(frozen=True, slots=True)
class FlinkJob:
    """A job of the cluster; `state` is Flink's word for it, such as RUNNING."""

    id: str
    name: str
    state: str

    @property
    def ended(self) -> bool:
        """Whether it will not run again."""
        return self.state in _ENDED


@dataclass(frozen=True, slots=True)
class TaskManager:
    """A process of the cluster that carries parts of jobs."""

    id: str
    slots: int
    free_slots: int
    heartbeat: float
    """When it was heard of last, in seconds since 1970."""


@dataclass(frozen=True, slots=True)
class FlinkCheckpoints:
    """How a job's checkpoints went: sizes in bytes, durations in seconds."""

    completed: int
    failed: int
    restored: int
    latest: str | None
    """Where the latest complete one lies, if it is kept outside the cluster."""
    size: int
    duration: float
    mean_duration: float
    longest_duration: float


class Cluster:
    """The cluster whose REST API answers at HOST:PORT."""

    def __init__(self, address: str, *, patience: float = _PATIENCE) -> None:
        self.host, self.port = read_address(address)
        self.address = address
        self._patience = patience

    def overview(self) -> Overview:
        """What it is and has; an error if nobody answers there, or not Flink."""
        said = self._ask("GET", "/v1/overview")
        try:
            return Overview(
                version=said["flink-version"],
                taskmanagers=said["taskmanagers"],
                slots=said["slots-total"],
                free_slots=said["slots-available"],
                running=said["jobs-running"],
            )
        except (KeyError, TypeError) as error:
            raise self._not_flink() from error

    def check(self, parallelism: int) -> Overview:
        """The overview, if a job of this package and parallelism can start there now."""
        overview = self.overview()
        ours = installed_flink()
        if minor(overview.version) != minor(ours):
            raise EngineError(
                f"the cluster at {self.address} runs Flink {overview.version}, but the installed"
                f" package apache-flink is {ours}: both must be of the same version. Install"
                f" apache-flink {overview.version} here, or Flink {ours} on the cluster."
            )
        if overview.free_slots < parallelism:
            raise EngineError(
                f"the cluster at {self.address} has {overview.free_slots} of {overview.slots} slots"
                f" free; parallelism {parallelism} needs as many. Ask for less parallelism, cancel"
                " a job there, or start more TaskManagers."
            )
        return overview

    def has_python(self) -> bool:
        """Whether it can call Python by itself; else each job must bring what is needed for it."""
        classpath = self._ask("GET", "/v1/jobmanager/environment")["classpath"]
        return any("/flink-python" in jar for jar in classpath)

    def jobs(self) -> list[FlinkJob]:
        """All jobs that it knows of, those that have ended too, the latest first."""
        found = self._ask("GET", "/v1/jobs/overview")["jobs"]
        found.sort(key=lambda job: job["start-time"], reverse=True)
        return [FlinkJob(job["jid"], job["name"], job["state"]) for job in found]

    def running(self, name: str) -> FlinkJob | None:
        """The job of this name that has not ended, if there is one."""
        return next((job for job in self.jobs() if job.name == name and not job.ended), None)

    def state(self, job: str) -> str:
        """Flink's word for how a job is."""
        return str(self._ask("GET", f"/v1/jobs/{job}/status")["status"])

    def all_running(self, job: str) -> bool:
        """Whether all tasks of a job run, their workers included."""
        said = self._ask("GET", f"/v1/jobs/{job}")
        return all(vertex["status"] == "RUNNING" for vertex in said["vertices"])

    def failures(self, job: str, most: int = 5) -> list[Failure]:
        """The last failures of a job, the latest first."""
        said = self._ask("GET", f"/v1/jobs/{job}/exceptions?maxExceptions={most}")
        return [
            Failure.read(entry["timestamp"] / 1000, entry["stacktrace"])
            for entry in said["exceptionHistory"]["entries"]
        ]

    def cancel(self, job: str) -> None:
        """End a job and wait until it has ended; one that has ended already stays so."""
        try:
            self._ask("PATCH", f"/v1/jobs/{job}?mode=cancel")
        except _RefusedError:
            if self.state(job) not in _ENDED:
                raise
        self._wait_for_end(job)

    def stop(self, job: str, folder: str, *, patience: float = 600.0) -> str:
        """Stop a job with a savepoint in a folder that all machines reach; where it lies."""
        trigger = self._ask("POST", f"/v1/jobs/{job}/stop", {"targetDirectory": folder})
        deadline = time.monotonic() + patience
        while True:
            said = self._ask("GET", f"/v1/jobs/{job}/savepoints/{trigger['request-id']}")
            if said["status"]["id"] == "COMPLETED":
                break
            if time.monotonic() > deadline:
                raise EngineError(f"job {job} has made no savepoint within {patience:g} seconds")
            time.sleep(0.1)
        if "location" not in said["operation"]:
            cause = said["operation"]["failure-cause"]["stack-trace"]
            reason = Failure.read(time.time(), cause).reason
            raise EngineError(f"job {job} could not be stopped with a savepoint: {reason}")
        self._wait_for_end(job)
        return str(said["operation"]["location"])

    def checkpoint(self, job: str) -> None:
        """Have a job make a checkpoint now; it is not waited for."""
        self._ask("POST", f"/v1/jobs/{job}/checkpoints", {"checkpointType": "CONFIGURED"})

    def checkpoints(self, job: str) -> FlinkCheckpoints:
        """How the checkpoints of a job went so far."""
        said = self._ask("GET", f"/v1/jobs/{job}/checkpoints")
        latest = said["latest"]["completed"]
        durations = said["summary"]["end_to_end_duration"]
        return FlinkCheckpoints(
            completed=said["counts"]["completed"],
            failed=said["counts"]["failed"],
            restored=said["counts"]["restored"],
            latest=latest and latest.get("external_path"),
            size=latest["state_size"] if latest else 0,
            duration=latest["end_to_end_duration"] / 1000 if latest else 0.0,
            mean_duration=durations["avg"] / 1000,
            longest_duration=durations["max"] / 1000,
        )

    def taskmanagers(self) -> list[TaskManager]:
        """The TaskManagers that are registered."""
        return [
            TaskManager(
                found["id"],
                found["slotsNumber"],
                found["freeSlots"],
                found["timeSinceLastHeartbeat"] / 1000,
            )
            for found in self._ask("GET", "/v1/taskmanagers")["taskmanagers"]
        ]

    def _wait_for_end(self, job: str) -> None:
        deadline = time.monotonic() + 60
        while (state := self.state(job)) not in _ENDED:
            if time.monotonic() > deadline:
                raise EngineError(f"job {job} does not end; its state is {state}")
            time.sleep(0.05)

    def _ask(self, method: str, path: str, body: object = None) -> Any:
        request = urllib.request.Request(
            f"http://{self.address}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        try:
            with _OPENER.open(request, timeout=self._patience) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            raise self._refused(error) from error
        except (OSError, http.client.HTTPException) as error:
            raise EngineError(
                f"no Flink cluster answers at {self.address} ({_why(error)}). Give the HOST:PORT of"
                " its REST API (rest.address and rest.port in its configuration; the port is 8081"
                " unless it was changed), and see that it runs and can be reached from here."
            ) from error
        except ValueError as error:
            raise self._not_flink() from error

    def _refused(self, error: urllib.error.HTTPError) -> EngineError:
        try:
            errors = json.load(error)["errors"]
        except (ValueError, KeyError, TypeError, OSError):
            return self._not_flink()
        reason = Failure.read(time.time(), "\n".join(errors)).reason
        return _RefusedError(f"the cluster at {self.address} refuses: {reason}")

    def _not_flink(self) -> EngineError:
        return EngineError(
            f"what answers at {self.address} is not the REST API of Flink. Give the HOST:PORT of a"
            " JobManager (rest.port, 8081 unless it was changed), not of its RPC service."
        )


class _RefusedError(EngineError):
    """The cluster understood but would not."""


# Proxies are for the world outside: a cluster is asked directly.
_OPENER: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def read_address(text: str) -> tuple[str, int]:
    """HOST:PORT as host and port.

    >>> read_address("flink.example.org:8081")
    ('flink.example.org', 8081)
    """
    host, _, port = text.rpartition(":")
    if not host or "/" in host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise EngineError(f"a cluster is given as HOST:PORT, such as localhost:8081; got {text!r}")
    return host, int(port)


def _why(error: Exception) -> str:
    reason = getattr(error, "reason", error)
    if isinstance(reason, TimeoutError):
        return "it took too long"
    return getattr(reason, "strerror", None) or str(reason) or type(reason).__name__
