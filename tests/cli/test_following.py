"""`tacit run --follow` on a folder: stopped and started again, nothing is lost or comes twice."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import polars as pl

SUBJECTS = [f"p{n}" for n in range(5)]
SPEC = """
version: 1
streams: {s: {subject: who, time: at, unit: s}}
windows: {size: 1 min, lateness: 10 s}
subjects: [p0, p1, p2, p3, p4]
events:
  a: {stream: s, where: "kind = 'a'"}
  b: {stream: s, where: "kind = 'b'"}
private:
  - {pattern: b, epsilon: 1}
queries:
  - {name: seen, consumer: us, pattern: a}
  - {name: guarded, consumer: us, pattern: "AND(a, b)"}
mechanism: uniform
"""


def add(folder: Path, minute: int) -> None:
    """A file of what everybody does in a minute; closes the minute before."""
    frame = pl.DataFrame(
        {
            "who": SUBJECTS,
            "at": [60 * minute + 9 * n for n in range(5)],
            "kind": ["ab"[(n + minute) % 2] for n in range(5)],
        }
    )
    part = folder / f".{minute:03}"
    frame.write_parquet(part)
    part.rename(folder / f"{minute:03}.parquet")


@contextmanager
def running(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`tacit run` over the folder of files that lies in this one."""
    command = [sys.executable, "-m", "tacit", "run", "spec.yaml", "files", "--follow"]
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(
            [*command, "--ledger", "spent.db", "--to", "answers.jsonl"], cwd=folder, stderr=log
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait(60)


def wait_for(process: subprocess.Popen[bytes], folder: Path, windows: int) -> None:
    """Wait until so many windows were answered."""
    answers, deadline = folder / "answers.jsonl", time.monotonic() + 120
    while not answers.exists() or answers.read_bytes().count(b"\n") < windows * 2 * len(SUBJECTS):
        assert process.poll() is None, (folder / "log").read_text()
        assert time.monotonic() < deadline, (folder / "log").read_text()
        time.sleep(0.05)


def test_a_folder_is_followed_over_stops_without_loss(tmp_path: Path) -> None:
    """A run that follows files is killed in `make soak`, and one on MQTT in `test_crashes`."""
    (tmp_path / "spec.yaml").write_text(SPEC)
    files = tmp_path / "files"
    files.mkdir()
    for minute in range(3):
        add(files, minute)
    with running(tmp_path) as process:
        wait_for(process, tmp_path, 2)
        add(files, 3)
        wait_for(process, tmp_path, 3)
        process.terminate()
        assert process.wait(60) == 0
    (files / "000.parquet").unlink()  # answered long ago
    for minute in range(4, 6):
        add(files, minute)  # while nobody reads
    with running(tmp_path) as process:
        wait_for(process, tmp_path, 5)
        add(files, 6)
        wait_for(process, tmp_path, 6)
        process.terminate()
        assert process.wait(60) == 0
    answers = pl.read_ndjson(tmp_path / "answers.jsonl")
    found = answers.group_by("window_start", "subject", "query").len()
    assert found.height == answers.height == 6 * len(SUBJECTS) * 2
    exact = answers.filter(pl.col("query") == "seen")
    minutes = exact["window_start"].str.slice(14, 2).cast(pl.Int64)
    place = exact["subject"].str.slice(-1).cast(pl.Int64)
    assert (exact["detected"] == ((place + minutes) % 2 == 0)).all()
