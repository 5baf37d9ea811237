"""The releaser needs nothing but the folder and the ledger, and may be started again anywhere."""

from __future__ import annotations

from pathlib import Path
from random import Random

import polars as pl
import pytest

from tacit.engines.flink.folders import Folders
from tacit.engines.flink.job_status import JobStatus
from tacit.engines.flink.releaser import Releaser, ReleaserThread, ReleaseTarget
from tacit.engines.sharded.counts import TupleCounts
from tacit.engines.sharded.lines import ShardLine, format_dead_letter
from tacit.errors import FencedError, StateError
from tacit.ledger.ledger import Ledger
from tacit.ledger.verification import verify
from tests.engines.sharded.simulated import Simulation
from tests.engines.sharded.test_collecting import prepared


class Job:
    """A job whose shards have reported everything, of which nothing is staged yet."""

    def __init__(self, folder: Path) -> None:
        self.folders = Folders(folder / "job")
        self.folders.create()
        self.ledger = str(folder / "spent.db")
        self.answers = folder / "answers.jsonl"
        with Ledger.open(self.ledger) as ledger:
            self.job = prepared(folder, ledger.take_over("home", "f"))
        self.job.write(self.folders.job)
        ReleaseTarget("home", self.ledger, [str(self.answers)]).write(self.folders.release)
        self.lines = Simulation(self.job, Random(3)).run()
        windows = {line.window for line in self.lines if not line.finished}
        self.first, self.windows = min(windows), len(windows)

    def stage(self, name: str, begin: int, end: int | None = None) -> None:
        """What shards have reported about windows from the `begin`th on, as Flink shows it."""
        begin += self.first
        stop = self.first + (self.windows if end is None else end)
        found = [line.to_line() for line in self.lines if line.body and begin <= line.window < stop]
        if end is None:
            found += [ShardLine((shard,)).to_line() for shard in self.job.layout.nonempty]
        found.append(format_dead_letter(f'{{"raw": "{name}"}}'))
        found.append(TupleCounts("reader 0", 10 * stop, {"late": 1}).to_line())
        (self.folders.staged / f"part-{name}").write_text("".join(f"{one}\n" for one in found))


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def test_windows_are_released_once_by_releasers_that_follow_each_other(job: Job) -> None:
    job.stage("a", 0, 3)
    with Releaser(job.folders) as releaser:
        assert releaser.release()
        assert not releaser.release()
        assert not releaser.finished
        status = releaser.complete()
    people, queries = len(job.job.subjects), len(job.job.version.spec.subject_queries)
    assert (status.windows, status.answers) == (3, 3 * people * queries)
    assert not status.finished
    size = job.job.version.spec.windows.size
    assert status.until == (job.first + 3) * size
    job.stage("b", 2, 6)  # Flink shows a window again if the job was restored
    with Releaser(job.folders) as releaser:
        releaser.release()
    assert JobStatus.read(job.folders.status).windows == 6
    job.stage("c", 6)
    thread = ReleaserThread(job.folders)
    thread.start()
    thread.join(120)
    thread.check()
    status = JobStatus.read(job.folders.status)
    assert thread.status == status
    assert status.finished
    assert (status.windows, status.taken) == (job.windows, 10 * (job.first + job.windows))
    assert status.refused == {"late": 1}
    answers = pl.read_ndjson(job.answers)
    assert answers["id"].to_list() == list(range(status.answers))
    with Ledger.open(job.ledger) as ledger:
        assert verify(ledger).passed
    letters = b"".join(path.read_bytes() for path in job.folders.dead_letters.iterdir())
    assert sorted(letters.splitlines()) == [b'{"raw": "a"}', b'{"raw": "b"}', b'{"raw": "c"}']
    assert job.folders.status.stat().st_mode & 0o077 == 0
    assert job.folders.release.stat().st_mode & 0o077 == 0


def test_a_releaser_that_was_replaced_cannot_release(job: Job) -> None:
    with Releaser(job.folders) as former, Releaser(job.folders) as latter:
        job.stage("a", 0, 3)
        with pytest.raises(FencedError, match="taken over"):
            former.release()
        assert latter.release()
    with Ledger.open(job.ledger) as ledger:
        assert verify(ledger).releases == 3


def test_an_error_ends_the_thread_and_reaches_its_task(job: Job) -> None:
    (job.folders.staged / "part-0").write_text("nonsense\n")
    thread = ReleaserThread(job.folders)
    thread.start()
    thread.join(120)
    with pytest.raises(StateError, match="damaged"):
        thread.check()
    thread.stop()
