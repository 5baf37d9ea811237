"""Which state a job is resumed from."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tacit.engines.flink.folders import Folders
from tacit.engines.flink.state_places import StatePlaces

JOB, OTHER = "a" * 32, "b" * 32


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    """The folder of a job that was started once."""
    made = Folders(tmp_path / "job")
    made.create()
    made.add_job_id(JOB)
    return made


def complete(folder: Path, age: int) -> str:
    """A state of this age, in seconds."""
    folder.mkdir(parents=True)
    (folder / "_metadata").touch()
    os.utime(folder / "_metadata", (1_700_000_000 - age,) * 2)
    return folder.as_uri()


def test_the_newest_complete_state_of_the_job_counts(folders: Folders) -> None:
    places = StatePlaces.choose(folders, {})
    assert places.find_latest(folders) is None
    first = complete(folders.checkpoints / JOB / "chk-7", 50)
    (folders.checkpoints / JOB / "chk-9").mkdir()  # not complete
    assert places.find_latest(folders) == first
    saved = complete(folders.savepoints / f"savepoint-{JOB[:6]}-0123456789ab", 40)
    assert places.find_latest(folders) == saved
    folders.add_job_id(OTHER)
    later = complete(folders.checkpoints / OTHER / "chk-1", 30)
    assert places.find_latest(folders) == later


@pytest.mark.parametrize("old", [False, True])
def test_other_jobs_may_use_the_same_place(folders: Folders, tmp_path: Path, old: bool) -> None:
    shared = tmp_path / "shared"
    names = ("state.checkpoints.dir", "state.savepoints.dir")
    if not old:
        names = ("execution.checkpointing.dir", "execution.checkpointing.savepoint-dir")
    settings = dict.fromkeys(names, shared.as_uri())
    places = StatePlaces.choose(folders, settings)
    assert places == StatePlaces(shared.as_uri(), shared.as_uri())
    complete(shared / OTHER / "chk-9", 1)
    complete(shared / f"savepoint-{OTHER[:6]}-0123456789ab", 1)
    assert places.find_latest(folders) is None
    own = complete(shared / JOB / "chk-2", 60)
    assert places.find_latest(folders) == own
