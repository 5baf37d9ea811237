"""How readers hear of each other: each reads one file, whatever the number of readers."""

from __future__ import annotations

from pathlib import Path

from tacit.engines.flink.folders import Folders
from tacit.engines.flink.progress import Progress
from tacit.windows.clock import NONE


def begun(folder: Path, partitions: int) -> Path:
    """The folder of a job that nobody has read for."""
    folders = Folders(folder / "job")
    folders.create()
    Progress(folders.progress).create(partitions)
    return folders.progress


def test_nobody_reads_before_all_are_ready(tmp_path: Path) -> None:
    folder = begun(tmp_path, 2)
    one, other = Progress(folder), Progress(folder)
    pace = Progress(folder)
    assert one.is_too_far_ahead(NONE, 5)
    one.report(0, NONE)
    pace.publish_slowest()
    assert one.is_too_far_ahead(NONE, 5)
    assert other.is_too_far_ahead(NONE, 5)
    assert not one.has_begun()
    other.report(1, NONE)
    pace.publish_slowest()
    assert not one.is_too_far_ahead(NONE, 5)
    assert one.has_begun()


def test_a_reader_waits_for_the_one_that_is_furthest_behind(tmp_path: Path) -> None:
    folder = begun(tmp_path, 3)
    readers, pace = [Progress(folder) for _ in range(3)], Progress(folder)
    windows = (100, 105, 106)
    for number, closed in enumerate(windows):
        readers[number].report(number, closed)
    pace.publish_slowest()
    assert [
        reader.is_too_far_ahead(closed, 5) for reader, closed in zip(readers, windows, strict=True)
    ] == [False, False, True]
    readers[0].report(0, None)  # silent, or done: nobody waits for it
    pace.publish_slowest()
    assert not readers[2].is_too_far_ahead(106, 5)
    assert not readers[2].is_over()
    for number, reader in enumerate(readers):
        reader.report(number, None)
    pace.publish_slowest()
    assert readers[0].is_over()
    assert not readers[0].is_too_far_ahead(1000, 5)


def test_to_begin_again_forgets_nothing(tmp_path: Path) -> None:
    folder = begun(tmp_path, 2)
    Progress(folder).report(0, 7)
    Progress(folder).create(2)
    assert (folder / "0").read_text().strip() == "7"
    assert (folder / "1").read_text() == ""
