"""Following a folder that files are added to: the shared list of checks, and names in order."""

# ruff: noqa: D102 - what they do is said where the checks are
from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tacit.connectors import file_pieces, follow_folder
from tacit.connectors.files import open_source
from tacit.connectors.follow_folder import FollowFolderSource
from tacit.connectors.openers import open_input
from tacit.errors import SchemaError, SourceError
from tacit.pipeline.compiled_spec import CompiledSpec
from tacit.pipeline.sources import Source
from tacit.spec.yaml_reader import loads
from tests.connectors.checks import COLUMNS, TYPES, Feed, Reading, SourceChecks, numbers, tuples


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look more often."""
    monkeypatch.setattr(follow_folder, "_POLL_SECONDS", 0.02)


class FolderFeed(Feed):
    """A folder that files are renamed into, a new one for everything that is sent."""

    def __init__(self, folder: Path, suffix: str) -> None:
        self.folder = folder
        self.suffix = suffix
        self._raw = b""
        self._count = 0
        folder.mkdir()

    def open(self) -> Source:
        return open_input(self.folder, follow=True)

    def send(self, rows: Sequence[dict[str, Any]], partition: int = 0) -> None:
        self._count += 1
        self.put(f"{self._count:06}{self.suffix}", rows)

    def send_raw(self, payload: bytes) -> None:
        """It stands in the file that comes next: a file of nothing else has no columns."""
        self._raw += payload + b"\n"

    def put(self, name: str, rows: Sequence[dict[str, Any]]) -> None:
        """A file of these rows under a name."""
        part = self.folder / f".{name}.part"
        frame = pl.DataFrame(rows)
        if name.endswith(".parquet"):
            frame.write_parquet(part)
        elif name.endswith(".arrow"):
            frame.write_ipc(part)
        else:
            text = frame.write_csv() if name.endswith(".csv") else frame.write_ndjson()
            part.write_bytes(text.encode() + self._raw)
        self._raw = b""
        part.rename(self.folder / name)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of lines are read in many pieces."""
    monkeypatch.setattr(file_pieces, "PIECE", 64)


@pytest.fixture(params=[".jsonl", ".csv"])
def feed(request: pytest.FixtureRequest, tmp_path: Path) -> FolderFeed:
    return FolderFeed(tmp_path / "folder", request.param)


class TestFoldersOfLines(SourceChecks):
    """A growing folder of lines passes the list of checks."""

    @pytest.mark.parametrize("feed", [".jsonl"], indirect=True)
    def test_a_slow_reader_holds_it_back_and_memory_stays_bounded(self, feed: Feed) -> None:
        """All kinds of lines come through the same queue."""
        super().test_a_slow_reader_holds_it_back_and_memory_stays_bounded(feed)


class TestFoldersOfTables(SourceChecks):
    """So does one of Parquet or Arrow files."""

    @pytest.fixture(params=[".parquet", ".arrow"])
    def feed(self, request: pytest.FixtureRequest, tmp_path: Path) -> FolderFeed:
        return FolderFeed(tmp_path / "folder", request.param)

    @pytest.mark.parametrize("feed", [".parquet"], indirect=True)
    def test_a_slow_reader_holds_it_back_and_memory_stays_bounded(self, feed: Feed) -> None:
        super().test_a_slow_reader_holds_it_back_and_memory_stays_bounded(feed)

    def test_what_cannot_be_read_is_rejected_with_a_reason_and_the_rest_goes_on(
        self, feed: Feed
    ) -> None:
        """Of such a file not a part can be read: it is named, and nothing goes on."""
        assert isinstance(feed, FolderFeed)
        feed.send(tuples(0, 3))
        reading = Reading(feed.open())
        reading.take(3, close=False)
        (feed.folder / f"1{feed.suffix}").write_bytes(b"no payload at all")
        with pytest.raises(SourceError, match=f"1{feed.suffix} cannot be read"):
            reading.take(1)


@pytest.mark.parametrize("suffix", [".parquet", ".arrow", ".csv", ".jsonl"])
def test_files_that_are_there_come_as_from_the_folder_that_is_not_followed(
    suffix: str, tmp_path: Path
) -> None:
    feed = FolderFeed(tmp_path / "folder", suffix)
    for number in (3, 1, 2):
        feed.put(f"{number}{suffix}", tuples(100 * number, 20))
    followed, plain = feed.open(), open_source(feed.folder)
    assert followed.schema() == plain.schema()
    found = Reading(followed).take(60)
    batches = plain.batches(COLUMNS, types=TYPES)
    assert found == [row for batch in batches for row in batch.table.to_pylist()]
    assert numbers(found) == [100 * part + n for part in (1, 2, 3) for n in range(20)]


def test_a_folder_that_is_empty_at_first_is_waited_for_and_empty_files_are_passed(
    feed: FolderFeed,
) -> None:
    (feed.folder / f"0{feed.suffix}").touch()
    timer = threading.Timer(0.5, lambda: feed.put(f"1{feed.suffix}", tuples(0, 4)))
    timer.start()
    reading = Reading(feed.open())
    assert numbers(reading.take(4, close=False)) == [0, 1, 2, 3]
    (feed.folder / f"2{feed.suffix}").touch()
    feed.put(f"3{feed.suffix}", tuples(4, 1))
    assert numbers(reading.take(1)) == [4]
    timer.join(300)


@pytest.mark.parametrize("name", [".2{}", "_2{}", "2{}.tmp", "2{}.inprogress", "2"])
def test_a_file_counts_when_it_has_its_final_name(name: str, feed: FolderFeed) -> None:
    feed.put(f"1{feed.suffix}", tuples(0, 2))
    feed.put(f"2{feed.suffix}", tuples(2, 2))
    final = feed.folder / f"2{feed.suffix}"
    unfinished = final.rename(feed.folder / name.format(feed.suffix))
    (feed.folder / f"15{feed.suffix}").mkdir()
    reading = Reading(feed.open())
    reading.take(2, close=False)
    reading.silence()
    assert numbers(reading.rows) == [0, 1]
    unfinished.rename(final)
    assert numbers(reading.take(2)) == [2, 3]


def test_a_file_whose_place_is_gone_is_reported_once_and_not_read(
    feed: FolderFeed, caplog: pytest.LogCaptureFixture
) -> None:
    feed.put(f"1{feed.suffix}", tuples(0, 2))
    feed.put(f"3{feed.suffix}", tuples(2, 2))
    reading = Reading(feed.open())
    reading.take(4, close=False)
    feed.put(f"2{feed.suffix}", tuples(100, 2))
    reading.silence()
    feed.put(f"4{feed.suffix}", tuples(4, 2))
    assert numbers(reading.take(2)) == [4, 5]
    (warned,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert f"2{feed.suffix} was added after 3{feed.suffix} was read" in warned.getMessage()


def test_a_file_that_a_listing_missed_is_not_too_late(
    feed: FolderFeed, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Two times files come while the folder is listed, and it finds only the last of them."""
    for number in range(1, 6):
        feed.put(f"{number}{feed.suffix}", tuples(number, 1))
    listed = follow_folder._Folder._names
    missed: Iterator[str] = iter(["1245", "4"])

    def racing(folder: follow_folder._Folder) -> set[str]:
        hidden = next(missed, "")
        return {name for name in listed(folder) if name[0] not in hidden}

    folder = follow_folder._Folder(feed.folder)
    monkeypatch.setattr(follow_folder._Folder, "_names", racing)
    monkeypatch.setattr(follow_folder, "_PAUSE_FACTOR", 1e9)
    assert [(folder.next_file() or "")[:1] for _ in range(4)] == ["1", "2", "3", ""]
    folder._due = 0.0
    assert [(folder.next_file() or "")[:1] for _ in range(3)] == ["4", "5", ""]
    assert not caplog.records


def test_resumed_in_silence_it_goes_on_after_the_last_file_though_it_is_gone(
    feed: FolderFeed,
) -> None:
    feed.put(f"1{feed.suffix}", tuples(0, 3))
    feed.put(f"2{feed.suffix}", tuples(3, 3))
    first = Reading(feed.open())
    first.take(6, close=False)
    first.silence()
    token = first.next().token
    first.close()
    (feed.folder / f"2{feed.suffix}").unlink()
    feed.put(f"3{feed.suffix}", tuples(6, 2))
    feed.put(f"4{feed.suffix}", tuples(8, 2))
    source = feed.open()
    source.resume(token)
    assert numbers(Reading(source).take(4)) == [6, 7, 8, 9]


@pytest.mark.parametrize("change", ["gone", "longer"])
def test_a_file_that_was_being_read_must_be_there_as_it_was(change: str, feed: FolderFeed) -> None:
    feed.put(f"1{feed.suffix}", tuples(0, 50))
    first = Reading(feed.open())
    first.take(50, close=False)
    token, _ = first.place(40)
    first.close()
    assert token["at"] is not None
    path = feed.folder / f"1{feed.suffix}"
    if change == "gone":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes() * 2)
    feed.put(f"2{feed.suffix}", tuples(50, 2))
    source = feed.open()
    source.resume(token)
    with pytest.raises(SourceError, match="was being read, and is missing or changed"):
        Reading(source).next()


def test_numbers_of_a_later_file_get_the_types_of_the_first(tmp_path: Path) -> None:
    feed = FolderFeed(tmp_path / "folder", ".parquet")
    feed.send(tuples(0, 2))
    feed.send([row | {"at": float(row["at"])} for row in tuples(2, 2)])
    reading = Reading(feed.open())
    assert numbers(reading.take(4, close=False)) == [0, 1, 2, 3]
    feed.send([row | {"n": "many"} for row in tuples(4, 1)])
    with pytest.raises(SourceError, match=r"'n' is .*string, in an earlier file it is int64"):
        reading.take(1)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_later_file_without_a_column_is_refused(suffix: str, tmp_path: Path) -> None:
    feed = FolderFeed(tmp_path / "folder", suffix)
    feed.send(tuples(0, 2))
    reading = Reading(feed.open())
    reading.take(2, close=False)
    feed.send([{"subject": "s", "at": 1}])
    with pytest.raises(SchemaError, match="'n' is not there"):
        reading.take(1)


def test_later_objects_without_a_key_have_null_there(tmp_path: Path) -> None:
    feed = FolderFeed(tmp_path / "folder", ".jsonl")
    feed.send([{"subject": "s"}])
    feed.send(tuples(0, 2))
    feed.send([{"n": 2}])
    assert Reading(feed.open()).take(4) == [
        {"subject": "s", "at": None, "n": None},
        *tuples(0, 2),
        {"subject": None, "at": None, "n": 2},
    ]


def test_what_the_files_are_is_known_from_the_first(tmp_path: Path) -> None:
    for suffix, textual, keyed in ((".jsonl", 1, 1), (".csv", 1, 0), (".parquet", 0, 0)):
        feed = FolderFeed(tmp_path / suffix, suffix)
        feed.send(tuples(0, 1))
        source = feed.open()
        assert source.schema().names == ([] if keyed else list(COLUMNS))
        assert (source.textual, source.keyed) == (textual, keyed)


SPEC = """
version: 1
streams: {gps: {subject: subject, time: at}}
windows: {size: 1 min}
events: {third: {stream: gps, where: "n % 3 = 1"}}
queries: [{name: jam, consumer: city, pattern: third}]
"""


def test_a_run_that_follows_a_folder_gives_its_text_the_types_of_the_specification(
    feed: FolderFeed,
) -> None:
    feed.send(tuples(0, 1))
    types = CompiledSpec(loads(SPEC)).column_types("gps", feed.open())
    assert dict(types.types) == {"subject": "text", "at": "time", "n": "number"}


def test_a_file_of_another_kind_is_refused(feed: FolderFeed) -> None:
    feed.send(tuples(0, 2))
    reading = Reading(feed.open())
    reading.take(2, close=False)
    feed.put("2.parquet", tuples(2, 2))
    with pytest.raises(SourceError, match="of another kind"):
        reading.take(1)


def test_a_large_folder_is_looked_at_less_often(
    feed: FolderFeed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look that takes 20 ms is followed by a rest of 200, whether or not files wait."""
    for number in range(30):
        feed.put(f"{number:02}{feed.suffix}", tuples(number, 1))
    looks = 0
    now = 0.0
    listed = follow_folder._Folder._names

    def slow(folder: follow_folder._Folder) -> set[str]:
        nonlocal looks, now
        looks, now = looks + 1, now + 0.01
        return listed(folder)

    monkeypatch.setattr(follow_folder._Folder, "_names", slow)
    monkeypatch.setattr("tacit.connectors.follow_folder.time.monotonic", lambda: now)
    folder = follow_folder._Folder(feed.folder)
    found = [folder.next_file() for _ in range(30)]
    assert [name[:2] for name in found if name] == [f"{number:02}" for number in range(30)]
    assert looks == 3
    now += 0.19
    assert folder.next_file() is None
    assert looks == 3
    now += 0.02
    assert folder.next_file() is None
    assert looks == 4


def test_it_lives_and_can_be_read_again(feed: FolderFeed) -> None:
    feed.send(tuples(0, 3))
    source = feed.open()
    assert isinstance(source, FollowFolderSource)
    assert source.live
    assert not source.once
    for _ in range(2):
        assert numbers(Reading(source).take(3)) == [0, 1, 2]


def test_a_folder_that_is_not_there_is_explained(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="or a folder"):
        open_input(tmp_path / "missing", follow=True)
    folder = tmp_path / "removed"
    folder.mkdir()
    source = open_input(folder, follow=True)
    folder.rmdir()
    with pytest.raises(SourceError, match="does not exist"):
        source.schema()
