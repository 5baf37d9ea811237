"""Where a job's files lie: one folder that every machine reaches under the same name."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Folders:
    """The folder of a job, and what lies in it."""

    root: Path

    @property
    def job(self) -> Path:
        """What every worker must know."""
        return self.root / "job"

    @property
    def partitions(self) -> Path:
        """A file for each partition that is to be read."""
        return self.root / "partitions"

    @property
    def progress(self) -> Path:
        """How far each reader is."""
        return self.root / "progress"

    @property
    def staged(self) -> Path:
        """What shards have told and the ledger has not yet."""
        return self.root / "staged"

    @property
    def letters(self) -> Path:
        """Dead letters."""
        return self.root / "letters"

    @property
    def counts(self) -> Path:
        """How many tuples were taken and refused, of files that are staged no more."""
        return self.root / "counts.jsonl"

    @property
    def checkpoints(self) -> Path:
        """Flink's own."""
        return self.root / "checkpoints"

    @property
    def savepoints(self) -> Path:
        """Where it was stopped."""
        return self.root / "savepoints"

    def make(self) -> None:
        """Make them all, for their owner alone: a state holds what was sent."""
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        for folder in (
            self.job,
            self.partitions,
            self.progress,
            self.staged,
            self.letters,
            self.checkpoints,
            self.savepoints,
        ):
            folder.mkdir(exist_ok=True)

    def begin(self, partitions: int) -> None:
        """Say that these partitions are to be read; say it again whenever a job starts again."""
        for number in range(partitions):
            (self.progress / str(number)).touch()
        beside = self.partitions / ".begin"
        beside.write_text("".join(f"{number}\n" for number in range(partitions)))
        beside.rename(self.partitions / f"{time.time_ns()}.txt")

    def latest_state(self) -> Path | None:
        """The newest checkpoint or savepoint that is whole, if there is any."""
        whole = [
            *self.checkpoints.glob("*/chk-*/_metadata"),
            *self.savepoints.glob("savepoint-*/_metadata"),
        ]
        newest = max(whole, key=lambda path: path.stat().st_mtime_ns, default=None)
        return None if newest is None else newest.parent
