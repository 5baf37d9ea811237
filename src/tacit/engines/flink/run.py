"""A run on Flink, as its driver sees it: the job there, the ledger and the consumers here."""

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

_LOOK: Final = 0.1
"""Seconds between looks at what shards have told."""
_ASK: Final = 1.0
"""Seconds between questions to the cluster."""
_PATIENCE: Final = 60.0
"""Seconds that a cluster may not answer."""

log = logging.getLogger("tacit.flink")


@dataclass
class SubmitOutcome:
    """What came of a run."""

    windows: int = 0
    answers: int = 0
    resumed: bool = False
    """Whether it went on from where it was left, or found its job at work."""
    finished: bool = False
    """Whether the input came to its end; else it was stopped, and can go on."""
    savepoint: str | None = None
    """Where the job was stopped."""
    taken: int = 0
    """Tuples that were taken since the job began; for the operator alone."""
    refused: Mapping[str, int] = field(default_factory=dict)
    """Tuples that were refused since the job began, by reason; for the operator alone."""

    @property
    def refusals(self) -> Refusals:
        """How much of the input was refused, and why."""
        return Refusals(self.taken, self.refused)


class FlinkRun:
    """Starts a job or finds it, releases what its shards tell, and ends it with its input."""

    def __init__(
        self,
        name: str,
        job: ShardedJob,
        folders: Folders,
        ledger: Ledger,
        lease: Lease,
        outlets: Sequence[Sink],
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
        self._delivery = Delivery.from_ledger(ledger, lease, outlets)
        self._collector = Collector(job, lease, self._released)
        self._staged = StagedFiles(folders)
        self._progress = Progress(folders.progress)
        self._stopping = threading.Event()
        self._hurried = False
        self._asked = self._answered = self._failed = 0.0
        self._lost = False
        """Whether the ledger did not answer the last time."""
        self._restored = 0
        """How often the job went on from a checkpoint."""
        self.outcome = SubmitOutcome()
        self.placed: RunningJob | None = None
        """The job, once it is there."""
        self.released_at = 0.0
        """When the last window was released, by `time.perf_counter`."""

    def stop(self) -> None:
        """Stop the job with a savepoint, from which it can go on. Any thread may say so."""
        self._stopping.set()

    def run(self) -> SubmitOutcome:
        """Go on until the input ends or `stop` is called."""
        known = self._folders.latest_state() is not None
        with closing(self._delivery):
            self._delivery.start()
            self._collect()
            if self._collector.finished:  # it came to its end before
                self.outcome.resumed = self.outcome.finished = True
                return self._delivered()
            self._folders.begin(len(self._job.partitions))
            placed = self.placed = start(
                self._name,
                self._folders,
                len(self._job.partitions),
                self._job.shards,
                self._parallelism,
                self._address,
                self._settings,
                self._python,
            )
            self.outcome.resumed = known or placed.found
            log.info("the job %s %s", placed.job, "goes on" if self.outcome.resumed else "begins")
            self._follow(placed)
            return self._delivered()

    def _delivered(self) -> SubmitOutcome:
        self._staged.write_letters()
        refusals = self._staged.refusals
        self.outcome.taken, self.outcome.refused = refusals.taken, refusals.reasons
        while not self._delivery.is_done(_ASK):
            self._delivery.check()
        return self.outcome

    def _follow(self, placed: RunningJob) -> None:
        """Release what is told until the input ends or the job is stopped."""
        self._answered = time.monotonic()
        while not self._collector.finished:
            if self._stopping.is_set():
                self.outcome.savepoint = self._stopped(placed)
                self._collect()
                return
            if not self._collect():
                self._check_alive(placed)
                self._hurry(placed)
                time.sleep(_LOOK)
        placed.end(self._folders.savepoints.as_uri())
        self.outcome.finished = True

    def _hurry(self, placed: RunningJob) -> None:
        """Ask for a checkpoint when nothing more is read: the last windows are told with it."""
        if not self._hurried and self._progress.is_over():
            self._hurried = True
            with suppress(EngineError):
                placed.cluster.checkpoint(placed.job)

    def _stopped(self, placed: RunningJob) -> str:
        """Stop the job with a savepoint: as soon as all its tasks run, which takes a while."""
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                return placed.stop(self._folders.savepoints.as_uri())
            except EngineError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_ASK)

    def _collect(self) -> bool:
        """Release what is complete; whether anything was."""
        self._delivery.check()
        self._collector.take(self._staged.lines())
        try:
            windows = self._collector.release()
        except LedgerLostError as error:
            if not self._lost:
                log.warning("%s; it is tried again", error)
            self._lost = True
            return False
        self._lost = False
        self._staged.drop(self._collector.next_window)
        if windows:
            self.released_at = time.perf_counter()
            log.info("released %s", count(windows, "window"))
        while not self._delivery.has_room(_ASK):
            self._delivery.check()
        return windows > 0

    def _released(self, number: int, draft: Draft) -> None:
        self.outcome.windows += draft.windows
        self.outcome.answers += draft.answers
        self._delivery.release(number)

    def _check_alive(self, placed: RunningJob) -> None:
        """Raise where the job has ended by itself, or its cluster is gone for long."""
        if time.monotonic() - self._asked < _ASK:
            return
        self._asked = time.monotonic()
        reason = placed.lost()
        if reason is not None:
            raise self._ended(reason)
        try:
            state = placed.cluster.state(placed.job)
            failures = placed.cluster.failures(placed.job, 1)
            restored = placed.cluster.checkpoints(placed.job).restored
        except EngineError:
            if time.monotonic() - self._answered > _PATIENCE:
                raise
            return
        self._answered = time.monotonic()
        if restored > self._restored:
            self._restored = restored
            self._folders.begin(len(self._job.partitions))
        if failures and failures[0].when > self._failed:
            self._failed = failures[0].when
            log.warning("the job failed and is started again: %s", failures[0].reason)
        if state in ("FAILED", "CANCELED", "FINISHED"):
            raise self._ended(failures[0].reason if failures else "somebody ended it")

    def _ended(self, reason: str) -> EngineError:
        return EngineError(
            f"the job {self._name} has ended: {reason}. What was released stands; give the same"
            " command again to go on from its last checkpoint"
        )
