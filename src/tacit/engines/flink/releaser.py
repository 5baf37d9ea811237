"""The releaser of a job: it commits complete windows to the ledger, and delivers them from there.

It runs inside the job, in an operator of parallelism 1, so that windows are released without a
driver. It has no state in Flink: the staged files and the ledger have its progress. If Flink starts
it again, perhaps on another machine while the former one is still running, it takes the run over in
the ledger, and the former one cannot commit any more.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from tacit.connectors.openers import open_resumable_sink
from tacit.engines.flink.folders import Folders
from tacit.engines.flink.job_status import JobStatus
from tacit.engines.flink.private_files import replace_file
from tacit.engines.flink.progress import Progress
from tacit.engines.flink.staged_files import StagedFiles
from tacit.engines.sharded.collector import Collector
from tacit.engines.sharded.job import ShardedJob
from tacit.errors import LedgerLostError, StateError
from tacit.ledger.drafts import ReleaseDraft
from tacit.ledger.ledger import Ledger
from tacit.pipeline.delivery import Delivery

_READ_SECONDS: Final = 0.05
"""Seconds between two reads of the staged files."""
_ROOM_SECONDS: Final = 1.0
"""Seconds to wait for a slow sink at a time."""
_CLOSE_SECONDS: Final = 60.0
"""Seconds to wait for a commit or delivery at the end; Flink gives a task three minutes."""
_PACE_SECONDS: Final = 0.05
"""Seconds between two looks at the progress of readers."""

log = logging.getLogger("tacit.flink")


@dataclass(frozen=True)
class ReleaseTarget:
    """Where the windows of a job are released to."""

    run: str
    """The name of the run in the ledger."""
    ledger: str = field(repr=False)
    sinks: Sequence[str] = field(repr=False)
    counts: str | None = field(default=None, repr=False)
    """Where counts go; None if they stay in the ledger."""

    def write(self, path: Path) -> None:
        """Write it to a file that only its owner can read: addresses may contain passwords."""
        replace_file(path, json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> ReleaseTarget:
        """Read what `write` wrote."""
        try:
            return cls(**json.loads(path.read_text("utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise StateError(
                f"{path} cannot be read: every machine must have this folder under the same name,"
                " and the same version of Tacit"
            ) from error


class Releaser:
    """Releases the windows of a job; open it in one process at a time."""

    def __init__(self, folders: Folders) -> None:
        self._folders = folders
        self._target = ReleaseTarget.read(folders.release)
        self._job = ShardedJob.read(folders.job)
        self._resources = ExitStack()
        self._lost = False
        """Whether the ledger did not answer the last time."""
        self._charged: dict[str, int] = {}
        self._exhausted = 0
        self._released_at: float | None = None
        self.status = JobStatus()
        """What was written to the status file last."""

    def __enter__(self) -> Releaser:
        try:
            self._open()
        except BaseException:
            self._resources.close()
            raise
        return self

    def _open(self) -> None:
        sinks = [open_resumable_sink(place) for place in self._target.sinks]
        if self._target.counts is not None:
            sinks.append(open_resumable_sink(self._target.counts))
            sinks[-1].content = "counts"
        for sink in sinks:
            self._resources.callback(sink.close)
        ledger = self._resources.enter_context(Ledger.open(self._target.ledger, create=False))
        lease = ledger.take_over(self._target.run, self._job.version.spec.fingerprint)
        self._delivery = Delivery.from_ledger(ledger, lease, sinks)
        self._resources.callback(self._delivery.close)
        self._collector = Collector(self._job, lease)
        self._staged = StagedFiles(self._folders)
        before = JobStatus.read(self._folders.status)
        self._released_at, self._exhausted = before.released_at, before.exhausted
        self._delivery.start()

    def __exit__(self, *_: object) -> None:
        self._resources.close()

    @property
    def finished(self) -> bool:
        """Whether the input has ended and every window is in the ledger."""
        return self._collector.finished

    @property
    def delivered(self) -> bool:
        """Whether all sinks have everything that is in the ledger."""
        return self._delivery.is_done(0)

    def release(self) -> bool:
        """Release the windows that are complete; return whether there were any.

        Nothing is released while a sink is far behind.
        """
        self._delivery.check()
        if not self._delivery.has_room(_ROOM_SECONDS):
            return False
        self._collector.take(self._staged.read_lines())
        found = False
        try:
            while released := self._collector.release():
                self._deliver(released)
                found = True
        except LedgerLostError as error:
            if not self._lost:
                log.warning("%s; retrying", error)
            self._lost = True
            return False
        self._lost = False
        self._staged.drop(self._collector.next_window)
        self._write_status(finished=False)
        return found

    def complete(self) -> JobStatus:
        """Wait until everything is delivered, and write the last status and dead letters."""
        while not self._delivery.is_done(_ROOM_SECONDS):
            self._delivery.check()
        self._staged.write_dead_letters()
        return self._write_status(finished=self.finished)

    def _deliver(self, released: Sequence[tuple[int, ReleaseDraft]]) -> None:
        """Deliver releases that the ledger has accepted."""
        for number, draft in released:
            for charge in draft.charges:
                spent = charge.amount * charge.windows * len(charge.ids)
                self._charged[charge.private] = self._charged.get(charge.private, 0) + spent
            self._delivery.release(number)
        self._exhausted = self._collector.exhausted
        self._released_at = time.time()

    def _write_status(self, *, finished: bool) -> JobStatus:
        """Write the status if it has changed."""
        windows, refusals = self._collector.windows, self._staged.refusals
        spec = self._job.version.spec
        start = self._collector.next_start
        status = JobStatus(
            windows,
            windows * len(self._job.subjects) * len(spec.subject_queries),
            None if start is None or not windows else start - spec.windows.pane + spec.windows.size,
            self._released_at,
            self._exhausted,
            dict(self._charged),
            self._delivery.waiting,
            self._delivery.retries,
            refusals.taken,
            dict(refusals.reasons),
            finished,
        )
        if status != self.status:
            status.write(self._folders.status)
            self.status = status
        return status


class ReleaserThread(threading.Thread):
    """Releases windows until it is stopped; `check` raises the error that ended it."""

    def __init__(self, folders: Folders) -> None:
        super().__init__(name="tacit-releaser", daemon=True)
        self._folders = folders
        self.status = JobStatus.read(folders.status)
        """What is released; other threads may read it."""
        self._stopping = threading.Event()
        self._error: BaseException | None = None

    def run(self) -> None:
        """Release until the input ends."""
        try:
            with Releaser(self._folders) as releaser:
                while not (releaser.finished and releaser.delivered):
                    if self._stopping.is_set():
                        return
                    if not releaser.release():
                        self._stopping.wait(_READ_SECONDS)
                    self.status = releaser.status
                self.status = releaser.complete()
        except BaseException as error:  # the task raises it
            self._error = error

    def check(self) -> None:
        """Raise the error that ended the thread, if there is one."""
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Stop, and wait until everything is closed, if that does not take too long."""
        self._stopping.set()
        self.join(_CLOSE_SECONDS)


class PaceThread(threading.Thread):
    """Looks at the progress of all readers, so that a reader need not look at every other one."""

    def __init__(self, progress: Progress) -> None:
        super().__init__(name="tacit-pace", daemon=True)
        self._progress = progress
        self._stopping = threading.Event()

    def run(self) -> None:
        """Publish the slowest reader's progress until it is stopped."""
        while not self._stopping.wait(_PACE_SECONDS):
            self._progress.publish_slowest()

    def stop(self) -> None:
        """Stop, and wait for the end."""
        self._stopping.set()
        self.join()
