"""What is known of refused tuples outlives staged files and their reader; old files go."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tacit.engines.flink.folders import Folders
from tacit.engines.flink.staged_files import StagedFiles
from tacit.engines.sharded.counts import TupleCounts
from tacit.engines.sharded.lines import ShardLine, format_dead_letter
from tacit.errors import StateError
from tacit.pipeline.refusals import Refusals


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    """The folder of a job."""
    made = Folders(tmp_path / "job")
    made.create()
    return made


def stage(folders: Folders, name: str, *lines: str) -> None:
    """A file as Flink shows it."""
    (folders.staged / f"part-{name}").write_text("".join(f"{line}\n" for line in lines))


def windows(staged: StagedFiles) -> list[int]:
    return [line.window for line in staged.read_lines()]


def test_counts_are_the_latest_of_each_and_outlive_files_and_drivers(folders: Folders) -> None:
    staged = StagedFiles(folders)
    assert staged.refusals == Refusals(0, {})
    line = ShardLine((0,), 7, 7, None, b"body", "mark").to_line()
    early = TupleCounts("reader 0", 5, {"late": 1}).to_line()
    stage(folders, "0", early, line, format_dead_letter("{}"))
    stage(folders, "1", TupleCounts("reader 1", 10, {"late": 2, "no time": 1}).to_line())
    assert windows(staged) == [7]
    assert staged.refusals == Refusals(15, {"late": 3, "no time": 1})
    staged.drop(8)
    assert not list(folders.staged.iterdir())
    again = StagedFiles(folders)
    assert again.refusals == Refusals(15, {"late": 3, "no time": 1})
    stage(folders, "2", TupleCounts("reader 0", 50, {"late": 4}).to_line(), early)
    stage(folders, "3", TupleCounts("shard 2", -6, {"late": 6}).to_line())
    assert windows(again) == []
    assert again.refusals == Refusals(54, {"late": 12, "no time": 1})


def test_files_that_a_lost_task_has_left_behind_are_removed(folders: Folders) -> None:
    staged = StagedFiles(folders)
    names = (".part-x-0.inprogress.1", ".part-x-1.inprogress.2")
    for name, age in zip(names, (4000, 3000), strict=True):
        (folders.staged / name).touch()
        os.utime(folders.staged / name, (time.time() - age,) * 2)
    stage(folders, "0", ShardLine((0,), 7, 7, None, b"body", "mark").to_line())
    assert windows(staged) == [7]
    staged.drop(8)
    assert [path.name for path in folders.staged.iterdir()] == [names[1]]


def test_counts_are_for_their_owner_alone(folders: Folders) -> None:
    staged = StagedFiles(folders)
    stage(folders, "0", TupleCounts("reader 0", 5).to_line())
    assert windows(staged) == []
    staged.drop(1)
    assert folders.counts.stat().st_mode & 0o077 == 0
    assert folders.root.stat().st_mode & 0o077 == 0


def test_counts_that_are_damaged_are_refused(folders: Folders) -> None:
    for text in ("counts ", "counts 7", 'counts ["reader 0", "x", {}]', 'counts ["a", 1, []]'):
        with pytest.raises(StateError, match="damaged"):
            TupleCounts.from_line(text)
