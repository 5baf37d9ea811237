"""Answers as bits, rows and frames."""

from __future__ import annotations

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from tacit.answers import rows as module
from tacit.answers.answers import Answers
from tacit.answers.collection import CollectedAnswers
from tacit.answers.rows import answer_schema
from tacit.windows.clock import NEVER, NONE


def some(windows: int, subjects: int, queries: int, seed: int = 0) -> tuple[Answers, np.ndarray]:
    """Random answers, and the same as a plain array `[window][query][subject]`."""
    rng = np.random.default_rng(seed)
    plain = rng.random((windows, queries, subjects)) < 0.3
    padded = np.zeros((windows, queries, -(-subjects // 64) * 64), dtype=np.bool_)
    padded[:, :, :subjects] = plain
    padded[:, :, subjects:] = True  # what lies beyond the subjects must not matter
    bits = np.packbits(padded, axis=-1, bitorder="little").view("<u8")
    since = np.where(np.arange(subjects) % 5 == 4, 11, NONE)
    since[subjects // 2] = NEVER
    names = pa.array([f"s{number}" for number in range(subjects)], pa.large_string())
    asked = [f"q{n}" for n in range(queries)]
    consumers = [f"for {n % 2}" for n in range(queries)]
    return Answers(asked, 10, 10, names, since, bits, consumers=consumers), plain


def expected(answers: Answers, plain: np.ndarray) -> list[tuple[int, str, str, bool]]:
    """The rows, one by one."""
    return [
        ((10 + window) * 10, f"s{subject}", f"q{query}", bool(plain[window, query, subject]))
        for window in range(plain.shape[0])
        for subject in range(plain.shape[2])
        if answers.since[subject] <= 10 + window
        for query in range(plain.shape[1])
    ]


@pytest.mark.parametrize("rows", [1, 100, 1000, 1 << 20])
def test_rows_come_in_order_of_window_subject_and_query(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many of them are made at a time."""
    monkeypatch.setattr(module, "MOST_ROWS", rows)
    answers, plain = some(3, 150, 4)
    table = answers.table()
    starts = table["window_start"].cast(pa.int64()).to_pylist()
    ends = table["window_end"].cast(pa.int64()).to_pylist()
    others = [table[name].to_pylist() for name in ("subject", "query", "detected")]
    assert list(zip(starts, *others, strict=True)) == expected(answers, plain)
    assert table["consumer"].to_pylist() == [
        f"for {int(query[1:]) % 2}" for query in table["query"].to_pylist()
    ]
    assert table.column_names[2:5] == ["subject", "consumer", "query"]
    assert [end - start for start, end in zip(starts, ends, strict=True)] == [10] * len(starts)
    assert len(answers) == len(table)


def test_counts_and_wide_frames_agree_with_the_rows() -> None:
    answers, _ = some(3, 150, 4)
    collected = CollectedAnswers([answers], answer_schema(), answers.queries, protected=False)
    rows = collected.polars().group_by("query").agg(pl.col("detected").sum())
    assert dict(rows.with_columns(pl.col("query").cast(pl.String)).iter_rows()) == (
        collected.counts()
    )
    wide = collected.wide()
    assert {name: wide[name].sum() for name in answers.queries} == collected.counts()
    assert wide.height * 4 == len(answers)
    assert collected.pandas().shape == (len(answers), 6)
    assert "unprotected" in repr(collected)
    assert "<td>q0</td>" in collected._repr_html_()
    assert pl.DataFrame(collected).height == len(answers)


def test_no_queries_and_no_subjects_give_no_rows() -> None:
    empty = Answers([], 10, 0, pa.array([], pa.large_string()), np.empty(0, np.int64),
                    np.empty((3, 0, 0), np.uint64))  # fmt: skip
    assert empty.table().num_rows == 0
    assert empty.table().schema == answer_schema()
