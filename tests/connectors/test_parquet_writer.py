"""Our Parquet writer: every reader finds the rows that PyArrow's own writer would give."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.connectors.parquet_pages import _MOST_VALUES, encode_column, shrink_dictionary
from tacit.connectors.parquet_writer import AnswerParquetWriter, can_write
from tacit.connectors.writers import ParquetWriter, open_parquet_writer

INSTANT = pa.timestamp("us", tz="UTC")
LEAST, MOST = -(2**63), 2**63 - 1
TEXTS = ["", "a", "q1", "Ärger 😀", "new\nline", "x" * 300]


def written(table: pa.Table, rows: int = 10**9) -> bytes:
    """The file of a table, in groups of so many rows."""
    file = io.BytesIO()
    writer = AnswerParquetWriter(file, table.schema)
    for begin in range(0, table.num_rows, rows):
        writer.write(table.slice(begin, rows))
    writer.close()
    return file.getvalue()


def by_arrow(table: pa.Table) -> pa.Table:
    """The same rows through PyArrow's writer and reader."""
    file = io.BytesIO()
    pq.write_table(table, file)
    return pq.read_table(file)


def texts(places: list[int | None], kind: pa.DataType) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(places, pa.int32()), pa.array(TEXTS, kind))


def runs(values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    """Values that repeat, some of them often."""
    one = st.tuples(values, st.sampled_from([1, 1, 2, 7, 8, 9, 20, 70]))
    return st.lists(one, max_size=25).map(lambda pairs: [v for v, n in pairs for _ in range(n)])


COLUMNS = {
    "id": st.one_of(st.integers(LEAST, MOST), st.integers(-5, 5)),
    "start": st.integers(0, 2**50),
    "subject": st.integers(0, len(TEXTS) - 1),
    "query": st.integers(0, len(TEXTS) - 1),
    "detected": st.booleans(),
    "confidence": st.floats(width=32, allow_nan=False),
}


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    columns = {}
    for name, values in COLUMNS.items():
        maybe = st.one_of(st.none(), values) if draw(st.booleans()) else values
        columns[name] = draw(runs(maybe))
    rows = min(map(len, columns.values()))
    cut = {name: column[:rows] for name, column in columns.items()}
    return pa.table(
        {
            "id": pa.array(cut["id"], pa.int64()),
            "start": pa.array(cut["start"], INSTANT),
            "subject": texts(cut["subject"], pa.large_string()),
            "query": texts(cut["query"], pa.string()),
            "detected": pa.array(cut["detected"], pa.bool_()),
            "confidence": pa.array(cut["confidence"], pa.float32()),
        }
    )


@given(tables(), st.sampled_from([1, 7, 64, 1000]))
@settings(deadline=None, max_examples=40)
def test_pyarrow_and_polars_read_back_what_was_written(table: pa.Table, rows: int) -> None:
    """Any values, runs of any length, with nulls and without, in groups of any size."""
    file = written(table, rows)
    found = pq.read_table(io.BytesIO(file))
    assert found.schema.equals(by_arrow(table).schema, check_metadata=True)
    assert found.to_pydict() == table.to_pydict()
    assert pl.read_parquet(io.BytesIO(file)).to_dicts() == table.to_pylist()


def sizeable(subjects: int, queries: int, values: int) -> pa.Table:
    """Answers as a release has them."""
    random = np.random.default_rng(subjects)
    rows = subjects * queries
    names = pa.array([f"vehicle {n}" for n in range(subjects)], pa.large_string())
    asked = pa.array([f"q{n}" for n in range(queries)])
    return pa.table(
        {
            "id": np.arange(rows) + 10**12,
            "window_start": pa.array(np.full(rows, 1_700_000_000_000_000)).cast(INSTANT),
            "subject": pa.DictionaryArray.from_arrays(
                np.repeat(np.arange(subjects, dtype=np.int32), queries), names
            ),
            "query": pa.DictionaryArray.from_arrays(
                np.tile(np.arange(queries, dtype=np.int32), subjects), asked
            ),
            "detected": random.random(rows) < 0.1,
            "confidence": random.random(values).astype(np.float32)[
                random.integers(0, values, rows)
            ],
        }
    )


@pytest.mark.parametrize("values", [1, 300, _MOST_VALUES + 1], ids=lambda n: f"{n} confidences")
@pytest.mark.parametrize("queries", [1, 3, 8, 20])
def test_large_dictionaries_and_many_values_are_read_back(queries: int, values: int) -> None:
    table = sizeable(70_000 // queries, queries, values)
    found = pq.read_table(io.BytesIO(written(table, 30_011)))
    assert found.column_names == table.column_names
    for one, other in zip(found.columns, table.columns, strict=True):
        assert plain(one).equals(plain(other))


def plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column without a dictionary."""
    if not pa.types.is_dictionary(column.type):
        return column
    return column.cast(column.type.value_type).cast(pa.string())


def test_duckdb_reads_the_same_rows(tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    table = sizeable(900, 20, 40)
    (tmp_path / "a.parquet").write_bytes(written(table, 5_000))
    found = duckdb.sql(f"SELECT * FROM '{tmp_path / 'a.parquet'}'").to_arrow_table()
    assert found.column_names == table.column_names
    for name in table.column_names:
        assert found[name].to_pylist() == table[name].to_pylist(), name


def test_a_group_has_only_its_own_names_and_bounds_to_find_rows_by() -> None:
    table = sizeable(1000, 20, 5)
    metadata = pq.read_metadata(io.BytesIO(written(table, 2_000)))
    assert metadata.num_row_groups == 10
    assert metadata.num_rows == table.num_rows
    sizes = [metadata.row_group(n).column(2).total_uncompressed_size for n in range(10)]
    assert max(sizes) < 100 * (len("vehicle 999") + 4) + 600  # a hundred names, and runs
    numbers = metadata.row_group(3).column(0).statistics
    assert (numbers.min, numbers.max) == (10**12 + 6_000, 10**12 + 7_999)


def test_answers_take_few_bytes() -> None:
    """About a bit for the answer, and two for one of four confidences."""
    table = sizeable(20_000, 20, 4)
    assert 8 * len(written(table, 1 << 20)) / table.num_rows < 4


def test_dictionaries_are_in_the_order_of_rows_however_the_rows_are_cut() -> None:
    column = texts([3, 3, 1, 5, 1, 0], pa.string())
    shrunk = shrink_dictionary(column)
    assert shrunk.to_pylist() == column.to_pylist()
    assert shrunk.dictionary.to_pylist() == [TEXTS[n] for n in (3, 1, 5, 0)]
    table = pa.table({"name": column})
    halves = pa.concat_tables([table.slice(0, 2), table.slice(2)])
    assert written(halves) == written(table)


def test_regular_columns_take_next_to_nothing_before_compression() -> None:
    numbers = encode_column(pa.array(np.arange(10_000)))
    assert len(numbers.data) < 10_000 // 16
    times = encode_column(pa.array(np.full(10_000, 7)).cast(INSTANT))
    assert len(times.data) < 20


def test_other_columns_are_written_by_pyarrow(tmp_path: Path) -> None:
    plain = pa.table({"id": pa.array([1, 2]), "name": ["a", "b"]})
    assert not can_write(plain.schema)
    with (tmp_path / "a.parquet").open("wb") as file:
        writer = open_parquet_writer(file, plain.schema)
        assert isinstance(writer, ParquetWriter)
        writer.write(plain)
        writer.close()
    assert pq.read_table(tmp_path / "a.parquet").equals(plain)
    assert can_write(sizeable(1, 1, 1).schema)
