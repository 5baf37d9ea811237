"""The folder of a job's files, which every machine must have under the same name."""

from __future__ import annotations

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
    def release(self) -> Path:
        """Where windows are released to: the ledger and the sinks."""
        return self.root / "release.json"

    @property
    def status(self) -> Path:
        """What was released so far."""
        return self.root / "status.json"

    @property
    def job_ids(self) -> Path:
        """Flink's ids of the job, one for each start."""
        return self.root / "job-ids"

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
            self.progress,
            self.staged,
            self.dead_letters,
            self.checkpoints,
            self.savepoints,
        ):
            folder.mkdir(exist_ok=True)

    def add_job_id(self, job: str) -> None:
        """Add an id of Flink's for the job: every start has its own."""
        with self.job_ids.open("a", encoding="ascii") as file:
            file.write(f"{job}\n")

    def read_job_ids(self) -> list[str]:
        """Read all ids that the job has had."""
        try:
            return self.job_ids.read_text("ascii").split()
        except FileNotFoundError:
            return []
