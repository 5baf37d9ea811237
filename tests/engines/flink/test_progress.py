"""How readers hear of each other."""

from __future__ import annotations

from pathlib import Path

from tacit.engines.flink.folders import Folders
from tacit.engines.flink.progress import Progress
from tacit.windows.clock import NONE


def begun(folder: Path, partitions: int) -> Path:
    """The folder of a job that nobody has read for."""
    folders = Folders(folder / "job")
    folders.create()
    folders.start_partitions(partitions)
    return folders.progress


def test_nobody_reads_before_all_are_ready(tmp_path: Path) -> None:
    folder = begun(tmp_path, 2)
    one, other = Progress(folder), Progress(folder)
    one.report(0, NONE)
    assert one.is_too_far_ahead(0, NONE, 5)
    assert not other.is_too_far_ahead(1, NONE, 5)
    assert not one.has_begun()
    other.report(1, NONE)
    assert not one.is_too_far_ahead(0, NONE, 5)
    assert one.has_begun()


def test_a_reader_waits_for_the_one_that_is_furthest_behind(tmp_path: Path) -> None:
    folder = begun(tmp_path, 3)
    readers = [Progress(folder) for _ in range(3)]
    for number, closed in enumerate((100, 105, 106)):
        readers[number].report(number, closed)
    assert [
        reader.is_too_far_ahead(n, 100 + (0, 5, 6)[n], 5) for n, reader in enumerate(readers)
    ] == [
        False,
        False,
        True,
    ]
    readers[0].report(0, None)  # silent, or done: nobody waits for it
    assert not readers[2].is_too_far_ahead(2, 106, 5)
    assert not readers[2].is_over()
    for number, reader in enumerate(readers):
        reader.report(number, None)
    assert readers[0].is_over()


def test_to_begin_again_forgets_nothing(tmp_path: Path) -> None:
    folder = begun(tmp_path, 2)
    Progress(folder).report(0, 7)
    Folders(tmp_path / "job").start_partitions(2)
    assert (folder / "0").read_text() == "7"
    assert (folder / "1").read_text() == ""
