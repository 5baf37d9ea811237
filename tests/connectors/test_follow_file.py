"""Following a file that grows: the shared list of checks, and rotation."""

# ruff: noqa: D102 - what they do is said where the checks are
from __future__ import annotations

import json
import logging
import os
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from tacit.connectors import follow_file
from tacit.connectors.file_pieces import BOM
from tacit.connectors.follow_file import FollowFileSource
from tacit.connectors.openers import open_input
from tacit.errors import SchemaError, SourceError
from tacit.pipeline.sources import Source
from tests.connectors.checks import COLUMNS, Feed, Reading, SourceChecks, numbers, tuples


class FileFeed(Feed):
    """A file that lines are added to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._csv = path.suffix == ".csv"

    def open(self) -> Source:
        return open_input(self.path, follow=True)

    def send(self, rows: Sequence[dict[str, Any]], partition: int = 0) -> None:
        if self._csv:
            fresh = not self.path.exists() or not self.path.stat().st_size
            parse_header = [",".join(rows[0])] * fresh
            lines = parse_header + [",".join(map(str, row.values())) for row in rows]
        else:
            lines = [json.dumps(row) for row in rows]
        self.append("".join(f"{line}\n" for line in lines).encode())

    def send_raw(self, payload: bytes) -> None:
        self.append(payload + b"\n")

    def append(self, data: bytes) -> None:
        with self.path.open("ab") as file:
            file.write(data)


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look more often, and wait less for a writer that has not noticed a new file."""
    monkeypatch.setattr(follow_file, "_POLL_SECONDS", 0.02)
    monkeypatch.setattr(follow_file, "_GRACE", 0.2)


@pytest.fixture(params=["a.jsonl", "a.csv"])
def feed(request: pytest.FixtureRequest, tmp_path: Path) -> FileFeed:
    return FileFeed(tmp_path / request.param)


class TestFollowing(SourceChecks):
    """A growing file passes the list of checks."""

    @pytest.mark.parametrize("feed", ["a.jsonl"], indirect=True)
    def test_a_slow_reader_holds_it_back_and_memory_stays_bounded(self, feed: Feed) -> None:
        """Lines of both kinds come through the same queue."""
        super().test_a_slow_reader_holds_it_back_and_memory_stays_bounded(feed)


def test_half_a_line_waits_for_the_other_half(feed: FileFeed) -> None:
    feed.send(tuples(0, 2))
    whole = FileFeed(feed.path.with_name(f"other{feed.path.suffix}"))
    whole.send(tuples(0, 3))
    line = whole.path.read_bytes().splitlines(keepends=True)[-1]
    feed.append(line[:7])
    reading = Reading(feed.open())
    reading.take(2, close=False)
    reading.silence()
    assert numbers(reading.rows) == [0, 1]
    feed.append(line[7:])
    assert numbers(reading.take(1)) == [2]
    assert not reading.rejected


def test_a_byte_order_mark_may_be_written_in_parts(tmp_path: Path) -> None:
    whole = FileFeed(tmp_path / "other.jsonl")
    whole.send(tuples(0, 2))
    feed = FileFeed(tmp_path / "a.jsonl")
    feed.append(BOM[:1])
    reading = Reading(feed.open())
    reading.silence()
    feed.append(BOM[1:] + whole.path.read_bytes())
    assert numbers(reading.take(2)) == [0, 1]
    assert not reading.rejected


def test_a_file_that_is_empty_at_first_is_waited_for(feed: FileFeed) -> None:
    import threading

    feed.path.touch()
    threading.Timer(0.1, lambda: feed.send(tuples(0, 4))).start()
    assert numbers(Reading(feed.open()).take(4)) == [0, 1, 2, 3]


def test_a_file_of_objects_is_read_before_it_holds_any(tmp_path: Path) -> None:
    """Each line names its own columns, so that there is nothing to wait for."""
    feed = FileFeed(tmp_path / "a.jsonl")
    feed.path.touch()
    source = feed.open()
    assert source.schema().names == []
    reading = Reading(source)
    assert reading.next().table.schema.names == list(COLUMNS)
    feed.send([{"n": 0}])
    feed.send(tuples(1, 1))
    assert reading.take(2) == [{"subject": None, "at": None, "n": 0}, *tuples(1, 1)]


def test_a_replaced_file_is_finished_first(feed: FileFeed) -> None:
    feed.send(tuples(0, 3))
    reading = Reading(feed.open())
    reading.take(3, close=False)
    old = FileFeed(feed.path.with_name(f"old{feed.path.suffix}"))
    feed.path.rename(old.path)
    old.send(tuples(3, 2))  # the writer has not noticed it yet
    old.append(b'{"subject": "s5", "at": 1200000005000, "n": 5}' if not feed._csv else b"s5,5,5")
    feed.send(tuples(6, 3))
    assert numbers(reading.take(6)) == [3, 4, 5, 6, 7, 8]
    assert not reading.rejected


def test_a_file_that_was_replaced_while_nobody_followed_is_finished_first(feed: FileFeed) -> None:
    feed.send(tuples(0, 6))
    first = Reading(feed.open())
    first.take(6, close=False)
    token, rows = first.place(4)
    first.close()
    feed.path.rename(feed.path.with_name("a.1"))
    feed.send(tuples(6, 3))
    source = feed.open()
    source.resume(token)
    assert numbers(Reading(source).take(9 - 4 + rows)[rows:]) == [4, 5, 6, 7, 8]


def test_a_file_that_is_gone_is_not_mistaken_for_the_new_one(feed: FileFeed) -> None:
    feed.send(tuples(0, 6))
    first = Reading(feed.open())
    first.take(6, close=False)
    first.silence()
    token = first.next().token
    first.close()
    feed.path.unlink()
    feed.send(tuples(100, 60))
    source = feed.open()
    source.resume(token)
    with pytest.raises(SourceError, match="not the file that was followed"):
        Reading(source).next()


def test_a_file_that_was_written_anew_while_nobody_followed_is_not_read_on(feed: FileFeed) -> None:
    feed.send(tuples(0, 6))
    first = Reading(feed.open())
    first.take(6, close=False)
    first.silence()
    token = first.next().token
    first.close()
    os.truncate(feed.path, 0)
    feed.send(tuples(100, 60))
    source = feed.open()
    source.resume(token)
    with pytest.raises(SourceError, match="not the file that was followed"):
        Reading(source).next()


def test_an_emptied_file_is_read_from_its_beginning(
    feed: FileFeed, caplog: pytest.LogCaptureFixture
) -> None:
    feed.send(tuples(0, 9))
    reading = Reading(feed.open())
    reading.take(9, close=False)
    os.truncate(feed.path, 0)
    reading.silence()
    feed.send(tuples(20, 2))
    assert numbers(reading.take(2)) == [20, 21]
    assert "emptied" in caplog.text


def test_a_new_csv_file_may_order_its_columns_anew(tmp_path: Path) -> None:
    feed = FileFeed(tmp_path / "a.csv")
    feed.send(tuples(0, 2))
    reading = Reading(feed.open())
    reading.take(2, close=False)
    feed.path.rename(tmp_path / "old.csv")
    feed.append(b"extra,n,at,subject\nx,2,1200000002000,s2\n")
    (row,) = reading.take(1)
    assert row == tuples(2, 1)[0]


def test_a_new_csv_file_without_a_column_is_refused(tmp_path: Path) -> None:
    feed = FileFeed(tmp_path / "a.csv")
    feed.send(tuples(0, 2))
    reading = Reading(feed.open())
    reading.take(2, close=False)
    feed.path.rename(tmp_path / "old.csv")
    feed.append(b"at,subject\n1200000002000,s2\n")
    with pytest.raises(SchemaError, match="'n' is not there"):
        reading.take(1)


def test_what_follows_and_resumes_tells_of_it_on_the_logger(
    feed: FileFeed, caplog: pytest.LogCaptureFixture
) -> None:
    feed.send(tuples(0, 2))
    with caplog.at_level(logging.INFO):
        reading = Reading(feed.open())
        reading.take(2, close=False)
        feed.path.rename(feed.path.with_name("old"))
        feed.send(tuples(2, 2))
        reading.take(2)
    assert "replaced" in caplog.text


@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl.gz", "missing.jsonl"])
def test_what_cannot_be_followed_is_explained(name: str, tmp_path: Path) -> None:
    (tmp_path / "a.parquet").touch()
    (tmp_path / "a.jsonl.gz").touch()
    with pytest.raises(SourceError, match="followed"):
        FollowFileSource(tmp_path / name)


def test_a_line_that_does_not_end_is_refused(
    feed: FileFeed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow_file, "LONGEST_LINE", 5000)
    feed.send(tuples(0, 2))
    feed.append(b"x" * 10_000)
    batches = feed.open().batches(COLUMNS)
    with pytest.raises(SourceError, match="a line of more than"):
        list(islice(batches, 20))
