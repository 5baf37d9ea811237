"""A client for the REST API of a Flink cluster: its state, its jobs, and how to stop them."""

from __future__ import annotations

import http.client
import json
import logging
import os
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from typing import Any, Final

from tacit.engines.flink.failures import Failure
from tacit.engines.flink.java import find_flink_version, minor_version
from tacit.errors import EngineError

_TIMEOUT: Final = 10.0
log = logging.getLogger("tacit.flink")
_ENDED: Final = frozenset({"FAILED", "CANCELED", "FINISHED"})


@dataclass(frozen=True, slots=True)
class Overview:
    """The version and resources of a cluster."""

    version: str
    taskmanagers: int
    slots: int
    free_slots: int
    running: int


@dataclass(frozen=True, slots=True)
class FlinkJob:
    """A job of the cluster; `state` is Flink's, such as RUNNING."""

    id: str
    name: str
    state: str

    @property
    def ended(self) -> bool:
        """Whether the job has ended."""
        return self.state in _ENDED


@dataclass(frozen=True, slots=True)
class FlinkCheckpoints:
    """Statistics of a job's checkpoints."""

    restored: int
    """How often the job was restored from one."""
    size: int
    """Bytes of the latest."""
    mean_duration: float
    """Seconds."""


@dataclass(frozen=True, slots=True)
class ClusterAddress:
    """The address of a cluster's REST API."""

    host: str
    port: int
    path: str = ""
    """A prefix of all paths, such as `/flink`; empty without a proxy."""
    secure: bool = False
    """Whether it is HTTPS."""

    @classmethod
    def parse(cls, text: str) -> ClusterAddress:
        """Parse HOST:PORT or a URL.

        >>> ClusterAddress.parse("flink.example.org:8081")
        ClusterAddress(host='flink.example.org', port=8081, path='', secure=False)
        >>> ClusterAddress.parse("https://example.org/flink/").url
        'https://example.org:443/flink'
        """
        given = text if "://" in text else f"http://{text}"
        try:
            parts = urllib.parse.urlsplit(given)
            host, port = parts.hostname, parts.port
        except ValueError:
            host = port = None
        secure = given.startswith("https://")
        if port is None and text != given:
            host = None  # without a scheme there must be a port
        if (
            not host
            or parts.scheme not in ("http", "https")
            or parts.query
            or parts.username is not None
            or (text != given and parts.path)
        ):
            raise EngineError(
                "a cluster is given as HOST:PORT, such as localhost:8081, or as a URL, such as"
                f" https://example.org/flink; got {text!r}"
            )
        return cls(host, port or (443 if secure else 80), parts.path.rstrip("/"), secure)

    @property
    def url(self) -> str:
        """The URL, without a slash at the end."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http{'s' if self.secure else ''}://{host}:{self.port}{self.path}"


class Cluster:
    """A client for the REST API of a cluster.

    Requests have the headers in the environment variable FLINK_REST_CLIENT_HEADERS, one per line,
    like those of Flink's own client.
    """

    def __init__(self, address: str, *, timeout: float = _TIMEOUT) -> None:
        self.endpoint = ClusterAddress.parse(address)
        self.address = address
        self._timeout = timeout

    def get_overview(self) -> Overview:
        """Get the version and resources; raise if Flink does not answer at the address."""
        response = self._request("GET", "/v1/overview")
        try:
            return Overview(
                version=response["flink-version"],
                taskmanagers=response["taskmanagers"],
                slots=response["slots-total"],
                free_slots=response["slots-available"],
                running=response["jobs-running"],
            )
        except (KeyError, TypeError) as error:
            raise self._not_flink() from error

    def check(self, parallelism: int) -> Overview:
        """Return the overview; raise if the cluster cannot run our jobs.

        Slots that are not there yet are waited for: some clusters make them on demand.
        """
        overview = self.get_overview()
        ours = find_flink_version()
        if minor_version(overview.version) != minor_version(ours):
            raise EngineError(
                f"the cluster at {self.address} runs Flink {overview.version}, but the installed"
                f" package apache-flink is {ours}: both must be of the same version. Install"
                f" apache-flink {overview.version} here, or Flink {ours} on the cluster."
            )
        if overview.free_slots < parallelism:
            log.warning(
                "the cluster at %s has %d of %d slots free, and the job needs %d: it waits for the"
                " others. They come when TaskManagers start, or when other jobs end",
                self.address,
                overview.free_slots,
                overview.slots,
                parallelism,
            )
        return overview

    def has_python(self) -> bool:
        """Return whether the cluster can call Python; else each job must ship the JAR."""
        classpath = self._request("GET", "/v1/jobmanager/environment")["classpath"]
        return any("/flink-python" in jar for jar in classpath)

    def list_jobs(self) -> list[FlinkJob]:
        """List all jobs, including ended ones, the latest first."""
        found = self._request("GET", "/v1/jobs/overview")["jobs"]
        found.sort(key=lambda job: job["start-time"], reverse=True)
        return [FlinkJob(job["jid"], job["name"], job["state"]) for job in found]

    def find_running(self, name: str) -> FlinkJob | None:
        """Find the job of this name that has not ended, if there is one."""
        return next((job for job in self.list_jobs() if job.name == name and not job.ended), None)

    def get_state(self, job: str) -> str:
        """Get the state of a job, such as RUNNING."""
        return str(self._request("GET", f"/v1/jobs/{job}/status")["status"])

    def has_all_tasks(self, job: str) -> bool:
        """Return whether all tasks of a job run; else it may be waiting for slots."""
        vertices = self._request("GET", f"/v1/jobs/{job}")["vertices"]
        return all(vertex["status"] == "RUNNING" for vertex in vertices)

    def list_failures(self, job: str, most: int = 5) -> list[Failure]:
        """List the last failures of a job, the latest first."""
        response = self._request("GET", f"/v1/jobs/{job}/exceptions?maxExceptions={most}")
        return [
            Failure.parse(entry["timestamp"] / 1000, entry["stacktrace"])
            for entry in response["exceptionHistory"]["entries"]
        ]

    def cancel(self, job: str) -> None:
        """Cancel a job and wait for its end; do nothing if it has ended."""
        try:
            self._request("PATCH", f"/v1/jobs/{job}?mode=cancel")
        except _RefusedError:
            if self.get_state(job) not in _ENDED:
                raise
        self._wait_for_end(job)

    def stop(self, job: str, folder: str, *, timeout: float = 600.0) -> str:
        """Stop a job with a savepoint in a shared folder; return the savepoint's path."""
        trigger = self._request("POST", f"/v1/jobs/{job}/stop", {"targetDirectory": folder})
        deadline = time.monotonic() + timeout
        while True:
            response = self._request("GET", f"/v1/jobs/{job}/savepoints/{trigger['request-id']}")
            if response["status"]["id"] == "COMPLETED":
                break
            if time.monotonic() > deadline:
                raise EngineError(f"job {job} did not make a savepoint within {timeout:g} seconds")
            time.sleep(0.1)
        if "location" not in response["operation"]:
            cause = response["operation"]["failure-cause"]["stack-trace"]
            reason = Failure.parse(time.time(), cause).reason
            raise EngineError(f"job {job} could not be stopped with a savepoint: {reason}")
        self._wait_for_end(job)
        return str(response["operation"]["location"])

    def trigger_checkpoint(self, job: str) -> str:
        """Trigger a checkpoint of a job, without waiting for it; return the id of the request."""
        body = {"checkpointType": "CONFIGURED"}
        return str(self._request("POST", f"/v1/jobs/{job}/checkpoints", body)["request-id"])

    def is_checkpoint_over(self, job: str, request: str) -> bool:
        """Return whether a triggered checkpoint is complete, or has failed.

        Flink keeps the result for five minutes, or until it was asked for. A cluster that ends
        waits for that.
        """
        response = self._request("GET", f"/v1/jobs/{job}/checkpoints/{request}")
        return bool(response["status"]["id"] == "COMPLETED")

    def get_checkpoints(self, job: str) -> FlinkCheckpoints:
        """Get the statistics of a job's checkpoints."""
        response = self._request("GET", f"/v1/jobs/{job}/checkpoints")
        latest = response["latest"]["completed"]
        durations = response["summary"]["end_to_end_duration"]
        return FlinkCheckpoints(
            restored=response["counts"]["restored"],
            size=latest["state_size"] if latest else 0,
            mean_duration=durations["avg"] / 1000,
        )

    def _wait_for_end(self, job: str) -> None:
        deadline = time.monotonic() + 60
        while (state := self.get_state(job)) not in _ENDED:
            if time.monotonic() > deadline:
                raise EngineError(f"job {job} does not end; its state is {state}")
            time.sleep(0.05)

    def _request(self, method: str, path: str, body: object = None) -> Any:
        request = urllib.request.Request(
            f"{self.endpoint.url}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json", **_read_headers()},
        )
        try:
            with _OPENER.open(request, timeout=self._timeout) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            raise self._explain_refusal(error) from error
        except (OSError, http.client.HTTPException) as error:
            raise EngineError(
                f"no Flink cluster answers at {self.address} ({_describe(error)}). Give the"
                " HOST:PORT of its REST API (rest.address and rest.port in its configuration; the"
                " default port is 8081), and check that it runs and can be reached from here."
            ) from error
        except ValueError as error:
            raise self._not_flink() from error

    def _explain_refusal(self, error: urllib.error.HTTPError) -> EngineError:
        try:
            errors = json.load(error)["errors"]
        except (ValueError, KeyError, TypeError, OSError):
            if error.code in (401, 403):
                return EngineError(
                    f"{self.address} refuses the request ({error.code}). If a proxy wants a token,"
                    " set FLINK_REST_CLIENT_HEADERS='Authorization:Bearer ...'"
                )
            return self._not_flink()
        reason = Failure.parse(time.time(), "\n".join(errors)).reason
        return _RefusedError(f"the cluster at {self.address} refuses: {reason}")

    def _not_flink(self) -> EngineError:
        return EngineError(
            f"{self.address} is not the REST API of Flink. Give the HOST:PORT of a JobManager"
            " (rest.port, 8081 by default), not of its RPC service."
        )


class _RefusedError(EngineError):
    """The cluster refused a request."""


# Requests to a cluster do not use a proxy.
_OPENER: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def _read_headers() -> dict[str, str]:
    """Read the additional headers of requests, such as `Authorization: Bearer ...`."""
    lines = os.environ.get("FLINK_REST_CLIENT_HEADERS", "").split("\n")
    pairs = (line.partition(":") for line in lines if line.strip())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _describe(error: Exception) -> str:
    reason = getattr(error, "reason", error)
    if isinstance(reason, TimeoutError):
        return "it took too long"
    return getattr(reason, "strerror", None) or str(reason) or type(reason).__name__
