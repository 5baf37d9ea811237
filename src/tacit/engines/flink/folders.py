"""The folder of a job's files, which every machine must have under the same name."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Folders:
    """The folder of a job, and its subfolders."""

    root: Path

    @property
    def job(self) -> Path:
        """The job, for every worker."""
        return self.root / "job"

    @property
    def partitions(self) -> Path:
        """Files that list the partitions to read."""
        return self.root / "partitions"

    @property
    def progress(self) -> Path:
        """The progress of each reader."""
        return self.root / "progress"

    @property
    def staged(self) -> Path:
        """Lines from shards that are not in the ledger yet."""
        return self.root / "staged"

    @property
    def dead_letters(self) -> Path:
        """Dead letters."""
        return self.root / "letters"

    @property
    def counts(self) -> Path:
        """The counts of tuples from staged files that were deleted."""
        return self.root / "counts.jsonl"

    @property
    def checkpoints(self) -> Path:
        """Flink's checkpoints."""
        return self.root / "checkpoints"

    @property
    def savepoints(self) -> Path:
        """Flink's savepoints."""
        return self.root / "savepoints"

    def create(self) -> None:
        """Create all folders, readable by their owner only: a state contains private events."""
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        for folder in (
            self.job,
            self.partitions,
            self.progress,
            self.staged,
            self.dead_letters,
            self.checkpoints,
            self.savepoints,
        ):
            folder.mkdir(exist_ok=True)

    def start_partitions(self, partitions: int) -> None:
        """Tell the job to read its partitions; call this at every start and restart of the job."""
        for number in range(partitions):
            (self.progress / str(number)).touch()
        temporary = self.partitions / ".begin"
        temporary.write_text("".join(f"{number}\n" for number in range(partitions)))
        temporary.rename(self.partitions / f"{time.time_ns()}.txt")

    def find_latest_state(self) -> Path | None:
        """Find the newest complete checkpoint or savepoint, if there is one."""
        whole = [
            *self.checkpoints.glob("*/chk-*/_metadata"),
            *self.savepoints.glob("savepoint-*/_metadata"),
        ]
        newest = max(whole, key=lambda path: path.stat().st_mtime_ns, default=None)
        return None if newest is None else newest.parent
