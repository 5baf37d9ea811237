"""The driver of a run on Flink: it controls the job, and releases its answers by the ledger."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Final

from tacit.engines.flink.folders import Folders
from tacit.engines.flink.launch import RunningJob, start
from tacit.engines.flink.progress import Progress
from tacit.engines.flink.staged_files import StagedFiles
from tacit.engines.sharded.collector import Collector
from tacit.engines.sharded.job import ShardedJob
from tacit.errors import EngineError, LedgerLostError
from tacit.ledger.drafts import Draft
from tacit.ledger.lease import Lease
from tacit.ledger.ledger import Ledger
from tacit.pipeline.delivery import Delivery
from tacit.pipeline.refusals import Refusals
from tacit.pipeline.sinks import Sink
from tacit.quantities import count

_READ_SECONDS: Final = 0.1
"""Seconds between two reads of the staged files."""
_REQUEST_SECONDS: Final = 1.0
"""Seconds between two requests to the cluster."""
_TIMEOUT: Final = 60.0
"""Seconds for which the cluster may be unreachable."""

log = logging.getLogger("tacit.flink")


@dataclass
class SubmitOutcome:
    """The result of a run."""

    windows: int = 0
    answers: int = 0
    resumed: bool = False
    """Whether it continued an earlier job, or found it running."""
    finished: bool = False
    """Whether the input ended; else the job was stopped and can be resumed."""
    savepoint: str | None = None
    """The path of the savepoint, if the job was stopped."""
    taken: int = 0
    """Tuples accepted since the job started; for the operator only."""
    refused: Mapping[str, int] = field(default_factory=dict)
    """Tuples refused since the job started, by reason; for the operator only."""

    @property
    def refusals(self) -> Refusals:
        """How many tuples were refused, and why."""
        return Refusals(self.taken, self.refused)


class FlinkRun:
    """Starts or finds a job, releases the answers of its shards, and ends it with its input."""

    def __init__(
        self,
        name: str,
        job: ShardedJob,
        folders: Folders,
        ledger: Ledger,
        lease: Lease,
        sinks: Sequence[Sink],
        *,
        parallelism: int = 1,
        cluster: str | None = None,
        python: str | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self._name = name
        self._job = job
        self._folders = folders
        self._parallelism = parallelism
        self._address = cluster
        self._python = python
        self._settings = dict(settings or {})
        self._delivery = Delivery.from_ledger(ledger, lease, sinks)
        self._collector = Collector(job, lease, self._on_release)
        self._staged = StagedFiles(folders)
        self._progress = Progress(folders.progress)
        self._stopping = threading.Event()
        self._triggered = False
        self._requested = self._answered = self._failed = 0.0
        self._lost = False
        """Whether the ledger did not answer the last time."""
        self._restored = 0
        """How often the job was restored from a checkpoint."""
        self.outcome = SubmitOutcome()
        self.running_job: RunningJob | None = None
        """The job, once it is started."""
        self.released_at = 0.0
        """The time of the last release, from `time.perf_counter`."""

    def stop(self) -> None:
        """Stop the job with a savepoint, to resume it later. Any thread may call it."""
        self._stopping.set()

    def run(self) -> SubmitOutcome:
        """Run until the input ends or `stop` is called."""
        known = self._folders.find_latest_state() is not None
        with closing(self._delivery):
            self._delivery.start()
            self._collect()
            if self._collector.finished:  # it ended before
                self.outcome.resumed = self.outcome.finished = True
                return self._finish()
            self._folders.start_partitions(len(self._job.partitions))
            running_job = self.running_job = start(
                self._name,
                self._folders,
                len(self._job.partitions),
                self._job.shards,
                self._parallelism,
                self._address,
                self._settings,
                self._python,
            )
            self.outcome.resumed = known or running_job.found
            log.info(
                "the job %s %s", running_job.job, "continues" if self.outcome.resumed else "starts"
            )
            self._follow(running_job)
            return self._finish()

    def _finish(self) -> SubmitOutcome:
        self._staged.write_dead_letters()
        refusals = self._staged.refusals
        self.outcome.taken, self.outcome.refused = refusals.taken, refusals.reasons
        while not self._delivery.is_done(_REQUEST_SECONDS):
            self._delivery.check()
        return self.outcome

    def _follow(self, running_job: RunningJob) -> None:
        """Release answers until the input ends or the job is stopped."""
        self._answered = time.monotonic()
        while not self._collector.finished:
            if self._stopping.is_set():
                self.outcome.savepoint = self._stop_job(running_job)
                self._collect()
                return
            if not self._collect():
                self._check_alive(running_job)
                self._trigger_last_checkpoint(running_job)
                time.sleep(_READ_SECONDS)
        running_job.finish(self._folders.savepoints.as_uri())
        self.outcome.finished = True

    def _trigger_last_checkpoint(self, running_job: RunningJob) -> None:
        """Trigger a checkpoint when all input is read: it commits the last windows."""
        if not self._triggered and self._progress.is_over():
            self._triggered = True
            with suppress(EngineError):
                running_job.cluster.trigger_checkpoint(running_job.job)

    def _stop_job(self, running_job: RunningJob) -> str:
        """Stop the job with a savepoint; retry until all its tasks run."""
        deadline = time.monotonic() + _TIMEOUT
        while True:
            try:
                return running_job.stop(self._folders.savepoints.as_uri())
            except EngineError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_REQUEST_SECONDS)

    def _collect(self) -> bool:
        """Release complete windows; return whether there were any."""
        self._delivery.check()
        self._collector.take(self._staged.read_lines())
        try:
            windows = self._collector.release()
        except LedgerLostError as error:
            if not self._lost:
                log.warning("%s; retrying", error)
            self._lost = True
            return False
        self._lost = False
        self._staged.drop(self._collector.next_window)
        if windows:
            self.released_at = time.perf_counter()
            log.info("released %s", count(windows, "window"))
        while not self._delivery.has_room(_REQUEST_SECONDS):
            self._delivery.check()
        return windows > 0

    def _on_release(self, number: int, draft: Draft) -> None:
        self.outcome.windows += draft.windows
        self.outcome.answers += draft.answers
        self._delivery.release(number)

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
            restored = running_job.cluster.get_checkpoints(running_job.job).restored
        except EngineError:
            if time.monotonic() - self._answered > _TIMEOUT:
                raise
            return
        self._answered = time.monotonic()
        if restored > self._restored:
            self._restored = restored
            self._folders.start_partitions(len(self._job.partitions))
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
