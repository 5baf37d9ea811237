"""Sinks to files, folders and standard output."""

# ruff: noqa: D102 - what they do is said where the checks are
from __future__ import annotations

import contextlib
import errno
import glob
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tacit.connectors.files import open_source
from tacit.connectors.openers import open_resumable_sink
from tacit.errors import ClosedPipeError, SinkError, UnreachableError
from tacit.events.columntypes import ColumnTypes
from tacit.events.streams import ColumnType, Stream
from tacit.pipeline.sinks import ReleaseBatch, Sink
from tests.connectors.checks import (
    Receiver,
    SinkChecks,
    answers,
    assert_same,
    batch,
    begin_with,
    remembered,
)
from tests.engines.forking import Forks


class FileReceiver(Receiver):
    """A file or a folder, read as a consumer would."""

    def __init__(self, name: str, patch: pytest.MonkeyPatch) -> None:
        self.name = name
        self._patch = patch

    def open(self) -> Sink:
        return open_resumable_sink(self.name)

    def received(self) -> list[dict[str, Any]]:
        return rows(self.name)

    @contextlib.contextmanager
    def away(self) -> Iterator[None]:
        """The disk is full: what was written does not get there."""

        def full(_: int) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with self._patch.context() as patch:
            patch.setattr(os, "fsync", full)
            yield


ANSWERS: dict[str, ColumnType] = {
    "id": "integer",
    "window_start": "text",
    "window_end": "text",
    "subject": "text",
    "consumer": "text",
    "query": "text",
    "detected": "boolean",
    "confidence": "number",
}
TYPES = ColumnTypes(Stream(subject="subject", time="window_start"), ANSWERS)


def rows(name: str) -> list[dict[str, Any]]:
    """All rows of a file or folder, with times as text and subjects that are never null.

    Where the name has placeholders: of all its files, in the order of answers.
    """
    if "{" in name:
        pattern = re.sub(r"\{\w+\}", "*", name)
        return sorted(
            (row for path in glob.glob(pattern) for row in rows(path)), key=lambda row: row["id"]
        )
    found = csv_rows(name) if ".csv" in name else source_rows(name)
    for row in found:
        row["subject"] = row["subject"] or ""
        for column in ("window_start", "window_end"):
            if isinstance(row[column], datetime):
                text = row[column].isoformat().replace("+00:00", "Z")
                row[column] = text.replace("500000Z", "500Z")
    return found


def source_rows(name: str) -> list[dict[str, Any]]:
    """All rows, as our own sources read them."""
    source = open_source(name)
    known = source.schema().names or batch(1).table.schema.names
    kinds = TYPES if source.textual else None
    batches = source.batches([column for column in known if column in ANSWERS], types=kinds)
    return [row for batch in batches for row in batch.table.to_pylist()]


def csv_rows(name: str) -> list[dict[str, Any]]:
    """All rows of CSV, as another program reads them: subjects may hold line breaks."""
    found: list[dict[str, Any]] = []
    for path in sorted(glob.glob(name)):
        text = pl.read_csv(path, infer_schema=False)
        for part in text.to_arrow(compat_level=pl.CompatLevel.oldest()).to_batches():
            found += TYPES.convert(part).to_pylist()
    return found


FILES = ["a.jsonl", "a.ndjson", "a.csv", "a.jsonl.gz", "a.csv.zst"]
FOLDERS = ["parts/", "parts/*.csv", "parts/*.jsonl.zst", "parts/*.arrow"]


PLACED = [
    "{consumer}.jsonl",
    "{consumer}/{query}.csv",
    "{subject}-{query}.jsonl.gz",
    "{consumer}/",
    "of-{query}/*.csv",
]


class TestFiles(SinkChecks):
    """Every kind of file and folder passes the list of checks."""

    @pytest.fixture(params=[*FILES, *FOLDERS, *PLACED])
    def receiver(
        self, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> Receiver:
        return FileReceiver(f"{tmp_path}/{request.param}", monkeypatch)


KILLED = """
import json, sys
from tacit.connectors.openers import open_resumable_sink
from tests.connectors.checks import batch
with open_resumable_sink(sys.argv[1]) as sink:
    sink.recover(None)
    for release in range(1, 2000):
        print(json.dumps(sink.deliver(batch(release, 600))), flush=True)
"""


@pytest.mark.soak
@pytest.mark.parametrize("name", ["a.csv", "{query}/"])
def test_after_a_kill_at_any_moment_each_answer_stands_there_once(
    name: str, tmp_path: Path, forks: Forks
) -> None:
    target = f"{tmp_path}/{name}"
    process = subprocess.Popen(
        [forks.program, "-c", KILLED, target], stdout=subprocess.PIPE, cwd=os.getcwd()
    )
    assert process.stdout is not None
    told = [process.stdout.readline()]
    time.sleep(0.25)
    process.send_signal(signal.SIGKILL)
    told += [line for line in process.stdout if line.endswith(b"\n")]
    process.wait(60)
    process.stdout.close()
    following = range(len(told) + 1, len(told) + 4)
    with open_resumable_sink(target) as sink:
        sink.recover(json.loads(told[-1]))
        for release in following:
            sink.deliver(batch(release, 600))
    assert_same(
        rows(target), answers(*(batch(release, 600) for release in range(1, following.stop)))
    )
    assert not list(tmp_path.rglob("*.partial"))


@pytest.mark.parametrize("zeros", [0, 70_000])
@pytest.mark.parametrize("share", [0, 0.3, 0.999])
def test_what_a_crash_has_torn_is_cut_off_before_the_next_delivery(
    share: float, zeros: int, tmp_path: Path
) -> None:
    target, other = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    with open_resumable_sink(target) as sink:
        sink.recover(None)
        position = remembered(sink.deliver(batch(1)))
    with open_resumable_sink(other) as sink:
        begin_with(sink, None, batch(2))
    before, text = target.read_bytes(), other.read_bytes()
    with target.open("ab") as file:
        file.write(text[: int(share * len(text))] + bytes(zeros))
    with open_resumable_sink(target) as sink:
        begin_with(sink, position, batch(2))
    assert target.read_bytes() == before + text
    assert_same(rows(str(target)), answers(batch(1), batch(2)))


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.jsonl.gz"])
def test_answers_that_the_ledger_does_not_know_are_not_replaced(name: str, tmp_path: Path) -> None:
    """An older ledger was restored: noise that was seen would be drawn again."""
    target = tmp_path / name
    with open_resumable_sink(target) as sink:
        sink.recover(None)
        position = remembered(sink.deliver(batch(1)))
        sink.deliver(batch(2))
        sink.deliver(batch(3))
    before = target.read_bytes()
    for first in (ReleaseBatch(2, batch(2, 13).table.slice(1), {}), batch(2)):
        with open_resumable_sink(target) as sink, pytest.raises(SinkError, match="older ledger"):
            begin_with(sink, position, first)
        assert target.read_bytes() == before


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv"])
def test_a_file_that_others_have_changed_is_left_alone(name: str, tmp_path: Path) -> None:
    target = tmp_path / name
    with open_resumable_sink(target) as sink:
        sink.recover(None)
        position = remembered(sink.deliver(batch(1, 500)))
    whole = target.read_bytes()
    for damaged in (whole[:-40], whole[:-9] + b"something", b"all other content\n" * 9000):
        target.write_bytes(damaged)
        with (
            open_resumable_sink(target) as sink,
            pytest.raises(SinkError, match="changed by another program"),
        ):
            begin_with(sink, position, batch(2))
        assert target.read_bytes() == damaged


@pytest.mark.parametrize("name", ["a.jsonl", "parts/"])
def test_what_was_there_before_the_first_delivery_is_not_overwritten(
    name: str, tmp_path: Path
) -> None:
    target = f"{tmp_path}/{name}"
    with open_resumable_sink(target) as sink:
        sink.recover(None)
        sink.deliver(batch(1, 30))
    before = rows(target)
    other = ReleaseBatch(1, batch(1, 31).table.slice(1), {})
    with open_resumable_sink(target) as sink, pytest.raises(SinkError, match="choose another"):
        begin_with(sink, None, other)
    assert_same(rows(target), before)


@pytest.mark.parametrize("how", ["while it runs", "between runs"])
@pytest.mark.parametrize("name", ["a.jsonl", "a.csv"])
def test_a_file_that_was_moved_away_is_followed_by_a_new_one(
    name: str, how: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    target, old = tmp_path / name, tmp_path / f"old-{name}"
    sink = open_resumable_sink(target)
    sink.recover(None)
    position = remembered(sink.deliver(batch(1)))
    target.rename(old)
    if how == "between runs":
        sink.close()
        sink = open_resumable_sink(target)
        sink.recover(position)
    sink.deliver(batch(2))
    sink.close()
    # The delivery to the new file was not remembered: it comes again.
    with open_resumable_sink(target) as sink:
        sink.recover(position)
        sink.deliver(batch(2))
        sink.deliver(batch(3))
    assert_same(rows(str(old)), answers(batch(1)))
    assert_same(rows(str(target)), answers(batch(2), batch(3)))
    assert "starting a new file" in caplog.text


def test_csv_refuses_answers_with_other_columns(tmp_path: Path) -> None:
    target = tmp_path / "a.csv"
    table = batch(2).table
    wider = ReleaseBatch(2, table.append_column("exhausted", table["detected"]), {})
    with open_resumable_sink(target) as sink:
        sink.recover(None)
        sink.deliver(batch(1))
        with pytest.raises(SinkError, match=r"exhausted\. Move it away"):
            sink.deliver(wider)
    assert_same(rows(str(target)), answers(batch(1)))


def test_two_processes_cannot_deliver_to_one_file(tmp_path: Path) -> None:
    target = tmp_path / "a.jsonl"
    with open_resumable_sink(target) as first, open_resumable_sink(target) as second:
        first.recover(None)
        with pytest.raises(UnreachableError, match="another process"):
            second.recover(None)
        first.close()
        second.recover(None)


HOLDING = """
import sys
from contextlib import ExitStack
from tacit.connectors.openers import open_resumable_sink
with ExitStack() as stack:
    for target in sys.argv[1:]:
        stack.enter_context(open_resumable_sink(target)).recover(None)
    print("held", flush=True)
    sys.stdin.read()
"""


def test_another_process_keeps_us_out_however_often_it_is_tried(
    tmp_path: Path, forks: Forks
) -> None:
    """Nothing is written without the lock: not on the second attempt, nor by a delivery."""
    names = ["a.jsonl", "a.csv.gz", "parts/", "more/*.csv", "{consumer}.csv", "of-{query}/"]
    targets = [f"{tmp_path}/{name}" for name in names]
    command = [str(forks.program), "-c", HOLDING, *targets]
    with (
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as holder,
        contextlib.ExitStack() as stack,
    ):
        assert holder.stdout is not None
        assert holder.stdin is not None
        assert holder.stdout.readline() == "held\n"
        sinks = [stack.enter_context(open_resumable_sink(target)) for target in targets]
        for sink in sinks:
            for _ in range(3):
                with pytest.raises(UnreachableError, match="another process delivers"):
                    sink.recover(None)
                with pytest.raises(UnreachableError, match="another process delivers"):
                    sink.deliver(batch(1))
        held = [path for path in tmp_path.rglob("*") if path.is_file()]
        assert not [path for path in held if path.stat().st_size]
        holder.stdin.close()
        assert holder.wait(10) == 0
        for sink in sinks:
            begin_with(sink, None, batch(1))
    for target in targets:
        assert_same(rows(target), answers(batch(1)))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small disk")
@pytest.mark.parametrize("name", ["a.jsonl", "parts/*.csv"])
def test_a_disk_that_is_really_full_is_waited_for(name: str, tmp_path: Path) -> None:
    command = ["mount", "-t", "tmpfs", "-o", "size=640k", "tacit-test", str(tmp_path)]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("a small disk cannot be mounted here")
    try:
        target = f"{tmp_path}/{name}"
        with open_resumable_sink(target) as sink:
            sink.recover(None)
            (tmp_path / "ballast").write_bytes(bytes(450_000))
            sink.deliver(batch(1, 200))
            with pytest.raises(UnreachableError, match="disk is full"):
                sink.deliver(batch(2, 3000))
            (tmp_path / "ballast").unlink()
            sink.deliver(batch(2, 3000))
        assert_same(rows(target), answers(batch(1, 200), batch(2, 3000)))
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_the_groups_of_a_part_tell_nothing_but_its_size(tmp_path: Path) -> None:
    whole = batch(1, 3000).table
    pieces = [whole.slice(0, 7), whole.slice(7, 1500), whole.slice(1507)]
    for number, table in enumerate((whole, pa.concat_tables(pieces)), start=1):
        with open_resumable_sink(f"{tmp_path}/{number}/") as sink:
            sink.recover(None)
            sink.deliver(ReleaseBatch(1, table, {}))
    one, two = (tmp_path / f"{number}/000000000001.parquet" for number in (1, 2))
    assert pq.ParquetFile(one).num_row_groups == pq.ParquetFile(two).num_row_groups == 1
    assert one.read_bytes() == two.read_bytes()


def test_a_cut_off_part_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts/.000000000007.parquet.x1y2.partial").write_bytes(b"half")
    (tmp_path / "parts/.other.partial").write_bytes(b"not ours")
    with open_resumable_sink(f"{tmp_path}/parts/") as sink:
        sink.recover(None)
        sink.deliver(batch(7))
    left = [name for name in os.listdir(tmp_path / "parts") if name != ".parquet.lock"]
    assert sorted(left) == [".other.partial", "000000000007.parquet"]


def test_standard_output_gets_json_lines(capfd: pytest.CaptureFixture[str]) -> None:
    with open_resumable_sink("-") as sink:
        assert sink.name == "-"
        sink.recover(None)
        assert sink.deliver(batch(1)) is None
        sink.deliver(batch(2))
    found = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert_same(found, answers(batch(1), batch(2)))


def test_standard_output_that_nobody_reads_ends_the_run_quietly(forks: Forks) -> None:
    code = """
import os, sys
from tacit.connectors.openers import open_resumable_sink
from tacit.errors import ClosedPipeError
from tests.connectors.checks import batch
sink = open_resumable_sink("-")
sys.stdin.readline()
try:
    sink.deliver(batch(1))
except ClosedPipeError:
    os._exit(7)
"""
    process = subprocess.Popen(
        [forks.program, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.close()
    process.communicate(b"\n")
    assert process.returncode == 7
    assert issubclass(ClosedPipeError, SinkError)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("a.parquet", "cannot append to a .parquet file; .* folder such as a/"),
        ("a.arrow", "cannot append to a .arrow file"),
        ("a.txt", "unknown kind of file"),
        ("missing/a.jsonl", "folder does not exist"),
        ("http://somewhere/a", "'http://' is not a sink"),
    ],
)
def test_a_name_that_is_no_sink_is_explained(name: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(SinkError, match=says):
        open_resumable_sink(name if "://" in name else f"{tmp_path}/{name}")


def test_a_folder_that_cannot_be_made_is_explained(tmp_path: Path) -> None:
    with pytest.raises(SinkError, match="create"):
        open_resumable_sink(f"{tmp_path}/no/parts/")
