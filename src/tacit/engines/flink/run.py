"""The driver of a job on Flink: it starts the job, or finds it running, and watches it.

The job goes on without it: windows are released inside the job (`releaser.py`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from tacit.engines.flink.folders import Folders
from tacit.engines.flink.job_status import JobStatus
from tacit.engines.flink.launch import RunningJob
from tacit.engines.flink.progress import Progress
from tacit.engines.flink.releaser import Releaser
from tacit.engines.sharded.job import ShardedJob
from tacit.errors import EngineError
from tacit.pipeline.refusals import Refusals
from tacit.pipeline.status import PublicStatus
from tacit.planning.plan import Plan
from tacit.quantities import count

_READ_SECONDS: Final = 0.05
"""Seconds between two reads of the status."""
_REQUEST_SECONDS: Final = 1.0
"""Seconds between two requests to the cluster."""
_TIMEOUT: Final = 60.0
"""Seconds for which the cluster may be unreachable."""
_STOP_SECONDS: Final = 60.0
"""Seconds to wait for all tasks of a job that is to be stopped."""

log = logging.getLogger("tacit.flink")


@dataclass
class SubmitOutcome:
    """The result of a run."""

    windows: int = 0
    answers: int = 0
    resumed: bool = False
    """Whether it continued an earlier job, or found it running."""
    finished: bool = False
    """Whether the input ended; else the job goes on, or was stopped and can be resumed."""
    running: bool = False
    """Whether the job goes on without this driver."""
    savepoint: str | None = None
    """The path of the savepoint, if the job was stopped and has one."""
    taken: int = 0
    """Tuples accepted since the job started; for the operator only."""
    refused: Mapping[str, int] = field(default_factory=dict)
    """Tuples refused since the job started, by reason; for the operator only."""

    @property
    def refusals(self) -> Refusals:
        """How many tuples were refused, and why."""
        return Refusals(self.taken, self.refused)


class FlinkRun:
    """Starts a job or finds it running, watches it, and ends it with its input."""

    def __init__(
        self,
        name: str,
        job: ShardedJob,
        folders: Folders,
        launch: Callable[[], RunningJob] | RunningJob,
        *,
        detach: bool = False,
        attached: bool = False,
    ) -> None:
        """`launch` starts the job, or is the running one.

        With `detach`, return when the job is started. With `attached`, `stop` ends the watching
        and not the job.
        """
        self._name = name
        self._job = job
        self._folders = folders
        self._launch = launch
        self._detach = detach
        self._attached = attached
        self._progress = Progress(folders.progress)
        self._stopping = threading.Event()
        self._triggered = False
        self._checkpoint: str | None = None
        """The request for the last checkpoint, once it is triggered."""
        self._requested = self._answered = self._failed = 0.0
        self._before = JobStatus.read(folders.status)
        self._status = self._before
        self.outcome = SubmitOutcome()
        self.public = PublicStatus()
        """The public part of the status, for metrics."""
        self.running_job: RunningJob | None = None
        """The job, once it is started."""

    @property
    def plan(self) -> Plan:
        """The plan of the job."""
        return self._job.version.plan

    @property
    def released_at(self) -> float | None:
        """The time of the last release, in seconds since 1970."""
        return self._status.released_at

    def stop(self) -> None:
        """Stop the job with a savepoint, to resume it later. Any thread may call it."""
        self._stopping.set()

    def run(self) -> SubmitOutcome:
        """Run until the input ends or `stop` is called."""
        if isinstance(self._launch, RunningJob):
            self.outcome.resumed = True
            running_job = self.running_job = self._launch
            log.info("the job %s is running", running_job.job)
        else:
            known = bool(self._folders.read_job_ids())
            if self._release_rest().finished:  # it ended before
                self.outcome.resumed = self.outcome.finished = True
                return self.outcome
            self._progress.create(len(self._job.partitions))
            running_job = self.running_job = self._launch()
            self.outcome.resumed = known
            log.info("the job %s %s", running_job.job, "continues" if known else "starts")
        if self._detach:
            self.outcome.running = True
            return self.outcome
        self._watch(running_job)
        return self.outcome

    def _watch(self, running_job: RunningJob) -> None:
        """Report what the job releases until the input ends or the job is stopped."""
        self._answered = time.monotonic()
        while not self._update(JobStatus.read(self._folders.status)).finished:
            if self._stopping.is_set():
                if self._attached:
                    self.outcome.running = True
                else:
                    self.outcome.savepoint = self._stop_job(running_job)
                    self._release_rest()
                return
            self._check_alive(running_job)
            self._trigger_last_checkpoint(running_job)
            time.sleep(_READ_SECONDS)
        self.outcome.finished = True
        self._wait_for_last_checkpoint(running_job)
        running_job.finish()

    def _update(self, status: JobStatus) -> JobStatus:
        """Note what the job has released."""
        windows = status.windows - self._status.windows
        if windows > 0:
            log.info("released %s", count(windows, "window"))
        self._status = status
        self.outcome.windows = status.windows - self._before.windows
        self.outcome.answers = status.answers - self._before.answers
        self.outcome.taken, self.outcome.refused = status.taken, status.refused
        public, windows_spec = self.public, self._job.version.spec.windows
        public.subjects, public.windows = len(self._job.subjects), self.outcome.windows
        public.until, public.exhausted = status.until, status.exhausted
        public.charged = dict(status.charged)
        public.undelivered, public.retries = status.undelivered, status.retries
        if status.until is not None:
            public.next_close = status.until + windows_spec.pane + windows_spec.lateness
        if status.released_at is not None:
            seconds = windows_spec.pane / 1_000_000
            public.released_at = status.released_at // seconds * seconds
        return status

    def _release_rest(self) -> JobStatus:
        """Release what the job has left behind; call this only while it does not run."""
        with Releaser(self._folders) as releaser:
            releaser.release()
            return self._update(releaser.complete())

    def _trigger_last_checkpoint(self, running_job: RunningJob) -> None:
        """Trigger a checkpoint when all input is read: it commits the last windows."""
        if not self._triggered and self._progress.is_over():
            self._triggered = True
            with suppress(EngineError):
                self._checkpoint = running_job.cluster.trigger_checkpoint(running_job.job)

    def _wait_for_last_checkpoint(self, running_job: RunningJob) -> None:
        """Wait for the checkpoint that was triggered: a cluster does not end before."""
        deadline = time.monotonic() + _TIMEOUT
        with suppress(EngineError):
            while self._checkpoint is not None and time.monotonic() < deadline:
                if running_job.cluster.is_checkpoint_over(running_job.job, self._checkpoint):
                    return
                time.sleep(_READ_SECONDS)

    def _stop_job(self, running_job: RunningJob) -> str | None:
        """Stop the job with a savepoint; retry until all its tasks run.

        If they do not run, as without slots, there is no savepoint: the job is cancelled.
        """
        deadline = time.monotonic() + _STOP_SECONDS
        while True:
            try:
                return running_job.stop()
            except EngineError:
                if time.monotonic() <= deadline:
                    time.sleep(_REQUEST_SECONDS)
                    continue
                if running_job.cluster.has_all_tasks(running_job.job):
                    raise
            log.warning("the job does not run, so it is cancelled; its last checkpoint stays")
            running_job.cancel()
            return None

    def _check_alive(self, running_job: RunningJob) -> None:
        """Raise if the job has ended by itself, or its cluster is unreachable for long."""
        if time.monotonic() - self._requested < _REQUEST_SECONDS:
            return
        self._requested = time.monotonic()
        reason = running_job.find_end_reason()
        if reason is not None:
            raise self._explain_end(reason)
        try:
            state = running_job.cluster.get_state(running_job.job)
            failures = running_job.cluster.list_failures(running_job.job, 1)
        except EngineError:
            if time.monotonic() - self._answered > _TIMEOUT:
                raise
            return
        self._answered = time.monotonic()
        if failures and failures[0].when > self._failed:
            self._failed = failures[0].when
            log.warning("the job failed and is restarted: %s", failures[0].reason)
        if state in ("FAILED", "CANCELED", "FINISHED"):
            raise self._explain_end(failures[0].reason if failures else "it was cancelled")

    def _explain_end(self, reason: str) -> EngineError:
        return EngineError(
            f"the job {self._name} has ended: {reason}. Released answers stay valid; run the same"
            " command again to continue from its last checkpoint"
        )
