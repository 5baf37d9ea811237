"""Dead letters: what is written, for whom, and when."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tacit.errors import SinkError
from tacit.events.times import NO_TIME
from tacit.pipeline.batches import Rows
from tacit.pipeline.deadletters import DeadLetters
from tacit.pipeline.sources import Rejected

ROWS = Rows(
    "gps",
    pa.RecordBatch.from_pydict(
        {
            "id": pa.array(["a", None, 'q"\n']).dictionary_encode(),
            "speed": [1.5, float("nan"), None],
            "when": pa.array([0, 1, 2], pa.timestamp("us")),
        }
    ),
    "trips.parquet",
    first=11,
)


def read(path: Path) -> list[dict[str, Any]]:
    """All letters."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_refused_rows_are_written_with_place_reason_time_and_subject(tmp_path: Path) -> None:
    path = tmp_path / "dead.jsonl"
    with DeadLetters(path) as letters:
        times = np.array([1_201_959_000_500_000, NO_TIME])
        letters.add_rows(ROWS, np.array([0, 2]), "late", times, "id")
    first, second = read(path)
    assert json.loads(first.pop("raw"))["speed"] == 1.5
    assert first == {
        "stream": "gps",
        "source": "trips.parquet",
        "place": 11,
        "reason": "late",
        "time": "2008-02-02T13:30:00.500Z",
        "subject": "a",
    }
    assert (second["place"], second["time"], second["subject"]) == (13, None, 'q"\n')
    assert letters.counts == {("gps", "late"): 2}


def test_rejected_lines_are_written_as_they_stood(tmp_path: Path) -> None:
    path = tmp_path / "dead.jsonl"
    with DeadLetters(path) as letters:
        letters.add_lines("gps", "a.jsonl", [Rejected(7, "not JSON", '{"broken')])
    assert read(path) == [
        {
            "stream": "gps",
            "source": "a.jsonl",
            "place": 7,
            "reason": "not JSON",
            "time": None,
            "subject": None,
            "raw": '{"broken',
        }
    ]
    assert letters.counts == {("gps", "not JSON"): 1}


@pytest.mark.parametrize("time", [NO_TIME + 1, 2**63 - 1, -(10**17)])
def test_times_beyond_the_calendar_are_written_as_numbers_or_dates(
    time: int, tmp_path: Path
) -> None:
    path = tmp_path / "dead.jsonl"
    with DeadLetters(path) as letters:
        letters.add_rows(ROWS, np.array([0]), "too far", np.array([time]))
    assert read(path)[0]["time"] == str(time)


def test_the_file_is_the_operators_alone_and_comes_with_the_first_letter(tmp_path: Path) -> None:
    path = tmp_path / "dead.jsonl"
    path.write_text("of an earlier run")
    letters = DeadLetters(path)
    letters.add_rows(ROWS, np.array([], np.int64), "late")
    letters.add_lines("gps", "a", [])
    assert not path.exists()
    letters.add_rows(ROWS, np.array([1]), "late")
    assert len(read(path)) == 1
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    letters.close()
    DeadLetters(path, always=True).close()
    assert path.read_text() == ""


def test_without_a_path_letters_are_only_counted() -> None:
    with DeadLetters() as letters:
        letters.add_rows(ROWS, np.array([1, 2]), "late")
        letters.add_lines("gps", "a", [Rejected(7, "not JSON", "x")])
    assert letters.counts == {("gps", "late"): 2, ("gps", "not JSON"): 1}


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SinkError, match="not a regular file"):
        DeadLetters(tmp_path)
    with pytest.raises(SinkError, match="No such file or directory"):
        DeadLetters(tmp_path / "no" / "dead.jsonl", always=True)


def test_entries_after_a_checkpoint_are_removed_when_a_run_resumes(tmp_path: Path) -> None:
    path = tmp_path / "dead.jsonl"
    with DeadLetters(path, keep=True) as letters:
        letters.add_lines("gps", "a.jsonl", [Rejected(1, "not JSON", "first")])
        mark = letters.sync()
        letters.add_lines("gps", "a.jsonl", [Rejected(2, "not JSON", "second")])
    with DeadLetters(path, keep=True) as letters:
        letters.rewind(json.loads(json.dumps(mark)))
        assert letters.sync() == mark
        letters.add_lines("gps", "a.jsonl", [Rejected(2, "not JSON", "second")])
    assert [letter["raw"] for letter in read(path)] == ["first", "second"]


def test_another_file_is_left_as_it_is(tmp_path: Path) -> None:
    """Such as one that took the place of a file that was moved away."""
    path = tmp_path / "dead.jsonl"
    with DeadLetters(path, keep=True) as letters:
        letters.add_lines("gps", "a.jsonl", [Rejected(1, "not JSON", "first")])
        mark = letters.sync()
    path.rename(tmp_path / "moved.jsonl")
    path.write_text("x" * 10_000)
    DeadLetters(path, keep=True).rewind(mark)
    assert path.stat().st_size == 10_000
