"""Runs that are killed again and again, and what must be true after the last of them."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from tacit.answers.codec import unpack
from tacit.engines.local import detect
from tacit.errors import LedgerError
from tacit.ledger.alchemy import sa
from tacit.ledger.directory import Directory
from tacit.ledger.ledger import Ledger
from tacit.ledger.tables import BODIES, RELEASES, RUNS
from tacit.ledger.verification import verify
from tacit.spec.yaml_reader import load
from tests.engines.forking import Forks

SPEC = """
version: 1
streams:
  home: {subject: who, time: at, unit: s}
windows: {size: 1 min, lateness: 20 s}
events:
  door: {stream: home, where: "kind = 0"}
  stove: {stream: home, where: "kind = 1"}
  bed: {stream: home, where: "kind = 2"}
private:
  - {pattern: door, epsilon: 1.0}
queries:
  - {name: exact, consumer: care, pattern: "SEQ(stove, bed)"}
  - {name: guarded, consumer: city, pattern: door}
subjects: {file: subjects.txt}
mechanism: uniform
"""
SUBJECTS = 40
KEY = ["window_start", "subject", "query"]


def specified(folder: Path, text: str = SPEC) -> Path:
    """The specification and its registry, in files."""
    (folder / "subjects.txt").write_text("".join(f"p{n}\n" for n in range(SUBJECTS)))
    path = folder / "home.yaml"
    path.write_text(text)
    return path


def tuples(first: int, rows: int, seed: int, seconds: int) -> pl.DataFrame:
    """Tuples of a stretch of time, not quite in order."""
    random = np.random.default_rng(seed)
    times = first + np.sort(random.integers(0, seconds, rows)) + random.integers(-9, 10, rows)
    return pl.DataFrame(
        {
            "who": [f"p{n}" for n in random.integers(0, SUBJECTS, rows)],
            "at": times,
            "kind": random.integers(0, 3, rows),
        }
    )


def filled(folder: Path, files: int, rows: int) -> Path:
    """A folder of files that follow each other, two minutes each."""
    folder.mkdir()
    for number in range(files):
        part = tuples(1_700_000_040 + 120 * number, rows, number, 120)
        part.write_parquet(folder / f"{number:04}.parquet")
    return folder


@dataclass
class Crashes:
    """A command that is killed and started again."""

    forks: Forks
    output: Path
    arguments: Sequence[object]
    answers: Path
    longest: float = 0.1
    """Seconds from then to the latest kill."""
    random: random.Random = field(default_factory=lambda: random.Random(7))
    kills: int = 0

    def attempt(self) -> int:
        """Run it, and kill it at random: at its start, or soon after something came of it."""
        before = _stamp(self.answers)
        pid = self.started()
        if self.random.random() < 0.8:
            deadline = time.monotonic() + 5
            while _stamp(self.answers) == before and runs(pid) and time.monotonic() < deadline:
                time.sleep(0.001)
        deadline = time.monotonic() + self.random.uniform(0.0, self.longest)
        while time.monotonic() < deadline and runs(pid):
            time.sleep(0.001)
        return self.kill(pid)

    def started(self) -> int:
        """Start it; the number of its process."""
        return self.forks.start(self.output, *self.arguments)

    def kill(self, pid: int) -> int:
        """Kill a process, if it still runs; how it ended."""
        os.kill(pid, signal.SIGKILL)  # one that has ended is a zombie until we wait for it
        ended = self.forks.wait(pid)
        self.kills += ended == -signal.SIGKILL
        return ended

    def until_done(self, most: int) -> None:
        """Kill it at random until it gets through, or so many times; then let it go on."""
        for _ in range(most):
            ended = self.attempt()
            if ended == 0:
                return
            assert ended == -signal.SIGKILL, self.output.read_text()
        assert self.finish() == 0, self.output.read_text()

    def finish(self) -> int:
        """Let it run to its end; its exit code."""
        return self.forks.wait(self.started())


def _stamp(path: Path) -> tuple[int, int]:
    try:
        state = path.stat()
    except FileNotFoundError:
        return 0, 0
    return state.st_size, state.st_mtime_ns


def runs(pid: int) -> bool:
    """Whether a process has not ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def released(place: str, run: str = "home") -> pl.DataFrame:
    """All answers of a run, from the ledger, which must be right; each window once."""
    with Ledger.open(place, create=False) as ledger:
        verdict = verify(ledger)
        assert verdict.passed, [str(fault) for fault in verdict.faults]
        kept = RELEASES.join(BODIES, BODIES.c.release == RELEASES.c.number)
        query = sa.select(RELEASES, BODIES.c.body).select_from(kept)
        with ledger.database.reading() as connection:
            rows = connection.execute(
                query.where(RELEASES.c.run == run).order_by(RELEASES.c.number)
            ).all()
        names = Directory(ledger)
        tables = [unpack(row.body, row.first_id, names)[0] for row in rows]
        for row, table in zip(rows, tables, strict=True):
            assert table.num_rows == row.answers
        for before, after in pairwise(rows):
            assert after.first == before.first + before.windows * before.slide
            assert after.first_id == before.first_id + before.answers
    whole: pl.DataFrame = pl.concat([pl.DataFrame(table) for table in tables])
    return _plain(whole)


def delivered(file: Path) -> pl.DataFrame:
    """All answers in a file of JSON lines."""
    frame = pl.read_ndjson(file)
    return _plain(frame)


def _plain(frame: pl.DataFrame) -> pl.DataFrame:
    times = [pl.col(n).cast(pl.Datetime("us", "UTC")) for n in ("window_start", "window_end")]
    if frame["window_start"].dtype == pl.String:
        times = [pl.col(n).str.to_datetime(time_zone="UTC") for n in ("window_start", "window_end")]
    texts = [pl.col(name).cast(pl.String) for name in ("subject", "query")]
    return frame.with_columns(*times, *texts, pl.col("confidence").cast(pl.Float32))


def check_released_once(place: str, file: Path, run: str = "home") -> pl.DataFrame:
    """Every answer of the ledger is in the file, under its id, once and as it was released."""
    ledger = released(place, run)
    assert ledger.select(KEY).is_duplicated().sum() == 0
    seen = delivered(file)
    assert seen["id"].to_list() == ledger["id"].to_list()
    for column in ("window_start", "window_end", "subject", "query", "detected", "confidence"):
        assert seen[column].equals(ledger[column]), column
    return ledger


def check_complete(spec: Path, answers: pl.DataFrame, source: object) -> None:
    """What touches nothing private is answered as all tuples together say, in every window."""
    true = detect(load(spec), source).polars().with_columns(pl.col(KEY[1:]).cast(pl.String))
    true = true.with_columns(pl.col("window_start").cast(pl.Datetime("us", "UTC")))
    assert answers.height == true.height
    both = answers.join(true, on=KEY, how="inner", suffix="_true")
    assert both.height == true.height
    exact = both.filter(pl.col("query") == "exact")
    assert exact["detected"].any()
    wrong = exact.filter(pl.col("detected") != pl.col("detected_true"))
    assert wrong.is_empty(), wrong


class Flood:
    """Tuples that are published while a run is killed and started again."""

    def __init__(self, frames: Sequence[pl.DataFrame]) -> None:
        last = max(int(frame["at"].max()) for frame in frames)  # type: ignore[arg-type]
        self.until = last // 60 * 60 + 60
        """The end of the last window that is looked at."""
        closing = frames[0][:1].with_columns(at=pl.lit(self.until + 120, pl.Int64))
        self.frames = [*frames, closing]

    def check(self, spec: Path, answers: pl.DataFrame) -> None:
        """No tuple is missing from its window."""
        whole = pl.concat(self.frames)
        source = spec.parent / "published.parquet"
        whole.sort("at").write_parquet(source)
        true = detect(load(spec), source).polars().with_columns(pl.col(KEY[1:]).cast(pl.String))
        until = pl.lit(self.until * 1_000_000).cast(pl.Datetime("us", "UTC"))
        wanted = true.filter(pl.col("window_end") <= until)
        both = answers.join(wanted, on=KEY, how="inner", suffix="_true")
        assert both.height == wanted.height
        wrong = both.filter(
            (pl.col("query") == "exact") & (pl.col("detected") != pl.col("detected_true"))
        )
        assert wrong.is_empty(), wrong
        assert both.filter(pl.col("query") == "exact")["detected"].any()


def released_until(place: str, run: str = "home") -> int:
    """When the last window ends that a run has released, in seconds; 0 if there is none."""
    last = sa.func.max(RELEASES.c.first + (RELEASES.c.windows - 1) * RELEASES.c.slide)
    query = sa.select(last + sa.func.max(RELEASES.c.size)).where(RELEASES.c.run == run)
    return _asked(place, query) // 1_000_000


def holders(place: str, run: str = "home") -> int:
    """How many engines have taken a run over."""
    return _asked(place, sa.select(RUNS.c.epoch).where(RUNS.c.run == run))


def _asked(place: str, query: sa.Select[Any]) -> int:
    """What a ledger says; 0 where it is not there yet, or says nothing."""
    try:
        with (
            Ledger.open(place, create=False, read_only=True) as ledger,
            ledger.database.reading() as connection,
        ):
            return int(connection.execute(query).scalar() or 0)
    except LedgerError:
        return 0
