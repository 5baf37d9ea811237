"""One list of checks that every sink must pass, and what happens when writing fails."""

from __future__ import annotations

import errno
import json
import os
import stat
import subprocess
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from tacit.connectors.files import open_source
from tacit.connectors.openers import open_sink
from tacit.connectors.sinks import StandardOutput
from tacit.connectors.writers import SUFFIXES
from tacit.errors import ClosedPipeError, SinkError
from tests.connectors.checks import file_rows
from tests.engines.forking import Forks

NAMES = [f"answers{suffix}" for suffix in SUFFIXES]
SUBJECTS = ["plain", 'quo"ted', "new\nline", "a,b", "Ärger 😀", ""]


def answers(first: int, count: int, *, subjects: list[str] | None = None) -> pa.Table:
    """Answers as the engine gives them, from window `first` on."""
    names = subjects or SUBJECTS
    start = [datetime(2008, 2, 2, 13, 30 + first, tzinfo=UTC)] * count
    kind = pa.timestamp("us", "UTC")
    return pa.table(
        {
            "window_start": pa.array(start, kind),
            "window_end": pa.array(
                [s.replace(second=59, microsecond=500_000) for s in start], kind
            ),
            "subject": pa.array([names[n % len(names)] for n in range(count)]).dictionary_encode(),
            "query": pa.array(["jam"] * count).dictionary_encode(),
            "detected": pa.array([n % 2 == 0 for n in range(count)]),
        }
    )


def read(path: Path) -> list[dict[str, Any]]:
    """All rows of a file, with times as ISO text."""
    rows = file_rows(path)
    for row in rows:
        for name in ("window_start", "window_end"):
            if isinstance(row[name], datetime):
                row[name] = row[name].isoformat().replace("+00:00", "Z").replace("500000Z", "500Z")
    return rows


def expected(*tables: pa.Table) -> list[dict[str, Any]]:
    """The same of tables."""
    rows = [row for table in tables for row in table.to_pylist()]
    for row in rows:
        row["window_start"] = row["window_start"].strftime("%Y-%m-%dT%H:%M:%SZ")
        row["window_end"] = row["window_end"].strftime("%Y-%m-%dT%H:%M:%S.500Z")
    return rows


@pytest.mark.parametrize("name", NAMES)
def test_what_is_written_can_be_read_back(name: str, tmp_path: Path) -> None:
    tables = [answers(0, 20), answers(1, 8, subjects=["new", "plain"]), answers(2, 30)]
    with open_sink(tmp_path / name) as sink:
        for table in tables:
            sink.write(table)
    assert read(tmp_path / name) == expected(*tables)


@pytest.mark.parametrize("name", NAMES)
def test_the_target_appears_whole_at_the_end_and_nothing_else_stays(
    name: str, tmp_path: Path
) -> None:
    target = tmp_path / name
    target.write_bytes(b"earlier")
    os.chmod(target, 0o640)
    sink = open_sink(target)
    sink.write(answers(0, 20))
    assert target.read_bytes() == b"earlier"
    sink.close()
    sink.close()
    assert target.read_bytes() != b"earlier"
    assert os.listdir(tmp_path) == [name]
    assert stat.S_IMODE(target.stat().st_mode) == 0o640


@pytest.mark.parametrize("name", NAMES)
def test_a_file_does_not_show_how_its_rows_were_handed_over(name: str, tmp_path: Path) -> None:
    """Which windows come together depends on all tuples, so no byte of a file may show it."""
    whole = answers(0, 24)
    contents = []
    for number, cuts in enumerate(([0, 24], [0, 7, 24], [0, 1, 2, 3, 24])):
        path = tmp_path / str(number) / name
        path.parent.mkdir()
        with open_sink(path) as sink:
            for begin, end in pairwise(cuts):
                sink.write(whole.slice(begin, end - begin))
        contents.append(path.read_bytes())
    assert len(set(contents)) == 1


@pytest.mark.parametrize("name", NAMES)
def test_an_exception_leaves_the_earlier_file_and_nothing_else(name: str, tmp_path: Path) -> None:
    target = tmp_path / name
    target.write_bytes(b"earlier")

    def run() -> None:
        with open_sink(target) as sink:
            sink.write(answers(0, 20))
            raise KeyError("something else")

    with pytest.raises(KeyError):
        run()
    assert target.read_bytes() == b"earlier"
    assert os.listdir(tmp_path) == [name]


@pytest.mark.parametrize("name", [n for n in NAMES if "jsonl" not in n and "ndjson" not in n])
def test_without_answers_the_columns_are_written_all_the_same(name: str, tmp_path: Path) -> None:
    open_sink(tmp_path / name, answers(0, 1).schema).close()
    source = open_source(tmp_path / name)
    assert source.schema().names == answers(0, 1).schema.names
    assert sum(batch.table.num_rows for batch in source.batches()) == 0


def test_text_formats_write_iso_times_and_plain_truth(tmp_path: Path) -> None:
    for name in ("a.csv", "a.jsonl"):
        with open_sink(tmp_path / name) as sink:
            sink.write(answers(0, 1).append_column("confidence", pa.array([0.25])))
    assert (tmp_path / "a.csv").read_text() == (
        "window_start,window_end,subject,query,detected,confidence\n"
        "2008-02-02T13:30:00Z,2008-02-02T13:30:59.500Z,plain,jam,true,0.25\n"
    )
    assert json.loads((tmp_path / "a.jsonl").read_text()) == {
        "window_start": "2008-02-02T13:30:00Z",
        "window_end": "2008-02-02T13:30:59.500Z",
        "subject": "plain",
        "query": "jam",
        "detected": True,
        "confidence": 0.25,
    }


def test_parquet_keeps_the_types_of_answers(tmp_path: Path) -> None:
    with open_sink(tmp_path / "a.parquet") as sink:
        sink.write(answers(0, 5))
    found = pl.read_parquet(tmp_path / "a.parquet").schema
    assert found["window_start"] == pl.Datetime("us", "UTC")
    assert found["detected"] == pl.Boolean


def test_an_unknown_suffix_is_refused_with_the_known_ones() -> None:
    with pytest.raises(SinkError, match=r"\.parquet, \.csv, .*standard output"):
        open_sink("answers.xlsx")


def test_what_is_not_a_regular_file_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "a.csv").mkdir()
    with pytest.raises(SinkError, match="not a regular file"):
        open_sink(tmp_path / "a.csv")


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "a.csv").symlink_to(tmp_path / "folder" / "b.csv")
    with open_sink(tmp_path / "a.csv") as sink:
        sink.write(answers(0, 5))
    assert (tmp_path / "a.csv").is_symlink()
    assert os.listdir(tmp_path / "folder") == ["b.csv"]


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SinkError, match="its folder does not exist"):
        open_sink(tmp_path / "no" / "a.csv")


def test_a_closed_sink_takes_no_more(tmp_path: Path) -> None:
    sink = open_sink(tmp_path / "a.csv")
    sink.close()
    with pytest.raises(SinkError, match="is closed"):
        sink.write(answers(0, 1))


LIMITED = """
import random, resource, signal, sys
import pyarrow as pa
from tacit.connectors.openers import open_sink
from tacit.errors import SinkError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
table = pa.table({"n": pa.array(random.sample(range(10**9), 30_000), pa.int64())})
for name in sys.argv[1:]:
    try:
        with open_sink(name) as sink:
            for _ in range(3):
                sink.write(table)
    except SinkError as error:
        print(error)
"""


def test_a_disk_that_takes_no_more_leaves_nothing_behind(tmp_path: Path, forks: Forks) -> None:
    names = [str(tmp_path / name) for name in NAMES]
    run = subprocess.run([forks.program, "-c", LIMITED, *names], capture_output=True, text=True)
    assert run.stderr == ""
    refusals = run.stdout.splitlines()
    assert len(refusals) == len(NAMES)
    assert all("cannot be written: File too large" in refusal for refusal in refusals)
    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
def test_a_full_disk_says_so() -> None:
    number = os.open("/dev/full", os.O_WRONLY)
    with pytest.raises(SinkError, match="the disk is full; free some space"):
        StandardOutput(number).write(answers(0, 3))
    os.close(number)


def test_a_full_disk_is_told_by_every_format(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    for name in NAMES:
        sink = open_sink(tmp_path / name)
        sink.write(answers(0, 3))
        with pytest.raises(SinkError, match="the disk is full"):
            sink.close()
        assert os.listdir(tmp_path) == []


def test_a_pipe_without_reader_is_told_apart() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with pytest.raises(ClosedPipeError):
        StandardOutput(writer).write(answers(0, 3))
    os.close(writer)


PIPED = """
import pyarrow as pa
from tacit.connectors.openers import open_sink
from tacit.errors import ClosedPipeError
table = pa.table({"n": pa.array(range(100_000), pa.int64())})
try:
    with open_sink("-") as sink:
        for _ in range(100):
            sink.write(table)
except ClosedPipeError:
    raise SystemExit(5)
"""


def test_standard_output_is_lines_as_they_come_until_its_reader_leaves(forks: Forks) -> None:
    with subprocess.Popen(
        [forks.program, "-c", PIPED], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert [process.stdout.readline() for _ in range(2)] == [b'{"n":0}\n', b'{"n":1}\n']
        process.stdout.close()
        assert process.wait(60) == 5
        assert process.stderr.read() == b""


@pytest.mark.parametrize("name", NAMES)
def test_groups_that_are_written_in_the_background_show_no_cuts_either(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tacit.connectors.sinks._GROUP", 64)
    whole, contents = answers(0, 150), []
    for number, cuts in enumerate(([0, 150], [0, 63, 66, 130, 150], [*range(151)])):
        path = tmp_path / str(number) / name
        path.parent.mkdir()
        with open_sink(path) as sink:
            for begin, end in pairwise(cuts):
                sink.write(whole.slice(begin, end - begin))
        contents.append(path.read_bytes())
        assert read(path) == expected(whole)
    assert len(set(contents)) == 1


@pytest.mark.parametrize("late", [False, True], ids=["at the next rows", "at the end"])
def test_an_error_in_the_background_is_raised_and_leaves_nothing(
    late: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tacit.connectors.sinks._GROUP", 10)

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("tacit.connectors.parquet_writer.encode_column", refuse)
    sink = open_sink(tmp_path / "a.parquet")
    sink.write(answers(0, 10))
    with pytest.raises(SinkError, match="the disk is full"):
        sink.close() if late else sink.write(answers(1, 10))
    assert os.listdir(tmp_path) == []
